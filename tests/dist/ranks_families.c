/* Every family's training at any number of ranks, of all parameters and of LoRA's factors: run by
 * mpirun, each rank also trains alone on all rows, and losses, gradients' norms and the parameters
 * at the end have to be the same.
 *
 *     mpirun -np 4 ranks_families        every family, level and way of recomputing
 *
 * Prints a line for each family; exits with 0 if none differs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/dist/ranks_test.h"
#include "tests/models/family_test.h"

enum { STEPS = 4 };

typedef struct training {
    double loss[STEPS], norm[STEPS];
    float *end; /* parameters */
    int64_t count;
} training;

/* A rank's sequences of the batch: as even as it goes, and one at least, for there are no more than
 * BATCH ranks. */
static part rows_of(int rank, int ranks)
{
    int first = rank * BATCH / ranks, end = (rank + 1) * BATCH / ranks;
    return (part){PACKED, first, end - first};
}

/* `adapter` has .lora or .soft_prompt; neither: all parameters. */
static training train(mc_context *ctx, const tiny_family *f, mc_recompute recompute,
                      const mc_load_options *adapter)
{
    training out = {0};
    mc_load_options load = *adapter;
    load.recompute = recompute;
    mc_model *model = tiny_model(ctx, f, &load);
    mc_model_set_dropout(model, 0);
    /* eps: keys' biases have no gradient but rounding's, which must not decide where they go */
    mc_adam_options options = {.lr = 3e-3f, .eps = 1e-4f, .weight_decay = 0.01f};
    mc_optimizer *adam = mc_adam_new(ctx, &options);
    mc_optimizer_add(adam, mc_model_module(model));
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optim_manager_add(optim, adam, NULL);
    for (int i = 0; i < STEPS; i++) {
        mc_optim_manager_zero_grad_plan(optim, &(mc_step_plan){.nominal_rows = 100});
        mc_tape *t = mc_tape_begin(ctx);
        part mine = rows_of(mc_rank(ctx), mc_world_size(ctx));
        mc_optim_manager_backward(optim, t, family_loss(t, model, mine));
        mc_tape_end(t);
        mc_optim_manager_clip_grad_norm(optim, 1.0f);
        mc_optim_manager_step(optim);
        out.loss[i] = mc_optim_manager_mean_loss(optim);
        out.norm[i] = mc_optim_manager_grad_norm(optim);
    }
    out.end = parameter_values(mc_model_module(model), &out.count);
    mc_optim_manager_free(optim);
    mc_model_free(model);
    return out;
}

/* The largest differences, as shares; of all parameters together by norm. */
typedef struct difference {
    double loss, norm, end;
} difference;

static void widen(double *worst, double error)
{
    if (!(error <= *worst)) *worst = error;
}

static void compare(difference *d, const training *a, const training *b)
{
    for (int i = 0; i < STEPS; i++) {
        widen(&d->loss, fabs(a->loss[i] / b->loss[i] - 1));
        widen(&d->norm, fabs(a->norm[i] / b->norm[i] - 1));
    }
    double sum = 0, square = 0;
    for (int64_t i = 0; i < b->count; i++) {
        sum += pow((double)a->end[i] - b->end[i], 2);
        square += pow(b->end[i], 2);
    }
    widen(&d->end, a->count == b->count ? sqrt(sum / square) : NAN);
}

static bool run_family(mc_context *ctx, mc_context *alone, const tiny_family *f,
                       const mc_load_options *adapter, const char *what)
{
    training single = train(alone, f, MC_RECOMPUTE_NONE, adapter);
    bool learns = single.loss[STEPS - 1] < single.loss[0];
    difference d = {0};
    for (int level = 0; level <= 3; level++)
        for (mc_recompute how = MC_RECOMPUTE_NONE; how <= MC_RECOMPUTE_FULL; how++) {
            ctx->zero_level = level;
            training together = train(ctx, f, how, adapter);
            compare(&d, &together, &single);
            free(together.end);
        }
    free(single.end);
    bool failed = mc_print_error(alone, stdout) || mc_print_error(ctx, stdout);
    /* CPM-2's scores are not scaled: its norms magnify the parameters' rounding fiftyfold */
    bool good = !failed && learns && d.loss <= 1e-5 && d.norm <= 1e-4 && d.end <= 1e-5;
    if (mc_rank(ctx) == 0 || !good)
        printf("%s rank %d: %s%s: loss %.1e norm %.1e parameters %.1e%s\n", good ? "ok" : "FAILED",
               mc_rank(ctx), f->name, what, d.loss, d.norm, d.end,
               learns ? "" : " (it does not learn)");
    return good;
}

int main(void)
{
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 5, .device = ranks_device(), .comm_timeout = 60});
    mc_context *alone = mc_context_new(&(mc_init_options){.seed = 5, .device = ranks_device()});
    if (mc_print_error(ctx, stderr) || mc_print_error(alone, stderr)) return 2;
    bool good = mc_world_size(ctx) <= BATCH;
    const mc_lora_options lora = {.rank = 2, .alpha = 8, .target_pattern = "all-linear"};
    const mc_soft_prompt_options prompt = {.tokens = 2};
    const mc_load_options none = {.lora = NULL}, factors = {.lora = &lora},
                          virtual_tokens = {.soft_prompt = &prompt};
    for (int i = 0; i <= TINY_FAMILIES; i++) {
        const tiny_family *f = i < TINY_FAMILIES ? &tiny_families[i] : tiny("glm");
        good &= run_family(ctx, alone, f, &none, "") &&
                run_family(ctx, alone, f, &factors, ", LoRA") &&
                (!has_prompts(f) || run_family(ctx, alone, f, &virtual_tokens, ", virtual tokens"));
    }
    mc_context_free(ctx);
    mc_context_free(alone);
    printf(good ? "" : "some cases FAILED\n");
    return !good;
}
