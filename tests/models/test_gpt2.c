/* GPT-2 as a whole, on small random models: ways to give a batch, gradients, recompute, training in
 * every dtype, the padded vocabulary, and every complaint about input that does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/models/gpt2_test.h"

/* ---- forward --------------------------------------------------------------------------------- */

static void test_ways_to_give_a_batch(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    static float hidden[WAYS][BATCH * WIDTH * DIM];
    float loss[WAYS];
    for (way how = LENGTHS; how < WAYS; how++) {
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_model_input in = make_batch(t, how);
        mc_model_output out = mc_model_forward(t, gpt2, &in);
        assert_good(ctx);
        read_valid(ctx, t, out.last_hidden, hidden[how]);
        int64_t rows = how == MASK ? BATCH * WIDTH : how == PACKED_WIDE ? 32 : 20;
        assert_int_equal(mc_tensor_size(out.last_hidden, 0), rows);
        mc_tensor *logits = mc_model_logits(t, gpt2, out.last_hidden);
        assert_true(mc_shape_equal(logits->shape, MC_SHAPE(rows, VOCABULARY)));
        loss[how] = mc_mean_loss(ctx, batch_loss(t, gpt2, how));
        mc_tape_end(t);
        for (int i = 0; i < BATCH * WIDTH * DIM; i++)
            assert_near(hidden[how][i], hidden[0][i], 2e-5);
        if (how != MASK) assert_near(loss[how], loss[0], 1e-5); /* there, padding has labels */
    }
    assert_true(loss[0] > 1);
}

/* Each sequence alone gives what it gives in a batch, and what comes later changes nothing. */
static void test_rows_are_independent_and_causal(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    static float together[BATCH * WIDTH * DIM];
    float alone[WIDTH * DIM];
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = make_batch(t, PACKED);
    read_valid(ctx, t, mc_model_forward(t, gpt2, &in).last_hidden, together);
    for (int r = 0; r < BATCH; r++)
        for (int n = 1; n <= batch_lengths[r]; n++) {
            int32_t ids[WIDTH];
            for (int c = 0; c < n; c++) ids[c] = (int32_t)id_at(r, c);
            mc_model_input one = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, n), ids, false)};
            mc_tensor_read_f32(ctx, mc_model_forward(t, gpt2, &one).last_hidden, alone, n * DIM);
            assert_good(ctx);
            for (int i = 0; i < n * DIM; i++)
                assert_near(alone[i], together[r * WIDTH * DIM + i], 2e-5);
        }
    mc_tape_end(t);
}

/* A batch of no rows, as a rank gets where the data runs out: loss 0, no gradient, no error. */
static void test_no_rows(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *ids = mc_tape_input(t, MC_I64, MC_SHAPE(0, 5), NULL, false);
    mc_tensor *hidden = mc_model_forward(t, gpt2, &(mc_model_input){.ids = ids}).last_hidden;
    mc_tensor *loss = mc_model_loss(t, gpt2, hidden, mc_model_shift_labels(t, hidden, ids));
    assert_leaves_nothing(t, mc_model_module(gpt2), loss);
    mc_tape_end(t);
}

static void test_labels_move_up(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    const int64_t wide = (int64_t)1 << 33;
    int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8}, labels[8] = {1, 2, -100, 4, 5, wide, 7, 8};
    mc_tensor *x = mc_tape_input(t, MC_I64, MC_SHAPE(2, 4), ids, false);
    mc_tensor *y = mc_tape_input(t, MC_I64, MC_SHAPE(2, 4), labels, false);
    const mc_lengths *l = mc_tape_lengths(t, (int32_t[]){4, 3}, 2, 8);
    mc_model_input in = {.ids = x, .lengths = l};
    mc_tensor *hidden = mc_model_forward(t, gpt2, &in).last_hidden;
    mc_tensor *next = mc_model_shift_labels(t, hidden, y);
    assert_good(ctx);
    const float expected[8] = {2, -100, 4, -100, -1, 7, -100, -100};
    float got[8];
    mc_tensor_read_f32(ctx, next, got, 8);
    for (int i = 0; i < 8; i++) assert_true(got[i] == expected[i]);
    assert_null(mc_model_loss(t, gpt2, hidden, next)); /* no label is lost by narrowing */
    assert_error(ctx, MC_ERR_ARGUMENT, "label[4] = -1");
    assert_null(
        mc_model_shift_labels(t, hidden, mc_tape_input(t, MC_I64, MC_SHAPE(3), NULL, false)));
    assert_error(ctx, MC_ERR_SHAPE, "labels", "(3)");
    mc_tape_end(t);
}

/* ---- gradients and training ------------------------------------------------------------------ */

static double loss_value(mc_context *ctx, mc_model *gpt2)
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    float sum_count[2];
    mc_tensor_read_f32(ctx, batch_loss(t, gpt2, LENGTHS), sum_count, 2);
    mc_tape_end(t);
    return (double)sum_count[0] / (double)sum_count[1];
}

/* The loss changes along each parameter's gradient as the gradient says. */
static void test_gradients_by_differences(void **state)
{
    mc_context *ctx = *state;
    for (int tied = 0; tied < 2; tied++) {
        mc_gpt2_config config = small_config();
        config.tied = tied;
        config.scale_by_layer = !tied;
        config.scale_attention = tied;
        mc_model *gpt2 = mc_gpt2_new(ctx, &config, NULL, NULL);
        mc_model_set_dropout(gpt2, 0);
        mc_tape *t = mc_tape_begin(ctx);
        mc_tape_backward(t, batch_loss(t, gpt2, LENGTHS), NULL);
        mc_tape_end(t);
        mc_parameter_iterator it = {0};
        for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(gpt2), &it));) {
            float values[VOCABULARY * DIM], gradient[VOCABULARY * DIM], moved[VOCABULARY * DIM];
            int64_t n = mc_shape_count(p->shape);
            mc_parameter_read(p, values);
            mc_parameter_read_gradient(p, gradient);
            double square = 0, found[2];
            for (int64_t i = 0; i < n; i++) square += (double)gradient[i] * (double)gradient[i];
            if (square < 1e-9) continue; /* key biases have no gradient */
            double step = 1e-2 / sqrt(square);
            for (int side = 0; side < 2; side++) {
                for (int64_t i = 0; i < n; i++)
                    moved[i] = values[i] + (float)(side ? step : -step) * gradient[i];
                mc_parameter_write(p, moved);
                found[side] = loss_value(ctx, gpt2);
            }
            mc_parameter_write(p, values);
            assert_good(ctx);
            double slope = (found[1] - found[0]) / (2 * step);
            if (fabs(slope - square) > 0.01 * square + 1e-6)
                fail_msg("%s: slope %g, gradient says %g", p->name, slope, square);
        }
        mc_model_free(gpt2);
    }
}

/* Loss and all gradients of a step with dropout. */
static float *step_values(mc_recompute recompute, mc_dtype dtype, int64_t *count)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 11});
    mc_model *gpt2 = new_gpt2(ctx, dtype, MC_RECOMPUTE_NONE);
    mc_model_set_recompute(gpt2, recompute);
    mc_tape *t = mc_tape_begin(ctx);
    float *values =
        loss_and_gradients(t, mc_model_module(gpt2), batch_loss(t, gpt2, PACKED_WIDE), count);
    mc_context_free(ctx);
    return values;
}

static void test_recompute_is_exact(void **state)
{
    (void)state;
    static const mc_dtype dtypes[] = {MC_F32, MC_BF16, MC_F16};
    for (int d = 0; d < 3; d++) {
        int64_t count, n;
        float *kept = step_values(MC_RECOMPUTE_NONE, dtypes[d], &count);
        for (mc_recompute r = MC_RECOMPUTE_SELECTIVE; r <= MC_RECOMPUTE_FULL; r++) {
            float *again = step_values(r, dtypes[d], &n);
            assert_int_equal(n, count);
            assert_memory_equal(again, kept, (size_t)n * sizeof *kept);
            free(again);
        }
        free(kept);
    }
}

/* Bytes that a training step has in use at most. */
static size_t step_peak(mc_recompute recompute)
{
    mc_context *ctx = mc_init_distributed(NULL);
    mc_gpt2_config config = small_config();
    config.layers = 12;
    mc_model *gpt2 = mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.recompute = recompute});
    for (int step = 0; step < 2; step++) {
        mc_tape *t = mc_tape_begin(ctx);
        ctx->device->memory.peak = ctx->device->memory.in_use;
        mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(32, 24), NULL, false);
        mc_tensor *hidden = mc_model_forward(t, gpt2, &(mc_model_input){.ids = ids}).last_hidden;
        mc_tape_backward(t, mc_model_loss(t, gpt2, hidden, ids), NULL);
        mc_tape_end(t);
    }
    assert_good(ctx);
    size_t peak = ctx->device->memory.peak;
    mc_context_free(ctx);
    return peak;
}

static void test_recompute_saves_memory(void **state)
{
    (void)state;
    size_t none = step_peak(MC_RECOMPUTE_NONE), some = step_peak(MC_RECOMPUTE_SELECTIVE),
           full = step_peak(MC_RECOMPUTE_FULL);
    if (!(some < none && full < some && full < none / 2))
        fail_msg("peak bytes: none %zu, selective %zu, full %zu", none, some, full);
}

/* How often kernels are run that read and write whole activations. */
static struct {
    const mc_kernels *kernels;
    int norms, norm_gradients, column_sums, with_products, others;
} calls;

static mc_status count_norm(mc_device *d, const mc_residual_norm_call *c)
{
    calls.norms++;
    return calls.kernels->residual_norm(d, c);
}

static mc_status count_norm_backward(mc_device *d, const mc_residual_norm_backward_call *c)
{
    calls.norm_gradients++;
    return calls.kernels->residual_norm_backward(d, c);
}

static mc_status count_column_sums(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                   float *out)
{
    calls.column_sums++;
    return calls.kernels->column_sums(d, rows, columns, x, out);
}

static mc_status count_backward_input(mc_device *d, const mc_linear_backward_call *c)
{
    if (c->dbias) calls.with_products++;
    return calls.kernels->linear_backward_input(d, c);
}

static mc_status count_add(mc_device *d, int64_t count, mc_matrix a, mc_matrix b, int64_t b_count,
                           mc_matrix y)
{
    calls.others++;
    return calls.kernels->add(d, count, a, b, b_count, y);
}

static mc_status count_scale(mc_device *d, int64_t count, mc_matrix x, float factor, mc_matrix y,
                             bool accumulate)
{
    calls.others++;
    return calls.kernels->scale(d, count, x, factor, y, accumulate);
}

static mc_status count_dropout(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, bool relu,
                               mc_dropout_mask dropout, mc_matrix y, bool accumulate)
{
    calls.others++;
    return calls.kernels->dropout(d, rows, columns, x, relu, dropout, y, accumulate);
}

/* Each sum of the residual stream costs its norm's pass, forward and backward, and no other,
 * dropout and the gradient of the bias after it included; `others` are the passes that do not
 * belong to the stream. */
static void count_passes(mc_context *ctx, float dropout, int others)
{
    mc_model *gpt2 = new_gpt2(ctx, MC_BF16, 0);
    mc_model_set_dropout(gpt2, dropout);
    memset(&calls, 0, sizeof calls);
    mc_kernels counting = *ctx->device->kernels;
    calls.kernels = ctx->device->kernels;
    counting.residual_norm = count_norm;
    counting.residual_norm_backward = count_norm_backward;
    counting.column_sums = count_column_sums;
    counting.linear_backward_input = count_backward_input;
    counting.add = count_add;
    counting.scale = count_scale;
    counting.dropout = count_dropout;
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input in = make_batch(t, LENGTHS);
    mc_embedding_whole(t, gpt2->words); /* the weights are there */
    ctx->device->kernels = &counting;
    mc_tensor *hidden = mc_model_forward(t, gpt2, &in).last_hidden;
    mc_tape_backward(t, mc_model_loss(t, gpt2, hidden, mc_model_shift_labels(t, hidden, in.ids)),
                     NULL);
    ctx->device->kernels = calls.kernels;
    mc_tape_end(t);
    assert_good(ctx);
    assert_int_equal(calls.norms, 2 * 3 + 1);
    assert_int_equal(calls.norm_gradients, 2 * 3 + 1);
    assert_int_equal(calls.column_sums, 0);
    /* qkv's biases, and those of down, which ends a block; up's come with the product after it */
    assert_int_equal(calls.with_products, 3 * 2);
    assert_int_equal(calls.others, others);
}

static void test_no_pass_but_the_norms(void **state)
{
    count_passes(*state, 0, 0);
    count_passes(*state, 0.1f, 2); /* dropout of the embedding, forward and backward */
}

static void test_training(void **state)
{
    (void)state;
    static const mc_dtype dtypes[] = {MC_F32, MC_BF16, MC_F16};
    for (int d = 0; d < 3; d++) {
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 2});
        mc_model *gpt2 = new_gpt2(ctx, dtypes[d], 0);
        mc_model_set_dropout(gpt2, 0);
        mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 1e-2f});
        double scale = dtypes[d] == MC_F16 ? 256 : 0;
        mc_optim_manager *optim =
            mc_optim_manager_new(ctx, &(mc_optim_manager_options){.loss_scale = scale});
        mc_optimizer_add(adam, mc_model_module(gpt2));
        mc_optim_manager_add(optim, adam, NULL);
        float first = 0, last = 0;
        for (int step = 0; step < 30; step++) {
            mc_optim_manager_zero_grad(optim);
            mc_tape *t = mc_tape_begin(ctx);
            mc_tensor *loss = batch_loss(t, gpt2, LENGTHS);
            mc_optim_manager_backward(optim, t, loss);
            mc_optim_manager_clip_grad_norm(optim, 5);
            mc_optim_manager_step(optim);
            last = mc_mean_loss(ctx, loss);
            if (step == 0) first = last;
            mc_tape_end(t);
        }
        assert_good(ctx);
        if (!(last < 0.3f * first))
            fail_msg("%s: loss %g after 30 steps, %g at first", mc_dtype_name(dtypes[d]),
                     (double)last, (double)first);
        mc_context_free(ctx);
    }
}

/* ---- the padded vocabulary ------------------------------------------------------------------- */

/* Whether elements from `first` on of a flat array of the stored tensor are zero. */
static void assert_zero_tail(const mc_stored *s, const void *base, size_t size, int64_t first)
{
    if (!base) return;
    const char *data = (const char *)base + (size_t)(s->span->offset + first) * size;
    for (size_t i = 0; i < (size_t)(s->count - first) * size; i++) assert_int_equal(data[i], 0);
}

static void test_padding_stays_zero(void **state)
{
    (void)state;
    for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) {
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 2});
        mc_gpt2_config config = small_config();
        config.tied = dtype != MC_BF16;
        mc_model *gpt2 = mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.dtype = dtype});
        mc_optimizer *adam =
            mc_adam_new(ctx, &(mc_adam_options){.lr = 1e-2f, .weight_decay = 0.1f});
        mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
        mc_optimizer_add(adam, mc_model_module(gpt2));
        mc_optim_manager_add(optim, adam, NULL);
        for (int step = 0; step < 3; step++) {
            mc_optim_manager_zero_grad(optim);
            mc_tape *t = mc_tape_begin(ctx);
            mc_optim_manager_backward(optim, t, batch_loss(t, gpt2, LENGTHS));
            mc_optim_manager_step(optim);
            mc_tape_end(t);
        }
        assert_good(ctx);
        const char *names[] = {"input_embedding.weight", "output_projection.weight"};
        for (int i = 0; i < 2 - config.tied; i++) {
            mc_parameter *p = mc_module_find_parameter(mc_model_module(gpt2), names[i]);
            const mc_stored *s = p->stored;
            assert_true(mc_shape_equal(s->shape, MC_SHAPE(MC_VOCAB_ALIGN, DIM)));
            assert_true(mc_shape_equal(mc_parameter_shape(p), MC_SHAPE(VOCABULARY, DIM)));
            const mc_bucket *b = s->bucket;
            int64_t first = VOCABULARY * DIM;
            assert_non_null(b->gradient.data);
            assert_non_null(b->state[MC_STATE_V]);
            assert_zero_tail(s, b->values.data, mc_dtype_size(dtype), first);
            assert_zero_tail(s, b->gradient.data, sizeof(float), first);
            for (int k = 0; k < MC_STATE_SLOTS; k++)
                assert_zero_tail(s, b->state[k], sizeof(float), first);
            assert_true(value_at(p, first - 1) != 0);
        }
        mc_context_free(ctx);
    }
}

static void test_padding_is_not_counted(void **state)
{
    mc_context *ctx = *state;
    mc_gpt2_config c;
    static const struct {
        const char *name;
        int64_t parameters;
    } known[] = {{"gpt2-base", 124439808}, {"gpt2", 124439808}, {"gpt2-medium", 354823168}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mc_gpt2_config_named(ctx, known[i].name, &c), MC_OK);
        mc_model *gpt2 = mc_gpt2_new(ctx, &c, NULL, NULL); /* no memory is taken before a tape */
        assert_int_equal(mc_module_parameter_count(mc_model_module(gpt2)), known[i].parameters);
        mc_model_free(gpt2);
    }
    assert_int_equal(mc_gpt2_config_named(ctx, "gpt2-xl", &c), MC_OK);
    assert_true(c.dim == 1600 && c.layers == 48 && c.heads == 25 && c.dim_ff == 6400);
    assert_int_equal(mc_gpt2_config_named(ctx, "gpt3", &c), MC_ERR_NOT_FOUND);
    assert_error(ctx, MC_ERR_NOT_FOUND, "gpt3", "gpt2-base", "gpt2-medium", "gpt2-large",
                 "gpt2-xl");
    mc_module *m = mc_module_new(ctx, "", sizeof *m, NULL);
    assert_null(mc_parameter_new_padded(m, "w", MC_SHAPE(5, 2), 4, mc_init_zeros()));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"w\"", "(5, 2)", "4 stored rows");
    assert_null(mc_parameter_new_padded(m, "w", (mc_shape){.ndim = 0}, 4, mc_init_zeros()));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"w\"");
}

/* The products that end a sublayer begin smaller. */
static void test_initial_values(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(gpt2), &it));) {
        float values[VOCABULARY * DIM];
        int64_t n = mc_shape_count(p->shape);
        mc_parameter_read(p, values);
        double square = 0;
        for (int64_t i = 0; i < n; i++) square += (double)values[i] * (double)values[i];
        bool norm = strstr(p->name, "layernorm"), bias = strstr(p->name, ".bias");
        bool out = strstr(p->name, "attention_out") || strstr(p->name, "w_out");
        double expected = bias ? 0 : norm ? 1 : 0.2 / (out ? sqrt(6) : 1);
        assert_near(sqrt(square / (double)n), expected, expected * 0.15);
    }
}

/* ---- input that does not fit ----------------------------------------------------------------- */

static mc_tensor *forward_ids(mc_tape *t, mc_model *gpt2, mc_shape shape, const int64_t *ids,
                              const mc_lengths *l)
{
    mc_model_input in = {.ids = mc_tape_input(t, MC_I64, shape, ids, false), .lengths = l};
    return mc_model_forward(t, gpt2, &in).last_hidden;
}

static void test_wrong_input(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_tape *t = mc_tape_begin(ctx);
    int64_t ids[64] = {1, 2, 3, VOCABULARY, 5, 6}; /* the first row of padding */
    assert_null(forward_ids(t, gpt2, MC_SHAPE(2, 3), ids, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "ids of sequence 1, token 0", "50, expected 0 to 49");
    ids[3] = (int64_t)1 << 32; /* must not wrap around to 0 */
    assert_null(forward_ids(t, gpt2, MC_SHAPE(2, 3), ids, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "ids of sequence 1, token 0");
    ids[3] = 3;
    assert_null(forward_ids(t, gpt2, MC_SHAPE(1, 25), ids, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "GPT-2", "25 tokens", "24 positions");
    assert_null(forward_ids(t, gpt2, MC_SHAPE(6), ids, NULL));
    assert_error(ctx, MC_ERR_SHAPE, "ids", "(6)", "lengths");
    assert_null(
        forward_ids(t, gpt2, MC_SHAPE(2, 3), ids, mc_tape_lengths(t, (int32_t[]){3, 4}, 2, 1)));
    assert_error(ctx, MC_ERR_SHAPE, "ids", "(2, 3)");
    assert_null(mc_model_forward(t, gpt2, &(mc_model_input){0}).last_hidden);
    assert_error(ctx, MC_ERR_ARGUMENT, "GPT-2", "NULL");
    mc_tensor *good = mc_tape_input(t, MC_I64, MC_SHAPE(2, 3), ids, false);
    mc_tensor *narrow = mc_tape_input(t, MC_I64, MC_SHAPE(2, 2), ids, false);
    mc_tensor *hidden = mc_model_forward(t, gpt2, &(mc_model_input){.ids = good}).last_hidden;
    assert_null(
        mc_model_forward(t, gpt2, &(mc_model_input){.ids = good, .mask = narrow}).last_hidden);
    assert_error(ctx, MC_ERR_SHAPE, "mask", "(2, 2)");
    assert_null(mc_model_loss(t, gpt2, hidden, narrow));
    assert_error(ctx, MC_ERR_SHAPE, "label", "(2, 2)", "6 elements");
    ids[1] = VOCABULARY;
    mc_tensor *labels = mc_tape_input(t, MC_I64, MC_SHAPE(6), ids, false);
    assert_null(mc_model_loss(t, gpt2, hidden, labels));
    assert_error(ctx, MC_ERR_ARGUMENT, "label[1] = 50", "49");
    assert_null(mc_model_logits(t, gpt2, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "NULL");
    mc_tape_end(t);
    assert_null(mc_model_forward(NULL, gpt2, NULL).last_hidden);
    assert_null(mc_model_module(NULL));
    assert_int_equal(mc_model_dim(NULL), 0);
    mc_model_free(NULL);
}

static void test_wrong_configs(void **state)
{
    mc_context *ctx = *state;
    mc_gpt2_config c = small_config();
    c.heads = 3;
    assert_null(mc_gpt2_new(ctx, &c, NULL, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "GPT-2 config", "3 heads", "dim 16");
    c = small_config();
    assert_null(mc_gpt2_new(ctx, &c, NULL, &(mc_load_options){.num_labels = -2}));
    assert_error(ctx, MC_ERR_ARGUMENT, "-2 labels", "0 to 1024");
    assert_null(mc_gpt2_new(ctx, &c, &(mc_model_heads){.pooler = true}, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "GPT-2", "no pooler");
    assert_null(mc_gpt2_new(ctx, &c, NULL, &(mc_load_options){.dtype = MC_I32}));
    assert_error(ctx, MC_ERR_DTYPE, "i32");
    c.positions = 0;
    assert_null(mc_gpt2_new(ctx, &c, NULL, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "0 positions");
    c = small_config();
    c.layers = 100000000;
    assert_null(mc_gpt2_new(ctx, &c, NULL, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "100000000 layers", "at most 4096 layers");
    assert_int_equal(ctx->device->memory.in_use, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ways_to_give_a_batch),
        TEST(test_rows_are_independent_and_causal),
        TEST(test_no_rows),
        TEST(test_labels_move_up),
        TEST(test_gradients_by_differences),
        TEST(test_recompute_is_exact),
        TEST(test_recompute_saves_memory),
        TEST(test_no_pass_but_the_norms),
        TEST(test_training),
        TEST(test_padding_stays_zero),
        TEST(test_padding_is_not_counted),
        TEST(test_initial_values),
        TEST(test_wrong_input),
        TEST(test_wrong_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
