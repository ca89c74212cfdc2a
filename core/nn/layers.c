#include "core/nn/transformer.h"

#include "core/nn/adapter_internal.h"
#include "core/nn/fp8_internal.h"
#include "core/nn/stored.h"
#include "core/ops/fused.h"

/* ---- linear ---------------------------------------------------------------------------------- */

struct mc_linear {
    mc_module module;
    mc_parameter *weight, *bias;
};

static mc_linear *linear_init(mc_linear *linear, int64_t in, int64_t out,
                              const mc_linear_options *o)
{
    if (!linear) return NULL;
    float std = mc_option(o ? o->init_std : 0, 0.02f);
    linear->weight =
        mc_parameter_new(&linear->module, "weight", MC_SHAPE(out, in), mc_init_normal(0, std));
    mc_weight_declare(linear->weight, mc_option(o ? o->scale : 0, 1));
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
    if (!mc_given(mc_tape_context(t), linear) || !mc_op_ready(t, "linear", x)) return NULL;
    x = mc_cast(t, x, mc_parameter_dtype(linear->weight)); /* an f32 head may follow a bf16 model */
    return mc_weight_product(t, x, linear->weight, linear->bias, activation);
}

mc_tensor *mc_linear_forward(mc_tape *t, mc_linear *linear, mc_tensor *x)
{
    return mc_linear_forward_activated(t, linear, x, MC_ACTIVATION_NONE);
}

/* ---- layer norm ------------------------------------------------------------------------------ */

struct mc_layernorm {
    mc_module module;
    mc_parameter *weight, *bias; /* bias NULL: RMSNorm, unless centred */
    bool centred;                /* subtracts the mean */
    float eps;
};

static mc_layernorm *norm_init(mc_layernorm *norm, int64_t dim, float eps, bool centred)
{
    if (!norm) return NULL;
    norm->eps = eps;
    norm->centred = centred;
    norm->weight = mc_parameter_new(&norm->module, "weight", MC_SHAPE(dim), mc_init_constant(1));
    return norm->weight ? norm : NULL;
}

static mc_layernorm *layernorm_init(mc_layernorm *norm, int64_t dim, float eps)
{
    if (!norm_init(norm, dim, mc_option(eps, 1e-5f), true)) return NULL;
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

mc_layernorm *mc_layernorm_add_without_bias(mc_module *parent, const char *name, int64_t dim,
                                            float eps)
{
    return norm_init(mc_module_add(parent, name, sizeof(mc_layernorm)), dim, mc_option(eps, 1e-5f),
                     true);
}

static mc_layernorm *rmsnorm_init(mc_layernorm *norm, int64_t dim, float eps)
{
    return norm_init(norm, dim, mc_option(eps, 1e-6f), false);
}

mc_layernorm *mc_rmsnorm_new(mc_context *ctx, int64_t dim, float eps)
{
    return rmsnorm_init(mc_module_new(ctx, "", sizeof(mc_layernorm), NULL), dim, eps);
}

mc_layernorm *mc_rmsnorm_add(mc_module *parent, const char *name, int64_t dim, float eps)
{
    return rmsnorm_init(mc_module_add(parent, name, sizeof(mc_layernorm)), dim, eps);
}

mc_module *mc_layernorm_module(mc_layernorm *norm) { return norm ? &norm->module : NULL; }

/* The bias for the operations; NULL selects RMSNorm. */
static mc_tensor *bias_of(mc_tape *t, const mc_layernorm *norm)
{
    if (norm->bias) return mc_parameter_tensor(t, norm->bias);
    if (!norm->centred) return NULL;
    return mc_tape_input(t, mc_parameter_dtype(norm->weight), mc_parameter_shape(norm->weight),
                         NULL, false);
}

/* y with the norm that computed it, see mc_fp8_norm_scale. */
static mc_tensor *made_by(const mc_layernorm *norm, mc_tensor *y)
{
    if (y) y->norm = norm->weight->stored;
    return y;
}

mc_tensor *mc_layernorm_forward_residual(mc_tape *t, mc_layernorm *norm, mc_tensor *x, mc_tensor *f,
                                         float dropout)
{
    if (!mc_given(mc_tape_context(t), norm) || !mc_op_ready(t, "layer norm", x)) return NULL;
    mc_tensor *bias = bias_of(t, norm);
    mc_tensor *y =
        mc_residual_norm_fp8(t, x, f, dropout, mc_parameter_tensor(t, norm->weight), bias,
                             norm->eps, mc_fp8_norm_scale(t, norm->weight->stored));
    return made_by(norm, y);
}

mc_tensor *mc_layernorm_forward(mc_tape *t, mc_layernorm *norm, mc_tensor *x)
{
    return mc_layernorm_forward_residual(t, norm, x, NULL, 0);
}

mc_tensor *mc_layernorm_forward_stream(mc_tape *t, mc_layernorm *norm, mc_tensor *x,
                                       mc_tensor **sum)
{
    if (sum) *sum = NULL;
    if (!mc_tape_given(t, "layer norm", norm ? norm->module.ctx : NULL) ||
        !mc_given(mc_tape_context(t), norm))
        return NULL;
    mc_tensor *bias = bias_of(t, norm);
    mc_tensor *y = mc_stream_norm_fp8(t, x, mc_parameter_tensor(t, norm->weight), bias, norm->eps,
                                      sum, mc_fp8_norm_scale(t, norm->weight->stored));
    return made_by(norm, y);
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
                                 mc_init_normal(0, mc_option(init_std, 0.02f)));
    if (e->weight) e->weight->is_table = true;
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
                                        mc_init_normal(0, mc_option(init_std, 0.02f)));
    if (e->weight) e->weight->is_table = true;
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

mc_parameter *mc_embedding_weight(mc_embedding *e) { return e ? e->weight : NULL; }

mc_module *mc_embedding_module(mc_embedding *e) { return e ? &e->module : NULL; }

mc_tensor *mc_embedding_table(mc_tape *t, mc_embedding *e)
{
    if (!mc_given_as(mc_tape_context(t), e, "embedding")) return NULL;
    return mc_parameter_tensor(t, e->weight);
}

mc_tensor *mc_embedding_whole(mc_tape *t, mc_embedding *e)
{
    if (!mc_given_as(mc_tape_context(t), e, "embedding")) return NULL;
    return mc_parameter_whole(t, e->weight);
}

mc_tensor *mc_embedding_forward(mc_tape *t, mc_embedding *e, mc_tensor *index)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_given_as(ctx, e, "embedding") || !mc_op_ready(t, "embedding", index)) return NULL;
    mc_tensor *table = mc_embedding_table(t, e);
    return table ? mc_embed(t, 1, &table, &index) : NULL;
}

/* ---- feed-forward ---------------------------------------------------------------------------- */

struct mc_feed_forward {
    mc_module module;
    mc_linear *in;                     /* NULL if gated; then instead: */
    mc_parameter *in_weight, *in_bias; /* first of two parts each; the bias may be NULL */
    mc_linear *out;
    mc_feed_forward_options options;
};

/* Stores the two halves as one tensor, so that one product computes both. */
static void add_gated_in(mc_feed_forward *ffn, int64_t dim, int64_t dim_ff)
{
    mc_initializer init = mc_init_normal(0, mc_option(ffn->options.init_std, 0.02f)),
                   zeros = mc_init_zeros();
    mc_parameter_part weights[] = {{"w_in.w_0.weight", dim_ff, init},
                                   {"w_in.w_1.weight", dim_ff, init}};
    mc_parameter_part biases[] = {{"w_in.w_0.bias", dim_ff, zeros},
                                  {"w_in.w_1.bias", dim_ff, zeros}};
    ffn->in_weight = mc_parameter_new_stacked(&ffn->module, weights, 2, MC_SHAPE(dim), NULL);
    mc_weight_declare(ffn->in_weight, mc_option(ffn->options.in_scale, 1));
    if (!ffn->options.no_bias)
        ffn->in_bias =
            mc_parameter_new_stacked(&ffn->module, biases, 2, (mc_shape){.ndim = 0}, NULL);
}

mc_feed_forward *mc_feed_forward_add(mc_module *parent, const char *name, int64_t dim,
                                     int64_t dim_ff, const mc_feed_forward_options *options)
{
    mc_feed_forward *ffn = mc_module_add(parent, name, sizeof *ffn);
    if (!ffn) return NULL;
    if (options) ffn->options = *options;
    const mc_feed_forward_options *o = &ffn->options;
    mc_linear_options in = {.init_std = o->init_std, .no_bias = o->no_bias, .scale = o->in_scale};
    mc_linear_options out = {.init_std = mc_option_or(o->out_std, o->init_std),
                             .no_bias = o->no_bias,
                             .scale = o->out_scale};
    if (o->gated)
        add_gated_in(ffn, dim, dim_ff);
    else
        ffn->in = mc_linear_add(&ffn->module, "w_in.w", dim, dim_ff, &in);
    ffn->out = mc_linear_add(&ffn->module, "w_out", dim_ff, dim, &out);
    return mc_failed(parent->ctx) ? NULL : ffn;
}

void mc_feed_forward_set_dropout(mc_feed_forward *ffn, float p)
{
    if (ffn) ffn->options.dropout = p;
}

/* The product for a gate. Unless dropout follows, w_out may apply the gate as it reads the result,
 * which then has no storage; else the caller applies it. */
static mc_tensor *gated_in(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x, bool drops)
{
    x = mc_cast(t, x, mc_parameter_dtype(ffn->in_weight));
    if (drops) return mc_weight_product(t, x, ffn->in_weight, ffn->in_bias, MC_ACTIVATION_NONE);
    return mc_weight_product_for(t, x, ffn->in_weight, ffn->in_bias, ffn->options.activation, true,
                                 ffn->out->weight);
}

/* The product with its activation; only w_out reads the result. */
static mc_tensor *plain_in(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x)
{
    const mc_linear *in = ffn->in;
    x = mc_cast(t, x, mc_parameter_dtype(in->weight));
    return mc_weight_product_for(t, x, in->weight, in->bias, ffn->options.activation, false,
                                 ffn->out->weight);
}

/* Computes w_out's input. `last`: the caller does not read x again. */
static mc_tensor *feed_in(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x, bool last)
{
    const mc_feed_forward_options *o = &ffn->options;
    bool drops = o->dropout > 0 && mc_tape_is_training(t);
    bool relu = o->activation == MC_ACTIVATION_RELU && !o->gated && drops; /* one pass does both */
    mc_activation activation = relu ? MC_ACTIVATION_NONE : o->activation;
    mc_tensor *h = o->gated ? gated_in(t, ffn, x, drops)
                   : drops  ? mc_linear_forward_activated(t, ffn->in, x, activation)
                            : plain_in(t, ffn, x);
    if (last) mc_tape_release(t, x);
    if (h && !h->storage) return h;
    if (o->gated && h) {
        mc_tensor *gated = mc_gated(t, h, o->activation);
        mc_tape_release(t, h);
        h = gated;
    }
    mc_tensor *dropped = !h     ? NULL
                         : relu ? mc_relu_dropout(t, h, o->dropout)
                                : mc_dropout(t, h, o->dropout);
    if (dropped != h) mc_tape_release(t, h);
    return dropped;
}

static mc_tensor *feed_forward(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x, bool last)
{
    if (!mc_given(mc_tape_context(t), ffn) || !mc_op_ready(t, "feed-forward", x)) return NULL;
    mc_tensor *h = feed_in(t, ffn, x, last);
    mc_tensor *y = NULL;
    if (h && !h->storage) /* a form that only w_out reads (mc_weight_product_for) */
        y = mc_weight_product(t, h, ffn->out->weight, ffn->out->bias, MC_ACTIVATION_NONE);
    else if (h)
        y = mc_linear_forward(t, ffn->out, h);
    mc_tape_release(t, h);
    return y;
}

mc_tensor *mc_feed_forward_forward(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x)
{
    return feed_forward(t, ffn, x, false);
}

mc_tensor *mc_feed_forward_forward_last(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x)
{
    return feed_forward(t, ffn, x, true);
}
