/* OptimManager: see optim_manager.h for what a step is.
 *
 * How the mean is taken. Backward multiplies each loss's sum by `seed` = loss_scale / nominal,
 * where nominal (rows x micro-steps x ranks) is fixed by the first loss of the step, so the
 * gradients hold seed x the gradient of the sum over everything. The gradient of the mean is that
 * divided by seed x count; this factor and the clip coefficient are handed to the optimizers, and
 * gradients are never written. */
#include "core/optim/optim_manager.h"

#include <math.h>
#include "core/optim/optimizer_internal.h"

/* ---- making and freeing ------------------------------------------------------------------ */

static void manager_release(void *object)
{
    mc_optim_manager *m = object;
    for (size_t i = 0; i < m->managed_count; i++) {
        if (m->managed[i].optimizer) m->managed[i].optimizer->manager = NULL;
        if (m->managed[i].scheduler) m->managed[i].scheduler->manager = NULL;
    }
    mc_free(m->managed);
    mc_free(m);
}

void mc_optim_manager_free(mc_optim_manager *m)
{
    if (!m) return;
    mc_loss_seed *seed = mc_context_loss_seed(m->ctx);
    if (seed && seed->manager == m) *seed = (mc_loss_seed){.loss_scale = 1};
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
    if (o->nonfinite != MC_NONFINITE_ERROR && o->nonfinite != MC_NONFINITE_SKIP)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "OptimManager: nonfinite is %d, expected a mc_nonfinite", (int)o->nonfinite);
    return MC_OK;
}

/* Forgets the gradients, which are zero or about to be. */
static void forget_gradients(mc_optim_manager *m)
{
    m->gradient_loss_scale = m->loss_scale;
    m->nominal = m->seed = m->count = 0;
    m->losses = 0;
    m->clip = MC_CLIP_NONE;
    m->clip_factor = 1;
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
    m->lr = NAN;
    m->step_ended = true;
    forget_gradients(m);
    return m;
}

/* Whether a call may go on: MC_OK, or the status to return. */
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
    if (!mc_grow(&m->managed, &m->managed_capacity, m->managed_count, sizeof *m->managed))
        return mc_fail_nomem(m->ctx, "an OptimManager's list of optimizers");
    m->managed[m->managed_count++] = (mc_managed){optimizer, scheduler};
    optimizer->manager = m;
    if (scheduler) scheduler->manager = m;
    return MC_OK;
}

/* Calls fn for the runs of all optimizers. */
static mc_status each_run(mc_optim_manager *m, mc_run_fn fn, void *user)
{
    for (size_t i = 0; i < m->managed_count; i++) {
        if (!m->managed[i].optimizer) continue;
        mc_status status = mc_optimizer_each_run(m->managed[i].optimizer, fn, user);
        if (status) return status;
    }
    return MC_OK;
}

/* ---- gradients --------------------------------------------------------------------------- */

/* Makes this manager the one that seeds the context's losses. */
static mc_status take_seed(mc_optim_manager *m)
{
    mc_loss_seed *seed = mc_context_loss_seed(m->ctx);
    if (!seed)
        return mc_failed(m->ctx) ? mc_error_status(m->ctx)
                                 : mc_fail_nomem(m->ctx, "the seed of losses");
    if (seed->manager == m) return MC_OK;
    *seed = (mc_loss_seed){.managed = true,
                           .manager = m,
                           .loss_scale = (float)m->gradient_loss_scale,
                           .nominal = m->nominal,
                           .micro_steps = m->options.micro_steps};
    return MC_OK;
}

static void give_seed_back(mc_optim_manager *m)
{
    mc_loss_seed *seed = mc_context_loss_seed(m->ctx);
    if (seed && seed->manager == m) *seed = (mc_loss_seed){.loss_scale = 1};
}

static mc_status zero_gradients(mc_optim_manager *m)
{
    for (size_t i = 0; i < m->managed_count; i++) {
        if (!m->managed[i].optimizer) continue;
        mc_status status = mc_optimizer_zero_grad(m->managed[i].optimizer);
        if (status) return status;
    }
    forget_gradients(m);
    return MC_OK;
}

mc_status mc_optim_manager_zero_grad(mc_optim_manager *m)
{
    mc_status status = ready(m);
    if (!status) status = zero_gradients(m);
    if (status) return status;
    give_seed_back(m); /* of the step before, should it not have ended */
    return take_seed(m);
}

static bool is_loss(const mc_tensor *x)
{
    return x->dtype == MC_F32 && x->shape.ndim == 1 && x->shape.dim[0] == 2;
}

/* The rows a loss was taken over: those of the first input of the cross-entropy behind it. Where
 * nothing was recorded there is no gradient either, and any number will do. */
static int64_t loss_rows(const mc_tensor *loss)
{
    while (loss->node && loss->node->input_count > 0 && loss->node->inputs[0]) {
        const mc_tensor *input = loss->node->inputs[0];
        if (!is_loss(input)) return mc_tensor_rows(input);
        loss = input;
    }
    return 1;
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
        return mc_fail(m->ctx, MC_ERR_SHAPE,
                       "mc_optim_manager_backward: found a %s tensor %s, expected a loss: f32 (2)",
                       mc_dtype_name(loss->dtype), MC_SHAPE_TEXT(loss->shape));
    return MC_OK;
}

/* Adds a loss whose backward has run to what the gradients hold. */
static void count_loss(mc_optim_manager *m, double sum, double count, float seed)
{
    m->seed = seed;
    m->count += count;
    m->losses++;
    if (m->clip == MC_CLIP_DONE) m->clip = MC_CLIP_VOID;
    if (m->step_ended) m->step_sum = m->step_count = 0;
    m->step_ended = false;
    m->step_sum += sum;
    m->step_count += count;
}

mc_status mc_optim_manager_backward(mc_optim_manager *m, mc_tape *tape, mc_tensor *loss)
{
    mc_status status = ready(m);
    if (!status) status = check_loss(m, tape, loss);
    if (!status) status = take_seed(m);
    if (status) return status;
    float value[2];
    mc_tensor_read_f32(m->ctx, loss, value, 2);
    float seed = mc_loss_seed_value(tape, loss_rows(loss), value[1]);
    if (seed == 0)
        return mc_fail(m->ctx, MC_ERR_STATE, "the loss scale %g is too small to compute with",
                       m->gradient_loss_scale);
    m->nominal = mc_context_loss_seed(m->ctx)->nominal;
    status = mc_tape_backward_seeded(tape, loss, seed);
    if (status) return status;
    count_loss(m, value[0], value[1], seed);
    return MC_OK;
}

/* What makes the gradients as they stand the gradient of the mean. */
static double gradient_factor(const mc_optim_manager *m)
{
    if (!m->losses) return 1;
    return 1 / (m->seed * (m->count > 0 ? m->count : 1));
}

/* ---- the norm ---------------------------------------------------------------------------- */

typedef struct mc_measure {
    mc_device *device;
    double power;
    mc_gradient_stats stats;
} mc_measure;

static mc_status measure_run(void *user, const mc_run *run)
{
    mc_measure *measure = user;
    if (!run->bucket->gradient) return MC_OK;
    mc_device *device = measure->device;
    return device->kernels->gradient_stats(device, run->count, run->bucket->gradient + run->first,
                                           measure->power, &measure->stats);
}

static mc_status measure(mc_optim_manager *m, double power)
{
    mc_measure all = {m->ctx->device, power, {.finite = true}};
    mc_status status = each_run(m, measure_run, &all);
    if (status) return mc_failed(m->ctx) ? status : mc_fail_nomem(m->ctx, "the gradients' norm");
    m->stats = all.stats;
    return MC_OK;
}

/* The p-norm of the gradients as they stand; fails where double cannot hold it. */
static double raw_norm(mc_optim_manager *m, double p)
{
    const mc_gradient_stats *s = &m->stats;
    if (!s->finite) return isnan(s->largest) || isnan(s->sum_squares) ? NAN : INFINITY;
    if (isinf(p)) return s->largest;
    if (p == 2) return sqrt(s->sum_squares);
    if (s->largest > 0 && !(s->sum_powers > 0 && isfinite(s->sum_powers))) {
        mc_fail(m->ctx, MC_ERR_UNSUPPORTED,
                "clip_grad_norm: the sum of |g|^%g, with |g| up to %g, is out of range", p,
                s->largest);
        return NAN;
    }
    return pow(s->sum_powers, 1 / p);
}

float mc_optim_manager_clip_grad_norm_p(mc_optim_manager *m, float max_norm, double p)
{
    if (ready(m)) return NAN;
    if (!(max_norm >= 0) || !(p > 0)) {
        mc_fail(m->ctx, MC_ERR_ARGUMENT,
                "clip_grad_norm: max_norm %g and p %g, expected 0 or more and above 0", max_norm,
                p);
        return NAN;
    }
    if (measure(m, isinf(p) ? 2 : p)) return NAN;
    double norm = raw_norm(m, p) * gradient_factor(m);
    if (mc_failed(m->ctx)) return NAN;
    double coefficient = isinf(max_norm) ? 1 : max_norm / (norm + 1e-6);
    m->norm = norm;
    m->clip_factor = coefficient < 1 ? coefficient : 1;
    m->clip = MC_CLIP_DONE;
    return (float)norm;
}

float mc_optim_manager_clip_grad_norm(mc_optim_manager *m, float max_norm)
{
    return mc_optim_manager_clip_grad_norm_p(m, max_norm, 2);
}

/* ---- the step ---------------------------------------------------------------------------- */

/* Ends a step that is not taken. */
static mc_status skip(mc_optim_manager *m)
{
    m->skipped++;
    m->last_skipped = true;
    m->step_ended = true;
    give_seed_back(m);
    return zero_gradients(m);
}

static mc_status overflow(mc_optim_manager *m)
{
    double before = m->loss_scale;
    if (m->loss_scale > m->options.min_loss_scale) {
        m->loss_scale /= m->options.loss_scale_factor;
        m->growth_counter = 0;
    }
    mc_log(m->ctx, MC_LOG_INFO, "gradient overflow: loss scale %g -> %g", before, m->loss_scale);
    return skip(m);
}

static void grow_scale(mc_optim_manager *m)
{
    m->growth_counter++;
    if (m->growth_counter >= m->options.loss_scale_steps &&
        m->loss_scale < m->options.max_loss_scale) {
        m->loss_scale *= m->options.loss_scale_factor;
        m->growth_counter = 0;
    }
}

/* Fails with the name of the first parameter whose gradient is not finite. */
static mc_status blame(void *user, mc_module_root *root, mc_parameter *p)
{
    (void)root;
    mc_context *ctx = user;
    const float *gradient = mc_stored_gradient(p->stored);
    if (!gradient || !p->stored->trainable) return MC_OK;
    mc_gradient_stats stats = {.finite = true};
    mc_status status = ctx->device->kernels->gradient_stats(ctx->device, mc_shape_count(p->shape),
                                                            gradient + p->first, 2, &stats);
    if (status) return mc_fail_nomem(ctx, "the gradients' norm");
    if (stats.finite) return MC_OK;
    return mc_fail(ctx, MC_ERR_STATE,
                   "the gradient of parameter \"%s\" is infinite or NaN; no step was taken (a loss "
                   "scale or MC_NONFINITE_SKIP would skip it)",
                   p->name);
}

static mc_status nonfinite(mc_optim_manager *m)
{
    if (m->scaling) return overflow(m);
    if (m->options.nonfinite == MC_NONFINITE_SKIP) {
        mc_log(m->ctx, MC_LOG_WARNING, "gradients are infinite or NaN: step skipped");
        return skip(m);
    }
    for (size_t i = 0; i < m->managed_count; i++) {
        if (!m->managed[i].optimizer) continue;
        mc_status status = mc_optimizer_each_parameter(m->managed[i].optimizer, blame, m->ctx);
        if (status) return status;
    }
    return mc_fail(m->ctx, MC_ERR_STATE, "gradients are infinite or NaN; no step was taken");
}

/* The rate of the next step. */
static double next_lr(const mc_managed *managed)
{
    return managed->scheduler ? mc_lr_scheduler_lr(managed->scheduler) : managed->optimizer->lr;
}

/* Does all that can fail, so that the step is taken whole or not at all. */
static mc_status prepare(mc_optim_manager *m)
{
    for (size_t i = 0; i < m->managed_count; i++) {
        const mc_managed *managed = &m->managed[i];
        if (!managed->optimizer) continue;
        mc_status status = mc_optimizer_prepare(managed->optimizer);
        if (status) return status;
        double lr = next_lr(managed);
        if (!(lr >= 0) || isinf(lr))
            return mc_fail(m->ctx, MC_ERR_ARGUMENT,
                           "schedule %s: learning rate %g after %lld steps, expected 0 or more",
                           managed->scheduler->name, lr, (long long)managed->scheduler->count);
    }
    return MC_OK;
}

static mc_status step_optimizers(mc_optim_manager *m)
{
    double scale = gradient_factor(m) * m->clip_factor;
    for (size_t i = 0; i < m->managed_count; i++) {
        mc_managed *managed = &m->managed[i];
        if (!managed->optimizer) continue;
        mc_status status = mc_optimizer_apply(managed->optimizer, next_lr(managed), scale);
        if (status) return status;
        if (managed->scheduler) managed->scheduler->count++;
    }
    return MC_OK;
}

mc_status mc_optim_manager_step(mc_optim_manager *m)
{
    mc_status status = ready(m);
    if (status) return status;
    if (m->clip == MC_CLIP_VOID)
        return mc_fail(
            m->ctx, MC_ERR_STATE,
            "mc_optim_manager_step: clip_grad_norm was called before the last backward of "
            "the step, expected after it");
    if (m->clip == MC_CLIP_NONE) {
        if ((status = measure(m, 2))) return status;
        m->norm = raw_norm(m, 2) * gradient_factor(m);
    }
    if (!m->stats.finite) return nonfinite(m);
    status = prepare(m);
    if (!status) status = step_optimizers(m);
    if (status) return status;
    if (m->scaling) grow_scale(m);
    m->steps++;
    m->last_skipped = false;
    m->step_ended = true;
    m->clip = MC_CLIP_NONE;
    m->clip_factor = 1;
    give_seed_back(m);
    return MC_OK;
}

/* The gradients in memory are not those of the saved run: they are forgotten, and zero_grad, which
 * every step starts with, zeros them. */
void mc_optim_manager_state_restored(mc_optim_manager *m)
{
    give_seed_back(m);
    forget_gradients(m);
    m->step_ended = true;
    m->last_skipped = false;
}

/* ---- what happened ----------------------------------------------------------------------- */

double mc_optim_manager_lr(const mc_optim_manager *m)
{
    if (ready(m)) return NAN;
    for (size_t i = 0; i < m->managed_count; i++) {
        const mc_managed *managed = &m->managed[i];
        if (managed->optimizer)
            return managed->optimizer->steps ? managed->optimizer->lr : next_lr(managed);
    }
    return NAN;
}

double mc_optim_manager_loss_scale(const mc_optim_manager *m)
{
    return ready(m) ? NAN : m->loss_scale;
}

int64_t mc_optim_manager_steps(const mc_optim_manager *m) { return m ? m->steps : 0; }

int64_t mc_optim_manager_skipped_steps(const mc_optim_manager *m) { return m ? m->skipped : 0; }

bool mc_optim_manager_last_step_skipped(const mc_optim_manager *m) { return m && m->last_skipped; }

double mc_optim_manager_grad_norm(const mc_optim_manager *m) { return ready(m) ? NAN : m->norm; }

double mc_optim_manager_mean_loss(const mc_optim_manager *m)
{
    return ready(m) ? NAN : m->step_sum / m->step_count;
}
