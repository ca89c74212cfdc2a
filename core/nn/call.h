/* The arguments of a layer or block besides x: the rest of the batch. All layers take the same
 * struct, so a block passes it on unchanged, and a model stores no mode.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_NN_CALL_H
#define MC_NN_CALL_H

#include "core/autograd/tape.h"

enum { MC_CALL_EXTRA = 4 };

/* The keys and values of earlier tokens, for attention layers during generation. Private:
 * models/generate creates it. */
typedef struct mc_decode mc_decode;

/* A zero field means absent. A block list copies the struct. Under MC_RECOMPUTE_FULL the blocks
 * that run again in backward get substitutes for its tensors, and each original tensor gets its
 * gradient. */
typedef struct mc_call {
    /* Masks that lengths cannot express: u8 (total of x's lengths), 0 = no token attends to this
     * one; memory_mask is the same for the tokens of `memory`. */
    mc_tensor *key_mask, *memory_mask;
    /* f32 (heads, 2 * limit - 1), added to the scores of self-attention by the distance of key and
     * query: see mc_position_bias. */
    mc_tensor *position_bias;
    /* i32 (total), 2 * span + context of each token: CPM's mask in place of the causal one. */
    mc_tensor *marks;
    /* i32 (rows): each token's position in its sequence, for rotary positions. */
    mc_tensor *positions;
    /* For attention layers with global tokens, i32 (rows): 0 = a global token, negative: a token
     * that attends to none. NULL: no token is global. */
    mc_tensor *globals;
    /* The encoder's output, (rows of the encoder, dim), with lengths, for cross-attention. */
    mc_tensor *memory;
    mc_tensor *extra[MC_CALL_EXTRA]; /* further tensors, for blocks of your own */

    /* ---- optional outputs: arrays owned by the caller, one entry per block; NULL: none ---- */
    mc_tensor **hidden; /* gets the input of each block, readable until the tape ends */
    /* The attention probabilities of each block, f32 (sequences, heads, longest, longest), on an
     * evaluation tape: of self-attention, and of cross-attention. */
    mc_tensor **attentions, **cross_attentions;

    /* ---- set by the code that runs the blocks ---- */
    /* During generation: keys and values of earlier tokens, and of `memory`, which is passed only
     * in the first step. NULL: none. */
    const mc_decode *decode, *decode_memory;
    int layer; /* the block's number in its list */
} mc_call;

#endif
