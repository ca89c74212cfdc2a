/* The model, what trains it, and what memory that takes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/train/memory_room.h"
#include "tools/train/pretrain.h"

static const double MIB = 1024.0 * 1024, GIB = 1024.0 * 1024 * 1024;

/* ---- the model ------------------------------------------------------------------------------- */

bool pretrain_find_model(pretrain *p, mc_model **model)
{
    const train_run *run = &p->run;
    const char *weights = train_run_source(run), *family = run->o.from.family;
    mc_load_options load = train_run_load_options(run);
    mc_model_heads heads = pretrain_heads(p);
    if (!run->resumed) load.heads = &heads;
    *model = weights ? mc_model_from_pretrained_of(run->ctx, family, weights, &load)
                     : mc_model_new(run->ctx, family, run->o.from.config, &heads, &load);
    p->shape = mc_model_get_shape(*model);
    if (!p->shape.positions) p->shape.positions = INT32_MAX; /* no limit */
    mc_model_set_dropout(*model, (float)run->o.dropout);
    return !mc_failed(run->ctx);
}

/* ---- the step -------------------------------------------------------------------------------- */

static mc_tensor *loss_of(mc_tape *t, train_work *w, int pass)
{
    const pretrain_inputs *in = w->user;
    mc_tensor *field[MC_FIELDS];
    memcpy(field, in->field[pass], sizeof field);
    if (in->lengths)
        field[MC_FIELD_IDS] =
            mc_with_lengths(t, field[MC_FIELD_IDS], mc_lm_lengths_get(in->lengths, pass));
    return mc_model_pretraining_loss(t, w->model, field);
}

/* Those of a step with such a batch. */
static int passes_of(const pretrain *p, int64_t batch_size)
{
    int64_t tokens = batch_size * mc_data_size(p->run.ctx) * p->o.seq_length;
    return p->o.tokens_per_step ? (int)(p->o.tokens_per_step / tokens) : 1;
}

/* Makes what the steps of a work read, and all memory that a step has besides. */
static bool make_inputs(pretrain *p, train_work *w, pretrain_inputs *in, int64_t batch_size)
{
    const mc_objective_options *objective = &p->objective;
    bool packed = p->o.separate_documents;
    w->loss = loss_of;
    w->user = in;
    in->field = calloc((size_t)w->passes, sizeof *in->field);
    if (!in->field) return train_run_refuse(&p->run, "out of memory for the inputs of a step");
    for (int i = 0; i < w->passes; i++)
        for (int f = 0; f < MC_FIELDS; f++) {
            int width = mc_objective_width(objective, f);
            mc_shape shape = packed ? MC_SHAPE(batch_size * width) : MC_SHAPE(batch_size, width);
            if (width) in->field[i][f] = mc_tensor_new(w->ctx, MC_I32, shape);
        }
    if (packed)
        in->lengths = mc_lm_lengths_new(w->ctx, w->passes, (int)batch_size,
                                        mc_objective_width(objective, MC_FIELD_IDS));
    return !mc_failed(w->ctx) && mc_optim_manager_prepare(w->optim) == MC_OK;
}

bool pretrain_make(pretrain *p)
{
    return make_inputs(p, &p->run.work, &p->inputs, p->run.o.batch_size);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* What a step takes with this batch. False after an error, which is printed. */
static bool plan_batch(pretrain *p, int64_t batch_size, mc_memory_plan *plan)
{
    pretrain_inputs in = {NULL};
    /* all as the run does it: the gaps between blocks depend on the order */
    train_work w = train_run_plan(&p->run, passes_of(p, batch_size));
    if (!w.ctx) return false; /* the error is the run's */
    bool good = make_inputs(p, &w, &in, batch_size);
    /* a third pass takes no more than the second */
    if (w.passes > 2) w.passes = 2;
    if (good)
        good = mc_plan_run(w.ctx, mc_model_module(w.model), train_work_step, &w, plan) == MC_OK;
    free(in.field);
    mc_print_error(w.ctx, stderr);
    mc_context_free(w.ctx);
    return good;
}

/* The number of batch sizes to choose from, and the i-th: any that the data has sequences for, or,
 * where the tokens of a step are given, those that divide them. */
static int64_t candidate(const pretrain *p, int64_t i)
{
    int ranks = mc_data_size(p->run.ctx);
    int64_t sequences = p->o.tokens_per_step / p->o.seq_length / ranks, n = 0;
    int64_t most = p->windows / ranks;
    if (!sequences) return i <= most ? i : 0;
    for (int64_t batch = 1; batch <= sequences && batch <= most; batch++)
        if (sequences % batch == 0 && ++n == i) return batch;
    return 0;
}

static bool fits(pretrain *p, int64_t i, uint64_t budget, bool *good)
{
    mc_memory_plan plan;
    int64_t batch = candidate(p, i);
    /* more rows than that have no numbers in 32 bits */
    if (!batch || batch > INT32_MAX / p->o.seq_length) return false;
    *good = *good && plan_batch(p, batch, &plan);
    /* what is given with --memory is for tensors alone */
    return *good && (p->o.memory > 0 ? plan.peak <= budget : memory_fits(p->run.ctx, &plan));
}

/* Ranks may find different amounts of memory free: the smallest batch of any fits all. */
static bool agree_on_batch(pretrain *p)
{
    double least = ranks_least(p->run.ctx, (double)p->run.o.batch_size);
    if (!mc_failed(p->run.ctx)) p->run.o.batch_size = (int64_t)least;
    return !mc_failed(p->run.ctx);
}

/* The largest batch whose plan is within the budget. */
static bool choose_batch(pretrain *p, uint64_t budget)
{
    bool good = true;
    int64_t low = 1, high = 2; /* low fits, high doesn't */
    if (!fits(p, low, budget, &good))
        return good && train_run_refuse(
                           &p->run, "--batch-size auto: not even a batch of 1 fits into %.2f GiB",
                           (double)budget / GIB);
    while (good && fits(p, high, budget, &good)) {
        low = high;
        high *= 2;
    }
    while (good && high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (fits(p, middle, budget, &good))
            low = middle;
        else
            high = middle;
    }
    p->run.o.batch_size = candidate(p, low);
    return good && agree_on_batch(p);
}

/* What a plan may take: what was given, or what is free less the margin. */
static bool find_budget(pretrain *p, uint64_t *budget)
{
    uint64_t all = memory_room(p->run.ctx);
    *budget = p->o.memory > 0 ? (uint64_t)(p->o.memory * GIB) : memory_with_margin(all);
    if (p->o.memory > 0 || all) return true;
    return train_run_refuse(&p->run,
                            "--batch-size auto: how much memory is free is not known here; say "
                            "how much to take with --memory");
}

static void show_part(pretrain *p, const char *name, uint64_t bytes)
{
    bool small = p->plan.peak < (uint64_t)GIB;
    run_log_line(&p->run.log, "  %-15s %10.3f %s", name, (double)bytes / (small ? MIB : GIB),
                 small ? "MiB" : "GiB");
}

static void show_plan(pretrain *p)
{
    const mc_memory_plan *plan = &p->plan;
    mc_memory_use use = mc_memory(p->run.ctx);
    run_log_line(&p->run.log, "memory of a step%s, planned (batch %" PRId64 ", recompute %s):",
                 mc_world_size(p->run.ctx) > 1 ? " on a rank" : "", p->run.o.batch_size,
                 train_recompute_names[p->run.o.train.recompute]);
    show_part(p, "parameters", plan->parameters);
    show_part(p, "gradients", plan->gradients);
    show_part(p, "optimizer state", plan->optimizer);
    show_part(p, "inputs", plan->inputs);
    show_part(p, "activations", plan->activations);
    show_part(p, "logits", plan->logits);
    show_part(p, "workspace", plan->workspace);
    show_part(p, "peak", plan->peak);
    if (plan->touched > plan->peak) show_part(p, "with gaps", plan->touched);
    if (use.process) show_part(p, "the process", plan->touched + use.process + use.buffers);
    if (use.available) show_part(p, "(free here)", memory_room(p->run.ctx));
    if (plan->host) show_part(p, "on the host", plan->host);
}

bool pretrain_plan(pretrain *p)
{
    train_run *run = &p->run;
    int64_t *batch = &run->o.batch_size;
    uint64_t budget;
    const bool chosen = *batch > 0;                /* not by what is free */
    if (mc_device_prepare(run->ctx)) return false; /* the error is the run's */
    if (!chosen && (!find_budget(p, &budget) || !choose_batch(p, budget))) return false;
    if (!p->o.tokens_per_step)
        p->o.tokens_per_step = *batch * mc_data_size(run->ctx) * p->o.seq_length;
    run->work.passes = passes_of(p, *batch);
    if (!train_run_choose_fp8(run, *batch * p->o.seq_length) || !plan_batch(p, *batch, &p->plan))
        return false;
    show_plan(p);
    if (chosen)
        memory_warn(run->ctx, &run->log, *batch, &p->plan, "--batch-size auto takes what fits");
    return true;
}
