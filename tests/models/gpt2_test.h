/* What the tests of GPT-2 share: a small model on the batch of model_test.h. Include after
 * cmocka.h. */
#ifndef MC_TESTS_GPT2_TEST_H
#define MC_TESTS_GPT2_TEST_H

#include "models/family_internal.h"
#include "tests/models/model_test.h"

enum { POSITIONS = 24 };

static inline mc_gpt2_config small_config(void)
{
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = DIM;
    c.dim_ff = 40;
    c.layers = 3;
    c.heads = 4;
    c.positions = POSITIONS;
    c.init_std = c.embedding_std = c.ffn_std = 0.2f;
    c.bos_token_id = 0;
    c.eos_token_id = 1;
    return c;
}

static inline mc_model *new_gpt2(mc_context *ctx, mc_dtype dtype, mc_recompute recompute)
{
    mc_gpt2_config config = small_config();
    return mc_gpt2_new(ctx, &config, NULL,
                       &(mc_load_options){.dtype = dtype, .recompute = recompute});
}

static inline mc_model_input make_batch(mc_tape *t, way how)
{
    model_batch in = batch_for(t, how);
    return (mc_model_input){.ids = in.ids, .mask = in.mask, .lengths = in.lengths};
}

/* The language model's loss on the batch's own tokens. */
static inline mc_tensor *batch_loss(mc_tape *t, mc_model *gpt2, way how)
{
    mc_model_input in = make_batch(t, how);
    mc_tensor *hidden = mc_model_forward(t, gpt2, &in).last_hidden;
    return mc_model_loss(t, gpt2, hidden, mc_model_shift_labels(t, hidden, in.ids));
}

#endif
