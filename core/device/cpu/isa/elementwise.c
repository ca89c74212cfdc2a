/* Activations, arithmetic with broadcasting, dropout, conversion: memory-bound kernels that read
 * each element once. */
#include "core/device/cpu/isa/math_internal.h"

/* ---- activations ----------------------------------------------------------------------------- */

#define MC_GELU_NEW_A 0.7978845608f /* sqrt(2 / pi) */
#define MC_GELU_NEW_B 0.044715f

static inline float gelu(float x)
{
    float density;
    return x * mc_normal_cdf(x, &density);
}

static inline float gelu_slope(float x)
{
    float density, cdf = mc_normal_cdf(x, &density);
    return cdf + x * density;
}

/* x/2 (1 + tanh z) is x sigmoid(2 z). */
static inline float gelu_new(float x)
{
    float mirror, z = 2.0f * MC_GELU_NEW_A * x * (1.0f + MC_GELU_NEW_B * x * x);
    return x * mc_sigmoid(z, &mirror);
}

static inline float gelu_new_slope(float x)
{
    float mirror, square = x * x;
    float s = mc_sigmoid(2.0f * MC_GELU_NEW_A * x * (1.0f + MC_GELU_NEW_B * square), &mirror);
    float dz = 2.0f * MC_GELU_NEW_A * (1.0f + 3.0f * MC_GELU_NEW_B * square);
    return s + x * s * mirror * dz;
}

static inline float silu(float x)
{
    float mirror;
    return x * mc_sigmoid(x, &mirror);
}

static inline float silu_slope(float x)
{
    float mirror, s = mc_sigmoid(x, &mirror);
    return s + x * s * mirror;
}

static inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

/* y = activation(x), y may be x. */
static void activate(mc_activation activation, const float *x, float *y, int n)
{
#define MC_LOOP(to, expression)                                         \
    _Pragma("omp simd") for (int i = 0; i < n; i++) to[i] = expression; \
    break
    switch (activation) {
    case MC_ACTIVATION_RELU: MC_LOOP(y, relu(x[i]));
    case MC_ACTIVATION_GELU: MC_LOOP(y, gelu(x[i]));
    case MC_ACTIVATION_GELU_NEW: MC_LOOP(y, gelu_new(x[i]));
    case MC_ACTIVATION_TANH: MC_LOOP(y, mc_tanh_f32(x[i]));
    case MC_ACTIVATION_SILU: MC_LOOP(y, silu(x[i]));
    case MC_ACTIVATION_NONE:
        if (y != x) memmove(y, x, (size_t)n * sizeof *y);
        break;
    }
}

static inline float tanh_slope(float x)
{
    float t = mc_tanh_f32(x);
    return 1.0f - t * t;
}

/* dx = dy * activation'(x), dx may be dy. ReLU's slope at 0 is 0, as in PyTorch. */
static void activate_backward(mc_activation activation, const float *x, const float *dy, float *dx,
                              int n)
{
    switch (activation) {
    case MC_ACTIVATION_RELU: MC_LOOP(dx, x[i] <= 0.0f ? 0.0f : dy[i]);
    case MC_ACTIVATION_GELU: MC_LOOP(dx, dy[i] * gelu_slope(x[i]));
    case MC_ACTIVATION_GELU_NEW: MC_LOOP(dx, dy[i] * gelu_new_slope(x[i]));
    case MC_ACTIVATION_TANH: MC_LOOP(dx, dy[i] * tanh_slope(x[i]));
    case MC_ACTIVATION_SILU: MC_LOOP(dx, dy[i] * silu_slope(x[i]));
    case MC_ACTIVATION_NONE:
        if (dx != dy) memmove(dx, dy, (size_t)n * sizeof *dx);
        break;
    }
#undef MC_LOOP
}

/* One chunk of bias_activation. The activation uses the sum as stored, because backward reads
 * that. */
static void bias_activation_chunk(mc_chunk k, mc_matrix x, mc_matrix bias, mc_activation activation,
                                  mc_matrix y)
{
    float xb[MC_CHUNK], bb[MC_CHUNK], yb[MC_CHUNK];
    int64_t at = k.row * x.stride + k.column;
    const float *xs = mc_read(x, at, k.n, xb);
    if (bias.data) {
        const float *bs = mc_read(bias, k.column, k.n, bb);
        float *sum = mc_write_begin(x, at, xb);
#pragma omp simd
        for (int i = 0; i < k.n; i++) sum[i] = xs[i] + bs[i];
        mc_write_end(x, at, k.n, sum);
        if (x.dtype != MC_F32 && y.data) mc_read(x, at, k.n, xb);
    }
    if (!y.data || (y.data == x.data && activation == MC_ACTIVATION_NONE)) return;
    int64_t y_at = k.row * y.stride + k.column;
    float *out = mc_write_begin(y, y_at, yb);
    activate(activation, xs, out, k.n);
    mc_write_end(y, y_at, k.n, out);
}

typedef struct bias_call {
    mc_chunks chunks;
    mc_matrix x, bias, y;
    mc_activation activation;
} bias_call;

static void bias_item(void *call, int64_t item, int thread)
{
    const bias_call *b = call;
    (void)thread;
    bias_activation_chunk(mc_chunk_at(b->chunks, item), b->x, b->bias, b->activation, b->y);
}

mc_status MC_K(bias_activation)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                mc_matrix bias, mc_activation activation, mc_matrix y)
{
    bias_call b = {mc_chunks_of(rows, columns), x, bias, y, activation};
    mc_run(d, rows, mc_threads_for(rows * columns), b.chunks.count, bias_item, &b);
    return MC_OK;
}

/* Contiguous matrices count as one row, so that chunks are long. */
static mc_chunks chunks_of_matrices(int64_t rows, int64_t columns, const mc_matrix *m, int count)
{
    for (int i = 0; i < count; i++)
        if (m[i].stride != columns) return mc_chunks_of(rows, columns);
    return mc_chunks_of(1, rows * columns);
}
#define MC_CHUNKS_OF(rows, columns, ...)                                \
    chunks_of_matrices(rows, columns, (const mc_matrix[]){__VA_ARGS__}, \
                       (int)(sizeof((const mc_matrix[]){__VA_ARGS__}) / sizeof(mc_matrix)))

typedef struct map_call {
    mc_chunks chunks;
    mc_activation activation;
    mc_matrix x, y;
} map_call;

static void activation_item(void *call, int64_t item, int thread)
{
    const map_call *c = call;
    mc_chunk k = mc_chunk_at(c->chunks, item);
    float xb[MC_CHUNK], yb[MC_CHUNK];
    int64_t y_at = k.row * c->y.stride + k.column;
    const float *xs = mc_read(c->x, k.row * c->x.stride + k.column, k.n, xb);
    float *ys = mc_write_begin(c->y, y_at, yb);
    (void)thread;
    activate(c->activation, xs, ys, k.n);
    mc_write_end(c->y, y_at, k.n, ys);
}

mc_status MC_K(activation)(mc_device *d, int64_t rows, int64_t columns, mc_activation activation,
                           mc_matrix x, mc_matrix y)
{
    map_call c = {MC_CHUNKS_OF(rows, columns, x, y), activation, x, y};
    mc_run(d, rows, mc_threads_for(rows * columns), c.chunks.count, activation_item, &c);
    return MC_OK;
}

mc_status MC_K(activation_backward)(mc_device *d, int64_t rows, int64_t columns,
                                    mc_activation activation, mc_matrix x, float factor,
                                    mc_matrix dy, mc_matrix dx, bool accumulate)
{
    (void)d;
    mc_chunks c = MC_CHUNKS_OF(rows, columns, x, dy, dx);
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float xb[MC_CHUNK], gb[MC_CHUNK], out[MC_CHUNK];
        int64_t dx_at = k.row * dx.stride + k.column;
        const float *xs = mc_read(x, k.row * x.stride + k.column, k.n, xb);
        const float *gs = mc_read(dy, k.row * dy.stride + k.column, k.n, gb);
        bool direct = !accumulate && dx.dtype == MC_F32;
        float *to = direct ? mc_write_begin(dx, dx_at, out) : out;
        activate_backward(activation, xs, gs, to, k.n);
        if (factor != 1.0f) {
#pragma omp simd
            for (int j = 0; j < k.n; j++) to[j] *= factor;
        }
        if (!direct) mc_write(dx, dx_at, k.n, to, accumulate);
    }
    return MC_OK;
}

/* x holds the activation's arguments, then the factors. */
static void gated_item(void *call, int64_t item, int thread)
{
    const map_call *c = call;
    mc_chunk k = mc_chunk_at(c->chunks, item);
    float xb[MC_CHUNK], out[MC_CHUNK];
    int64_t at = k.row * c->x.stride + k.column;
    const float *xs = mc_read(c->x, at, k.n, xb);
    (void)thread;
    if (k.n < 1) return; /* never: GCC 12 warns of an empty buffer */
    activate(c->activation, xs, out, k.n);
    xs = mc_read(c->x, at + c->chunks.columns, k.n, xb);
#pragma omp simd
    for (int j = 0; j < k.n; j++) out[j] *= xs[j];
    mc_write(c->y, k.row * c->y.stride + k.column, k.n, out, false);
}

mc_status MC_K(gated)(mc_device *d, int64_t rows, int64_t n, mc_activation activation, mc_matrix x,
                      mc_matrix y)
{
    map_call c = {mc_chunks_of(rows, n), activation, x, y};
    mc_run(d, rows, mc_threads_for(rows * n), c.chunks.count, gated_item, &c);
    return MC_OK;
}

mc_status MC_K(gated_backward)(mc_device *d, int64_t rows, int64_t n, mc_activation activation,
                               mc_matrix x, mc_matrix dy, mc_matrix dx, bool accumulate)
{
    (void)d;
    mc_chunks c = mc_chunks_of(rows, n);
#pragma omp parallel for schedule(static) if (rows * n > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float ab[MC_CHUNK], bb[MC_CHUNK], gb[MC_CHUNK], da[MC_CHUNK], db[MC_CHUNK];
        int64_t at = k.row * x.stride + k.column, to = k.row * dx.stride + k.column;
        const float *as = mc_read(x, at, k.n, ab), *bs = mc_read(x, at + n, k.n, bb);
        const float *gs = mc_read(dy, k.row * dy.stride + k.column, k.n, gb);
        activate(activation, as, db, k.n);
#pragma omp simd
        for (int j = 0; j < k.n; j++) {
            da[j] = gs[j] * bs[j];
            db[j] *= gs[j];
        }
        activate_backward(activation, as, da, da, k.n);
        mc_write(dx, to, k.n, da, accumulate);
        mc_write(dx, to + n, k.n, db, accumulate);
    }
    return MC_OK;
}

mc_status MC_K(dropout)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, bool relu_first,
                        mc_dropout_mask mask, mc_matrix y, bool accumulate)
{
    (void)d;
    mc_chunks c = MC_CHUNKS_OF(rows, columns, x, y);
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL / 4)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float xb[MC_CHUNK], out[MC_CHUNK];
        MC_K(dropout_factors)(mask, k.row * columns + k.column, k.n, out);
        const float *xs = mc_read(x, k.row * x.stride + k.column, k.n, xb);
#pragma omp simd
        for (int j = 0; j < k.n; j++) out[j] *= relu_first ? relu(xs[j]) : xs[j];
        mc_write(y, k.row * y.stride + k.column, k.n, out, accumulate);
    }
    return MC_OK;
}

/* ---- flat arrays ----------------------------------------------------------------------------- */

/* b[(first + i) % count] for i < n, in place if that is one run of f32. */
static const float *read_repeated(mc_matrix b, int64_t count, int64_t first, int n, float *buffer)
{
    int64_t at = first % count;
    if (at + n <= count) return mc_read(b, at, n, buffer);
    int head = (int)(count - at), period = (int)mc_min_i64(count, n);
    mc_convert_in(b.data, b.dtype, at, head, buffer);
    mc_convert_in(b.data, b.dtype, 0, period - head, buffer + head);
    for (int have = period; have < n; have *= 2)
        memcpy(buffer + have, buffer, (size_t)(have < n - have ? have : n - have) * sizeof *buffer);
    return buffer;
}

typedef struct flat_call {
    mc_chunks chunks;
    mc_matrix a, b, y;
    int64_t b_count;
    float factor;
    bool accumulate;
} flat_call;

static void add_item(void *call, int64_t item, int thread)
{
    const flat_call *c = call;
    mc_chunk k = mc_chunk_at(c->chunks, item);
    float ab[MC_CHUNK], bb[MC_CHUNK], yb[MC_CHUNK];
    const float *as = mc_read(c->a, k.column, k.n, ab);
    const float *bs = read_repeated(c->b, c->b_count, k.column, k.n, bb);
    float *ys = mc_write_begin(c->y, k.column, yb);
    (void)thread;
#pragma omp simd
    for (int j = 0; j < k.n; j++) ys[j] = as[j] + bs[j];
    mc_write_end(c->y, k.column, k.n, ys);
}

mc_status MC_K(add)(mc_device *d, int64_t count, mc_matrix a, mc_matrix b, int64_t b_count,
                    mc_matrix y)
{
    flat_call c = {.chunks = mc_chunks_of(1, count), .a = a, .b = b, .y = y, .b_count = b_count};
    mc_run(d, mc_rows_like(count), mc_threads_for(count), c.chunks.count, add_item, &c);
    return MC_OK;
}

mc_status MC_K(multiply)(mc_device *d, int64_t count, mc_matrix a, mc_matrix b, int64_t b_count,
                         mc_matrix y, bool accumulate)
{
    (void)d;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float ab[MC_CHUNK], bb[MC_CHUNK], out[MC_CHUNK];
        const float *as = mc_read(a, k.column, k.n, ab);
        const float *bs = read_repeated(b, b_count, k.column, k.n, bb);
#pragma omp simd
        for (int j = 0; j < k.n; j++) out[j] = as[j] * bs[j];
        mc_write(y, k.column, k.n, out, accumulate);
    }
    return MC_OK;
}

static void scale_item(void *call, int64_t item, int thread)
{
    const flat_call *c = call;
    mc_chunk k = mc_chunk_at(c->chunks, item);
    float xb[MC_CHUNK], out[MC_CHUNK], factor = c->factor;
    const float *xs = mc_read(c->a, k.column, k.n, xb);
    float *ys = c->accumulate ? out : mc_write_begin(c->y, k.column, out);
    (void)thread;
#pragma omp simd
    for (int j = 0; j < k.n; j++) ys[j] = xs[j] * factor;
    if (c->accumulate)
        mc_write(c->y, k.column, k.n, ys, true);
    else
        mc_write_end(c->y, k.column, k.n, ys);
}

mc_status MC_K(scale)(mc_device *d, int64_t count, mc_matrix x, float factor, mc_matrix y,
                      bool accumulate)
{
    flat_call c = {.chunks = mc_chunks_of(1, count),
                   .a = x,
                   .y = y,
                   .factor = factor,
                   .accumulate = accumulate};
    mc_run(d, mc_rows_like(count), mc_threads_for(count), c.chunks.count, scale_item, &c);
    return MC_OK;
}

mc_status MC_K(zero)(mc_device *d, void *data, size_t bytes)
{
    (void)d;
    const size_t block = (size_t)1 << 20;
    int64_t blocks = (int64_t)((bytes + block - 1) / block);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        size_t first = (size_t)i * block;
        memset((char *)data + first, 0, bytes - first < block ? bytes - first : block);
    }
    return MC_OK;
}
