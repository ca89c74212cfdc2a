/* What the C files of CUDA attention ask of attention.cu. */
#ifndef MC_DEVICE_CUDA_ATTENTION_ATTENTION_INTERNAL_H
#define MC_DEVICE_CUDA_ATTENTION_ATTENTION_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Makes cuDNN's plans for a case where it may serve it; with `backward`, for both directions. To be
 * called before a recording that first sees the case: starting cuDNN waits for the GPU. */
void mc_cuda_attention_prepare(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                               mc_matrix k, mc_matrix v, mc_matrix out, bool backward);

/* Attention by cuDNN (attention_cudnn.c); MC_ERR_UNSUPPORTED where it has no plan. The backward
 * pass is our own kernel's where there is one for the case, unless cuDNN is wanted `alone`, which
 * all calls for a case have to agree on. */
void mc_cudnn_prepare(mc_device *d, const mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                      mc_matrix v, mc_matrix out, bool alone,
                      bool backward); /* leaves a failure in d */
mc_status mc_cudnn_attention(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                             mc_matrix k, mc_matrix v, mc_matrix out, bool alone,
                             float *log_sum_exp);
mc_status mc_cudnn_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                      mc_matrix k, mc_matrix v, mc_matrix out, bool alone,
                                      const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                      mc_matrix dk, mc_matrix dv);

/* Our own backward pass for Hopper (hopper/attention_backward.cu): whether it takes the case, and
 * the pass. It reads the log-sum-exp (batch, heads, length) of cuDNN's forward pass over a grid.
 * dout, dq, dk and dv are aligned to 16 bytes and have a stride that is a multiple of 8. Results
 * are bit-equal from run to run. */
#ifdef MC_HAVE_HOPPER /* code for compute capability 9.0a is built */
bool mc_hopper_attention_takes(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                               mc_matrix k, mc_matrix v, mc_matrix out);
mc_status mc_hopper_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                       mc_matrix k, mc_matrix v, mc_matrix out,
                                       const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                       mc_matrix dk, mc_matrix dv);
#else
static inline bool mc_hopper_attention_takes(mc_device *d, const mc_attention_shape *shape,
                                             mc_matrix q, mc_matrix k, mc_matrix v, mc_matrix out)
{
    return (void)d, (void)shape, (void)q, (void)k, (void)v, (void)out, false;
}
static inline mc_status mc_hopper_attention_backward(mc_device *d, const mc_attention_shape *shape,
                                                     mc_matrix q, mc_matrix k, mc_matrix v,
                                                     mc_matrix out, const float *log_sum_exp,
                                                     mc_matrix dout, mc_matrix dq, mc_matrix dk,
                                                     mc_matrix dv)
{
    (void)d, (void)shape, (void)q, (void)k, (void)v, (void)out, (void)log_sum_exp;
    return (void)dout, (void)dq, (void)dk, (void)dv, MC_ERR_UNSUPPORTED;
}
#endif

/* Our own attention on Hopper's tensor cores (hopper/attention_tensor.cu), f16 and bf16, with a
 * bias by distance, marks and packed keys; log_sum_exp is as the table has it. Why it does not
 * take a case, NULL if it does; all calls for a case have to agree. Results are the same to the
 * bit from run to run. */
#ifdef MC_HAVE_HOPPER
const char *mc_tensor_attention_refusal(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                        mc_matrix k, mc_matrix v, mc_matrix out);
mc_status mc_tensor_attention(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                              mc_matrix k, mc_matrix v, mc_matrix out, float *log_sum_exp);
mc_status mc_tensor_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                       mc_matrix k, mc_matrix v, mc_matrix out,
                                       const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                       mc_matrix dk, mc_matrix dv);
#else
static inline const char *mc_tensor_attention_refusal(mc_device *d, const mc_attention_shape *shape,
                                                      mc_matrix q, mc_matrix k, mc_matrix v,
                                                      mc_matrix out)
{
    (void)d, (void)shape, (void)q, (void)k, (void)v, (void)out;
    return "anything: this build has no code for compute capability 9.0a";
}
static inline mc_status mc_tensor_attention(mc_device *d, const mc_attention_shape *shape,
                                            mc_matrix q, mc_matrix k, mc_matrix v, mc_matrix out,
                                            float *log_sum_exp)
{
    (void)d, (void)shape, (void)q, (void)k, (void)v, (void)out, (void)log_sum_exp;
    return MC_ERR_UNSUPPORTED;
}
static inline mc_status mc_tensor_attention_backward(mc_device *d, const mc_attention_shape *shape,
                                                     mc_matrix q, mc_matrix k, mc_matrix v,
                                                     mc_matrix out, const float *log_sum_exp,
                                                     mc_matrix dout, mc_matrix dq, mc_matrix dk,
                                                     mc_matrix dv)
{
    (void)d, (void)shape, (void)q, (void)k, (void)v, (void)out, (void)log_sum_exp;
    return (void)dout, (void)dq, (void)dk, (void)dv, MC_ERR_UNSUPPORTED;
}
#endif

/* What the graphs read besides the matrices, written on the device's stream (attention.cu). */
typedef struct mc_sdpa_inputs {
    const int32_t *device_lengths, *device_key_lengths; /* see mc_attention_shape */
    int count, batch, heads; /* sequences, and how many the graph has room for */
    int64_t q_stride, kv_stride, out_stride;
    int32_t *lengths;                              /* (batch), 0 after the last; NULL: not ragged */
    int64_t *q_starts, *out_starts, *stats_starts; /* (batch + 1) */
    int32_t *key_lengths;                          /* as `lengths`; NULL: they are the same */
    int64_t *kv_starts;                            /* (batch + 1), with key_lengths */
    uint64_t *random;                              /* seed and offset; NULL: no dropout */
    uint64_t seed, offset;
    const uint64_t *base; /* see mc_dropout_mask */
} mc_sdpa_inputs;

/* Whether the sequences do not form a dense grid of one length that cuDNN likes (of queries and of
 * keys, and of the bias's sizes), so that its graph is the ragged one. */
bool mc_sdpa_is_ragged(const mc_attention_shape *shape);

mc_status mc_sdpa_write_inputs(mc_device *d, const mc_sdpa_inputs *inputs);

/* Zeros in the rows after the last token of one matrix, out, or of three: dq, packed as the
 * queries, dk and dv, as the keys. */
mc_status mc_sdpa_zero_tails(mc_device *d, const mc_attention_shape *shape, int count,
                             const mc_matrix *y);

/* to = from, (rows, columns), converting dtypes. */
mc_status mc_sdpa_copy_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix from,
                            mc_matrix to);

#ifdef __cplusplus
}
#endif
#endif
