/* What takes part in a step that is recorded: core/autograd/step.h. */
#ifndef MC_AUTOGRAD_STEP_INTERNAL_H
#define MC_AUTOGRAD_STEP_INTERNAL_H

#include "core/autograd/step.h"
#include "core/device/device_internal.h"

static inline bool mc_step_is_recording(const mc_context *ctx) { return ctx->device->recording; }

/* Host work that belongs to every run of the recording being made, before or after what was
 * recorded; `data` (`bytes` bytes) is copied. The recording's first run calls it too. */
typedef mc_status (*mc_step_hook_fn)(mc_context *ctx, void *data);
mc_status mc_step_before(mc_context *ctx, mc_step_hook_fn fn, const void *data, size_t bytes);
mc_status mc_step_after(mc_context *ctx, mc_step_hook_fn fn, const void *data, size_t bytes);

/* While recording, dropout offsets count from the start of the step: sets *offset so, and returns
 * where in device memory the start of the running step stands. */
const uint64_t *mc_step_dropout(mc_context *ctx, uint64_t *offset);

#endif
