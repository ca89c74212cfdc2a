/* Low-rank adapters (LoRA, Hu et al. 2021) of linear layers' weights: y = x W^T + b + scale *
 * (dropout(x) A^T) B^T. A (rank, in) and B (out, rank) are separate parameters, and W may be
 * frozen.
 *
 * An adapter belongs to a stored weight, so every layer applies it without further code. If a
 * weight holds several parameters (query, key and value), an adapter may adapt some of them. Their
 * A factors are stored as one tensor, so that a single product with x serves all; the products with
 * the B factors are added to their columns of the result. */
#ifndef MC_NN_ADAPTER_INTERNAL_H
#define MC_NN_ADAPTER_INTERNAL_H

#include "core/nn/module_internal.h"
#include "core/ops/ops_internal.h"

/* Consecutive parts of a stored weight with one A and one B. */
typedef struct mc_adapter_site {
    int first_part, parts;
    mc_parameter *a, *b; /* (rank, in), (rows of the parts, rank) */
} mc_adapter_site;

typedef struct mc_adapter {
    int64_t rank;
    float scale;   /* of the product with B, independent of the weight's own scale */
    float dropout; /* of x before A, the same for all sites */
    int count;
    mc_adapter_site site[MC_LOW_RANK_PARTS];
} mc_adapter;

/* Declares that a layer uses the weight only through mc_weight_product, so that it may have an
 * adapter. `scale`: of the product. NULL is ignored. */
void mc_weight_declare(mc_parameter *weight, float scale);

/* Declares an adapter's factors in the weight's block: "NAME.lora_A.weight", uniform in +-1 /
 * sqrt(in) (like torch.nn.init.kaiming_uniform_ with a = sqrt(5)), and "NAME.lora_B.weight", zeros,
 * where the site's first parameter is "NAME.weight". The sites name their parts; this fills in the
 * rest. Copies *adapter. Errors: a weight that already has an adapter. */
mc_status mc_adapter_add(mc_stored *weight, const mc_adapter *adapter);

/* Merges all adapters below a root into their weights: W += scale / s * B A, where s is the scale
 * of the layer's product. Then removes the adapters and their parameters, which must be the last
 * ones declared (else MC_ERR_STATE). No tape that uses the model may be open. Collective. */
mc_status mc_adapters_merge(mc_module_root *root);

/* Whether a parameter is a factor of an adapter. */
bool mc_parameter_is_factor(const mc_parameter *parameter);

/* activation(scale * x W^T + b + the contribution of W's adapter), with the declared scale.
 * `weight` and `bias` (may be NULL) are the first parts of their stored tensors. */
mc_tensor *mc_weight_product(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_parameter *bias,
                             mc_activation activation);
/* The same if only the product with `next` reads the result. With both products in 8 bits, the
 * result may be a deferred activation (mc_tensor.pre) or bytes (mc_tensor.bytes), without a
 * storage, which only mc_weight_product and mc_tape_release accept. `gated`: the next product reads
 * activation(a) * b of the halves a and b of the columns; a result with a storage is the product
 * alone, for mc_gated. */
mc_tensor *mc_weight_product_for(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_parameter *bias,
                                 mc_activation activation, bool gated, const mc_parameter *next);

#endif
