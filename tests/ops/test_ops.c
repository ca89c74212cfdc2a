/* Every operation on the CPU, by the kernels of each instruction set: see op_harness.h. */
#include "tests/ops/op_huge.h"

/* One context for each instruction set that this processor has, or for that of MC_CPU_ISA. */
static int open_contexts(void **state)
{
    (void)state;
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    const char *asked = getenv("MC_CPU_ISA");
    char *only = asked && *asked ? strdup(asked) : NULL;
    for (int i = 0; i < 3; i++) {
        if (only && strcmp(only, isas[i]) != 0) continue;
        setenv("MC_CPU_ISA", isas[i], 1);
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 1234});
        if (mc_error_status(ctx) == MC_OK) {
            perf_context = context_count;
            add_context(isas[i], ctx);
            continue;
        }
        printf("SKIPPED: %s (%s)\n", isas[i], mc_error_message(ctx));
        mc_context_free(ctx);
    }
    if (only)
        setenv("MC_CPU_ISA", only, 1);
    else
        unsetenv("MC_CPU_ISA");
    free(only);
    return context_count == 0;
}

static int open_for_tests(void **state)
{
    int failed = open_contexts(state);
    for (int i = 0; i < context_count; i++) contexts[i].ctx->device->logits_chunk = LOGITS_CHUNK;
    return failed;
}

/* The huge sizes are for GPUs; asked for, the instruction sets are compared with the first one. */
static int open_for_huge(void **state)
{
    if (open_contexts(state)) return -1;
    reference_context = contexts[0].ctx;
    return 0;
}

int main(int argc, char **argv)
{
    static test_list l;
    op_arguments a;
    if (!read_arguments(&a, argc, argv)) return 2;
    bool with_huge = a.mode && strcmp(a.mode, "huge") == 0;
    bool measures = a.mode && strcmp(a.mode, "perf") == 0; /* as it is used */
    add_rows(&l, &a, rows, ROW_COUNT);
    if (with_huge) add_huge(&l, &a);
    CMFixtureFunction open = measures ? open_contexts : open_for_tests;
    return run_list(&l, &a, with_huge ? open_for_huge : open, close_contexts);
}
