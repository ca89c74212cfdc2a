/* Weights in 8 bits: a stored tensor (rows, columns) has a copy of bytes and a scale a row, which
 * products take in its place, with values of its own beside it (an embedding that is the head's
 * weight too) or without. Every rank has all of the copies. */
#ifndef MC_NN_QUANTIZED_INTERNAL_H
#define MC_NN_QUANTIZED_INTERNAL_H

#include "core/nn/module_internal.h"
#include "core/ops/ops_internal.h"

/* The form that a stored tensor takes. */
typedef enum mc_quantized_choice {
    MC_QUANTIZED_NOT,
    MC_QUANTIZED_BESIDE, /* a copy; the values stay */
    MC_QUANTIZED_ALONE   /* the values' memory is given back */
} mc_quantized_choice;

typedef struct mc_quantized_plan {
    mc_weight_format format;
    mc_quantized_choice (*choose)(const mc_stored *stored, void *user);
    void *user;
    bool trains; /* the model goes on to be trained, as the base of an adapter is */
} mc_quantized_plan;

/* Bytes of the copies below a root, with their scales. */
uint64_t mc_quantized_bytes(const mc_module_root *root);

/* Quantizes what `choose` picks, bucket by bucket. All parameters below the root are frozen, unless
 * the plan trains: then those that it does not pick stay as they are. All ranks do it together.
 * Errors: a tape is open that uses the model; gradients or state of an optimizer; nothing to do; a
 * value that is not finite (its parameter and row are named). Where memory runs out a part is done,
 * and a further call does the rest. */
mc_status mc_module_quantize(mc_module_root *root, const mc_quantized_plan *plan);

/* activation(scale * x W^T + bias) with the copy's first `rows` rows; `bias` (rows) may be NULL. */
mc_tensor *mc_stored_product(mc_tape *t, mc_tensor *x, mc_stored *stored, int64_t rows,
                             mc_tensor *bias, mc_activation activation, float scale);
/* What the copy stands for, in the model's dtype, as a tensor of an evaluation tape. */
mc_tensor *mc_stored_dequantized(mc_tape *t, mc_stored *stored);
/* The same of one parameter of it, to host memory. */
mc_status mc_stored_read_quantized(const mc_parameter *p, float *values);

/* Whether there is a copy. */
static inline bool mc_stored_has_quantized(const mc_stored *s) { return s->quantized.data; }

/* Whether anything below a root is in 8 bits. */
bool mc_module_has_quantized(const mc_module_root *root);

#endif
