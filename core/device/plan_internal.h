/* The planning device: takes the place of another device and computes nothing. Its memory has
 * addresses that nobody may touch; what is taken and given back is counted. So a training step that
 * is run on it measures what memory the step will need on the real device, by the code that will
 * take it: models, operations, the tape and optimizers know of no difference.
 *
 * What kernels take while they run is known to the other device's `planning` table, whose kernels
 * call mc_plan_scratch with the bytes that the real ones take (the sum, if they hold several blocks
 * at once). How long they run is a timer's affair: plan_timer_internal.h. */
#ifndef MC_DEVICE_PLAN_INTERNAL_H
#define MC_DEVICE_PLAN_INTERNAL_H

#include "core/device/device_internal.h"

/* What was in use when the most memory was. */
typedef struct mc_plan_peak {
    size_t bytes;   /* of all, `scratch` and `logits` included */
    size_t scratch; /* taken by a kernel while it ran */
    size_t logits;  /* of chunks of logits, see mc_linear_cross_entropy */
} mc_plan_peak;

/* Makes a planning device in place of `like`, which must outlive it. NULL when memory is out. */
mc_device *mc_plan_open(mc_device *like);
bool mc_device_is_plan(const mc_device *device);
/* The device in whose place it is. */
mc_device *mc_plan_like(mc_device *plan);
/* From now on a GPU is planned for, although the device in whose place it is is the host: kernels
 * are taken to need no scratch memory. Elsewhere nothing. */
void mc_plan_pretend_gpu(mc_device *plan);
bool mc_plan_is_host(mc_device *plan); /* whether the host is planned for */
/* Whether a device computes on the host, or one that plans does so for the host. */
bool mc_device_is_host(mc_device *device);
/* The most so far, since the last call of mc_plan_restart. */
mc_plan_peak mc_plan_peak_of(mc_device *plan);
/* From now on calls `watch` when the most memory so far is in use: now, and then before any of it
 * is given back or more is taken. NULL ends that, after a last call if one is due. */
void mc_plan_watch_peak(mc_device *plan, void (*watch)(void *user), void *user);
/* What the system has to give for the whole plan: on the host with the gaps between blocks. */
uint64_t mc_plan_touched(mc_device *plan);
/* On the host: the address space that the pool takes for it. */
uint64_t mc_plan_space(mc_device *plan);
/* Forgets the peak, which is what is in use now, and the time that has passed. */
void mc_plan_restart(mc_device *plan);

/* For planning kernels: scratch memory that is taken and given back within the kernel. */
mc_status mc_plan_scratch(mc_device *plan, size_t bytes);

/* Kernels that say what work they stand for, take the scratch memory that those of the other device
 * take, and do nothing else. */
extern const mc_kernels mc_plan_kernels;
/* The other device's `planning` table. */
const mc_kernels *mc_plan_scratch_kernels(mc_device *plan);
/* Blocks of so many bytes are logits: a cross-entropy makes them their own gradient. */
void mc_plan_logits(mc_device *plan, size_t bytes);

#endif
