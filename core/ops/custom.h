/* Custom operations: a forward and a backward function that access tensors through public functions
 * (mc_tensor_data, mc_tensor_shape, mc_tensor_dtype, mc_tensor_count, mc_tensor_lengths). You need
 * one only for what existing operations (core/ops/ops.h, general.h, losses.h) cannot express.
 *
 *     static mc_status forward(void *user, const mc_custom_call *call)
 *     {
 *         const float *x = mc_tensor_data(call->inputs[0]);
 *         float *y = mc_tensor_data(call->output);
 *         for (int64_t i = 0; i < mc_tensor_count(call->output); i++) y[i] = x[i] * x[i];
 *         return MC_OK;
 *     }
 *     static mc_status backward(void *user, const mc_custom_call *call)
 *     {
 *         const float *x = mc_tensor_data(call->inputs[0]);
 *         const float *dy = mc_tensor_data(call->output_gradient);
 *         float *dx = mc_tensor_data(call->input_gradients[0]);
 *         for (int64_t i = 0; dx && i < mc_tensor_count(call->output); i++)
 *             dx[i] += 2 * x[i] * dy[i];
 *         return MC_OK;
 *     }
 *     static const mc_custom_op_spec square = {"square", forward, backward};
 *     ...
 *     y = mc_custom_op(t, &square, NULL, 1, &x, MC_F32, mc_tensor_shape(x));
 *
 * Devices. On the CPU data is host memory, and plain loops suffice. On a GPU data is memory of that
 * GPU, which is the current one (cudaGetDevice) while the functions run. They launch their kernels
 * on mc_context_stream(ctx) and do not wait for them; the stream orders them after the library's
 * earlier work and before its later work. A recorded step (core/autograd/step.h) records these
 * launches too. A device that only plans memory or time (core/nn/memory_plan.h) calls neither
 * function and counts no time for them.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_OPS_CUSTOM_H
#define MC_OPS_CUSTOM_H

#include "core/autograd/tape.h"

/* The most inputs of a custom operation. */
#define MC_CUSTOM_INPUTS 7

typedef struct mc_custom_call {
    mc_context *ctx;
    int count;                /* inputs */
    mc_tensor *const *inputs; /* as passed to mc_custom_op */
    mc_tensor *output;        /* forward writes it; its contents are undefined before */
    /* For backward: f32, whatever the dtypes of the tensors. Each input gradient has the input's
     * shape and starts at zero, so backward may add to it or overwrite it. NULL: this input
     * requires no gradient. */
    const mc_tensor *output_gradient;
    mc_tensor *const *input_gradients;
} mc_custom_call;

/* Returns MC_OK, or a status that becomes the context's error, with the operation's name. To give
 * your own message, call mc_set_error before returning. */
typedef mc_status (*mc_custom_fn)(void *user, const mc_custom_call *call);

typedef struct mc_custom_op_spec {
    const char *name;
    mc_custom_fn forward;  /* required */
    mc_custom_fn backward; /* NULL: the result has no gradient */
    /* Tensors that backward does not read, so that they need not be kept: bit i of `unread_inputs`
     * for input i. mc_tensor_data of such a tensor may be NULL in backward. */
    unsigned unread_inputs;
    bool unread_output;
    /* forward is cheap and deterministic, so backward may call it again instead of keeping the
     * result (MC_RECOMPUTE_SELECTIVE). Needs unread_output. */
    bool recompute;
} mc_custom_op_spec;

/* Returns y = forward(inputs), a tensor of the given dtype and shape. It carries the first input's
 * lengths if both have the same first dimension. The spec is copied; `user` is passed to both
 * functions and must live as long as the tape. Gradients accumulate as for any operation: an input
 * may be passed twice, used elsewhere, or be a parameter. In a block with full recompute forward is
 * called once more. Errors (NULL): `spec`, its name or forward NULL, `recompute` without
 * `unread_output`, a count of inputs outside of 1 to MC_CUSTOM_INPUTS, an input that is NULL,
 * released or of another context, MC_ERR_ARGUMENT or MC_ERR_STATE; a bad shape, MC_ERR_SHAPE; a
 * backward function with a result other than f32, f16 or bf16, MC_ERR_DTYPE. */
MC_API mc_tensor *mc_custom_op(mc_tape *t, const mc_custom_op_spec *spec, void *user, int count,
                               mc_tensor *const *inputs, mc_dtype dtype, mc_shape shape);

/* Returns the CUDA stream (a cudaStream_t) of the context's device; NULL on the CPU, on a planning
 * device, and for a NULL context. */
MC_API void *mc_context_stream(mc_context *ctx);

#endif
