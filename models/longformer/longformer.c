#include "models/longformer/longformer.h"

#include "models/encoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_longformer_config, member)

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", NULL, "30522", "", 1),
    MC_ROW(SIZE, dim, "hidden_size", NULL, "768", "", 1),
    MC_ENCODER_ROWS,
    MC_ROW(SIZE, types, "type_vocab_size", NULL, "2", "", 1),
    MC_ROW(EACH, window, "attention_window", NULL, "512", "", 2),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", NULL, "1", "", 0),
    MC_ONLY("attention_mode", NULL, "\"longformer\""), /* of the released files */
    MC_ONLY("position_embedding_type", NULL, "\"absolute\""),
    MC_ONLY("ignore_attention_mask", NULL, "false"),
    MC_KNOWN("onnx_export", NULL),
    MC_KNOWN("gradient_checkpointing", NULL),
    MC_KNOWN("sep_token_id", NULL),
    {MC_CONFIG_END},
};

#define SHAPE                                                                      \
    "\"vocab_size\":50265,\"max_position_embeddings\":4098,\"type_vocab_size\":1," \
    "\"layer_norm_eps\":1e-5"
static const mc_named_shape named[] = {
    {"longformer-base-4096 allenai/longformer-base-4096", "{" SHAPE "}"},
    {"longformer-large-4096 allenai/longformer-large-4096",
     "{" SHAPE ",\"hidden_size\":1024,\"intermediate_size\":4096,\"num_hidden_layers\":24,"
     "\"num_attention_heads\":16}"},
    {NULL}};

static int64_t first_position(const mc_longformer_config *c) { return c->pad_token_id + 1; }

static mc_model_shape shape(const void *config)
{
    const mc_longformer_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.positions -= first_position(c);
    s.types = c->types;
    s.bos_token = 0;
    s.eos_token = 2;
    return s;
}

static bool finish(const mc_config_reader *r, void *config)
{
    static const char key[] = "attention_window";
    const mc_longformer_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    const cJSON *each = cJSON_GetObjectItemCaseSensitive(r->json, key);
    if (c->window < 2 || c->window % 2 || c->window > INT32_MAX)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: key \"%s\": a window of %lld, expected an even number from 2 on",
                        r->path, key, (long long)c->window);
    if (cJSON_IsArray(each) && cJSON_GetArraySize(each) != c->layers)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: key \"%s\": a list of %d, expected one for each of %lld layers",
                        r->path, key, cJSON_GetArraySize(each), (long long)c->layers);
    return mc_encoder_check(r, &s, 0, c->eps, first_position(c)) &&
           mc_config_check_rows(r, "types", c->types);
}

/* ---- modules --------------------------------------------------------------------------------- */

static bool declare(mc_model *m, const mc_load_options *load)
{
    const mc_longformer_config *c = m->config;
    mc_encoder_options o = MC_ENCODER_OF(c);
    o.eps = c->eps;
    o.types = c->types;
    o.first_position = first_position(c);
    o.window = (int)(c->window / 2 + 1);
    o.globals = true;
    o.head_activation = MC_ACTIVATION_GELU;
    return mc_encoder_declare(m, &o, load) && mc_encoder_declare_classifier(m);
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    const mc_longformer_config *c = m->config;
    return mc_encoder_classify(t, m, out, c->dropout, MC_ACTIVATION_TANH, c->dropout);
}

/* ---- files ----------------------------------------------------------------------------------- */

#define OURS "encoder.layers.{i}.self_att.self_attention."
#define THEIRS "encoder.layer.{i}.attention.self."
static const mc_weight_rule rules[] = {MC_ENCODER_BODY_RULES("lm_head.decoder"),
                                       {OURS "project_q_global", THEIRS "query_global"},
                                       {OURS "project_k_global", THEIRS "key_global"},
                                       {OURS "project_v_global", THEIRS "value_global"},
                                       MC_ENCODER_LM_HEAD_RULES,
                                       {"classifier", "classifier", .head = true},
                                       {NULL}};

/* Position ids are a buffer; the decoder is the word embedding and lm_head.bias again. */
static const char *const ignored[] = {"*embeddings.position_ids", "*embeddings.token_type_ids",
                                      "lm_head.decoder.*", "lm_head.bias", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "longformer.",
    .ignored = ignored,
    .order = "weight bias longformer lm_head classifier embeddings encoder pooler word_embeddings "
             "token_type_embeddings layer attention self intermediate output query key value "
             "query_global key_global value_global dense LayerNorm layer_norm out_proj "
             "position_embeddings decoder"};

static const char *const model_types[] = {"longformer", NULL};
static const mc_family_classes classes[] = {
    {"LongformerForSequenceClassification", "LongformerForMaskedLM", "LongformerModel"}};
static const char *const lora_targets[] = {"query", "value", NULL};

const mc_family mc_family_longformer = {
    MC_ENCODER_FAMILY(longformer, mc_encoder),
    .title = "Longformer",
    .has = {.types = true, .globals = true, .pooler = true, .labels = true},
    .objective = {.kind = MC_OBJECTIVE_MASKED},
    .hf_only = true,
    .classifier = "classifier.out_proj.weight",
    .pool = mc_encoder_pool,
};

MC_DEFINE_FAMILY(longformer)
