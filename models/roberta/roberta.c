#include "models/roberta/roberta.h"

#include "models/bert/bert_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "50265", "50265", 1),
    MC_ROW(SIZE, dim, "hidden_size", "dim_model", "768", "1024", 1),
    MC_ROW(SIZE, dim_ff, "intermediate_size", "dim_ff", "3072", "4096", 1),
    MC_ROW(SIZE, layers, "num_hidden_layers", "num_layers", "12", "24", 0),
    MC_ROW(SIZE, heads, "num_attention_heads", "num_heads", "12", "16", 1),
    MC_ROW(SIZE, positions, "max_position_embeddings", "position_size", "512", "514", 1),
    MC_ROW(SIZE, types, "type_vocab_size", "type_size", "2", "1", 1),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", "pad_token_id", "1", "1", 0),
    MC_ROW(FLOAT, eps, "layer_norm_eps", "norm_eps", "1e-12", "1e-5", 1e-30, 1),
    MC_BERT_COMMON_ROWS,
    MC_KNOWN("bos_token_id", NULL),
    MC_KNOWN("eos_token_id", NULL),
    {MC_CONFIG_END},
};

#define SHAPE "\"max_position_embeddings\":514,\"type_vocab_size\":1,\"layer_norm_eps\":1e-5"
static const mc_named_shape named[] = {
    {"roberta-base FacebookAI/roberta-base", "{" SHAPE "}"},
    {"roberta-large FacebookAI/roberta-large",
     "{" SHAPE ",\"hidden_size\":1024,\"intermediate_size\":4096,\"num_hidden_layers\":24,"
     "\"num_attention_heads\":16}"},
    {NULL}};

static int64_t first_position(const mc_roberta_config *c) { return c->pad_token_id + 1; }

static bool finish(const mc_config_reader *r, void *config)
{
    const mc_roberta_config *c = config;
    if (!mc_bert_finish(r, config)) return false;
    if (c->positions > first_position(c)) return true;
    return !mc_fail(r->ctx, MC_ERR_FORMAT,
                    "%s: %lld rows of positions, the first %lld of which are not used: expected "
                    "more",
                    r->path, (long long)c->positions, (long long)first_position(c));
}

static mc_model_shape shape(const void *config)
{
    const mc_roberta_config *c = config;
    mc_model_shape s = mc_bert_shape(config);
    s.positions -= first_position(c);
    s.bos_token = 0;
    s.eos_token = 2;
    return s;
}

/* ---- the classifier -------------------------------------------------------------------------- */

static bool declare(mc_model *m, const mc_load_options *o)
{
    mc_bert_parts *parts = m->parts;
    const mc_roberta_config *c = m->config;
    mc_linear_options options = {.init_std = mc_literal(c->init_std)};
    parts->first_position = first_position(c);
    if (!mc_bert_declare_encoder(m, o)) return false;
    if (!m->heads.labels) return true;
    parts->classifier_dense =
        mc_linear_add(&m->module, "classifier.dense", c->dim, c->dim, &options);
    parts->classifier =
        mc_linear_add(&m->module, "classifier.out_proj", c->dim, m->heads.labels, &options);
    return parts->classifier;
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    mc_bert_parts *parts = m->parts;
    const mc_roberta_config *c = m->config;
    mc_tensor *x = mc_first_tokens(t, out->with_prompt);
    x = x ? mc_dropout(t, x, c->classifier_dropout) : NULL;
    x = x ? mc_linear_forward_activated(t, parts->classifier_dense, x, MC_ACTIVATION_TANH) : NULL;
    x = x ? mc_dropout(t, x, c->classifier_dropout) : NULL;
    return x ? mc_linear_forward(t, parts->classifier, x) : NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

static const mc_weight_rule rules[] = {
    MC_BERT_BODY_RULES("lm_head.decoder"),
    {"lm_head.dense", "lm_head.dense", .head = true},
    {"lm_head.layer_norm", "lm_head.layer_norm", .head = true},
    {"lm_head.decoder.weight", "lm_head.decoder.weight", .head = true},
    {"lm_head.decoder.bias", "lm_head.bias", .head = true, .copy = "lm_head.decoder.bias",
     .copied_with = "lm_head.decoder.weight"},
    {"classifier", "classifier", .head = true},
    {NULL}};

/* Position ids are a buffer; the decoder is the word embedding and lm_head.bias again. */
static const char *const ignored[] = {"*embeddings.position_ids", "*embeddings.token_type_ids",
                                      "lm_head.decoder.*", "lm_head.bias", NULL};

static const mc_weight_map map = {
    .rules = rules, .base_prefix = "roberta.", .ignored = ignored, .order = MC_BERT_ORDER};

static const char *architecture(const mc_model *m)
{
    if (m->heads.labels) return "RobertaForSequenceClassification";
    return m->heads.lm ? "RobertaForMaskedLM" : "RobertaModel";
}

/* BERT's files of ModelCenter's have two types. */
static bool is_mc(const cJSON *json)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(json, "type_size");
    return cJSON_IsNumber(types) && types->valueint == 1;
}

static const char *const model_types[] = {"roberta", NULL}, *const none[] = {NULL};
static const char *const mc_has[] = {"token_type_embedding.weight", NULL};

static const char *const lora_targets[] = {"query", "value", NULL};

const mc_family mc_family_roberta = {.name = "roberta",
                                     .title = "RoBERTa",
                                     .model_type = model_types,
                                     .kind = MC_MODEL_ENCODER,
                                     .has = {.types = true, .pooler = true, .labels = true},
                                     .objective = {.kind = MC_OBJECTIVE_MASKED},
                                     .config_size = sizeof(mc_roberta_config),
                                     .parts_size = sizeof(mc_bert_parts),
                                     .rows = config_rows,
                                     .named = named,
                                     .map = &map,
                                     .lora_targets = lora_targets,
                                     .mc_has = mc_has,
                                     .mc_lacks = none,
                                     .mc_is = is_mc,
                                     .classifier = "classifier.out_proj.weight",
                                     .finish = finish,
                                     .shape = shape,
                                     .look = mc_bert_look,
                                     .declare = declare,
                                     .encode = mc_bert_encode,
                                     .pool = mc_bert_pool,
                                     .head = mc_bert_mlm_head,
                                     .classify = classify,
                                     .set_dropout = mc_bert_set_dropout,
                                     .architecture = architecture};

MC_DEFINE_FAMILY(roberta)
