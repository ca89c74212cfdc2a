/* Measures the rate of work on a device by running a kernel: see mc_rates_measure. */
#include <stdlib.h>
#include <time.h>
#include "core/predict/rates_internal.h"
#include "core/device/update.h"

enum { MATRICES = 6, LEAST_RUNS = 3, MOST_RUNS = 7, MOST_HEADS = 16, MOST_SEQUENCES = 256 };

/* The kernels' memory: a few large matrices of one size, and small arrays. */
typedef struct probe {
    mc_device *d;
    mc_work work;
    char *matrix[MATRICES];
    size_t bytes[MATRICES];
    int32_t *index;
    size_t index_bytes;
    mc_update *update;
    mc_lengths lengths; /* for attention, in the two arrays: sequences of one length */
    int32_t length[MOST_SEQUENCES], offset[MOST_SEQUENCES + 1];
    float *vector; /* zeros: three vectors */
    size_t vector_bytes;
} probe;

/* ---- kernels --------------------------------------------------------------------------------- */

static mc_matrix matrix_of(const probe *p, int i, int64_t stride)
{
    return (mc_matrix){p->matrix[i], p->work.dtype, stride};
}

static mc_matrix vector_of(const probe *p) { return (mc_matrix){p->vector, p->work.dtype, 0}; }

static mc_status run_product(const probe *p)
{
    const mc_work *w = &p->work;
    bool ta = w->kind == MC_WORK_PRODUCT_TN, tb = w->kind == MC_WORK_PRODUCT_NT;
    mc_matrix a = matrix_of(p, 0, ta ? w->a : w->c), b = matrix_of(p, 1, tb ? w->c : w->b),
              c = matrix_of(p, 2, w->b);
    if (ta) c.dtype = MC_F32; /* the gradient of a weight is f32 */
    return p->d->kernels->gemm(p->d, ta, tb, w->a, w->b, w->c, 1, a, b, ta ? 1 : 0, c);
}

/* All scales are 0. */
static mc_status run_product8(const probe *p)
{
    const mc_work *w = &p->work;
    mc_fp8_matrix a = {(uint8_t *)p->matrix[0], w->c, MC_FP8_E4M3, p->vector},
                  b = {(uint8_t *)p->matrix[1], w->c, MC_FP8_E4M3, p->vector};
    return p->d->kernels->fp8_gemm(p->d,
                                   &(mc_fp8_gemm_call){.transpose_b = true,
                                                       .fast = w->kind == MC_WORK_PRODUCT8_FAST,
                                                       .m = w->a,
                                                       .n = w->b,
                                                       .k = w->c,
                                                       .alpha = 1,
                                                       .a = a,
                                                       .b = b,
                                                       .c = matrix_of(p, 2, w->b)});
}

/* Heads per sequence: all heads, split over several sequences if there are many. */
static int64_t heads_of(const mc_work *w) { return w->c < MOST_HEADS ? w->c : MOST_HEADS; }

static mc_dropout_mask mask_of(const probe *p)
{
    return (mc_dropout_mask){p->work.dropout ? 0.1f : 0, 1, 2, NULL};
}

static mc_status run_attention(const probe *p)
{
    const mc_work *w = &p->work;
    int64_t heads = heads_of(w), width = w->b * heads;
    mc_attention_shape shape = {.lengths = &p->lengths,
                                .device_lengths = p->index,
                                .heads = (int)heads,
                                .head_dim = (int)w->b,
                                .scale = 0.1f,
                                .causal = w->causal,
                                .dropout = mask_of(p)};
    size_t step = (size_t)width * mc_dtype_size(w->dtype);
    mc_matrix x[3], dx[3], out = matrix_of(p, 2, width), dout = matrix_of(p, 3, width);
    for (int i = 0; i < 3; i++) {
        x[i] = (mc_matrix){p->matrix[0] + (size_t)i * step, w->dtype, 3 * width};
        dx[i] = (mc_matrix){p->matrix[1] + (size_t)i * step, w->dtype, 3 * width};
    }
    float *log_sum_exp = (float *)p->matrix[4];
    if (w->kind == MC_WORK_ATTENTION)
        return p->d->kernels->attention(p->d, &shape, x[0], x[1], x[2], out, log_sum_exp);
    return p->d->kernels->attention_backward(p->d, &shape, x[0], x[1], x[2], out, log_sum_exp, dout,
                                             dx[0], dx[1], dx[2]);
}

static mc_status run_copy(const probe *p)
{
    const mc_work *w = &p->work;
    return p->d->kernels->scale(p->d, w->a * w->b, matrix_of(p, 0, 0), 1, matrix_of(p, 1, 0),
                                false);
}

static mc_status run_norm(const probe *p)
{
    const mc_work *w = &p->work;
    const mc_kernels *k = p->d->kernels;
    mc_matrix x = matrix_of(p, 0, w->b), f = matrix_of(p, 1, w->b), s = matrix_of(p, 2, w->b),
              y = matrix_of(p, 3, w->b);
    float *mean = (float *)p->matrix[4], *rstd = (float *)p->matrix[5];
    if (w->kind == MC_WORK_NORM)
        return k->residual_norm(p->d, &(mc_residual_norm_call){.rows = w->a,
                                                               .columns = w->b,
                                                               .x = x,
                                                               .f = f,
                                                               .dropout = mask_of(p),
                                                               .weight = vector_of(p),
                                                               .bias = vector_of(p),
                                                               .eps = 1,
                                                               .s = s,
                                                               .y = y,
                                                               .mean = mean,
                                                               .rstd = rstd});
    return k->residual_norm_backward(
        p->d, &(mc_residual_norm_backward_call){.rows = w->a,
                                                .columns = w->b,
                                                .s = x,
                                                .weight = vector_of(p),
                                                .mean = mean,
                                                .rstd = rstd,
                                                .dy = y,
                                                .dropout = mask_of(p),
                                                .ds = s,
                                                .df = mask_of(p).p > 0 ? f : (mc_matrix){0},
                                                .accumulate = true,
                                                .dweight = p->vector + w->b,
                                                .dbias = p->vector + 2 * w->b,
                                                .dbranch = w->c ? p->vector + 3 * w->b : NULL});
}

static mc_status run_cross_entropy(const probe *p)
{
    const mc_work *w = &p->work;
    float *loss = p->vector; /* (2), followed by the seed */
    mc_matrix x = matrix_of(p, 0, w->b);
    return p->d->kernels->cross_entropy(p->d, w->a, w->b, x, p->index, -100, 0, loss + 2, loss, x);
}

static mc_status run_adam(const probe *p)
{
    const mc_work *w = &p->work;
    bool mixed = w->dtype != MC_F32;
    float *x[5];
    for (int i = 0; i < 5; i++) x[i] = (float *)p->matrix[i];
    mc_adam_step step = {
        .update = p->update, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .lr_factor = 1};
    mc_matrix gradient = {x[0], MC_F32, 0};
    return p->d->kernels->adam(p->d, w->a * w->b, step, gradient, x[1], x[2], mixed ? x[3] : NULL,
                               x[4], w->dtype);
}

static mc_status run_sums(const probe *p)
{
    const mc_work *w = &p->work;
    if (w->kind == MC_WORK_STATS)
        return p->d->kernels->gradient_stats(p->d, w->a * w->b, matrix_of(p, 0, 0), 2, 0,
                                             (mc_gradient_stats *)p->matrix[1]);
    return p->d->kernels->column_sums(p->d, w->a, w->b, matrix_of(p, 0, w->b), p->vector);
}

/* A separate pass, even if a product's epilogue could do it. */
static mc_status run_activation(const probe *p)
{
    const mc_work *w = &p->work;
    const mc_kernels *k = p->d->kernels;
    mc_activation activation = (mc_activation)w->c;
    mc_matrix x = matrix_of(p, 0, w->b), y = matrix_of(p, 1, w->b), none = {0};
    if (w->kind == MC_WORK_ACTIVATION_BACKWARD)
        return k->activation_backward(p->d, w->a, w->b, activation, x, 1, y, y, false);
    return k->bias_activation(p->d, w->a, w->b, x, vector_of(p), activation,
                              w->kind == MC_WORK_BIAS ? none : y);
}

static mc_status run(const probe *p)
{
    switch (p->work.kind) {
    case MC_WORK_PRODUCT_NT:
    case MC_WORK_PRODUCT_NN:
    case MC_WORK_PRODUCT_TN: return run_product(p);
    case MC_WORK_PRODUCT8_FAST:
    case MC_WORK_PRODUCT8: return run_product8(p);
    case MC_WORK_ATTENTION:
    case MC_WORK_ATTENTION_BACKWARD: return run_attention(p);
    case MC_WORK_NORM:
    case MC_WORK_NORM_BACKWARD: return run_norm(p);
    case MC_WORK_SUMS:
    case MC_WORK_STATS: return run_sums(p);
    case MC_WORK_CROSS_ENTROPY: return run_cross_entropy(p);
    case MC_WORK_ADAM: return run_adam(p);
    case MC_WORK_BIAS:
    case MC_WORK_ACTIVATION:
    case MC_WORK_ACTIVATION_BACKWARD: return run_activation(p);
    default: return run_copy(p);
    }
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static bool is_product(mc_work_kind kind) { return kind <= MC_WORK_PRODUCT8; }
static bool is_attention(mc_work_kind kind)
{
    return kind == MC_WORK_ATTENTION || kind == MC_WORK_ATTENTION_BACKWARD;
}

/* The amount of work of `run`, in the unit of the work's kind. */
static double amount_of(const mc_work *w)
{
    double size = (double)mc_dtype_size(w->dtype), elements = (double)w->a * (double)w->b,
           scores = (double)w->a * (double)w->a * (double)w->c / (w->causal ? 2 : 1);
    switch (w->kind) {
    case MC_WORK_PRODUCT_NT:
    case MC_WORK_PRODUCT_NN:
    case MC_WORK_PRODUCT_TN:
    case MC_WORK_PRODUCT8_FAST:
    case MC_WORK_PRODUCT8: return 2 * elements * (double)w->c;
    case MC_WORK_ATTENTION: return 4 * scores * (double)w->b;
    case MC_WORK_ATTENTION_BACKWARD: return 10 * scores * (double)w->b;
    case MC_WORK_NORM: return 4 * size * elements;
    case MC_WORK_NORM_BACKWARD: return (w->dropout ? 5 : 4) * size * elements;
    case MC_WORK_CROSS_ENTROPY:
    case MC_WORK_COPY: return 2 * size * elements;
    case MC_WORK_ADAM: return (w->dtype == MC_F32 ? 28 : 28 + size) * elements;
    case MC_WORK_STATS: return mc_dtype_size(w->dtype) * elements;
    default: return size * elements;
    }
}

/* Halves the rows until `elements` is at most `most`: the rate stays the same. */
static int64_t fewer(int64_t rows, double elements, double most)
{
    while (rows > 1 && elements > most) {
        elements *= (double)((rows + 1) / 2) / (double)rows;
        rows = (rows + 1) / 2;
    }
    return rows;
}

/* Halves the tokens while there are many, then the largest size. */
static void clip_product(mc_work *w, int64_t *tokens, double most)
{
    while ((double)w->a * (double)w->b * (double)w->c > most) {
        int64_t *largest = w->a > w->b ? &w->a : &w->b;
        if (w->c > *largest) largest = &w->c;
        if (*tokens >= 1024) largest = tokens;
        *largest = (*largest + 1) / 2;
    }
}

mc_work mc_work_clip(const mc_device *device, mc_work w)
{
    /* a product's multiplications, attention's scores, a matrix's elements that take
     * milliseconds */
    double products = device->is_host ? 1e9 : 2e11, scores = device->is_host ? 16e6 : 4e8,
           elements = device->is_host ? 4e6 : 1e8;
    double a = (double)w.a, c = (double)w.c;
    if (is_product(w.kind)) {
        clip_product(&w, w.kind == MC_WORK_PRODUCT_TN ? &w.c : &w.a, products);
    } else if (is_attention(w.kind)) {
        w.c = fewer(w.c, a * a * c, scores);
        if (w.c > MOST_HEADS * MOST_SEQUENCES) w.c = MOST_HEADS * MOST_SEQUENCES;
        if (w.c > MOST_HEADS) w.c = w.c / MOST_HEADS * MOST_HEADS;
    } else {
        while (w.a == 1 && (w.b & (w.b - 1))) w.b += w.b & -w.b; /* arrays: a power of two */
        w.a = fewer(w.a, a * (double)w.b, elements);
        w.b = fewer(w.b, (double)w.a * (double)w.b, elements);
    }
    w.amount = amount_of(&w);
    return w;
}

/* Elements of the kernel's matrix i; 0: it has no such matrix. */
static int64_t elements_of(const mc_work *w, int i)
{
    int64_t rows = w->a * w->b;
    switch (w->kind) {
    case MC_WORK_PRODUCT_NT:
    case MC_WORK_PRODUCT_NN:
    case MC_WORK_PRODUCT_TN:
    case MC_WORK_PRODUCT8_FAST:
    case MC_WORK_PRODUCT8: return i == 0 ? w->a * w->c : i == 1 ? w->b * w->c : i == 2 ? rows : 0;
    case MC_WORK_ATTENTION:
    case MC_WORK_ATTENTION_BACKWARD:
        return i < 2 ? 3 * rows * w->c : i < 4 ? rows * w->c : i == 4 ? w->a * w->c : 0;
    case MC_WORK_NORM:
    case MC_WORK_NORM_BACKWARD: return i < 4 ? rows : w->a;
    case MC_WORK_ADAM: return i < 5 ? rows : 0;
    default: return i == 0 ? rows : i == 1 ? rows + 64 : 0;
    }
}

/* Elements of each vector beside a matrix, such as a bias. */
static int64_t vector_elements(const mc_work *w)
{
    bool flat = w->kind == MC_WORK_COPY || w->kind == MC_WORK_ADAM || w->kind == MC_WORK_STATS;
    return flat || w->b < 64 ? 64 : w->b;
}

static int64_t index_elements(const mc_work *w)
{
    return w->kind == MC_WORK_CROSS_ENTROPY ? w->a : 2 * MOST_SEQUENCES + 1;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void probe_release(probe *p)
{
    for (int i = 0; i < MATRICES; i++) p->d->free(p->d, p->matrix[i], p->bytes[i]);
    p->d->free(p->d, p->index, p->index_bytes);
    p->d->free(p->d, p->vector, p->vector_bytes);
    p->d->free(p->d, p->update, sizeof *p->update);
}

static void fill_lengths(probe *p)
{
    int32_t longest = (int32_t)p->work.a;
    int count = (int)(p->work.c / heads_of(&p->work));
    for (int i = 0; i < count; i++) {
        p->length[i] = longest;
        p->offset[i + 1] = p->offset[i] + longest;
    }
    int64_t total = p->offset[count];
    p->lengths = (mc_lengths){count, p->length, p->offset, total, total, longest};
    size_t lengths = (size_t)count * sizeof *p->length;
    p->d->copy_in(p->d, p->index, p->length, lengths);
    p->d->copy_in(p->d, p->index + count, p->offset, lengths + sizeof *p->offset);
}

/* Indices are 0; attention's are the lengths and offsets of its sequences. */
static mc_status probe_fill(probe *p)
{
    const mc_update update = {.lr = 1e-9, .step = 1, .gradient_scale = 1};
    const mc_kernels *k = p->d->kernels;
    mc_status status = k->zero(p->d, p->vector, p->vector_bytes);
    if (!status) status = k->zero(p->d, p->index, p->index_bytes);
    for (int i = 0; i < MATRICES && !status; i++) {
        /* not zeros: processors are faster with them */
        mc_fill fill = {MC_FILL_UNIFORM, 0.25f, 1, (uint64_t)i};
        size_t count = p->bytes[i] / mc_dtype_size(p->work.dtype);
        status = k->fill(p->d, fill, 0, (int64_t)count, matrix_of(p, i, 0));
    }
    if (!status && is_attention(p->work.kind)) fill_lengths(p);
    if (!status) p->d->copy_in(p->d, p->update, &update, sizeof update);
    return status;
}

static mc_status probe_init(probe *p, mc_device *d, const mc_work *work)
{
    *p = (probe){.d = d, .work = *work};
    p->index_bytes = (size_t)index_elements(work) * sizeof *p->index;
    p->vector_bytes = 4 * (size_t)vector_elements(work) * sizeof *p->vector;
    bool good = (p->index = d->alloc(d, p->index_bytes)) &&
                (p->vector = d->alloc(d, p->vector_bytes)) &&
                (p->update = d->alloc(d, sizeof *p->update));
    for (int i = 0; i < MATRICES && good; i++) {
        p->bytes[i] = (size_t)elements_of(work, i) * sizeof(float);
        p->matrix[i] = d->alloc(d, p->bytes[i]);
        good = p->matrix[i];
    }
    return good ? probe_fill(p) : MC_ERR_NOMEM;
}

/* ---- time ------------------------------------------------------------------------------------ */

static double clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds per run, from `repeat` runs in a row. Waits for a GPU before and after. */
static mc_status time_runs(const probe *p, int repeat, double *seconds)
{
    char byte[sizeof(float)];
    if (!p->d->copy_out(p->d, byte, p->vector, sizeof byte)) return MC_ERR_DEVICE;
    double start = clock_now();
    mc_status status = MC_OK;
    for (int i = 0; i < repeat && !status; i++) status = run(p);
    if (!status && !p->d->copy_out(p->d, byte, p->vector, sizeof byte)) status = MC_ERR_DEVICE;
    *seconds = (clock_now() - start) / repeat;
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of a few runs, after warm-up. */
static mc_status median_seconds(const probe *p, double *median)
{
    static const double enough = 0.05, shortest = 20e-6;
    double seconds[MOST_RUNS], spent = 0, first;
    int runs = 0;
    mc_status status = time_runs(p, 1, &first);
    if (!status) status = time_runs(p, 1, &first);
    /* long enough for the clock's resolution */
    int repeat = p->d->is_host ? 1 + (int)(first < shortest ? shortest / (first + 1e-7) : 0) : 10;
    while (!status && runs < MOST_RUNS && (runs < LEAST_RUNS || spent < enough)) {
        status = time_runs(p, repeat, &seconds[runs]);
        spent += seconds[runs++] * repeat;
    }
    if (status) return status;
    qsort(seconds, (size_t)runs, sizeof *seconds, by_value);
    *median = seconds[runs / 2];
    return MC_OK;
}

mc_status mc_rates_measure(mc_device *device, const mc_work *work, double *rate)
{
    probe p;
    double seconds = 0;
    size_t peak = device->memory.peak;
    mc_status status = probe_init(&p, device, work);
    if (!status) status = median_seconds(&p, &seconds);
    probe_release(&p);
    device->memory.peak = peak; /* the peak of training */
    if (!status) *rate = amount_of(work) / (seconds > 1e-9 ? seconds : 1e-9);
    return status;
}
