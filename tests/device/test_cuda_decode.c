/* The kernels of generation on the GPU: against plain loops in double. */
#include "tests/device/choose_test.h"
#include "tests/device/gpu_test.h"

/* ---- choosing tokens ------------------------------------------------------------------------- */

/* What is on the GPU comes back to where it was on the host. */
static void take(void *at, void *host, size_t bytes)
{
    assert_true(gpu->copy_out(gpu, host, at, bytes));
    gpu->free(gpu, at, bytes);
}

/* The weights that are drawn from are f32, so that their sums end a little elsewhere. */
static void run_choose(const choose_case *c, mc_dtype dtype)
{
    matrix logits = choose_logits(c, dtype);
    choose_memory before = choose_begin(c), after = before;
    mc_choose_call call = choose_call_of(c, &before);
    after.seen = malloc(before.seen_bytes);
    assert_non_null(after.seen);
    mc_matrix x = upload_matrix(&logits);
    uint32_t *seen = upload(before.seen, before.seen_bytes);
    int32_t *eos = upload(before.eos, sizeof before.eos);
    mc_answer_rules *rules = upload(before.rules, sizeof before.rules);
    call.state = upload(before.state, sizeof before.state);
    call.chosen = upload(before.chosen, sizeof before.chosen);
    call.seen = call.seen ? seen : NULL;
    call.eos = eos;
    call.rules = rules;
    assert_ok(gpu->kernels->choose_tokens(gpu, &call, x));
    take(call.state, after.state, sizeof after.state);
    take(call.chosen, after.chosen, sizeof after.chosen);
    take(eos, after.eos, sizeof after.eos);
    take(rules, after.rules, sizeof after.rules);
    take(seen, after.seen, before.seen_bytes);
    take_matrix(x, &logits);
    choose_check(c, &before, &after, &logits, 2e-6, "on the GPU");
    free(before.seen);
    free(after.seen);
    matrix_free(&logits);
}

static void test_choose(void **state)
{
    (void)state;
    for (int n = 0; n < CHOOSE_CASES; n++)
        FOR_TYPES(d) run_choose(&choose_cases[n], float_types[d]);
}

static void run_best(const choose_case *c, mc_dtype dtype, int count, bool penalised)
{
    matrix logits = choose_logits(c, dtype);
    choose_memory m = choose_begin(c);
    mc_chosen best[CHOOSE_ROWS * 60];
    float penalty[CHOOSE_ROWS];
    mc_best_call call = {.rows = CHOOSE_ROWS, .vocab = c->vocab, .count = count};
    best_blank(best);
    const float *used = best_penalties(c, penalised, penalty);
    float *given = used ? upload(penalty, sizeof penalty) : NULL;
    call.penalty = given;
    mc_matrix x = upload_matrix(&logits);
    uint32_t *seen = upload(m.seen, m.seen_bytes);
    call.seen = penalised ? seen : NULL;
    call.best = upload(best, sizeof best);
    assert_ok(gpu->kernels->best_tokens(gpu, &call, x));
    take(call.best, best, sizeof best);
    take(seen, m.seen, m.seen_bytes);
    take_matrix(x, &logits);
    if (given) take(given, penalty, sizeof penalty);
    best_check(&call, penalty, penalised ? m.seen : NULL, best, &logits, 2e-5, "on the GPU");
    free(m.seen);
    matrix_free(&logits);
}

static void test_best(void **state)
{
    (void)state;
    for (int n = 0; n < CHOOSE_CASES; n++) FOR_TYPES(d)
    for (size_t k = 0; k < sizeof best_counts / sizeof *best_counts; k++)
        run_best(&choose_cases[n], float_types[d], best_counts[k], n % 2);
}

/* ---- linear layers of few rows --------------------------------------------------------------- */

/* rows, terms, columns: one and several groups of rows, and all sizes of blocks; terms and columns
 * that fill no whole step or tile. The last ones are for GPUs with many multiprocessors, and for
 * all sizes of clusters that Hopper has. */
static const int64_t few_shapes[][3] = {
    {1, 64, 48},     {1, 40, 7},      {1, 2056, 20},   {3, 768, 100},   {2, 768, 2},
    {8, 96, 1000},   {9, 1600, 64},   {16, 72, 50},    {17, 256, 40},   {32, 200, 250},
    {32, 2048, 20},  {33, 96, 65},    {64, 320, 70},   {2, 64, 1700},   {12, 64, 1700},
    {32, 64, 1700},  {1, 72, 40000},  {12, 64, 40000}, {32, 64, 5000},  {16, 2048, 500},
    {1, 2056, 8300}, {5, 1600, 1600}, {8, 768, 2305},  {13, 3072, 768}, {32, 1600, 4800},
    {33, 776, 2301}, {64, 1600, 901}, {7, 72, 40001},  {6, 3072, 5501}};
enum { FEW_SHAPES = sizeof few_shapes / sizeof *few_shapes, FEW_LARGE = 13 };

static double activate(mc_activation activation, double x)
{
    switch (activation) {
    case MC_ACTIVATION_RELU: return x > 0 ? x : 0;
    case MC_ACTIVATION_GELU: return x / 2 * (1 + erf(x / sqrt(2)));
    case MC_ACTIVATION_GELU_NEW:
        return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case MC_ACTIVATION_TANH: return tanh(x);
    case MC_ACTIVATION_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

/* The sums against the CPU's in f64; the result against the activation of the sums as they were
 * stored; and the result where they are not kept, which is the same to the bit. */
static void run_few(const int64_t *shape, mc_dtype dtype, mc_activation activation)
{
    int64_t rows = shape[0], in = shape[1], out = shape[2];
    bool biased = activation != MC_ACTIVATION_SILU;
    float alpha = activation == MC_ACTIVATION_RELU ? 0.5f : 1.0f;
    matrix x = matrix_new(dtype, rows, in, 8, -1, 1);
    matrix weight = matrix_new(dtype, out, in, 16, -0.3, 0.3);
    matrix bias = matrix_new(dtype, 1, out, 0, -1, 1);
    matrix sum = matrix_new(dtype, rows, out, 3, -1, 1), y = matrix_new(dtype, rows, out, 1, -1, 1);
    matrix alone = matrix_new(dtype, rows, out, 1, -1, 1);
    double *expected = doubles(rows * out);
    for (int64_t i = 0; i < rows * out; i++) {
        for (int64_t k = 0; k < in; k++)
            expected[i] += x.v[i / out * in + k] * weight.v[i % out * in + k];
        expected[i] = (double)alpha * expected[i] + (biased ? bias.v[i % out] : 0);
    }
    matrix *all[] = {&x, &weight, &bias, &sum, &y, &alone};
    mc_matrix on_gpu[6], none = {0};
    for (int i = 0; i < 6; i++) on_gpu[i] = upload_matrix(all[i]);
    for (int kept = 0; kept < 2; kept++)
        assert_ok(gpu->kernels->linear(gpu, &(mc_linear_call){.rows = rows,
                                                              .in = in,
                                                              .out = out,
                                                              .alpha = alpha,
                                                              .x = on_gpu[0],
                                                              .weight = on_gpu[1],
                                                              .bias = biased ? on_gpu[2] : none,
                                                              .activation = activation,
                                                              .pre = kept ? on_gpu[3] : none,
                                                              .y = on_gpu[kept ? 4 : 5]}));
    for (int i = 0; i < 6; i++) take_matrix(on_gpu[i], all[i]);
    assert_matrix(&sum, expected, 2e-5, "cuda", "linear of few rows, before the activation");
    for (int64_t i = 0; i < rows * out; i++) {
        int64_t at = i / out * sum.m.stride + i % out;
        expected[i] = activate(activation, element(dtype, sum.m.data, at));
    }
    assert_matrix(&y, expected, 2e-5, "cuda", "linear of few rows");
    assert_memory_equal(y.m.data, alone.m.data, matrix_bytes(&y));
    for (int i = 0; i < 6; i++) matrix_free(all[i]);
    free(expected);
}

static void run_all_few(void)
{
    const mc_dtype types[] = {MC_F16, MC_BF16};
    int activation = 0, shapes = FEW_SHAPES;
    if (getenv("MC_CUDA_SIMULATED")) {
        printf("SKIPPED: large shapes, which would take minutes\n");
        shapes -= FEW_LARGE;
    }
    for (int i = 0; i < shapes; i++)
        for (int t = 0; t < 2; t++, activation = (activation + 1) % (MC_ACTIVATION_SILU + 1))
            run_few(few_shapes[i], types[t], (mc_activation)activation);
}

static void test_skinny_gemm(void **state)
{
    (void)state;
    run_all_few();
}

/* Each kernel with every call that it takes: by default another one has some of them. */
static void test_skinny_gemm_forced(void **state)
{
    (void)state;
    force("product:skinny");
    run_all_few();
    if (!mc_routes_read(gpu, "product:skinny_hopper?")) run_all_few();
    gpu->failure[0] = '\0';
    force("");
}

/* ---------------------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_skinny_gemm),
        cmocka_unit_test(test_skinny_gemm_forced),
    };
    return RUN_ON_GPU(tests);
}
