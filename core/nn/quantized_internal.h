/* Weights in 8 bits. A stored tensor (rows, columns) has a copy of bytes, with a scale per row,
 * which products use in place of its values. The values may be kept beside it (for an embedding
 * that is also the head's weight) or not. Every rank has complete copies. */
#ifndef MC_NN_QUANTIZED_INTERNAL_H
#define MC_NN_QUANTIZED_INTERNAL_H

#include "core/nn/module_internal.h"
#include "core/ops/ops_internal.h"

/* What happens to a stored tensor. */
typedef enum mc_quantized_choice {
    MC_QUANTIZED_NOT,
    MC_QUANTIZED_BESIDE, /* a copy; the values stay */
    MC_QUANTIZED_ALONE   /* the values' memory is freed */
} mc_quantized_choice;

typedef struct mc_quantized_plan {
    mc_weight_format format;
    mc_quantized_choice (*choose)(const mc_stored *stored, void *user);
    void *user;
    bool trains; /* training continues: the model is an adapter's base */
} mc_quantized_plan;

/* Bytes of the copies below a root, with their scales. */
uint64_t mc_quantized_bytes(const mc_module_root *root);

/* Quantizes the tensors that `choose` selects, bucket by bucket. Freezes all parameters below the
 * root; if the plan trains, only the selected ones. Collective. Errors: an open tape that uses the
 * model; gradients or state of an optimizer; nothing to do; a value that is not finite (named with
 * its parameter and row). If memory runs out, a part is done, and another call does the rest. */
mc_status mc_module_quantize(mc_module_root *root, const mc_quantized_plan *plan);

/* activation(scale * x W^T + bias) with the copy's first `rows` rows; `bias` (rows) may be NULL. On
 * training tapes of a tree with a recipe x is cast to 8 bits too (fp8_internal.h). */
mc_tensor *mc_stored_product(mc_tape *t, mc_tensor *x, mc_stored *stored, int64_t rows,
                             mc_tensor *bias, mc_activation activation, float scale);
/* The copy's values in the model's dtype, as a tensor of an evaluation tape. */
mc_tensor *mc_stored_dequantized(mc_tape *t, mc_stored *stored);
/* The same for one of its parameters, in host memory. */
mc_status mc_stored_read_quantized(const mc_parameter *p, float *values);

/* Whether a stored tensor has a copy. */
static inline bool mc_stored_has_quantized(const mc_stored *s) { return s->quantized.data; }

/* The format of what is in 8 bits below a root; MC_WEIGHTS_FLOAT (0): nothing is. */
mc_weight_format mc_module_weight_format(const mc_module_root *root);

#endif
