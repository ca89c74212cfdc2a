/* What says how many rows and passes a step has: a plan, labels of a loader, labels of a program's
 * own, micro_steps. Run by mpirun.
 *
 *     ranks_step unlike        ranks have labels of unequal numbers of rows: all get the error
 *     ranks_step nan           a weight is NaN, which one rank stores: the errors of all name it
 *
 * Prints a line for each case that differs; exits with 0 if there is none. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/optim/optimizer_internal.h"
#include "tests/dist/ranks_test.h"

enum { DIM = 8, CLASSES = 3, MICRO = 2, MOST = 8 };

typedef struct work {
    mc_context *ctx;
    mc_linear *head;
    mc_optim_manager *optim;
} work;

static work work_new(mc_context *ctx)
{
    work w = {.ctx = ctx, .head = mc_linear_new(ctx, DIM, CLASSES, NULL)};
    w.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.micro_steps = MICRO});
    mc_optimizer *sgd = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.1f});
    mc_optimizer_add(sgd, mc_linear_module(w.head));
    mc_optim_manager_add(w.optim, sgd, NULL);
    return w;
}

/* A pass over `rows` rows, whose labels carry `nominal` rows as a loader's do. */
static void pass(work *w, int rows, int64_t nominal)
{
    const float x[MOST * DIM] = {1, -1, 2, 0.5f};
    const int32_t label[MOST] = {0, 1, 2, 1};
    mc_tape *t = mc_tape_begin(w->ctx);
    mc_tensor *in = mc_tape_input(t, MC_F32, MC_SHAPE(rows, DIM), x, false);
    mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(1, rows), label, false);
    if (labels) labels->nominal_rows = nominal;
    labels = mc_reshape(t, labels, MC_SHAPE(rows)); /* what labels carry, views of them carry */
    mc_tensor *loss = mc_cross_entropy(t, mc_linear_forward(t, w->head, in), labels, NULL);
    mc_optim_manager_backward(w->optim, t, loss);
    mc_tape_end(t);
}

static bool is(mc_context *ctx, const char *what, double found, double expected)
{
    if (found == expected && !mc_failed(ctx)) return true;
    printf("FAILED rank %d: %s is %g, expected %g (%s)\n", mc_rank(ctx), what, found, expected,
           mc_error_message(ctx));
    return false;
}

/* Ranks have unequal rows, and divide by what was planned. */
static bool plan(work *w)
{
    const mc_step_plan plan = {.nominal_rows = 100, .passes = 3};
    bool good = true;
    mc_optim_manager_zero_grad_plan(w->optim, &plan);
    for (int i = 0; i < plan.passes; i++) {
        good = good && is(w->ctx, "the last pass", mc_step_in_last_pass(w->ctx), 0);
        pass(w, 1 + mc_rank(w->ctx), 0);
    }
    good = good && is(w->ctx, "the last pass", mc_step_in_last_pass(w->ctx), 1);
    mc_optim_manager_step(w->optim);
    return good && is(w->ctx, "planned rows", w->optim->open.nominal, 100) &&
           is(w->ctx, "planned steps", (double)mc_optim_manager_steps(w->optim), 1);
}

/* Labels of a loader: the rows of the rank that has the most. Passes are micro_steps. On one rank
 * its own rows count. */
static bool loader(work *w)
{
    int ranks = mc_world_size(w->ctx), rows = mc_rank(w->ctx) ? 3 : 4;
    double nominal = ranks > 1 ? 7 * MICRO * ranks : 4 * MICRO;
    mc_optim_manager_zero_grad(w->optim);
    for (int i = 0; i < MICRO; i++) pass(w, rows, 7);
    mc_optim_manager_step(w->optim);
    bool good = is(w->ctx, "rows that labels carry", w->optim->open.nominal, nominal) &&
                is(w->ctx, "passes", w->optim->open.passes, MICRO);
    /* they stay for all steps of several ranks */
    mc_optim_manager_zero_grad(w->optim);
    pass(w, rows, 6);
    mc_optim_manager_step(w->optim);
    return good && is(w->ctx, "rows of the second step", w->optim->open.nominal, nominal);
}

/* A program's own labels, as many on each rank. */
static bool own(work *w)
{
    mc_optim_manager_zero_grad(w->optim);
    pass(w, 4, 0);
    mc_optim_manager_step(w->optim);
    return is(w->ctx, "own rows", w->optim->open.nominal, 4 * MICRO * mc_world_size(w->ctx));
}

/* Where they are not, all ranks get an error that names both numbers, and no step is taken. */
static bool unlike(work *w)
{
    int rank = mc_rank(w->ctx), last = mc_world_size(w->ctx) - 1;
    mc_optim_manager_zero_grad(w->optim);
    pass(w, rank == last ? 2 : 4, 0);
    mc_status status = mc_optim_manager_step(w->optim);
    if (!status) status = mc_optim_manager_settle(w->optim);
    char expected[128];
    snprintf(expected, sizeof expected, "losses over %d rows on rank 0 and %d on rank %d",
             4 * MICRO * (last + 1), 2 * MICRO * (last + 1), last);
    bool good = status == MC_ERR_STATE && strstr(mc_error_message(w->ctx), expected);
    good = good && mc_optim_manager_steps(w->optim) == 0;
    printf("%s rank %d: %s\n", good ? "named on" : "FAILED", rank, mc_error_message(w->ctx));
    return good;
}

/* Ranks share the weight, so one alone stores the NaN. */
static bool nan_weight(work *w)
{
    float weight[CLASSES * DIM] = {[CLASSES * DIM - 1] = NAN};
    mc_parameter_write(mc_module_find_parameter(mc_linear_module(w->head), "weight"), weight);
    mc_optim_manager_zero_grad(w->optim);
    for (int i = 0; i < MICRO; i++) pass(w, 4, 0);
    mc_status status = mc_optim_manager_step(w->optim);
    if (!status) status = mc_optim_manager_settle(w->optim);
    bool good = status == MC_ERR_STATE &&
                strstr(mc_error_message(w->ctx), "parameter \"weight\" "
                                                 "has a value that is infinite or NaN");
    printf("%s rank %d: %s\n", good ? "named on" : "FAILED", mc_rank(w->ctx),
           mc_error_message(w->ctx));
    return good;
}

int main(int argc, char **argv)
{
    bool (*const cases[])(work *) = {plan, loader, own};
    bool fails = argc > 1, nan = fails && strcmp(argv[1], "nan") == 0, good = true;
    mc_context *ctx =
        mc_init_distributed(&(mc_init_options){.seed = 5,
                                               .device = ranks_device(),
                                               .zero_level = nan ? MC_ZERO_3 : MC_ZERO_DEFAULT,
                                               .comm_timeout = 60});
    for (size_t i = 0; !fails && i < sizeof cases / sizeof *cases; i++) {
        work w = work_new(ctx);
        good = cases[i](&w) && good;
        mc_optim_manager_free(w.optim);
        if (w.head) mc_module_free(mc_linear_module(w.head));
    }
    good = !mc_print_error(ctx, stdout) && good;
    work failing = work_new(ctx);
    if (fails) good = nan ? nan_weight(&failing) : unlike(&failing);
    mc_context_free(ctx);
    return !good;
}
