/* The attention layer: projections around mc_sdpa, or around a cache of keys and values. */
#include "core/nn/adapter_internal.h"
#include "core/nn/transformer.h"
#include "core/nn/decode_internal.h"
#include "core/ops/general.h"
#include "core/nn/stored.h"

enum { Q, K, V, PARTS };

struct mc_attention {
    mc_module module;
    /* The first part of each stored tensor: of q, k and v; with `cross` of q, and of k and v. */
    mc_parameter *q_weight, *q_bias, *kv_weight, *kv_bias;
    mc_parameter *global_weight, *global_bias; /* q, k and v for global tokens; NULL: none */
    mc_layernorm *q_norm, *k_norm;             /* NULL: none */
    mc_linear *out;
    int heads;
    mc_attention_options options;
};

/* ---- parameters ------------------------------------------------------------------------------ */

static const char *const own_names[][PARTS] = {
    {"project_q.weight", "project_k.weight", "project_v.weight"},
    {"project_q.bias", "project_k.bias", "project_v.bias"}};
static const char *const global_names[][PARTS] = {
    {"project_q_global.weight", "project_k_global.weight", "project_v_global.weight"},
    {"project_q_global.bias", "project_k_global.bias", "project_v_global.bias"}};

/* Declares parts `first` to `last` of q, k and v as one stored tensor, with weight and bias. */
static void add_projection(mc_attention *a, const char *const names[][PARTS], int first, int last,
                           int64_t dim, mc_parameter **weight, mc_parameter **bias)
{
    const mc_attention_options *o = &a->options;
    int64_t q_rows = (int64_t)a->heads * o->head_dim, rows = (int64_t)o->key_heads * o->head_dim;
    mc_parameter_part w[PARTS], b[PARTS];
    for (int i = first; i <= last; i++) {
        float std = mc_option(i == Q ? o->q_std : o->init_std, 0.02f);
        int64_t own = i == Q ? q_rows : rows;
        w[i - first] = (mc_parameter_part){names[0][i], own, mc_init_normal(0, std)};
        b[i - first] = (mc_parameter_part){names[1][i], own, mc_init_zeros()};
    }
    int count = last - first + 1;
    *weight = mc_parameter_new_stacked(&a->module, w, count, MC_SHAPE(dim), NULL);
    mc_weight_declare(*weight, o->in_scale);
    if (!o->no_bias)
        *bias = mc_parameter_new_stacked(&a->module, b, count, (mc_shape){.ndim = 0}, NULL);
}

mc_attention *mc_attention_add(mc_module *parent, const char *name, int64_t dim, int heads,
                               const mc_attention_options *options)
{
    mc_attention *a = mc_module_add(parent, name, sizeof *a);
    if (!a) return NULL;
    if (options) a->options = *options;
    mc_attention_options *o = &a->options;
    if (heads < 1 || (!o->head_dim && dim % heads)) {
        mc_fail(parent->ctx, MC_ERR_ARGUMENT, "attention: dim %lld is no multiple of %d heads",
                (long long)dim, heads);
        return NULL;
    }
    if (!o->key_heads) o->key_heads = heads;
    if (o->key_heads < 1 || heads % o->key_heads) {
        mc_fail(parent->ctx, MC_ERR_ARGUMENT,
                "attention: %d key heads, expected a divisor of %d heads", o->key_heads, heads);
        return NULL;
    }
    if (o->globals && (o->cross || o->causal || o->rotary_dim)) {
        mc_fail(parent->ctx, MC_ERR_ARGUMENT,
                "attention: global tokens, expected self-attention that is neither causal nor "
                "rotated");
        return NULL;
    }
    if (o->window < 0 || (o->window && o->cross)) {
        mc_fail(parent->ctx, MC_ERR_ARGUMENT,
                "attention: a window of %d, expected 1 or more of self-attention", o->window);
        return NULL;
    }
    a->heads = heads;
    if (!o->head_dim) o->head_dim = (int)(dim / heads);
    o->q_std = mc_option_or(o->q_std, o->init_std);
    o->out_std = mc_option_or(o->out_std, o->init_std);
    o->in_scale = mc_option(o->in_scale, 1);
    add_projection(a, own_names, Q, o->cross ? Q : V, dim, &a->q_weight, &a->q_bias);
    if (o->cross) add_projection(a, own_names, K, V, dim, &a->kv_weight, &a->kv_bias);
    if (o->globals) add_projection(a, global_names, Q, V, dim, &a->global_weight, &a->global_bias);
    if (o->qk_norm_eps > 0) {
        a->q_norm = mc_rmsnorm_add(&a->module, "q_norm", o->head_dim, o->qk_norm_eps);
        a->k_norm = mc_rmsnorm_add(&a->module, "k_norm", o->head_dim, o->qk_norm_eps);
    }
    mc_linear_options out = {
        .init_std = o->out_std, .no_bias = o->no_bias || o->no_out_bias, .scale = o->out_scale};
    a->out = mc_linear_add(&a->module, "attention_out", (int64_t)heads * o->head_dim, dim, &out);
    return a->out ? a : NULL;
}

void mc_attention_set_dropout(mc_attention *a, float p)
{
    if (a) a->options.dropout = p;
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *project(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_parameter *bias)
{
    if (!mc_op_ready(t, "attention", x)) return NULL;
    return mc_weight_product(t, x, weight, bias, MC_ACTIVATION_NONE);
}

static mc_sdpa_options sdpa_options(const mc_attention *a, const mc_call *call)
{
    const mc_attention_options *o = &a->options;
    mc_sdpa_options out = {
        .heads = a->heads, .key_heads = o->key_heads, .scale = o->scale, .dropout = o->dropout};
    if (o->cross) {
        out.key_mask = call->memory_mask;
        return out;
    }
    out.causal = o->causal && !call->marks;
    out.window_left = o->window;
    out.window_right = o->causal ? 0 : o->window;
    out.key_mask = call->key_mask;
    out.position_bias = call->position_bias;
    out.marks = call->marks;
    out.globals = o->globals ? call->globals : NULL;
    return out;
}

/* Keeps the probabilities if the caller requests them; adds those of global tokens to the
 * others. */
static void keep_probabilities(mc_tape *t, mc_tensor *q, mc_tensor *kv, const mc_sdpa_options *o,
                               const mc_call *call)
{
    mc_tensor **kept = kv ? call->cross_attentions : call->attentions;
    if (!kept) return;
    mc_tensor *p = mc_sdpa_probabilities(t, q, kv, o), *before = kept[call->layer];
    if (p && o->global_queries) p = mc_add(t, before, p);
    mc_scope_keep(kept[call->layer] = p);
}

/* Applies a norm (NULL: none) to `heads` heads of qkv, from column `first` on. */
static mc_tensor *normalise(mc_tape *t, mc_tensor *qkv, int first, int heads, int head_dim,
                            mc_layernorm *norm)
{
    int64_t rows = mc_tensor_rows(qkv), columns = (int64_t)heads * head_dim;
    mc_tensor *x = mc_slice(t, qkv, 1, (int64_t)first * head_dim, columns);
    if (!norm || !x) return x;
    mc_tensor *y =
        mc_layernorm_forward(t, norm, mc_reshape(t, x, MC_SHAPE(rows * heads, head_dim)));
    mc_tape_release(t, x);
    return y ? mc_reshape(t, y, MC_SHAPE(rows, columns)) : NULL;
}

/* qkv with normalised queries and keys. */
static mc_tensor *normalise_heads(mc_tape *t, mc_attention *a, mc_tensor *qkv)
{
    int heads = a->heads, key_heads = a->options.key_heads, dim = a->options.head_dim;
    mc_tensor *part[PARTS] = {normalise(t, qkv, 0, heads, dim, a->q_norm),
                              normalise(t, qkv, heads, key_heads, dim, a->k_norm),
                              normalise(t, qkv, heads + key_heads, key_heads, dim, NULL)};
    mc_tensor *y = part[Q] && part[K] && part[V] ? mc_concat(t, PARTS, part, 1) : NULL;
    if (y) y = mc_with_lengths(t, y, qkv->lengths);
    for (int i = 0; i < PARTS; i++) mc_tape_release(t, part[i]);
    mc_tape_release(t, qkv);
    return y;
}

static mc_tensor *rotate(mc_tape *t, const mc_attention *a, mc_tensor *qkv, const mc_call *call)
{
    const mc_attention_options *o = &a->options;
    return mc_rotary(t, qkv,
                     &(mc_rotary_options){.heads = a->heads + o->key_heads,
                                          .head_dim = o->head_dim,
                                          .rotary_dim = o->rotary_dim,
                                          .halves = o->rotary_halves,
                                          .base = o->rotary_base,
                                          .scaling = o->rotary_scaling,
                                          .positions = call->positions});
}

/* Adds the attention of the global tokens, whose rows in y are zero. */
static mc_tensor *attend_globals(mc_tape *t, mc_attention *a, mc_tensor *x, const mc_call *call,
                                 mc_tensor *y)
{
    mc_sdpa_options options = sdpa_options(a, call);
    options.window_left = options.window_right = 0;
    options.global_queries = true;
    mc_tensor *qkv = project(t, x, a->global_weight, a->global_bias);
    if (!qkv || !y) return NULL;
    keep_probabilities(t, qkv, NULL, &options, call);
    mc_tensor *own = mc_sdpa(t, qkv, &options), *sum = own ? mc_add(t, y, own) : NULL;
    mc_tape_release(t, qkv);
    mc_tape_release(t, own);
    mc_tape_release(t, y);
    return sum;
}

/* Self-attention: y (rows, heads * head_dim). */
static mc_tensor *attend_self(mc_tape *t, mc_attention *a, mc_tensor *x, const mc_call *call)
{
    mc_tensor *qkv = project(t, x, a->q_weight, a->q_bias);
    if (qkv && a->q_norm) qkv = normalise_heads(t, a, qkv);
    if (qkv && a->options.rotary_dim) qkv = rotate(t, a, qkv, call);
    if (!qkv) return NULL;
    mc_sdpa_options options = sdpa_options(a, call);
    keep_probabilities(t, qkv, NULL, &options, call);
    mc_tensor *y = call->decode
                       ? call->decode->attend(t, call->decode->cache, call->layer, qkv, &options)
                       : mc_sdpa(t, qkv, &options);
    mc_tape_release(t, qkv);
    return options.globals ? attend_globals(t, a, x, call, y) : y;
}

/* Cross-attention. During generation the memory's keys and values are computed once. */
static mc_tensor *attend_memory(mc_tape *t, mc_attention *a, mc_tensor *x, const mc_call *call)
{
    mc_sdpa_options options = sdpa_options(a, call);
    mc_tensor *q = project(t, x, a->q_weight, a->q_bias), *kv = NULL, *y;
    if (!q) return NULL;
    const mc_decode *kept = call->decode_memory;
    if (!kept || call->memory) {
        if (!(kv = project(t, call->memory, a->kv_weight, a->kv_bias))) return NULL;
        keep_probabilities(t, q, kv, &options, call);
    }
    if (kept) {
        if (kv && !kept->keep(t, kept->cache, call->layer, kv)) return NULL;
        y = kept->attend(t, kept->cache, call->layer, q, &options);
    } else {
        y = mc_sdpa_cross(t, q, kv, &options);
    }
    mc_tape_release(t, q);
    mc_tape_release(t, kv);
    return y;
}

mc_tensor *mc_attention_forward(mc_tape *t, mc_attention *a, mc_tensor *x, const mc_call *call)
{
    static const mc_call empty = {0};
    if (!mc_given_as(mc_tape_context(t), a, "attention")) return NULL;
    if (!call) call = &empty;
    mc_tensor *y = a->options.cross ? attend_memory(t, a, x, call) : attend_self(t, a, x, call);
    mc_tensor *out = y ? mc_linear_forward(t, a->out, y) : NULL;
    mc_tape_release(t, y);
    return out;
}
