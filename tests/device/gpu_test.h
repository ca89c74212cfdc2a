/* What tests of kernels on the GPU share: its memory, and its errors. A program that includes this
 * opens `gpu`. */
#ifndef MC_TESTS_GPU_TEST_H
#define MC_TESTS_GPU_TEST_H

#include "core/device/cuda/runtime/routes_internal.h"
#include "tests/device/kernel_test.h"
#include "tests/device_choice.h"

static mc_device *gpu;

/* Runs the tests, which must give back all of the GPU's memory; none without a GPU. What main is to
 * return. */
#define RUN_ON_GPU(tests) \
    (gpu_begin() ? gpu_end(cmocka_run_group_tests(tests, open_tables, close_tables)) : 0)

static mc_context *gpu_owner;
static size_t gpu_in_use;

static inline bool gpu_begin(void)
{
    gpu_owner = context_on("cuda", 1);
    if (!gpu_owner) return false;
    gpu = gpu_owner->device;
    gpu_in_use = gpu->memory.in_use;
    return true;
}

static inline int gpu_end(int failed)
{
    size_t leaked = gpu->memory.in_use - gpu_in_use;
    if (leaked) fprintf(stderr, "%zu bytes of the GPU were not given back\n", leaked);
    mc_context_free(gpu_owner);
    return failed || leaked;
}

/* As MC_ROUTE in the environment; "": none. */
static inline void force(const char *routes)
{
    assert_int_equal(mc_routes_read(gpu, routes), MC_OK);
}

static inline void *upload(const void *data, size_t bytes)
{
    void *at = gpu->alloc(gpu, bytes);
    assert_non_null(at);
    gpu->copy_in(gpu, at, data, bytes);
    return at;
}

static inline size_t matrix_bytes(const matrix *x)
{
    return (size_t)((x->rows + 1) * x->m.stride) * mc_dtype_size(x->m.dtype);
}

/* The matrix on the GPU, gaps included. */
static inline mc_matrix upload_matrix(const matrix *x)
{
    mc_matrix m = x->m;
    m.data = upload(x->m.data, matrix_bytes(x));
    return m;
}

/* Back into x, and the GPU's memory is given back. */
static inline void take_matrix(mc_matrix m, matrix *x)
{
    assert_true(gpu->copy_out(gpu, x->m.data, m.data, matrix_bytes(x)));
    gpu->free(gpu, m.data, matrix_bytes(x));
}

static inline mc_matrix columns_from(mc_matrix m, int64_t column)
{
    m.data = (char *)m.data + (size_t)column * mc_dtype_size(m.dtype);
    return m;
}

static inline void assert_ok(mc_status status)
{
    if (status) fail_msg("%s: %s", mc_status_text(status), gpu->failure);
}

#endif
