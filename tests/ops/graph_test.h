/* Tests of what backward passes take along: inputs of a small graph, its gradients, and a backward
 * pass through kernels of the test's own. Include after cmocka.h. */
#ifndef MC_TESTS_GRAPH_TEST_H
#define MC_TESTS_GRAPH_TEST_H

#include <math.h>
#include <stdlib.h>
#include "core/autograd/tape_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* in: `count` inputs in f32, sizes[i] (rows, columns; 0: a vector), without a gradient where
 * `frozen` has bit i; cast: the same in dtype. */
static inline void make_inputs(mc_tape *t, mc_dtype dtype, unsigned frozen, int count,
                               const int64_t (*sizes)[2], mc_tensor **in, mc_tensor **cast)
{
    for (int i = 0; i < count; i++) {
        mc_shape shape = sizes[i][1] ? MC_SHAPE(sizes[i][0], sizes[i][1]) : MC_SHAPE(sizes[i][0]);
        int64_t elements = mc_shape_count(shape);
        float *data = malloc((size_t)elements * sizeof *data);
        assert_non_null(data);
        for (int64_t k = 0; k < elements; k++) data[k] = sinf((float)(i * 100 + k * 7));
        in[i] = mc_tape_input(t, MC_F32, shape, data, !(frozen >> i & 1));
        cast[i] = mc_cast(t, in[i], dtype);
        free(data);
    }
}

/* From a gradient of y (rows, columns), with other kernels than the device's. */
static inline void backward_through(mc_context *ctx, const mc_kernels *kernels, mc_tape *t,
                                    mc_tensor *y, int64_t rows, int64_t columns)
{
    const mc_kernels *own = ctx->device->kernels;
    float *dy = malloc((size_t)(rows * columns) * sizeof *dy);
    assert_non_null(dy);
    for (int64_t k = 0; k < rows * columns; k++) dy[k] = cosf((float)k) + 0.5f;
    mc_tensor *given = mc_tape_input(t, MC_F32, MC_SHAPE(rows, columns), dy, false);
    free(dy);
    if (mc_failed(ctx)) fail_msg("%s", mc_error_message(ctx));
    ctx->device->kernels = kernels;
    mc_tape_backward(t, mc_cast(t, y, MC_F32), given);
    ctx->device->kernels = own;
    if (mc_failed(ctx)) fail_msg("%s", mc_error_message(ctx));
}

/* Of the inputs that have one, but for input `but` (-1: all), into rows of `most` elements. */
static inline void read_gradients(mc_context *ctx, mc_tensor *const *in, int count, int but,
                                  float *gradients, int most)
{
    for (int i = 0; i < count; i++)
        if (mc_tensor_gradient(in[i]) && i != but)
            mc_tensor_read_f32(ctx, mc_tensor_gradient(in[i]), gradients + (size_t)i * (size_t)most,
                               mc_tensor_count(in[i]));
}

#endif
