#include "models/glm/glm.h"

#include "core/ops/fused.h"
#include "models/decoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_glm_config, member)
#define KEY(kind, member, key, value, ...) \
    MC_ROW(kind, member, NULL, key, value, value, __VA_ARGS__)
static const mc_config_row config_rows[] = {
    KEY(SIZE, vocab_size, "vocab_size", "50048", 1),
    KEY(SIZE, dim, "dim_model", "1024", 1),
    KEY(SIZE, dim_ff, "dim_ff", "4096", 1),
    KEY(LAYERS, layers, "num_layers", "24", 0),
    KEY(SIZE, heads, "num_heads", "16", 1),
    KEY(SIZE, head_dim, "dim_head", "64", 1),
    KEY(SIZE, positions, "position_size", "1025", 2),
    KEY(ACTIVATION, activation, "ffn_activate_fn", "\"gelu\"", 0),
    KEY(FLOAT, eps, "norm_eps", "1e-5", 1e-30, 1),
    KEY(DROPOUT, dropout, "dropout_p", "0.1", 0),
    KEY(FLOAT, init_std, "att_init_std", "0.02", 0, 1e6),
    KEY(FLOAT, embedding_std, "emb_init_std", "0.02", 0, 1e6),
    KEY(FLOAT, ffn_std, "ffn_init_std", "0.02", 0, 1e6),
    KEY(FLOAT, head_std, "proj_init_std", "0.02", 0, 1e6),
    KEY(FLAG, head_bias, "proj_bias", "false", 0),
    KEY(SIZE, sop_token_id, "sop_tok_id", "50006", 0),
    KEY(SIZE, eop_token_id, "eop_tok_id", "50007", 0),
    KEY(SIZE, mask_token_id, "mask_tok_id", "50008", 0),
    MC_ONLY(NULL, "pos_bias_type", "\"none\""),
    MC_ONLY(NULL, "norm_bias", "true"),
    MC_ONLY(NULL, "att_bias", "true"),
    MC_ONLY(NULL, "ffn_bias", "true"),
    MC_ONLY(NULL, "length_scale", "false"),
    MC_ONLY(NULL, "attn_scale", "true"),
    MC_KNOWN(NULL, "post_layer_norm"), /* ModelCenter's code passes it to no layer */
    MC_KNOWN(NULL, "tied"),            /* ModelCenter's is tied whatever this says */
    MC_ONLY_MC_ROWS,
    {MC_CONFIG_END},
};

static const mc_named_shape named[] = {
    {"glm-10b-zh", "{\"dim_model\":4096,\"num_heads\":64,\"dim_head\":64,\"dim_ff\":16384,"
                   "\"num_layers\":48}"},
    {NULL}};

/* The second position of the last token of a sequence without text is its length: a sequence has a
 * token less than the tables have rows. */
static mc_model_shape shape(const void *config)
{
    const mc_glm_config *c = config;
    mc_model_shape s = {.vocab_size = c->vocab_size,
                        .dim = c->dim,
                        .dim_ff = c->dim_ff,
                        .heads = c->heads,
                        .head_dim = c->heads > 0 ? c->dim / c->heads : 0,
                        .layers = c->layers,
                        .positions = c->positions - 1,
                        .pad_token = -1,
                        .bos_token = -1,
                        .eos_token = c->eop_token_id,
                        .start_token = -1};
    return s;
}

static bool check_token(const mc_config_reader *r, const char *key, int64_t token, int64_t vocab)
{
    return (token >= 0 && token < vocab) ||
           !mc_fail(r->ctx, MC_ERR_FORMAT,
                    "%s: key \"%s\": %lld is no token of the vocabulary of %lld", r->path, key,
                    (long long)token, (long long)vocab);
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_glm_config *c = config;
    mc_model_shape s = shape(c);
    return mc_config_check_sizes(r, &s, c->head_dim, c->eps) &&
           mc_config_check_rows(r, "positions after the first", s.positions) &&
           check_token(r, "sop_tok_id", c->sop_token_id, c->vocab_size) &&
           check_token(r, "eop_tok_id", c->eop_token_id, c->vocab_size) &&
           check_token(r, "mask_tok_id", c->mask_token_id, c->vocab_size);
}

/* ---- modules --------------------------------------------------------------------------------- */

typedef struct glm_parts {
    mc_decoder_stack stack; /* with the first table of positions */
    mc_embedding *blocks;   /* the second one */
} glm_parts;

static bool declare(mc_model *m, const mc_load_options *load)
{
    glm_parts *parts = m->parts;
    const mc_glm_config *c = m->config;
    mc_decoder_options o = {
        .layers = c->layers,
        .dim = c->dim,
        .dim_ff = c->dim_ff,
        .heads = c->heads,
        .positions = c->positions,
        .tied = true,
        .no_token_bias = !c->head_bias,
        .token_head = "output_projection",
        .eps = c->eps,
        .dropout = c->dropout,
        .embedding_dropout = c->dropout,
        .init_std = c->init_std,
        .embedding_std = c->embedding_std,
        .attention_dropout = c->dropout,
        .ffn = {.activation = c->activation, .init_std = mc_literal(c->ffn_std)}};
    parts->blocks = mc_embedding_add(&m->module, "block_position_embedding", c->positions, c->dim,
                                     mc_literal(c->embedding_std));
    return mc_decoder_declare(m, &o, load);
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *decode(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    const glm_parts *parts = m->parts;
    const mc_glm_config *c = m->config;
    mc_blanks b = {.positions = in->positions, .blocks = in->blocks};
    if (!b.blocks) {
        b = mc_find_blanks(t, in->ids, in->lengths, c->vocab_size, c->sop_token_id,
                           c->mask_token_id);
        in->call.marks = b.marks;
    }
    if (!b.blocks) return NULL;
    mc_embedding_options o = {.others = 2,
                              .table = {mc_embedding_table(t, parts->stack.positions),
                                        mc_embedding_table(t, parts->blocks)},
                              .index = {b.positions, b.blocks},
                              .name = {"positions", "blocks"},
                              .dropout = parts->stack.o.embedding_dropout};
    return mc_run_stack(t, m->decoder, mc_run_embedding(t, m, in, &o), parts->stack.norm,
                        &in->call);
}

/* Where the piece goes on that a prompt ends in. */
static bool places(const mc_model *m, const int32_t *ids, int count, int32_t *position,
                   int32_t *block)
{
    const mc_glm_config *c = m->config;
    int sop = -1, mask = -1;
    for (int i = 0; i < count; i++) {
        if (ids[i] == c->sop_token_id) sop = i;
        if (ids[i] == c->mask_token_id) mask = i;
    }
    *position = mask;
    *block = count - sop + 1;
    return (sop >= 0 && mask >= 0 && mask < sop) ||
           !mc_fail(m->module.ctx, MC_ERR_ARGUMENT,
                    "generation with GLM: a prompt of %d tokens, expected one with the mask (%lld) "
                    "and then the token that begins a piece (%lld)",
                    count, (long long)c->mask_token_id, (long long)c->sop_token_id);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const mc_weight_rule rules[] = {{NULL}};
static const char *const ignored[] = {NULL};
static const mc_weight_map map = {.rules = rules, .base_prefix = "", .ignored = ignored};

/* Ours: ModelCenter's files have no "model_type". */
static const char *const model_types[] = {"glm", NULL};
static const char *const mc_has[] = {"block_position_embedding.weight", NULL};
static const char *const mc_lacks[] = {NULL};
static const char *const lora_targets[] = {"project_q", "project_v", NULL};

const mc_family mc_family_glm = {
    MC_FAMILY_OF(glm, glm_parts),
    .title = "GLM",
    .kind = MC_MODEL_DECODER,
    .prompt = MC_PROMPT_GLM,
    .own_form = true,
    .mc_has = mc_has,
    .mc_lacks = mc_lacks,
    .decode = decode,
    .places = places,
    .set_dropout = mc_decoder_set_dropout,
};

MC_DEFINE_FAMILY(glm)
