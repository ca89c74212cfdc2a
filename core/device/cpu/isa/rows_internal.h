/* Products of few rows with a weight in its storage format. */
#ifndef MC_DEVICE_CPU_ROWS_INTERNAL_H
#define MC_DEVICE_CPU_ROWS_INTERNAL_H

#include "core/device/cpu/isa/convert_internal.h"
#include "core/device/quantized_internal.h"

typedef enum mc_stored {
    MC_STORED_F32,
    MC_STORED_F16,
    MC_STORED_BF16,
    MC_STORED_INT8,
    MC_STORED_FP8
} mc_stored;

/* C (m, n) = alpha A (m, k) B^T + beta C in f32, m <= MC_SKINNY_ROWS; B (n, k) as stored. */
typedef struct mc_rows_product {
    int64_t m, n, k;
    float alpha, beta;
    const float *a;
    int64_t lda;
    mc_stored stored;
    const void *b;
    int64_t ldb;
    const float *scale; /* (n), of B's rows; NULL: 1 */
    float *c;
    int64_t ldc;
} mc_rows_product;

/* Products of up to MC_GEMV_ROWS rows take as long as reading B; up to MC_SKINNY_ROWS they are
 * faster than a library's (bench/encoder). */
enum { MC_GEMV_ROWS = 4 };
void MC_K(gemv)(mc_device *d, const mc_rows_product *p);
void MC_K(skinny_gemm)(mc_device *d, const mc_rows_product *p);

static inline void mc_rows_multiply(mc_device *d, const mc_rows_product *p)
{
    (p->m <= MC_GEMV_ROWS ? MC_K(gemv) : MC_K(skinny_gemm))(d, p);
}

static inline mc_stored mc_stored_as(mc_dtype dtype)
{
    return dtype == MC_F32 ? MC_STORED_F32 : dtype == MC_F16 ? MC_STORED_F16 : MC_STORED_BF16;
}

static inline mc_stored mc_stored_bytes(mc_weight_format format)
{
    return format == MC_WEIGHTS_INT8 ? MC_STORED_INT8 : MC_STORED_FP8;
}

static inline int64_t mc_stored_size(mc_stored stored)
{
    return stored == MC_STORED_F32 ? 4 : stored >= MC_STORED_INT8 ? 1 : 2;
}

/* Row `row` of B. */
static inline const char *mc_stored_row(const mc_rows_product *p, int64_t row)
{
    return (const char *)p->b + row * p->ldb * mc_stored_size(p->stored);
}

/* Converts the n numbers at `from`, in 8 bits without a scale, to y. */
static inline void mc_load_stored(mc_stored stored, const void *from, int64_t n, float *y)
{
    const uint8_t *byte = from;
    switch (stored) {
    case MC_STORED_F32: memcpy(y, from, (size_t)n * sizeof *y); break;
    case MC_STORED_F16: mc_load_f16(from, n, y); break;
    case MC_STORED_BF16: mc_load_bf16(from, n, y); break;
    case MC_STORED_INT8:
        for (int64_t i = 0; i < n; i++) y[i] = (float)(int8_t)byte[i];
        break;
    case MC_STORED_FP8:
        for (int64_t i = 0; i < n; i++) y[i] = mc_from_fp8(byte[i]);
        break;
    }
}

/* The factor of C's column j. */
static inline float mc_column_factor(const mc_rows_product *p, int64_t j)
{
    return p->scale ? p->alpha * p->scale[j] : p->alpha;
}

#endif
