/* What the C files of CUDA attention ask of attention.cu. */
#ifndef MC_DEVICE_CUDA_ATTENTION_ATTENTION_INTERNAL_H
#define MC_DEVICE_CUDA_ATTENTION_ATTENTION_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

/* A call of either direction. log_sum_exp: written by attention, read by attention_backward; NULL:
 * no backward pass follows. */
typedef struct mc_attention_call {
    const mc_attention_shape *shape;
    mc_matrix q, k, v, out;
    const float *log_sum_exp;
    mc_matrix dout, dq, dk, dv; /* backward */
} mc_attention_call;

/* Chooses a route for a call (NULL log_sum_exp: forward alone) and with it makes cuDNN's plans. To
 * be called before a recording that first sees the case: starting cuDNN waits for the GPU. */
void mc_cuda_attention_prepare(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                               mc_matrix k, mc_matrix v, mc_matrix out, const float *log_sum_exp);

/* Parts of routes (routes_internal.h); the calls are mc_attention_call. */

/* By cuDNN (attention_cudnn.c). */
mc_status mc_cudnn_attention_takes(mc_device *d, const void *call, bool asked);
mc_status mc_cudnn_attention_takes_rest(mc_device *d, const void *call, bool asked);
mc_status mc_cudnn_attention(mc_device *d, const void *call);
mc_status mc_cudnn_attention_backward(mc_device *d, const void *call);
/* Whether its forward kernel takes the call, whatever there is for backward. */
mc_status mc_cudnn_forward_takes(mc_device *d, const mc_attention_call *c);
/* `run` with dout, dq, dk and dv of the dtypes and strides of out, q and k, aligned to 16 bytes: by
 * way of copies where the call's are others. */
mc_status mc_attention_staged(mc_device *d, const mc_attention_call *c,
                              mc_status (*run)(mc_device *d, const mc_attention_call *c));

/* Our backward pass for Hopper after cuDNN's forward pass over a grid (hopper/
 * attention_backward.cu). Results are bit-equal from run to run. */
mc_status mc_hopper_attention_takes(mc_device *d, const void *call, bool asked);
mc_status mc_hopper_attention_backward(mc_device *d, const void *call);

/* Our kernels on Hopper's tensor cores (hopper/attention/attention_tensor.cu), f16 and bf16, with a
 * bias by distance, marks and packed keys. Results are bit-equal from run to run. */
mc_status mc_tensor_attention_takes(mc_device *d, const void *call, bool asked);
mc_status mc_tensor_attention(mc_device *d, const void *call);
mc_status mc_tensor_attention_backward(mc_device *d, const void *call);

/* In f32 arithmetic (attention.cu): every dtype and shape. */
mc_status mc_portable_attention(mc_device *d, const void *call);
mc_status mc_portable_attention_backward(mc_device *d, const void *call);

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
