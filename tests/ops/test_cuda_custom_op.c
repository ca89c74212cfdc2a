/* Operations of a program's own on the GPU, in eager and recorded steps: their functions put work
 * on the stream of mc_context_stream and wait for nothing. Skipped where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cuda_runtime_api.h>
#include "core/autograd/step.h"
#include "tests/device_choice.h"
#include "tests/optim/optim_test.h"

enum { N = 1000, STEPS = 5 };

static mc_status copy(const mc_custom_call *call, mc_tensor *to, const mc_tensor *from)
{
    cudaError_t error = cudaMemcpyAsync(mc_tensor_data(to), mc_tensor_data(from), N * sizeof(float),
                                        cudaMemcpyDeviceToDevice, mc_context_stream(call->ctx));
    return error ? MC_ERR_DEVICE : MC_OK;
}

static mc_status copy_forward(void *user, const mc_custom_call *call)
{
    ++*(int *)user;
    return copy(call, call->output, call->inputs[0]);
}

static mc_status copy_backward(void *user, const mc_custom_call *call)
{
    (void)user;
    return copy(call, call->input_gradients[0], call->output_gradient);
}

typedef struct run {
    mc_tensor *x, *y, *dx;
    int calls;
} run;

/* y = 2 copy(3 x), dx = 6 dy with dy = 1. */
static void step(mc_context *ctx, void *user)
{
    static const mc_custom_op_spec spec = {"copy", copy_forward, copy_backward, 1, true};
    run *r = user;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *leaf = mc_tape_input(t, MC_F32, MC_SHAPE(N), NULL, true);
    mc_tensor *x = mc_scale(t, mc_add(t, leaf, r->x), 3);
    mc_tensor *copied = mc_custom_op(t, &spec, &r->calls, 1, &x, MC_F32, MC_SHAPE(N));
    mc_tensor *y = mc_scale(t, copied, 2);
    mc_tensor_copy(r->y, y);
    mc_tape_backward(t, y, mc_exp(t, mc_tape_input(t, MC_F32, MC_SHAPE(N), NULL, false)));
    mc_tensor_copy(r->dx, mc_tensor_gradient(leaf));
    mc_tape_end(t);
}

static void test_copy(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cuda", 1);
    if (!ctx) skip();
    static float x[N], y[N], dx[N];
    run r = {.x = mc_tensor_new(ctx, MC_F32, MC_SHAPE(N)),
             .y = mc_tensor_new(ctx, MC_F32, MC_SHAPE(N)),
             .dx = mc_tensor_new(ctx, MC_F32, MC_SHAPE(N))};
    assert_non_null(mc_context_stream(ctx));
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < N; k++) x[k] = sinf((float)(k + i));
        mc_tensor_write(r.x, x, sizeof x);
        mc_step_run(ctx, 1, step, &r);
        mc_tensor_read_f32(ctx, r.y, y, N);
        mc_tensor_read_f32(ctx, r.dx, dx, N);
        assert_good(ctx);
        for (int k = 0; k < N; k++) {
            assert_near(y[k], 6 * x[k], 1e-5);
            assert_near(dx[k], 6, 1e-5);
        }
    }
    assert_int_equal(r.calls, 2); /* once eagerly, once to be recorded */
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
