#include "models/electra/electra.h"

#include "models/encoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_electra_config, member)

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", NULL, "30522", "", 1),
    MC_ENCODER_ROWS,
    MC_ROW(SIZE, words_dim, "embedding_size", NULL, "128", "", 1),
    MC_ROW(SIZE, dim, "hidden_size", NULL, "256", "", 1),
    MC_ROW(SIZE, dim_ff, "intermediate_size", NULL, "1024", "", 1), /* not the rows' */
    MC_ROW(SIZE, heads, "num_attention_heads", NULL, "4", "", 1),
    MC_ROW(SIZE, types, "type_vocab_size", NULL, "2", "", 1),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", NULL, "0", "", 0),
    MC_ROW(DROPOUT, classifier_dropout, "classifier_dropout", NULL, "-1", "", -1),
    MC_ONLY("is_decoder", NULL, "false"),
    MC_ONLY("add_cross_attention", NULL, "false"),
    MC_ONLY("position_embedding_type", NULL, "\"absolute\""),
    MC_KNOWN("summary_type", NULL), /* of multiple choice alone, as those that follow */
    MC_KNOWN("summary_use_proj", NULL),
    MC_KNOWN("summary_activation", NULL),
    MC_KNOWN("summary_last_dropout", NULL),
    {MC_CONFIG_END},
};

#define SIZES(words, dim, ff, layers, heads)                                             \
    "{\"embedding_size\":" #words ",\"hidden_size\":" #dim ",\"intermediate_size\":" #ff \
    ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads "}"
static const mc_named_shape named[] = {
    {"electra-small-discriminator google/electra-small-discriminator", "{}"},
    {"electra-small-generator google/electra-small-generator", "{}"},
    {"electra-base-discriminator google/electra-base-discriminator", SIZES(768, 768, 3072, 12, 12)},
    {"electra-base-generator google/electra-base-generator", SIZES(768, 256, 1024, 12, 4)},
    {"electra-large-discriminator google/electra-large-discriminator",
     SIZES(1024, 1024, 4096, 24, 16)},
    {"electra-large-generator google/electra-large-generator", SIZES(1024, 256, 1024, 24, 4)},
    {NULL}};

static mc_model_shape shape(const void *config)
{
    const mc_electra_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.types = c->types;
    return s;
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_electra_config *c = config;
    mc_model_shape s = shape(c);
    if (c->classifier_dropout < 0) c->classifier_dropout = c->dropout;
    return mc_encoder_check(r, &s, 0, c->eps, 0) && mc_config_check_rows(r, "types", c->types) &&
           mc_config_check_rows(r, "columns of the embeddings", c->words_dim);
}

/* ---- modules --------------------------------------------------------------------------------- */

typedef struct electra_parts {
    mc_encoder encoder;
    mc_linear *dense, *prediction; /* of the discriminator */
} electra_parts;

static bool declare(mc_model *m, const mc_load_options *load)
{
    electra_parts *parts = m->parts;
    const mc_electra_config *c = m->config;
    mc_linear_options linear = {.init_std = mc_literal(c->init_std)};
    mc_encoder_options o = MC_ENCODER_OF(c);
    o.eps = c->eps;
    o.words_dim = c->words_dim;
    o.types = c->types;
    o.head_activation = MC_ACTIVATION_GELU;
    if (!mc_encoder_declare(m, &o, load) || !mc_encoder_declare_classifier(m)) return false;
    if (!m->heads.replaced) return true;
    parts->dense = mc_linear_add(&m->module, "replaced_head.dense", c->dim, c->dim, &linear);
    parts->prediction = mc_linear_add(&m->module, "replaced_head.prediction", c->dim, 1, &linear);
    return parts->prediction;
}

static mc_tensor *find_replaced(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    electra_parts *parts = m->parts;
    const mc_electra_config *c = m->config;
    mc_tensor *x = mc_linear_forward_activated(t, parts->dense, hidden, c->activation);
    return x ? mc_linear_forward(t, parts->prediction, x) : NULL;
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    const mc_electra_config *c = m->config;
    float p = c->classifier_dropout;
    return mc_encoder_classify(t, m, out, p, MC_ACTIVATION_GELU, p);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const mc_weight_rule rules[] = {
    MC_ENCODER_BODY_RULES("generator_lm_head"),
    {"embedding_projection", "embeddings_project"},
    {"lm_head.dense", "generator_predictions.dense", .head = true},
    {"lm_head.layer_norm", "generator_predictions.LayerNorm", .head = true},
    {"lm_head.decoder", "generator_lm_head", .head = true},
    {"replaced_head.dense", "discriminator_predictions.dense", .head = true},
    {"replaced_head.prediction", "discriminator_predictions.dense_prediction", .head = true},
    {"classifier", "classifier", .head = true},
    {NULL}};

/* Position ids are a buffer; the head's matrix is the words' again unless the model is untied. */
static const char *const ignored[] = {"*embeddings.position_ids", "*embeddings.token_type_ids",
                                      "generator_lm_head.*", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "electra.",
    .ignored = ignored,
    .order = "weight bias electra generator_predictions generator_lm_head "
             "discriminator_predictions classifier embeddings embeddings_project encoder "
             "word_embeddings position_embeddings token_type_embeddings layer attention self "
             "intermediate output query key value dense dense_prediction "
             "LayerNorm out_proj"};

static const char *const model_types[] = {"electra", NULL};
static const mc_family_classes classes[] = {{"ElectraForSequenceClassification",
                                             "ElectraForMaskedLM", "ElectraModel",
                                             "ElectraForPreTraining"}};
static const char *const lora_targets[] = {"query", "value", NULL};

const mc_family mc_family_electra = {
    MC_ENCODER_FAMILY(electra, electra_parts),
    .title = "ELECTRA",
    .has = {.types = true, .labels = true, .replaced = true},
    .objective = {.kind = MC_OBJECTIVE_MASKED},
    .hf_only = true,
    .classifier = "classifier.out_proj.weight",
    .replaced = find_replaced,
};

MC_DEFINE_FAMILY(electra)
