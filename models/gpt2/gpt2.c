#include "models/gpt2/gpt2.h"

#include <math.h>
#include "models/decoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_gpt2_config, member)
static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "50257", "50258", 1),
    /* old files have n_ctx, which n_positions overrules */
    MC_ROW(SIZE, positions, "n_ctx", NULL, "1024", "1024", 1),
    MC_ROW(SIZE, positions, "n_positions", "position_size", "", "1024", 1),
    MC_ROW(SIZE, dim, "n_embd", "dim_model", "768", "1024", 1),
    MC_ROW(LAYERS, layers, "n_layer", "num_layers", "12", "24", 0),
    MC_ROW(SIZE, heads, "n_head", "num_heads", "12", "16", 1),
    MC_ROW(SIZE, head_dim, NULL, "dim_head", "", "64", 1),
    MC_ROW(SIZE, dim_ff, "n_inner", "dim_ff", "", "4096", 1),
    MC_ROW(ACTIVATION, activation, "activation_function", "ffn_activate_fn", "\"gelu_new\"",
           "\"gelu\"", 0),
    MC_ROW(FLOAT, eps, "layer_norm_epsilon", "norm_eps", "1e-5", "1e-5", 1e-30, 1),
    MC_ROW(DROPOUT, dropout, "resid_pdrop", "dropout_p", "0.1", "0", 0),
    MC_ROW(DROPOUT, embedding_dropout, "embd_pdrop", "dropout_p", "0.1", "0", 0),
    MC_ROW(DROPOUT, attention_dropout, "attn_pdrop", "dropout_p", "0.1", "0", 0),
    MC_ROW(FLOAT, init_std, "initializer_range", "att_init_std", "0.02", "0.02", 0, 1e6),
    MC_ROW(FLOAT, embedding_std, "initializer_range", "emb_init_std", "0.02", "0.02", 0, 1e6),
    MC_ROW(FLOAT, ffn_std, "initializer_range", "ffn_init_std", "0.02", "0.02", 0, 1e6),
    MC_ROW(FLAG, tied, "tie_word_embeddings", "tied", "true", "true", 0),
    MC_ROW(FLAG, scale_attention, "scale_attn_weights", "attn_scale", "true", "true", 0),
    MC_ROW(FLAG, scale_by_layer, "scale_attn_by_inverse_layer_idx", NULL, "false", "false", 0),
    MC_ONLY("add_cross_attention", NULL, "false"),
    MC_ONLY(NULL, "pos_bias_type", "\"none\""),
    MC_ONLY(NULL, "att_bias", "true"),
    MC_ONLY(NULL, "post_layer_norm", "false"),
    MC_KNOWN("reorder_and_upcast_attn", "proj_bias"),
    MC_DECODER_ROWS,
    {0},
};

static const mc_named_shape named[] = {
    {"gpt2 gpt2-base", "{}"},
    {"gpt2-medium", "{\"n_embd\":1024,\"n_layer\":24,\"n_head\":16}"},
    {"gpt2-large", "{\"n_embd\":1280,\"n_layer\":36,\"n_head\":20}"},
    {"gpt2-xl", "{\"n_embd\":1600,\"n_layer\":48,\"n_head\":25}"},
    {NULL}};

static mc_model_shape shape(const void *config)
{
    const mc_gpt2_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.bos_token = c->bos_token_id;
    s.eos_token = c->eos_token_id;
    return s;
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_gpt2_config *c = config;
    if (!c->dim_ff) c->dim_ff = 4 * c->dim;
    mc_model_shape s = shape(c);
    return mc_config_check_sizes(r, &s, c->head_dim, c->eps) &&
           mc_config_check_rows(r, "positions", c->positions);
}

/* ---- construction ---------------------------------------------------------------------------- */

static bool declare(mc_model *m, const mc_load_options *load)
{
    const mc_gpt2_config *c = m->config;
    /* the residual stream is the sum of 2 * layers branches (Radford et al. 2019) */
    float out = 1 / sqrtf(2.0f * (float)c->layers);
    mc_decoder_options o = MC_DECODER_OF(c);
    o.positions = c->positions;
    o.embedding_dropout = c->embedding_dropout;
    o.scale = c->scale_attention ? 1 / sqrt((double)c->dim / (double)c->heads) : 1;
    o.scale_by_layer = c->scale_by_layer;
    o.attention.out_std = mc_literal(out * c->init_std);
    o.ffn.out_std = mc_literal(out * c->ffn_std);
    return mc_decoder_declare(m, &o, load);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Hugging Face's Conv1D keeps (in, out) matrices, and q, k and v in one. */
#define LAYER "encoder.layers.{i}."
static const mc_weight_rule rules[] = {
    {"input_embedding", "wte", .tied_to = "lm_head"},
    {"position_embedding", "wpe"},
    {"encoder.output_layernorm", "ln_f"},
    {LAYER "self_att.layernorm_before_attention", "h.{i}.ln_1"},
    {LAYER "self_att.self_attention.project_q", "h.{i}.attn.c_attn", .transpose = true, .part = 0,
     .parts = 3},
    {LAYER "self_att.self_attention.project_k", "h.{i}.attn.c_attn", .transpose = true, .part = 1,
     .parts = 3},
    {LAYER "self_att.self_attention.project_v", "h.{i}.attn.c_attn", .transpose = true, .part = 2,
     .parts = 3},
    {LAYER "self_att.self_attention.attention_out", "h.{i}.attn.c_proj", .transpose = true},
    {LAYER "ffn.layernorm_before_ffn", "h.{i}.ln_2"},
    {LAYER "ffn.ffn.w_in.w", "h.{i}.mlp.c_fc", .transpose = true},
    {LAYER "ffn.ffn.w_out", "h.{i}.mlp.c_proj", .transpose = true},
    {"output_projection", "lm_head", .head = true},
    {"score", "score", .head = true},
    {NULL}};

/* Causal masks are buffers; the head of a tied model is the word embedding again (see
 * mc_decoder_look). */
static const char *const ignored[] = {"*attn.bias", "*attn.masked_bias", "lm_head.weight", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "transformer.",
    .ignored = ignored,
    .order = "weight bias transformer lm_head score wte wpe h ln_f ln_1 attn ln_2 mlp c_attn c_fc "
             "c_proj"};

static const char *const model_types[] = {"gpt2", NULL};
static const mc_family_classes classes[] = {{"GPT2ForSequenceClassification", "GPT2LMHeadModel"}};
static const char *const mc_has[] = {"position_embedding.weight", NULL};
static const char *const mc_lacks[] = {"token_type_embedding.weight",
                                       "block_position_embedding.weight",
                                       "decoder.output_layernorm.weight", NULL};

static const char *const lora_targets[] = {"c_attn", NULL};

const mc_family mc_family_gpt2 = {
    MC_DECODER_FAMILY(gpt2),
    .title = "GPT-2",
    .look = mc_decoder_look,
};

MC_DEFINE_FAMILY(gpt2)
