/* Gradient descent with momentum; the update rule is in optimizer.h. */
#include "core/optim/optimizer_internal.h"

typedef struct sgd_settings {
    float momentum;
    bool nesterov, decoupled;
} sgd_settings;

static mc_status sgd_step(mc_context *ctx, const void *settings, const mc_optimizer_range *range)
{
    const sgd_settings *s = settings;
    mc_sgd_step step = {.update = range->update,
                        .momentum = s->momentum,
                        .nesterov = s->nesterov,
                        .lr_factor = range->lr_factor,
                        .weight_decay = range->weight_decay,
                        .l2 = !s->decoupled,
                        .step_offset = range->step_offset};
    mc_device *device = ctx->device;
    return device->kernels->sgd(device, range->count, step, mc_range_gradient(range),
                                range->state[0], range->master, range->parameter, range->dtype);
}

static const mc_optimizer_kind SGD = {.name = "sgd", .step = sgd_step, .reads_rounded = true};
static const mc_optimizer_kind SGD_MOMENTUM = {.name = "sgd",
                                               .state_count = 1,
                                               .state_name = {"momentum_buffer"},
                                               .step = sgd_step,
                                               .reads_rounded = true};

mc_optimizer *mc_sgd_new(mc_context *ctx, const mc_sgd_options *options)
{
    if (mc_failed(ctx)) return NULL;
    mc_sgd_options none = {0};
    if (!options) options = &none;
    sgd_settings settings = {options->momentum, options->nesterov, options->decoupled};
    if (!mc_option_check(ctx, "sgd", "momentum", settings.momentum, 1)) return NULL;
    if (settings.nesterov && settings.momentum == 0) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "sgd: nesterov needs a momentum above 0");
        return NULL;
    }
    mc_optimizer_options common = {options->lr, options->weight_decay, options->no_decay_bias_norm};
    return mc_optimizer_new(ctx, settings.momentum > 0 ? &SGD_MOMENTUM : &SGD, &common, &settings,
                            sizeof settings);
}
