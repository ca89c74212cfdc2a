#include <stdio.h>
#include <string.h>
#include "core/checkpoint/config_json_internal.h"
#include "models/bert/bert_internal.h"

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

static bool read_sizes(mc_config_reader *r, mc_bert_config *c)
{
    return mc_config_size(r, "vocab_size", "vocab_size", 1, &c->vocab_size) &&
           mc_config_size(r, "hidden_size", "dim_model", 1, &c->dim) &&
           mc_config_size(r, "intermediate_size", "dim_ff", 1, &c->dim_ff) &&
           mc_config_size(r, "num_hidden_layers", "num_layers", 0, &c->layers) &&
           mc_config_size(r, "num_attention_heads", "num_heads", 1, &c->heads) &&
           mc_config_size(r, "max_position_embeddings", "position_size", 1, &c->positions) &&
           mc_config_size(r, "type_vocab_size", "type_size", 1, &c->types) &&
           mc_config_size(r, "pad_token_id", "pad_token_id", 0, &c->pad_token_id);
}

static bool read_rates(mc_config_reader *r, mc_bert_config *c)
{
    bool good =
        mc_config_float(r, "layer_norm_eps", "norm_eps", 1e-30, 1, &c->eps) &&
        mc_config_dropout(r, "hidden_dropout_prob", "dropout_p", &c->dropout) &&
        mc_config_dropout(r, "attention_probs_dropout_prob", "dropout_p", &c->attention_dropout) &&
        mc_config_float(r, "initializer_range", "att_init_std", 0, 1e6, &c->init_std);
    c->classifier_dropout = c->dropout;
    return good &&
           mc_config_dropout(r, "classifier_dropout", "classifier_dropout", &c->classifier_dropout);
}

static bool read_choices(mc_config_reader *r, mc_bert_config *c)
{
    const char *type = "bert", *position = "absolute";
    if (!mc_config_string(r, "model_type", "model_type", &type) ||
        !mc_config_string(r, "position_embedding_type", "position_embedding_type", &position))
        return false;
    if (strcmp(type, "bert") != 0) return mc_config_unsupported(r, "model_type", type, "bert");
    if (strcmp(position, "absolute") != 0)
        return mc_config_unsupported(r, "position_embedding_type", position, "absolute");
    return mc_config_must_be(r, "is_decoder", false) &&
           mc_config_must_be(r, "add_cross_attention", false) &&
           mc_config_activation(r, "hidden_act", "ffn_activate_fn", &c->activation);
}

cJSON *mc_bert_config_json(mc_error *err, const char *path, mc_bert_config *config)
{
    cJSON *json = mc_json_read_object(err, path, 1 << 24);
    if (!json) return NULL;
    *config = mc_bert_config_default();
    mc_config_reader r = {err, json, path};
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
    cJSON *list = cJSON_AddArrayToObject(json, "architectures");
    return list && cJSON_AddItemToArray(list, cJSON_CreateString(architecture(&bert->heads))) &&
           cJSON_AddStringToObject(json, "model_type", "bert") &&
           mc_config_add_dtype(json, bert->module.root->dtype) &&
           cJSON_AddNumberToObject(json, "vocab_size", (double)c->vocab_size) &&
           cJSON_AddNumberToObject(json, "hidden_size", (double)c->dim) &&
           cJSON_AddNumberToObject(json, "intermediate_size", (double)c->dim_ff) &&
           cJSON_AddNumberToObject(json, "num_hidden_layers", (double)c->layers) &&
           cJSON_AddNumberToObject(json, "num_attention_heads", (double)c->heads) &&
           cJSON_AddNumberToObject(json, "max_position_embeddings", (double)c->positions) &&
           cJSON_AddNumberToObject(json, "type_vocab_size", (double)c->types) &&
           cJSON_AddNumberToObject(json, "pad_token_id", (double)c->pad_token_id) &&
           mc_config_add_activation(json, "hidden_act", c->activation) &&
           cJSON_AddStringToObject(json, "position_embedding_type", "absolute") &&
           mc_config_add_float(json, "layer_norm_eps", c->eps) &&
           mc_config_add_float(json, "hidden_dropout_prob", c->dropout) &&
           mc_config_add_float(json, "attention_probs_dropout_prob", c->attention_dropout) &&
           mc_config_add_float(json, "classifier_dropout", c->classifier_dropout) &&
           mc_config_add_float(json, "initializer_range", c->init_std) && add_labels(json, bert) &&
           (!bert->task || cJSON_AddStringToObject(json, "modelcenter_task", bert->task));
}

char *mc_bert_config_print(const mc_bert *bert)
{
    cJSON *json = cJSON_CreateObject();
    char *text = json && add_all(json, bert) ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    return text;
}
