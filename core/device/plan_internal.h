/* The planning device: it takes the place of another device and computes nothing. Its memory
 * consists of addresses that must not be dereferenced; it counts allocations and frees. So running
 * a training step on it measures the memory that the step will need on the real device, with the
 * same code: models, operations, the tape and optimizers do not notice the difference.
 *
 * The scratch memory of kernels comes from the other device's `planning` table, whose kernels call
 * mc_plan_scratch with the bytes that the real ones allocate. A timer computes their time:
 * plan_timer_internal.h. */
#ifndef MC_DEVICE_PLAN_INTERNAL_H
#define MC_DEVICE_PLAN_INTERNAL_H

#include "core/device/device_internal.h"

/* The memory in use at the peak. */
typedef struct mc_plan_peak {
    size_t bytes;   /* in all, `scratch` and `logits` included */
    size_t scratch; /* of the kernel running then */
    size_t logits;  /* of chunks of logits, see mc_linear_cross_entropy */
} mc_plan_peak;

/* Creates a planning device for `like`, which must outlive it. NULL if memory is out. */
mc_device *mc_plan_open(mc_device *like);
bool mc_device_is_plan(const mc_device *device);
/* The device that it plans for. */
mc_device *mc_plan_like(mc_device *plan);
/* From now on plans for a GPU although `like` is the host: kernels are assumed to need no scratch
 * memory. Does nothing if `like` is a GPU. */
void mc_plan_pretend_gpu(mc_device *plan);
bool mc_plan_is_host(mc_device *plan); /* whether it plans for the host */
/* Whether a device computes on the host, or plans for the host. */
bool mc_device_is_host(mc_device *device);
/* The peak since the last call of mc_plan_restart. */
mc_plan_peak mc_plan_peak_of(mc_device *plan);
/* From now on calls `watch` at each new peak: now, and then before the next allocation or free
 * after it. NULL ends this, after a last call if one is due. */
void mc_plan_watch_peak(mc_device *plan, void (*watch)(void *user), void *user);
/* The memory that the plan needs from the system: on the host with the gaps between blocks. */
uint64_t mc_plan_touched(mc_device *plan);
/* On the host: the address space that the pool reserves for it. */
uint64_t mc_plan_space(mc_device *plan);
/* Sets the peak to the memory in use now, and restarts the time. */
void mc_plan_restart(mc_device *plan);

/* For planning kernels: allocates and frees scratch memory. */
mc_status mc_plan_scratch(mc_device *plan, size_t bytes);
/* For kernels that call another one while they hold scratch memory. NULL if memory is out. */
void *mc_plan_scratch_new(mc_device *plan, size_t bytes);
void mc_plan_scratch_free(mc_device *plan, void *data, size_t bytes);

/* Kernels that report their work, allocate the scratch memory of the other device's kernels, and do
 * nothing else. */
extern const mc_kernels mc_plan_kernels;
/* The other device's `planning` table. */
const mc_kernels *mc_plan_scratch_kernels(mc_device *plan);
/* Declares that blocks of `bytes` bytes are logits, which become their own gradient. */
void mc_plan_logits(mc_device *plan, size_t bytes);

#endif
