/* Adam and AdamW; the rule stands in optimizer.h. */
#include <math.h>
#include "core/optim/optimizer_internal.h"

typedef struct adam_settings {
    float beta1, beta2, eps;
    bool l2;
} adam_settings;

static mc_status adam_step(mc_context *ctx, const void *settings, const mc_optimizer_range *range)
{
    const adam_settings *s = settings;
    mc_adam_step step = {.update = range->update,
                         .beta1 = s->beta1,
                         .beta2 = s->beta2,
                         .eps = s->eps,
                         .lr_factor = range->lr_factor,
                         .weight_decay = range->weight_decay,
                         .l2 = s->l2,
                         .step_offset = range->step_offset};
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
