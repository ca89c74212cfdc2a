/* Communicators between CPU ranks: every collective against what one process computes, groups of
 * ranks and of calls, calls that are waited for later, and gradients. Run by itself and under
 * mpirun -np 1, 2, 3, 4 (tests/CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/autograd/tape_internal.h"
#include "core/dist/mesh_internal.h"
#include "tests/dist/comm_test.h"

#ifdef MC_HAVE_MPI
#include "core/dist/comm_mpi_internal.h"
#endif

enum { LARGE = 1000007, MOST_RANKS = 4, DTYPES = 7 };

static mc_context *ctx;
static mc_comm *world;
static int rank, size;

static const mc_dtype dtypes[DTYPES] = {MC_F32, MC_F16, MC_BF16, MC_I64, MC_I32, MC_U8, MC_BOOL};

/* What each rank brings, (rank, LARGE) of a dtype: every rank knows them all. */
static char *inputs[MOST_RANKS];
static mc_dtype inputs_dtype;
static char *result, *expected; /* of up to MOST_RANKS * LARGE elements */

/* ---- a reference of its own ------------------------------------------------------------------ */

static uint32_t hash(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Of numbers only. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t low = bits & 0xffff, up = bits >> 16;
    return (uint16_t)(up + (low > 0x8000 || (low == 0x8000 && up & 1)));
}

/* Nearest even by the grid of the number's binade. */
static uint16_t to_f16(float x)
{
    if (x == 0) return 0;
    int e;
    frexpf(x, &e);
    if (e < -13) e = -13;
    double step = ldexp(1, e - 11), k = nearbyint(fabs((double)x) / step);
    double magnitude = k * step;
    if (magnitude >= 65520) return (uint16_t)(x < 0 ? 0xfc00 : 0x7c00);
    int f;
    double m = frexp(magnitude, &f); /* in [0.5, 1) */
    unsigned bits = magnitude < 0x1p-14 ? (unsigned)(magnitude * 0x1p24)
                                        : (unsigned)(f + 14) << 10 | (unsigned)(m * 2048 - 1024);
    return (uint16_t)(bits | (x < 0 ? 0x8000 : 0));
}

static float from_f16(uint16_t h)
{
    unsigned e = h >> 10 & 31, m = h & 1023;
    float x = e == 31  ? (m ? NAN : INFINITY)
              : e == 0 ? ldexpf((float)m, -24)
                       : ldexpf((float)(m + 1024), (int)e - 25);
    return h & 0x8000 ? -x : x;
}

/* Element i of what rank r brings: never 0, so that max and min are of one sign of it. */
static void put_input(char *to, mc_dtype dtype, int r, int64_t i)
{
    uint32_t h = hash((uint32_t)(i * MOST_RANKS + r) + 12345u * (uint32_t)dtype);
    float x = (float)((int32_t)h | 1) * 0x1p-31f * 1.5f;
    int64_t wide = (int64_t)((uint64_t)h << 32 | hash(h));
    switch (dtype) {
    case MC_F32: memcpy(to + 4 * i, &x, 4); break;
    case MC_F16: memcpy(to + 2 * i, &(uint16_t){to_f16(x) ? to_f16(x) : 1}, 2); break;
    case MC_BF16: memcpy(to + 2 * i, &(uint16_t){to_bf16(x)}, 2); break;
    case MC_I64: memcpy(to + 8 * i, &wide, 8); break;
    case MC_I32: memcpy(to + 4 * i, &h, 4); break;
    case MC_U8: to[i] = (char)h; break;
    default: to[i] = (char)(h >> 7 & 1);
    }
}

static void need_inputs(mc_dtype dtype)
{
    if (inputs_dtype == dtype) return;
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < LARGE; i++) put_input(inputs[r], dtype, r, i);
    inputs_dtype = dtype;
}

static double combine(mc_reduce_op op, double a, double b)
{
    switch (op) {
    case MC_REDUCE_PROD: return a * b;
    case MC_REDUCE_MAX: return a > b ? a : b;
    case MC_REDUCE_MIN: return a < b ? a : b;
    default: return a + b;
    }
}

static void expect_f32(mc_reduce_op op, int64_t from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double a = (double)((float *)inputs[0])[from + i];
        for (int r = 1; r < size; r++) a = combine(op, a, (double)((float *)inputs[r])[from + i]);
        ((float *)expected)[i] = (float)(op == MC_REDUCE_AVG ? a / size : a);
    }
}

/* Sums of f16 and bf16 are rounded to f32 after every addition. */
static void expect_16(mc_reduce_op op, mc_dtype dtype, int64_t from, int64_t n)
{
    float (*get)(uint16_t) = dtype == MC_F16 ? from_f16 : from_bf16;
    for (int64_t i = 0; i < n; i++) {
        float a = get(((uint16_t *)inputs[0])[from + i]);
        for (int r = 1; r < size; r++)
            a = (float)combine(op, (double)a, (double)get(((uint16_t *)inputs[r])[from + i]));
        if (op == MC_REDUCE_AVG) a /= (float)size;
        ((uint16_t *)expected)[i] = dtype == MC_F16 ? to_f16(a) : to_bf16(a);
    }
}

static int64_t get_integer(const char *x, mc_dtype dtype, int64_t i)
{
    if (dtype == MC_I64) return ((const int64_t *)(const void *)x)[i];
    if (dtype == MC_I32) return ((const int32_t *)(const void *)x)[i];
    return ((const uint8_t *)(const void *)x)[i];
}

static int64_t wrap(mc_dtype dtype, uint64_t x)
{
    if (dtype == MC_I64) return (int64_t)x;
    return dtype == MC_I32 ? (int32_t)x : (uint8_t)x;
}

static void expect_integer(mc_reduce_op op, mc_dtype dtype, int64_t from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t a = get_integer(inputs[0], dtype, from + i);
        for (int r = 1; r < size; r++) {
            int64_t b = get_integer(inputs[r], dtype, from + i);
            if (op == MC_REDUCE_MAX)
                a = a > b ? a : b;
            else if (op == MC_REDUCE_MIN)
                a = a < b ? a : b;
            else
                a = wrap(dtype, op == MC_REDUCE_PROD ? (uint64_t)a * (uint64_t)b
                                                     : (uint64_t)a + (uint64_t)b);
        }
        if (op == MC_REDUCE_AVG) a /= size;
        memcpy(expected + (size_t)i * mc_dtype_size(dtype), &a, mc_dtype_size(dtype));
    }
}

/* expected = op over all ranks of elements from .. from + n. */
static void expect_reduced(mc_reduce_op op, mc_dtype dtype, int64_t from, int64_t n)
{
    if (dtype == MC_F32)
        expect_f32(op, from, n);
    else if (dtype == MC_F16 || dtype == MC_BF16)
        expect_16(op, dtype, from, n);
    else
        expect_integer(op, dtype, from, n);
}

static const char *const op_names[] = {"sum", "prod", "max", "min", "avg"};

/* Compares n elements bit for bit, and sees that what is after them was left alone. */
static void check(const char *what, const char *got, mc_dtype dtype, int64_t n)
{
    size_t each = mc_dtype_size(dtype), bytes = (size_t)n * each;
    assert_good(ctx);
    for (size_t i = 0; i < bytes && memcmp(got, expected, bytes); i++)
        if (got[i] != expected[i])
            fail_msg("rank %d of %d: %s of %lld %s: element %zu differs", rank, size, what,
                     (long long)n, mc_dtype_name(dtype), i / each);
    for (size_t i = 0; i < 16; i++)
        if (got[bytes + i] != 0x5a)
            fail_msg("rank %d of %d: %s of %lld %s wrote after its end", rank, size, what,
                     (long long)n, mc_dtype_name(dtype));
}

static void clean_result(mc_dtype dtype, int64_t n)
{
    memset(result, 0x5a, (size_t)n * mc_dtype_size(dtype) + 16);
}

static const int64_t counts[] = {0, 1, 7, 1237, 2048, 4097, 70001, LARGE};
enum { COUNTS = sizeof counts / sizeof *counts };

static bool has_op(mc_dtype dtype, mc_reduce_op op)
{
    return dtype != MC_BOOL || (op != MC_REDUCE_SUM && op != MC_REDUCE_AVG);
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void reduce_all_ways(mc_dtype dtype, mc_reduce_op op, int64_t n, int root)
{
    char *mine = inputs[rank];
    size_t bytes = (size_t)n * mc_dtype_size(dtype);
    char what[32];
    expect_reduced(op, dtype, 0, n);
    snprintf(what, sizeof what, "all-reduce %s", op_names[op]);
    clean_result(dtype, n);
    mc_comm_all_reduce(world, mine, result, n, dtype, op);
    check(what, result, dtype, n);
    clean_result(dtype, n);
    memcpy(result, mine, bytes);
    mc_comm_all_reduce(world, result, result, n, dtype, op); /* in place */
    check(what, result, dtype, n);
    snprintf(what, sizeof what, "reduce %s", op_names[op]);
    clean_result(dtype, n);
    mc_comm_reduce(world, mine, rank == root ? result : NULL, n, dtype, op, root);
    if (rank == root)
        check(what, result, dtype, n);
    else if (n)
        assert_int_equal(result[0], 0x5a);
}

static void test_reductions(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        need_inputs(dtypes[d]);
        for (mc_reduce_op op = MC_REDUCE_SUM; op <= MC_REDUCE_AVG; op++)
            for (int k = 0; k < COUNTS && has_op(dtypes[d], op); k++)
                reduce_all_ways(dtypes[d], op, counts[k], (k + d) % size);
    }
}

/* Ranks 0, 1, ... have NaN in element 0, 1, ..., and all a number in the last one. Whichever rank
 * it comes from, and whatever the others have, NaN is the result. */
static void test_nan(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int op = MC_REDUCE_SUM; op <= MC_REDUCE_AVG; op++) {
            float x[32];
            for (int i = 0; i <= size; i++) x[i] = i == rank ? NAN : (float)(1 + rank);
            mc_tensor *from = mc_tensor_new(ctx, dtypes[d], MC_SHAPE(size + 1)),
                      *wide = mc_tensor_from(ctx, MC_F32, MC_SHAPE(size + 1), x);
            mc_tensor_copy(from, wide);
            void *data = mc_tensor_data(from);
            mc_comm_all_reduce(world, data, data, size + 1, dtypes[d], (mc_reduce_op)op);
            mc_tensor_read_f32(ctx, from, x, size + 1);
            assert_good(ctx);
            for (int i = 0; i < size; i++)
                if (!isnan(x[i]))
                    fail_msg("rank %d of %d: %s of %s: NaN of rank %d became %g", rank, size,
                             op_names[op], mc_dtype_name(dtypes[d]), i, (double)x[i]);
            assert_false(isnan(x[size]));
            mc_tensor_free(from);
            mc_tensor_free(wide);
        }
}

static void test_reduce_scatter(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        size_t each = mc_dtype_size(dtypes[d]);
        need_inputs(dtypes[d]);
        for (mc_reduce_op op = MC_REDUCE_SUM; op <= MC_REDUCE_AVG; op++) {
            for (int k = 0; k < COUNTS && has_op(dtypes[d], op); k++) {
                int64_t n = counts[k] < LARGE ? counts[k] : LARGE / size;
                if (n * size > LARGE) n = LARGE / size;
                expect_reduced(op, dtypes[d], rank * n, n);
                clean_result(dtypes[d], n);
                mc_comm_reduce_scatter(world, inputs[rank], result, n, dtypes[d], op);
                check("reduce-scatter", result, dtypes[d], n);
                clean_result(dtypes[d], n * size);
                memcpy(result, inputs[rank], (size_t)(n * size) * each);
                char *place = result + (size_t)(n * rank) * each;
                mc_comm_reduce_scatter(world, result, place, n, dtypes[d], op); /* in place */
                assert_good(ctx);
                assert_memory_equal(place, expected, (size_t)n * each);
            }
        }
    }
}

static void expect_gathered(mc_dtype dtype, int64_t n)
{
    size_t bytes = (size_t)n * mc_dtype_size(dtype);
    for (int r = 0; r < size; r++) memcpy(expected + (size_t)r * bytes, inputs[r], bytes);
}

static void test_all_gather(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        need_inputs(dtypes[d]);
        for (int k = 0; k < COUNTS; k++) {
            int64_t n = counts[k];
            size_t bytes = (size_t)n * mc_dtype_size(dtypes[d]);
            expect_gathered(dtypes[d], n);
            clean_result(dtypes[d], n * size);
            mc_comm_all_gather(world, inputs[rank], result, n, dtypes[d]);
            check("all-gather", result, dtypes[d], n * size);
            clean_result(dtypes[d], n * size);
            memcpy(result + (size_t)rank * bytes, inputs[rank], bytes);
            mc_comm_all_gather(world, result + (size_t)rank * bytes, result, n, dtypes[d]);
            check("all-gather in place", result, dtypes[d], n * size);
        }
    }
}

static void test_broadcast(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        need_inputs(dtypes[d]);
        for (int k = 0; k < COUNTS; k++)
            for (int root = 0; root < size; root++) {
                int64_t n = counts[k];
                size_t bytes = (size_t)n * mc_dtype_size(dtypes[d]);
                memcpy(expected, inputs[root], bytes);
                clean_result(dtypes[d], n);
                mc_comm_broadcast(world, rank == root ? inputs[rank] : NULL, result, n, dtypes[d],
                                  root);
                check("broadcast", result, dtypes[d], n);
                clean_result(dtypes[d], n);
                if (rank == root) memcpy(result, inputs[rank], bytes);
                mc_comm_broadcast(world, result, result, n, dtypes[d], root); /* in place */
                check("broadcast in place", result, dtypes[d], n);
            }
    }
}

/* Round the ring, both ways at once. */
static void test_messages(void **state)
{
    (void)state;
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    need_inputs(MC_I32);
    for (int k = 0; k < COUNTS; k++) {
        int64_t n = counts[k];
        char *second = result + 4 * n + 16;
        memset(result, 0x5a, (size_t)(8 * n) + 32);
        mc_comm_group_start(world);
        mc_comm_group_start(world);
        mc_comm_send(world, inputs[rank], n, MC_I32, next);
        mc_comm_recv(world, result, n, MC_I32, previous);
        mc_comm_group_end(world); /* an inner pair */
        mc_comm_send(world, inputs[rank], n, MC_I32, previous);
        mc_comm_recv(world, second, n, MC_I32, next);
        mc_comm_group_end(world);
        memcpy(expected, inputs[previous], (size_t)(4 * n));
        check("recv", result, MC_I32, n);
        memcpy(expected, inputs[next], (size_t)(4 * n));
        check("recv", second, MC_I32, n);
    }
    if (size < 2 || rank > 1) return;
    clean_result(MC_I32, 5); /* between two ranks the others need not know */
    memcpy(expected, inputs[0], 20);
    if (rank == 0) mc_comm_send(world, inputs[0], 5, MC_I32, 1);
    if (rank == 1) mc_comm_recv(world, result, 5, MC_I32, 0);
    if (rank == 1) check("recv", result, MC_I32, 5);
}

static void test_group_of_collectives(void **state)
{
    (void)state;
    need_inputs(MC_F32);
    float *sum = (float *)(void *)result, *all = sum + 3000;
    mc_comm_group_start(world);
    mc_comm_all_reduce(world, inputs[rank], sum, 2500, MC_F32, MC_REDUCE_SUM);
    mc_comm_all_gather(world, inputs[rank], all, 700, MC_F32);
    mc_comm_group_end(world);
    assert_good(ctx);
    expect_reduced(MC_REDUCE_SUM, MC_F32, 0, 2500);
    assert_memory_equal(sum, expected, 2500 * 4);
    expect_gathered(MC_F32, 700);
    assert_memory_equal(all, expected, 700 * 4 * (size_t)size);
}

/* Messages as short as 2^31 bytes are for large tensors: everything goes in many of them. */
static void set_most_message(int bytes)
{
#ifdef MC_HAVE_MPI
    mc_mpi_lock()->most_message = bytes;
    mc_mpi_unlock();
#else
    (void)bytes;
#endif
}

static void test_many_messages(void **state)
{
    (void)state;
    enum { N = 70001 };
    set_most_message(4096);
    need_inputs(MC_I64);
    reduce_all_ways(MC_I64, MC_REDUCE_SUM, N, size - 1);
    clean_result(MC_I64, N / 4);
    expect_reduced(MC_REDUCE_MAX, MC_I64, rank * (N / 4), N / 4);
    mc_comm_reduce_scatter(world, inputs[rank], result, N / 4, MC_I64, MC_REDUCE_MAX);
    check("reduce-scatter", result, MC_I64, N / 4);
    expect_gathered(MC_I64, N);
    clean_result(MC_I64, N * size);
    mc_comm_all_gather(world, inputs[rank], result, N, MC_I64);
    check("all-gather", result, MC_I64, N * size);
    memcpy(expected, inputs[0], N * 8);
    clean_result(MC_I64, N);
    mc_comm_broadcast(world, inputs[rank], result, N, MC_I64, 0);
    check("broadcast", result, MC_I64, N);
    clean_result(MC_I64, N);
    memcpy(expected, inputs[(rank + 1) % size], N * 8);
    mc_comm_group_start(world);
    mc_comm_recv(world, result, N, MC_I64, (rank + 1) % size);
    mc_comm_send(world, inputs[rank], N, MC_I64, (rank + size - 1) % size);
    mc_comm_group_end(world);
    check("recv", result, MC_I64, N);
    set_most_message(1 << 30);
}

/* Many calls under way at once, waited for in another order on every rank; more than have tags. */
static void test_started_calls(void **state)
{
    (void)state;
    enum { CALLS = 150, N = 3001 };
    mc_comm_request *requests[CALLS];
    float *sums = mc_malloc(sizeof(float) * N * CALLS), *one = mc_malloc(sizeof(float) * N * CALLS);
    for (int i = 0; i < CALLS; i++)
        for (int j = 0; j < N; j++) one[i * N + j] = (float)(rank + 1) * (float)(i + j);
    for (int i = 0; i < CALLS; i++)
        requests[i] =
            mc_comm_start_all_reduce(world, one + i * N, sums + i * N, N, MC_F32, MC_REDUCE_SUM);
    for (int i = 0; i < CALLS; i++) {
        int k = (i * 7 + rank * 11) % CALLS;
        mc_comm_wait(requests[k]);
        assert_good(ctx);
        for (int j = 0; j < N; j++)
            if (sums[k * N + j] != (float)(size * (size + 1) / 2 * (k + j)))
                fail_msg("rank %d: call %d, element %d", rank, k, j);
    }
    mc_comm_wait(NULL);
    mc_free(sums);
    mc_free(one);
}

static void test_started_gathers(void **state)
{
    (void)state;
    enum { N = 200003 };
    need_inputs(MC_BF16);
    char *part = result + (size_t)(2 * N) * (size_t)size;
    for (int round = 0; round < 3; round++) {
        mc_comm_request *gather = mc_comm_start_all_gather(world, inputs[rank], result, N, MC_BF16);
        mc_comm_request *scatter =
            mc_comm_start_reduce_scatter(world, inputs[rank], part, N, MC_BF16, MC_REDUCE_AVG);
        mc_comm_wait(scatter);
        mc_comm_wait(gather);
        assert_good(ctx);
        expect_gathered(MC_BF16, N);
        assert_memory_equal(result, expected, (size_t)(2 * N) * (size_t)size);
        expect_reduced(MC_REDUCE_AVG, MC_BF16, rank * N, N);
        assert_memory_equal(part, expected, 2 * N);
    }
}

/* The same calls again take no memory from the system. */
static void test_steady_memory(void **state)
{
    (void)state;
    need_inputs(MC_F32);
    uint64_t calls = 0;
    for (int round = 0; round < 6; round++) {
        if (round == 2) calls = ctx->device->memory.system_calls;
        mc_comm_wait(mc_comm_start_all_gather(world, inputs[rank], result, 5000, MC_F32));
        mc_comm_wait(
            mc_comm_start_reduce_scatter(world, inputs[rank], result, 5000, MC_F32, MC_REDUCE_SUM));
        mc_comm_all_reduce(world, inputs[rank], result, LARGE, MC_F32, MC_REDUCE_SUM);
    }
    assert_good(ctx);
    assert_int_equal(ctx->device->memory.system_calls, calls);
}

/* ---- groups of ranks ------------------------------------------------------------------------- */

static void sum_ranks(mc_comm *c, float expected_sum)
{
    float x = (float)rank, y = -1;
    mc_comm_all_reduce(c, &x, &y, 1, MC_F32, MC_REDUCE_SUM);
    assert_good(ctx);
    assert_true(y == expected_sum);
}

static void test_split(void **state)
{
    (void)state;
    float even = 0, odd = 0;
    for (int r = 0; r < size; r++) *(r % 2 ? &odd : &even) += (float)r;
    mc_comm *half = mc_comm_split(world, rank % 2, -rank); /* in the opposite order */
    assert_good(ctx);
    int members = (size + 1 - rank % 2) / 2;
    assert_int_equal(mc_comm_count(half), members);
    assert_int_equal(mc_comm_rank(half), members - 1 - rank / 2);
    sum_ranks(half, rank % 2 ? odd : even);
    sum_ranks(world, even + odd);
    int32_t all[MOST_RANKS] = {0}, mine = rank;
    mc_comm_all_gather(half, &mine, all, 1, MC_I32);
    for (int i = 0; i < members; i++) assert_int_equal(all[i], 2 * (members - 1 - i) + rank % 2);
    mc_comm *whole = mc_comm_split(world, 7, 0), *again = mc_comm_split(half, 3, rank);
    assert_good(ctx);
    assert_int_equal(mc_comm_rank(whole), rank);
    assert_int_equal(mc_comm_rank(again), rank / 2);
    sum_ranks(whole, even + odd);
    sum_ranks(again, rank % 2 ? odd : even);
    mc_comm *first = mc_comm_split(world, rank == 0 ? 0 : -1, 0);
    assert_good(ctx);
    assert_true((first != NULL) == (rank == 0));
    if (first) sum_ranks(first, 0);
    mc_comm_free(half); /* parts of it stay */
    sum_ranks(again, rank % 2 ? odd : even);
    mc_comm_free(first);
    mc_comm_free(whole);
    mc_comm_free(again);
}

/* Ranks 0 1 | 2 3 as tensor x data: each group sums its own members; the trivial ones have no
 * communicator, those of the same ranks the same one. */
static void test_mesh(void **state)
{
    (void)state;
    mc_context *own = mc_context_new(NULL);
    int tensor = size % 2 ? 1 : 2, data = size / tensor;
    mc_mesh_place(&own->mesh, &(mc_mesh_sizes){.tensor = tensor, .data = data}, rank);
    mc_mesh_connect(own, NULL, &(mc_comm_options){.timeout = 60});
    assert_good(own);
    const mc_mesh *m = &own->mesh;
    mc_mesh_sizes sizes = mc_mesh_sizes_of(m);
    assert_true(sizes.tensor == tensor && sizes.context == 1 && sizes.data == data &&
                sizes.pipeline == 1);
    assert_true(m->world.size == size && m->world.rank == rank && mc_rank(own) == rank);
    assert_true(m->tensor.rank == rank % tensor && m->data.rank == rank / tensor);
    assert_true(mc_data_rank(own) == rank / tensor && mc_data_size(own) == data);
    assert_true(m->shard.size == data && m->shard.rank == m->data.rank);
    assert_true(m->shard.comm == m->data.comm && !m->context.comm && !m->pipeline.comm);
    assert_true((m->data.comm == m->world.comm) == (tensor == 1 || size == 1));
    int32_t sums[2] = {rank, rank}, right[2] = {0, 0};
    uint64_t made = mc_mesh_volume(&own->mesh).calls;
    if (m->tensor.comm) mc_comm_all_reduce(m->tensor.comm, sums, sums, 1, MC_I32, MC_REDUCE_SUM);
    if (m->data.comm)
        mc_comm_all_reduce(m->data.comm, sums + 1, sums + 1, 1, MC_I32, MC_REDUCE_SUM);
    for (int r = 0; r < size; r++) {
        right[0] += r / tensor == rank / tensor ? r : 0;
        right[1] += r % tensor == rank % tensor ? r : 0;
    }
    assert_true(sums[0] == right[0] && sums[1] == right[1]);
    uint64_t calls = mc_mesh_volume(&own->mesh).calls;
    assert_int_equal(calls - made, (m->tensor.comm != NULL) + (m->data.comm != NULL));
    mc_context_free(own);
}

/* Calls of several communicators at once, waited for crosswise. */
static void test_two_communicators(void **state)
{
    (void)state;
    enum { N = 300000 };
    need_inputs(MC_F32);
    mc_comm *copy = mc_comm_split(world, 0, 0), *second = new_world(ctx, 60);
    assert_good(ctx);
    char *b = result + 4 * N, *c = b + 4 * N;
    mc_comm_request *first =
        mc_comm_start_all_reduce(world, inputs[rank], result, N, MC_F32, MC_REDUCE_MAX);
    mc_comm_request *later =
        mc_comm_start_all_reduce(copy, inputs[rank], b, N, MC_F32, MC_REDUCE_MIN);
    mc_comm_all_reduce(second, inputs[rank], c, N, MC_F32, MC_REDUCE_SUM);
    mc_comm_wait(rank % 2 ? first : later);
    mc_comm_wait(rank % 2 ? later : first);
    assert_good(ctx);
    expect_reduced(MC_REDUCE_MAX, MC_F32, 0, N);
    assert_memory_equal(result, expected, 4 * N);
    expect_reduced(MC_REDUCE_MIN, MC_F32, 0, N);
    assert_memory_equal(b, expected, 4 * N);
    expect_reduced(MC_REDUCE_SUM, MC_F32, 0, N);
    assert_memory_equal(c, expected, 4 * N);
    mc_comm_free(copy);
    mc_comm_free(second);
}

/* A group that is given up leaves the others as they are. */
static void test_abort(void **state)
{
    (void)state;
    mc_comm *copy = mc_comm_split(world, 0, 0);
    float x = 1;
    mc_comm_barrier(copy);
    assert_good(ctx);
    mc_comm_abort(copy);
    mc_comm_abort(copy);
    assert_int_equal(mc_comm_all_reduce(copy, &x, &x, 1, MC_F32, MC_REDUCE_SUM), MC_ERR_STATE);
    assert_non_null(strstr(mc_error_message(ctx), "all-reduce"));
    assert_non_null(strstr(mc_error_message(ctx), "aborted"));
    mc_clear_error(ctx);
    mc_comm_free(copy);
    sum_ranks(world, (float)(size * (size - 1) / 2));
}

/* ---- arguments ------------------------------------------------------------------------------- */

static void expect_error(mc_status status, const char *text)
{
    if (mc_error_status(ctx) != status || !strstr(mc_error_message(ctx), text))
        fail_msg("\"%s\" (%s), expected \"%s\"", mc_error_message(ctx),
                 mc_status_text(mc_error_status(ctx)), text);
    mc_clear_error(ctx);
}

static void test_arguments(void **state)
{
    (void)state;
    float x[8] = {0};
    mc_comm_all_reduce(world, x, x, -1, MC_F32, MC_REDUCE_SUM);
    expect_error(MC_ERR_ARGUMENT, "all-reduce of -1 elements");
    mc_comm_all_gather(world, x, x, INT64_MAX / 2, MC_F32);
    expect_error(MC_ERR_ARGUMENT, "all-gather of 4611686018427387903 elements");
    mc_comm_all_reduce(world, NULL, x, 1, MC_F32, MC_REDUCE_SUM);
    expect_error(MC_ERR_ARGUMENT, "all-reduce: src is NULL");
    mc_comm_reduce_scatter(world, x, NULL, 1, MC_F32, MC_REDUCE_SUM);
    expect_error(MC_ERR_ARGUMENT, "reduce-scatter: dst is NULL");
    mc_comm_broadcast(world, x, x, 1, MC_F32, size);
    expect_error(MC_ERR_ARGUMENT, "broadcast: rank");
    mc_comm_send(world, x, 1, MC_F32, -1);
    expect_error(MC_ERR_ARGUMENT, "send: rank -1, expected 0 to");
    mc_comm_reduce(world, x, x, 1, (mc_dtype)99, MC_REDUCE_SUM, 0);
    expect_error(MC_ERR_DTYPE, "99 is no dtype");
    mc_comm_all_reduce(world, x, x, 1, MC_F32, (mc_reduce_op)5);
    expect_error(MC_ERR_ARGUMENT, "5 is no reduction");
    mc_comm_all_reduce(world, x, x, 1, MC_BOOL, MC_REDUCE_SUM);
    expect_error(MC_ERR_DTYPE, "sum of bool");
    mc_comm_group_end(world);
    expect_error(MC_ERR_STATE, "without a group start");
    mc_comm_group_start(world);
    assert_null(mc_comm_start_all_gather(world, x, x, 1, MC_F32));
    expect_error(MC_ERR_STATE, "within a group");
    assert_null(mc_comm_split(world, 0, 0));
    expect_error(MC_ERR_STATE, "split within a group");
    mc_comm_group_end(world);
    assert_good(ctx);
    assert_null(mc_comm_new(ctx, NULL, 0, 0, NULL));
    expect_error(MC_ERR_ARGUMENT, "rank 0 of 0");
    assert_null(mc_comm_new(ctx, NULL, 2, 2, NULL));
    expect_error(MC_ERR_ARGUMENT, "rank 2 of 2");
    assert_null(mc_comm_new(ctx, NULL, 1, 0, &(mc_comm_options){.timeout = -1}));
    assert_int_equal(mc_error_status(ctx), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
}

static void test_nothing(void **state)
{
    (void)state;
    float x = 0;
    assert_int_equal(mc_comm_all_reduce(NULL, &x, &x, 1, MC_F32, MC_REDUCE_SUM), MC_ERR_ARGUMENT);
    assert_int_equal(mc_comm_group_start(NULL), MC_ERR_ARGUMENT);
    assert_int_equal(mc_comm_count(NULL), 1);
    assert_int_equal(mc_comm_rank(NULL), 0);
    assert_null(mc_comm_split(NULL, 0, 0));
    mc_comm_abort(NULL);
    mc_comm_free(NULL);
    mc_fail(ctx, MC_ERR_IO, "something else"); /* nothing is done, and nobody is waited for */
    assert_int_equal(mc_comm_barrier(world), MC_ERR_IO);
    assert_null(mc_comm_new(ctx, NULL, size, rank, NULL));
    assert_null(mc_comm_start_all_gather(world, &x, &x, 1, MC_F32));
    mc_clear_error(ctx);
}

static void test_one_rank(void **state)
{
    (void)state;
    mc_comm *own = mc_comm_new(ctx, NULL, 1, 0, NULL);
    float x[3] = {1, 2, 3}, y[3] = {0};
    assert_good(ctx);
    mc_comm_send(own, x, 3, MC_F32, 0);
    expect_error(MC_ERR_STATE, "only within a group");
    mc_comm_free(own);
    own = mc_comm_new(ctx, NULL, 1, 0, NULL);
    mc_comm_group_start(own);
    mc_comm_recv(own, y, 3, MC_F32, 0);
    mc_comm_send(own, x, 3, MC_F32, 0);
    mc_comm_group_end(own);
    assert_good(ctx);
    assert_memory_equal(x, y, sizeof x);
    mc_comm_group_start(own);
    mc_comm_recv(own, y, 3, MC_F32, 0);
    mc_comm_group_end(own);
    expect_error(MC_ERR_STATE, "recv 3 of 3 f32 from rank 0");
    mc_comm_free(own);
}

typedef struct notes {
    uint64_t group, sequence;
    char operation[32];
} notes;

static void keep_note(void *user, uint64_t group, uint64_t sequence, const char *operation)
{
    notes *n = user;
    n->group = group;
    n->sequence = sequence;
    snprintf(n->operation, sizeof n->operation, "%s", operation);
}

static void test_notes_and_volume(void **state)
{
    (void)state;
    notes n = {0};
    mc_comm *c = mc_comm_new_hooked(ctx, NULL, size, rank, NULL,
                                    &(mc_comm_hooks){.note = keep_note, .user = &n, .group = 5});
    assert_good(ctx);
    uint64_t before = c->sequence;
    mc_comm_volume v = mc_comm_volume_of(c);
    mc_comm_all_gather(c, inputs[rank], result, 100, MC_U8);
    assert_good(ctx);
    assert_int_equal(n.group, 5);
    assert_int_equal(n.sequence, before + 1);
    assert_string_equal(n.operation, "all-gather");
    assert_int_equal(mc_comm_volume_of(c).calls, v.calls + 1);
    assert_int_equal(mc_comm_volume_of(c).bytes, v.bytes + 100 * (uint64_t)(size - 1));
    mc_comm_free(c);
}

static void test_ids(void **state)
{
    (void)state;
    mc_comm_id id[2];
    mc_comm_unique_id(ctx, &id[0]);
    mc_comm_unique_id(ctx, &id[1]);
    assert_good(ctx);
    assert_memory_not_equal(&id[0], &id[1], sizeof *id);
    mc_comm_broadcast(world, id, id, sizeof id, MC_U8, 0);
    mc_comm *c = mc_comm_new(ctx, &id[0], size, rank, NULL);
    assert_good(ctx);
    sum_ranks(c, (float)(size * (size - 1) / 2));
    mc_comm_free(c);
}

/* ---- gradients ------------------------------------------------------------------------------- */

enum { ROWS = 12, COLUMNS = 5, N = ROWS * COLUMNS }; /* 12 divides by 1, 2, 3 and 4 */

typedef enum tape_op {
    GATHER,
    REDUCE_SUM,
    REDUCE_PROD,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_AVG,
    SCATTER_SUM,
    SCATTER_AVG,
    BROADCAST,
    TAPE_OPS
} tape_op;

static mc_tensor *apply(mc_tape *t, tape_op op, mc_tensor *x)
{
    switch (op) {
    case GATHER: return mc_all_gather(t, world, x);
    case SCATTER_SUM: return mc_reduce_scatter(t, world, x, MC_REDUCE_SUM);
    case SCATTER_AVG: return mc_reduce_scatter(t, world, x, MC_REDUCE_AVG);
    case BROADCAST: return mc_broadcast(t, world, x, size - 1);
    default: return mc_all_reduce(t, world, x, (mc_reduce_op)(op - REDUCE_SUM));
    }
}

/* What rank r's loss weighs element i of its y by. */
static float weight(int r, int64_t i) { return (float)((i * 7 + r * 3) % 11) / 4 - 1.125f; }

/* The sum of all ranks' losses, weight . y, and this rank's gradient of it at x. */
static double total_loss(tape_op op, const float *x, float *gradient)
{
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *input = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, COLUMNS), x, true);
    mc_tensor *y = apply(t, op, input);
    assert_good(ctx);
    int64_t n = mc_tensor_count(y);
    float *w = mc_malloc((size_t)n * sizeof *w);
    double loss = 0, losses[MOST_RANKS];
    for (int64_t i = 0; i < n; i++) {
        w[i] = weight(rank, i);
        loss += (double)w[i] * (double)((float *)mc_tensor_data(y))[i];
    }
    mc_comm_all_gather(world, &loss, losses, 1, MC_I64); /* 8 bytes are 8 bytes */
    for (int r = loss = 0; r < size; r++) loss += losses[r];
    if (gradient) {
        mc_tape_backward(t, y, mc_tape_input(t, MC_F32, mc_tensor_shape(y), w, false));
        mc_tensor_read_f32(ctx, mc_tensor_gradient(input), gradient, N);
    }
    assert_good(ctx);
    mc_free(w);
    mc_tape_end(t);
    return loss;
}

static void fill_point(float *x)
{
    for (int i = 0; i < N; i++) /* differences between ranks are larger than the step */
        x[i] = (float)((i * 5 + rank * 7) % 17) / 8 - 1.03f + 0.01f * (float)rank;
}

/* Each element of each rank is moved in turn. */
static void check_gradient(tape_op op)
{
    static const double step = 1.0 / 1024;
    float x[N], gradient[N];
    fill_point(x);
    total_loss(op, x, gradient);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i += 1 + i % 3) {
            float kept = x[i];
            if (rank == r) x[i] = (float)((double)kept + step);
            double up = total_loss(op, x, NULL);
            if (rank == r) x[i] = (float)((double)kept - step);
            double down = total_loss(op, x, NULL);
            x[i] = kept;
            /* all ops are linear in an element near this point: what is left is f32's rounding, of
             * a sum of a few dozen terms of size 1, over 2 steps */
            double slope = (up - down) / (2 * step);
            if (rank == r && fabs(slope - (double)gradient[i]) > 4e-3)
                fail_msg("op %d, rank %d of %d, element %d: gradient %g, by differences %g", op,
                         rank, size, i, (double)gradient[i], slope);
        }
}

static void test_gradients(void **state)
{
    (void)state;
    for (tape_op op = 0; op < TAPE_OPS; op++) check_gradient(op);
}

/* Zeros in a product, and equal elements of which max takes the lowest rank's. */
static void test_gradients_at_corners(void **state)
{
    (void)state;
    mc_tape *t = mc_tape_begin(ctx);
    float x[3] = {rank == 0 ? 0 : 2, rank < 2 ? 0 : 2, 5}, ones[3] = {1, 1, 1}, g[3];
    mc_tensor *input = mc_tape_input(t, MC_F32, MC_SHAPE(3), x, true);
    mc_tensor *dy = mc_tape_input(t, MC_F32, MC_SHAPE(3), ones, false);
    mc_tape_backward(t, mc_all_reduce(t, world, input, MC_REDUCE_PROD), dy);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(input), g, 3);
    assert_good(ctx);
    float others = powf(2, (float)(size - 1)); /* of the others, none of which is 0 */
    assert_true(g[0] == (rank == 0 ? (float)size * others : 0));
    assert_true(g[1] == (size == 1 ? 1 : 0));
    assert_true(g[2] == (float)size * powf(5, (float)(size - 1)));
    mc_tape_end(t);
    for (int lowest = 0; lowest < 2; lowest++) {
        t = mc_tape_begin(ctx);
        input = mc_tape_input(t, MC_BF16, MC_SHAPE(1), &(uint16_t){to_bf16(rank ? 1.5f : 1)}, true);
        dy = mc_tape_input(t, MC_BF16, MC_SHAPE(1), &(uint16_t){to_bf16(2)}, false);
        mc_tape_backward(t, mc_all_reduce(t, world, input, lowest ? MC_REDUCE_MIN : MC_REDUCE_MAX),
                         dy);
        mc_tensor_read_f32(ctx, mc_tensor_gradient(input), g, 1);
        assert_good(ctx);
        int winner = lowest || size == 1 ? 0 : 1;
        assert_true(g[0] == (rank == winner ? 2 * (float)size : 0));
        mc_tape_end(t);
    }
}

/* A rank's shares go round: gather(scatter(x)) of 16-bit tensors, twice in one graph, recomputed.
 */
static mc_tensor *segment(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    (void)user, (void)extra;
    mc_tensor *part = mc_reduce_scatter(t, world, x, MC_REDUCE_AVG);
    return mc_mul(t, mc_all_gather(t, world, part), mc_all_gather(t, world, part));
}

static void test_gradients_of_a_graph(void **state)
{
    (void)state;
    float g[2][ROWS];
    for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
        mc_tape *t = mc_tape_begin(ctx);
        uint16_t x[ROWS], ones[ROWS];
        for (int i = 0; i < ROWS; i++) {
            x[i] = to_bf16((float)(i + 1)); /* the same on every rank */
            ones[i] = to_bf16(1);
        }
        mc_tensor *input = mc_tape_input(t, MC_BF16, MC_SHAPE(ROWS), x, true);
        mc_tensor *y = checkpointed ? mc_tape_checkpoint(t, segment, NULL, input, NULL, 0)
                                    : segment(t, NULL, input, NULL);
        mc_tensor *dy = mc_tape_input(t, MC_BF16, mc_tensor_shape(y), ones, false);
        mc_tape_backward(t, y, dy);
        mc_tensor_read_f32(ctx, mc_tensor_gradient(input), g[checkpointed], ROWS);
        assert_good(ctx);
        mc_tape_end(t);
    }
    for (int i = 0; i < ROWS;
         i++) { /* all ranks' losses: size * x^2; x has 1/size of the average */
        assert_true(g[0][i] == 2 * (float)(i + 1));
        assert_true(g[1][i] == g[0][i]);
    }
}

static void test_tape_errors(void **state)
{
    (void)state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(2 * size, 3), NULL, true);
    mc_tensor *bad = mc_tape_input(t, MC_F32, MC_SHAPE(size + 1, 3), NULL, true);
    mc_tensor *deep = mc_tape_input(t, MC_F32, MC_SHAPE(1, 1, 1, 1, 1, 1), NULL, true);
    assert_null(mc_all_gather(t, world, deep));
    expect_error(MC_ERR_SHAPE, "more than 6 dimensions");
    assert_null(mc_all_gather(t, NULL, x));
    expect_error(MC_ERR_ARGUMENT, "communicator is NULL");
    assert_null(mc_reduce_scatter(t, world, x, MC_REDUCE_MAX));
    expect_error(MC_ERR_UNSUPPORTED, "no gradient");
    assert_null(mc_broadcast(t, world, x, size));
    expect_error(MC_ERR_ARGUMENT, "broadcast: rank");
    if (size > 1) {
        assert_null(mc_reduce_scatter(t, world, bad, MC_REDUCE_SUM));
        expect_error(MC_ERR_SHAPE, "divides by");
    }
    mc_tape_end(t);
}

/* ---- memory that runs out -------------------------------------------------------------------- */

#ifdef MC_FAULT_INJECTION
/* Makes communicators and uses them. */
static void use(mc_context *own)
{
    enum { COUNT = 30000 };
    mc_comm *c = mc_comm_new(own, NULL, size, rank, &(mc_comm_options){.timeout = 20});
    mc_comm *part = mc_comm_split(c, 0, -rank);
    float *x = (float *)(void *)result, *y = x + COUNT * MOST_RANKS;
    for (int i = 0; i < COUNT; i++) x[i] = 1;
    mc_comm_request *r = mc_comm_start_all_gather(c, x, y, 10, MC_F32);
    if (!mc_failed(own)) mc_comm_wait(r);
    mc_comm_all_reduce(part, x, y, COUNT, MC_F32, MC_REDUCE_SUM);
    mc_comm_group_start(c);
    mc_comm_reduce_scatter(c, x, x, COUNT / MOST_RANKS / 4, MC_F32, MC_REDUCE_AVG);
    mc_comm_group_end(c);
    if (!mc_failed(own)) assert_true(y[COUNT - 1] == (float)size);
}
#endif

/* All ranks run out of memory at the same place, so that none waits for another. (One alone ends
 * the job: see test_comm_failures.c.) Then everything works again. */
static void test_failing_together(void **state)
{
    (void)state;
#ifdef MC_FAULT_INJECTION
    long count, nth = 0;
    do {
        mc_context *own = new_context();
        mc_fault_fail_at(++nth, false);
        use(own);
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        if (mc_failed(own)) {
            assert_int_equal(mc_error_status(own), MC_ERR_NOMEM);
            mc_clear_error(own);
        }
        mc_context_free(own);
        mc_comm_barrier(world);
        assert_good(ctx);
    } while (nth <= count);
    assert_true(count > (size > 1 ? 20 : 4));
#ifdef MC_HAVE_MPI
    mc_mpi_lock()->stays = false; /* nobody is lost: MPI ends as it should */
    mc_mpi_unlock();
#endif
#else
    printf("SKIPPED: failing allocations (needs MC_FAULT_INJECTION)\n");
    skip();
#endif
}

/* A tape's collectives, of one rank. */
static void test_failing_on_a_tape(void **state)
{
    (void)state;
#ifdef MC_FAULT_INJECTION
    long count, nth = 0;
    do {
        mc_context *own = new_context();
        mc_fault_fail_at(++nth, false);
        mc_comm *c = mc_comm_new(own, NULL, 1, 0, NULL);
        mc_comm *part = mc_comm_split(c, 0, 0);
        mc_tape *t = mc_tape_begin(own);
        float x[4] = {1, 2, 3, 4}, g[4];
        mc_tensor *in = mc_tape_input(t, MC_F32, MC_SHAPE(4), x, true);
        mc_tensor *y = mc_all_reduce(t, part, in, MC_REDUCE_MAX);
        y = mc_all_gather(t, c, mc_reduce_scatter(t, c, y, MC_REDUCE_AVG));
        mc_tape_backward(t, y, y);
        mc_tensor_read_f32(own, mc_tensor_gradient(in), g, 4);
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        if (mc_failed(own))
            assert_int_equal(mc_error_status(own), MC_ERR_NOMEM);
        else
            assert_memory_equal(x, g, sizeof x);
        mc_context_free(own);
    } while (nth <= count);
    assert_true(count > 10);
#else
    printf("SKIPPED: failing allocations (needs MC_FAULT_INJECTION)\n");
    skip();
#endif
}

static int set_up(void **state)
{
    (void)state;
    rank = my_rank();
    size = ranks();
    assert_true(size <= MOST_RANKS);
    for (int r = 0; r < size; r++) inputs[r] = mc_malloc((size_t)LARGE * 8);
    result = mc_malloc((size_t)LARGE * 8 * MOST_RANKS + 64);
    expected = mc_malloc((size_t)LARGE * 8 * MOST_RANKS);
    ctx = new_context();
    world = new_world(ctx, 60);
    assert_good(ctx);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mc_comm_barrier(world);
    assert_good(ctx);
    mc_context_free(ctx);
    for (int r = 0; r < size; r++) mc_free(inputs[r]);
    mc_free(result);
    mc_free(expected);
    inputs[0] = inputs[1] = inputs[2] = inputs[3] = result = expected = NULL;
    check_leaks();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_group_of_collectives),
        cmocka_unit_test(test_many_messages),
        cmocka_unit_test(test_started_calls),
        cmocka_unit_test(test_started_gathers),
        cmocka_unit_test(test_steady_memory),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_two_communicators),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_notes_and_volume),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_gradients_at_corners),
        cmocka_unit_test(test_gradients_of_a_graph),
        cmocka_unit_test(test_tape_errors),
        cmocka_unit_test(test_failing_together),
        cmocka_unit_test(test_failing_on_a_tape),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
