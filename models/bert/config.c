#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "models/bert/bert_internal.h"

typedef struct name_value {
    const char *name;
    int value;
} name_value;

static const name_value activations[] = {{"gelu", MC_ACTIVATION_GELU},
                                         {"gelu_new", MC_ACTIVATION_GELU_NEW},
                                         {"gelu_pytorch_tanh", MC_ACTIVATION_GELU_NEW},
                                         {"relu", MC_ACTIVATION_RELU},
                                         {NULL, 0}};

mc_bert_config mc_bert_config_default(void)
{
    return (mc_bert_config){.vocab_size = 30522,
                            .dim = 768,
                            .dim_ff = 3072,
                            .layers = 12,
                            .heads = 12,
                            .positions = 512,
                            .types = 2,
                            .activation = MC_ACTIVATION_GELU,
                            .eps = 1e-12f,
                            .dropout = 0.1f,
                            .attention_dropout = 0.1f,
                            .classifier_dropout = 0.1f,
                            .init_std = 0.02f};
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reader {
    mc_error *err;
    const cJSON *json;
    const char *path;
} reader;

/* A size under Hugging Face's key, or under ModelCenter's. */
static bool get_size(reader *r, const char *key, const char *other, int64_t low, int64_t *out)
{
    const int64_t high = (int64_t)1 << 31;
    return mc_json_get_int(r->err, r->json, r->path, other, low, high, out) &&
           mc_json_get_int(r->err, r->json, r->path, key, low, high, out);
}

static bool get_float(reader *r, const char *key, const char *other, double low, double high,
                      float *out)
{
    double value = *out;
    bool good = mc_json_get_number(r->err, r->json, r->path, other, low, high, &value) &&
                mc_json_get_number(r->err, r->json, r->path, key, low, high, &value);
    *out = (float)value;
    return good;
}

static bool read_sizes(reader *r, mc_bert_config *c)
{
    return get_size(r, "vocab_size", "vocab_size", 1, &c->vocab_size) &&
           get_size(r, "hidden_size", "dim_model", 1, &c->dim) &&
           get_size(r, "intermediate_size", "dim_ff", 1, &c->dim_ff) &&
           get_size(r, "num_hidden_layers", "num_layers", 0, &c->layers) &&
           get_size(r, "num_attention_heads", "num_heads", 1, &c->heads) &&
           get_size(r, "max_position_embeddings", "position_size", 1, &c->positions) &&
           get_size(r, "type_vocab_size", "type_size", 1, &c->types) &&
           get_size(r, "pad_token_id", "pad_token_id", 0, &c->pad_token_id);
}

static bool read_rates(reader *r, mc_bert_config *c)
{
    const double below_one = 1 - 1e-6;
    bool good = get_float(r, "layer_norm_eps", "norm_eps", 1e-30, 1, &c->eps) &&
                get_float(r, "hidden_dropout_prob", "dropout_p", 0, below_one, &c->dropout) &&
                get_float(r, "attention_probs_dropout_prob", "dropout_p", 0, below_one,
                          &c->attention_dropout) &&
                get_float(r, "initializer_range", "att_init_std", 0, 1e6, &c->init_std);
    c->classifier_dropout = c->dropout;
    return good && get_float(r, "classifier_dropout", "classifier_dropout", 0, below_one,
                             &c->classifier_dropout);
}

static bool unsupported(reader *r, const char *key, const char *found, const char *expected)
{
    mc_error_set(r->err, MC_ERR_UNSUPPORTED, "%s: key \"%s\": \"%s\" is not supported, expected %s",
                 r->path, key, found, expected);
    return false;
}

static bool read_choices(reader *r, mc_bert_config *c)
{
    const char *type = "bert", *act = NULL, *position = "absolute";
    bool decoder = false, cross = false;
    if (!mc_json_get_string(r->err, r->json, r->path, "model_type", &type) ||
        !mc_json_get_string(r->err, r->json, r->path, "ffn_activate_fn", &act) ||
        !mc_json_get_string(r->err, r->json, r->path, "hidden_act", &act) ||
        !mc_json_get_string(r->err, r->json, r->path, "position_embedding_type", &position) ||
        !mc_json_get_bool(r->err, r->json, r->path, "is_decoder", &decoder) ||
        !mc_json_get_bool(r->err, r->json, r->path, "add_cross_attention", &cross))
        return false;
    if (strcmp(type, "bert") != 0) return unsupported(r, "model_type", type, "bert");
    if (strcmp(position, "absolute") != 0)
        return unsupported(r, "position_embedding_type", position, "absolute");
    if (decoder || cross)
        return unsupported(r, decoder ? "is_decoder" : "add_cross_attention", "true", "false");
    if (!act) return true;
    for (const name_value *a = activations; a->name; a++)
        if (strcmp(a->name, act) == 0) {
            c->activation = (mc_activation)a->value;
            return true;
        }
    return unsupported(r, "hidden_act", act, "gelu, gelu_new, gelu_pytorch_tanh or relu");
}

cJSON *mc_bert_config_json(mc_error *err, const char *path, mc_bert_config *config)
{
    cJSON *json = mc_json_read_object(err, path, 1 << 24);
    if (!json) return NULL;
    *config = mc_bert_config_default();
    reader r = {err, json, path};
    if (read_choices(&r, config) && read_sizes(&r, config) && read_rates(&r, config)) {
        if (config->dim % config->heads == 0) return json;
        mc_error_set(err, MC_ERR_FORMAT,
                     "%s: hidden_size %lld is no multiple of num_attention_heads %lld", path,
                     (long long)config->dim, (long long)config->heads);
    }
    cJSON_Delete(json);
    return NULL;
}

mc_status mc_bert_config_read(mc_context *ctx, const char *path, mc_bert_config *config)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    cJSON_Delete(mc_bert_config_json(&ctx->error, path, config));
    return mc_error_status(ctx);
}

mc_status mc_bert_read_task(mc_bert *bert, const cJSON *json, const char *path)
{
    mc_context *ctx = bert->module.ctx;
    const char *task = NULL, *names[MC_BERT_MAX_LABELS];
    if (!mc_json_get_string(&ctx->error, json, path, "modelcenter_task", &task))
        return mc_error_status(ctx);
    const cJSON *labels = cJSON_GetObjectItemCaseSensitive(json, "id2label"), *label;
    int found = 0;
    for (int i = 0; i < bert->heads.labels; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        label = cJSON_GetObjectItemCaseSensitive(labels, key);
        if (cJSON_IsString(label)) names[found++] = label->valuestring;
    }
    bool whole = found && found == bert->heads.labels;
    return task || whole ? mc_bert_set_task(bert, task, whole ? names : NULL) : MC_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static const char *architecture(const mc_bert_heads *heads)
{
    if (heads->labels) return "BertForSequenceClassification";
    if (heads->mlm && heads->nsp) return "BertForPreTraining";
    if (heads->mlm) return "BertForMaskedLM";
    return heads->nsp ? "BertForNextSentencePrediction" : "BertModel";
}

static const char *activation_name(mc_activation activation)
{
    for (const name_value *a = activations; a->name; a++)
        if (a->value == (int)activation) return a->name;
    return "gelu";
}

/* A float as the shortest decimal that reads back as the same float: 0.1, not 0.10000000149. */
static bool add_float(cJSON *json, const char *key, float value)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return cJSON_AddRawToObject(json, key, text);
}

static bool add_labels(cJSON *json, const mc_bert *bert)
{
    if (!bert->heads.labels) return true;
    cJSON *id2label = cJSON_AddObjectToObject(json, "id2label");
    cJSON *label2id = cJSON_AddObjectToObject(json, "label2id");
    for (int i = 0; i < bert->heads.labels; i++) {
        char key[16], generic[32];
        snprintf(key, sizeof key, "%d", i);
        snprintf(generic, sizeof generic, "LABEL_%d", i);
        const char *name = bert->label_names ? bert->label_names[i] : generic;
        if (!cJSON_AddStringToObject(id2label, key, name) ||
            !cJSON_AddNumberToObject(label2id, name, i))
            return false;
    }
    return true;
}

static bool add_all(cJSON *json, const mc_bert *bert)
{
    const mc_bert_config *c = &bert->config;
    mc_dtype dtype = bert->module.root->dtype;
    const char *dtype_name = dtype == MC_F16    ? "float16"
                             : dtype == MC_BF16 ? "bfloat16"
                                                : "float32";
    cJSON *list = cJSON_AddArrayToObject(json, "architectures");
    return list && cJSON_AddItemToArray(list, cJSON_CreateString(architecture(&bert->heads))) &&
           cJSON_AddStringToObject(json, "model_type", "bert") &&
           cJSON_AddStringToObject(json, "torch_dtype", dtype_name) &&
           cJSON_AddNumberToObject(json, "vocab_size", (double)c->vocab_size) &&
           cJSON_AddNumberToObject(json, "hidden_size", (double)c->dim) &&
           cJSON_AddNumberToObject(json, "intermediate_size", (double)c->dim_ff) &&
           cJSON_AddNumberToObject(json, "num_hidden_layers", (double)c->layers) &&
           cJSON_AddNumberToObject(json, "num_attention_heads", (double)c->heads) &&
           cJSON_AddNumberToObject(json, "max_position_embeddings", (double)c->positions) &&
           cJSON_AddNumberToObject(json, "type_vocab_size", (double)c->types) &&
           cJSON_AddNumberToObject(json, "pad_token_id", (double)c->pad_token_id) &&
           cJSON_AddStringToObject(json, "hidden_act", activation_name(c->activation)) &&
           cJSON_AddStringToObject(json, "position_embedding_type", "absolute") &&
           add_float(json, "layer_norm_eps", c->eps) &&
           add_float(json, "hidden_dropout_prob", c->dropout) &&
           add_float(json, "attention_probs_dropout_prob", c->attention_dropout) &&
           add_float(json, "classifier_dropout", c->classifier_dropout) &&
           add_float(json, "initializer_range", c->init_std) && add_labels(json, bert) &&
           (!bert->task || cJSON_AddStringToObject(json, "modelcenter_task", bert->task));
}

char *mc_bert_config_print(const mc_bert *bert)
{
    cJSON *json = cJSON_CreateObject();
    char *text = json && add_all(json, bert) ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    return text;
}
