/* Sums over rows: column_sums, sum_leading. The work is divided by its shape alone, and the parts
 * are added in a fixed order, so that the bits do not depend on the number of threads. */
#include "core/device/cpu/isa/convert_internal.h"

enum {
    SLAB = 256,     /* columns of one part */
    SHORT_SUM = 64, /* rows added at a time: a sum of sums loses less precision */
    MAX_PARTS = 64  /* row ranges */
};

/* sum (n) = sum over rows first .. last of columns from `column`. */
static void sum_rows(mc_matrix x, int64_t first, int64_t last, int64_t column, int n, float *sum)
{
    float part[SLAB], buffer[SLAB];
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t row = first; row < last;) {
        int64_t end = mc_min_i64(row + SHORT_SUM, last);
        memset(part, 0, (size_t)n * sizeof *part);
        for (; row < end; row++) {
            const float *xs = mc_read(x, row * x.stride + column, n, buffer);
#pragma omp simd
            for (int i = 0; i < n; i++) part[i] += xs[i];
        }
#pragma omp simd
        for (int i = 0; i < n; i++) sum[i] += part[i];
    }
}

/* The number of row ranges: more than one only for few columns and many rows. */
static int64_t row_parts(int64_t rows, int64_t columns)
{
    int64_t slabs = (columns + SLAB - 1) / SLAB, by_rows = rows / (4 * SHORT_SUM);
    int64_t wanted = mc_min_i64(MAX_PARTS / slabs, by_rows);
    return wanted > 1 ? wanted : 1;
}

/* partial (parts, columns): sums over each row range. */
static void partial_sums(int64_t rows, int64_t columns, mc_matrix x, int64_t parts, float *partial)
{
    int64_t slabs = (columns + SLAB - 1) / SLAB;
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL)
    for (int64_t i = 0; i < slabs * parts; i++) {
        int64_t part = i / slabs, column = i % slabs * SLAB;
        sum_rows(x, part * rows / parts, (part + 1) * rows / parts, column,
                 (int)mc_min_i64(SLAB, columns - column), partial + part * columns + column);
    }
}

mc_status MC_K(column_sums)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, float *out)
{
    if (rows == 0 || columns == 0) return MC_OK;
    int64_t parts = row_parts(rows, columns);
    float *partial = mc_scratch_new(d, parts * columns);
    if (!partial) return MC_ERR_NOMEM;
    partial_sums(rows, columns, x, parts, partial);
    for (int64_t i = 0; i < columns; i++) {
        float sum = 0;
        for (int64_t part = 0; part < parts; part++) sum += partial[part * columns + i];
        out[i] += sum;
    }
    mc_scratch_free(d, partial, parts * columns);
    return MC_OK;
}

mc_status MC_K(sum_leading)(mc_device *d, int64_t count, mc_matrix x, int64_t y_count, mc_matrix y,
                            bool accumulate)
{
    if (y_count == 0) return MC_OK;
    /* Several periods of a short y make one row, so that rows are long enough for vectors. */
    int64_t periods = y_count >= SLAB ? 1 : SLAB / y_count, columns = periods * y_count;
    int64_t rows = count / columns, parts = row_parts(rows, columns);
    float *partial = mc_scratch_new(d, parts * columns);
    if (!partial) return MC_ERR_NOMEM;
    partial_sums(rows, columns, (mc_matrix){x.data, x.dtype, columns}, parts, partial);
    for (int64_t i = 0; i < y_count; i++) {
        double sum = 0;
        float value;
        for (int64_t j = i; j < parts * columns; j += y_count) sum += partial[j];
        for (int64_t j = rows * columns + i; j < count; j += y_count) {
            mc_convert_in(x.data, x.dtype, j, 1, &value);
            sum += value;
        }
        if (accumulate) {
            mc_convert_in(y.data, y.dtype, i, 1, &value);
            sum += value;
        }
        value = (float)sum;
        mc_convert_out(&value, 1, y.data, y.dtype, i);
    }
    mc_scratch_free(d, partial, parts * columns);
    return MC_OK;
}
