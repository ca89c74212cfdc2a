/* The memory pool, and opening the device under its environment variables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "core/device/cpu/cpu_internal.h"
#include "core/device/pool_internal.h"

static uint64_t random_state = 1234567;
static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static void test_blocks(void **state)
{
    (void)state;
    mc_device_memory memory = {0};
    mc_pool *pool = mc_pool_new(&memory, &mc_pool_host);
    assert_non_null(pool);
    void *a = mc_pool_alloc(pool, 0), *b = mc_pool_alloc(pool, 0), *c = mc_pool_alloc(pool, 100);
    assert_true(a && b && c && a != b && b != c);
    assert_true((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0 && (uintptr_t)c % 64 == 0);
    assert_int_equal(memory.in_use, 100);
    mc_pool_release(pool, c, 100);
    assert_ptr_equal(mc_pool_alloc(pool, 90), c);
    assert_int_equal(memory.in_use, 90);
    assert_int_equal(memory.peak, 100);
    assert_int_equal(memory.system_calls, 1);
    mc_pool_release(pool, NULL, 5);
    assert_null(mc_pool_alloc(pool, SIZE_MAX - 10));
#ifndef __SANITIZE_ADDRESS__                           /* which ends the program instead */
    assert_null(mc_pool_alloc(pool, (size_t)1 << 60)); /* more than addresses reach */
#endif
    assert_int_equal(memory.in_use, 90);
    mc_pool_free(pool); /* with blocks in use */
    mc_pool_free(NULL);
    assert_int_equal(memory.reserved, 0);
}

enum { SLOTS = 200 };
typedef struct slot {
    uint8_t *data;
    size_t bytes;
    uint8_t pattern;
} slot;

static void slot_release(mc_pool *pool, slot *s)
{
    for (size_t i = 0; i < s->bytes; i++)
        if (s->data[i] != s->pattern) fail_msg("a block was overwritten");
    mc_pool_release(pool, s->data, s->bytes);
    s->data = NULL;
}

/* Blocks of random sizes, never overlapping; in the end all is one free block again. */
static void test_random_use(void **state)
{
    (void)state;
    mc_device_memory memory = {0};
    mc_pool *pool = mc_pool_new(&memory, &mc_pool_host);
    slot slots[SLOTS] = {0};
    for (int i = 0; i < 20000; i++) {
        slot *s = &slots[random_bits() % SLOTS];
        if (s->data) {
            slot_release(pool, s);
            continue;
        }
        s->bytes = random_bits() % (1u << (random_bits() % 17));
        s->pattern = (uint8_t)random_bits();
        s->data = mc_pool_alloc(pool, s->bytes);
        assert_non_null(s->data);
        memset(s->data, s->pattern, s->bytes);
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].data) slot_release(pool, &slots[i]);
    assert_int_equal(memory.in_use, 0);
    uint64_t calls = memory.system_calls;
    assert_int_equal(calls, 1);
    void *all = mc_pool_alloc(pool, memory.reserved - 256); /* merged */
    assert_non_null(all);
    assert_int_equal(memory.system_calls, calls);
    mc_pool_free(pool);
}

/* Steps whose tensors have other sizes each time: after a few, the system is not asked again. */
static void test_steady_state(void **state)
{
    (void)state;
    mc_device_memory memory = {0};
    mc_pool *pool = mc_pool_new(&memory, &mc_pool_host);
    uint64_t calls = 0;
    for (int step = 0; step < 200; step++) {
        void *data[50];
        size_t bytes[50], tokens = 1000 + random_bits() % 200;
        for (int i = 0; i < 50; i++) {
            bytes[i] = tokens * (size_t[]){4, 1536, 3072, 512, 6144}[i % 5];
            data[i] = mc_pool_alloc(pool, bytes[i]);
            assert_non_null(data[i]);
        }
        for (int i = 49; i >= 0; i--) mc_pool_release(pool, data[i], bytes[i]);
        if (step == 20) calls = memory.system_calls;
    }
    assert_int_equal(memory.system_calls, calls);
    assert_true(memory.reserved < memory.peak + memory.peak / 2);
    mc_pool_free(pool);
}

static void open_with(const char *isa, const char *gemm, mc_status expected, const char *message)
{
    mc_context *ctx = mc_init_distributed(NULL);
    assert_false(mc_failed(ctx));
    isa ? setenv("MC_CPU_ISA", isa, 1) : unsetenv("MC_CPU_ISA");
    gemm ? setenv("MC_GEMM", gemm, 1) : unsetenv("MC_GEMM");
    mc_device *d = mc_device_open(ctx, "cpu");
    assert_int_equal(mc_error_status(ctx), expected);
    if (expected == MC_OK)
        assert_non_null(d);
    else
        assert_null(d);
    if (d && isa && *isa) assert_string_equal(((mc_cpu_device *)d)->isa, isa);
    if (d && gemm && *gemm) assert_string_equal(((mc_cpu_device *)d)->gemm, gemm);
    if (!strstr(mc_error_message(ctx), message)) fail_msg("message: %s", mc_error_message(ctx));
    mc_device_close(d);
    mc_context_free(ctx);
    unsetenv("MC_CPU_ISA");
    unsetenv("MC_GEMM");
}

static void test_environment(void **state)
{
    (void)state;
    open_with(NULL, NULL, MC_OK, "");
    open_with("", "", MC_OK, "");
    open_with("scalar", "cblas", MC_OK, "");
    open_with("sse9", NULL, MC_ERR_ARGUMENT, "MC_CPU_ISA=sse9");
    open_with(NULL, "mkl", MC_ERR_ARGUMENT, "MC_GEMM=mkl");
#ifdef MC_HAVE_ONEDNN
    open_with(NULL, "onednn", MC_OK, "");
#else
    open_with(NULL, "onednn", MC_ERR_UNSUPPORTED, "MC_GEMM=onednn");
#endif
#ifdef MC_HAVE_X86_ISA
    open_with("avx2", NULL, __builtin_cpu_supports("avx2") ? MC_OK : MC_ERR_UNSUPPORTED,
              __builtin_cpu_supports("avx2") ? "" : "MC_CPU_ISA=avx2");
    open_with("avx512", NULL, __builtin_cpu_supports("avx512bw") ? MC_OK : MC_ERR_UNSUPPORTED,
              __builtin_cpu_supports("avx512bw") ? "" : "MC_CPU_ISA=avx512");
#endif
}

static void test_other_device(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(NULL);
    assert_null(mc_device_open(ctx, "tpu"));
    assert_int_equal(mc_error_status(ctx), MC_ERR_UNSUPPORTED);
    mc_context_free(ctx);
}

#ifdef MC_FAULT_INJECTION
#include "core/base/memory_internal.h"

/* Out of memory: NULL, and the pool goes on; with free segments they are given back first. */
static void test_out_of_memory(void **state)
{
    (void)state;
    mc_device_memory memory = {0};
    mc_pool *pool = mc_pool_new(&memory, &mc_pool_host);
    mc_fault_fail_at(1, true);
    assert_null(mc_pool_alloc(pool, 100));
    assert_null(mc_pool_new(&memory, &mc_pool_host));
    mc_fault_fail_at(0, false);
    void *a = mc_pool_alloc(pool, 100);
    assert_non_null(a);
    mc_pool_release(pool, a, 100);
    size_t large = 2 * memory.reserved, before = memory.reserved;
    mc_fault_fail_at(1, false); /* fails once: after trimming it works */
    a = mc_pool_alloc(pool, large);
    mc_fault_fail_at(0, false);
    assert_non_null(a);
    assert_true(memory.reserved < large + before);
    mc_pool_release(pool, a, large);
    mc_pool_free(pool);
    assert_int_equal(memory.reserved, 0);
}

/* Opening a device fails cleanly at each allocation. */
static void test_open_out_of_memory(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        mc_context *ctx = mc_init_distributed(NULL);
        mc_fault_fail_at(n, true);
        mc_device *d = mc_device_open(ctx, "cpu");
        mc_fault_fail_at(0, false);
        assert_null(d);
        assert_int_equal(mc_error_status(ctx), MC_ERR_NOMEM);
        mc_context_free(ctx);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),        cmocka_unit_test(test_random_use),
        cmocka_unit_test(test_steady_state),  cmocka_unit_test(test_environment),
        cmocka_unit_test(test_other_device),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_open_out_of_memory),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
