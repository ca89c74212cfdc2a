/* Combines elements of several ranks in host memory, with the same result on every rank. */
#include <string.h>
#include "core/dist/comm_internal.h"

enum { BLOCK = 2048, BLOCKS_OF_A_TEAM = 16 };

/* The one that is larger or smaller; NaN if one of them is NaN. */
#define LARGER(a, b) ((a) >= (b) ? (a) : (b) > (a) ? (b) : (a) + (b))
#define SMALLER(a, b) ((a) <= (b) ? (a) : (b) < (a) ? (b) : (a) + (b))

/* name(op, n, x, a): a = a op x. Elements have type X, accumulators A; sums and products are
 * computed in W, in which integers wrap. */
#define COMBINE(name, X, A, W)                                                \
    static void name(mc_reduce_op op, int64_t n, const X *x, A *a)            \
    {                                                                         \
        switch (op) {                                                         \
        case MC_REDUCE_PROD:                                                  \
            for (int64_t i = 0; i < n; i++) a[i] = (A)((W)a[i] * (W)x[i]);    \
            break;                                                            \
        case MC_REDUCE_MAX:                                                   \
            for (int64_t i = 0; i < n; i++) a[i] = (A)LARGER(a[i], (A)x[i]);  \
            break;                                                            \
        case MC_REDUCE_MIN:                                                   \
            for (int64_t i = 0; i < n; i++) a[i] = (A)SMALLER(a[i], (A)x[i]); \
            break;                                                            \
        default:                                                              \
            for (int64_t i = 0; i < n; i++) a[i] = (A)((W)a[i] + (W)x[i]);    \
        }                                                                     \
    }
COMBINE(combine_f32, float, double, double)
COMBINE(combine_16, float, float, float)
COMBINE(combine_i64, int64_t, int64_t, uint64_t)
COMBINE(combine_i32, int32_t, int32_t, uint32_t)
COMBINE(combine_u8, uint8_t, uint8_t, uint32_t)

/* The arguments of the reduction of a block of elements. */
typedef struct block {
    mc_device *device;
    mc_reduce_op op;
    mc_dtype dtype;
    int64_t first, n;
    int parts;
    const void *const *part;
    void *dst;
} block;

static const void *part_of(const block *b, int j)
{
    return (const char *)b->part[j] + (size_t)b->first * mc_dtype_size(b->dtype);
}

static void *dst_of(const block *b)
{
    return (char *)b->dst + (size_t)b->first * mc_dtype_size(b->dtype);
}

static void reduce_f32(const block *b)
{
    double a[BLOCK];
    const float *x = part_of(b, 0);
    for (int64_t i = 0; i < b->n; i++) a[i] = (double)x[i];
    for (int j = 1; j < b->parts; j++) combine_f32(b->op, b->n, part_of(b, j), a);
    double divisor = b->op == MC_REDUCE_AVG ? b->parts : 1;
    float *y = dst_of(b);
    for (int64_t i = 0; i < b->n; i++) y[i] = (float)(a[i] / divisor);
}

static void convert(const block *b, const void *from, mc_dtype from_dtype, void *to,
                    mc_dtype to_dtype)
{
    mc_matrix x = {(void *)(uintptr_t)from, from_dtype, b->n}, y = {to, to_dtype, b->n};
    b->device->kernels->scale(b->device, b->n, x, 1.0f, y, false);
}

static void reduce_16(const block *b)
{
    float a[BLOCK], x[BLOCK];
    convert(b, part_of(b, 0), b->dtype, a, MC_F32);
    for (int j = 1; j < b->parts; j++) {
        convert(b, part_of(b, j), b->dtype, x, MC_F32);
        combine_16(b->op, b->n, x, a);
    }
    if (b->op == MC_REDUCE_AVG)
        for (int64_t i = 0; i < b->n; i++) a[i] /= (float)b->parts;
    convert(b, a, MC_F32, dst_of(b), b->dtype);
}

/* name(b): a block of integers of type X. */
#define REDUCE_INTEGERS(name, X, combine)                                          \
    static void name(const block *b)                                               \
    {                                                                              \
        X a[BLOCK];                                                                \
        memcpy(a, part_of(b, 0), (size_t)b->n * sizeof *a);                        \
        for (int j = 1; j < b->parts; j++) combine(b->op, b->n, part_of(b, j), a); \
        if (b->op == MC_REDUCE_AVG)                                                \
            for (int64_t i = 0; i < b->n; i++) a[i] = (X)(a[i] / b->parts);        \
        memcpy(dst_of(b), a, (size_t)b->n * sizeof *a);                            \
    }
REDUCE_INTEGERS(reduce_i64, int64_t, combine_i64)
REDUCE_INTEGERS(reduce_i32, int32_t, combine_i32)
REDUCE_INTEGERS(reduce_u8, uint8_t, combine_u8)

static void reduce_block(const block *b)
{
    switch (b->dtype) {
    case MC_F32: reduce_f32(b); return;
    case MC_F16:
    case MC_BF16: reduce_16(b); return;
    case MC_I64: reduce_i64(b); return;
    case MC_I32: reduce_i32(b); return;
    default: reduce_u8(b);
    }
}

void mc_reduce_parts(mc_device *device, mc_reduce_op op, mc_dtype dtype, int64_t count, int parts,
                     const void *const *part, void *dst)
{
    int64_t blocks = (count + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) if (blocks >= BLOCKS_OF_A_TEAM)
    for (int64_t k = 0; k < blocks; k++) {
        int64_t first = k * BLOCK, n = count - first < BLOCK ? count - first : BLOCK;
        reduce_block(&(block){device, op, dtype, first, n, parts, part, dst});
    }
}
