/* The sublayers of a transformer: norm, branch, dropout and residual sum in one call. A block is a
 * few of these, one after the other:
 *
 *     static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
 *     {
 *         my_block *b = object;
 *         x = mc_sublayer_pre_norm(t, x, b->norm1, mc_attention_branch(b->attention), call, p);
 *         return mc_sublayer_pre_norm(t, x, b->norm2, mc_feed_forward_branch(b->ffn), call, p);
 *     }
 *
 * Sums are deferred to the next norm, which computes both in one pass (mc_residual_defer). Memory
 * that is no longer needed is released.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_NN_SUBLAYER_H
#define MC_NN_SUBLAYER_H

#include "core/nn/transformer.h"

/* The part of a sublayer between norm and sum: any layer that takes a call's inputs. */
typedef struct mc_branch {
    mc_tensor *(*forward)(mc_tape *t, void *layer, mc_tensor *x, const mc_call *call);
    void *layer;
} mc_branch;

MC_API mc_branch mc_attention_branch(mc_attention *attention);
MC_API mc_branch mc_feed_forward_branch(mc_feed_forward *ffn);

/* x + dropout(branch(norm(x))), as in GPT-2 and T5; norm NULL: x + dropout(branch(x)). x (rows,
 * dim) may be a deferred sum, and the result is one: pass it to the next sublayer,
 * mc_layernorm_forward_stream, a block list, or mc_residual_sum. `dropout` is a probability in [0,
 * 1), applied on training tapes. */
MC_API mc_tensor *mc_sublayer_pre_norm(mc_tape *t, mc_tensor *x, mc_layernorm *norm,
                                       mc_branch branch, const mc_call *call, float dropout);
/* norm(x + dropout(branch(x))), as in BERT. */
MC_API mc_tensor *mc_sublayer_post_norm(mc_tape *t, mc_tensor *x, mc_branch branch,
                                        const mc_call *call, float dropout, mc_layernorm *norm);
/* x + dropout(a(norm(x))) + dropout(b(norm(x))), as in GPT-J. With `second` (NULL: none) b takes
 * second(x) instead of norm(x). x and the result as in mc_sublayer_pre_norm. */
MC_API mc_tensor *mc_sublayer_parallel(mc_tape *t, mc_tensor *x, mc_layernorm *norm,
                                       mc_layernorm *second, mc_branch a, mc_branch b,
                                       const mc_call *call, float dropout);

#endif
