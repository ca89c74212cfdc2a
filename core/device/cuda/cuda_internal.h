/* The CUDA device: one GPU, one stream on which everything runs in order, a caching pool over
 * cudaMalloc, and kernels. Host code is C (cuda.c, memory.c, gemm.c, attention_cudnn.c, ...),
 * kernels are CUDA C in .cu files. Nothing here waits for the GPU unless it says so. */
#ifndef MC_DEVICE_CUDA_INTERNAL_H
#define MC_DEVICE_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "core/device/device_internal.h"

typedef struct mc_cuda_device {
    mc_device device;
    int ordinal;
    cudaStream_t stream;
    int multiprocessors;
    int capability;     /* 90 for compute capability 9.0 */
    bool deterministic; /* bit-equal results from run to run, at some cost */
    struct mc_cuda_pool *pool;
    struct mc_cuda_staging *staging; /* pinned memory that uploads go through */
    struct mc_cuda_gemm *gemm;       /* cuBLASLt's handle, workspace and plans */
    struct mc_cuda_cudnn *cudnn;     /* NULL: cuDNN is absent or does not start */
} mc_cuda_device;

static inline mc_cuda_device *mc_cuda_of(mc_device *d) { return (mc_cuda_device *)(void *)d; }

/* Every kernel of the table, once: the list declares the functions and fills the table. */
#define MC_CUDA_KERNEL_MAP(X) \
    X(gemm)                   \
    X(linear)                 \
    X(linear_backward_input)  \
    X(bias_activation)        \
    X(activation_backward)    \
    X(activation)             \
    X(column_sums)            \
    X(residual_norm)          \
    X(residual_norm_backward) \
    X(dropout)                \
    X(embedding)              \
    X(embedding_backward)     \
    X(gather_rows)            \
    X(attention)              \
    X(attention_backward)     \
    X(cross_entropy)          \
    X(loss_add)               \
    X(argmax)                 \
    X(add)                    \
    X(multiply)               \
    X(scale)                  \
    X(sum_leading)            \
    X(fill)                   \
    X(zero)                   \
    X(adam)                   \
    X(sgd)                    \
    X(gradient_stats)         \
    X(step_seed)              \
    X(step_count)             \
    X(step_measure)           \
    X(step_decide)            \
    X(step_update)

#define MC_CUDA_DECLARE(name) __typeof__(*((mc_kernels *)0)->name) mc_cuda_##name;
MC_CUDA_KERNEL_MAP(MC_CUDA_DECLARE)
#undef MC_CUDA_DECLARE

/* Keeps what went wrong as text (d->failure, which the operation's error message quotes) and gives
 * the status for it: MC_ERR_NOMEM for memory, MC_ERR_DEVICE otherwise, MC_OK for cudaSuccess.
 * `what` names the call or kernel. */
mc_status mc_cuda_check(mc_device *d, cudaError_t error, const char *what);
/* To be returned by every function that launched kernels: mc_cuda_check of the launches' errors. */
mc_status mc_cuda_launched(mc_device *d, const char *what);
/* d->failure as printf writes it; returns `status`. */
mc_status mc_cuda_fail(mc_device *d, mc_status status, const char *format, ...) MC_PRINTF(3, 4);

/* Attention through cuDNN (attention_cudnn.c) and by our own kernels (attention.cu), which serve
 * every dtype and shape. mc_cudnn_attention* return MC_ERR_UNSUPPORTED where cuDNN has no plan. */
mc_status mc_cudnn_attention(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                             mc_matrix k, mc_matrix v, mc_matrix out, float *log_sum_exp);
mc_status mc_cudnn_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                      mc_matrix k, mc_matrix v, mc_matrix out,
                                      const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                      mc_matrix dk, mc_matrix dv);
void mc_cudnn_free(struct mc_cuda_cudnn *cudnn); /* NULL allowed */
mc_status mc_own_attention(mc_device *d, const mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                           mc_matrix v, mc_matrix out, float *log_sum_exp);
mc_status mc_own_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                    mc_matrix k, mc_matrix v, mc_matrix out,
                                    const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                    mc_matrix dk, mc_matrix dv);

#ifdef __cplusplus
}
#endif
#endif
