/* Branches that end in a linear layer, and the norm of their sum with a residual after it (BERT's
 * sublayers): a tape that records nothing computes both at once. */
#ifndef MC_NN_LAYERS_INTERNAL_H
#define MC_NN_LAYERS_INTERNAL_H

#include "core/nn/layers.h"

typedef struct mc_norm_end {
    mc_layernorm *norm;
    mc_tensor *residual;
    bool done; /* set: what was returned is norm(residual + branch), or NULL after an error */
} mc_norm_end;

/* As the functions without `_end` (mc_linear_forward, ...), with the norm where it can be computed
 * along with the last product; `end` may be NULL. */
mc_tensor *mc_linear_forward_end(mc_tape *t, mc_linear *linear, mc_tensor *x, mc_norm_end *end);
mc_tensor *mc_attention_forward_end(mc_tape *t, mc_attention *a, mc_tensor *x, const mc_call *call,
                                    mc_norm_end *end);
mc_tensor *mc_feed_forward_forward_end(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x,
                                       mc_norm_end *end);

#endif
