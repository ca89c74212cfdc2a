/* The model, what trains it, and what memory that takes. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "tools/train/memory_room.h"
#include "tools/train/pretrain.h"

static const double MIB = 1024.0 * 1024, GIB = 1024.0 * 1024 * 1024;

/* ---- the model ------------------------------------------------------------------------------- */

static mc_load_options load_options(const pretrain *p)
{
    return (mc_load_options){.dtype = train_dtypes[p->o.train.dtype],
                             .revision = p->o.from.revision,
                             .recompute = train_recomputes[p->o.train.recompute]};
}

bool pretrain_find_model(pretrain *p)
{
    const char *weights = p->resumed ? mc_checkpoint_folder(p->resumed) : p->o.from.model;
    const char *family = p->o.from.family;
    mc_load_options load = load_options(p);
    if (!p->resumed) lora_options_load(&p->o.lora, &load); /* a checkpoint has the adapter */
    mc_model_heads heads = pretrain_heads(p);
    bool adapts = load.lora || load.soft_prompt; /* whose base has to have its heads */
    if (!p->resumed && !adapts) load.heads = &heads;
    p->work.model = weights ? mc_model_from_pretrained_of(p->ctx, family, weights, &load)
                            : mc_model_new(p->ctx, family, p->o.from.config, &heads, &load);
    p->shape = mc_model_get_shape(p->work.model);
    if (!p->shape.positions) p->shape.positions = INT32_MAX; /* no limit */
    mc_model_set_dropout(p->work.model, (float)p->o.dropout);
    return !mc_failed(p->ctx);
}

/* ---- the step -------------------------------------------------------------------------------- */

void pretrain_step(mc_context *ctx, void *user)
{
    pretrain_work *w = user;
    mc_optim_manager_zero_grad(w->optim);
    for (int i = 0; i < w->micro_steps; i++) {
        mc_tape *t = mc_tape_begin(ctx);
        pretrain_inputs in = w->inputs[i];
        if (w->lengths)
            in.field[MC_FIELD_IDS] =
                mc_with_lengths(t, in.field[MC_FIELD_IDS], mc_lm_lengths_get(w->lengths, i));
        mc_tensor *loss = mc_model_pretraining_loss(t, w->model, in.field);
        mc_optim_manager_backward(w->optim, t, loss);
        mc_tape_end(t);
    }
    mc_optim_manager_step(w->optim);
}

static void make_optimizer(pretrain_work *w, const pretrain_options *o)
{
    bool scaled = train_dtypes[o->train.dtype] == MC_F16;
    mc_adam_options adam_options = {.beta1 = o->beta1 > 0 ? (float)o->beta1 : MC_TRUE_ZERO,
                                    .beta2 = o->beta2 > 0 ? (float)o->beta2 : MC_TRUE_ZERO,
                                    .eps = o->eps > 0 ? (float)o->eps : MC_TRUE_ZERO,
                                    .weight_decay = (float)o->train.weight_decay,
                                    .no_decay_bias_norm = !o->decay_all};
    mc_optim_manager_options options = {.loss_scale = scaled ? o->train.loss_scale : 0,
                                        .micro_steps = w->micro_steps,
                                        .max_grad_norm = o->train.clip};
    mc_optimizer *adam = train_adam_new(w->ctx, &o->train, &adam_options);
    mc_optimizer_add(adam, mc_model_module(w->model));
    w->optim = mc_optim_manager_new(w->ctx, &options);
    mc_optim_manager_add(w->optim, adam, train_schedule_new(w->ctx, &o->train, o->steps));
}

static void make_inputs(pretrain_work *w)
{
    w->inputs = calloc((size_t)w->micro_steps, sizeof *w->inputs);
    for (int i = 0; w->inputs && i < w->micro_steps; i++)
        for (int f = 0; f < MC_FIELDS; f++) {
            int width = mc_objective_width(w->objective, f);
            mc_shape shape = MC_SHAPE(w->batch_size, width);
            if (w->separate) shape = MC_SHAPE(w->batch_size * width);
            if (width) w->inputs[i].field[f] = mc_tensor_new(w->ctx, MC_I32, shape);
        }
    if (w->separate)
        w->lengths = mc_lm_lengths_new(w->ctx, w->micro_steps, (int)w->batch_size,
                                       mc_objective_width(w->objective, MC_FIELD_IDS));
}

/* All that a step needs, on the work's context. */
static bool make_work(pretrain *p, pretrain_work *w, int64_t batch_size)
{
    const pretrain_options *o = &p->o;
    mc_load_options load = load_options(p);
    w->batch_size = batch_size;
    w->objective = &p->objective;
    w->separate = o->separate_documents;
    w->micro_steps =
        (int)(o->tokens_per_step / (batch_size * mc_data_size(w->ctx) * o->seq_length));
    if (!w->model) w->model = mc_model_new_like(w->ctx, p->work.model, &load);
    make_optimizer(w, o);
    make_inputs(w);
    if (w->inputs) return !mc_failed(w->ctx);
    return pretrain_refuse(p, "out of memory for the inputs of a step");
}

void pretrain_work_release(pretrain_work *w)
{
    free(w->inputs);
    w->inputs = NULL;
}

bool pretrain_make(pretrain *p)
{
    p->work.ctx = p->ctx;
    return make_work(p, &p->work, p->o.batch_size) &&
           mc_optim_manager_prepare(p->work.optim) == MC_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* What a step takes with this batch. False after an error, which is printed. */
static bool plan_batch(pretrain *p, int64_t batch_size, mc_memory_plan *plan)
{
    pretrain_work w = {.ctx = mc_plan_context_new(p->ctx)};
    if (!w.ctx) return false; /* the error is the run's */
    int64_t tokens = p->o.tokens_per_step;
    if (!tokens) p->o.tokens_per_step = batch_size * p->o.seq_length;
    bool good = make_work(p, &w, batch_size);
    /* as the run does it: the gaps between blocks depend on the order */
    if (good) good = mc_optim_manager_prepare(w.optim) == MC_OK;
    /* a third micro-step takes no more than the second */
    if (w.micro_steps > 2) w.micro_steps = 2;
    if (good) good = mc_plan_run(w.ctx, mc_model_module(w.model), pretrain_step, &w, plan) == MC_OK;
    p->o.tokens_per_step = tokens;
    pretrain_work_release(&w);
    mc_print_error(w.ctx, stderr);
    mc_context_free(w.ctx);
    return good;
}

/* The number of batch sizes to choose from, and the i-th: any that the data has sequences for, or,
 * where the tokens of a step are given, those that divide them. */
static int64_t candidate(const pretrain *p, int64_t i)
{
    int ranks = mc_data_size(p->ctx);
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
    return *good && (p->o.memory > 0 ? plan.peak <= budget : memory_fits(p->ctx, &plan));
}

/* Ranks may find different amounts of memory free: the smallest batch of any fits all. */
static bool agree_on_batch(pretrain *p)
{
    double least = ranks_least(p->ctx, (double)p->o.batch_size);
    if (!mc_failed(p->ctx)) p->o.batch_size = (int64_t)least;
    return !mc_failed(p->ctx);
}

/* The largest batch whose plan is within the budget. */
static bool choose_batch(pretrain *p, uint64_t budget)
{
    bool good = true;
    int64_t low = 1, high = 2; /* low fits, high doesn't */
    if (!fits(p, low, budget, &good))
        return good &&
               pretrain_refuse(p, "--batch-size auto: not even a batch of 1 fits into %.2f GiB",
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
    p->o.batch_size = candidate(p, low);
    return good && agree_on_batch(p);
}

/* What a plan may take: what was given, or what is free less the margin. */
static bool find_budget(pretrain *p, uint64_t *budget)
{
    uint64_t all = memory_room(p->ctx);
    *budget = p->o.memory > 0 ? (uint64_t)(p->o.memory * GIB) : memory_with_margin(all);
    if (p->o.memory > 0 || all) return true;
    return pretrain_refuse(p, "--batch-size auto: how much memory is free is not known here; say "
                              "how much to take with --memory");
}

static void show_part(pretrain *p, const char *name, uint64_t bytes)
{
    bool small = p->plan.peak < (uint64_t)GIB;
    run_log_line(&p->log, "  %-15s %10.3f %s", name, (double)bytes / (small ? MIB : GIB),
                 small ? "MiB" : "GiB");
}

static void show_plan(pretrain *p)
{
    const mc_memory_plan *plan = &p->plan;
    mc_memory_use use = mc_memory(p->ctx);
    run_log_line(&p->log, "memory of a step%s, planned (batch %" PRId64 ", recompute %s):",
                 mc_world_size(p->ctx) > 1 ? " on a rank" : "", p->o.batch_size,
                 train_recompute_names[p->o.train.recompute]);
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
    if (use.available) show_part(p, "(free here)", memory_room(p->ctx));
    if (plan->host) show_part(p, "on the host", plan->host);
}

bool pretrain_plan(pretrain *p)
{
    pretrain_options *o = &p->o;
    uint64_t budget;
    if (mc_device_prepare(p->ctx)) return false; /* the error is the run's */
    if (!o->batch_size && (!find_budget(p, &budget) || !choose_batch(p, budget))) return false;
    if (!o->tokens_per_step)
        o->tokens_per_step = o->batch_size * mc_data_size(p->ctx) * o->seq_length;
    if (!plan_batch(p, o->batch_size, &p->plan)) return false;
    show_plan(p);
    memory_warn(p->ctx, &p->log, o->batch_size, &p->plan, "--batch-size auto takes what fits");
    return true;
}
