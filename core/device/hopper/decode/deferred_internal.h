/* Calls of the kernel table that are deferred while a step of generation of few rows is launched
 * (mc_device.decoding), to be launched together as one kernel (persistent_internal.h). The entries
 * of the device's tables come here first (current.cu): a call goes on the list, or the list is
 * launched and the call after it. So does whatever else is given to the stream. Models and
 * operations know nothing of it.
 *
 * On the list each call has the earliest place that what it reads allows, so that those that do not
 * depend on each other stand side by side. Memory that is freed meanwhile is deferred too: within a
 * list it is used for one thing. A call that would write to what an earlier one reads or writes, or
 * takes for a parameter what an earlier one writes, begins another list.
 *
 * Keys and values of a cache are read and written by attention alone while a step is launched.
 * Several ranks launch every call by itself: a kernel that fills the GPU would be in the way of
 * those of collectives. So does a GPU that is no Hopper, for which there is no such kernel. Of
 * several rows only steps are deferred that are faster so, unless MC_ROUTE asks for
 * decode:persistent. */
#ifndef MC_DEVICE_HOPPER_DEFERRED_INTERNAL_H
#define MC_DEVICE_HOPPER_DEFERRED_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

/* A kernel's call within a step of generation, as the routes of `decode` see it. */
typedef struct mc_decode_call {
    int64_t rows, norm_width; /* norm_width: of a norm's rows; 0 of other calls */
    bool begun;               /* there are calls on the list */
} mc_decode_call;

#ifdef MC_HAVE_HOPPER
/* Whether a call may be deferred: mc_route.takes. */
mc_status mc_cuda_defer_takes(mc_device *d, const void *call, bool asked);

/* For a device that is being opened. False after an error; where the GPU has no lists, nothing is
 * ever deferred. */
bool mc_cuda_defer_begin(mc_device *d);
/* What is on the list is not launched any more. */
void mc_cuda_defer_end(mc_device *d);

/* Calls of the kernel table that can be deferred: true if it was. */
bool mc_cuda_defer_linear(mc_device *d, const mc_linear_call *call);
bool mc_cuda_defer_linear_quantized(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                    mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                    mc_matrix y);
bool mc_cuda_defer_residual_norm(mc_device *d, const mc_residual_norm_call *call);
bool mc_cuda_defer_residual_sum(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                mc_matrix f, mc_dropout_mask dropout, mc_matrix s);
bool mc_cuda_defer_gated(mc_device *d, int64_t rows, int64_t n, mc_activation activation,
                         mc_matrix x, mc_matrix y);
bool mc_cuda_defer_rotary(mc_device *d, int64_t rows, mc_rotation rotation,
                          const int32_t *positions, mc_matrix x);
bool mc_cuda_defer_attention_cached(mc_device *d, const mc_cached_attention *shape, mc_matrix q,
                                    mc_matrix k, mc_matrix v, mc_matrix out);

/* True if the memory is freed later, when the list has been launched. */
bool mc_cuda_defer_free(mc_device *d, void *data, size_t bytes);

/* Launches what is deferred: called before anything else is given to the stream. A failure that the
 * last caller could not tell, since it returns no status, comes back from the next call. */
mc_status mc_cuda_catch_up(mc_device *d);
/* The same where no status can be returned: it is kept for the next mc_cuda_catch_up. */
void mc_cuda_catch_up_later(mc_device *d);
#else /* a build without Hopper's kernels: nothing is ever deferred */
static inline bool mc_cuda_defer_begin(mc_device *d) { return (void)d, true; }
static inline void mc_cuda_defer_end(mc_device *d) { (void)d; }
static inline bool mc_cuda_defer_free(mc_device *d, void *data, size_t bytes)
{
    return (void)d, (void)data, (void)bytes, false;
}
static inline mc_status mc_cuda_catch_up(mc_device *d) { return (void)d, MC_OK; }
static inline void mc_cuda_catch_up_later(mc_device *d) { (void)d; }
#endif

#ifdef __cplusplus
}
#endif
#endif
