/* CPM-1 and CPM-2: one kind of block, as one stack with marks or as encoder and decoder. */
#include "models/cpm/cpm.h"

#include <math.h>
#include "models/relative_internal.h"

/* ---- configs --------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_cpm_config, member)
#define KEY(kind, member, key, value, ...)                         \
    {                                                              \
        kind, AT(member), {NULL, key}, {value, value}, __VA_ARGS__ \
    }

/* What both have; the default of the vocabulary is the one that differs. */
#define CPM_ROWS(vocabulary)                                                                 \
    KEY(MC_CONFIG_SIZE, vocab_size, "vocab_size", vocabulary, 1),                            \
        KEY(MC_CONFIG_SIZE, dim, "dim_model", "768", 1),                                     \
        KEY(MC_CONFIG_SIZE, dim_ff, "dim_ff", "1920", 1),                                    \
        KEY(MC_CONFIG_SIZE, heads, "num_heads", "12", 1),                                    \
        KEY(MC_CONFIG_SIZE, head_dim, "dim_head", "64", 1),                                  \
        KEY(MC_CONFIG_SIZE, buckets, "position_bias_num_buckets", "32", 4),                  \
        KEY(MC_CONFIG_SIZE, max_distance, "position_bias_max_distance", "128", 1),           \
        KEY(MC_CONFIG_FFN, activation, "ffn_activate_fn", "\"gated_gelu\"", 0),              \
        KEY(MC_CONFIG_FLOAT, eps, "norm_eps", "1e-6", 1e-30, 1),                             \
        KEY(MC_CONFIG_DROPOUT, dropout, "dropout_p", "0", 0),                                \
        KEY(MC_CONFIG_FLOAT, init_std, "att_init_std", "0.02", 0, 1e6),                      \
        KEY(MC_CONFIG_FLOAT, embedding_std, "emb_init_std", "0.02", 0, 1e6),                 \
        KEY(MC_CONFIG_FLOAT, ffn_std, "ffn_init_std", "0.02", 0, 1e6),                       \
        KEY(MC_CONFIG_FLOAT, position_std, "pos_init_std", "1", 0, 1e6),                     \
        KEY(MC_CONFIG_FLOAT, head_std, "proj_init_std", "0.02", 0, 1e6),                     \
        KEY(MC_CONFIG_FLAG, length_scale, "length_scale", "false", 0),                       \
        KEY(MC_CONFIG_FLAG, scale_attention, "attn_scale", "false", 0),                      \
        KEY(MC_CONFIG_FLAG, tied, "tied", "false", 0),                                       \
        MC_ONLY(NULL, "pos_bias_type", "\"relative\""), MC_ONLY(NULL, "norm_bias", "false"), \
        MC_ONLY(NULL, "att_bias", "false"), MC_ONLY(NULL, "ffn_bias", "false"),              \
        MC_ONLY(NULL, "proj_bias", "false"), MC_ONLY(NULL, "pos_init_mean", "0"), MC_ONLY_MC_ROWS

static const mc_config_row cpm1_rows[] = {
    CPM_ROWS("30968"), KEY(MC_CONFIG_LAYERS, layers, "num_layers", "12", 1), {MC_CONFIG_END}};
static const mc_config_row cpm2_rows[] = {
    CPM_ROWS("26240"),
    KEY(MC_CONFIG_LAYERS, layers, "num_encoder_layers", "12", 1),
    KEY(MC_CONFIG_LAYERS, decoder_layers, "num_decoder_layers", "12", 1),
    {MC_CONFIG_END}};

#define LARGE                                                                       \
    "\"emb_init_std\":1,\"att_init_std\":1,\"ffn_init_std\":1,\"proj_init_std\":1," \
    "\"length_scale\":true,\"attn_scale\":true"
static const mc_named_shape cpm1_named[] = {
    {"cpm1-large",
     "{\"dim_model\":2560,\"num_heads\":32,\"dim_head\":80,\"dim_ff\":6400,\"num_layers\":32,"
     "\"position_bias_num_buckets\":64,\"position_bias_max_distance\":256,\"tied\":true," LARGE
     "}"},
    {NULL}};
static const mc_named_shape cpm2_named[] = {
    {"cpm2-large", "{\"dim_model\":4096,\"num_heads\":64,\"dim_head\":64,\"dim_ff\":10240,"
                   "\"num_encoder_layers\":24,\"num_decoder_layers\":24," LARGE "}"},
    {NULL}};

static bool finish(const mc_config_reader *r, void *config)
{
    mc_cpm_config *c = config;
    bool good = c->dim > 0 && c->heads > 0 && c->head_dim > 0 && c->vocab_size > 0 &&
                c->dim_ff > 0 && c->layers > 0 && c->layers <= MC_MOST_LAYERS &&
                c->decoder_layers >= 0 && c->decoder_layers <= MC_MOST_LAYERS && c->eps > 0;
    if (good && c->buckets >= 4 && c->buckets % 4 == 0 && c->max_distance > c->buckets / 2)
        return true;
    return !mc_fail(r->ctx, MC_ERR_FORMAT,
                    "%s: dim %lld, %lld heads of %lld, dim_ff %lld, %lld and %lld layers, "
                    "vocabulary %lld, %lld buckets up to distance %lld, eps %g: expected positive "
                    "sizes, at most %d layers, buckets in fours and a distance above half of them",
                    r->path, (long long)c->dim, (long long)c->heads, (long long)c->head_dim,
                    (long long)c->dim_ff, (long long)c->layers, (long long)c->decoder_layers,
                    (long long)c->vocab_size, (long long)c->buckets, (long long)c->max_distance,
                    (double)c->eps, MC_MOST_LAYERS);
}

/* Tokens of the released vocabularies: <pad>, <s>, <eod> of CPM-1, <pad>, <s>, <eod>, <s_0> of
 * CPM-2, whose decoder begins with the sentinel of the first blank. */
static mc_model_shape shape_of(const mc_cpm_config *c, int64_t pad, int64_t eos, int64_t start)
{
    return (mc_model_shape){.vocab_size = c->vocab_size,
                            .dim = c->dim,
                            .dim_ff = c->dim_ff,
                            .heads = c->heads,
                            .head_dim = c->head_dim,
                            .layers = c->layers,
                            .decoder_layers = c->decoder_layers,
                            .pad_token = pad,
                            .bos_token = 1,
                            .eos_token = eos,
                            .start_token = start};
}

static mc_model_shape cpm1_shape(const void *config) { return shape_of(config, 0, 4, -1); }

static mc_model_shape cpm2_shape(const void *config)
{
    enum { SENTINELS = 190 }; /* the last of the vocabulary */
    const mc_cpm_config *c = config;
    return shape_of(c, 5, 7, c->vocab_size > SENTINELS ? c->vocab_size - SENTINELS : 1);
}

/* ---- construction ---------------------------------------------------------------------------- */

typedef struct cpm_parts {
    mc_relative_stack encoder, decoder; /* CPM-1 has the second alone */
} cpm_parts;

/* What a product with a weight of so many columns is multiplied by. */
static float length_scale(const mc_cpm_config *c, int64_t columns)
{
    return c->length_scale ? 1 / sqrtf((float)columns) : 1;
}

static mc_relative_options stack_options(const mc_cpm_config *c, const char *name,
                                         const char *bias_name)
{
    mc_relative_options o = {.name = name,
                             .bias_name = bias_name,
                             .layers = c->layers,
                             .dim = c->dim,
                             .dim_ff = c->dim_ff,
                             .heads = c->heads,
                             .buckets = c->buckets,
                             .max_distance = c->max_distance,
                             .eps = c->eps,
                             .dropout = c->dropout,
                             .bias_std = c->position_std};
    o.attention =
        (mc_attention_options){.head_dim = (int)c->head_dim,
                               .no_bias = true,
                               .init_std = mc_literal(c->init_std),
                               .scale = c->scale_attention ? 1 / sqrtf((float)c->head_dim) : 1,
                               .in_scale = length_scale(c, c->dim),
                               .out_scale = length_scale(c, c->heads * c->head_dim)};
    o.ffn = (mc_feed_forward_options){.activation = c->activation,
                                      .gated = c->gated,
                                      .no_bias = true,
                                      .init_std = mc_literal(c->ffn_std),
                                      .in_scale = length_scale(c, c->dim),
                                      .out_scale = length_scale(c, c->dim_ff)};
    return o;
}

static void declare_head(mc_model *m)
{
    const mc_cpm_config *c = m->config;
    mc_declare_lm_head(m, "output_projection", c->tied, false, c->head_std);
    mc_declare_token_head(m, false, mc_literal(c->head_std));
    m->head_scale = length_scale(c, c->dim);
}

/* CPM-1's positions count both ways although it decodes. */
static bool declare_cpm1(mc_model *m, const mc_load_options *load)
{
    cpm_parts *parts = m->parts;
    const mc_cpm_config *c = m->config;
    mc_relative_options o = stack_options(c, "encoder", "position_bias.relative_attention_bias");
    o.causal = o.both_ways = true;
    mc_declare_words(m, mc_literal(c->embedding_std));
    if (!mc_relative_stack_add(m, &parts->decoder, &o, load)) return false;
    m->decoder = parts->decoder.blocks;
    declare_head(m);
    return true;
}

static bool declare_cpm2(mc_model *m, const mc_load_options *load)
{
    cpm_parts *parts = m->parts;
    const mc_cpm_config *c = m->config;
    mc_relative_options e =
        stack_options(c, "encoder", "position_bias_enc.relative_attention_bias");
    mc_relative_options d =
        stack_options(c, "decoder", "position_bias_dec.relative_attention_bias");
    e.both_ways = d.causal = d.cross = true;
    d.layers = c->decoder_layers;
    mc_declare_words(m, mc_literal(c->embedding_std));
    if (!mc_relative_stack_add(m, &parts->encoder, &e, load) ||
        !mc_relative_stack_add(m, &parts->decoder, &d, load))
        return false;
    m->encoder = parts->encoder.blocks;
    m->decoder = parts->decoder.blocks;
    declare_head(m);
    return true;
}

static void set_dropout(mc_model *m, float p)
{
    cpm_parts *parts = m->parts;
    if (m->encoder) mc_relative_stack_set_dropout(&parts->encoder, p, false);
    mc_relative_stack_set_dropout(&parts->decoder, p, false);
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *decode_cpm1(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    cpm_parts *parts = m->parts;
    const mc_cpm_config *c = m->config;
    return mc_relative_stack_run(t, m, &parts->decoder, in, length_scale(c, c->dim), 0);
}

/* CPM-2's words are not scaled, unlike its head. */
static mc_tensor *encode_cpm2(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    cpm_parts *parts = m->parts;
    return mc_relative_stack_run(t, m, &parts->encoder, in, 1, 0);
}

static mc_tensor *decode_cpm2(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    cpm_parts *parts = m->parts;
    return mc_relative_stack_run(t, m, &parts->decoder, in, 1, 0);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const mc_weight_rule rules[] = {{NULL}};
static const char *const ignored[] = {NULL};

/* Ours: ModelCenter's files have no "model_type". */
static const char *const cpm1_types[] = {"cpm1", NULL}, *const cpm2_types[] = {"cpm2", NULL};
static const mc_weight_map map = {.rules = rules, .base_prefix = "", .ignored = ignored};
static const char *const cpm1_has[] = {"position_bias.relative_attention_bias", NULL};
static const char *const cpm2_has[] = {"position_bias_enc.relative_attention_bias", NULL};
static const char *const cpm1_lacks[] = {"decoder.output_layernorm.weight", NULL};
static const char *const cpm2_lacks[] = {NULL};

static const char *const lora_targets[] = {"project_q", "project_v", NULL};

const mc_family mc_family_cpm1 = {.name = "cpm1",
                                  .title = "CPM-1",
                                  .model_type = cpm1_types,
                                  .kind = MC_MODEL_DECODER,
                                  .prompt = MC_PROMPT_CPM1,
                                  .has = {.marks = true},
                                  .objective = {.kind = MC_OBJECTIVE_CONTEXT},
                                  .config_size = sizeof(mc_cpm_config),
                                  .parts_size = sizeof(cpm_parts),
                                  .rows = cpm1_rows,
                                  .named = cpm1_named,
                                  .map = &map,
                                  .lora_targets = lora_targets,
                                  .own_form = true,
                                  .mc_has = cpm1_has,
                                  .mc_lacks = cpm1_lacks,
                                  .finish = finish,
                                  .shape = cpm1_shape,
                                  .declare = declare_cpm1,
                                  .decode = decode_cpm1,
                                  .set_dropout = set_dropout};

const mc_family mc_family_cpm2 = {
    .name = "cpm2",
    .title = "CPM-2",
    .model_type = cpm2_types,
    .kind = MC_MODEL_ENCODER_DECODER,
    .prompt = MC_PROMPT_CPM2,
    .objective = {.kind = MC_OBJECTIVE_SPANS, .sentinel = "<s_%d>", .start = "<s>"},
    .config_size = sizeof(mc_cpm_config),
    .parts_size = sizeof(cpm_parts),
    .rows = cpm2_rows,
    .named = cpm2_named,
    .map = &map,
    .lora_targets = lora_targets,
    .own_form = true,
    .mc_has = cpm2_has,
    .mc_lacks = cpm2_lacks,
    .finish = finish,
    .shape = cpm2_shape,
    .declare = declare_cpm2,
    .encode = encode_cpm2,
    .decode = decode_cpm2,
    .set_dropout = set_dropout};

MC_DEFINE_FAMILY(cpm1)
MC_DEFINE_FAMILY(cpm2)
