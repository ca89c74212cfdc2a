#include "models/gptj/gptj.h"

#include <stdio.h>
#include "models/decoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_gptj_config, member)
static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "50400", "50400", 1),
    MC_ROW(SIZE, positions, "n_positions", NULL, "2048", "0", 0),
    MC_ROW(SIZE, dim, "n_embd", "dim_model", "4096", "4096", 1),
    MC_ROW(LAYERS, layers, "n_layer", "num_layers", "28", "28", 0),
    MC_ROW(SIZE, heads, "n_head", "num_heads", "16", "16", 1),
    MC_ROW(SIZE, head_dim, NULL, "dim_head", "", "256", 1),
    MC_ROW(SIZE, dim_ff, "n_inner", "dim_ff", "", "16384", 1),
    /* null means the whole head, an absent key 64 */
    MC_ROW(TOKEN, rotary_dim, "rotary_dim", "pos_rotary_dim", "64", "64", 0),
    MC_ROW(ACTIVATION, activation, "activation_function", "ffn_activate_fn", "\"gelu_new\"",
           "\"gelu\"", 0),
    MC_ROW(FLOAT, eps, "layer_norm_epsilon", "norm_eps", "1e-5", "1e-5", 1e-30, 1),
    MC_ROW(DROPOUT, dropout, "resid_pdrop", "dropout_p", "0", "0", 0),
    MC_ROW(DROPOUT, embedding_dropout, "embd_pdrop", "dropout_p", "0", "0", 0),
    MC_ROW(DROPOUT, attention_dropout, "attn_pdrop", "dropout_p", "0", "0", 0),
    MC_ROW(FLOAT, init_std, "initializer_range", "att_init_std", "0.02", "0.1", 0, 1e6),
    MC_ROW(FLOAT, embedding_std, "initializer_range", "emb_init_std", "0.02", "1", 0, 1e6),
    MC_ROW(FLOAT, ffn_std, "initializer_range", "ffn_init_std", "0.02", "0.1", 0, 1e6),
    MC_ROW(FLAG, tied, "tie_word_embeddings", "tied", "false", "false", 0),
    MC_ONLY(NULL, "pos_bias_type", "\"rotary\""),
    MC_ONLY(NULL, "att_bias", "false"),
    MC_ONLY(NULL, "proj_bias", "true"),
    MC_ONLY(NULL, "attn_scale", "true"),
    MC_KNOWN("scale_attn_weights", NULL),
    MC_KNOWN("rotary", NULL),
    MC_DECODER_ROWS,
    {MC_CONFIG_END},
};

static const mc_named_shape named[] = {
    {"EleutherAI/gpt-j-6b EleutherAI/gpt-j-6B gptj-6b gpt-j-6b", "{}"}, {NULL}};

static mc_model_shape shape(const void *config)
{
    const mc_gptj_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.bos_token = c->bos_token_id;
    s.eos_token = c->eos_token_id;
    return s;
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_gptj_config *c = config;
    if (!c->dim_ff) c->dim_ff = 4 * c->dim;
    mc_model_shape s = shape(c);
    if (!mc_config_check_sizes(r, &s, c->head_dim, c->eps)) return false;
    if (c->rotary_dim < 0) c->rotary_dim = s.head_dim;
    if (c->rotary_dim % 2 == 0 && c->rotary_dim <= s.head_dim) return true;
    return !mc_fail(
        r->ctx, MC_ERR_FORMAT,
        "%s: %lld rotary columns: expected an even number of them, at most the %lld of a "
        "head",
        r->path, (long long)c->rotary_dim, (long long)s.head_dim);
}

/* ---- construction ---------------------------------------------------------------------------- */

static bool declare(mc_model *m, const mc_load_options *load)
{
    const mc_gptj_config *c = m->config;
    mc_decoder_options o = MC_DECODER_OF(c);
    o.parallel = o.head_bias = true;
    o.one_norm = !c->two_norms;
    o.embedding_dropout = c->embedding_dropout;
    o.attention.no_bias = true;
    o.attention.rotary_dim = (int)c->rotary_dim;
    return mc_decoder_declare(m, &o, load);
}

/* ---- files ----------------------------------------------------------------------------------- */

#define LAYER "encoder.layers.{i}."
static const mc_weight_rule rules[] = {
    {"input_embedding", "wte", .tied_to = "lm_head"},
    {"encoder.output_layernorm", "ln_f"},
    {LAYER "self_att.layernorm_before_attention", "h.{i}.ln_1",
     .own_copy = LAYER "ffn.layernorm_before_ffn"},
    {LAYER "self_att.self_attention.project_q", "h.{i}.attn.q_proj"},
    {LAYER "self_att.self_attention.project_k", "h.{i}.attn.k_proj"},
    {LAYER "self_att.self_attention.project_v", "h.{i}.attn.v_proj"},
    {LAYER "self_att.self_attention.attention_out", "h.{i}.attn.out_proj"},
    {LAYER "ffn.ffn.w_in.w", "h.{i}.mlp.fc_in"},
    {LAYER "ffn.ffn.w_out", "h.{i}.mlp.fc_out"},
    {"output_projection", "lm_head", .head = true},
    {"score", "score", .head = true},
    {NULL}};

/* Causal masks are buffers; ModelCenter's second norm is the first again (see look). */
static const char *const ignored[] = {"*attn.bias", "*attn.masked_bias", "lm_head.weight",
                                      "encoder.layers.*.ffn.layernorm_before_ffn.*", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "transformer.",
    .ignored = ignored,
    .order = "weight bias transformer lm_head score wte h ln_f ln_1 attn mlp k_proj v_proj q_proj "
             "out_proj fc_in fc_out"};

/* Whether a layer's two norms in a file of ModelCenter's form are not the same. */
static bool norms_differ(const mc_model_file *f, int layer)
{
    static const char *const parts[] = {"weight", "bias"};
    bool differ = false;
    for (int i = 0; i < 2; i++) {
        char first[96], second[96];
        snprintf(first, sizeof first, "encoder.layers.%d.self_att.layernorm_before_attention.%s",
                 layer, parts[i]);
        snprintf(second, sizeof second, "encoder.layers.%d.ffn.layernorm_before_ffn.%s", layer,
                 parts[i]);
        differ = differ || mc_weights_differ(f->file, mc_tensor_file_find(f->file, first),
                                             mc_tensor_file_find(f->file, second));
    }
    return differ;
}

static bool look(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads)
{
    mc_gptj_config *c = config;
    mc_decoder_look(ctx, f, config, heads);
    for (int i = 0; i < f->layers && !c->two_norms; i++) c->two_norms = norms_differ(f, i);
    return !mc_failed(ctx);
}

static bool before_save(mc_model *m, mc_config_form form, void *config, int *scaling)
{
    mc_gptj_config *c = config;
    (void)scaling;
    if (form == MC_FORM_MC) return true;
    if (!c->positions) c->positions = 2048; /* ModelCenter's has no limit, transformers needs one */
    if (!c->two_norms) return true;
    return !mc_fail(
        m->module.ctx, MC_ERR_UNSUPPORTED,
        "GPT-J: the blocks' two norms differ, which Hugging Face's form, with one norm a "
        "block, cannot say");
}

static const char *const model_types[] = {"gptj", NULL};
static const mc_family_classes classes[] = {{"GPTJForSequenceClassification", "GPTJForCausalLM"}};
static const char *const mc_has[] = {"encoder.output_layernorm.bias", NULL};
static const char *const mc_lacks[] = {"position_embedding.weight", "token_type_embedding.weight",
                                       "position_bias.relative_attention_bias", NULL};

static const char *const lora_targets[] = {"q_proj", "v_proj", NULL};

const mc_family mc_family_gptj = {
    MC_DECODER_FAMILY(gptj),
    .title = "GPT-J",
    .look = look,
    .before_save = before_save,
};

MC_DEFINE_FAMILY(gptj)
