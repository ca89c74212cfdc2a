/* CPM-1 and CPM-2: one kind of block, as one stack with marks or as encoder and decoder. */
#include "models/cpm/cpm.h"

#include <math.h>
#include "models/family_internal.h"

/* ---- configs --------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_cpm_config, member)
#define KEY(kind, member, key, value, ...) {kind, AT(member), {NULL, key}, {value, value}, __VA_ARGS__}

/* What both have; the default of the vocabulary is the one that differs. */
#define CPM_ROWS(vocabulary)                                                                     \
    KEY(MC_CONFIG_SIZE, vocab_size, "vocab_size", vocabulary, 1),                                \
        KEY(MC_CONFIG_SIZE, dim, "dim_model", "768", 1),                                         \
        KEY(MC_CONFIG_SIZE, dim_ff, "dim_ff", "1920", 1),                                        \
        KEY(MC_CONFIG_SIZE, heads, "num_heads", "12", 1),                                        \
        KEY(MC_CONFIG_SIZE, head_dim, "dim_head", "64", 1),                                      \
        KEY(MC_CONFIG_SIZE, buckets, "position_bias_num_buckets", "32", 4),                      \
        KEY(MC_CONFIG_SIZE, max_distance, "position_bias_max_distance", "128", 1),               \
        KEY(MC_CONFIG_FFN, activation, "ffn_activate_fn", "\"gated_gelu\"", 0),                  \
        KEY(MC_CONFIG_FLOAT, eps, "norm_eps", "1e-6", 1e-30, 1),                                 \
        KEY(MC_CONFIG_DROPOUT, dropout, "dropout_p", "0", 0),                                    \
        KEY(MC_CONFIG_FLOAT, init_std, "att_init_std", "0.02", 0, 1e6),                          \
        KEY(MC_CONFIG_FLOAT, embedding_std, "emb_init_std", "0.02", 0, 1e6),                     \
        KEY(MC_CONFIG_FLOAT, ffn_std, "ffn_init_std", "0.02", 0, 1e6),                           \
        KEY(MC_CONFIG_FLOAT, position_std, "pos_init_std", "1", 0, 1e6),                         \
        KEY(MC_CONFIG_FLOAT, head_std, "proj_init_std", "0.02", 0, 1e6),                         \
        KEY(MC_CONFIG_FLAG, length_scale, "length_scale", "false", 0),                           \
        KEY(MC_CONFIG_FLAG, scale_attention, "attn_scale", "false", 0),                          \
        KEY(MC_CONFIG_FLAG, tied, "tied", "false", 0),                                           \
        MC_ONLY(NULL, "pos_bias_type", "\"relative\""), MC_ONLY(NULL, "norm_bias", "false"),     \
        MC_ONLY(NULL, "att_bias", "false"), MC_ONLY(NULL, "ffn_bias", "false"),                  \
        MC_ONLY(NULL, "proj_bias", "false"), MC_ONLY(NULL, "pos_init_mean", "0"),                \
        MC_ONLY_MC_ROWS

static const mc_config_row cpm1_rows[] = {
    CPM_ROWS("30968"), KEY(MC_CONFIG_SIZE, layers, "num_layers", "12", 1), {MC_CONFIG_END}};
static const mc_config_row cpm2_rows[] = {
    CPM_ROWS("26240"), KEY(MC_CONFIG_SIZE, layers, "num_encoder_layers", "12", 1),
    KEY(MC_CONFIG_SIZE, decoder_layers, "num_decoder_layers", "12", 1), {MC_CONFIG_END}};

#define LARGE                                                                               \
    "\"emb_init_std\":1,\"att_init_std\":1,\"ffn_init_std\":1,\"proj_init_std\":1,"         \
    "\"length_scale\":true,\"attn_scale\":true"
static const mc_named_shape cpm1_named[] = {
    {"cpm1-large", NULL,
     "{\"dim_model\":2560,\"num_heads\":32,\"dim_head\":80,\"dim_ff\":6400,\"num_layers\":32,"
     "\"position_bias_num_buckets\":64,\"position_bias_max_distance\":256,\"tied\":true," LARGE
     "}"},
    {NULL}};
static const mc_named_shape cpm2_named[] = {
    {"cpm2-large", NULL,
     "{\"dim_model\":4096,\"num_heads\":64,\"dim_head\":64,\"dim_ff\":10240,"
     "\"num_encoder_layers\":24,\"num_decoder_layers\":24," LARGE "}"},
    {NULL}};

static bool finish(const mc_config_reader *r, void *config)
{
    enum { MOST_LAYERS = 4096 };
    mc_cpm_config *c = config;
    bool good = c->dim > 0 && c->heads > 0 && c->head_dim > 0 && c->vocab_size > 0 &&
                c->dim_ff > 0 && c->layers > 0 && c->layers <= MOST_LAYERS &&
                c->decoder_layers >= 0 && c->decoder_layers <= MOST_LAYERS && c->eps > 0;
    if (good && c->buckets >= 4 && c->buckets % 4 == 0 && c->max_distance > c->buckets / 2)
        return true;
    return !mc_fail(r->ctx, MC_ERR_FORMAT,
                    "%s: dim %lld, %lld heads of %lld, dim_ff %lld, %lld and %lld layers, "
                    "vocabulary %lld, %lld buckets up to distance %lld, eps %g: expected positive "
                    "sizes, at most %d layers, buckets in fours and a distance above half of them",
                    r->path, (long long)c->dim, (long long)c->heads, (long long)c->head_dim,
                    (long long)c->dim_ff, (long long)c->layers, (long long)c->decoder_layers,
                    (long long)c->vocab_size, (long long)c->buckets, (long long)c->max_distance,
                    (double)c->eps, MOST_LAYERS);
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
    mc_parameter *encoder_bias, *decoder_bias; /* (buckets, heads); CPM-1 has one stack */
    mc_layernorm *encoder_norm, *decoder_norm;
} cpm_parts;

typedef struct cpm_block {
    mc_module module;
    const mc_cpm_config *config;
    mc_layernorm *attention_norm, *cross_norm, *ffn_norm;
    mc_attention *attention, *cross; /* cross: of CPM-2's decoder */
    mc_feed_forward *ffn;
} cpm_block;

/* What a product with a weight of so many columns is multiplied by. */
static float length_scale(const mc_cpm_config *c, int64_t columns)
{
    return c->length_scale ? 1 / sqrtf((float)columns) : 1;
}

static mc_attention *add_attention(mc_module *m, const char *name, const mc_cpm_config *c,
                                   bool causal, bool cross)
{
    mc_attention_options o = {.causal = causal,
                              .cross = cross,
                              .head_dim = (int)c->head_dim,
                              .no_bias = true,
                              .dropout = c->dropout,
                              .init_std = mc_literal(c->init_std),
                              .scale = c->scale_attention ? 1 / sqrtf((float)c->head_dim) : 1,
                              .in_scale = length_scale(c, c->dim),
                              .out_scale = length_scale(c, c->heads * c->head_dim)};
    return mc_attention_add(m, name, c->dim, (int)c->heads, &o);
}

static cpm_block *add_block(mc_module *list, const char *name, const mc_cpm_config *c, bool causal,
                            bool cross)
{
    cpm_block *b = mc_module_add(list, name, sizeof *b);
    if (!b) return NULL;
    mc_module *m = &b->module;
    mc_feed_forward_options ffn = {.activation = c->activation,
                                   .gated = c->gated,
                                   .no_bias = true,
                                   .init_std = mc_literal(c->ffn_std),
                                   .in_scale = length_scale(c, c->dim),
                                   .out_scale = length_scale(c, c->dim_ff)};
    b->config = c;
    b->attention_norm = mc_rmsnorm_add(m, "self_att.layernorm_before_attention", c->dim, c->eps);
    b->attention = add_attention(m, "self_att.self_attention", c, causal, false);
    if (cross) {
        b->cross_norm = mc_rmsnorm_add(m, "cross_att.layernorm_before_attention", c->dim, c->eps);
        b->cross = add_attention(m, "cross_att.self_attention", c, false, true);
    }
    b->ffn_norm = mc_rmsnorm_add(m, "ffn.layernorm_before_ffn", c->dim, c->eps);
    b->ffn = mc_feed_forward_add(m, "ffn.ffn", c->dim, c->dim_ff, &ffn);
    return b->ffn ? b : NULL;
}

static void *new_causal_block(mc_module *list, const char *name, int index, void *config)
{
    (void)index;
    return add_block(list, name, config, true, false);
}

static void *new_encoder_block(mc_module *list, const char *name, int index, void *config)
{
    (void)index;
    return add_block(list, name, config, false, false);
}

static void *new_decoder_block(mc_module *list, const char *name, int index, void *config)
{
    (void)index;
    return add_block(list, name, config, true, true);
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    cpm_block *b = object;
    float p = b->config->dropout;
    x = mc_sublayer_pre_norm(t, x, b->attention_norm, mc_attention_branch(b->attention), call, p);
    if (b->cross)
        x = mc_sublayer_pre_norm(t, x, b->cross_norm, mc_attention_branch(b->cross), call, p);
    return mc_sublayer_pre_norm(t, x, b->ffn_norm, mc_feed_forward_branch(b->ffn), call, p);
}

static mc_block_list *add_stack(mc_model *m, const char *name, int64_t layers,
                                mc_block_new_fn new_block, const mc_load_options *o)
{
    return mc_block_list_new(&m->module, name, (int)layers, new_block, block_forward,
                             &(mc_block_options){.recompute = o->recompute, .config = m->config});
}

static mc_parameter *add_bias(mc_model *m, const char *name)
{
    const mc_cpm_config *c = m->config;
    return mc_parameter_new(&m->module, name, MC_SHAPE(c->buckets, c->heads),
                            mc_init_normal(0, c->position_std));
}

static void declare_head(mc_model *m)
{
    const mc_cpm_config *c = m->config;
    mc_declare_lm_head(m, "output_projection", c->tied, false, c->head_std);
    mc_declare_token_head(m, false, mc_literal(c->head_std));
    m->head_scale = length_scale(c, c->dim);
}

static bool declare_cpm1(mc_model *m, const mc_load_options *o)
{
    cpm_parts *parts = m->parts;
    const mc_cpm_config *c = m->config;
    mc_declare_words(m, mc_literal(c->embedding_std));
    parts->decoder_bias = add_bias(m, "position_bias.relative_attention_bias");
    m->decoder = add_stack(m, "encoder.layers", c->layers, new_causal_block, o);
    parts->decoder_norm = mc_rmsnorm_add(&m->module, "encoder.output_layernorm", c->dim, c->eps);
    declare_head(m);
    return parts->decoder_norm;
}

static bool declare_cpm2(mc_model *m, const mc_load_options *o)
{
    cpm_parts *parts = m->parts;
    const mc_cpm_config *c = m->config;
    mc_declare_words(m, mc_literal(c->embedding_std));
    parts->encoder_bias = add_bias(m, "position_bias_enc.relative_attention_bias");
    parts->decoder_bias = add_bias(m, "position_bias_dec.relative_attention_bias");
    m->encoder = add_stack(m, "encoder.layers", c->layers, new_encoder_block, o);
    parts->encoder_norm = mc_rmsnorm_add(&m->module, "encoder.output_layernorm", c->dim, c->eps);
    m->decoder = add_stack(m, "decoder.layers", c->decoder_layers, new_decoder_block, o);
    parts->decoder_norm = mc_rmsnorm_add(&m->module, "decoder.output_layernorm", c->dim, c->eps);
    declare_head(m);
    return parts->decoder_norm;
}

static void set_dropout(mc_model *m, float p)
{
    mc_cpm_config *c = m->config;
    c->dropout = p;
    for (int k = 0; k < 2; k++) {
        mc_block_list *list = k ? m->decoder : m->encoder;
        for (int i = 0; i < mc_block_list_count(list); i++) {
            cpm_block *b = mc_block_list_at(list, i);
            mc_attention_set_dropout(b->attention, p);
            mc_attention_set_dropout(b->cross, p);
        }
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Of a stack whose positions count both ways, as CPM-1's do although it decodes, or back alone. */
static mc_tensor *run(mc_tape *t, mc_model *m, mc_stack_input *in, bool decoder, bool both_ways,
                      float embedding_scale)
{
    cpm_parts *parts = m->parts;
    const mc_cpm_config *c = m->config;
    mc_position_bias_options positions = {.length = mc_position_limit(in),
                                          .max_distance = (int)c->max_distance,
                                          .bidirectional = both_ways};
    mc_parameter *bias = decoder ? parts->decoder_bias : parts->encoder_bias;
    in->call.position_bias = mc_position_bias(t, mc_parameter_tensor(t, bias), &positions);
    mc_tensor *words = mc_embedding_table(t, m->words);
    mc_tensor *x = mc_run_embedding(t, 1, &words, &in->ids, embedding_scale, 0);
    return mc_run_stack(t, decoder ? m->decoder : m->encoder, x,
                        decoder ? parts->decoder_norm : parts->encoder_norm, &in->call);
}

static mc_tensor *decode_cpm1(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    const mc_cpm_config *c = m->config;
    return run(t, m, in, true, true, length_scale(c, c->dim));
}

/* CPM-2's words are not scaled, unlike its head. */
static mc_tensor *encode_cpm2(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    return run(t, m, in, false, true, 1);
}

static mc_tensor *decode_cpm2(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    return run(t, m, in, true, false, 1);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const mc_weight_rule rules[] = {{NULL}};
static const char *const ignored[] = {NULL}, *const no_types[] = {NULL};
static const mc_weight_map map = {.rules = rules, .base_prefix = "", .ignored = ignored};
static const char *const cpm1_has[] = {"position_bias.relative_attention_bias", NULL};
static const char *const cpm2_has[] = {"position_bias_enc.relative_attention_bias", NULL};
static const char *const cpm1_lacks[] = {"decoder.output_layernorm.weight", NULL};
static const char *const cpm2_lacks[] = {NULL};

const mc_family mc_family_cpm1 = {.name = "cpm1",
                                  .title = "CPM-1",
                                  .model_type = no_types,
                                  .kind = MC_MODEL_DECODER,
                                  .has = {.marks = true},
                                  .config_size = sizeof(mc_cpm_config),
                                  .parts_size = sizeof(cpm_parts),
                                  .rows = cpm1_rows,
                                  .named = cpm1_named,
                                  .map = &map,
                                  .own_form = true,
                                  .mc_has = cpm1_has,
                                  .mc_lacks = cpm1_lacks,
                                  .finish = finish,
                                  .shape = cpm1_shape,
                                  .declare = declare_cpm1,
                                  .decode = decode_cpm1,
                                  .set_dropout = set_dropout};

const mc_family mc_family_cpm2 = {.name = "cpm2",
                                  .title = "CPM-2",
                                  .model_type = no_types,
                                  .kind = MC_MODEL_ENCODER_DECODER,
                                  .config_size = sizeof(mc_cpm_config),
                                  .parts_size = sizeof(cpm_parts),
                                  .rows = cpm2_rows,
                                  .named = cpm2_named,
                                  .map = &map,
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
