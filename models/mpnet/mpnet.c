#include "models/mpnet/mpnet.h"

#include <stdio.h>
#include "models/encoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_mpnet_config, member)

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", NULL, "30527", "", 1),
    MC_ROW(SIZE, dim, "hidden_size", NULL, "768", "", 1),
    MC_ENCODER_ROWS,
    MC_ONLY("relative_attention_num_buckets", NULL, "32"), /* the reference has no others */
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", NULL, "1", "", 0),
    {MC_CONFIG_END},
};

static const mc_named_shape named[] = {
    {"mpnet-base microsoft/mpnet-base",
     "{\"max_position_embeddings\":514,\"layer_norm_eps\":1e-5}"},
    {NULL}};

/* The reference counts positions from here on whatever the padding token is. */
enum { PADDING = 1, FIRST_POSITION = PADDING + 1, BUCKETS = 32 };

static mc_model_shape shape(const void *config)
{
    const mc_mpnet_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.positions -= FIRST_POSITION;
    s.bos_token = 0;
    s.eos_token = 2;
    return s;
}

static bool finish(const mc_config_reader *r, void *config)
{
    const mc_mpnet_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    if (c->pad_token_id != PADDING) {
        char found[32];
        snprintf(found, sizeof found, "%lld", (long long)c->pad_token_id);
        return mc_config_unsupported(r, "pad_token_id", found, "1");
    }
    return mc_encoder_check(r, &s, 0, c->eps, FIRST_POSITION);
}

/* ---- modules --------------------------------------------------------------------------------- */

static bool declare(mc_model *m, const mc_load_options *load)
{
    const mc_mpnet_config *c = m->config;
    mc_encoder_options o = MC_ENCODER_OF(c);
    o.eps = c->eps;
    o.buckets = BUCKETS;
    o.first_position = FIRST_POSITION;
    o.head_activation = MC_ACTIVATION_GELU;
    return mc_encoder_declare(m, &o, load) && mc_encoder_declare_classifier(m);
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    const mc_mpnet_config *c = m->config;
    return mc_encoder_classify(t, m, out, c->dropout, MC_ACTIVATION_TANH, c->dropout);
}

/* ---- files ----------------------------------------------------------------------------------- */

#define OURS "encoder.layers.{i}."
#define THEIRS "encoder.layer.{i}."
static const mc_weight_rule rules[] = {
    MC_ENCODER_WORDS_RULE("embeddings.word_embeddings", "lm_head.decoder"),
    {"position_embedding", "embeddings.position_embeddings"},
    {"pooler.dense", "pooler.dense"},
    {"encoder.relative_attention_bias", "encoder.relative_attention_bias.weight"},
    MC_ENCODER_NORM_RULES("embeddings.LayerNorm", "encoder.layer.{i-1}.output.LayerNorm",
                          "encoder.layer.{last}.output.LayerNorm"),
    {OURS "self_att.self_attention.project_q", THEIRS "attention.attn.q"},
    {OURS "self_att.self_attention.project_k", THEIRS "attention.attn.k"},
    {OURS "self_att.self_attention.project_v", THEIRS "attention.attn.v"},
    {OURS "self_att.self_attention.attention_out", THEIRS "attention.attn.o"},
    {OURS "ffn.layernorm_before_ffn", THEIRS "attention.LayerNorm"},
    {OURS "ffn.ffn.w_in.w", THEIRS "intermediate.dense"},
    {OURS "ffn.ffn.w_out", THEIRS "output.dense"},
    MC_ENCODER_LM_HEAD_RULES,
    {"classifier", "classifier", .head = true},
    {NULL}};

/* Position ids are a buffer; the decoder is the word embedding and lm_head.bias again. */
static const char *const ignored[] = {"*embeddings.position_ids", "lm_head.decoder.*",
                                      "lm_head.bias", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "mpnet.",
    .ignored = ignored,
    .order = "weight bias mpnet lm_head classifier embeddings encoder pooler word_embeddings "
             "position_embeddings layer attn attention intermediate output q k v o dense "
             "LayerNorm layer_norm out_proj relative_attention_bias decoder"};

static const char *const model_types[] = {"mpnet", NULL};
static const mc_family_classes classes[] = {
    {"MPNetForSequenceClassification", "MPNetForMaskedLM", "MPNetModel"}};
static const char *const lora_targets[] = {"q", "v", NULL};

const mc_family mc_family_mpnet = {
    MC_ENCODER_FAMILY(mpnet, mc_encoder),
    .title = "MPNet",
    .has = {.pooler = true, .labels = true},
    .objective = {.kind = MC_OBJECTIVE_MASKED},
    .hf_only = true,
    .classifier = "classifier.out_proj.weight",
    .pool = mc_encoder_pool,
};

MC_DEFINE_FAMILY(mpnet)
