/* How attention layers reach a cache of keys and values. */
#ifndef MC_NN_DECODE_INTERNAL_H
#define MC_NN_DECODE_INTERNAL_H

#include "core/nn/call.h"
#include "core/ops/attention.h"

/* Where attention layers find the keys and values of earlier tokens while text is generated: filled
 * by the owner of a cache, one for self-attention and one for the memory of an encoder. `layer` is
 * the block's number in its list. */
struct mc_decode {
    void *cache;
    /* The result of attention over all that the cache has for the layer, (rows, heads * head_dim).
     * x is qkv as in mc_sdpa, whose keys and values are kept first; of a memory it is q. */
    mc_tensor *(*attend)(mc_tape *t, void *cache, int layer, mc_tensor *x,
                         const mc_sdpa_options *options);
    /* Keeps the keys and values of a memory, kv as in mc_sdpa_cross. NULL of self-attention. False
     * after an error. */
    bool (*keep)(mc_tape *t, void *cache, int layer, mc_tensor *kv);
};

#endif
