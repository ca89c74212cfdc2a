#include "models/roberta/roberta.h"

#include "models/bert/bert_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "50265", "50265", 1),
    MC_ROW(SIZE, dim, "hidden_size", "dim_model", "768", "1024", 1),
    MC_ROW(SIZE, dim_ff, "intermediate_size", "dim_ff", "3072", "4096", 1),
    MC_ROW(LAYERS, layers, "num_hidden_layers", "num_layers", "12", "24", 0),
    MC_ROW(SIZE, heads, "num_attention_heads", "num_heads", "12", "16", 1),
    MC_ROW(SIZE, positions, "max_position_embeddings", "position_size", "512", "514", 1),
    MC_ROW(SIZE, types, "type_vocab_size", "type_size", "2", "1", 1),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", "pad_token_id", "1", "1", 0),
    MC_ROW(FLOAT, eps, "layer_norm_eps", "norm_eps", "1e-12", "1e-5", 1e-30, 1),
    MC_BERT_COMMON_ROWS,
    MC_TYPE_ROW(model_type),
    MC_KNOWN("bos_token_id", NULL),
    MC_KNOWN("eos_token_id", NULL),
    {MC_CONFIG_END},
};

#define SHAPE "\"max_position_embeddings\":514,\"type_vocab_size\":1,\"layer_norm_eps\":1e-5"
#define LARGE                                                                   \
    "\"hidden_size\":1024,\"intermediate_size\":4096,\"num_hidden_layers\":24," \
    "\"num_attention_heads\":16"
#define XLM "\"model_type\":\"xlm-roberta\",\"vocab_size\":250002," SHAPE
#define CAMEMBERT "\"model_type\":\"camembert\",\"vocab_size\":32005," SHAPE
static const mc_named_shape named[] = {
    {"roberta-base FacebookAI/roberta-base", "{" SHAPE "}"},
    {"roberta-large FacebookAI/roberta-large", "{" SHAPE "," LARGE "}"},
    {"xlm-roberta-base FacebookAI/xlm-roberta-base", "{" XLM "}"},
    {"xlm-roberta-large FacebookAI/xlm-roberta-large", "{" XLM "," LARGE "}"},
    {"camembert-base almanach/camembert-base", "{" CAMEMBERT "}"},
    {"camembert-large almanach/camembert-large", "{" CAMEMBERT "," LARGE "}"},
    {NULL}};

/* Types whose class has other defaults than RobertaConfig. */
static const mc_type_defaults type_defaults[] = {
    {"xlm-roberta", "{\"vocab_size\":30522}"}, {"camembert", "{\"vocab_size\":30522}"}, {NULL}};

static int64_t first_position(const mc_roberta_config *c) { return c->pad_token_id + 1; }

static bool finish(const mc_config_reader *r, void *config)
{
    mc_roberta_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    if (c->classifier_dropout < 0) c->classifier_dropout = c->dropout;
    return mc_encoder_check(r, &s, c->head_dim, c->eps, first_position(c)) &&
           mc_config_check_rows(r, "types", c->types);
}

static mc_model_shape shape(const void *config)
{
    const mc_roberta_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.types = c->types;
    s.positions -= first_position(c);
    s.bos_token = 0;
    s.eos_token = 2;
    return s;
}

/* ---- the classifier -------------------------------------------------------------------------- */

static bool declare(mc_model *m, const mc_load_options *o)
{
    return mc_bert_declare_encoder(m, first_position(m->config), o) &&
           mc_encoder_declare_classifier(m);
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    const mc_roberta_config *c = m->config;
    float p = c->classifier_dropout;
    return mc_encoder_classify(t, m, out, p, MC_ACTIVATION_TANH, p);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const mc_weight_rule rules[] = {MC_ENCODER_BODY_RULES("lm_head.decoder"),
                                       MC_ENCODER_LM_HEAD_RULES,
                                       {"classifier", "classifier", .head = true},
                                       {NULL}};

/* Position ids are a buffer; the decoder is the word embedding and lm_head.bias again. */
static const char *const ignored[] = {"*embeddings.position_ids", "*embeddings.token_type_ids",
                                      "lm_head.decoder.*", "lm_head.bias", NULL};

static const mc_weight_map map = {
    .rules = rules, .base_prefix = "roberta.", .ignored = ignored, .order = MC_ENCODER_ORDER};

static const char *const model_types[] = {"roberta", "xlm-roberta", "camembert", NULL};
static const mc_family_classes classes[] = {
    {"RobertaForSequenceClassification", "RobertaForMaskedLM", "RobertaModel"},
    {"XLMRobertaForSequenceClassification", "XLMRobertaForMaskedLM", "XLMRobertaModel"},
    {"CamembertForSequenceClassification", "CamembertForMaskedLM", "CamembertModel"}};

/* BERT's files of ModelCenter's have two types. */
static bool is_mc(const cJSON *json)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(json, "type_size");
    return cJSON_IsNumber(types) && types->valueint == 1;
}

static const char *const none[] = {NULL};
static const char *const mc_has[] = {"token_type_embedding.weight", NULL};

static const char *const lora_targets[] = {"query", "value", NULL};

const mc_family mc_family_roberta = {
    MC_ENCODER_FAMILY(roberta, mc_encoder),
    .title = "RoBERTa",
    .type_defaults = type_defaults,
    .has = {.types = true, .pooler = true, .labels = true},
    .objective = {.kind = MC_OBJECTIVE_MASKED},
    .mc_has = mc_has,
    .mc_lacks = none,
    .mc_is = is_mc,
    .classifier = "classifier.out_proj.weight",
    .pool = mc_encoder_pool,
};

MC_DEFINE_FAMILY(roberta)
