/* A list of blocks. A block is the unit of recompute, of flat storage and, with several ranks, of
 * sharding.
 *
 * A block is a module of your own with a forward function. The list runs the blocks in order, each
 * on the previous one's result. Tensors created inside a block are released when it returns, except
 * its result and what backward needs.
 *
 * A list may run several times on a tape. Parameters of a block may also be used outside of it,
 * with the same results. If they are sharded, they then stay gathered until the tape ends, and
 * their gradients are summed at the end of its backward pass. mc_linear_cross_entropy, which writes
 * gradients in the forward pass, accepts parameters of its own block only at levels 0 and 1 (else
 * MC_ERR_STATE).
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_NN_BLOCK_LIST_H
#define MC_NN_BLOCK_LIST_H

#include "core/nn/call.h"
#include "core/nn/module.h"

typedef struct mc_block_list mc_block_list;

typedef enum mc_recompute {
    MC_RECOMPUTE_DEFAULT = 0, /* none */
    MC_RECOMPUTE_NONE,
    MC_RECOMPUTE_SELECTIVE, /* backward recomputes outputs of norms, of activations, and of dropout
                               after these; bit-equal to none */
    MC_RECOMPUTE_FULL, /* only a block's input is kept; backward runs its forward again. Bit-equal
                          to none, except the gradient of a tensor of the call that several blocks
                          use: each block's part is rounded before it is added */
} mc_recompute;

typedef struct mc_block_options {
    mc_zero_level zero_level; /* of each block's parameters */
    mc_recompute recompute;
    void *config; /* passed to the constructor */
} mc_block_options;

/* Creates block number `index`: adds a module to `list` under `name` with mc_module_add and returns
 * its struct, which begins with its mc_module (else MC_ERR_ARGUMENT). NULL after an error. */
typedef void *(*mc_block_new_fn)(mc_module *list, const char *name, int index, void *config);
/* x: the previous block's result; call: the rest of the batch, never NULL. */
typedef mc_tensor *(*mc_block_forward_fn)(mc_tape *t, void *block, mc_tensor *x,
                                          const mc_call *call);

MC_API mc_block_list *mc_block_list_new(mc_module *parent, const char *name, int count,
                                        mc_block_new_fn new_block, mc_block_forward_fn forward,
                                        const mc_block_options *options);
MC_API int mc_block_list_count(const mc_block_list *list);
MC_API void *mc_block_list_at(mc_block_list *list, int index); /* NULL out of range */
/* May be changed between tapes. Errors: a number that is no mc_recompute. */
MC_API mc_status mc_block_list_set_recompute(mc_block_list *list, mc_recompute recompute);

/* Runs all blocks, each on the previous one's result and with the same call (NULL: an empty one),
 * in which only `layer` differs:
 *
 *     x = mc_block_list_forward(t, list, x, &(mc_call){.extra = {scale}});
 *     x = mc_block_list_forward(t, list, x, NULL);
 *
 * Results between blocks are released, unless call->hidden keeps them. Blocks of a pre-LN model may
 * return deferred sums (mc_residual_defer); the list then returns one too, except under
 * MC_RECOMPUTE_FULL. */
MC_API mc_tensor *mc_block_list_forward(mc_tape *t, mc_block_list *list, mc_tensor *x,
                                        const mc_call *call);

#endif
