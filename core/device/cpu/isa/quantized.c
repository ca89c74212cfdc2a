/* 8-bit weights. Products of few rows read the bytes in place (gemv.c, skinny_gemm.c); products of
 * many rows convert blocks of rows for the library. */
#include "core/device/cpu/isa/rows_internal.h"

/* ---- converting ------------------------------------------------------------------------------ */

/* Without the sign, the bits of f32 are ordered like the numbers, with infinity and NaN last. */
static float largest_of_row(mc_matrix x, int64_t row, int64_t columns)
{
    float buffer[MC_CHUNK];
    uint32_t largest = 0;
    for (int64_t first = 0; first < columns; first += MC_CHUNK) {
        int64_t n = mc_min_i64(MC_CHUNK, columns - first);
        const float *v = mc_read(x, row * x.stride + first, n, buffer);
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = mc_float_bits(v[i]) & 0x7fffffff;
            largest = bits > largest ? bits : largest;
        }
    }
    return mc_bits_float(largest);
}

static void quantize_row(mc_matrix x, mc_matrix8 q, int64_t row)
{
    float buffer[MC_CHUNK];
    float scale = mc_quantized_scale(q.format, largest_of_row(x, row, q.columns));
    q.scale[row] = scale;
    for (int64_t first = 0; first < q.columns; first += MC_CHUNK) {
        int64_t n = mc_min_i64(MC_CHUNK, q.columns - first);
        const float *v = mc_read(x, row * x.stride + first, n, buffer);
        uint8_t *to = q.data + row * q.columns + first;
        if (q.format == MC_WEIGHTS_INT8)
            for (int64_t i = 0; i < n; i++) to[i] = mc_to_quantized(MC_WEIGHTS_INT8, v[i], scale);
        else
            for (int64_t i = 0; i < n; i++) to[i] = mc_to_quantized(MC_WEIGHTS_FP8, v[i], scale);
    }
}

mc_status MC_K(quantize)(mc_device *d, mc_matrix x, mc_matrix8 q)
{
    (void)d;
#pragma omp parallel for schedule(static) if (q.rows * q.columns > MC_SERIAL)
    for (int64_t row = 0; row < q.rows; row++) quantize_row(x, q, row);
    return MC_OK;
}

static void dequantize_row(mc_matrix8 q, int64_t row, mc_matrix y, int64_t to)
{
    float buffer[MC_CHUNK];
    for (int64_t first = 0; first < q.columns; first += MC_CHUNK) {
        int64_t n = mc_min_i64(MC_CHUNK, q.columns - first);
        float *v = mc_write_begin(y, to + first, buffer), scale = q.scale[row];
        mc_load_stored(mc_stored_bytes(q.format), q.data + row * q.columns + first, n, v);
        for (int64_t i = 0; i < n; i++) v[i] *= scale;
        mc_write_end(y, to + first, n, v);
    }
}

/* Dequantizes rows first .. first + count into the first rows of y. */
static void dequantize_rows(mc_matrix8 q, int64_t first, int64_t count, mc_matrix y)
{
#pragma omp parallel for schedule(static) if (count * q.columns > MC_SERIAL)
    for (int64_t i = 0; i < count; i++) dequantize_row(q, first + i, y, i * y.stride);
}

mc_status MC_K(dequantize)(mc_device *d, mc_matrix8 q, mc_matrix y)
{
    (void)d;
    dequantize_rows(q, 0, q.rows, y);
    return MC_OK;
}

/* ---- products -------------------------------------------------------------------------------- */

/* A product in f32: f32 operands are used in place, the others are converted to scratch memory. */
typedef struct product {
    int64_t rows, columns; /* of y, at a time */
    mc_matrix x, y;        /* in f32; NULL data: in scratch */
    int64_t x_size, y_size, w_size;
    float *scratch, *w;
} product;

/* Elements of the weight that products of many rows convert at a time. */
enum { BLOCK = 4 << 20 };

static bool begin(mc_device *d, product *p, mc_matrix x, mc_matrix8 q, mc_matrix y)
{
    bool few = p->rows <= MC_SKINNY_ROWS;
    int64_t most = BLOCK / q.columns > 16 ? BLOCK / q.columns : 16;
    p->columns = few || most > q.rows ? q.rows : most;
    p->x_size = x.dtype == MC_F32 ? 0 : p->rows * q.columns;
    p->y_size = y.dtype == MC_F32 ? 0 : p->rows * p->columns;
    p->w_size = few ? 0 : p->columns * q.columns;
    int64_t size = p->x_size + p->y_size + p->w_size;
    if (size && !(p->scratch = mc_scratch_new(d, size))) return false;
    p->x = p->x_size ? (mc_matrix){p->scratch, MC_F32, q.columns} : x;
    p->y = p->y_size ? (mc_matrix){p->scratch + p->x_size, MC_F32, p->columns} : y;
    p->w = p->w_size ? p->scratch + p->x_size + p->y_size : NULL;
    for (int64_t i = 0; p->x_size && i < p->rows; i++)
        mc_convert_in(x.data, x.dtype, i * x.stride, q.columns, p->scratch + i * q.columns);
    return true;
}

/* The memory for sums of columns from j on. */
static mc_matrix sums_at(const product *p, int64_t j)
{
    mc_matrix y = p->y;
    if (!p->y_size) y.data = (float *)y.data + j;
    return y;
}

static void multiply_stored(mc_device *d, const product *p, float alpha, mc_matrix8 q)
{
    mc_rows_product stored = {.m = p->rows,
                              .n = q.rows,
                              .k = q.columns,
                              .alpha = alpha,
                              .a = p->x.data,
                              .lda = p->x.stride,
                              .stored = mc_stored_bytes(q.format),
                              .b = q.data,
                              .ldb = q.columns,
                              .scale = q.scale,
                              .c = p->y.data,
                              .ldc = p->y.stride};
    mc_rows_multiply(d, &stored);
}

/* Columns j .. j + n, by the library. */
static mc_status multiply_block(mc_device *d, const product *p, float alpha, mc_matrix8 q,
                                int64_t j, int64_t n)
{
    mc_matrix w = {p->w, MC_F32, q.columns};
    dequantize_rows(q, j, n, w);
    return MC_K(gemm)(d, false, true, p->rows, n, q.columns, alpha, p->x, w, 0, sums_at(p, j));
}

/* Finishes columns j .. j + n: rounds once. */
static mc_status finish(mc_device *d, const product *p, int64_t j, int64_t n, mc_matrix bias,
                        mc_activation activation, mc_matrix y)
{
    mc_matrix sums = sums_at(p, j);
    mc_status status = MC_OK;
    if (bias.data) bias.data = (char *)bias.data + (size_t)j * mc_dtype_size(bias.dtype);
    if (bias.data || activation != MC_ACTIVATION_NONE)
        status = MC_K(bias_activation)(d, p->rows, n, sums, bias, activation, sums);
    for (int64_t i = 0; p->y_size && i < p->rows; i++)
        mc_convert_out((const float *)sums.data + i * sums.stride, n, y.data, y.dtype,
                       i * y.stride + j);
    return status;
}

mc_status MC_K(linear_quantized)(mc_device *d, int64_t rows, float alpha, mc_matrix x, mc_matrix8 q,
                                 mc_matrix bias, mc_activation activation, mc_matrix y)
{
    product p = {.rows = rows};
    if (!rows || !q.rows) return MC_OK;
    if (!begin(d, &p, x, q, y)) return MC_ERR_NOMEM;
    mc_status status = MC_OK;
    if (!p.w) multiply_stored(d, &p, alpha, q);
    for (int64_t j = 0; j < q.rows && !status; j += p.columns) {
        int64_t n = mc_min_i64(p.columns, q.rows - j);
        if (p.w) status = multiply_block(d, &p, alpha, q, j, n);
        if (!status) status = finish(d, &p, j, n, bias, activation, y);
    }
    if (p.scratch) mc_scratch_free(d, p.scratch, p.x_size + p.y_size + p.w_size);
    return status;
}
