/* The order of an epoch: which dataset row comes when, before rows are dealt to ranks.
 *
 * It depends on (seed, epoch), the dataset and the rows of a global batch alone, so it is the same
 * at any number of ranks that share a global batch of that size.
 *
 * Shuffling is Fisher-Yates with a counter-based generator: word i of a stream is
 * mix(key + (i + 1) * 0x9E3779B97F4A7C15), where mix is SplitMix64's finalizer and key =
 * mix(mix(mix(seed) + epoch) + stream) (stream 0 for rows, 1 for batches); a number below n is word
 * mod n, whose bias is under n / 2^64.
 *
 * By length: the full batches are taken in windows of MC_ORDER_WINDOW; the rows of a window are
 * sorted by weight (ties keep their order) and cut into batches again. If shuffling, the full
 * batches of the epoch are then shuffled as wholes. The rows left for a last, smaller batch are
 * what the shuffle put last; they stay last, sorted among themselves. */
#ifndef MC_DATASETS_ORDER_INTERNAL_H
#define MC_DATASETS_ORDER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MC_ORDER_WINDOW = 16 };

typedef struct mc_order {
    int64_t rows;
    int64_t batch; /* rows of a full batch over all ranks */
    uint64_t seed;
    bool shuffle, by_length;
    const uint32_t *weight; /* (rows) length of each; NULL unless by_length */
    uint64_t *scratch;      /* (mc_order_scratch) */
} mc_order;

/* The parts that other orders are made of: mix and key above. */
uint64_t mc_order_mix(uint64_t x);
uint64_t mc_order_key(uint64_t seed, int64_t epoch, uint64_t stream);

/* Elements of `scratch` an order by length needs. */
size_t mc_order_scratch(int64_t rows, int64_t batch);
/* Writes the rows of `epoch` to out (rows). No allocation. */
void mc_order_build(const mc_order *order, int64_t epoch, int32_t *out);

#endif
