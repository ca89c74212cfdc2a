/* What general operations do together with the rest: lengths that are refilled in recorded steps,
 * memory as it was planned, losses with and without an OptimManager, and which results are packed.
 * MC_TEST_DEVICE names the device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/device/device_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/ops/ops_internal.h"
#include "tests/device_choice.h"
#include "tests/optim/optim_test.h"

enum { SEED = 5 };

/* ---- lengths that are refilled --------------------------------------------------------------- */

enum { SEQUENCES = 4, ROOM = 40, COLUMNS = 6 };

typedef struct pooling {
    mc_lengths *lengths;
    mc_tensor *x, *y, *dx;
} pooling;

/* y = the means; dx = the gradient of their sum. */
static void pool_step(mc_context *ctx, void *user)
{
    pooling *p = user;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(ROOM, COLUMNS), NULL, true);
    mc_tensor *sum = mc_with_lengths(t, mc_add(t, x, p->x), p->lengths);
    mc_tensor *y = mc_mean_pool(t, sum);
    mc_tensor_copy(p->y, y);
    mc_tensor *total = mc_sum(t, mc_reshape(t, y, MC_SHAPE(SEQUENCES * COLUMNS)), 0);
    const float factor = 1;
    mc_tape_backward(t, total, mc_tape_input(t, MC_F32, (mc_shape){0}, &factor, false));
    mc_tensor_copy(p->dx, mc_tensor_gradient(x));
    mc_tape_end(t);
}

static void check_pooling(mc_context *ctx, const pooling *p, const float *x, const int32_t *length,
                          int count)
{
    float y[SEQUENCES * COLUMNS], dx[ROOM * COLUMNS];
    mc_tensor_read_f32(ctx, p->y, y, SEQUENCES * COLUMNS);
    mc_tensor_read_f32(ctx, p->dx, dx, ROOM * COLUMNS);
    assert_good(ctx);
    int row = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        int n = s < count ? length[s] : 0;
        for (int k = 0; k < COLUMNS; k++) {
            double mean = 0;
            for (int i = 0; i < n; i++) mean += (double)x[(row + i) * COLUMNS + k] / n;
            assert_near(y[s * COLUMNS + k], mean, 1e-5);
            for (int i = 0; i < n; i++) assert_near(dx[(row + i) * COLUMNS + k], 1.0 / n, 1e-6);
        }
        row += n;
    }
    for (int i = row * COLUMNS; i < ROOM * COLUMNS; i++) assert_true(dx[i] == 0);
}

static void test_refilled_lengths(void **state)
{
    (void)state;
    static const int32_t batches[][SEQUENCES] = {
        {10, 3, 20, 7}, {0, 1, 0, 30}, {40, 0, 0, 0}, {0, 0, 0, 0}, {5, 5, 5, 5}};
    mc_context *ctx = test_context(SEED);
    float x[ROOM * COLUMNS];
    for (int i = 0; i < ROOM * COLUMNS; i++) x[i] = sinf((float)i);
    pooling p = {.lengths = mc_lengths_new(ctx, SEQUENCES, ROOM),
                 .x = mc_tensor_from(ctx, MC_F32, MC_SHAPE(ROOM, COLUMNS), x),
                 .y = mc_tensor_new(ctx, MC_F32, MC_SHAPE(SEQUENCES, COLUMNS)),
                 .dx = mc_tensor_new(ctx, MC_F32, MC_SHAPE(ROOM, COLUMNS))};
    for (int i = 0; i < 5; i++) {
        int count = i == 2 ? 1 : SEQUENCES;
        mc_lengths_write(p.lengths, batches[i], count, ROOM, ROOM);
        mc_step_run(ctx, 1, pool_step, &p);
        check_pooling(ctx, &p, x, batches[i], count);
    }
    mc_context_free(ctx);
}

/* Positions that pass over padding, of lengths and ids that change under a recorded step. */
typedef struct placing {
    mc_lengths *lengths;
    mc_tensor *ids, *numbers, *positions; /* numbers: a table whose rows are their numbers */
} placing;

enum { PAD = 1, FIRST = 2 };

static void place_step(mc_context *ctx, void *user)
{
    placing *p = user;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *rows = mc_token_positions(t, p->ids, p->lengths, 9, PAD, FIRST);
    mc_tensor_copy(p->positions, mc_embed(t, 1, &p->numbers, &rows));
    mc_tape_end(t);
}

static void test_token_positions(void **state)
{
    (void)state;
    static const int32_t batches[][SEQUENCES] = {
        {10, 3, 20, 7}, {0, 1, 0, 30}, {40, 0, 0, 0}, {0, 0, 0, 0}, {33, 0, 5, 2}};
    mc_context *ctx = test_context(SEED);
    int32_t ids[ROOM];
    float positions[ROOM], numbers[ROOM + FIRST];
    for (int i = 0; i < ROOM + FIRST; i++) numbers[i] = (float)i;
    placing p = {.lengths = mc_lengths_new(ctx, SEQUENCES, ROOM),
                 .ids = mc_tensor_new(ctx, MC_I32, MC_SHAPE(ROOM)),
                 .numbers = mc_tensor_from(ctx, MC_F32, MC_SHAPE(ROOM + FIRST, 1), numbers),
                 .positions = mc_tensor_new(ctx, MC_F32, MC_SHAPE(ROOM, 1))};
    for (int b = 0; b < 5; b++) {
        for (int i = 0; i < ROOM; i++) ids[i] = (i * i + b) % 5 % 3; /* pads at all places */
        mc_lengths_write(p.lengths, batches[b], SEQUENCES, ROOM, ROOM);
        mc_tensor_write(p.ids, ids, sizeof ids);
        mc_step_run(ctx, 1, place_step, &p);
        mc_tensor_read_f32(ctx, p.positions, positions, ROOM);
        assert_good(ctx);
        int row = 0;
        for (int s = 0; s < SEQUENCES; s++)
            for (int i = 0, next = FIRST; i < batches[b][s]; i++, row++)
                assert_int_equal((int)positions[row], ids[row] == PAD ? FIRST - 1 : next++);
        for (; row < ROOM; row++) assert_int_equal((int)positions[row], FIRST - 1);
    }
    mc_context_free(ctx);
}

/* ---- planning -------------------------------------------------------------------------------- */

/* A head of all of them over an input of the context. */
static void head_step(mc_context *ctx, void *user)
{
    mc_module *root = user;
    mc_tape *t = mc_tape_begin(ctx);
    mc_parameter_iterator it = {0};
    mc_tensor *w = mc_parameter_tensor(t, mc_module_next_parameter(root, &it));
    mc_tensor *x = mc_tape_input(t, MC_BF16, MC_SHAPE(8, 32, 64), NULL, true);
    mc_tensor *part = mc_concat(t, 2, (mc_tensor *[]){mc_slice(t, x, 1, 0, 16), x}, 1);
    mc_tensor *q = mc_matmul(t, part, w, false, true), *k = mc_transpose(t, x, 1, 2);
    mc_tensor *p = mc_softmax(t, mc_matmul(t, q, k, false, false));
    mc_tensor *y = mc_matmul(t, p, mc_sigmoid(t, x), false, false);
    mc_tensor *n = mc_normalize_rows(t, mc_div(t, y, mc_exp(t, q)), 0);
    mc_tensor *rows = mc_mean(t, mc_log_softmax(t, mc_sub(t, n, q)), -1);
    mc_tensor *zeros = mc_tape_input(t, MC_BF16, MC_SHAPE(8, 48), NULL, false);
    mc_tensor *scores = mc_add(t, mc_sum(t, n, 2), mc_mean(t, mc_transpose(t, q, 1, 2), 1));
    mc_tensor *loss =
        mc_loss_add(t, mc_mse_loss(t, rows, zeros), mc_bce_loss(t, scores, zeros, NULL), 1);
    mc_tape_backward(t, loss, NULL);
    mc_tape_end(t);
}

static mc_module *head_new(mc_context *ctx)
{
    mc_module *root = new_root(ctx, MC_BF16);
    mc_parameter_new(root, "w", MC_SHAPE(64, 64), mc_init_normal(0, 0.1f));
    return root;
}

static void test_planned_memory(void **state)
{
    (void)state;
    mc_context *ctx = test_context(SEED), *dry = mc_plan_context_new(ctx);
    mc_module *planned = head_new(dry);
    mc_memory_plan plan;
    mc_plan_run(dry, planned, head_step, planned, &plan);
    assert_good(dry);
    mc_context_free(dry);
    mc_module *real = head_new(ctx);
    for (int i = 0; i < 3; i++) head_step(ctx, real);
    assert_good(ctx);
    mc_memory_use use = mc_memory(ctx);
    assert_near((double)plan.peak, (double)use.peak, 0.02 * (double)use.peak);
    uint64_t calls = ctx->device->memory.system_calls;
    head_step(ctx, real);
    assert_int_equal(ctx->device->memory.system_calls, calls);
    mc_context_free(ctx);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static const float logits[6] = {1, -1, 0.5f, 2, -0.3f, 0.7f};

/* Weights 3 and 1, of rows 0, 1 and 1: the gradient of the mean, by PyTorch's definition. */
static void expect_weighted(const float *g, double factor)
{
    static const double weight[3] = {3, 1, 1};
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 2; c++) {
            const float *x = logits + 2 * r;
            double p = exp(x[c]) / (exp(x[0]) + exp(x[1])), own = c == (r > 0);
            assert_near(g[2 * r + c], factor * weight[r] * (p - own) / 5, 1e-6);
        }
}

static mc_tensor *weighted_loss(mc_tape *t, mc_tensor *x)
{
    mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(3), (int32_t[]){0, 1, 1}, false);
    mc_tensor *weights = mc_tape_input(t, MC_F32, MC_SHAPE(2), (float[]){3, 1}, false);
    return mc_cross_entropy(t, x, labels, &(mc_cross_entropy_options){.class_weights = weights});
}

static void test_weighted_mean(void **state)
{
    (void)state;
    mc_context *ctx = test_context(SEED);
    float g[6], loss_value = 0, weight = 0;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(3, 2), logits, true);
    mc_tensor *loss = weighted_loss(t, x);
    mc_tape_backward(t, loss, NULL); /* the count is found by reading the loss */
    mc_tensor_read_f32(ctx, mc_tensor_gradient(x), g, 6);
    expect_weighted(g, 1);
    for (int r = 0; r < 3; r++) {
        const float *row = logits + 2 * r;
        float w = r ? 1 : 3;
        loss_value += w * (logf(expf(row[0]) + expf(row[1])) - row[r > 0]);
        weight += w;
    }
    assert_near(mc_mean_loss(ctx, loss), loss_value / weight, 1e-6);
    mc_tape_end(t);
    mc_context_free(ctx);
}

/* Binary cross-entropy of logits far from zero: neither the loss nor its gradient cancels. */
static void test_bce_extremes(void **state)
{
    (void)state;
    static const float x[] = {1000, -1000, 1000, -1000, -20}, y[] = {1, 0, 0, 1, 0};
    static const float slope[] = {0, 0, 1, -1, 2.0611536e-9f};
    mc_context *ctx = test_context(SEED);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *scores = mc_tape_input(t, MC_F32, MC_SHAPE(5), x, true);
    mc_tensor *targets = mc_tape_input(t, MC_F32, MC_SHAPE(5), y, false);
    mc_tensor *loss = mc_bce_loss(t, scores, targets, NULL);
    mc_tensor *last =
        mc_bce_loss(t, mc_slice(t, scores, 0, 4, 1), mc_slice(t, targets, 0, 4, 1), NULL);
    mc_tape_backward(t, loss, NULL);
    float g[5], value[2], small[2];
    mc_tensor_read_f32(ctx, mc_tensor_gradient(scores), g, 5);
    mc_tensor_read_f32(ctx, loss, value, 2);
    mc_tensor_read_f32(ctx, last, small, 2);
    assert_good(ctx);
    assert_true(value[0] == 2000 && value[1] == 5);
    assert_near(small[0] / 2.0611536e-9f, 1, 1e-6);
    for (int i = 0; i < 4; i++) assert_true(g[i] * 5 == slope[i]);
    assert_near(g[4] * 5 / slope[4], 1, 1e-6);
    mc_tape_end(t);
    mc_context_free(ctx);
}

/* A weighted mean through an OptimManager, over two micro-steps of other weights: one mean. */
static void test_managed_mean(void **state)
{
    (void)state;
    mc_context *ctx = test_context(SEED);
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *p = mc_parameter_new(root, "x", MC_SHAPE(3, 2), mc_init_zeros());
    mc_optimizer *sgd = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 1});
    mc_optim_manager *optim =
        mc_optim_manager_new(ctx, &(mc_optim_manager_options){.loss_scale = 64, .micro_steps = 2});
    mc_optimizer_add(sgd, root);
    mc_optim_manager_add(optim, sgd, NULL);
    mc_parameter_write(p, logits);
    mc_optim_manager_zero_grad(optim);
    for (int i = 0; i < 2; i++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *x = mc_parameter_tensor(t, p), *loss = weighted_loss(t, x);
        if (i) { /* three rows of which one counts, and costs nothing */
            mc_tensor *counts = mc_tape_input(t, MC_F32, MC_SHAPE(3), (float[]){0, 5, 0}, false);
            loss = mc_loss_from_rows(t, mc_scale(t, mc_sum(t, x, 1), 0), counts);
        }
        mc_optim_manager_backward(optim, t, loss);
        mc_tape_end(t);
    }
    mc_optim_manager_step(optim);
    assert_good(ctx);
    float after[6], g[6];
    mc_parameter_read(p, after);
    for (int i = 0; i < 6; i++) g[i] = logits[i] - after[i];
    expect_weighted(g, 0.5); /* 5 of the 10 that count */
    mc_context_free(ctx);
}

/* Five rows of one loss and three of another: the sum of their means, in one pass (cut: 5 and 3) or
 * two. What the parameters are after a step. */
static void step_of_two_losses(int cut_a, int cut_b, bool by_ratio, float after[16])
{
    static const int32_t labels[8] = {0, 1, 1, 0, 1, 1, 0, 0};
    static const float values[16] = {1, -1, 0.5f, 2, -0.3f, 0.7f, 0,  1,
                                     2, -2, 1,    1, 3,     0,    -1, 0.2f};
    mc_context *ctx = test_context(SEED);
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *p = mc_parameter_new(root, "x", MC_SHAPE(8, 2), mc_init_zeros());
    mc_optimizer *sgd = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 1});
    mc_optim_manager *optim =
        mc_optim_manager_new(ctx, &(mc_optim_manager_options){.micro_steps = 2});
    mc_optimizer_add(sgd, root);
    mc_optim_manager_add(optim, sgd, NULL);
    mc_parameter_write(p, values);
    mc_tensor *ratio = mc_tensor_from(ctx, MC_F32, MC_SHAPE(2), (float[]){5.0f / 3, 0});
    mc_optim_manager_zero_grad(optim);
    int from[3] = {0, cut_a, 5}, from_b[3] = {5, 5 + cut_b, 8};
    for (int i = 0; i < (cut_a < 5 ? 2 : 1); i++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *x = mc_parameter_tensor(t, p), *loss[2];
        for (int k = 0; k < 2; k++) {
            const int *at = k ? from_b + i : from + i;
            int n = at[1] - at[0];
            mc_tensor *label = mc_tape_input(t, MC_I32, MC_SHAPE(n), labels + at[0], false);
            loss[k] = mc_cross_entropy(t, mc_slice(t, x, 0, at[0], n), label, NULL);
        }
        mc_tensor *both = by_ratio ? mc_loss_add_ratio(t, loss[0], loss[1], ratio)
                                   : mc_loss_add(t, loss[0], loss[1], 1);
        mc_optim_manager_backward(optim, t, both);
        mc_tape_end(t);
    }
    mc_optim_manager_step(optim);
    assert_good(ctx);
    mc_parameter_read(p, after);
    mc_context_free(ctx);
}

static void test_ratio_of_losses(void **state)
{
    (void)state;
    float whole[16], same[16], parts[16], other[16];
    step_of_two_losses(5, 3, false, whole);
    step_of_two_losses(5, 3, true, same);
    step_of_two_losses(4, 1, true, parts);
    step_of_two_losses(4, 1, false, other); /* the second term weighted by the first one's counts */
    double difference = 0;
    for (int i = 0; i < 16; i++) {
        assert_near(same[i], whole[i], 1e-6);
        assert_near(parts[i], whole[i], 1e-6);
        difference += fabs(other[i] - whole[i]);
    }
    assert_true(difference > 0.1);
}

/* ---- blanks ---------------------------------------------------------------------------------- */

typedef struct filling {
    mc_lengths *lengths;
    mc_tensor *ids, *numbers, *found[3];
} filling;

enum { START = 7, MASK = 8 };

static void fill_step(mc_context *ctx, void *user)
{
    filling *p = user;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_blanks b = mc_find_blanks(t, p->ids, p->lengths, 9, START, MASK);
    mc_tensor *all[] = {b.marks, b.positions, b.blocks};
    for (int i = 0; i < 3; i++) mc_tensor_copy(p->found[i], mc_embed(t, 1, &p->numbers, &all[i]));
    mc_tape_end(t);
}

/* What ModelCenter's GLM computes of a sequence's ids, written as it is there: the rows of each
 * START but the first end the block before, which has the mask of its number. */
static void expect_blanks(const int32_t *ids, int count, int *mark, int *position, int *block)
{
    int starts[ROOM], masks[ROOM], start_count = 0, mask_count = 0;
    for (int i = 0; i < count; i++) {
        if (ids[i] == START) starts[start_count++] = i;
        if (ids[i] == MASK) masks[mask_count++] = i;
        position[i] = i;
        block[i] = 0;
        mark[i] = start_count == 0;
    }
    for (int k = 0; k < start_count; k++) {
        bool last = k + 1 == start_count;
        int end = last ? count : starts[k + 1],
            number = last || k >= mask_count ? mask_count - 1 : k;
        for (int i = starts[k]; i < end; i++) {
            if (mask_count) position[i] = masks[number];
            block[i] = i - starts[k] + 1;
        }
    }
}

static void test_blanks(void **state)
{
    (void)state;
    static const int32_t batches[][SEQUENCES] = {
        {10, 3, 20, 7}, {0, 1, 0, 30}, {40, 0, 0, 0}, {0, 0, 0, 0}, {33, 0, 5, 2}};
    mc_context *ctx = test_context(SEED);
    int32_t ids[ROOM];
    float found[3][ROOM], numbers[ROOM + 1];
    for (int i = 0; i <= ROOM; i++) numbers[i] = (float)i;
    filling p = {.lengths = mc_lengths_new(ctx, SEQUENCES, ROOM),
                 .ids = mc_tensor_new(ctx, MC_I32, MC_SHAPE(ROOM)),
                 .numbers = mc_tensor_from(ctx, MC_F32, MC_SHAPE(ROOM + 1, 1), numbers)};
    for (int i = 0; i < 3; i++) p.found[i] = mc_tensor_new(ctx, MC_F32, MC_SHAPE(ROOM, 1));
    for (int b = 0; b < 25; b++) {
        const int32_t *lengths = batches[b % 5];
        uint32_t draw = (uint32_t)b + 1;
        for (int i = 0; i < ROOM; i++) { /* some have no mask, some no start */
            draw = draw * 1664525u + 1013904223u;
            int32_t id = (int32_t)(draw >> 16) % 9;
            ids[i] = (b / 5 == 1 && id == MASK) || (b / 5 == 2 && id == START) ? 0 : id;
        }
        mc_lengths_write(p.lengths, lengths, SEQUENCES, ROOM, ROOM);
        mc_tensor_write(p.ids, ids, sizeof ids);
        mc_step_run(ctx, 1, fill_step, &p);
        for (int i = 0; i < 3; i++) mc_tensor_read_f32(ctx, p.found[i], found[i], ROOM);
        assert_good(ctx);
        int expected[3][ROOM] = {{0}}, row = 0;
        for (int s = 0; s < SEQUENCES; row += lengths[s++])
            expect_blanks(ids + row, lengths[s], expected[0] + row, expected[1] + row,
                          expected[2] + row);
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < ROOM; k++) assert_int_equal((int)found[i][k], expected[i][k]);
    }
    mc_context_free(ctx);
}

/* ---- packed results -------------------------------------------------------------------------- */

static void test_packed_results(void **state)
{
    (void)state;
    mc_context *ctx = test_context(SEED);
    mc_tape *t = mc_tape_begin(ctx);
    const mc_lengths *l = mc_tape_lengths(t, (int32_t[]){3, 2}, 2, 1);
    mc_tensor *plain = mc_tape_input(t, MC_F32, MC_SHAPE(5, 4), NULL, false);
    mc_tensor *x = mc_with_lengths(t, plain, l), *w = mc_matmul(t, plain, plain, true, false);
    mc_tensor *packed[] = {mc_slice(t, x, 1, 0, 2),
                           mc_concat(t, 2, (mc_tensor *[]){x, plain}, 1),
                           mc_matmul(t, x, w, false, false),
                           mc_softmax(t, x),
                           mc_normalize_rows(t, x, 0),
                           mc_exp(t, x),
                           mc_sub(t, plain, x),
                           mc_div(t, x, plain)};
    mc_tensor *others[] = {mc_slice(t, x, 0, 0, 5), mc_transpose(t, x, 0, 1),
                           mc_sum(t, x, 0),         mc_mean_pool(t, x),
                           mc_max_pool(t, x),       mc_concat(t, 1, &x, 0)};
    assert_good(ctx);
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        assert_ptr_equal(mc_tensor_lengths(packed[i]), l);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_null(mc_tensor_lengths(others[i]));
    mc_tape_end(t);
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blanks),           cmocka_unit_test(test_token_positions),
        cmocka_unit_test(test_refilled_lengths), cmocka_unit_test(test_planned_memory),
        cmocka_unit_test(test_weighted_mean),    cmocka_unit_test(test_bce_extremes),
        cmocka_unit_test(test_managed_mean),     cmocka_unit_test(test_ratio_of_losses),
        cmocka_unit_test(test_packed_results)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
