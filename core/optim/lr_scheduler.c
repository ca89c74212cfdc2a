#include "core/optim/lr_scheduler.h"

#include <math.h>
#include "core/optim/lr_scheduler_internal.h"

static const double PI = 3.14159265358979323846;

/* ---- the formulas: decay after the warm-up, by n >= warmup ----------------------------------- */

static double no_decay(const mc_lr_scheduler *s, int64_t n)
{
    (void)n;
    return s->lr;
}

static double noam(const mc_lr_scheduler *s, int64_t n)
{
    return n > 0 ? s->lr / sqrt((double)n) : s->lr;
}

/* Steps from the end of the warm-up to the end; at least 1, because it is a divisor. */
static double decay_length(const mc_lr_scheduler *s)
{
    return s->end > s->warmup ? (double)(s->end - s->warmup) : 1;
}

static double linear(const mc_lr_scheduler *s, int64_t n)
{
    return n < s->end ? s->lr * (double)(s->end - n) / decay_length(s) : 0;
}

static double cosine(const mc_lr_scheduler *s, int64_t n)
{
    double progress = (double)(n - s->warmup) / decay_length(s);
    if (progress >= 1) return 0;
    return s->lr * 0.5 * (1 + cos(PI * progress));
}

static double exponential(const mc_lr_scheduler *s, int64_t n)
{
    return s->lr * pow(s->gamma, (double)(n - s->warmup));
}

static double custom(const mc_lr_scheduler *s, int64_t n) { return s->fn(s->user, n); }

/* ---- objects --------------------------------------------------------------------------------- */

static void scheduler_release(void *object)
{
    mc_lr_scheduler *s = object;
    if (s->manager) mc_optim_manager_forget_scheduler(s->manager, s);
    mc_free(s);
}

void mc_lr_scheduler_free(mc_lr_scheduler *s)
{
    if (!s) return;
    mc_optim_manager_settle(s->manager);
    mc_disown(&s->owned);
    scheduler_release(s);
}

/* Creates a schedule from a description, which it checks first. */
static mc_lr_scheduler *scheduler_new(mc_context *ctx, mc_lr_scheduler description)
{
    if (mc_failed(ctx)) return NULL;
    if (!(description.lr >= 0) || isinf(description.lr)) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "schedule %s: learning rate %g, expected 0 or more",
                description.name, description.lr);
        return NULL;
    }
    if (description.warmup < 0 || description.end < 0) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "schedule %s: warm-up of %lld steps, end after %lld steps, expected 0 or more",
                description.name, (long long)description.warmup, (long long)description.end);
        return NULL;
    }
    mc_lr_scheduler *s = mc_new_owned(ctx, sizeof *s, "a schedule", scheduler_release);
    if (!s) return NULL;
    description.owned = s->owned;
    *s = description;
    s->ctx = ctx;
    return s;
}

mc_lr_scheduler *mc_no_decay_new(mc_context *ctx, double lr, int64_t warmup)
{
    return scheduler_new(
        ctx, (mc_lr_scheduler){.name = "no decay", .decay = no_decay, .lr = lr, .warmup = warmup});
}

mc_lr_scheduler *mc_noam_new(mc_context *ctx, double lr, int64_t warmup)
{
    return scheduler_new(
        ctx, (mc_lr_scheduler){.name = "noam", .decay = noam, .lr = lr, .warmup = warmup});
}

mc_lr_scheduler *mc_linear_decay_new(mc_context *ctx, double lr, int64_t warmup, int64_t end)
{
    return scheduler_new(
        ctx, (mc_lr_scheduler){
                 .name = "linear", .decay = linear, .lr = lr, .warmup = warmup, .end = end});
}

mc_lr_scheduler *mc_cosine_new(mc_context *ctx, double lr, int64_t warmup, int64_t end)
{
    return scheduler_new(
        ctx, (mc_lr_scheduler){
                 .name = "cosine", .decay = cosine, .lr = lr, .warmup = warmup, .end = end});
}

mc_lr_scheduler *mc_exponential_new(mc_context *ctx, double lr, int64_t warmup, double gamma)
{
    if (gamma == 0) gamma = 0.95;
    if (!mc_failed(ctx) && !(gamma > 0 && gamma <= 1)) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "schedule exponential: gamma %g, expected (0, 1]", gamma);
        return NULL;
    }
    return scheduler_new(ctx, (mc_lr_scheduler){.name = "exponential",
                                                .decay = exponential,
                                                .lr = lr,
                                                .warmup = warmup,
                                                .gamma = gamma});
}

mc_lr_scheduler *mc_lr_scheduler_new(mc_context *ctx, mc_lr_fn fn, void *user)
{
    if (!mc_failed(ctx) && !fn) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "mc_lr_scheduler_new: the function is NULL");
        return NULL;
    }
    return scheduler_new(
        ctx, (mc_lr_scheduler){.name = "custom", .decay = custom, .fn = fn, .user = user});
}

/* ---- values ---------------------------------------------------------------------------------- */

double mc_lr_scheduler_at(const mc_lr_scheduler *s, int64_t n)
{
    if (!s || mc_failed(s->ctx) || n < 0) return NAN;
    if (n >= s->warmup) return s->decay(s, n);
    double peak = s->decay == noam ? s->lr / sqrt((double)s->warmup) : s->lr;
    return peak * (double)n / (double)s->warmup;
}

double mc_lr_scheduler_lr(const mc_lr_scheduler *s)
{
    return s ? mc_lr_scheduler_at(s, mc_lr_scheduler_count(s)) : NAN;
}

int64_t mc_lr_scheduler_count(const mc_lr_scheduler *s)
{
    if (!s) return 0;
    mc_optim_manager_settle(s->manager);
    return s->count;
}

mc_status mc_lr_scheduler_set_count(mc_lr_scheduler *s, int64_t count)
{
    if (!s) return MC_ERR_ARGUMENT;
    if (mc_failed(s->ctx)) return mc_error_status(s->ctx);
    if (count < 0)
        return mc_fail(s->ctx, MC_ERR_ARGUMENT, "schedule %s: a count of %lld steps", s->name,
                       (long long)count);
    mc_status status = mc_optim_manager_settle(s->manager);
    if (!status) s->count = count;
    return status;
}
