/* Functions for work that takes part in a recorded step: core/autograd/step.h. */
#ifndef MC_AUTOGRAD_STEP_INTERNAL_H
#define MC_AUTOGRAD_STEP_INTERNAL_H

#include "core/autograd/step.h"
#include "core/device/device_internal.h"

static inline bool mc_step_is_recording(const mc_context *ctx) { return ctx->device->recording; }

/* Adds host work to the recording in progress. Every run calls it, the first one included, before
 * or after the recorded launches; `data` (`bytes` bytes) is copied. */
typedef mc_status (*mc_step_hook_fn)(mc_context *ctx, void *data);
mc_status mc_step_before(mc_context *ctx, mc_step_hook_fn fn, const void *data, size_t bytes);
mc_status mc_step_after(mc_context *ctx, mc_step_hook_fn fn, const void *data, size_t bytes);

/* While recording, dropout offsets count from the start of the step: sets *offset to that count,
 * and returns the device memory that holds the first offset of the running step. */
const uint64_t *mc_step_dropout(mc_context *ctx, uint64_t *offset);

#endif
