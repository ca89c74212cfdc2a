/* A tree's linear layers in 8 bits: their scales, which an OptimManager advances at each step, and
 * the bytes of weights. If ranks share the weights, they gather them in 8 bits (fp8_gather.c).
 * Layers whose weights are stored in 8 bits (quantized_internal.h) have scales of rows, and no
 * state. */
#ifndef MC_NN_FP8_INTERNAL_H
#define MC_NN_FP8_INTERNAL_H

#include "core/nn/module_internal.h"
#include "core/nn/recipe.h"
#include "core/ops/fp8_internal.h"

enum { MC_FP8_BY_ROWS = -1 /* mc_stored.fp8 of a weight that is stored in 8 bits */ };

/* The fixed scale of a layer's input, for the product or norm that writes it (mc_fp8_use.result).
 * cuBLASLt requires its address to be a multiple of 16. */
typedef struct mc_fp8_fixed {
    float scale, unused[3];
} mc_fp8_fixed;

typedef struct mc_fp8_state {
    mc_recipe recipe;
    mc_stored **weights; /* (count) */
    int count;
    int by_rows;          /* layers with MC_FP8_BY_ROWS */
    mc_fp8_scale *scales; /* (count, MC_FP8_ROLES), device memory */
    mc_fp8_seen *seen;    /* the same */
    mc_fp8_seen *parts;   /* (ranks, count, MC_FP8_ROLES); NULL with one rank */
    bool advanced;        /* scales follow earlier updates; false before the first */
    uint64_t epoch; /* MC_FP8_STATIC: the values_epoch that scales were fixed at; 0: not yet */
    mc_fp8_fixed *inputs; /* MC_FP8_STATIC: (count), device memory; NULL: not fixed yet */
} mc_fp8_state;

/* Whether it can be in 8 bits with scales of tensors: a linear weight of a block, of suitable size,
 * no adapter's factor, not stored in 8 bits. */
bool mc_fp8_may_take_part(const mc_stored *s);
/* Whether a recipe (one without fp8 too) allows weights that are stored in that format; else
 * MC_ERR_UNSUPPORTED, whose message names `what` they are. */
bool mc_fp8_allows(mc_context *ctx, const mc_recipe *recipe, mc_weight_format format,
                   const char *what);
/* Lists the kinds of a tree's layers, unmeasured: their number. The kind of a layer; -1: none. */
int mc_fp8_list_kinds(const mc_module_root *root, mc_fp8_kind kinds[MC_FP8_KINDS]);
int mc_fp8_kind_of(const mc_fp8_kind *kinds, int count, const mc_stored *s);

/* Whether the tape multiplies by a weight in 8 bits and casts the other operand. */
bool mc_fp8_takes(const mc_tape *t, const mc_stored *stored);
/* The operation on a product's result before the next product. */
typedef struct mc_product_form {
    mc_activation activation;
    bool gated; /* activation(a) * b of the halves a and b of its columns; only with `next` */
    /* The weight, in 8 bits too, of the only product that reads the result; NULL: any operation
     * may. */
    const mc_stored *next;
} mc_product_form;

/* scale * x W^T + b with scales of tensors, in that form, on a tape for which mc_fp8_takes holds.
 * With `next` it may be one that only that product can read (mc_fp8_use.defers, result): with
 * fixed scales its GELU is tanh's approximation, whatever the device. Fixed scales leave a gate to
 * the caller. */
mc_tensor *mc_stored_fp8_product(mc_tape *t, mc_tensor *x, mc_stored *stored, mc_tensor *weight,
                                 mc_tensor *bias, const mc_product_form *form);

/* The scale with which a norm writes its result in 8 bits for the layer that reads it, by what
 * passes before mc_module_calibrate_fp8 have observed (mc_tensor.norm); NULL: it does not. */
const float *mc_fp8_norm_scale(const mc_tape *t, const mc_stored *norm);

/* Whether casts now take scales from the tensors themselves. */
static inline bool mc_fp8_is_current(const mc_fp8_state *f)
{
    if (f->recipe.scaling == MC_FP8_STATIC) return f->epoch == 0;
    return f->recipe.scaling == MC_FP8_CURRENT || !f->advanced;
}

/* Called before a cast of a weight, or of this rank's `share` of it: whether the cast is to be
 * observed. The first one of an update is, on one of the ranks that have all of it, so that counts
 * do not depend on ranks and levels. In a recorded step each is, since it runs again in later
 * updates. */
bool mc_fp8_begin_weight_cast(mc_stored *s, bool share);
/* The form in which a tape uses a bucket's values within a block: `bytes` if it multiplies by all
 * of them in 8 bits and ranks share them. */
struct mc_values *mc_fp8_values_for(const mc_tape *t, mc_bucket *b);
/* mc_zero.cast. */
mc_status mc_fp8_cast_share(mc_zero *zero, mc_bucket *bucket);
/* The weight of gathered bytes, as mc_fp8_use.weight; sizes are in *out. */
bool mc_fp8_gathered(mc_tape *t, const mc_fp8_use *use, bool transposed, mc_fp8_operand *out);

/* Bytes of the kept casts of weights. */
uint64_t mc_fp8_kept_bytes(const mc_module_root *root);

/* Computes the scales of the next update from the maxima of all ranks, and adds statistics to
 * *total, in device memory. Does nothing without fp8. */
mc_status mc_fp8_advance_scales(mc_module_root *root, mc_fp8_total *total);
/* Called after a checkpoint was read. */
mc_status mc_fp8_restored(mc_module_root *root);

#endif
