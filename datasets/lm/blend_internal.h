/* Which source gives the n-th window of a blend, and its how manieth it is.
 *
 * Megatron's rule: with weights w that sum up to 1 and c windows taken so far of each source, the
 * next one is of the source with the largest w * max(n, 1) - c, the first of equals. Here weights
 * are p / P for whole p, so no rounding decides. Let e = n * p / P - c. The rule takes from a
 * source with e >= 0, so e > -1 always; at n = P all e are whole, hence >= 0, and their sum is 0:
 * each source has had exactly p windows. So the order repeats after P windows (but for the very
 * first one), and any position is found by running less than P steps from the last multiple of P.
 */
#ifndef MC_DATASETS_LM_BLEND_INTERNAL_H
#define MC_DATASETS_LM_BLEND_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mc_lm_blend {
    int count;      /* sources */
    int64_t *part;  /* (count) p of each */
    int64_t period; /* P, their sum */
    int64_t round;  /* whole periods before the next window, */
    int64_t at;     /* and windows since */
    int64_t *taken; /* (count) of these */
} mc_lm_blend;

/* A blend at its first window. False without memory. Weights are positive and finite. */
bool mc_lm_blend_init(mc_lm_blend *blend, const double *weights, int count);
void mc_lm_blend_release(mc_lm_blend *blend);
/* Goes to window n >= 0, in less than a period of steps, and no more than n lies ahead. */
void mc_lm_blend_seek(mc_lm_blend *blend, int64_t n);
/* The source of the next window, and how many of that source came before it. */
int mc_lm_blend_next(mc_lm_blend *blend, int64_t *sample);

#endif
