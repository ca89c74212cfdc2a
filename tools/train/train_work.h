/* A training step: of a run, or one that is only planned, on a context that computes nothing
 * (mc_plan_context_new).
 *
 *     train_work w = {.ctx = ctx, .model = model, .passes = 4, .loss = loss_of, .user = batches};
 *     train_work_optimize(&w, &o->train, &adam, steps);
 *     mc_step_run(ctx, key, train_work_step, &w);
 */
#ifndef MC_TOOLS_TRAIN_WORK_H
#define MC_TOOLS_TRAIN_WORK_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/train_options.h"

typedef struct train_work {
    mc_context *ctx;
    mc_model *model;
    mc_optimizer *optimizer;
    mc_optim_manager *optim;
    int passes; /* of a step */
    mc_tensor *(*loss)(mc_tape *t, struct train_work *w, int pass);
    void *user;
} train_work;

/* Makes the optimizer of the options, where `adam` has Adam's own, and the schedule over the run's
 * steps (0: not known yet). */
void train_work_optimize(train_work *w, const train_options *o, const mc_adam_options *adam,
                         int64_t steps);
/* One step, for mc_step_run and mc_plan_run; `work` is a train_work. */
void train_work_step(mc_context *ctx, void *work);

/* What a planned step reads: sequences that all have the full length. */
typedef struct dry_batch {
    mc_tensor *ids, *pixels, *targets, *labels, *values; /* NULL: the model has none */
} dry_batch;
/* Makes the tensors for the work's model, whose decoder, if it has two stacks, reads sequences of
 * `target_length`; `values`: a head's outputs are numbers, not classes. Each pass of the work then
 * reads the batch. */
void train_work_read_dry(train_work *w, dry_batch *batch, int64_t sequences, int64_t length,
                         int64_t target_length, bool values);

#endif
