/* Lengths that are refilled from batch to batch (mc_lengths_new): what they hold, and that a model
 * makes the same of a batch in them as of one that is packed without room to spare. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/tensor/tensor_internal.h"
#include "tests/device_choice.h"
#include "tests/optim/optim_test.h"

enum { VOCABULARY = 50, DIM = 16, SEQUENCES = 4, ROOM = 96, LONGEST = 24, SEED = 3 };

static void test_bad_lengths(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cpu", SEED);
    mc_lengths *l = mc_lengths_new(ctx, 3, 100);
    assert_non_null(l);
    assert_int_equal(l->offset[3], 0);
    mc_lengths_write(l, (int32_t[]){7, 0, 30}, 3, 64, 40);
    assert_good(ctx);
    mc_lengths_write(l, (int32_t[]){1, 2, 3, 4}, 4, 64, 40);
    assert_error(ctx, MC_ERR_ARGUMENT, "lengths of 4 sequences", "room for 3 and 100");
    mc_lengths_write(l, (int32_t[]){1}, 1, 101, 40);
    assert_error(ctx, MC_ERR_ARGUMENT, "101 tokens", "room for 3 and 100");
    mc_lengths_write(l, (int32_t[]){1, -1}, 2, 64, 40);
    assert_error(ctx, MC_ERR_ARGUMENT, "length -1 of sequence 1, expected 0 to 40");
    mc_lengths_write(l, (int32_t[]){41}, 1, 64, 40);
    assert_error(ctx, MC_ERR_ARGUMENT, "length 41 of sequence 0, expected 0 to 40");
    mc_lengths_write(l, (int32_t[]){30, 30, 5}, 3, 64, 40);
    assert_error(ctx, MC_ERR_ARGUMENT, "65 tokens in all, the capacity is 64");
    mc_lengths_write(l, NULL, 2, 64, 40);
    assert_error(ctx, MC_ERR_ARGUMENT, "2 sequences", "NULL");
    mc_lengths_write(l, NULL, 0, 64, -5);
    assert_error(ctx, MC_ERR_ARGUMENT, "-5 at most", "negative");
    assert_true(l->offset[3] == 37 && l->length[2] == 30 && l->capacity == 64 && l->longest == 40);
    assert_null(mc_lengths_new(ctx, -1, 10));
    assert_error(ctx, MC_ERR_ARGUMENT, "lengths of -1 sequences and 10 tokens");
    assert_null(mc_lengths_new(ctx, 1, (int64_t)1 << 31));
    assert_error(ctx, MC_ERR_ARGUMENT, "2147483648 tokens, expected 0 to 2147483647");
    mc_lengths_free(l);
    mc_context_free(ctx);
}

/* The capacity of a tape's lengths. */
static void test_rounding(void **state)
{
    (void)state;
    static const int64_t cases[][2] = {{0, 5}, {1, 5}, {4, 8}, {5, 5}, {64, 64}};
    mc_context *ctx = context_on("cpu", SEED);
    mc_tape *t = mc_tape_begin(ctx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mc_lengths *l = mc_tape_lengths(t, (int32_t[]){2, 3}, 2, cases[i][0]);
        assert_non_null(l);
        assert_int_equal(l->capacity, cases[i][1]);
    }
    assert_null(mc_tape_lengths(t, (int32_t[]){2, 3}, 2, -1));
    assert_error(ctx, MC_ERR_ARGUMENT, "round_to is -1", "expected 1 or more, or 0 for 1");
    mc_tape_end(t);
    mc_context_free(ctx);
}

static mc_model *make_model(mc_context *ctx)
{
    mc_bert_config config = mc_bert_config_default();
    config.vocab_size = VOCABULARY;
    config.dim = DIM;
    config.dim_ff = 24;
    config.layers = 2;
    config.heads = 2;
    config.positions = LONGEST;
    config.init_std = config.embedding_std = config.ffn_std = 0.2f;
    mc_model *bert =
        mc_bert_new(ctx, &config, &(mc_model_heads){.pooler = true, .labels = 3}, NULL);
    mc_model_set_dropout(bert, 0);
    assert_good(ctx);
    return bert;
}

/* Logits of a batch, and the gradients of all parameters in `gradients`. */
static void run_model(mc_context *ctx, mc_model *bert, const mc_model_input *input, mc_tape *t,
                      mc_tensor *labels, float *logits, float *gradients, float *hidden)
{
    mc_module_zero_grad(mc_model_module(bert));
    mc_model_output out = mc_model_forward(t, bert, input);
    mc_tensor *y = mc_model_classify(t, bert, &out), *padded = mc_unpack(t, out.last_hidden);
    assert_good(ctx);
    mc_tensor_read_f32(ctx, y, logits, mc_tensor_count(y));
    mc_shape shape = mc_tensor_shape(padded);
    assert_true(mc_shape_count(shape) <= SEQUENCES * LONGEST * DIM);
    mc_tensor_read_f32(ctx, padded, hidden, mc_shape_count(shape));
    mc_tape_backward(t, mc_cross_entropy(t, y, labels, NULL), NULL);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(bert), &it));) {
        int64_t n = mc_shape_count(p->shape);
        memcpy(gradients, bucket_gradient(p), (size_t)n * sizeof *gradients);
        gradients += n;
    }
    mc_tape_end(t);
    assert_good(ctx);
}

/* Batches of one to four sequences; what the batch before left behind does not matter. */
static void test_same_as_exact(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cpu", SEED);
    mc_model *bert = make_model(ctx);
    mc_lengths *l = mc_lengths_new(ctx, SEQUENCES, ROOM);
    mc_tensor *ids = mc_tensor_new(ctx, MC_I32, MC_SHAPE(ROOM));
    mc_tensor *labels = mc_tensor_new(ctx, MC_I32, MC_SHAPE(SEQUENCES));
    size_t count = (size_t)mc_module_parameter_count(mc_model_module(bert));
    float *expected = calloc(count, sizeof *expected), *got = calloc(count, sizeof *got);
    assert_true(expected && got);
    static const int32_t length[SEQUENCES] = {LONGEST, 7, 1, 13};
    for (int n = SEQUENCES; n > 0; n--) {
        float x[SEQUENCES * 3], y[SEQUENCES * 3];
        static float hx[SEQUENCES * LONGEST * DIM], hy[SEQUENCES * LONGEST * DIM];
        int32_t host[ROOM], label[SEQUENCES] = {-100, -100, -100, -100}, total = 0;
        for (int i = 0; i < n; i++) total += length[i];
        for (int i = 0; i < ROOM; i++) host[i] = (i * 7 + n) % VOCABULARY;
        for (int i = 0; i < n; i++) label[i] = i % 3;
        mc_tape *t = mc_tape_begin(ctx);
        mc_model_input exact = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(total), host, false),
                                .lengths = mc_tape_lengths(t, length, n, 1)};
        run_model(ctx, bert, &exact, t, mc_tape_input(t, MC_I32, MC_SHAPE(n), label, false), x,
                  expected, hx);
        mc_tensor_write(ids, host, sizeof host);
        mc_tensor_write(labels, label, sizeof label);
        mc_lengths_write(l, length, n, total + 9 * (n > 1), LONGEST);
        run_model(ctx, bert, &(mc_model_input){.ids = ids, .lengths = l}, mc_tape_begin(ctx),
                  labels, y, got, hy);
        for (int i = 0; i < 3 * n; i++) assert_near(y[i], x[i], 1e-5);
        for (int i = 0; i < n * LONGEST * DIM; i++) assert_near(hy[i], hx[i], 1e-5);
        for (size_t i = 0; i < count; i++) assert_near(got[i], expected[i], 1e-5);
    }
    free(expected);
    free(got);
    mc_context_free(ctx);
}

static void test_copy(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cpu", SEED);
    float out[4];
    mc_tensor *to = mc_tensor_from(ctx, MC_F32, MC_SHAPE(4), (float[]){9, 9, 9, 9});
    mc_tensor *half = mc_tensor_from(ctx, MC_BF16, MC_SHAPE(1, 3), (uint16_t[]){0x3f80, 0xc000, 0});
    mc_tensor_copy(to, half);
    assert_int_equal(mc_tensor_copy(NULL, half), MC_ERR_ARGUMENT);
    mc_tensor_read_f32(ctx, to, out, 4);
    assert_good(ctx);
    assert_true(out[0] == 1 && out[1] == -2 && out[2] == 0 && out[3] == 9);
    mc_tensor_copy(half, to);
    assert_error(ctx, MC_ERR_SHAPE, "copying a tensor (4) to one of (1, 3)");
    mc_tensor_copy(to, NULL);
    assert_error(ctx, MC_ERR_ARGUMENT, "mc_tensor_copy: from is NULL");
    mc_tensor_copy(to, mc_tensor_new(ctx, MC_I32, MC_SHAPE(2)));
    assert_error(ctx, MC_ERR_DTYPE, "copying a tensor of i32 to one of f32");
    mc_context_free(ctx);
}

/* Tensors of other shapes are refused, as they are with other lengths. */
static void test_bad_shapes(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cpu", SEED);
    mc_model *bert = make_model(ctx);
    mc_lengths *l = mc_lengths_new(ctx, 2, 20);
    mc_lengths_write(l, (int32_t[]){5, 5}, 2, 10, 5);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *few = mc_tape_input(t, MC_I32, MC_SHAPE(9), NULL, false);
    mc_tensor *padded = mc_tape_input(t, MC_I32, MC_SHAPE(2, 5), NULL, false);
    assert_null(mc_model_forward(t, bert, &(mc_model_input){.ids = few, .lengths = l}).pooled);
    assert_error(ctx, MC_ERR_SHAPE, "BERT: ids i32 (9)");
    assert_null(mc_model_forward(t, bert, &(mc_model_input){.ids = padded, .lengths = l}).pooled);
    assert_error(ctx, MC_ERR_SHAPE, "BERT: ids i32 (2, 5)");
    mc_lengths_write(l, (int32_t[]){5, 5}, 2, 10, LONGEST + 1);
    mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(10), NULL, false);
    assert_null(mc_model_forward(t, bert, &(mc_model_input){.ids = ids, .lengths = l}).pooled);
    assert_error(ctx, MC_ERR_ARGUMENT, "a sequence of 25 tokens, the model has 24 positions");
    mc_context_free(ctx);
}

#ifdef MC_FAULT_INJECTION
static void test_faults(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cpu", SEED);
    for (long nth = 1, failed = 1; failed; nth++) {
        mc_fault_fail_at(nth, false);
        mc_lengths *l = mc_lengths_new(ctx, 3, 100);
        failed = mc_fault_count() >= nth;
        mc_fault_fail_at(0, false);
        assert_int_equal(!l, mc_failed(ctx)); /* the device may have asked a second time */
        if (!l) assert_error(ctx, MC_ERR_NOMEM, "memory");
        mc_lengths_free(l);
    }
    mc_context_free(ctx);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_lengths),   cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_same_as_exact), cmocka_unit_test(test_bad_shapes),
        cmocka_unit_test(test_copy),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test(test_faults),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
