/* What the tests of GPT-2 share: a small model and a batch of unequal sequences. Include after
 * cmocka.h. */
#ifndef MC_TESTS_GPT2_TEST_H
#define MC_TESTS_GPT2_TEST_H

#include "core/modelcenter.h"
#include "models/gpt2/gpt2_internal.h"
#include "tests/optim/optim_test.h"

enum { DIM = 16, VOCABULARY = 50, POSITIONS = 24, BATCH = 4, WIDTH = 9 };

static const int32_t batch_lengths[BATCH] = {9, 4, 1, 6};

static inline mc_gpt2_config small_config(void)
{
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = DIM;
    c.dim_ff = 40;
    c.layers = 3;
    c.heads = 4;
    c.positions = POSITIONS;
    c.init_std = 0.2f;
    c.bos_token_id = 0;
    c.eos_token_id = 1;
    return c;
}

static inline mc_gpt2 *new_gpt2(mc_context *ctx, mc_dtype dtype, mc_recompute recompute)
{
    mc_gpt2_config config = small_config();
    return mc_gpt2_new(ctx, &config, &(mc_load_options){.dtype = dtype, .recompute = recompute});
}

static inline int64_t id_at(int row, int column) { return (row * 31 + column * 17 + 5) % 50; }

typedef enum way { LENGTHS, CARRIED, MASK, PACKED, PACKED_WIDE, WAYS } way;

/* The batch in one of the ways that GPT-2 takes. */
static inline mc_gpt2_input make_batch(mc_tape *t, way how)
{
    int64_t ids[2 * BATCH * WIDTH] = {0}, mask[BATCH * WIDTH], n = 0;
    bool packed = how >= PACKED;
    for (int r = 0; r < BATCH; r++)
        for (int c = 0; c < WIDTH; c++) {
            bool here = c < batch_lengths[r];
            mask[r * WIDTH + c] = here;
            if (!packed || here) ids[n++] = here ? id_at(r, c) : 0;
        }
    mc_gpt2_input in = {0};
    const mc_lengths *l = mc_tape_lengths(t, batch_lengths, BATCH, how == PACKED_WIDE ? 16 : 1);
    mc_shape shape = packed ? MC_SHAPE(l->capacity) : MC_SHAPE(BATCH, WIDTH);
    in.ids = mc_tape_input(t, MC_I64, shape, ids, false);
    if (how == MASK)
        in.mask = mc_tape_input(t, MC_I64, shape, mask, false);
    else if (how == CARRIED)
        in.ids->lengths = l;
    else
        in.lengths = l;
    return in;
}

/* The language model's loss on the batch's own tokens. */
static inline mc_tensor *batch_loss(mc_tape *t, mc_gpt2 *gpt2, way how)
{
    mc_gpt2_input in = make_batch(t, how);
    mc_tensor *hidden = mc_gpt2_forward(t, gpt2, &in).last_hidden;
    return mc_gpt2_loss(t, gpt2, hidden, mc_gpt2_shift_labels(t, hidden, in.ids));
}

#endif
