/* Weights in 8 bits. A product of few rows reads every byte once from memory and converts it in
 * registers; products of many rows convert blocks of rows and leave those to the library. */
#include "core/device/cpu/isa/panel_internal.h"
#include "core/device/eight_bit_internal.h"

/* ---- converting ------------------------------------------------------------------------------ */

/* Bits of f32 without the sign count up with the number, infinity and NaN behind all. */
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
    float scale = mc_eight_bit_scale(q.format, largest_of_row(x, row, q.columns));
    q.scale[row] = scale;
    for (int64_t first = 0; first < q.columns; first += MC_CHUNK) {
        int64_t n = mc_min_i64(MC_CHUNK, q.columns - first);
        const float *v = mc_read(x, row * x.stride + first, n, buffer);
        uint8_t *to = q.data + row * q.columns + first;
        if (q.format == MC_WEIGHTS_INT8)
            for (int64_t i = 0; i < n; i++) to[i] = mc_to_eight_bit(MC_WEIGHTS_INT8, v[i], scale);
        else
            for (int64_t i = 0; i < n; i++) to[i] = mc_to_eight_bit(MC_WEIGHTS_FP8, v[i], scale);
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
        const uint8_t *from = q.data + row * q.columns + first;
        float *v = mc_write_begin(y, to + first, buffer), scale = q.scale[row];
        if (q.format == MC_WEIGHTS_INT8)
            for (int64_t i = 0; i < n; i++) v[i] = scale * (float)(int8_t)from[i];
        else
            for (int64_t i = 0; i < n; i++) v[i] = scale * mc_from_fp8(from[i]);
        mc_write_end(y, to + first, n, v);
    }
}

/* Rows first .. first + count as the first rows of y. */
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

/* ---- products of few rows -------------------------------------------------------------------- */

/* Rows of x and of the weight in a block: see few_rows.c. */
#if defined(__AVX512F__)
enum { TILE_X = 4, TILE_W = 4 };
#elif defined(__AVX2__)
enum { TILE_X = 2, TILE_W = 4 };
#else
enum { TILE_X = 2, TILE_W = 2 };
#endif
_Static_assert(TILE_X *TILE_W == (int)MC_LANES, "a block's sums fill a vector");

/* MC_LANES bytes as f32; those of FP8 divided by FP8_UNIT. Its bits are those of a number of f16,
 * which instructions convert, with an exponent that counts from 2^-15 in place of 2^-7. */
#if defined(__AVX512F__)
enum { FP8_UNIT = 256 };
static inline mc_vector load_int8(const uint8_t *from)
{
    return (mc_vector)_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
static inline mc_vector load_fp8(const uint8_t *from)
{
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
    wide = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
    return (mc_vector)_mm512_cvtph_ps(wide);
}
#elif defined(__AVX2__)
enum { FP8_UNIT = 256 };
static inline mc_vector load_int8(const uint8_t *from)
{
    return (mc_vector)_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
static inline mc_vector load_fp8(const uint8_t *from)
{
    __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)from));
    wide = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80));
    return (mc_vector)_mm256_cvtph_ps(wide);
}
#else
enum { FP8_UNIT = 1 };
static inline mc_vector load_int8(const uint8_t *from)
{
    mc_lane_values v;
    for (int i = 0; i < MC_LANES; i++) v.lane[i] = (float)(int8_t)from[i];
    return v.vector;
}
static inline mc_vector load_fp8(const uint8_t *from)
{
    mc_lane_values v;
    for (int i = 0; i < MC_LANES; i++) v.lane[i] = mc_from_fp8(from[i]);
    return v.vector;
}
#endif

typedef struct few_eight {
    mc_matrix8 q;
    int64_t rows;
    float alpha;
    const float *x;
    int64_t x_stride;
    float *y;
    int64_t y_stride;
    int64_t item; /* columns of y, whole tiles */
} few_eight;

/* Sums of `rows` rows of x by `columns` rows of the weight, constants where this is inlined, as is
 * `ahead`: asks for the rows of the weight that follow. */
static inline __attribute__((always_inline)) mc_vector tile(mc_weight_format format, int rows,
                                                            int columns, bool ahead, int64_t k,
                                                            const float *x, int64_t x_stride,
                                                            const uint8_t *w)
{
    mc_vector sums[MC_LANES] = {{0}};
    int64_t whole = k / MC_LANES * MC_LANES;
    for (int64_t p = 0; p < whole; p += MC_LANES) {
        mc_vector y[TILE_W];
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            const uint8_t *from = w + c * k + p;
            if (ahead && p % 64 < MC_LANES) __builtin_prefetch(from + TILE_W * k, 0, 2);
            y[c] = format == MC_WEIGHTS_INT8 ? load_int8(from) : load_fp8(from);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            mc_vector v = *(const mc_vector *)(x + r * x_stride + p);
#pragma GCC unroll 4
            for (int c = 0; c < columns; c++) sums[r * TILE_W + c] += v * y[c];
        }
    }
    mc_lane_values result = {.vector = mc_add_lanes(sums)};
    if (format == MC_WEIGHTS_FP8)
        for (int i = 0; i < MC_LANES; i++) result.lane[i] *= (float)FP8_UNIT;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            for (int64_t p = whole; p < k; p++)
                result.lane[r * TILE_W + c] +=
                    x[r * x_stride + p] * mc_from_eight_bit(format, w[c * k + p]);
    return result.vector;
}

#define TILE_CASE(n)                                                                    \
    case n: sums.vector = tile(format, n, columns, false, k, x, f->x_stride, w); break; \
    case -n: sums.vector = tile(format, n, columns, true, k, x, f->x_stride, w); break;

/* Columns j .. j + columns of y. */
static inline __attribute__((always_inline)) void
multiply_rows(const few_eight *f, mc_weight_format format, int columns, int64_t j)
{
    int64_t k = f->q.columns;
    const uint8_t *w = f->q.data + j * k;
    for (int64_t i = 0; i < f->rows; i += TILE_X) {
        int rows = (int)mc_min_i64(TILE_X, f->rows - i);
        const float *x = f->x + i * f->x_stride;
        mc_lane_values sums;
        switch (i == 0 ? -rows : rows) {
            TILE_CASE(1)
            TILE_CASE(2)
#if defined(__AVX512F__)
            TILE_CASE(3)
            TILE_CASE(4)
#endif
        }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
                f->y[(i + r) * f->y_stride + j + c] =
                    f->alpha * f->q.scale[j + c] * sums.lane[r * TILE_W + c];
    }
}
#undef TILE_CASE

static void multiply_columns(const few_eight *f, int64_t j)
{
    int columns = (int)mc_min_i64(TILE_W, f->q.rows - j);
    bool whole = columns == TILE_W;
    if (f->q.format == MC_WEIGHTS_INT8 && whole) multiply_rows(f, MC_WEIGHTS_INT8, TILE_W, j);
    if (f->q.format == MC_WEIGHTS_FP8 && whole) multiply_rows(f, MC_WEIGHTS_FP8, TILE_W, j);
    for (int c = 0; c < columns && !whole; c++)
        if (f->q.format == MC_WEIGHTS_INT8)
            multiply_rows(f, MC_WEIGHTS_INT8, 1, j + c);
        else
            multiply_rows(f, MC_WEIGHTS_FP8, 1, j + c);
}

/* ---- products -------------------------------------------------------------------------------- */

/* The product in f32: what is f32 is taken where it is, the rest lies in scratch memory. */
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
    bool few = p->rows <= MC_EIGHT_FEW_ROWS;
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

/* Where columns from j on are summed. */
static mc_matrix sums_at(const product *p, int64_t j)
{
    mc_matrix y = p->y;
    if (!p->y_size) y.data = (float *)y.data + j;
    return y;
}

static void few_item(void *call, int64_t item, int thread)
{
    const few_eight *f = call;
    int64_t end = mc_min_i64(f->q.rows, (item + 1) * f->item);
    (void)thread;
    for (int64_t j = item * f->item; j < end; j += TILE_W) multiply_columns(f, j);
}

/* Columns of y of an item: some for each thread, of 64 KiB to 1 MiB of the weight. */
static int64_t columns_of_item(const mc_matrix8 *q, int threads)
{
    const int64_t least = 64 << 10, most = 1 << 20, each = 8;
    int64_t bytes = q->rows * q->columns / threads / each;
    bytes = bytes < least ? least : mc_min_i64(bytes, most);
    return mc_round_up(bytes / q->columns + 1, TILE_W);
}

static void multiply_few(mc_device *d, const product *p, float alpha, mc_matrix8 q)
{
    int threads = mc_threads_for(p->rows * q.rows * q.columns);
    few_eight f = {.q = q,
                   .rows = p->rows,
                   .alpha = alpha,
                   .x = p->x.data,
                   .x_stride = p->x.stride,
                   .y = p->y.data,
                   .y_stride = p->y.stride,
                   .item = columns_of_item(&q, threads)};
    mc_run(d, p->rows, threads, (q.rows + f.item - 1) / f.item, few_item, &f);
}

/* Columns j .. j + n, by the library. */
static mc_status multiply_block(mc_device *d, const product *p, float alpha, mc_matrix8 q,
                                int64_t j, int64_t n)
{
    mc_matrix w = {p->w, MC_F32, q.columns};
    dequantize_rows(q, j, n, w);
    return MC_K(gemm)(d, false, true, p->rows, n, q.columns, alpha, p->x, w, 0, sums_at(p, j));
}

/* Ends columns j .. j + n: rounds once. */
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

mc_status MC_K(linear_eight)(mc_device *d, int64_t rows, float alpha, mc_matrix x, mc_matrix8 q,
                             mc_matrix bias, mc_activation activation, mc_matrix y)
{
    product p = {.rows = rows};
    if (!rows || !q.rows) return MC_OK;
    if (!begin(d, &p, x, q, y)) return MC_ERR_NOMEM;
    mc_status status = MC_OK;
    if (!p.w) multiply_few(d, &p, alpha, q);
    for (int64_t j = 0; j < q.rows && !status; j += p.columns) {
        int64_t n = mc_min_i64(p.columns, q.rows - j);
        if (p.w) status = multiply_block(d, &p, alpha, q, j, n);
        if (!status) status = finish(d, &p, j, n, bias, activation, y);
    }
    if (p.scratch) mc_scratch_free(d, p.scratch, p.x_size + p.y_size + p.w_size);
    return status;
}
