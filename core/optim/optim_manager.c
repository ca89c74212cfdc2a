/* OptimManager: see optim_manager.h for what a step is.
 *
 * Where it is decided. Kernels decide from the gradients whether a step is taken and with what
 * factor (core/device/step_internal.h); the optimizers' kernels read the decision. The host
 * launches all of them without waiting. It learns a step's outcome in `settle`: at once on the CPU
 * device, up to MC_STEPS_LATE steps later on others. Only then are steps counted here.
 *
 * How the mean is computed. Backward multiplies each loss's sum by `seed` = loss_scale / nominal.
 * nominal is one number for a step, on all ranks (mc_step_plan), so the gradients are seed times
 * the gradient of the sum over all rows. Divided by seed x count this is the gradient of the mean.
 * The optimizers receive this factor times the clip coefficient; the gradients themselves stay
 * unchanged. */
#include "core/optim/optim_manager.h"

#include <math.h>
#include <stdio.h>
#include <time.h>
#include "core/autograd/step_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/dist/world_internal.h"
#include "core/nn/fp8_internal.h"
#include "core/optim/adam_offload_internal.h"
#include "core/optim/lr_scheduler_internal.h"

/* ---- making and freeing ---------------------------------------------------------------------- */

static void close_step(mc_optim_manager *m)
{
    if (m->ctx->step == &m->open) m->ctx->step = NULL;
}

static void manager_release(void *object)
{
    mc_optim_manager *m = object;
    for (size_t i = 0; i < m->managed_count; i++) {
        if (m->managed[i].optimizer) m->managed[i].optimizer->manager = NULL;
        if (m->managed[i].scheduler) m->managed[i].scheduler->manager = NULL;
    }
    mc_device *device = m->ctx->device;
    close_step(m);
    for (int i = 0; i < MC_FLIGHTS; i++)
        device->host_free(device, m->flights[i].arrived, sizeof *m->flights[i].arrived);
    device->free(device, m->state, sizeof *m->state);
    mc_free(m->managed);
    mc_free(m);
}

void mc_optim_manager_free(mc_optim_manager *m)
{
    if (!m) return;
    mc_optim_manager_settle(m); /* its optimizers and schedules stay in use */
    mc_disown(&m->owned);
    manager_release(m);
}

void mc_optim_manager_forget_optimizer(mc_optim_manager *m, const mc_optimizer *optimizer)
{
    for (size_t i = 0; i < m->managed_count; i++)
        if (m->managed[i].optimizer == optimizer) m->managed[i].optimizer = NULL;
}

void mc_optim_manager_forget_scheduler(mc_optim_manager *m, const mc_lr_scheduler *scheduler)
{
    for (size_t i = 0; i < m->managed_count; i++)
        if (m->managed[i].scheduler == scheduler) m->managed[i].scheduler = NULL;
}

/* mc_option for doubles. */
static double option(double value, double fallback)
{
    return value != 0 || signbit(value) ? value + 0.0 : fallback;
}

static mc_optim_manager_options fill_in(const mc_optim_manager_options *given)
{
    mc_optim_manager_options o = given ? *given : (mc_optim_manager_options){0};
    o.loss_scale_factor = option(o.loss_scale_factor, 2);
    if (o.loss_scale_factor < 1) o.loss_scale_factor = 1 / o.loss_scale_factor;
    if (!o.loss_scale_steps) o.loss_scale_steps = 1024;
    o.min_loss_scale = option(o.min_loss_scale, 1);
    o.max_loss_scale = option(o.max_loss_scale, INFINITY);
    if (!o.micro_steps) o.micro_steps = 1;
    if (!o.nonfinite) o.nonfinite = MC_NONFINITE_ERROR;
    return o;
}

static mc_status check_options(mc_context *ctx, const mc_optim_manager_options *o)
{
    if (!(o->loss_scale >= 0) || isinf(o->loss_scale))
        return mc_fail(ctx, MC_ERR_ARGUMENT, "OptimManager: loss_scale is %g, expected 0 or more",
                       o->loss_scale);
    if (!(o->loss_scale_factor > 1) || isinf(o->loss_scale_factor))
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "OptimManager: loss_scale_factor must be positive, finite and not 1");
    if (o->loss_scale_steps < 0 || o->micro_steps < 0)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "OptimManager: loss_scale_steps is %lld, micro_steps %d, expected 0 or more",
                       (long long)o->loss_scale_steps, o->micro_steps);
    if (!(o->min_loss_scale >= 0) || !(o->max_loss_scale >= 0))
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "OptimManager: min_loss_scale is %g, max_loss_scale %g, expected 0 or more",
                       o->min_loss_scale, o->max_loss_scale);
    if (!(o->max_grad_norm >= 0))
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "OptimManager: max_grad_norm is %g, expected 0 or more", o->max_grad_norm);
    if (o->nonfinite != MC_NONFINITE_ERROR && o->nonfinite != MC_NONFINITE_SKIP)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "OptimManager: nonfinite is %d, expected a mc_nonfinite", (int)o->nonfinite);
    return MC_OK;
}

/* Device memory for the state, and host memory for its copies. */
static bool make_state(mc_optim_manager *m)
{
    mc_device *device = m->ctx->device;
    mc_step_state state = {.loss_scale = m->loss_scale, .ended = 1, .norm = NAN, .mean_loss = NAN};
    m->state = device->alloc(device, sizeof *m->state);
    bool good = m->state;
    for (int i = 0; good && i < MC_FLIGHTS; i++) {
        m->flights[i].arrived = device->host_alloc(device, sizeof state);
        good = m->flights[i].arrived;
    }
    if (good) device->copy_in(device, m->state, &state, sizeof state);
    m->open = (mc_open_step){.state = m->state, .passes = m->options.micro_steps};
    return good;
}

mc_optim_manager *mc_optim_manager_new(mc_context *ctx, const mc_optim_manager_options *options)
{
    if (mc_failed(ctx)) return NULL;
    mc_optim_manager_options filled = fill_in(options);
    if (check_options(ctx, &filled)) return NULL;
    mc_optim_manager *m = mc_new_owned(ctx, sizeof *m, "an OptimManager", manager_release);
    if (!m) return NULL;
    m->ctx = ctx;
    m->options = filled;
    m->scaling = filled.loss_scale > 0;
    m->loss_scale = m->scaling ? filled.loss_scale : 1;
    m->norm = NAN;
    if (make_state(m)) return m;
    mc_fail_nomem(ctx, "an OptimManager");
    mc_optim_manager_free(m);
    return NULL;
}

/* MC_OK if a call can proceed, else the status to return. */
static mc_status ready(const mc_optim_manager *m)
{
    return m ? mc_error_status(m->ctx) : MC_ERR_ARGUMENT;
}

mc_status mc_optim_manager_add(mc_optim_manager *m, mc_optimizer *optimizer,
                               mc_lr_scheduler *scheduler)
{
    mc_status status = ready(m);
    if (status) return status;
    if (!optimizer) return mc_fail(m->ctx, MC_ERR_ARGUMENT, "OptimManager: the optimizer is NULL");
    if (optimizer->ctx != m->ctx || (scheduler && scheduler->ctx != m->ctx))
        return mc_fail(m->ctx, MC_ERR_ARGUMENT,
                       "OptimManager: optimizer %s or its schedule is of another context",
                       optimizer->kind->name);
    if (optimizer->manager)
        return mc_fail(m->ctx, MC_ERR_STATE, "OptimManager: optimizer %s was added before",
                       optimizer->kind->name);
    if (scheduler && scheduler->manager)
        return mc_fail(m->ctx, MC_ERR_STATE,
                       "OptimManager: schedule %s was added before; each optimizer needs its own",
                       scheduler->name);
    if (mc_optim_manager_settle(m)) return mc_error_status(m->ctx);
    if (!mc_grow(&m->managed, &m->managed_capacity, m->managed_count, sizeof *m->managed))
        return mc_fail_nomem(m->ctx, "an OptimManager's list of optimizers");
    m->managed[m->managed_count++] = (mc_managed){optimizer, scheduler};
    optimizer->manager = m;
    if (scheduler) scheduler->manager = m;
    return MC_OK;
}

static mc_status each_optimizer(mc_optim_manager *m, mc_status (*fn)(mc_optimizer *))
{
    mc_status status = MC_OK;
    for (size_t i = 0; !status && i < m->managed_count; i++)
        if (m->managed[i].optimizer) status = fn(m->managed[i].optimizer);
    return status;
}

/* Calls fn for each run of all optimizers. */
static mc_status each_run(mc_optim_manager *m, mc_run_fn fn, void *user)
{
    for (size_t i = 0; i < m->managed_count; i++) {
        if (!m->managed[i].optimizer) continue;
        mc_status status = mc_optimizer_each_run(m->managed[i].optimizer, fn, user);
        if (status) return status;
    }
    return MC_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Turns a kernel's status into an error of the context. */
static mc_status check_kernel(mc_optim_manager *m, mc_status status, const char *what)
{
    const char *why = m->ctx->device->failure;
    if (!status || mc_failed(m->ctx)) return status;
    if (status == MC_ERR_NOMEM) return mc_fail_nomem(m->ctx, what);
    return mc_fail(m->ctx, status, "%s failed%s%s", what, *why ? ": " : "", why);
}

/* Zeros `bytes` bytes of the state. */
static mc_status zero_state(mc_optim_manager *m, void *from, size_t bytes)
{
    mc_device *device = m->ctx->device;
    return check_kernel(m, device->kernels->zero(device, from, bytes), "an OptimManager");
}

/* If the program has cleared the context's error and continues, clears the device's failure too. */
static mc_status forgive(mc_optim_manager *m)
{
    if (!m->failed) return MC_OK;
    m->failed = false;
    return zero_state(m, &m->state->failure, sizeof m->state->failure);
}

/* ---- the models ------------------------------------------------------------------------------ */

/* Calls fn once for each model with parameters of the optimizers. */
static mc_status each_root(mc_optim_manager *m,
                           mc_status (*fn)(mc_optim_manager *, mc_module_root *))
{
    mc_status status = MC_OK;
    for (size_t i = 0; i < m->managed_count; i++) {
        mc_optimizer *o = m->managed[i].optimizer;
        for (size_t r = 0; o && r < mc_optimizer_roots(o) && !status; r++) {
            bool seen = false;
            for (size_t j = 0; j < i && !seen; j++)
                seen = m->managed[j].optimizer &&
                       mc_optimizer_has_root(m->managed[j].optimizer, o->roots[r]);
            if (!seen) status = fn(m, o->roots[r]);
        }
    }
    return status;
}

/* Zeros the totals before the models' casts are added. */
static mc_status clear_fp8(mc_optim_manager *m, mc_module_root *root)
{
    return root->fp8 ? zero_state(m, &m->state->fp8, sizeof m->state->fp8) : MC_OK;
}

static mc_status advance_scales(mc_optim_manager *m, mc_module_root *root)
{
    return mc_fp8_advance_scales(root, &m->state->fp8);
}

static mc_status note_update(mc_optim_manager *m, mc_module_root *root)
{
    (void)m;
    root->values_epoch++;
    return MC_OK;
}

static mc_status note_restored(mc_optim_manager *m, mc_module_root *root)
{
    (void)m;
    return mc_fp8_restored(root);
}

/* ---- zeros ----------------------------------------------------------------------------------- */

/* Zeros the gradients and the measurements of them. */
static mc_status zero_gradients(mc_optim_manager *m)
{
    mc_status status = each_optimizer(m, mc_optimizer_zero_grad);
    if (status) return status;
    m->open.nominal = m->open.begun = 0;
    m->clip = MC_CLIP_NONE;
    status = zero_state(m, &m->state->own.loss_sum, 2 * sizeof m->state->own.loss_sum);
    return status ? status : forgive(m);
}

mc_status mc_optim_manager_zero_grad(mc_optim_manager *m)
{
    return mc_optim_manager_zero_grad_plan(m, NULL);
}

mc_status mc_optim_manager_zero_grad_plan(mc_optim_manager *m, const mc_step_plan *plan)
{
    mc_status status = ready(m);
    if (status) return status;
    mc_step_plan p = plan ? *plan : (mc_step_plan){.passes = 0};
    if (p.nominal_rows < 0 || p.passes < 0)
        return mc_fail(m->ctx, MC_ERR_ARGUMENT,
                       "zero_grad: nominal_rows is %lld, passes %d, expected 0 or more",
                       (long long)p.nominal_rows, p.passes);
    m->open.planned = (double)p.nominal_rows;
    m->open.passes = p.passes ? p.passes : m->options.micro_steps;
    status = zero_gradients(m);
    if (!status) m->ctx->step = &m->open;
    return status;
}

static bool is_loss(const mc_tensor *x)
{
    return x->dtype == MC_F32 && x->shape.ndim == 1 && x->shape.dim[0] == 2;
}

static mc_status check_loss(mc_optim_manager *m, mc_tape *tape, mc_tensor *loss)
{
    if (!tape || !loss)
        return mc_fail(m->ctx, MC_ERR_ARGUMENT, "mc_optim_manager_backward: the %s is NULL",
                       tape ? "loss" : "tape");
    if (mc_tape_context(tape) != m->ctx)
        return mc_fail(m->ctx, MC_ERR_ARGUMENT,
                       "mc_optim_manager_backward: the tape is of another context");
    if (!is_loss(loss))
        return mc_fail(
            m->ctx, MC_ERR_SHAPE,
            "mc_optim_manager_backward: found a tensor of %s %s, expected a loss: f32 (2)",
            mc_dtype_name(loss->dtype), MC_SHAPE_TEXT(loss->shape));
    return MC_OK;
}

static mc_status fail_with(mc_optim_manager *m, const mc_step_state *state);

mc_status mc_optim_manager_backward(mc_optim_manager *m, mc_tape *tape, mc_tensor *loss)
{
    mc_status status = ready(m);
    if (!status) status = check_loss(m, tape, loss);
    if (!status && m->ctx->step && m->ctx->step != &m->open)
        status = mc_fail(m->ctx, MC_ERR_STATE,
                         "mc_optim_manager_backward: another manager is between zero_grad and "
                         "step, expected its step first");
    if (status) return status;
    mc_device *device = m->ctx->device;
    m->ctx->step = &m->open;
    const float *seed = mc_loss_seed_of(tape, loss->nominal_rows, 0);
    if (!seed || mc_failed(m->ctx)) return mc_error_status(m->ctx);
    if (device->is_host && m->state->failure) return fail_with(m, m->state);
    m->open.begun++;
    status = mc_tape_backward_seeded(tape, loss, seed);
    if (status) m->open.begun--;
    if (status) return status;
    if (m->clip == MC_CLIP_DONE) m->clip = MC_CLIP_VOID;
    return check_kernel(m, device->kernels->step_count(device, mc_tensor_data(loss), m->state),
                        "counting a loss");
}

/* ---- the norm -------------------------------------------------------------------------------- */

typedef struct mc_measure {
    mc_device *device;
    double power;
    int64_t first; /* number of the run's first element; elements are numbered run by run */
    mc_step_state *state;
} mc_measure;

typedef struct mc_host_measure {
    int64_t first; /* as above */
    mc_gradient_stats stats;
} mc_host_measure;

static mc_status measure_run(void *user, const mc_run *run)
{
    mc_measure *measure = user;
    int64_t first = measure->first;
    measure->first += run->count;
    if (run->bucket->host) return MC_OK;
    mc_run mine = *run;
    if (!mc_run_within(&mine, run->bucket->first, run->bucket->share)) return MC_OK;
    mc_matrix gradient = mc_bucket_gradient(run->bucket, mine.first);
    if (!gradient.data) return MC_OK;
    mc_device *device = measure->device;
    return device->kernels->gradient_stats(device, mine.count, gradient, measure->power,
                                           first + mine.first - run->first,
                                           &measure->state->own.stats);
}

static mc_status add_host_run(void *user, const mc_run *run)
{
    mc_host_measure *measure = user;
    if (run->bucket->host)
        mc_host_add_stats(run->bucket, run->first, run->count, measure->first, &measure->stats);
    measure->first += run->count;
    return MC_OK;
}

/* Starts the statistics with those of gradients on the host, which it waits for, or with none. */
static mc_status begin_stats(mc_optim_manager *m, double power)
{
    mc_device *device = m->ctx->device;
    mc_host_measure measure = {.first = 0};
    mc_status status = mc_error_status(m->ctx);
    if (!m->ctx->home) return zero_state(m, &m->state->own.stats, sizeof m->state->own.stats);
    for (size_t i = 0; !status && i < m->managed_count; i++)
        if (m->managed[i].optimizer)
            status = mc_optimizer_measure_host(m->managed[i].optimizer, power);
    if (!status) status = mc_offload_finish(mc_offload_of(m->ctx->home));
    if (!status) status = each_run(m, add_host_run, &measure);
    if (!status)
        device->copy_in(device, &m->state->own.stats, &measure.stats, sizeof measure.stats);
    return status;
}

/* Sums over ranks the gradients that backward has not reduced. */
static mc_status reduce_gradients(mc_optim_manager *m)
{
    return each_optimizer(m, mc_optimizer_reduce);
}

/* Adds the ranks' sums and computes the norm. */
static mc_status combine(mc_optim_manager *m)
{
    mc_device *device = m->ctx->device;
    struct mc_comm *comm = m->ctx->mesh.shard.comm;
    size_t bytes = sizeof(mc_step_sums) * (size_t)m->ctx->mesh.shard.size;
    if (!comm) return device->kernels->step_measure(device, m->rules, 1, NULL, m->state);
    mc_step_sums *parts = device->alloc(device, bytes);
    if (!parts) return MC_ERR_NOMEM;
    mc_status status =
        mc_comm_all_gather(comm, &m->state->own, parts, (int64_t)sizeof(mc_step_sums), MC_U8);
    if (!status)
        status = device->kernels->step_measure(device, m->rules, m->ctx->mesh.shard.size, parts,
                                               m->state);
    device->free(device, parts, bytes);
    return status;
}

/* Measures the gradients; `max_norm` is the norm that they are clipped to. */
static mc_status measure(mc_optim_manager *m, double max_norm, double power)
{
    mc_device *device = m->ctx->device;
    m->rules = (mc_step_rules){.power = power,
                               .max_norm = max_norm,
                               .counted = m->open.begun > 0,
                               .scaling = m->scaling,
                               .may_skip = m->options.nonfinite == MC_NONFINITE_SKIP,
                               .factor = m->options.loss_scale_factor,
                               .min_scale = m->options.min_loss_scale,
                               .max_scale = m->options.max_loss_scale,
                               .growth_steps = m->options.loss_scale_steps};
    mc_measure all = {device, isinf(power) ? 2 : power, 0, m->state};
    mc_status status = forgive(m);
    if (!status) status = reduce_gradients(m);
    if (!status) status = begin_stats(m, all.power);
    if (!status) status = each_run(m, measure_run, &all);
    if (!status) status = combine(m);
    return check_kernel(m, status, "the gradients' norm");
}

/* Reads the device's present state; waits for it. */
static mc_status read_state(mc_optim_manager *m, mc_step_state *state)
{
    mc_device *device = m->ctx->device;
    if (device->copy_out(device, state, m->state, sizeof *state)) return MC_OK;
    return mc_fail(m->ctx, MC_ERR_DEVICE, "reading an OptimManager's state: %s", device->failure);
}

static mc_status settle_all(mc_optim_manager *m);

double mc_optim_manager_clip_grad_norm_p(mc_optim_manager *m, double max_norm, double p)
{
    if (ready(m)) return NAN;
    if (!(max_norm >= 0) || !(p > 0)) {
        mc_fail(m->ctx, MC_ERR_ARGUMENT,
                "clip_grad_norm: max_norm %g and p %g, expected 0 or more and above 0", max_norm,
                p);
        return NAN;
    }
    mc_step_state state;
    if (measure(m, max_norm, p) || read_state(m, &state) || settle_all(m)) return NAN;
    if (state.failure) {
        fail_with(m, &state);
        return NAN;
    }
    m->norm = state.norm;
    m->clip = MC_CLIP_DONE;
    return m->norm;
}

double mc_optim_manager_clip_grad_norm(mc_optim_manager *m, double max_norm)
{
    return mc_optim_manager_clip_grad_norm_p(m, max_norm, 2);
}

/* ---- a step's outcome ------------------------------------------------------------------------ */

/* Finds the parameter of a numbered element of the gradients. */
typedef struct mc_search {
    int64_t number, first;
    const char *name;
} mc_search;

static mc_status search_run(void *user, const mc_run *run)
{
    mc_search *s = user;
    int64_t at = run->first + s->number - s->first;
    s->first += run->count;
    if (s->name || s->number >= s->first) return MC_OK;
    for (int i = 0; i < run->bucket->span_count; i++) {
        const mc_stored *stored = mc_stored_of(&run->bucket->spans[i]);
        for (int j = 0; j < stored->part_count; j++) {
            const mc_parameter *p = stored->parts[j];
            int64_t begin = stored->span->offset + p->first;
            if (at >= begin && at < begin + mc_shape_count(p->shape)) s->name = p->name;
        }
    }
    return MC_OK;
}

/* Finds the first parameter that has a value which is not finite. All ranks number them alike. */
typedef struct mc_value_search {
    mc_gradient_stats *stats; /* device memory */
    int64_t number, bad;      /* of the next parameter; of the first bad one on this rank */
} mc_value_search;

static mc_status search_values(void *user, mc_module_root *root, mc_parameter *p)
{
    mc_value_search *s = user;
    const mc_bucket *b = p->stored->bucket;
    mc_device *device = root->ctx->device;
    int64_t number = s->number++;
    if (s->bad < INT64_MAX || !b) return MC_OK; /* weights in 8 bits are finite */
    int64_t first, count;
    mc_parameter_values_held(p, &first, &count);
    mc_status status = mc_zero_rest(&root->zero);
    if (status || !count) return status;
    mc_gradient_stats found;
    const mc_matrix values = {mc_bucket_value_at(b, first), b->dtype, count};
    status = device->kernels->zero(device, s->stats, sizeof found);
    if (!status) status = device->kernels->gradient_stats(device, count, values, 2, 0, s->stats);
    if (!status && !device->copy_out(device, &found, s->stats, sizeof found))
        status = MC_ERR_DEVICE;
    if (!status && found.nonfinite) s->bad = number;
    return status;
}

/* The parameter of a number. */
typedef struct mc_numbered {
    int64_t number;
    const char *name;
} mc_numbered;

static mc_status take_name(void *user, mc_module_root *root, mc_parameter *p)
{
    mc_numbered *s = user;
    (void)root;
    if (s->number-- == 0) s->name = p->name;
    return MC_OK;
}

static mc_status each_parameter(mc_optim_manager *m, mc_parameter_fn fn, void *user)
{
    mc_status status = MC_OK;
    for (size_t i = 0; !status && i < m->managed_count; i++)
        if (m->managed[i].optimizer)
            status = mc_optimizer_each_parameter(m->managed[i].optimizer, fn, user);
    return status;
}

/* Waits a moment for the error of another rank, and takes it. */
static mc_status await_other_error(mc_context *ctx)
{
    enum { TRIES = 200 };
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    for (int i = 0; i < TRIES && !mc_world_failed(ctx, &ctx->error); i++) nanosleep(&pause, NULL);
    return mc_error_status(ctx);
}

/* The name of the first parameter of the optimizers, trained or frozen, whose values are not
 * finite; NULL: none. Ranks may share values, and all of them are to name it: CPU ranks, which are
 * all here, exchange its number. GPU ranks learn of a failed step at different times, and cannot:
 * a rank that finds nothing takes the error of one that does. Launches kernels. */
static mc_status find_bad_values(mc_optim_manager *m, const char **name)
{
    mc_device *device = m->ctx->device;
    mc_value_search s = {.stats = device->alloc(device, sizeof *s.stats), .bad = INT64_MAX};
    mc_status status = s.stats ? each_parameter(m, search_values, &s) : MC_ERR_NOMEM;
    device->free(device, s.stats, sizeof *s.stats);
    status = check_kernel(m, status, "the search for a value that is not finite");
    if (!status && device->is_host)
        status = mc_ranks_reduce(m->ctx, &m->ctx->mesh.shard, &s.bad, 1, MC_I64, MC_REDUCE_MIN);
    else if (!status && s.bad == INT64_MAX && m->ctx->mesh.shard.comm)
        status = await_other_error(m->ctx);
    mc_numbered found = {.number = s.bad};
    if (!status && s.bad < INT64_MAX) status = each_parameter(m, take_name, &found);
    *name = found.name;
    return status;
}

/* Which step failed: " at step 7 (mean loss 3.2e+09)", without a loss if no backward had one. */
static void describe_step(const mc_step_state *state, char *to, size_t room)
{
    char loss[32] = "NaN"; /* printf may write "-nan" */
    if (!isnan(state->mean_loss)) snprintf(loss, sizeof loss, "%.6g", state->mean_loss);
    bool known = state->all.told_count > 0;
    snprintf(to, room, " at step %lld%s%s%s", (long long)(state->steps + state->skipped + 1),
             known ? " (mean loss " : "", known ? loss : "", known ? ")" : "");
}

/* If a weight is the reason, the error names it first. */
static mc_status fail_nonfinite(mc_optim_manager *m, const mc_step_state *state)
{
    mc_search search = {.number = (int64_t)(((uint64_t)1 << 63) - state->nonfinite)};
    const char *bad = NULL;
    mc_status status = each_run(m, search_run, &search);
    if (!status && !mc_step_is_recording(m->ctx)) status = find_bad_values(m, &bad);
    if (status) return status;
    const char *name = search.name ? search.name : "?";
    char at[80], why[128] = "";
    describe_step(state, at, sizeof at);
    if (m->scaling)
        snprintf(why, sizeof why, ", as in each of the %d steps before, at the least loss scale %g",
                 MC_STEPS_STUCK, state->loss_scale);
    if (bad)
        return mc_fail(m->ctx, MC_ERR_STATE,
                       "parameter \"%s\" has a value that is infinite or NaN, and so has the "
                       "gradient of \"%s\"%s%s; no step was taken",
                       bad, name, at, why);
    return mc_fail(m->ctx, MC_ERR_STATE,
                   "the gradient of parameter \"%s\" is infinite or NaN%s%s; no step was taken (a "
                   "lower learning rate may prevent it; %s)",
                   name, at, why,
                   m->scaling ? "MC_NONFINITE_SKIP would skip it"
                              : "a loss scale or MC_NONFINITE_SKIP would skip it");
}

/* Raises the device's failure as the context's error. */
static mc_status fail_with(mc_optim_manager *m, const mc_step_state *state)
{
    m->failed = true;
    if (state->failure == MC_STEP_SEED_ZERO)
        return mc_fail(m->ctx, MC_ERR_STATE, "the loss scale %g is too small to compute with",
                       state->loss_scale);
    if (state->failure == MC_STEP_UNLIKE)
        return mc_fail(m->ctx, MC_ERR_STATE,
                       "a step has losses over %.0f rows on rank 0 and %.0f on rank %d, expected "
                       "one number: pass an mc_step_plan",
                       state->all.nominal, state->unlike_nominal, state->unlike);
    if (state->failure == MC_STEP_NORM_RANGE)
        return mc_fail(m->ctx, MC_ERR_UNSUPPORTED,
                       "clip_grad_norm: the sum of |g|^%g, with |g| up to %g, is out of range",
                       m->rules.power, (double)state->all.stats.largest);
    return fail_nonfinite(m, state);
}

static void count_taken(mc_optim_manager *m);
static double next_lr(const mc_managed *managed, int64_t ahead);

static void note_skipped(mc_optim_manager *m, const mc_step_state *state)
{
    if (m->scaling)
        mc_log(m->ctx, MC_LOG_INFO, "gradient overflow: loss scale %g -> %g", m->loss_scale,
               state->loss_scale);
    else
        mc_log(m->ctx, MC_LOG_WARNING, "gradients are infinite or NaN: step skipped");
}

/* The first optimizer that is not freed; NULL: none. */
static const mc_managed *first_managed(const mc_optim_manager *m)
{
    for (size_t i = 0; i < m->managed_count; i++)
        if (m->managed[i].optimizer) return &m->managed[i];
    return NULL;
}

/* The rate of the last step; before the first, the rate of the first. */
static double lr_now(const mc_optim_manager *m)
{
    const mc_managed *first = first_managed(m);
    if (!first) return NAN;
    return first->optimizer->steps ? first->optimizer->lr : next_lr(first, 0);
}

/* NaN if `all` is 0. */
static double share_of(uint64_t part, uint64_t all) { return (double)part / (double)all; }

/* With suitable delayed scales hardly any element saturates, and those that vanish are small beside
 * the tensor's largest. Larger shares mean that the scales do not fit: the training will fail. */
static void warn_of_scales(mc_optim_manager *m, const mc_step_state *state)
{
    const double saturated = 0.01, vanished = 0.1;
    const int64_t quiet = 100; /* steps between two warnings */
    int64_t step = state->steps + state->skipped;
    double lost[] = {share_of(state->fp8.saturated, state->fp8.elements),
                     share_of(state->fp8.vanished, state->fp8.elements)};
    if (!(lost[0] > saturated || lost[1] > vanished)) return;
    if (m->warned_of_scales && step < m->warned_of_scales + quiet) return;
    m->warned_of_scales = step;
    mc_log(
        m->ctx, MC_LOG_WARNING,
        "fp8: %.1f %% of the elements that step %lld has cast to 8 bits were beyond the format's "
        "largest number, %.1f %% below its smallest",
        100 * lost[0], (long long)step, 100 * lost[1]);
}

static mc_status take_over(mc_optim_manager *m, const mc_flight *flight)
{
    const mc_step_state *state = flight->arrived;
    if (state->failure) return fail_with(m, state);
    bool skipped = state->skipped > m->skipped;
    const mc_managed *first = first_managed(m);
    if (skipped)
        note_skipped(m, state);
    else
        count_taken(m);
    warn_of_scales(m, state);
    m->loss_scale = state->loss_scale;
    m->growth_counter = state->growth_counter;
    m->steps = state->steps;
    m->skipped = state->skipped;
    m->norm = state->norm;
    m->last_skipped = skipped;
    m->reports[m->reported++ % MC_FLIGHTS] = (mc_step_report){
        .step = state->steps + state->skipped,
        .loss = state->mean_loss,
        .grad_norm = state->norm,
        .lr = first && !first->scheduler ? flight->lr : lr_now(m),
        .loss_scale = state->loss_scale,
        .skipped = skipped,
        .ended = m->last_end.known ? m->last_end.time : NAN,
        .seconds = m->last_end.seconds,
        .fp8_saturated = share_of(state->fp8.saturated, state->fp8.elements),
        .fp8_vanished = share_of(state->fp8.vanished, state->fp8.elements),
    };
    return MC_OK;
}

static double monotonic_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

mc_step_end mc_step_end_of(mc_device *device, const mc_step_end *before, uint64_t ticket,
                           bool waited, double now)
{
    bool exact = waited || !device->elapsed;
    mc_step_end end = {.ticket = ticket, .time = now, .known = exact, .seconds = NAN};
    if (!before->ticket) return end;
    if (exact && before->known) end.seconds = now - before->time;
    if (!device->elapsed) return end;
    double by_device = device->elapsed(device, before->ticket, ticket);
    if (isnan(by_device)) return end;
    end.known = true;
    end.seconds = by_device;
    if (before->time + by_device < now) end.time = before->time + by_device;
    return end;
}

/* Waits for the oldest step in flight and takes over its outcome. */
static mc_status settle(mc_optim_manager *m)
{
    mc_device *device = m->ctx->device;
    mc_flight *flight = &m->flights[m->first_flight];
    m->first_flight = (m->first_flight + 1) % MC_FLIGHTS;
    m->in_flight--;
    bool waited = !device->is_done(device, flight->ticket);
    if (!device->wait(device, flight->ticket))
        return mc_fail(m->ctx, MC_ERR_DEVICE, "waiting for a step: %s", device->failure);
    m->last_end = mc_step_end_of(device, &m->last_end, flight->ticket, waited, monotonic_seconds());
    return take_over(m, flight);
}

static mc_status settle_all(mc_optim_manager *m)
{
    mc_status status = mc_error_status(m->ctx);
    while (!status && m->in_flight) status = settle(m);
    return status;
}

/* Takes over the outcomes that have arrived. */
static mc_status settle_arrived(mc_optim_manager *m)
{
    mc_device *device = m->ctx->device;
    mc_status status = MC_OK;
    while (!status && m->in_flight && device->is_done(device, m->flights[m->first_flight].ticket))
        status = settle(m);
    return status;
}

/* For functions that return a number: settles, which callers cannot notice. */
static bool is_settled(const mc_optim_manager *m)
{
    return m && settle_all((mc_optim_manager *)(uintptr_t)m) == MC_OK;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* The rate of the next step after `ahead` more steps. */
static double next_lr(const mc_managed *managed, int64_t ahead)
{
    const mc_lr_scheduler *s = managed->scheduler;
    return s ? mc_lr_scheduler_at(s, s->count + ahead) : managed->optimizer->lr;
}

/* Does everything that can fail, so that the step happens completely or not at all. */
static mc_status prepare(mc_optim_manager *m)
{
    for (size_t i = 0; i < m->managed_count; i++) {
        const mc_managed *managed = &m->managed[i];
        if (!managed->optimizer) continue;
        mc_status status = mc_optimizer_prepare(managed->optimizer);
        if (status) return status;
        for (int ahead = 0; ahead <= m->in_flight; ahead++) {
            double lr = next_lr(managed, ahead);
            if (!(lr >= 0) || isinf(lr))
                return mc_fail(m->ctx, MC_ERR_ARGUMENT,
                               "schedule %s: learning rate %g after %lld steps, expected 0 or more",
                               managed->scheduler->name, lr,
                               (long long)managed->scheduler->count + ahead);
        }
    }
    return MC_OK;
}

mc_status mc_optim_manager_prepare(mc_optim_manager *m)
{
    mc_status status = ready(m);
    return status ? status : prepare(m);
}

/* Writes an optimizer's next settings for each possible outcome of the steps in flight. */
static mc_status guess(mc_optim_manager *m, const mc_managed *managed)
{
    mc_device *device = m->ctx->device;
    mc_optimizer *o = managed->optimizer;
    mc_update_guess guess = {.step = o->steps + m->in_flight + 1, .known_skipped = m->skipped};
    for (int late = 0; late <= MC_STEPS_LATE; late++)
        guess.lr[late] = next_lr(managed, late < m->in_flight ? m->in_flight - late : 0);
    device->copy_in(device, &o->memory->guess, &guess, sizeof guess);
    return MC_OK;
}

/* Before the launch of a step: settles the steps that it depends on. */
static mc_status begin_launch(mc_optim_manager *m)
{
    mc_status status = mc_error_status(m->ctx);
    while (!status && m->in_flight > MC_STEPS_LATE) status = settle(m);
    if (!status) status = prepare(m);
    for (size_t i = 0; !status && i < m->managed_count && m->in_flight; i++)
        if (m->managed[i].optimizer && mc_optimizer_changes(m->managed[i].optimizer))
            status = settle_all(m);
    for (size_t i = 0; !status && i < m->managed_count; i++) {
        if (!m->managed[i].optimizer) continue;
        mc_optimizer_begin_step(m->managed[i].optimizer);
        status = guess(m, &m->managed[i]);
    }
    return status;
}

/* After the launch of a step: starts the copy of its outcome. */
static mc_status end_launch(mc_optim_manager *m)
{
    mc_device *device = m->ctx->device;
    mc_flight *flight = &m->flights[(m->first_flight + m->in_flight++) % MC_FLIGHTS];
    const mc_managed *first = first_managed(m);
    flight->lr = first ? first->optimizer->lr : NAN;
    flight->ticket =
        device->copy_out_later(device, flight->arrived, m->state, sizeof *flight->arrived);
    each_root(m, note_update); /* a recorded step's too */
    mc_status status = settle_arrived(m);
    if (!status && !m->in_flight && m->last_skipped) status = zero_gradients(m);
    return status;
}

static mc_status before_recorded(mc_context *ctx, void *data)
{
    mc_optim_manager *m = *(mc_optim_manager **)data;
    (void)ctx;
    mc_status status = forgive(m);
    return status ? status : begin_launch(m);
}

static mc_status after_recorded(mc_context *ctx, void *data)
{
    (void)ctx;
    return end_launch(*(mc_optim_manager **)data);
}

/* Launches the decision and the updates. */
static mc_status launch(mc_optim_manager *m)
{
    mc_device *device = m->ctx->device;
    mc_status status = device->kernels->step_decide(device, m->rules, m->state);
    if (!status) status = each_root(m, clear_fp8);
    if (!status) status = each_root(m, advance_scales);
    for (size_t i = 0; !status && i < m->managed_count; i++) {
        mc_optimizer *o = m->managed[i].optimizer;
        if (!o) continue;
        status =
            device->kernels->step_update(device, m->state, &o->memory->guess, &o->memory->update);
        if (!status) status = mc_optimizer_launch(o);
    }
    return check_kernel(m, status, "a step");
}

/* Counts a step that was taken. */
static void count_taken(mc_optim_manager *m)
{
    for (size_t i = 0; i < m->managed_count; i++) {
        mc_managed *managed = &m->managed[i];
        if (!managed->optimizer) continue;
        mc_optimizer_count_step(managed->optimizer, next_lr(managed, 0));
        if (managed->scheduler) managed->scheduler->count++;
    }
}

/* A pass or an earlier step has requested gradients of the tree. */
static mc_status check_gradients(mc_optim_manager *m, mc_module_root *root)
{
    bool trains = false;
    for (int i = 0; i < root->zero.bucket_count; i++) {
        const mc_bucket *b = &root->zero.buckets[i];
        if (b->trainable && b->gradient.needed) return MC_OK;
        trains |= b->trainable;
    }
    if (!trains && root->layout_valid) return MC_OK; /* all is frozen */
    return mc_fail(
        m->ctx, MC_ERR_STATE,
        "mc_optim_manager_step: %s has no gradients yet, expected zero_grad and backward "
        "before",
        MC_NAMED("model", root->module->name));
}

/* A step of nothing is a forgotten call. */
static mc_status check_optimizers(mc_optim_manager *m)
{
    if (!first_managed(m))
        return mc_fail(m->ctx, MC_ERR_STATE,
                       "mc_optim_manager_step: the manager has no optimizer, expected one "
                       "(mc_optim_manager_add)");
    for (size_t i = 0; i < m->managed_count; i++) {
        mc_optimizer *o = m->managed[i].optimizer;
        if (o && !mc_optimizer_roots(o))
            return mc_fail(m->ctx, MC_ERR_STATE,
                           "mc_optim_manager_step: optimizer %s has no parameters, expected some "
                           "(mc_optimizer_add, and a model that has not been freed)",
                           o->kind->name);
    }
    return MC_OK;
}

mc_status mc_optim_manager_step(mc_optim_manager *m)
{
    mc_status status = ready(m);
    if (!status) status = check_optimizers(m);
    if (status) return status;
    bool begun = m->ctx->step == &m->open; /* by zero_grad, after which the gradients are zeros */
    if (!begun && (status = each_root(m, check_gradients))) return status;
    if (m->clip == MC_CLIP_VOID)
        return mc_fail(
            m->ctx, MC_ERR_STATE,
            "mc_optim_manager_step: clip_grad_norm was called before the last backward of "
            "the step, expected after it");
    bool recording = mc_step_is_recording(m->ctx);
    if (!recording) status = begin_launch(m);
    double max_norm = m->options.max_grad_norm > 0 ? m->options.max_grad_norm : INFINITY;
    mc_range_begin(m->ctx->device, "optimizer step");
    if (!status && m->clip == MC_CLIP_NONE) status = measure(m, max_norm, 2);
    if (!status) status = launch(m);
    mc_range_end(m->ctx->device);
    if (status) return status;
    m->clip = MC_CLIP_NONE;
    close_step(m);
    if (recording) {
        status = mc_step_before(m->ctx, before_recorded, &m, sizeof m);
        return status ? status : mc_step_after(m->ctx, after_recorded, &m, sizeof m);
    }
    return end_launch(m);
}

/* The gradients in memory are not the saved run's. They are dropped; zero_grad, with which every
 * step starts, zeros them. */
void mc_optim_manager_state_restored(mc_optim_manager *m)
{
    mc_device *device = m->ctx->device;
    close_step(m);
    mc_step_state state = {.loss_scale = m->loss_scale,
                           .growth_counter = m->growth_counter,
                           .steps = m->steps,
                           .skipped = m->skipped,
                           .ended = 1,
                           .norm = NAN,
                           .mean_loss = NAN};
    device->copy_in(device, m->state, &state, sizeof state);
    m->open.nominal = m->open.begun = 0;
    m->clip = MC_CLIP_NONE;
    m->last_skipped = m->failed = false;
    m->norm = NAN;
    m->reported = m->warned_of_scales = 0;
    each_root(m, note_restored);
}

mc_status mc_optim_manager_settle(mc_optim_manager *m) { return m ? settle_all(m) : MC_OK; }

/* ---- what happened --------------------------------------------------------------------------- */

bool mc_optim_manager_report(mc_optim_manager *m, int late, mc_step_report *report)
{
    if (!m || late < 0 || late > MC_STEPS_LATE) return false;
    while (m->in_flight > late && !mc_failed(m->ctx))
        if (settle(m)) return false;
    int64_t back = late - m->in_flight; /* from the newest report */
    if (mc_failed(m->ctx) || m->reported <= back) return false;
    *report = m->reports[(m->reported - 1 - back) % MC_FLIGHTS];
    return true;
}

double mc_optim_manager_lr(const mc_optim_manager *m) { return is_settled(m) ? lr_now(m) : NAN; }

double mc_optim_manager_loss_scale(const mc_optim_manager *m)
{
    return is_settled(m) ? m->loss_scale : NAN;
}

int64_t mc_optim_manager_steps(const mc_optim_manager *m)
{
    is_settled(m);
    return m ? m->steps : 0;
}

int64_t mc_optim_manager_skipped_steps(const mc_optim_manager *m)
{
    is_settled(m);
    return m ? m->skipped : 0;
}

bool mc_optim_manager_last_step_skipped(const mc_optim_manager *m)
{
    is_settled(m);
    return m && m->last_skipped;
}

double mc_optim_manager_grad_norm(const mc_optim_manager *m)
{
    return is_settled(m) ? m->norm : NAN;
}

double mc_optim_manager_mean_loss(const mc_optim_manager *m)
{
    mc_step_state state;
    if (!is_settled(m) || read_state((mc_optim_manager *)(uintptr_t)m, &state)) return NAN;
    if (state.ended) return state.mean_loss;
    return state.own.told_sum / state.own.told_count; /* of this rank, so far */
}
