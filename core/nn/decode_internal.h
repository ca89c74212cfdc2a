/* The interface between attention layers and a cache of keys and values. */
#ifndef MC_NN_DECODE_INTERNAL_H
#define MC_NN_DECODE_INTERNAL_H

#include "core/nn/call.h"
#include "core/ops/attention.h"

/* Access to the keys and values of earlier tokens during generation. The owner of a cache fills it
 * in, once for self-attention and once for an encoder's memory. `layer` is the block's number in
 * its list. */
struct mc_decode {
    void *cache;
    /* The result of attention over the layer's whole cache, (rows, heads * head_dim). x is qkv as
     * in mc_sdpa, whose keys and values are added to the cache first; for a memory it is q. */
    mc_tensor *(*attend)(mc_tape *t, void *cache, int layer, mc_tensor *x,
                         const mc_sdpa_options *options);
    /* Stores the keys and values of a memory, kv as in mc_sdpa_cross. NULL for self-attention.
     * False after an error. */
    bool (*keep)(mc_tape *t, void *cache, int layer, mc_tensor *kv);
};

#endif
