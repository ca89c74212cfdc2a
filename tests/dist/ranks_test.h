/* What programs of several ranks share: a small GPT-2 without dropout, and numbers that are the
 * same for everybody. */
#ifndef MC_TESTS_DIST_RANKS_TEST_H
#define MC_TESTS_DIST_RANKS_TEST_H

#include <stdlib.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* The device that MC_TEST_DEVICE names; NULL, the default, if none. */
static inline const char *ranks_device(void) { return getenv("MC_TEST_DEVICE"); }

/* For results that are compared to the bit, before contexts are created: a GPU then uses the same
 * kernels each time, not those that were faster when they were measured. */
static inline void ranks_compare_bits(void) { setenv("MC_DETERMINISTIC", "1", 1); }

static inline mc_gpt2_config small_gpt2_config(int dim, int layers, int vocabulary, int positions)
{
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = vocabulary;
    c.dim = dim;
    c.dim_ff = dim * 3 / 2;
    c.layers = layers;
    c.heads = 4;
    c.positions = positions;
    c.init_std = c.embedding_std = c.ffn_std = 0.05f;
    c.dropout = c.embedding_dropout = c.attention_dropout = 0;
    return c;
}

/* The next number from 0 to n - 1 of the sequence that *state is in. */
static inline int below(uint64_t *state, int n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % (uint64_t)n);
}

#endif
