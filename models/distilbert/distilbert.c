#include "models/distilbert/distilbert.h"

#include "models/encoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_distilbert_config, member)

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", NULL, "30522", "", 1),
    MC_ROW(SIZE, dim, "dim", NULL, "768", "", 1),
    MC_ROW(SIZE, dim_ff, "hidden_dim", NULL, "3072", "", 1),
    MC_ROW(LAYERS, layers, "n_layers", NULL, "6", "", 0),
    MC_ROW(SIZE, heads, "n_heads", NULL, "12", "", 1),
    MC_ROW(SIZE, positions, "max_position_embeddings", NULL, "512", "", 1),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", NULL, "0", "", 0),
    MC_ROW(ACTIVATION, activation, "activation", NULL, "\"gelu\"", "", 0),
    MC_ROW(DROPOUT, dropout, "dropout", NULL, "0.1", "", 0),
    MC_ROW(DROPOUT, attention_dropout, "attention_dropout", NULL, "0.1", "", 0),
    MC_ROW(DROPOUT, classifier_dropout, "seq_classif_dropout", NULL, "0.2", "", 0),
    MC_ROW(FLOAT, init_std, "initializer_range", NULL, "0.02", "", 0, 1e6),
    MC_ROW(FLAG, tied, "tie_word_embeddings", NULL, "true", "", 0),
    MC_OTHER_NAME(SIZE, dim, "hidden_size", 1),
    MC_OTHER_NAME(LAYERS, layers, "num_hidden_layers", 0),
    MC_OTHER_NAME(SIZE, heads, "num_attention_heads", 1),
    MC_KNOWN("qa_dropout", NULL),
    MC_KNOWN("tie_weights_", NULL), /* of released files; the reference reads tie_word_embeddings */
    MC_KNOWN("sinusoidal_pos_embds", NULL), /* initial values of a table that files hold */
    MC_KNOWN("bos_token_id", NULL),
    MC_KNOWN("eos_token_id", NULL),
    {MC_CONFIG_END},
};

static const mc_named_shape named[] = {
    {"distilbert-base-uncased distilbert/distilbert-base-uncased", "{}"},
    {"distilbert-base-cased distilbert/distilbert-base-cased", "{\"vocab_size\":28996}"},
    {"distilbert-base-multilingual-cased distilbert/distilbert-base-multilingual-cased",
     "{\"vocab_size\":119547}"},
    {NULL}};

static const float eps = 1e-12f;

static mc_model_shape shape(const void *config)
{
    const mc_distilbert_config *c = config;
    return MC_SHAPE_OF(c);
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_model_shape s = shape(config);
    return mc_encoder_check(r, &s, 0, eps, 0);
}

/* ---- modules --------------------------------------------------------------------------------- */

static bool declare(mc_model *m, const mc_load_options *load)
{
    const mc_distilbert_config *c = m->config;
    mc_encoder_options o = MC_ENCODER_OF(c);
    o.eps = eps;
    o.whole_attention = true;
    return mc_encoder_declare(m, &o, load) && mc_encoder_declare_classifier(m);
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    const mc_distilbert_config *c = m->config;
    return mc_encoder_classify(t, m, out, 0, MC_ACTIVATION_RELU, c->classifier_dropout);
}

/* ---- files ----------------------------------------------------------------------------------- */

#define OURS "encoder.layers.{i}."
#define THEIRS "transformer.layer.{i}."
static const mc_weight_rule rules[] = {
    MC_ENCODER_WORDS_RULE("embeddings.word_embeddings", "vocab_projector"),
    {"position_embedding", "embeddings.position_embeddings"},
    MC_ENCODER_NORM_RULES("embeddings.LayerNorm", "transformer.layer.{i-1}.output_layer_norm",
                          "transformer.layer.{last}.output_layer_norm"),
    {OURS "self_att.self_attention.project_q", THEIRS "attention.q_lin"},
    {OURS "self_att.self_attention.project_k", THEIRS "attention.k_lin"},
    {OURS "self_att.self_attention.project_v", THEIRS "attention.v_lin"},
    {OURS "self_att.self_attention.attention_out", THEIRS "attention.out_lin"},
    {OURS "ffn.layernorm_before_ffn", THEIRS "sa_layer_norm"},
    {OURS "ffn.ffn.w_in.w", THEIRS "ffn.lin1"},
    {OURS "ffn.ffn.w_out", THEIRS "ffn.lin2"},
    {"lm_head.dense", "vocab_transform", .head = true},
    {"lm_head.layer_norm", "vocab_layer_norm", .head = true},
    {"lm_head.decoder", "vocab_projector", .head = true},
    {"classifier.dense", "pre_classifier", .head = true},
    {"classifier.out_proj", "classifier", .head = true},
    {NULL}};

/* Position ids are a buffer; the head's matrix is the words' again unless the model is untied. */
static const char *const ignored[] = {"*embeddings.position_ids", "vocab_projector.*", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "distilbert.",
    .ignored = ignored,
    .order = "weight bias distilbert vocab_transform vocab_layer_norm vocab_projector "
             "pre_classifier classifier embeddings transformer word_embeddings "
             "position_embeddings LayerNorm layer attention sa_layer_norm ffn output_layer_norm "
             "q_lin k_lin v_lin out_lin lin1 lin2"};

static const char *const model_types[] = {"distilbert", NULL};
static const mc_family_classes classes[] = {
    {"DistilBertForSequenceClassification", "DistilBertForMaskedLM", "DistilBertModel"}};
static const char *const lora_targets[] = {"q_lin", "v_lin", NULL};

const mc_family mc_family_distilbert = {
    MC_ENCODER_FAMILY(distilbert, mc_encoder),
    .title = "DistilBERT",
    .has = {.labels = true},
    .objective = {.kind = MC_OBJECTIVE_MASKED},
    .hf_only = true,
    .classifier = "classifier.out_proj.weight",
};

MC_DEFINE_FAMILY(distilbert)
