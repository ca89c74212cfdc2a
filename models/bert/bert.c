#include "models/bert/bert_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "30522", "119547", 1),
    MC_ROW(SIZE, dim, "hidden_size", "dim_model", "768", "768", 1),
    MC_ROW(SIZE, dim_ff, "intermediate_size", "dim_ff", "3072", "3072", 1),
    MC_ROW(LAYERS, layers, "num_hidden_layers", "num_layers", "12", "12", 0),
    MC_ROW(SIZE, heads, "num_attention_heads", "num_heads", "12", "12", 1),
    MC_ROW(SIZE, positions, "max_position_embeddings", "position_size", "512", "512", 1),
    MC_ROW(SIZE, types, "type_vocab_size", "type_size", "2", "2", 1),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", "pad_token_id", "0", "0", 0),
    MC_ROW(FLOAT, eps, "layer_norm_eps", "norm_eps", "1e-12", "1e-12", 1e-30, 1),
    MC_BERT_COMMON_ROWS,
    {0},
};

static const mc_named_shape named[] = {
    {"bert-base-uncased bert-base", "{}"},
    {"bert-large-uncased bert-large",
     "{\"hidden_size\":1024,\"intermediate_size\":4096,\"num_hidden_layers\":24,"
     "\"num_attention_heads\":16}"},
    {"bert-base-cased", "{\"vocab_size\":28996}"},
    {"bert-large-cased", "{\"vocab_size\":28996,\"hidden_size\":1024,\"intermediate_size\":4096,"
                         "\"num_hidden_layers\":24,\"num_attention_heads\":16}"},
    {"bert-base-chinese", "{\"vocab_size\":21128}"},
    {"bert-base-multilingual-cased", "{\"vocab_size\":119547}"},
    {NULL}};

static mc_model_shape shape(const void *config)
{
    const mc_bert_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.types = c->types;
    return s;
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_bert_config *c = config;
    if (c->classifier_dropout < 0) c->classifier_dropout = c->dropout;
    mc_model_shape s = shape(c);
    return mc_encoder_check(r, &s, c->head_dim, c->eps, 0) &&
           mc_config_check_rows(r, "types", c->types);
}

/* ---- modules --------------------------------------------------------------------------------- */

bool mc_bert_declare_encoder(mc_model *m, int64_t first_position, const mc_load_options *load)
{
    const mc_bert_config *c = m->config;
    mc_encoder_options o = MC_ENCODER_OF(c);
    o.types = c->types;
    o.first_position = first_position;
    o.eps = c->eps;
    o.embedding_std = c->embedding_std;
    o.ffn_std = c->ffn_std;
    return mc_encoder_declare(m, &o, load);
}

static bool declare(mc_model *m, const mc_load_options *o)
{
    mc_encoder *e = m->parts;
    const mc_bert_config *c = m->config;
    if (m->heads.labels && !m->heads.pooler)
        return !mc_fail(m->module.ctx, MC_ERR_ARGUMENT, "BERT: a classifier needs the pooler");
    mc_linear_options options = {.init_std = mc_literal(c->init_std)};
    if (!mc_bert_declare_encoder(m, 0, o)) return false;
    if (m->heads.labels)
        e->classifier = mc_linear_add(&m->module, "classifier", c->dim, m->heads.labels, &options);
    return true;
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    mc_encoder *e = m->parts;
    const mc_bert_config *c = m->config;
    mc_tensor *x = mc_dropout(t, out->pooled, c->classifier_dropout);
    return mc_linear_forward(t, e->classifier, x);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const mc_weight_rule rules[] = {
    MC_ENCODER_BODY_RULES("cls.predictions.decoder"),
    {"lm_head.dense", "cls.predictions.transform.dense", .head = true},
    {"lm_head.layer_norm", "cls.predictions.transform.LayerNorm", .head = true},
    {"lm_head.decoder.weight", "cls.predictions.decoder.weight", .head = true},
    {"lm_head.decoder.bias", "cls.predictions.bias", .head = true,
     .copy = "cls.predictions.decoder.bias", .copied_with = "lm_head.decoder.weight"},
    {"nsp_head", "cls.seq_relationship", .head = true},
    {"classifier", "classifier", .head = true},
    {NULL}};

/* Position ids are a buffer; the decoder's weight is the word embedding again unless the model is
 * untied, and its bias is cls.predictions.bias again. */
static const char *const ignored[] = {"*embeddings.position_ids",  "*embeddings.token_type_ids",
                                      "cls.predictions.decoder.*", "cls.predictions.bias",
                                      "lm_head.decoder.weight",    NULL};

static const mc_weight_map map = {
    .rules = rules, .base_prefix = "bert.", .ignored = ignored, .order = MC_ENCODER_ORDER};

static bool is_mc(const cJSON *json)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(json, "type_size");
    return !cJSON_IsNumber(types) || types->valueint > 1; /* a RoBERTa has one type */
}

static const char *const model_types[] = {"bert", NULL}, *const none[] = {NULL};
static const mc_family_classes classes[] = {{"BertForSequenceClassification", "BertForMaskedLM",
                                             "BertModel", "BertForPreTraining",
                                             "BertForNextSentencePrediction"}};
static const char *const mc_has[] = {"token_type_embedding.weight", NULL};

static const char *const lora_targets[] = {"query", "value", NULL};

const mc_family mc_family_bert = {
    MC_ENCODER_FAMILY(bert, mc_encoder),
    .title = "BERT",
    .has = {.types = true, .pooler = true, .nsp = true, .labels = true},
    .objective = {.kind = MC_OBJECTIVE_MASKED, .next_sentence = true},
    .mc_has = mc_has,
    .mc_lacks = none,
    .mc_is = is_mc,
    .classifier = "classifier.weight",
    .pool = mc_encoder_pool,
    .nsp = mc_encoder_next_sentence,
};

MC_DEFINE_FAMILY(bert)
