/* Inspection on one rank: rows against plain loops over what the parameters and tensors hold, the
 * printed form, recording of activations, and memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/device/device_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/inspect/inspect_internal.h"
#include "tests/optim/optim_test.h"

/* ---- what is expected ------------------------------------------------------------------------ */

typedef struct statistics {
    double max, min, std, mean;
} statistics;

static statistics statistics_of(const float *x, int64_t n)
{
    statistics s = {-INFINITY, INFINITY, 0, 0};
    double squares = 0;
    for (int64_t i = 0; i < n; i++) {
        s.max = fmax(s.max, (double)x[i]);
        s.min = fmin(s.min, (double)x[i]);
        s.mean += (double)x[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) squares += ((double)x[i] - s.mean) * ((double)x[i] - s.mean);
    s.std = sqrt(squares / (double)(n - 1));
    return s;
}

static void assert_row(const mc_inspect_row *row, const float *x, int64_t n)
{
    statistics s = statistics_of(x, n);
    double tolerance = 1e-12 * (1 + fabs(s.mean) + s.std);
    assert_int_equal(row->count, n);
    assert_true(row->max == s.max && row->min == s.min);
    assert_near(row->mean, s.mean, tolerance);
    assert_near(row->std, s.std, tolerance);
}

static const mc_inspect_row *find_row(const mc_inspection *table, const char *name)
{
    for (int i = 0; i < mc_inspection_count(table); i++)
        if (strcmp(mc_inspection_row(table, i)->name, name) == 0)
            return mc_inspection_row(table, i);
    fail_msg("no row \"%s\"", name);
    return NULL;
}

/* ---- a model --------------------------------------------------------------------------------- */

enum { TOKENS = 7, WORDS = 50 };

static mc_model *new_gpt2(mc_context *ctx, mc_dtype dtype, mc_recompute recompute)
{
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = WORDS;
    c.dim = 16;
    c.dim_ff = 24;
    c.layers = 2;
    c.heads = 2;
    c.positions = TOKENS;
    c.dropout = c.embedding_dropout = c.attention_dropout = 0;
    return mc_gpt2_new(ctx, &c, NULL, &(mc_load_options){.dtype = dtype, .recompute = recompute});
}

/* Forward and backward; the hidden states that came out, if wanted. */
static void run_gpt2(mc_context *ctx, mc_model *gpt2, float *hidden_out)
{
    int32_t ids[TOKENS + 1];
    for (int i = 0; i <= TOKENS; i++) ids[i] = (i * 13 + 5) % WORDS;
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, TOKENS), ids, false)};
    mc_tensor *hidden = mc_model_forward(t, gpt2, &in).last_hidden;
    mc_tensor *next = mc_tape_input(t, MC_I32, MC_SHAPE(TOKENS), ids + 1, false);
    mc_tensor *loss = mc_model_loss(t, gpt2, mc_record(t, hidden, "out"), next);
    if (hidden_out) mc_tensor_read_f32(ctx, hidden, hidden_out, TOKENS * 16);
    mc_tape_backward(t, loss, NULL);
    mc_tape_end(t);
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Every row against what the parameter holds, before and after a backward pass. */
static void check_parameters(mc_context *ctx, mc_model *gpt2, const char *frozen)
{
    mc_inspection *table = mc_inspect(mc_model_module(gpt2), NULL);
    assert_good(ctx);
    mc_parameter_iterator it = {0};
    int i = 0;
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(gpt2), &it)); i++) {
        const mc_inspect_row *row = mc_inspection_row(table, i);
        int64_t n = mc_shape_count(mc_parameter_shape(p));
        float *values = malloc((size_t)n * sizeof *values);
        assert_non_null(values);
        assert_string_equal(row->name, mc_parameter_name(p));
        assert_true(mc_shape_equal(row->shape, mc_parameter_shape(p)));
        assert_int_equal(mc_parameter_read(p, values), MC_OK);
        assert_row(row, values, n);
        assert_int_equal(row->has_gradient, frozen && !strstr(row->name, frozen));
        mc_parameter_read_gradient(p, values);
        statistics s = statistics_of(values, n);
        assert_near(row->grad_mean, row->has_gradient ? s.mean : 0, 1e-12);
        assert_near(row->grad_std, row->has_gradient ? s.std : 0, 1e-12);
        free(values);
    }
    assert_int_equal(mc_inspection_count(table), i);
    assert_null(mc_inspection_row(table, i));
    assert_null(mc_inspection_row(table, -1));
    mc_inspection_free(table);
}

static void test_parameters(void **state)
{
    mc_context *ctx = *state;
    static const mc_dtype dtypes[] = {MC_F32, MC_F16, MC_BF16};
    for (int k = 0; k < 3; k++) {
        mc_model *gpt2 = new_gpt2(ctx, dtypes[k], MC_RECOMPUTE_NONE);
        mc_module_set_trainable(mc_model_module(gpt2), "*.layers.1.*", false);
        check_parameters(ctx, gpt2, NULL);
        run_gpt2(ctx, gpt2, NULL);
        check_parameters(ctx, gpt2, ".layers.1.");
        mc_model_free(gpt2);
    }
}

static void test_patterns(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, MC_RECOMPUTE_NONE);
    mc_inspection *table = mc_inspect(mc_model_module(gpt2), "*.layers.?.*project_k.weight");
    assert_int_equal(mc_inspection_count(table), 2);
    assert_string_equal(mc_inspection_row(table, 1)->name,
                        "encoder.layers.1.self_att.self_attention.project_k.weight");
    mc_model_free(gpt2); /* the table stays */
    assert_true(mc_shape_equal(mc_inspection_row(table, 0)->shape, MC_SHAPE(16, 16)));
    mc_inspection_free(table);
    mc_inspection_free(NULL);
    assert_int_equal(mc_inspection_count(NULL), 0);
    assert_null(mc_inspect(NULL, NULL));
    assert_good(ctx);
    mc_module *m = new_root(ctx, MC_F32);
    assert_null(mc_inspect(m, NULL));
    assert_error(ctx, MC_ERR_NOT_FOUND, "no parameter");
    mc_parameter_new(m, "w", MC_SHAPE(3), mc_init_zeros());
    assert_null(mc_inspect(m, "x*"));
    assert_error(ctx, MC_ERR_NOT_FOUND, "\"x*\"");
}

/* The form of BMTrain's format_summary, to the character. */
static void test_print(void **state)
{
    mc_context *ctx = *state;
    mc_module *m = new_root(ctx, MC_F32);
    mc_parameter *w = mc_parameter_new(m, "block.weight", MC_SHAPE(2, 2), mc_init_zeros());
    mc_parameter *one = mc_parameter_new(m, "one", MC_SHAPE(1), mc_init_constant(-123456.75f));
    mc_parameter_new(m, "big", MC_SHAPE(1, 1, 1, 1, 2, 1000), mc_init_constant(1e20f));
    mc_parameter_write(w, (float[]){1, 2, 3, 4});
    set_gradient(w, (float[]){0.5f, 0.5f, -0.5f, 0.5f});
    set_gradient(one, (float[]){2});
    static const char expected[] =
        " name            shape               max       min       std       mean      grad_std  "
        "grad_mean\n"
        " block.weight    (2, 2)              4.0000    1.0000    1.2910    2.5000    0.5000    "
        "0.2500   \n"
        " one             (1,)                -123456.7 -123456.7 nan       -123456.7 nan       "
        "2.0000   \n"
        " big             (1, 1, 1, 1, 2, 100 100000002 100000002 0.0000    100000002 0.0000    "
        "0.0000   \n";
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    mc_inspection *table = mc_inspect(m, NULL);
    assert_int_equal(mc_print_inspect(ctx, table, stream), MC_OK);
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
    stream = fopen("/dev/full", "w");
    assert_int_equal(mc_print_inspect(ctx, table, stream), MC_ERR_IO);
    fclose(stream);
    assert_error(ctx, MC_ERR_IO, "written");
    assert_int_equal(mc_print_inspect(ctx, NULL, stdout), MC_OK);
}

/* ---- putting parts together ------------------------------------------------------------------ */

static mc_moments moments_of(const float *x, int n)
{
    mc_tensor_stats s = {.count = n, .largest = -INFINITY, .smallest = INFINITY};
    for (int i = 0; i < n; i++) {
        s.sum += (double)x[i];
        s.squares += (double)x[i] * (double)x[i];
        s.largest = fmaxf(s.largest, x[i]);
        s.smallest = fminf(s.smallest, x[i]);
    }
    return mc_moments_of(&s);
}

static void test_moments(void **state)
{
    (void)state;
    enum { N = 1000 };
    float x[N];
    for (int i = 0; i < N; i++) x[i] = (float)sin(i * i) + 100;
    mc_moments all = {0}, whole = moments_of(x, N);
    for (int at = 0, n = 0; at < N; at += n, n = 3 * n + 1) {
        mc_moments part = moments_of(x + at, n < N - at ? n : N - at);
        mc_moments_add(&all, &part); /* the first has no elements */
    }
    assert_int_equal(all.count, N);
    assert_near(all.mean, whole.mean, 1e-12);
    assert_near(all.squares, whole.squares, 1e-7);
    assert_true(all.largest == whole.largest && all.smallest == whole.smallest);
    /* infinite values in some parts, or in all, are as infinite in the whole */
    float infinite[] = {1, INFINITY};
    mc_moments upper = moments_of(infinite, 2), both = whole, first = upper;
    mc_moments_add(&both, &upper);
    mc_moments_add(&both, &upper);
    assert_true(both.mean == INFINITY && !isfinite(both.squares));
    mc_moments_add(&first, &whole);
    assert_true(first.mean == INFINITY && !isfinite(first.squares));
    infinite[1] = -INFINITY;
    upper = moments_of(infinite, 2);
    mc_moments_add(&first, &upper);
    assert_true(isnan(first.mean));
    mc_moments nan = {.count = 1, .mean = NAN, .largest = NAN, .smallest = NAN};
    mc_moments_add(&all, &nan);
    mc_moments_add(&all, &whole);
    assert_true(isnan(all.largest) && isnan(all.smallest) && isnan(all.mean));
}

/* ---- activations ----------------------------------------------------------------------------- */

/* y = tanh(2 x) with x and y recorded; gives y's gradient as it should be seen. */
static void record_two(mc_context *ctx, mc_dtype dtype, int rows, const float *x, const float *dy)
{
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *in = mc_tape_input(t, MC_F32, MC_SHAPE(rows, 3), x, true);
    mc_tensor *h = mc_record(t, mc_cast(t, in, dtype), "in");
    mc_tensor *y = mc_record(t, mc_scale(t, h, 2), "out");
    mc_tensor *g = mc_tape_input(t, MC_F32, MC_SHAPE(rows, 3), dy, false);
    mc_tape_backward(t, y, mc_cast(t, g, dtype));
    mc_tape_end(t);
}

static void test_record(void **state)
{
    mc_context *ctx = *state;
    float x[6] = {1, -2, 3, 0.5f, 4, 0.25f}, dy[6] = {1, 0, -1, 2, 0.5f, 8}, twice[6], double_dy[6];
    for (int i = 0; i < 6; i++) twice[i] = 2 * x[i], double_dy[i] = 2 * dy[i];
    static const mc_dtype dtypes[] = {MC_F32, MC_F16, MC_BF16};
    for (int k = 0; k < 3; k++) {
        assert_false(mc_record_is_on(ctx));
        assert_int_equal(mc_record_begin(ctx), MC_OK);
        assert_true(mc_record_is_on(ctx));
        record_two(ctx, dtypes[k], 1, x, dy); /* micro-steps of one and no and one row */
        record_two(ctx, dtypes[k], 0, x, dy);
        record_two(ctx, dtypes[k], 1, x + 3, dy + 3);
        mc_inspection *table = mc_record_end(ctx);
        assert_good(ctx);
        assert_int_equal(mc_inspection_count(table), 2);
        const mc_inspect_row *in = mc_inspection_row(table, 0), *out = mc_inspection_row(table, 1);
        assert_string_equal(in->name, "in");
        assert_true(mc_shape_equal(out->shape, MC_SHAPE(2, 3)));
        assert_row(in, x, 6);
        assert_row(out, twice, 6);
        assert_true(in->has_gradient && out->has_gradient);
        statistics s = statistics_of(dy, 6), d = statistics_of(double_dy, 6);
        assert_near(out->grad_mean, s.mean, 1e-12);
        assert_near(out->grad_std, s.std, 1e-12);
        assert_near(in->grad_mean, d.mean, 1e-12);
        assert_near(in->grad_std, d.std, 1e-12);
        mc_inspection_free(table);
    }
}

/* Block lists record their blocks, whatever is run again in backward; losses and gradients are the
 * same bits with and without. */
static void test_record_blocks(void **state)
{
    mc_context *ctx = *state;
    mc_inspect_row rows[4][3];
    float hidden[2][TOKENS * 16], gradient[2][WORDS * 16];
    for (int r = MC_RECOMPUTE_NONE; r <= MC_RECOMPUTE_FULL; r++) {
        mc_model *gpt2 = new_gpt2(ctx, MC_F32, (mc_recompute)r);
        mc_inspection *table = NULL;
        for (int on = 0; on < 2; on++) {
            mc_module_zero_grad(mc_model_module(gpt2));
            if (on) mc_record_begin(ctx);
            run_gpt2(ctx, gpt2, hidden[on]);
            if (on) table = mc_record_end(ctx);
            mc_parameter *p =
                mc_module_find_parameter(mc_model_module(gpt2), "input_embedding.weight");
            mc_parameter_read_gradient(p, gradient[on]);
        }
        assert_good(ctx);
        assert_memory_equal(hidden[0], hidden[1], sizeof hidden[0]);
        assert_memory_equal(gradient[0], gradient[1], sizeof gradient[0]);
        assert_int_equal(mc_inspection_count(table), 3);
        rows[r][0] = *find_row(table, "encoder.layers.0");
        rows[r][1] = *find_row(table, "encoder.layers.1");
        rows[r][2] = *find_row(table, "out");
        assert_row(&rows[r][2], hidden[1], TOKENS * 16);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(rows[r][i].count, TOKENS * 16);
            assert_true(rows[r][i].has_gradient && rows[r][i].grad_std > 0);
            assert_true(rows[r][i].std == rows[1][i].std);
            assert_near(rows[r][i].grad_std / rows[1][i].grad_std, 1, 1e-6);
        }
        mc_inspection_free(table);
        mc_model_free(gpt2);
    }
}

typedef struct my_block {
    mc_module module;
    mc_linear *linear;
} my_block;

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    (void)index, (void)config;
    my_block *b = mc_module_add(list, name, sizeof *b);
    if (b) b->linear = mc_linear_add(&b->module, "linear", 3, 3, NULL);
    return b;
}

static mc_tensor *block_forward(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    my_block *b = block;
    (void)call;
    mc_tensor *h = mc_record(t, mc_linear_forward(t, b->linear, x), "inside");
    return mc_add(t, x, mc_tanh(t, h));
}

/* A record inside a block that runs again counts once, with its gradient. */
static void test_record_inside(void **state)
{
    mc_context *ctx = *state;
    mc_inspect_row rows[4];
    for (int r = MC_RECOMPUTE_NONE; r <= MC_RECOMPUTE_FULL; r++) {
        mc_module *m = new_root(ctx, MC_F32);
        mc_block_list *list = mc_block_list_new(m, "blocks", 2, new_block, block_forward,
                                                &(mc_block_options){.recompute = (mc_recompute)r});
        mc_record_begin(ctx);
        mc_tape *t = mc_tape_begin(ctx);
        float x[6] = {1, 2, -3, 0.5f, 0.25f, -1};
        mc_tensor *in = mc_tape_input(t, MC_F32, MC_SHAPE(2, 3), x, false);
        mc_tensor *y = mc_block_list_forward(t, list, in, NULL);
        mc_tape_backward(t, y, in);
        mc_tape_end(t);
        mc_inspection *table = mc_record_end(ctx);
        assert_good(ctx);
        rows[r] = *find_row(table, "inside");
        assert_int_equal(rows[r].count, 12);
        assert_true(mc_shape_equal(rows[r].shape, MC_SHAPE(4, 3)));
        assert_true(rows[r].std == rows[1].std && rows[r].grad_std == rows[1].grad_std);
        assert_true(rows[r].has_gradient && rows[r].grad_std > 0);
        assert_non_null(find_row(table, "blocks.1"));
        mc_inspection_free(table);
        mc_module_free(m);
    }
}

static void test_record_states(void **state)
{
    mc_context *ctx = *state;
    assert_null(mc_record_end(ctx));
    assert_error(ctx, MC_ERR_STATE, "not on");
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(2), (float[]){1, 3}, false);
    assert_ptr_equal(mc_record(t, x, "x"), x); /* off */
    mc_record_begin(ctx);
    assert_int_equal(mc_record_begin(ctx), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "already");
    assert_non_null(mc_record(t, x, "x"));
    assert_null(mc_record(t, x, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "NULL");
    mc_tensor *n = mc_tape_input(t, MC_I32, MC_SHAPE(2), (int32_t[]){1, 3}, false);
    assert_null(mc_record(t, n, "n"));
    assert_error(ctx, MC_ERR_DTYPE, "record");
    assert_null(mc_record(t, NULL, "x"));
    assert_error(ctx, MC_ERR_ARGUMENT, "NULL");
    mc_inspection *table = mc_record_end(ctx);
    assert_int_equal(mc_inspection_count(table), 1);
    assert_false(mc_inspection_row(table, 0)->has_gradient);
    assert_true(mc_inspection_row(table, 0)->mean == 2);
    mc_record_begin(ctx);
    assert_int_equal(mc_inspection_count(mc_record_end(ctx)), 0);
    mc_record_begin(ctx); /* left on: the context frees it */
    mc_record(t, x, "y");
    mc_tape_end(t);
    assert_good(ctx);
}

/* ---- memory that runs out -------------------------------------------------------------------- */

static long allocations, fail_at;
static void *(*real_alloc)(mc_device *d, size_t bytes);
static void *failing_alloc(mc_device *d, size_t bytes)
{
    return ++allocations == fail_at ? NULL : real_alloc(d, bytes);
}

/* Inspects everything while allocation n of the device or the host fails; whether it did. */
static bool inspect_failing(mc_context *ctx, mc_model *gpt2, bool host, long n)
{
    allocations = 0;
    fail_at = host ? 0 : n;
#ifdef MC_FAULT_INJECTION
    mc_fault_fail_at(host ? n : 0, false);
#endif
    mc_record_begin(ctx);
    run_gpt2(ctx, gpt2, NULL);
    mc_inspection *activations = mc_record_is_on(ctx) ? mc_record_end(ctx) : NULL;
    mc_inspection *table = mc_inspect(mc_model_module(gpt2), NULL);
#ifdef MC_FAULT_INJECTION
    mc_fault_fail_at(0, false);
#else
    if (host) printf("SKIPPED: failing allocations of the host (needs MC_FAULT_INJECTION)\n");
#endif
    bool failed = mc_failed(ctx);
    assert_int_equal(failed, !(table && activations));
    assert_false(mc_record_is_on(ctx));
    mc_inspection_free(activations);
    mc_inspection_free(table);
    if (failed) assert_error(ctx, MC_ERR_NOMEM, "memory");
    return failed;
}

/* Every allocation of the device, and where tests can have them fail of the host, in turn. */
static void test_faults(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, MC_RECOMPUTE_NONE);
    run_gpt2(ctx, gpt2, NULL);
    size_t before = ctx->device->memory.in_use;
    real_alloc = ctx->device->alloc;
    ctx->device->alloc = failing_alloc;
    for (int host = 0; host < 2; host++) {
        long n = 1;
        while (inspect_failing(ctx, gpt2, host, n)) {
            assert_int_equal(ctx->device->memory.in_use, before);
            n++;
        }
        assert_true(host || n > 5);
    }
    ctx->device->alloc = real_alloc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parameters, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_patterns, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_print, set_up_context, tear_down_context),
        cmocka_unit_test(test_moments),
        cmocka_unit_test_setup_teardown(test_record, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_record_blocks, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_record_inside, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_record_states, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_faults, set_up_context, tear_down_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
