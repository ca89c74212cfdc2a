#include "core/nn/layers.h"

#include "core/nn/kv_cache_internal.h"
#include "core/nn/module_internal.h"

static float std_or(float given, float fallback) { return given != 0 ? given : fallback; }

/* ---- linear ---------------------------------------------------------------------------------- */

struct mc_linear {
    mc_module module;
    mc_parameter *weight, *bias;
};

static mc_linear *linear_init(mc_linear *linear, int64_t in, int64_t out,
                              const mc_linear_options *o)
{
    if (!linear) return NULL;
    float std = std_or(o ? o->init_std : 0, 0.02f);
    linear->weight =
        mc_parameter_new(&linear->module, "weight", MC_SHAPE(out, in), mc_init_normal(0, std));
    if (!o || !o->no_bias)
        linear->bias = mc_parameter_new(&linear->module, "bias", MC_SHAPE(out), mc_init_zeros());
    return mc_failed(linear->module.ctx) ? NULL : linear;
}

mc_linear *mc_linear_new(mc_context *ctx, int64_t in, int64_t out, const mc_linear_options *o)
{
    mc_module_options options = {.dtype = o ? o->dtype : MC_DTYPE_DEFAULT};
    const char *name = o && o->name ? o->name : "";
    return linear_init(mc_module_new(ctx, name, sizeof(mc_linear), &options), in, out, o);
}

mc_linear *mc_linear_add(mc_module *parent, const char *name, int64_t in, int64_t out,
                         const mc_linear_options *o)
{
    return linear_init(mc_module_add(parent, name, sizeof(mc_linear)), in, out, o);
}

mc_module *mc_linear_module(mc_linear *linear) { return linear ? &linear->module : NULL; }

mc_tensor *mc_linear_forward_activated(mc_tape *t, mc_linear *linear, mc_tensor *x,
                                       mc_activation activation)
{
    if (!linear || !mc_op_ready(t, "linear", x)) return NULL;
    mc_tensor *weight = mc_parameter_tensor(t, linear->weight);
    mc_tensor *bias = linear->bias ? mc_parameter_tensor(t, linear->bias) : NULL;
    if (weight) x = mc_cast(t, x, mc_tensor_dtype(weight)); /* an f32 head on a bf16 model */
    return mc_fused_linear(t, x, weight, bias, activation);
}

mc_tensor *mc_linear_forward(mc_tape *t, mc_linear *linear, mc_tensor *x)
{
    return mc_linear_forward_activated(t, linear, x, MC_ACTIVATION_NONE);
}

/* ---- layer norm ------------------------------------------------------------------------------ */

struct mc_layernorm {
    mc_module module;
    mc_parameter *weight, *bias;
    float eps;
};

static mc_layernorm *layernorm_init(mc_layernorm *norm, int64_t dim, float eps)
{
    if (!norm) return NULL;
    norm->eps = eps != 0 ? eps : 1e-5f;
    norm->weight = mc_parameter_new(&norm->module, "weight", MC_SHAPE(dim), mc_init_constant(1));
    norm->bias = mc_parameter_new(&norm->module, "bias", MC_SHAPE(dim), mc_init_zeros());
    return norm->bias ? norm : NULL;
}

mc_layernorm *mc_layernorm_new(mc_context *ctx, int64_t dim, float eps)
{
    return layernorm_init(mc_module_new(ctx, "", sizeof(mc_layernorm), NULL), dim, eps);
}

mc_layernorm *mc_layernorm_add(mc_module *parent, const char *name, int64_t dim, float eps)
{
    return layernorm_init(mc_module_add(parent, name, sizeof(mc_layernorm)), dim, eps);
}

mc_module *mc_layernorm_module(mc_layernorm *norm) { return norm ? &norm->module : NULL; }

mc_tensor *mc_layernorm_forward_residual(mc_tape *t, mc_layernorm *norm, mc_tensor *x, mc_tensor *f,
                                         float dropout)
{
    if (!norm || !mc_op_ready(t, "layer norm", x)) return NULL;
    return mc_residual_norm(t, x, f, dropout, mc_parameter_tensor(t, norm->weight),
                            mc_parameter_tensor(t, norm->bias), norm->eps);
}

mc_tensor *mc_layernorm_forward(mc_tape *t, mc_layernorm *norm, mc_tensor *x)
{
    return mc_layernorm_forward_residual(t, norm, x, NULL, 0);
}

mc_tensor *mc_layernorm_forward_stream(mc_tape *t, mc_layernorm *norm, mc_tensor *x,
                                       mc_tensor **sum)
{
    if (sum) *sum = NULL;
    if (!norm || !t) return NULL;
    return mc_stream_norm(t, x, mc_parameter_tensor(t, norm->weight),
                          mc_parameter_tensor(t, norm->bias), norm->eps, sum);
}

/* ---- embedding ------------------------------------------------------------------------------- */

struct mc_embedding {
    mc_module module;
    mc_parameter *weight;
};

static mc_embedding *embedding_init(mc_embedding *e, int64_t count, int64_t dim, float init_std)
{
    if (!e) return NULL;
    e->weight = mc_parameter_new(&e->module, "weight", MC_SHAPE(count, dim),
                                 mc_init_normal(0, std_or(init_std, 0.02f)));
    return e->weight ? e : NULL;
}

mc_embedding *mc_embedding_add_padded(mc_module *parent, const char *name, int64_t count,
                                      int64_t dim, float init_std, int64_t align)
{
    mc_embedding *e = mc_module_add(parent, name, sizeof *e);
    if (!e) return NULL;
    int64_t rows = count;
    if (align > 1)
        rows = count <= INT64_MAX - align ? (count + align - 1) / align * align : INT64_MAX;
    e->weight = mc_parameter_new_padded(&e->module, "weight", MC_SHAPE(count, dim), rows,
                                        mc_init_normal(0, std_or(init_std, 0.02f)));
    return e->weight ? e : NULL;
}

mc_embedding *mc_embedding_new(mc_context *ctx, int64_t count, int64_t dim, float init_std)
{
    return embedding_init(mc_module_new(ctx, "", sizeof(mc_embedding), NULL), count, dim, init_std);
}

mc_embedding *mc_embedding_add(mc_module *parent, const char *name, int64_t count, int64_t dim,
                               float init_std)
{
    return embedding_init(mc_module_add(parent, name, sizeof(mc_embedding)), count, dim, init_std);
}

mc_module *mc_embedding_module(mc_embedding *e) { return e ? &e->module : NULL; }

mc_tensor *mc_embedding_table(mc_tape *t, mc_embedding *e)
{
    return e ? mc_parameter_tensor(t, e->weight) : NULL;
}

mc_tensor *mc_embedding_whole(mc_tape *t, mc_embedding *e)
{
    return e ? mc_parameter_whole(t, e->weight) : NULL;
}

mc_tensor *mc_embedding_forward(mc_tape *t, mc_embedding *e, mc_tensor *index)
{
    if (!e || !mc_op_ready(t, "embedding", index)) return NULL;
    mc_tensor *table = mc_embedding_table(t, e);
    return table ? mc_embed(t, 1, &table, &index) : NULL;
}

/* ---- self-attention -------------------------------------------------------------------------- */

struct mc_attention {
    mc_module module;
    mc_parameter *qkv_weight, *qkv_bias; /* the first of three parts each */
    mc_linear *out;
    int heads;
    mc_attention_options options;
};

mc_attention *mc_attention_add(mc_module *parent, const char *name, int64_t dim, int heads,
                               const mc_attention_options *options)
{
    mc_attention *a = mc_module_add(parent, name, sizeof *a);
    if (!a) return NULL;
    if (heads < 1 || dim % heads) {
        mc_fail(parent->ctx, MC_ERR_ARGUMENT, "attention: dim %lld is no multiple of %d heads",
                (long long)dim, heads);
        return NULL;
    }
    a->heads = heads;
    if (options) a->options = *options;
    float std = std_or(a->options.init_std, 0.02f);
    mc_initializer init = mc_init_normal(0, std), zeros = mc_init_zeros();
    mc_parameter_part weights[] = {{"project_q.weight", dim, init},
                                   {"project_k.weight", dim, init},
                                   {"project_v.weight", dim, init}};
    mc_parameter_part biases[] = {{"project_q.bias", dim, zeros},
                                  {"project_k.bias", dim, zeros},
                                  {"project_v.bias", dim, zeros}};
    a->qkv_weight = mc_parameter_new_stacked(&a->module, weights, 3, MC_SHAPE(dim), NULL);
    a->qkv_bias = mc_parameter_new_stacked(&a->module, biases, 3, (mc_shape){.ndim = 0}, NULL);
    mc_linear_options out = {.init_std = std_or(a->options.out_std, std)};
    a->out = mc_linear_add(&a->module, "attention_out", dim, dim, &out);
    return a->out ? a : NULL;
}

void mc_attention_set_dropout(mc_attention *a, float p)
{
    if (a) a->options.dropout = p;
}

static mc_tensor *project_in(mc_tape *t, mc_attention *a, mc_tensor *x)
{
    if (!mc_op_ready(t, "attention", x)) return NULL;
    return mc_fused_linear(t, x, mc_parameter_whole(t, a->qkv_weight),
                           mc_parameter_whole(t, a->qkv_bias), MC_ACTIVATION_NONE);
}

static mc_tensor *project_out(mc_tape *t, mc_attention *a, mc_tensor *y)
{
    mc_tensor *out = y ? mc_linear_forward(t, a->out, y) : NULL;
    mc_tape_release(t, y);
    return out;
}

mc_tensor *mc_attention_forward(mc_tape *t, mc_attention *a, mc_tensor *x, mc_tensor *key_mask)
{
    mc_tensor *qkv = a ? project_in(t, a, x) : NULL;
    if (!qkv) return NULL;
    mc_sdpa_options options = {.heads = a->heads,
                               .scale = a->options.scale,
                               .causal = a->options.causal,
                               .dropout = a->options.dropout,
                               .key_mask = key_mask};
    mc_tensor *y = mc_sdpa(t, qkv, &options);
    mc_tape_release(t, qkv);
    return project_out(t, a, y);
}

mc_tensor *mc_attention_forward_cached(mc_tape *t, mc_attention *a, mc_tensor *x,
                                       mc_kv_cache *cache, int layer)
{
    mc_tensor *qkv = a ? project_in(t, a, x) : NULL;
    if (!qkv) return NULL;
    mc_sdpa_options options = {.heads = a->heads, .scale = a->options.scale};
    mc_tensor *y = mc_kv_attention(t, cache, layer, qkv, &options);
    mc_tape_release(t, qkv);
    return project_out(t, a, y);
}

/* ---- feed-forward ---------------------------------------------------------------------------- */

struct mc_feed_forward {
    mc_module module;
    mc_linear *in, *out;
    mc_activation activation;
};

mc_feed_forward *mc_feed_forward_add(mc_module *parent, const char *name, int64_t dim,
                                     int64_t dim_ff, mc_activation activation, float init_std)
{
    mc_feed_forward *ffn = mc_module_add(parent, name, sizeof *ffn);
    if (!ffn) return NULL;
    mc_linear_options options = {.init_std = init_std};
    ffn->activation = activation;
    ffn->in = mc_linear_add(&ffn->module, "w_in.w", dim, dim_ff, &options);
    ffn->out = mc_linear_add(&ffn->module, "w_out", dim_ff, dim, &options);
    return ffn->out ? ffn : NULL;
}

mc_tensor *mc_feed_forward_forward(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x)
{
    if (!ffn) return NULL;
    mc_tensor *h = mc_linear_forward_activated(t, ffn->in, x, ffn->activation);
    mc_tensor *y = h ? mc_linear_forward(t, ffn->out, h) : NULL;
    mc_tape_release(t, h);
    return y;
}
