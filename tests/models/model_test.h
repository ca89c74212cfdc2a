/* What the tests of whole models share: a batch of unequal sequences, in every way that models take
 * one, and reading what a step leaves. Include after cmocka.h. */
#ifndef MC_TESTS_MODEL_TEST_H
#define MC_TESTS_MODEL_TEST_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/optim/optim_test.h"

enum { DIM = 16, VOCABULARY = 50, BATCH = 4, WIDTH = 9 };

static const int32_t batch_lengths[BATCH] = {9, 4, 1, 6};

static inline int64_t id_at(int row, int column)
{
    return (row * 31 + column * 17 + 5) % VOCABULARY;
}
static inline int64_t type_at(int row, int column) { return column * 2 > batch_lengths[row]; }

typedef enum way { LENGTHS, CARRIED, MASK, PACKED, PACKED_WIDE, WAYS } way;

/* The batch in one of these ways: what a model's input has of the same names. */
typedef struct model_batch {
    mc_tensor *ids, *type_ids, *mask;
    const mc_lengths *lengths;
} model_batch;

static inline model_batch batch_for(mc_tape *t, way how)
{
    int64_t ids[2 * BATCH * WIDTH] = {0}, types[2 * BATCH * WIDTH] = {0}, mask[BATCH * WIDTH];
    int64_t n = 0;
    bool packed = how >= PACKED;
    for (int r = 0; r < BATCH; r++)
        for (int c = 0; c < WIDTH; c++) {
            bool here = c < batch_lengths[r];
            mask[r * WIDTH + c] = here;
            if (packed && !here) continue;
            ids[n] = here ? id_at(r, c) : 0;
            types[n++] = here && type_at(r, c);
        }
    const mc_lengths *l = mc_tape_lengths(t, batch_lengths, BATCH, how == PACKED_WIDE ? 16 : 1);
    mc_shape shape = packed ? MC_SHAPE(l->capacity) : MC_SHAPE(BATCH, WIDTH);
    model_batch in = {.ids = mc_tape_input(t, MC_I64, shape, ids, false),
                      .type_ids = mc_tape_input(t, MC_I64, shape, types, false)};
    if (how == MASK)
        in.mask = mc_tape_input(t, MC_I64, shape, mask, false);
    else if (how == CARRIED)
        in.ids->lengths = l;
    else
        in.lengths = l;
    return in;
}

/* Hidden states (BATCH, WIDTH, DIM) of the batch, 0 where there is no token. */
static inline void read_valid(mc_context *ctx, mc_tape *t, mc_tensor *hidden, float *out)
{
    float all[BATCH * WIDTH * DIM];
    mc_tensor *x = mc_unpack(t, hidden);
    assert_good(ctx);
    assert_true(mc_shape_equal(x->shape, MC_SHAPE(BATCH, WIDTH, DIM)));
    mc_tensor_read_f32(ctx, x, all, BATCH * WIDTH * DIM);
    for (int r = 0; r < BATCH; r++)
        for (int i = 0; i < WIDTH * DIM; i++)
            out[r * WIDTH * DIM + i] = i / DIM < batch_lengths[r] ? all[r * WIDTH * DIM + i] : 0;
}

/* Runs the loss backward; sum and count of it, and all gradients, to be freed. */
static inline float *loss_and_gradients(mc_tape *t, mc_module *m, mc_tensor *loss, int64_t *count)
{
    mc_context *ctx = m->ctx;
    mc_tape_backward(t, loss, NULL);
    assert_good(ctx);
    float *values = malloc((size_t)(mc_module_parameter_count(m) + 2) * sizeof *values);
    assert_non_null(values);
    mc_tensor_read_f32(ctx, loss, values, 2);
    *count = 2;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(m, &it));
         *count += mc_shape_count(p->shape))
        mc_parameter_read_gradient(p, values + *count);
    return values;
}

/* A loss over no rows is 0, and so is every gradient. */
static inline void assert_leaves_nothing(mc_tape *t, mc_module *m, mc_tensor *loss)
{
    int64_t count;
    assert_true(mc_mean_loss(m->ctx, loss) == 0);
    float *values = loss_and_gradients(t, m, loss, &count);
    for (int64_t i = 2; i < count; i++) assert_true(values[i] == 0);
    free(values);
}

#endif
