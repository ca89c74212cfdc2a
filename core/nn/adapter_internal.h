/* Low-rank adapters (LoRA, Hu et al. 2021) of weights of linear layers: y = x W^T + b + scale *
 * (dropout(x) A^T) B^T, where A (rank, in) and B (out, rank) are parameters of their own, and W
 * need not be trained.
 *
 * An adapter belongs to a stored weight, so that every layer with such a weight has it without
 * knowing. Of a weight that holds several parameters (query, key and value) it may adapt some;
 * their As are stored as one, so that one product with x serves them all, and their Bs' products go
 * to the columns of the one result. */
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
    float scale;   /* of the product with B; the weight's own scale has no part in it */
    float dropout; /* of x before A, the same for all sites */
    int count;
    mc_adapter_site site[MC_LOW_RANK_PARTS];
} mc_adapter;

/* Says that a layer uses what is stored with the weight in mc_weight_product alone, so that it may
 * have an adapter. `scale`: of the product. NULL is ignored. */
void mc_weight_declare(mc_parameter *weight, float scale);

/* Declares the factors of an adapter, whose sites say which parts they are for and are filled in
 * here, in the weight's block: "NAME.lora_A.weight", uniform in +-1 / sqrt(in) (what
 * torch.nn.init.kaiming_uniform_ with a = sqrt(5) gives), and "NAME.lora_B.weight", zeros, where
 * the site's first parameter is "NAME.weight". Copies *adapter. Errors: a weight that has one. */
mc_status mc_adapter_add(mc_stored *weight, const mc_adapter *adapter);

/* Adds all adapters below a root to their weights: W += scale / s * B A, where s is the factor of
 * the layer's product; and removes them and their parameters, which must be the last that were
 * declared (else MC_ERR_STATE). No tape that uses the model may be open. All ranks do it
 * together. */
mc_status mc_adapters_merge(mc_module_root *root);

/* Whether a parameter is a factor of an adapter. */
bool mc_parameter_is_factor(const mc_parameter *parameter);

/* activation(scale * x W^T + b), with the scale that was declared, and what W's adapter adds before
 * the activation. `weight` and `bias` (may be NULL) are the first parts of what is stored. */
mc_tensor *mc_weight_product(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_parameter *bias,
                             mc_activation activation);
/* The same where the product with `next` alone reads the result: with both in 8 bits that may stand
 * for the activation of a tensor (mc_tensor.pre), which only mc_weight_product and mc_tape_release
 * take. */
mc_tensor *mc_weight_product_for(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_parameter *bias,
                                 mc_activation activation, const mc_parameter *next);

#endif
