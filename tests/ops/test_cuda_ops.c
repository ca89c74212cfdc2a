/* Every operation on the GPU: the rows of the CPU's tests against the same references in double,
 * and large inputs against the CPU. Each runs twice, as usual and in deterministic mode. Skipped
 * where there is no GPU. */
#include "tests/ops/op_huge.h"

#include "tests/device_choice.h"

enum { SEED = 1234 };

static bool open_on_gpu(const char *name, bool deterministic)
{
    setenv("MC_DETERMINISTIC", deterministic ? "1" : "0", 1);
    mc_context *ctx = context_on("cuda", SEED);
    if (mc_print_error(ctx, stderr)) return false;
    ctx->device->logits_chunk = LOGITS_CHUNK;
    add_context(name, ctx);
    contexts[context_count - 1].f32_only = deterministic && is_watched();
    return true;
}

static int open_contexts(void **state)
{
    (void)state;
    setenv("MC_CACHE_DIR", "", 0); /* a test leaves nothing after for others */
    mc_context *gpu = context_on("cuda", SEED);
    mc_context_free(gpu);
    if (!gpu) return 0; /* the rows are skipped */
    if (!open_on_gpu("cuda", false) || !open_on_gpu("cuda deterministic", true)) return -1;
    reference_context = mc_init_distributed(&(mc_init_options){.seed = SEED, .device = "cpu"});
    return mc_failed(reference_context);
}

static int close_all(void **state)
{
    mc_context_free(reference_context);
    return close_contexts(state);
}

/* Runs of one call in deterministic mode give the same bits. */
static void test_repeatable(void **state)
{
    (void)state;
    if (context_count < 2) skip();
    static const huge_case cases[] = {
        {"embed", {70000, 129, 31}},
        {"residual norm dropout", {70000, 129}},
        {"linear bias gelu", {4097, 129, 65}},
        {"mul by a parameter", {ROW, 35000, 129}},
        {"attention causal", {9, 64, 2, 64}},
        {"cross entropy", {70000, 129}},
        {"linear cross entropy bias ignoring", {4099, 65, 1031, 1040}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int type = 0; type < 3; type++) {
            op_call c;
            random_state = 88172645463325252u;
            call_begin(&c, row_named(cases[i].row), cases[i].n, float_types[type],
                       float_types[type]);
            choose_context(&c, 1);
            double *dy = huge_output_gradient(&c);
            huge_result first = run_huge(&c, dy), second = run_huge(&c, dy);
            assert_memory_equal(first.y, second.y, (size_t)c.out_count * sizeof *first.y);
            for (int k = 0; k < c.inputs; k++)
                if (first.gradient[k])
                    assert_memory_equal(first.gradient[k], second.gradient[k],
                                        (size_t)c.in[k].count * sizeof(double));
            free_huge(&first);
            free_huge(&second);
            call_end(&c);
            free(dy);
        }
}

int main(int argc, char **argv)
{
    static test_list l;
    op_arguments a;
    if (!read_arguments(&a, argc, argv)) return 2;
    add_rows(&l, &a, rows, ROW_COUNT);
    add_huge(&l, &a);
    if (!a.mode && !a.op && !getenv("MC_CUDA_SIMULATED"))
        add_test(&l, "repeat", "deterministic mode", test_repeatable, NULL);
    return run_list(&l, &a, open_contexts, close_all);
}
