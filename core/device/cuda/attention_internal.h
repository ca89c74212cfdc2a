/* What the C files of CUDA attention ask of attention.cu. */
#ifndef MC_DEVICE_CUDA_ATTENTION_INTERNAL_H
#define MC_DEVICE_CUDA_ATTENTION_INTERNAL_H

#include "core/device/cuda/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Makes cuDNN's plans for a case where it may serve it; with `backward`, for both directions. To be
 * called before a recording that first sees the case: starting cuDNN waits for the GPU. */
void mc_cuda_attention_prepare(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                               mc_matrix k, mc_matrix v, mc_matrix out, bool backward);
void mc_cudnn_prepare(mc_device *d, const mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                      mc_matrix v, mc_matrix out, bool backward); /* leaves a failure in d */

/* What the graphs read besides the matrices, written on the device's stream (attention.cu). */
typedef struct mc_sdpa_inputs {
    const int32_t *device_lengths, *device_key_lengths; /* see mc_attention_shape */
    int count, batch, heads; /* sequences, and how many the graph has room for */
    int64_t q_stride, kv_stride, out_stride;
    int32_t *lengths; /* (batch), 0 behind the last; NULL: not ragged */
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

/* Zeros in the rows behind the last token of `count` (1 to 3) matrices, of which the first is
 * packed as the queries, the others as the keys. */
mc_status mc_sdpa_zero_tails(mc_device *d, const mc_attention_shape *shape, int count,
                             const mc_matrix *y);

/* to = from, (rows, columns), converting dtypes. */
mc_status mc_sdpa_copy_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix from,
                            mc_matrix to);

#ifdef __cplusplus
}
#endif
#endif
