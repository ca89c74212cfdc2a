/* The list of a generation step's calls (mc_device.list_open), which are launched together as one
 * kernel (persistent_internal.h). The device's tables call these functions first (current.cu): a
 * call is added to the list, or the list is launched and then the call. All other work for the
 * stream launches the list first, too. Models and operations know nothing of it.
 *
 * The data flow is found once, when a call is added: which calls of the list compute its inputs. It
 * is found by addresses, as the arguments of kernels have no tensors; from then on an input is the
 * step that computes it and a column there. A call's place on the list is the first one after the
 * calls whose results it reads, so independent calls are next to each other. Memory freed meanwhile
 * is freed after the launch: within a list it is used for one thing. A call begins a new list if it
 * would overwrite what an earlier one reads or writes, or if an earlier one writes its parameters.
 *
 * Only attention reads and writes a cache's keys and values while a step is launched. With several
 * ranks every call is launched by itself: a kernel that fills the GPU would delay the collectives'
 * kernels. So it is on a GPU other than Hopper, which has no such kernel. Steps of several rows are
 * deferred only where that is faster, unless MC_ROUTE has decode:persistent. */
#ifndef MC_DEVICE_HOPPER_DEFERRED_INTERNAL_H
#define MC_DEVICE_HOPPER_DEFERRED_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

/* A call within a generation step, as the routes of `decode` see it. */
typedef struct mc_decode_call {
    int64_t rows, norm_width; /* norm_width: a norm's columns; 0 for other calls */
    bool begun;               /* the list has calls already */
} mc_decode_call;

#ifdef MC_HAVE_HOPPER
/* Whether a call may be deferred: mc_route.takes. */
mc_status mc_cuda_defer_takes(mc_device *d, const void *call, bool asked);

/* For a device that is being opened. False after an error. On a GPU without lists nothing is ever
 * deferred. */
bool mc_cuda_defer_begin(mc_device *d);
/* Drops the list without launching it. */
void mc_cuda_defer_end(mc_device *d);

/* Calls of the kernel table that can be deferred: true if the call was. */
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

/* True if the memory will be freed after the list's launch. */
bool mc_cuda_defer_free(mc_device *d, void *data, size_t bytes);

/* Launches the deferred calls, before any other work for the stream. Also returns the error of an
 * earlier call that has no status to return. */
mc_status mc_cuda_catch_up(mc_device *d);
/* The same for callers without a status: the next mc_cuda_catch_up returns the error. */
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
