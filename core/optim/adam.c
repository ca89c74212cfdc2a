/* Adam and AdamW; the rule stands in optimizer.h. */
#include <math.h>
#include "core/optim/optimizer_internal.h"

typedef struct adam_settings {
    float beta1, beta2, eps;
    bool l2;
} adam_settings;

/* Bias corrections are computed in double from the very betas that the kernel uses: with 0.999 here
 * and 0.999f there, v would be off by 1e-5 of itself. */
static mc_status adam_step(mc_context *ctx, const void *settings, const mc_optimizer_range *range)
{
    const adam_settings *s = settings;
    double correction1 = 1 - pow(s->beta1, (double)range->step);
    double correction2 = 1 - pow(s->beta2, (double)range->step);
    mc_adam_step step = {
        .gradient_scale = range->gradient_scale,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .eps = s->eps,
        .step_size = (float)(range->lr / correction1),
        .sqrt_correction2 = (float)sqrt(correction2),
        .decay = s->l2 ? 0 : (float)(range->lr * (double)range->weight_decay),
        .l2 = s->l2 ? range->weight_decay : 0,
    };
    mc_device *device = ctx->device;
    return device->kernels->adam(device, range->count, step, range->gradient, range->state[0],
                                 range->state[1], range->master, range->parameter, range->dtype);
}

static const mc_optimizer_kind ADAM = {
    .name = "adam",
    .state_count = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .step = adam_step,
};

mc_optimizer *mc_adam_new(mc_context *ctx, const mc_adam_options *options)
{
    if (mc_failed(ctx)) return NULL;
    mc_adam_options none = {0};
    if (!options) options = &none;
    adam_settings settings = {
        .beta1 = mc_option(options->beta1, 0.9f),
        .beta2 = mc_option(options->beta2, 0.999f),
        .eps = mc_option(options->eps, 1e-8f),
        .l2 = options->l2,
    };
    if (!mc_option_check(ctx, "adam", "beta1", settings.beta1, 1) ||
        !mc_option_check(ctx, "adam", "beta2", settings.beta2, 1) ||
        !mc_option_check(ctx, "adam", "eps", settings.eps, INFINITY))
        return NULL;
    mc_optimizer_options common = {options->lr, options->weight_decay, options->no_decay_bias_norm};
    return mc_optimizer_new(ctx, &ADAM, &common, &settings, sizeof settings);
}

mc_optimizer *mc_adam_offload_new(mc_context *ctx, const mc_adam_options *options)
{
    return mc_adam_new(ctx, options);
}
