/* Training in 8 bits at any number of ranks: run by mpirun, each rank also trains alone on all
 * rows. Scales are of what all ranks have seen, so they are the same, as are losses but for the
 * order of sums; where that moves an element to another byte, a loss moves by some 1e-4.
 *
 *     mpirun -np 4 ranks_fp8        both kinds of scales, and an adapter beside a base that is
 *                                   stored in 8 bits, whose scales are of rows; levels 0 to 3
 *
 * Prints a line for each case; exits with 0 if none differs. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/fp8_internal.h"
#include "tests/dist/ranks_test.h"

enum {
    STEPS = 5,
    ROWS = 12,
    WIDTH = 8,
    WORDS = 64,
    LAYERS = 2,
    SCALES = 4 * LAYERS * MC_FP8_ROLES
};

typedef struct training {
    double loss[STEPS];
    mc_fp8_scale first[SCALES], last[SCALES]; /* after the first step and the last */
} training;

/* This rank's rows of a step, no two alike. */
static mc_tensor *loss_of(mc_tape *t, mc_model *model, int step, int first, int count)
{
    int32_t ids[ROWS * WIDTH];
    uint64_t state = (uint64_t)step + 1;
    for (int i = 0; i < ROWS * WIDTH; i++) ids[i] = below(&state, WORDS);
    mc_tensor *in = mc_tape_input(t, MC_I32, MC_SHAPE(count, WIDTH), ids + first * WIDTH, false);
    mc_tensor *hidden = mc_model_forward(t, model, &(mc_model_input){.ids = in}).last_hidden;
    return mc_model_loss(t, model, hidden, mc_model_shift_labels(t, hidden, in));
}

static bool read_scales(mc_context *ctx, const mc_model *model, mc_fp8_scale to[SCALES])
{
    const mc_fp8_state *f = mc_model_module((mc_model *)(uintptr_t)model)->root->fp8;
    return f && f->count * MC_FP8_ROLES == SCALES &&
           ctx->device->copy_out(ctx->device, to, f->scales, SCALES * sizeof *to);
}

/* `adapts`: LoRA beside a base in 8 bits; such layers have no scales to read. */
static bool train(mc_context *ctx, mc_recipe recipe, mc_recompute recompute, bool adapts,
                  training *out)
{
    const mc_lora_options lora = {.rank = 2, .target_pattern = "all-linear"};
    int rank = mc_rank(ctx), ranks = mc_world_size(ctx), first = rank * ROWS / ranks;
    mc_gpt2_config config = small_gpt2_config(32, LAYERS, WORDS, WIDTH);
    mc_model *model =
        mc_gpt2_new(ctx, &config, NULL,
                    &(mc_load_options){
                        .recipe = recipe, .recompute = recompute, .lora = adapts ? &lora : NULL});
    if (adapts) mc_model_quantize_base(model, MC_WEIGHTS_FP8);
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 1e-3f, .eps = 1e-4f});
    mc_optimizer_add(adam, mc_model_module(model));
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optim_manager_add(optim, adam, NULL);
    bool good = !mc_failed(ctx);
    for (int i = 0; good && i < STEPS; i++) {
        mc_optim_manager_zero_grad_plan(optim, &(mc_step_plan){.nominal_rows = 100});
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *loss = loss_of(t, model, i, first, (rank + 1) * ROWS / ranks - first);
        mc_optim_manager_backward(optim, t, loss);
        mc_tape_end(t);
        mc_optim_manager_step(optim);
        out->loss[i] = mc_optim_manager_mean_loss(optim);
        if (i == 0 && !adapts) good = read_scales(ctx, model, out->first);
    }
    if (!adapts) good = good && read_scales(ctx, model, out->last);
    mc_optim_manager_free(optim);
    mc_optimizer_free(adam);
    mc_model_free(model);
    return good && !mc_failed(ctx);
}

static bool near(double a, double b, double tolerance)
{
    return fabs(a - b) <= tolerance * fabs(b);
}

static bool same(const training *a, const training *b, bool adapts)
{
    bool good = near(a->loss[0], b->loss[0], 1e-6) && a->loss[0] != a->loss[STEPS - 1];
    for (int i = 1; i < STEPS; i++) good &= near(a->loss[i], b->loss[i], 1e-3);
    for (int i = 0; i < SCALES && !adapts;
         i++) { /* of the first step alone all operands are the same */
        good &= near(a->first[i].history[0], b->first[i].history[0], 1e-5) &&
                a->first[i].scale == b->first[i].scale && a->last[i].history[STEPS - 1] != 0;
        good &= near(a->last[i].history[0], b->last[i].history[0], 0.05);
    }
    return good;
}

int main(void)
{
    mc_context *alone = mc_context_new(&(mc_init_options){.seed = 5, .device = ranks_device()});
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 5, .device = ranks_device(), .comm_timeout = 60});
    bool good = !mc_print_error(ctx, stderr) && !mc_print_error(alone, stderr);
    for (int i = 0; good && i < 9; i++) {
        bool adapts = i > 4;
        mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = i == 4 ? MC_FP8_CURRENT : MC_FP8_DELAYED};
        mc_recompute recompute = i % 2 ? MC_RECOMPUTE_FULL : MC_RECOMPUTE_SELECTIVE;
        ctx->zero_level = i % 4;
        training ours = {0}, expected = {0};
        bool ran = train(ctx, recipe, recompute, adapts, &ours) &&
                   train(alone, recipe, recompute, adapts, &expected);
        bool fits = ran && same(&ours, &expected, adapts);
        if (!fits || mc_rank(ctx) == 0)
            printf("%s level %d, %s scales: loss %.9g, alone %.9g\n", fits ? "ok" : "FAILED", i % 4,
                   adapts           ? "rows'"
                   : recipe.scaling ? "current"
                                    : "delayed",
                   ours.loss[STEPS - 1], expected.loss[STEPS - 1]);
        good = fits && !mc_failed(ctx);
    }
    mc_print_error(ctx, stderr);
    mc_print_error(alone, stderr);
    mc_context_free(ctx);
    mc_context_free(alone);
    return !good;
}
