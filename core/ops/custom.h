/* Operations of one's own: a forward and a backward function that see tensors through public
 * functions (mc_tensor_data, mc_tensor_shape, mc_tensor_dtype, mc_tensor_count, mc_tensor_lengths).
 * What can be composed of the operations there are (core/ops/ops.h, general.h, losses.h) needs
 * none.
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
 * Devices. On the CPU data is memory of the host, and plain loops are all that is needed. On a GPU
 * data is memory of the GPU, which is the current one (cudaGetDevice) while the functions run. They
 * launch kernels of their own on mc_context_stream(ctx) and do not wait for them; work that the
 * library launched before is done first, work that it launches later comes after. In a step that is
 * recorded (core/autograd/step.h) these launches are recorded too. A device that only plans memory
 * or time (core/nn/memory_plan.h) calls neither function, and takes no time for them.
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
    mc_tensor *const *inputs; /* as they were given to mc_custom_op */
    mc_tensor *output;        /* forward: to be written, its contents are undefined */
    /* In backward, all f32 whatever the dtypes of the tensors are. Each input gradient has the
     * input's shape and is zero at first, so that it may be added to or overwritten; NULL where
     * none is wanted. */
    const mc_tensor *output_gradient;
    mc_tensor *const *input_gradients;
} mc_custom_call;

/* MC_OK, or a status that becomes the context's error, naming the operation. mc_set_error with a
 * message of one's own comes first and is kept. */
typedef mc_status (*mc_custom_fn)(void *user, const mc_custom_call *call);

typedef struct mc_custom_op_spec {
    const char *name;
    mc_custom_fn forward;  /* required */
    mc_custom_fn backward; /* NULL: the result has no gradient */
    /* What backward does not read need not be kept until then: bit i of `unread_inputs` for input
     * i. mc_tensor_data of it may be NULL in backward. */
    unsigned unread_inputs;
    bool unread_output;
    /* forward is cheap, always gives the same, and may be called again in place of keeping the
     * result (MC_RECOMPUTE_SELECTIVE). Needs unread_output. */
    bool recompute;
} mc_custom_op_spec;

/* y = forward(inputs), a tensor of that dtype and shape, which carries the first input's lengths if
 * it has as many rows (the first dimension). The spec is copied; `user` is passed to both functions
 * and must live as long as the tape. Gradients are added up as those of any operation: an input may
 * be given twice, used elsewhere, or be a parameter. In a block with full recompute forward is
 * called once more. Errors (NULL): `spec`, its name or forward NULL, `recompute` without
 * `unread_output`, a count of inputs outside of 1 to MC_CUSTOM_INPUTS, an input that is NULL,
 * released or of another context, MC_ERR_ARGUMENT or MC_ERR_STATE; a bad shape, MC_ERR_SHAPE; a
 * backward function with a result that is no f32, f16 or bf16, MC_ERR_DTYPE. */
MC_API mc_tensor *mc_custom_op(mc_tape *t, const mc_custom_op_spec *spec, void *user, int count,
                               mc_tensor *const *inputs, mc_dtype dtype, mc_shape shape);

/* The CUDA stream (a cudaStream_t) on which the context's device works; NULL on the CPU, on a
 * device that only plans, and for NULL. */
MC_API void *mc_context_stream(mc_context *ctx);

#endif
