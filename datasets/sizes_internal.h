/* A few sizes that batches are rounded up to, so that many batches are of one shape. Which ones is
 * chosen by the batches that there will be: the sum of what rounding adds is the least possible. */
#ifndef MC_DATASETS_SIZES_INTERNAL_H
#define MC_DATASETS_SIZES_INTERNAL_H

#include <stdint.h>

enum { MC_MOST_SIZES = 16, MC_SIZE_CELLS = 256 };

/* A batch, or what it is rounded up to. */
typedef struct mc_size {
    int64_t tokens;
    int32_t longest; /* tokens of its longest sequence */
} mc_size;

typedef struct mc_sizes {
    int count;                   /* sizes; 0: they are not chosen yet */
    mc_size size[MC_MOST_SIZES]; /* ascending in both respects; the last one holds any batch */
    /* while choosing: the batches whose tokens, in units, are 1 .. MC_SIZE_CELLS rounded up */
    int64_t unit;
    int64_t batches[MC_SIZE_CELLS + 1];
    int32_t longest[MC_SIZE_CELLS + 1]; /* of these */
} mc_sizes;

/* What any size of batches of at most `largest` tokens may be above that. */
int64_t mc_sizes_rounding(int64_t largest, int64_t round_to);
/* Begins anew, for batches of at most `largest`. All sizes will be multiples of round_to (>= 1),
 * of 64 tokens, and of about a 256th of the largest. */
void mc_sizes_init(mc_sizes *s, mc_size largest, int64_t round_to);
/* A batch that will occur, or one like it. */
void mc_sizes_note(mc_sizes *s, mc_size batch);
/* Chooses at most `most` sizes (1 to MC_MOST_SIZES). */
void mc_sizes_choose(mc_sizes *s, int most, mc_size largest);
/* The smallest size that holds the batch. */
mc_size mc_sizes_fit(const mc_sizes *s, mc_size batch);

#endif
