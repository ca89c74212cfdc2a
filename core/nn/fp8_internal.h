/* A tree's linear layers in 8 bits: their scales, which an OptimManager advances at each step, and
 * bytes of weights that ranks have whole. */
#ifndef MC_NN_FP8_INTERNAL_H
#define MC_NN_FP8_INTERNAL_H

#include "core/nn/module_internal.h"
#include "core/nn/recipe.h"
#include "core/ops/fp8_internal.h"

typedef struct mc_fp8_state {
    mc_recipe recipe;
    mc_stored **weights; /* (count) */
    int count;
    mc_fp8_scale *scales; /* (count, MC_FP8_ROLES), device memory */
    mc_fp8_seen *seen;    /* the same */
    mc_fp8_seen *parts;   /* (ranks, count, MC_FP8_ROLES); NULL with one rank */
    bool advanced; /* scales follow updates; before the first they are those of the tensors */
} mc_fp8_state;

/* Linear layers of blocks with sizes that products take; factors of adapters are none. */
bool mc_fp8_may_take_part(const mc_stored *s);
/* The kinds of a tree's layers, unmeasured; how many. The number of a layer's kind; -1: none. */
int mc_fp8_list_kinds(const mc_module_root *root, mc_fp8_kind kinds[MC_FP8_KINDS]);
int mc_fp8_kind_of(const mc_fp8_kind *kinds, int count, const mc_stored *s);

/* activation(scale * x W^T + b) on a tape that trains, of a weight with stored->fp8; with `defers`
 * only a further such product may read it (mc_fp8_use.defers). */
mc_tensor *mc_stored_fp8_product(mc_tape *t, mc_tensor *x, mc_stored *stored, mc_tensor *weight,
                                 mc_tensor *bias, mc_activation activation, bool defers);

/* Of the weights' casts that are there. */
uint64_t mc_fp8_kept_bytes(const mc_module_root *root);

/* Scales of the next update, of what all ranks have seen; adds that to *total, in device memory.
 * Nothing without fp8. */
mc_status mc_fp8_advance_scales(mc_module_root *root, mc_fp8_total *total);
/* After a checkpoint was read: `stepped` if its tree has taken a step. */
void mc_fp8_restored(mc_module_root *root, bool stepped);

#endif
