/* How the angles of rotary positions are computed: part of the configs of models that use them.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_OPS_ROPE_H
#define MC_OPS_ROPE_H

#include <stdbool.h>

/* How angles are scaled for sequences longer than those of a model's first training. */
typedef enum mc_rotary_type {
    MC_ROTARY_DEFAULT, /* not scaled */
    MC_ROTARY_LINEAR,  /* all are divided by `factor` (Chen et al. 2023) */
    MC_ROTARY_LLAMA3,  /* only slow pairs, as in Llama 3.1 */
    MC_ROTARY_YARN,    /* only slow pairs, as in YaRN (Peng et al. 2023) */
} mc_rotary_type;

typedef struct mc_rotary_scaling {
    mc_rotary_type type;
    float factor; /* required unless type is MC_ROTARY_DEFAULT; above 0 */
    /* LLAMA3 and YARN, required: a pair that makes at most `low` turns within `original` positions
     * is slow; one that makes `high` turns or more is not scaled. Pairs between are interpolated:
     * by angle for LLAMA3, by pair number for YARN. 0 < low < high. */
    float low, high, original;
    bool exact_range; /* YARN: the first and last pair number between are not rounded */
    /* Factor of cosine and sine; 0: 1, but for YARN 0.1 ln(factor) + 1 (1 for a factor up to 1). */
    float attention_factor;
} mc_rotary_scaling;

/* Rotary positions as a config gives them. */
typedef struct mc_rope {
    float theta; /* the base of the angles */
    mc_rotary_scaling scaling;
} mc_rope;

#endif
