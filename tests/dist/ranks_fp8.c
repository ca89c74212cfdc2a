/* Training in 8 bits at any number of ranks: run by mpirun, each rank also trains alone on all
 * rows. Scales are of what all ranks have seen, so they are the same, as are losses but for the
 * order of sums; where that moves an element to another byte, a loss moves by some 1e-4.
 *
 *     mpirun -np 4 ranks_fp8        both kinds of scales, and an adapter beside a base that is
 *                                   stored in 8 bits, whose scales are of rows; levels 0 to 3, of
 *                                   which level 3 gathers weights in 8 bits; fixed scales; layers
 *                                   chosen by time
 *     ranks_fp8 gather              only level 3
 *
 * Prints a line for each case; exits with 0 if none differs. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/dist/ranks_internal.h"
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
    double loss[STEPS], vanished[STEPS];      /* share of the elements that became 0 */
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

/* What is trained. */
typedef struct variant {
    const char *name;
    int level;
    mc_recipe recipe;
    mc_recompute recompute;
    mc_dtype dtype;
    bool adapts;  /* LoRA */
    bool by_rows; /* beside a base that is stored in 8 bits; such layers have no scales to read */
    bool offload; /* Adam's state on the host */
    bool gathers; /* ranks gather the bytes of weights, not their values */
} variant;

static int casts; /* of shares of weights */

static mc_status count_casts(mc_zero *z, mc_bucket *b)
{
    casts++;
    return mc_fp8_cast_share(z, b);
}

/* In the forward pass blocks have gathered nothing else than bytes. */
static bool has_gathered_bytes(const mc_model *model)
{
    const mc_zero *z = &mc_model_module((mc_model *)(uintptr_t)model)->root->zero;
    for (int i = 0; i < z->bucket_count; i++)
        if (z->buckets[i].in_block && z->buckets[i].values.data) return false;
    return casts > 0;
}

static bool run_steps(mc_context *ctx, const variant *v, mc_model *model, mc_optim_manager *optim,
                      training *out)
{
    int rank = mc_rank(ctx), ranks = mc_world_size(ctx), first = rank * ROWS / ranks;
    bool good = !mc_failed(ctx), narrow = v->gathers && ranks > 1;
    for (int i = 0; good && i < STEPS; i++) {
        casts = 0;
        mc_optim_manager_zero_grad_plan(optim, &(mc_step_plan){.nominal_rows = 100});
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *loss = loss_of(t, model, i, first, (rank + 1) * ROWS / ranks - first);
        good = narrow ? has_gathered_bytes(model) : !casts;
        mc_optim_manager_backward(optim, t, loss);
        mc_tape_end(t);
        mc_optim_manager_step(optim);
        mc_step_report report = {0};
        good = mc_optim_manager_report(optim, 0, &report) && good;
        out->loss[i] = mc_optim_manager_mean_loss(optim);
        out->vanished[i] = report.fp8_vanished;
        if (i == 0 && !v->by_rows) good = good && read_scales(ctx, model, out->first);
    }
    if (!v->by_rows) good = good && read_scales(ctx, model, out->last);
    return good && !mc_failed(ctx);
}

static bool train(mc_context *ctx, const variant *v, training *out)
{
    const mc_lora_options lora = {.rank = 2, .target_pattern = "all-linear"};
    mc_gpt2_config config = small_gpt2_config(32, LAYERS, WORDS, WIDTH);
    mc_load_options load = {.dtype = v->dtype,
                            .recipe = v->recipe,
                            .recompute = v->recompute,
                            .lora = v->adapts ? &lora : NULL};
    ctx->zero_level = v->level;
    mc_model *model = mc_gpt2_new(ctx, &config, NULL, &load);
    if (v->by_rows) mc_model_quantize_base(model, MC_WEIGHTS_FP8);
    if (model) mc_model_module(model)->root->zero.cast = count_casts;
    mc_adam_options adam = {.lr = 1e-3f, .eps = 1e-4f};
    mc_optimizer *o = v->offload ? mc_adam_offload_new(ctx, &adam) : mc_adam_new(ctx, &adam);
    mc_optimizer_add(o, mc_model_module(model));
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optim_manager_add(optim, o, NULL);
    bool good = run_steps(ctx, v, model, optim, out);
    mc_optim_manager_free(optim);
    mc_optimizer_free(o);
    mc_model_free(model);
    return good && !mc_failed(ctx);
}

static bool near(double a, double b, double tolerance)
{
    return fabs(a - b) <= tolerance * fabs(b);
}

static bool same(const training *a, const training *b, bool by_rows)
{
    bool good = near(a->loss[0], b->loss[0], 1e-6) && a->loss[0] != a->loss[STEPS - 1];
    for (int i = 1; i < STEPS; i++) good &= near(a->loss[i], b->loss[i], 1e-3);
    /* of the first step alone all operands are the same */
    for (int i = 0; i < SCALES && !by_rows; i++) {
        good &= near(a->first[i].history[0], b->first[i].history[0], 1e-5) &&
                a->first[i].scale == b->first[i].scale && a->last[i].history[STEPS - 1] != 0;
        good &= near(a->last[i].history[0], b->last[i].history[0], 0.05);
    }
    return good;
}

static bool report(mc_context *ctx, const variant *v, const char *than, bool fits,
                   const training *ours, const training *expected)
{
    if (!fits || mc_rank(ctx) == 0)
        printf("%s level %d, %s: loss %.9g, %s %.9g\n", fits ? "ok" : "FAILED", v->level, v->name,
               ours->loss[STEPS - 1], than, expected->loss[STEPS - 1]);
    return fits && !mc_failed(ctx);
}

/* The job, and each rank alone on all rows. */
static bool compare_alone(mc_context *ctx, mc_context *alone, const variant *v)
{
    training ours = {0}, expected = {0};
    bool ran = train(ctx, v, &ours) && train(alone, v, &expected);
    return report(ctx, v, "alone", ran && same(&ours, &expected, v->by_rows), &ours, &expected);
}

/* Gathered bytes are those of a cast of gathered values: equal to the bit to level 2. */
static bool compare_levels(mc_context *ctx, const variant *v)
{
    training ours = {0}, expected = {0};
    variant at2 = *v;
    at2.level = 2;
    at2.gathers = false;
    bool ran = train(ctx, v, &ours) && train(ctx, &at2, &expected);
    bool fits = ran && memcmp(ours.loss, expected.loss, sizeof ours.loss) == 0 &&
                memcmp(ours.vanished, expected.vanished, sizeof ours.vanished) == 0 &&
                memcmp(ours.last, expected.last, sizeof ours.last) == 0;
    return report(ctx, v, "level 2", fits, &ours, &expected);
}

static const mc_recipe delayed = {.fp8 = MC_FP8_ALL},
                       current = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_CURRENT};

static bool compare_all_levels(mc_context *ctx)
{
    const variant variants[] = {
        {"delayed scales", 3, delayed, .gathers = true},
        {"recomputed", 3, delayed, MC_RECOMPUTE_FULL, .gathers = true},
        {"current scales", 3, current, MC_RECOMPUTE_SELECTIVE, .gathers = true},
        {"bf16", 3, delayed, .dtype = MC_BF16, .gathers = true},
        {"LoRA", 3, delayed, .adapts = true, .gathers = true},
        {"AdamOffload", 3, delayed, .dtype = MC_BF16, .offload = true, .gathers = true},
    };
    bool good = true;
    for (size_t i = 0; good && i < sizeof variants / sizeof *variants; i++)
        good = compare_levels(ctx, &variants[i]);
    return good;
}

/* With scales far too small much becomes 0: shares show whether each element counts once, however
 * many ranks have it. */
static bool compare_counts(mc_context *ctx, mc_context *alone)
{
    bool good = true;
    for (int level = 0; good && level <= 3; level++) {
        variant v = {.name = "counts", level, {.fp8 = MC_FP8_ALL, .fp8_margin = 10}};
        v.gathers = level == 3;
        training ours = {0}, expected = {0};
        bool ran = train(ctx, &v, &ours) && train(alone, &v, &expected);
        bool fits = ran && expected.vanished[0] > 0.001 &&
                    near(ours.vanished[0], expected.vanished[0], 0.01);
        good = report(ctx, &v, "alone", fits, &ours, &expected);
    }
    return good;
}

static bool compare_all_alone(mc_context *ctx, mc_context *alone)
{
    bool good = true;
    for (int i = 0; good && i < 9; i++) {
        variant v = {.name = i > 4    ? "rows' scales"
                             : i == 4 ? "current scales"
                                      : "delayed scales",
                     .level = i % 4,
                     .recipe = i == 4 ? current : delayed,
                     .recompute = i % 2 ? MC_RECOMPUTE_FULL : MC_RECOMPUTE_SELECTIVE,
                     .adapts = i > 4,
                     .by_rows = i > 4,
                     .gathers = i == 3};
        good = compare_alone(ctx, alone, &v);
    }
    return good && compare_counts(ctx, alone);
}

/* ---- fixed scales ---------------------------------------------------------------------------- */

/* Evaluates the first rows and copies the inputs' scales that this fixes. */
static bool calibrate(mc_context *ctx, int rows, mc_fp8_fixed fixed[4 * LAYERS])
{
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    mc_gpt2_config config = small_gpt2_config(32, LAYERS, WORDS, WIDTH);
    ctx->zero_level = 1;
    mc_model *model = mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.recipe = recipe});
    mc_tape *t = mc_tape_begin_eval(ctx);
    loss_of(t, model, 0, 0, rows);
    mc_tape_end(t);
    mc_module_calibrate_fp8(mc_model_module(model));
    bool good = !mc_failed(ctx);
    if (good) {
        const mc_fp8_state *f = mc_model_module(model)->root->fp8;
        good = f->count == 4 * LAYERS &&
               ctx->device->copy_out(ctx->device, fixed, f->inputs, 4 * LAYERS * sizeof *fixed);
    }
    mc_model_free(model);
    return good;
}

/* Ranks without rows observe nothing, and fix the scales of what rank 0 has observed. */
static bool compare_fixed(mc_context *ctx, mc_context *alone)
{
    mc_fp8_fixed ours[4 * LAYERS], expected[4 * LAYERS];
    bool good = calibrate(ctx, mc_rank(ctx) ? 0 : ROWS, ours) && calibrate(alone, ROWS, expected) &&
                memcmp(ours, expected, sizeof ours) == 0;
    if (!good || mc_rank(ctx) == 0)
        printf("%s fixed scales of rank 0's rows\n", good ? "ok" : "FAILED");
    return good;
}

/* ---- layers chosen by time ------------------------------------------------------------------- */

/* Every rank measures, and chooses by rank 0's figures. */
static bool compare_choice(mc_context *ctx)
{
    const bool multiplies = ctx->device->fp8_tn;
    const mc_recipe recipe = {.fp8 = MC_FP8_AUTO};
    mc_gpt2_config config = small_gpt2_config(32, LAYERS, WORDS, WIDTH);
    mc_model *model = mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.recipe = recipe});
    mc_fp8_kind ours[MC_FP8_KINDS] = {0}, first[MC_FP8_KINDS];
    ctx->device->fp8_tn |= ctx->device->is_host; /* the CPU computes what such a device does */
    bool measures = ctx->device->fp8_tn;
    int count = mc_module_choose_fp8(mc_model_module(model), ROWS * WIDTH, 1, ours);
    ctx->device->fp8_tn = multiplies;
    memcpy(first, ours, sizeof first);
    mc_ranks_share(ctx, first, sizeof first);
    bool good = (count > 0) == measures && !mc_failed(ctx);
    for (int i = 0; i < count; i++)
        good &= ours[i].plain == first[i].plain && ours[i].fp8 == first[i].fp8 &&
                ours[i].casts == first[i].casts && ours[i].chosen == first[i].chosen;
    if (!good || mc_rank(ctx) == 0)
        printf("%s layers chosen by rank 0's times\n", good ? "ok" : "FAILED");
    mc_model_free(model);
    return good;
}

int main(int argc, char **argv)
{
    ranks_compare_bits();
    bool only_gather = argc > 1 && strcmp(argv[1], "gather") == 0;
    mc_context *alone = mc_context_new(&(mc_init_options){.seed = 5, .device = ranks_device()});
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 5, .device = ranks_device(), .comm_timeout = 60});
    bool good = !mc_print_error(ctx, stderr) && !mc_print_error(alone, stderr);
    good = good && (only_gather || compare_all_alone(ctx, alone)) && compare_all_levels(ctx);
    good = good && (only_gather || (compare_fixed(ctx, alone) && compare_choice(ctx)));
    mc_print_error(ctx, stderr);
    mc_print_error(alone, stderr);
    mc_context_free(ctx);
    mc_context_free(alone);
    return !good;
}
