/* What a call of a layer or a block carries beside x: the rest of the batch. One struct for every
 * layer, so that a block passes it on as it is, and a mode never lives on a model. */
#ifndef MC_NN_CALL_H
#define MC_NN_CALL_H

#include "core/autograd/tape.h"

enum { MC_CALL_EXTRA = 4 };

/* Where attention layers find the keys and values of earlier tokens while text is generated.
 * Private: models/generate makes it. */
typedef struct mc_decode mc_decode;

/* Zero fields are absent. A block list copies the struct; under MC_RECOMPUTE_FULL the blocks that
 * run again in backward get stand-ins for its tensors, and each tensor gets its gradient. */
typedef struct mc_call {
    /* u8 (total of x's lengths), 0 = nobody attends to this token, for masks that are not lengths;
     * and the same for the tokens of `memory`. */
    mc_tensor *key_mask, *memory_mask;
    /* f32 (heads, 2 * limit - 1), added to the scores of self-attention by the distance of key and
     * query: see mc_position_bias. */
    mc_tensor *position_bias;
    /* i32 (total), 2 * span + context of each token: CPM's mask in place of the causal one. */
    mc_tensor *marks;
    /* i32 (rows): each token's position in its sequence, for rotary positions. */
    mc_tensor *positions;
    /* (rows of the encoder, dim), with lengths: what cross-attention attends to. */
    mc_tensor *memory;
    mc_tensor *extra[MC_CALL_EXTRA]; /* further tensors, for blocks of your own */

    /* ---- what to keep: arrays of the caller's, one entry a block; NULL: not wanted ---- */
    mc_tensor **hidden; /* gets the input of each block, readable until the tape ends */
    /* The attention probabilities of each block, f32 (sequences, heads, longest, longest), on an
     * evaluation tape: of self-attention, and of cross-attention. */
    mc_tensor **attentions, **cross_attentions;

    /* ---- set for blocks by those who run them ---- */
    /* While text is generated: of earlier tokens, and of `memory`, which is given in the first step
     * alone. NULL: none. */
    const mc_decode *decode, *decode_memory;
    int layer; /* the block's number in its list */
} mc_call;

#endif
