/* Training in 8 bits on the CPU: a reference that computes the same values as GPUs with 8-bit
 * products, by casting to bytes and back to f32. */
#include "core/device/cpu/isa/convert_internal.h"
#include "core/device/cpu/isa/rows_internal.h"

/* ---- casting --------------------------------------------------------------------------------- */

/* Branch-free loops, one per format, so that they are vectorised. */
static void cast_chunk(mc_fp8_format format, const float *x, float scale, int n, uint8_t *code)
{
    if (format == MC_FP8_E4M3)
        for (int i = 0; i < n; i++) code[i] = mc_to_e4m3(x[i] * scale);
    else
        for (int i = 0; i < n; i++) code[i] = mc_to_e5m2(x[i] * scale);
}

static uint32_t largest_of(const float *x, int n)
{
    uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < n; i++) {
        uint32_t bits = mc_float_bits(x[i]) & 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static void count_lost(mc_fp8_format format, const float *x, float scale, const uint8_t *code,
                       int n, mc_fp8_seen *seen)
{
    float most = mc_fp8_largest(format);
    uint32_t saturated = 0, vanished = 0;
    for (int i = 0; i < n; i++) {
        float scaled = fabsf(x[i] * scale);
        saturated += scaled > most && scaled < INFINITY;
        vanished += x[i] != 0 && !(code[i] & 0x7f);
    }
    seen->saturated += saturated;
    seen->vanished += vanished;
}

static void cast_row(const mc_fp8_cast_call *c, int64_t row, mc_fp8_seen *seen)
{
    float buffer[MC_CHUNK], scale = c->scale ? *c->scale : 0;
    uint8_t code[MC_CHUNK];
    for (int64_t first = 0; first < c->columns; first += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->columns - first);
        const float *x = mc_read(c->x, row * c->x.stride + first, n, buffer);
        uint32_t largest = largest_of(x, n);
        if (largest > seen->largest) seen->largest = largest;
        if (!c->scale) continue;
        cast_chunk(c->format, x, scale, n, code);
        count_lost(c->format, x, scale, code, n, seen);
        if (c->data) memcpy(c->data + row * c->columns + first, code, (size_t)n);
        for (int i = 0; c->transposed && i < n; i++)
            c->transposed[(first + i) * c->padded + row] = code[i];
    }
}

static mc_status cast_matrix(const mc_fp8_cast_call *c)
{
    uint32_t largest = 0;
    uint64_t saturated = 0, vanished = 0;
#pragma omp parallel for schedule(static) if (c->rows * c->columns > MC_SERIAL) \
    reduction(max : largest) reduction(+ : saturated, vanished)
    for (int64_t row = 0; row < c->rows; row++) {
        mc_fp8_seen seen = {0};
        cast_row(c, row, &seen);
        largest = seen.largest > largest ? seen.largest : largest;
        saturated += seen.saturated;
        vanished += seen.vanished;
    }
    for (int64_t i = 0; c->transposed && i < c->columns && c->padded > c->rows; i++)
        memset(c->transposed + i * c->padded + c->rows, 0, (size_t)(c->padded - c->rows));
    if (!c->seen) return MC_OK;
    uint64_t elements = c->scale ? (uint64_t)(c->rows * c->columns) : 0;
    mc_fp8_seen all = {largest, 0, elements, saturated, vanished};
    mc_fp8_add_seen(c->seen, &all);
    return MC_OK;
}

/* What is cast instead of x: the result of an activation or a gate, or of its backward. */
static mc_status activate(mc_device *d, const mc_fp8_cast_call *c, mc_matrix y)
{
    int64_t rows = c->rows, columns = c->columns;
    mc_activation kind = c->activation;
    if (c->gated && c->pre.data)
        return MC_K(gated_backward)(d, rows, columns / 2, kind, c->pre, c->x, y, false);
    if (c->gated) return MC_K(gated)(d, rows, columns, kind, c->x, y);
    if (c->pre.data)
        return MC_K(activation_backward)(d, rows, columns, kind, c->pre, 1, c->x, y, false);
    return MC_K(activation)(d, rows, columns, kind, c->x, y);
}

/* Computes that into scratch memory and casts it. */
static mc_status cast_activated(mc_device *d, const mc_fp8_cast_call *c)
{
    mc_fp8_cast_call cast = *c;
    int64_t count = c->rows * c->columns;
    float *scratch = mc_scratch_new(d, count);
    if (!scratch) return MC_ERR_NOMEM;
    cast.x = (mc_matrix){scratch, c->x.dtype, c->columns};
    mc_status status = activate(d, c, cast.x);
    if (!status && c->sums && c->scale)
        status = MC_K(column_sums)(d, c->rows, c->columns, cast.x, c->sums);
    if (!status) status = cast_matrix(&cast);
    mc_scratch_free(d, scratch, count);
    return status;
}

mc_status MC_K(fp8_cast)(mc_device *d, const mc_fp8_cast_call *c)
{
    bool plain = mc_fp8_is_plain(c) || !c->rows || !c->columns;
    return plain ? cast_matrix(c) : cast_activated(d, c);
}

/* ---- rows with a scale each ------------------------------------------------------------------ */

/* n elements of a row from `first` on, with their factors. */
static const float *row_chunk(const mc_fp8_rows_call *c, int64_t row, int64_t first, int n,
                              float *buffer)
{
    const float *x = mc_read(c->x, row * c->x.stride + first, n, buffer);
    if (!c->factor) return x;
    for (int i = 0; i < n; i++) buffer[i] = x[i] * c->factor[first + i];
    return buffer;
}

static void cast_scaled_row(const mc_fp8_rows_call *c, int64_t row)
{
    float buffer[MC_CHUNK];
    uint32_t largest = 0;
    mc_fp8_scale scale;
    for (int64_t first = 0; first < c->columns; first += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->columns - first);
        uint32_t here = largest_of(row_chunk(c, row, first, n, buffer), n);
        if (here > largest) largest = here;
    }
    mc_fp8_set_scale(&scale, MC_FP8_E4M3, mc_bits_float(largest), c->margin);
    c->inverse[row] = scale.inverse;
    for (int64_t first = 0; first < c->columns; first += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->columns - first);
        cast_chunk(MC_FP8_E4M3, row_chunk(c, row, first, n, buffer), scale.scale, n,
                   c->data + row * c->columns + first);
    }
}

mc_status MC_K(fp8_cast_rows)(mc_device *d, const mc_fp8_rows_call *c)
{
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->columns > MC_SERIAL)
    for (int64_t row = 0; row < c->rows; row++) cast_scaled_row(c, row);
    return MC_OK;
}

mc_status MC_K(fp8_transpose)(mc_device *d, int64_t rows, int64_t columns, const uint8_t *x,
                              uint8_t *y, float *ones)
{
    (void)d;
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL)
    for (int64_t column = 0; column < columns; column++) {
        if (ones) ones[column] = 1;
        for (int64_t row = 0; row < rows; row++) y[column * rows + row] = x[row * columns + column];
    }
    return MC_OK;
}

/* ---- scales ---------------------------------------------------------------------------------- */

mc_status MC_K(fp8_update)(mc_device *d, const mc_fp8_update_call *c)
{
    (void)d;
    for (int i = 0; i < c->count; i++) {
        mc_fp8_format format = mc_fp8_format_of(((int)c->first_role + i) % MC_FP8_ROLES);
        mc_fp8_seen all = {0};
        for (int rank = 0; rank < c->ranks; rank++)
            mc_fp8_add_seen(&all, &c->seen[(int64_t)rank * c->count + i]);
        if (c->current)
            mc_fp8_set_scale(&c->scales[i], format, mc_bits_float(all.largest), c->margin);
        else
            mc_fp8_advance(&c->scales[i], format, all.largest, c->margin);
        if (c->clear) c->clear[i] = (mc_fp8_seen){0};
        if (!c->total) continue;
        c->total->elements += all.elements;
        c->total->saturated += all.saturated;
        c->total->vanished += all.vanished;
    }
    return MC_OK;
}

/* ---- products -------------------------------------------------------------------------------- */

static void decode_row(const mc_fp8_matrix *x, bool by_rows, int64_t row, int64_t columns,
                       float *to)
{
    const uint8_t *code = x->data + row * x->stride;
    float inverse = x->inverse ? x->inverse[by_rows ? row : 0] : 1;
    if (x->format == MC_FP8_E4M3)
        for (int64_t i = 0; i < columns; i++) to[i] = inverse * mc_from_e4m3(code[i]);
    else
        for (int64_t i = 0; i < columns; i++) to[i] = inverse * mc_from_e5m2(code[i]);
}

/* A whole operand, (rows, columns) as stored, as f32. */
static mc_matrix decoded(const mc_fp8_matrix *x, bool by_rows, int64_t rows, int64_t columns,
                         float *to)
{
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL)
    for (int64_t row = 0; row < rows; row++)
        decode_row(x, by_rows, row, columns, to + row * columns);
    return (mc_matrix){to, MC_F32, columns};
}

/* op(A) op(B) in f32, from which bias, activation and cast follow. */
static mc_status gemm_to_bytes(mc_device *d, const mc_fp8_gemm_call *c, mc_matrix a, mc_matrix b)
{
    int64_t count = c->m * c->n;
    mc_matrix x = {mc_scratch_new(d, count), MC_F32, c->n};
    mc_fp8_cast_call cast = {.rows = c->m,
                             .columns = c->n,
                             .x = x,
                             .format = MC_FP8_E4M3,
                             .scale = c->scale,
                             .data = c->c.data};
    if (!x.data) return MC_ERR_NOMEM;
    mc_status status =
        MC_K(gemm)(d, c->transpose_a, c->transpose_b, c->m, c->n, c->k, c->alpha, a, b, 0, x);
    if (!status && c->bias.data)
        status = MC_K(bias_activation)(d, c->m, c->n, x, c->bias, MC_ACTIVATION_NONE, x);
    if (!status && c->activation != MC_ACTIVATION_NONE)
        status = MC_K(activation)(d, c->m, c->n, c->activation, x, x);
    if (!status) status = cast_matrix(&cast);
    mc_scratch_free(d, x.data, count);
    return status;
}

mc_status MC_K(fp8_gemm)(mc_device *d, const mc_fp8_gemm_call *c)
{
    int64_t a_size = c->m * c->k, size = a_size + c->n * c->k;
    if (c->m == 0 || c->n == 0) return MC_OK;
    float *scratch = mc_scratch_new(d, size);
    if (!scratch) return MC_ERR_NOMEM;
    bool ta = c->transpose_a, tb = c->transpose_b;
    mc_matrix a = decoded(&c->a, c->by_rows, ta ? c->k : c->m, ta ? c->m : c->k, scratch);
    mc_matrix b = decoded(&c->b, c->by_rows, tb ? c->n : c->k, tb ? c->k : c->n, scratch + a_size);
    bool bytes = c->c.dtype == MC_U8;
    mc_status status = bytes
                           ? gemm_to_bytes(d, c, a, b)
                           : MC_K(gemm)(d, ta, tb, c->m, c->n, c->k, c->alpha, a, b, c->beta, c->c);
    if (!status && !bytes && c->bias.data)
        status = MC_K(bias_activation)(d, c->m, c->n, c->c, c->bias, MC_ACTIVATION_NONE, c->c);
    mc_scratch_free(d, scratch, size);
    return status;
}
