#include "core/autograd/blank_internal.h"

#include "core/device/device_internal.h"

void mc_blank_set(mc_context *ctx, mc_blank *blank, void *const *base, size_t offset, size_t bytes)
{
    mc_blank_take(blank);
    *blank = (mc_blank){ctx->blanks, &ctx->blanks, base, offset, bytes};
    if (blank->next) blank->next->link = &blank->next;
    ctx->blanks = blank;
}

bool mc_blank_take(mc_blank *blank)
{
    if (!blank || !blank->link) return false;
    *blank->link = blank->next;
    if (blank->next) blank->next->link = blank->link;
    blank->next = NULL;
    blank->link = NULL;
    return true;
}

mc_status mc_blank_fill(mc_context *ctx, mc_blank *blank)
{
    mc_device *device = ctx->device;
    if (!mc_blank_take(blank)) return mc_error_status(ctx);
    mc_status status =
        device->kernels->zero(device, (char *)*blank->base + blank->offset, blank->bytes);
    return status ? mc_fail(ctx, status, "gradients: %s", device->failure) : mc_error_status(ctx);
}

mc_status mc_blank_fill_all(mc_context *ctx)
{
    while (ctx->blanks) mc_blank_fill(ctx, ctx->blanks);
    return mc_error_status(ctx);
}
