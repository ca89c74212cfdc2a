/* 4. A loss of your own: fitting a line through points of which some are far off.
 *
 * Shows both ways to a loss that the library does not have. The first composes it of operations,
 * which have their gradients already and run on any device. The second writes forward and backward
 * by hand, with public functions alone: mc_custom_op. Either gives a loss for each point, which
 * mc_loss_from_rows makes one that OptimManager takes.
 *
 *     ./custom_loss [mse|composed|custom] [--device cpu|cuda]
 *
 *     mse       the mean squared error, of the library: the outliers pull the line away
 *     composed  sqrt(1 + d^2) - 1 of the distance d, which grows like |d|
 *     custom    Huber's loss: d^2 / 2 up to |d| = 1, |d| - 1/2 beyond. Its functions are plain
 *               loops; on a GPU they would launch kernels on mc_context_stream(ctx)
 *
 * Prints the loss now and then, and at the end how far the fitted weights are from the true ones.
 * Takes less than a second. */
#include <modelcenter.h>
#include <modelcenter/more.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 8, POINTS = 128, STEPS = 200 };

/* ---- losses: predictions and targets (POINTS, 1) to a loss ----------------------------------- */

static mc_tensor *composed_loss(mc_tape *t, mc_tensor *x, mc_tensor *target)
{
    const float one = 1;
    mc_tensor *ones = mc_tape_input(t, MC_F32, MC_SHAPE(1), &one, false);
    mc_tensor *d = mc_sub(t, x, target);
    mc_tensor *rows = mc_sub(t, mc_sqrt(t, mc_add(t, mc_mul(t, d, d), ones)), ones);
    return mc_loss_from_rows(t, rows, NULL);
}

static mc_status huber_forward(void *user, const mc_custom_call *call)
{
    const float *x = mc_tensor_data(call->inputs[0]), *target = mc_tensor_data(call->inputs[1]);
    float *y = mc_tensor_data(call->output);
    (void)user;
    for (int64_t i = 0; i < mc_tensor_count(call->output); i++) {
        float d = fabsf(x[i] - target[i]);
        y[i] = d < 1 ? d * d / 2 : d - 0.5f;
    }
    return MC_OK;
}

/* Gradients are f32, and zero before; NULL where none is wanted, as for the targets here. */
static mc_status huber_backward(void *user, const mc_custom_call *call)
{
    const float *x = mc_tensor_data(call->inputs[0]), *target = mc_tensor_data(call->inputs[1]);
    const float *dy = mc_tensor_data(call->output_gradient);
    float *dx = mc_tensor_data(call->input_gradients[0]);
    (void)user;
    for (int64_t i = 0; dx && i < mc_tensor_count(call->output); i++) {
        float d = x[i] - target[i];
        dx[i] = dy[i] * (d < -1 ? -1 : d > 1 ? 1 : d);
    }
    return MC_OK;
}

static mc_tensor *custom_loss(mc_tape *t, mc_tensor *x, mc_tensor *target)
{
    static const mc_custom_op_spec huber = {.name = "huber",
                                            .forward = huber_forward,
                                            .backward = huber_backward,
                                            .unread_output =
                                                true}; /* backward reads the inputs only */
    if (mc_context_stream(mc_tape_context(t))) {
        mc_set_error(mc_tape_context(t), MC_ERR_UNSUPPORTED,
                     "huber: its loops run on the CPU, not on a GPU");
        return NULL;
    }
    mc_tensor *rows =
        mc_custom_op(t, &huber, NULL, 2, (mc_tensor *[]){x, target}, MC_F32, mc_tensor_shape(x));
    return mc_loss_from_rows(t, rows, NULL);
}

typedef mc_tensor *(*loss_fn)(mc_tape *t, mc_tensor *x, mc_tensor *target);

/* ---- points: w . x, and every eighth of them far above --------------------------------------- */

static const float true_weight[DIM] = {1, -2, 0.5f, 3, -1, 0, 2, -0.5f};

static void make_points(float *x, float *target)
{
    uint64_t state = 1;
    for (int i = 0; i < POINTS; i++) {
        target[i] = i % 8 == 0 ? 20 : 0;
        for (int k = 0; k < DIM; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            x[i * DIM + k] = (float)(int32_t)(state >> 32) / 2147483648.0f;
            target[i] += true_weight[k] * x[i * DIM + k];
        }
    }
}

/* ---- training -------------------------------------------------------------------------------- */

/* The largest difference of a fitted weight from the true one. */
static float fit(mc_context *ctx, loss_fn loss_of)
{
    static float x[POINTS * DIM], target[POINTS], weight[DIM];
    make_points(x, target);
    mc_linear *line = mc_linear_new(ctx, DIM, 1, &(mc_linear_options){.no_bias = true});
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optimizer_add(adam, mc_linear_module(line));
    mc_optim_manager_add(optim, adam, mc_cosine_new(ctx, 0.2, 0, STEPS));
    for (int step = 1; step <= STEPS && !mc_failed(ctx); step++) {
        mc_optim_manager_zero_grad(optim);
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *points = mc_tape_input(t, MC_F32, MC_SHAPE(POINTS, DIM), x, false);
        mc_tensor *targets = mc_tape_input(t, MC_F32, MC_SHAPE(POINTS, 1), target, false);
        mc_tensor *loss = loss_of(t, mc_linear_forward(t, line, points), targets);
        mc_optim_manager_backward(optim, t, loss);
        mc_optim_manager_step(optim);
        mc_tape_end(t);
        if (step == 1 || step % 50 == 0)
            mc_print_rank(ctx, 0, "step %3d | loss %.5f\n", step,
                          mc_optim_manager_mean_loss(optim));
    }
    mc_parameter_iterator it = {0};
    mc_parameter_read(mc_module_next_parameter(mc_linear_module(line), &it), weight);
    float worst = 0;
    for (int k = 0; k < DIM; k++) worst = fmaxf(worst, fabsf(weight[k] - true_weight[k]));
    return worst;
}

int main(int argc, char **argv)
{
    mc_init_options options = {.seed = 42};
    const char *which = "composed";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            options.device = argv[++i];
        else
            which = argv[i];
    }
    loss_fn loss = strcmp(which, "mse") == 0        ? mc_mse_loss
                   : strcmp(which, "composed") == 0 ? composed_loss
                   : strcmp(which, "custom") == 0   ? custom_loss
                                                    : NULL;
    if (!loss) return fprintf(stderr, "error: %s: expected mse, composed or custom\n", which), 2;
    mc_context *ctx = mc_init_distributed(&options);
    float off = mc_failed(ctx) ? 0 : fit(ctx, loss);
    mc_print_rank(ctx, 0, "weights off by %.4f\n", (double)off);
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
