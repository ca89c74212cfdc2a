#include "models/opt/opt.h"

#include "models/decoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_opt_config, member)
#define ROW MC_ROW
static const mc_config_row config_rows[] = {
    ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "50272", "50272", 1),
    ROW(SIZE, dim, "hidden_size", "dim_model", "768", "768", 1),
    ROW(SIZE, dim_ff, "ffn_dim", "dim_ff", "3072", "3072", 1),
    ROW(LAYERS, layers, "num_hidden_layers", "num_layers", "12", "12", 0),
    ROW(SIZE, heads, "num_attention_heads", "num_heads", "12", "12", 1),
    ROW(SIZE, head_dim, NULL, "dim_head", "", "64", 1),
    ROW(OPTIONAL, word_dim, "word_embed_proj_dim", NULL, "null", "null", 1),
    ROW(SIZE, positions, "max_position_embeddings", "position_size", "2048", "2048", 1),
    ROW(ACTIVATION, activation, "activation_function", "ffn_activate_fn", "\"relu\"", "\"relu\"",
        0),
    ROW(FLAG, norm_before, "do_layer_norm_before", NULL, "true", "true", 0),
    ROW(FLAG, no_last_norm, "_remove_final_layer_norm", NULL, "false", "false", 0),
    ROW(FLAG, bias, "enable_bias", NULL, "true", "true", 0),
    ROW(FLOAT, eps, NULL, "norm_eps", "1e-5", "1e-5", 1e-30, 1),
    ROW(DROPOUT, dropout, "dropout", "dropout_p", "0.1", "0.1", 0),
    ROW(DROPOUT, embedding_dropout, NULL, "dropout_p", "0", "0.1", 0),
    ROW(DROPOUT, attention_dropout, "attention_dropout", "dropout_p", "0", "0.1", 0),
    ROW(FLOAT, init_std, "init_std", "att_init_std", "0.02", "0.02", 0, 1e6),
    ROW(FLOAT, embedding_std, "init_std", "emb_init_std", "0.02", "0.02", 0, 1e6),
    ROW(FLOAT, ffn_std, "init_std", "ffn_init_std", "0.02", "0.02", 0, 1e6),
    ROW(FLAG, tied, "tie_word_embeddings", NULL, "true", "true", 0),
    ROW(TOKEN, bos_token_id, "bos_token_id", NULL, "2", "-1", 0),
    ROW(TOKEN, eos_token_id, "eos_token_id", NULL, "2", "-1", 0),
    ROW(TOKEN, pad_token_id, "pad_token_id", "pad_token_id", "1", "1", 0),
    MC_ONLY("layer_norm_elementwise_affine", NULL, "true"),
    MC_ONLY("layerdrop", NULL, "0"),
    MC_KNOWN("activation_dropout", NULL), /* of released files; the reference has none */
    MC_ONLY(NULL, "pos_bias_type", "\"none\""),
    MC_ONLY(NULL, "norm_bias", "true"),
    MC_ONLY(NULL, "att_bias", "true"),
    MC_ONLY(NULL, "ffn_bias", "true"),
    MC_ONLY(NULL, "length_scale", "false"),
    MC_ONLY(NULL, "attn_scale", "true"),
    MC_ONLY(NULL, "post_layer_norm", "false"),
    MC_ONLY_MC_ROWS,
    MC_KNOWN(NULL, "proj_init_std"),
    MC_KNOWN(NULL, "proj_bias"),
    MC_KNOWN(NULL, "tied"), /* ModelCenter's is tied whatever this says */
    {MC_CONFIG_END},
};

#define SHAPE(dim, layers, heads, ff)                                                             \
    "{\"hidden_size\":" #dim ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads \
    ",\"ffn_dim\":" #ff
static const mc_named_shape named[] = {
    {"opt-125m facebook/opt-125m", "{}"},
    {"opt-350m facebook/opt-350m",
     SHAPE(1024, 24, 16, 4096) ",\"word_embed_proj_dim\":512,\"do_layer_norm_before\":false}"},
    {"opt-1.3b facebook/opt-1.3b", SHAPE(2048, 24, 32, 8192) "}"},
    {"opt-2.7b facebook/opt-2.7b", SHAPE(2560, 32, 32, 10240) "}"},
    {"opt-6.7b facebook/opt-6.7b", SHAPE(4096, 32, 32, 16384) "}"},
    {"opt-13b facebook/opt-13b", SHAPE(5120, 40, 40, 20480) "}"},
    {"opt-30b facebook/opt-30b", SHAPE(7168, 48, 56, 28672) "}"},
    {"opt-66b facebook/opt-66b", SHAPE(9216, 64, 72, 36864) "}"},
    {NULL}};

static mc_model_shape shape(const void *config)
{
    const mc_opt_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    if (c->word_dim > 0) s.dim = c->word_dim;
    s.bos_token = c->bos_token_id;
    s.eos_token = c->eos_token_id;
    return s;
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_opt_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c); /* of the blocks, whose heads make up dim */
    if (!mc_config_check_sizes(r, &s, c->head_dim, c->eps) ||
        !mc_config_check_rows(r, "positions", c->positions))
        return false;
    if (c->word_dim < 0) c->word_dim = c->dim;
    return mc_config_check_rows(r, "columns of words (\"word_embed_proj_dim\")", c->word_dim);
}

/* ---- construction ---------------------------------------------------------------------------- */

static bool declare(mc_model *m, const mc_load_options *load)
{
    const mc_opt_config *c = m->config;
    mc_decoder_options o = MC_DECODER_OF(c);
    o.list = "decoder";
    o.word_dim = c->word_dim;
    o.positions = c->positions;
    o.rows_before = 2;
    o.norm_after = !c->norm_before;
    o.no_last_norm = !c->norm_before || c->no_last_norm;
    o.embedding_dropout = c->embedding_dropout;
    o.attention.no_bias = o.ffn.no_bias = !c->bias;
    return mc_decoder_declare(m, &o, load);
}

/* ---- files ----------------------------------------------------------------------------------- */

#define LAYER "decoder.layers.{i}."
#define ATTENTION LAYER "self_att.self_attention."
static const mc_weight_rule rules[] = {
    {"input_embedding", "decoder.embed_tokens", .tied_to = "lm_head"},
    {"position_embedding", "decoder.embed_positions"},
    {"project_in", "decoder.project_in"},
    {"project_out", "decoder.project_out"},
    {"decoder.output_layernorm", "decoder.final_layer_norm"},
    {LAYER "self_att.layernorm_before_attention", LAYER "self_attn_layer_norm"},
    {ATTENTION "project_q", LAYER "self_attn.q_proj"},
    {ATTENTION "project_k", LAYER "self_attn.k_proj"},
    {ATTENTION "project_v", LAYER "self_attn.v_proj"},
    {ATTENTION "attention_out", LAYER "self_attn.out_proj"},
    {LAYER "ffn.layernorm_before_ffn", LAYER "final_layer_norm"},
    {LAYER "ffn.ffn.w_in.w", LAYER "fc1"},
    {LAYER "ffn.ffn.w_out", LAYER "fc2"},
    {"output_projection", "lm_head", .head = true},
    {"score", "score", .head = true},
    {NULL}};

static const char *const ignored[] = {"lm_head.weight", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "model.",
    .ignored = ignored,
    .order = "weight bias model lm_head score decoder embed_tokens embed_positions project_out "
             "project_in self_attn self_attn_layer_norm fc1 fc2 final_layer_norm layers k_proj "
             "v_proj q_proj out_proj"};

static const char *const model_types[] = {"opt", NULL};
static const mc_family_classes classes[] = {{"OPTForSequenceClassification", "OPTForCausalLM"}};
static const char *const mc_has[] = {"decoder.output_layernorm.bias", "position_embedding.weight",
                                     NULL};
static const char *const mc_lacks[] = {"encoder.output_layernorm.weight", NULL};
static const char *const lora_targets[] = {"q_proj", "v_proj", NULL};

const mc_family mc_family_opt = {
    MC_DECODER_FAMILY(opt),
    .title = "OPT",
    .look = mc_decoder_look,
};

MC_DEFINE_FAMILY(opt)
