/* The layers models are made of. Each is a module: `_new` creates a root (such as a head next to a
 * model), `_add` a child of another module. Names of parameters are ModelCenter's.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_NN_LAYERS_H
#define MC_NN_LAYERS_H

#include "core/nn/call.h"
#include "core/nn/module.h"
#include "core/ops/ops.h"

/* ---- linear: y = x W^T + b ------------------------------------------------------------------- */

typedef struct mc_linear mc_linear;

typedef struct mc_linear_options {
    bool no_bias;
    float init_std;   /* of the weight, normal with mean 0; 0: 0.02 (BERT's). Biases start at 0 */
    float scale;      /* of the product: y = scale * x W^T + b; 0: 1 */
    mc_dtype dtype;   /* of a root; a child has its root's */
    const char *name; /* of a root: prefix of its parameters' names; NULL: none */
} mc_linear_options;

/* Parameters "weight" (out, in) and "bias" (out). `options` may be NULL. NULL after an error, such
 * as a size below 1. */
MC_API mc_linear *mc_linear_new(mc_context *ctx, int64_t in, int64_t out,
                                const mc_linear_options *options);
MC_API mc_linear *mc_linear_add(mc_module *parent, const char *name, int64_t in, int64_t out,
                                const mc_linear_options *options);
MC_API mc_module *mc_linear_module(mc_linear *linear);
/* x (..., in) to (..., out). x is cast to the weight's dtype, so an f32 head may follow a bf16
 * model. */
MC_API mc_tensor *mc_linear_forward(mc_tape *t, mc_linear *linear, mc_tensor *x);
/* The same with an activation fused into the product: activation(x W^T + b). */
MC_API mc_tensor *mc_linear_forward_activated(mc_tape *t, mc_linear *linear, mc_tensor *x,
                                              mc_activation activation);

/* ---- layer norm ------------------------------------------------------------------------------ */

typedef struct mc_layernorm mc_layernorm;

/* Parameters "weight" (ones) and "bias" (zeros) of `dim`. eps, which is added to the variance; 0:
 * 1e-5. NULL after an error. */
MC_API mc_layernorm *mc_layernorm_new(mc_context *ctx, int64_t dim, float eps);
MC_API mc_layernorm *mc_layernorm_add(mc_module *parent, const char *name, int64_t dim, float eps);
/* RMSNorm (Zhang & Sennrich 2019; T5's): a layer norm that subtracts no mean and has no bias. The
 * only parameter is "weight" (ones). eps is added to the mean square; 0: 1e-6. All functions of
 * layer norms below accept it. Returns NULL after an error. */
MC_API mc_layernorm *mc_rmsnorm_new(mc_context *ctx, int64_t dim, float eps);
MC_API mc_layernorm *mc_rmsnorm_add(mc_module *parent, const char *name, int64_t dim, float eps);
MC_API mc_module *mc_layernorm_module(mc_layernorm *norm);
/* Normalises the last dimension of x (..., dim): mean 0 and variance 1, times weight plus bias. The
 * result has x's shape and dtype. */
MC_API mc_tensor *mc_layernorm_forward(mc_tape *t, mc_layernorm *norm, mc_tensor *x);

/* ---- embedding ------------------------------------------------------------------------------- */

typedef struct mc_embedding mc_embedding;

/* Parameter "weight" (count, dim), normal(0, init_std); init_std 0: 0.02. NULL after an error. */
MC_API mc_embedding *mc_embedding_new(mc_context *ctx, int64_t count, int64_t dim, float init_std);
MC_API mc_embedding *mc_embedding_add(mc_module *parent, const char *name, int64_t count,
                                      int64_t dim, float init_std);
MC_API mc_module *mc_embedding_module(mc_embedding *embedding);
/* Rows of the table by index (i32 or i64, any shape): (elements of index, dim). Errors: an index
 * outside [0, count), named with its place. */
MC_API mc_tensor *mc_embedding_forward(mc_tape *t, mc_embedding *embedding, mc_tensor *index);

#endif
