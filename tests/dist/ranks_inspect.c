/* Inspection over ranks: run by mpirun, each rank also works alone on all rows, and the tables have
 * to be the same at every level of sharding: parameters, gradients, activations of unequal rows.
 *
 *     mpirun -np 4 ranks_inspect
 *     mpirun -np 2 ranks_inspect wrong        ranks that ask for different rows
 *
 * Prints a line for each level; exits with 0 if nothing differs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/dist/ranks_test.h"

enum { ROWS = 3, LENGTH = 5, WORDS = 61 };

static mc_model *new_gpt2(mc_context *ctx)
{
    mc_gpt2_config c = small_gpt2_config(32, 3, WORDS, LENGTH);
    mc_model *gpt2 = mc_gpt2_new(ctx, &c, NULL, NULL);
    mc_module_set_trainable(mc_model_module(gpt2), "*.layers.1.*", false);
    return gpt2;
}

/* Forward and backward over rows first, first + step, ...: of four ranks one has none. */
static void run(mc_context *ctx, mc_model *gpt2, mc_optim_manager *optim, int first, int step)
{
    int32_t ids[ROWS * LENGTH], next[ROWS * LENGTH], lengths[ROWS];
    int rows = 0, tokens = 0;
    for (int r = first; r < ROWS; r += step) {
        lengths[rows++] = 2 + r;
        for (int k = 0; k < 2 + r; k++, tokens++) {
            ids[tokens] = (r * 17 + k * 5) % WORDS;
            next[tokens] = (ids[tokens] * 3 + 1) % WORDS;
        }
    }
    mc_tape *t = mc_tape_begin(ctx);
    const mc_lengths *packed = mc_tape_lengths(t, lengths, rows, 1);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(tokens), ids, false),
                         .lengths = packed};
    mc_tensor *hidden = mc_record(t, mc_model_forward(t, gpt2, &in).last_hidden, "out");
    mc_tensor *target = mc_tape_input(t, MC_I32, MC_SHAPE(tokens), next, false);
    mc_optim_manager_backward(optim, t, mc_model_loss(t, gpt2, hidden, target));
    mc_tape_end(t);
}

typedef struct tables {
    mc_inspection *initial, *trained, *activations;
} tables;

static tables inspect(mc_context *ctx, int rank, int ranks)
{
    tables result = {0};
    mc_model *gpt2 = new_gpt2(ctx);
    mc_module *module = mc_model_module(gpt2);
    mc_optimizer *o = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.5f});
    mc_optimizer_add(o, module);
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optim_manager_add(optim, o, NULL);
    result.initial = mc_inspect(module, NULL);
    for (int i = 0; i < 2; i++) {
        mc_optim_manager_zero_grad_plan(optim, &(mc_step_plan){.nominal_rows = ROWS * LENGTH});
        if (i) mc_record_begin(ctx);
        run(ctx, gpt2, optim, rank, ranks);
        if (i) result.activations = mc_record_end(ctx);
        mc_optim_manager_step(optim);
    }
    result.trained = mc_inspect(module, "*");
    mc_optim_manager_free(optim);
    mc_model_free(gpt2);
    return result;
}

static double apart(double a, double b, double unit)
{
    double error = fabs(a - b) / unit;
    return isnan(a) && isnan(b) ? 0 : isnan(error) ? INFINITY : error;
}

/* The largest difference of two tables whose rows should be the same; gradients differ by a
 * factor, which is that of their first row. Of what is small anyway (the gradient of a key's bias,
 * which is 0 but for rounding) differences are taken in units of what is usual. INFINITY where
 * names, shapes or counts differ. */
static double difference(const mc_inspection *a, const mc_inspection *b)
{
    double worst = 0, factor = 0, usual = 0;
    if (!a || !b || mc_inspection_count(a) != mc_inspection_count(b)) return INFINITY;
    for (int i = 0; i < mc_inspection_count(a); i++) {
        const mc_inspect_row *x = mc_inspection_row(a, i), *y = mc_inspection_row(b, i);
        if (strcmp(x->name, y->name) != 0 || !mc_shape_equal(x->shape, y->shape) ||
            x->count != y->count || x->has_gradient != y->has_gradient)
            return INFINITY;
        double unit = fabs(y->mean) + y->std + 1e-3;
        worst = fmax(worst, apart(x->max, y->max, fabs(y->max) + 1e-3));
        worst = fmax(worst, apart(x->min, y->min, fabs(y->min) + 1e-3));
        worst = fmax(worst, apart(x->mean, y->mean, unit));
        worst = fmax(worst, apart(x->std, y->std, unit));
        if (!x->has_gradient) continue;
        if (factor == 0) factor = x->grad_std / (usual = y->grad_std);
        unit = fabs(y->grad_mean) + y->grad_std + 1e-3 * usual;
        worst = fmax(worst, apart(x->grad_mean / factor, y->grad_mean, unit));
        worst = fmax(worst, apart(x->grad_std / factor, y->grad_std, unit));
    }
    return worst;
}

/* Whether every rank has the same bits. */
static bool agree(mc_context *ctx, const mc_inspection *table)
{
    double sum = 0, all[64];
    for (int i = 0; i < mc_inspection_count(table); i++) {
        const mc_inspect_row *row = mc_inspection_row(table, i);
        sum += row->std * (i + 1) + row->mean + row->grad_mean * 3 + row->grad_std;
    }
    if (mc_gather_numbers(ctx, &sum, 1, all)) return false;
    for (int r = 1; r < mc_world_size(ctx); r++)
        if (memcmp(&all[r], &all[0], sizeof sum) != 0) return false;
    return true;
}

static bool run_level(mc_context *ctx, mc_context *alone, int level)
{
    ctx->zero_level = level;
    tables single = inspect(alone, 0, 1);
    tables together = inspect(ctx, mc_rank(ctx), mc_world_size(ctx));
    if (mc_print_error(alone, stdout) || mc_print_error(ctx, stdout)) return false;
    double initial = difference(together.initial, single.initial),
           trained = difference(together.trained, single.trained),
           activations = difference(together.activations, single.activations);
    bool same = agree(ctx, together.initial) && agree(ctx, together.trained) &&
                agree(ctx, together.activations);
    bool good = same && initial < 1e-12 && trained < 1e-5 && activations < 1e-5 &&
                mc_inspection_count(together.activations) == 4;
    if (mc_rank(ctx) == 0 || !good)
        printf("%s rank %d level %d: parameters %.1e, after training %.1e, activations %.1e%s\n",
               good ? "ok" : "FAILED", mc_rank(ctx), level, initial, trained, activations,
               same ? "" : " (ranks differ)");
    if (level == 3 && mc_rank(ctx) == 0) mc_print_inspect(ctx, together.activations, stdout);
    return good;
}

/* Ranks that ask for different rows are told so, each of them. After an error a job is over, so
 * this is a run of its own, of which the output counts. */
static int run_wrong(mc_context *ctx)
{
    mc_model *gpt2 = new_gpt2(ctx);
    mc_inspect(mc_model_module(gpt2), mc_rank(ctx) ? "*.layers.2.*" : "*.layers.0.*");
    bool told = mc_error_status(ctx) == MC_ERR_STATE &&
                strstr(mc_error_message(ctx), "every rank has to ask for the same");
    printf("%s: %s\n", told ? "told" : "FAILED", mc_error_message(ctx));
    mc_context_free(ctx);
    return !told;
}

int main(int argc, char **argv)
{
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 5, .device = ranks_device(), .comm_timeout = 60});
    mc_context *alone = mc_context_new(&(mc_init_options){.seed = 5, .device = ranks_device()});
    if (mc_print_error(ctx, stderr) || mc_print_error(alone, stderr)) return 2;
    if (argc > 1 && strcmp(argv[1], "wrong") == 0) return run_wrong(ctx);
    bool good = true;
    for (int level = 0; good && level <= 3; level++) good = run_level(ctx, alone, level);
    mc_context_free(ctx);
    mc_context_free(alone);
    printf(good ? "" : "some cases FAILED\n");
    return !good;
}
