/* The kernels of generation on the GPU: against plain loops in double. */
#include "tests/device/choose_test.h"
#include "tests/device/gpu_test.h"
#include "tests/device_choice.h"

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
    call.state = upload(before.state, sizeof before.state);
    call.chosen = upload(before.chosen, sizeof before.chosen);
    call.seen = call.seen ? seen : NULL;
    call.eos = eos;
    assert_ok(gpu->kernels->choose_tokens(gpu, &call, x));
    take(call.state, after.state, sizeof after.state);
    take(call.chosen, after.chosen, sizeof after.chosen);
    take(eos, after.eos, sizeof after.eos);
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

/* ---------------------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choose),
    };
    mc_context *owner = context_on("cuda", 1);
    if (!owner) return 0;
    gpu = owner->device;
    size_t in_use = gpu->memory.in_use;
    int failed = cmocka_run_group_tests(tests, open_tables, close_tables);
    size_t leaked = gpu->memory.in_use - in_use;
    if (leaked) fprintf(stderr, "%zu bytes of the GPU were not given back\n", leaked);
    mc_context_free(owner);
    return failed || leaked;
}
