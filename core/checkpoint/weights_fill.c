#include "core/checkpoint/weights_fill_internal.h"

#include <math.h>
#include <omp.h>
#include <string.h>
#include "core/base/context_internal.h"
#include "core/base/memory_internal.h"
#include "core/checkpoint/tensor_file_internal.h"
#include "core/device/device_internal.h"
#include "core/device/plan_internal.h"
#include "core/nn/module_internal.h"

enum {
    PIECE = 1 << 19, /* elements that are read at a time, or one row of a transposed matrix */
    BLOCK = 1 << 12, /* elements that are converted at a time */
    BUFFERS = 2,
    THREADS = 16 /* a bus is full before */
};

/* What one thread does at a time: a run of a parameter's elements. */
typedef struct piece {
    size_t source;
    mc_parameter_place to; /* of just these elements */
} piece;

typedef struct fill {
    mc_context *ctx;
    mc_device *crew; /* its kernels convert, on any thread */
    const mc_weight_source *sources;
    uint8_t *not_finite;
    piece *pieces;
    size_t count, capacity, next;
    int64_t most;  /* elements of a piece */
    mc_error *err; /* the first of any thread */
    int failed;
} fill;

typedef struct worker {
    fill *f;
    mc_error err;
    float *values; /* (f->most) of transposed matrices */
    mc_lane *lane;
    mc_fence *fence[BUFFERS];
    void *buffer[BUFFERS];
    int turn;
} worker;

/* ---- pieces ---------------------------------------------------------------------------------- */

/* The row of a transposed matrix, which is not read in parts; else 1. */
static int64_t unit_of(const mc_weight_source *s)
{
    return s->place.transpose && s->to->shape.ndim == 2 ? s->to->shape.dim[1] : 1;
}

static bool add_pieces(fill *f, size_t source, const mc_parameter_place *to)
{
    int64_t unit = unit_of(&f->sources[source]), end = to->first + to->count;
    int64_t step = PIECE / unit > 1 ? PIECE / unit * unit : unit;
    for (int64_t at = to->first, next; at < end; at = next) {
        next = (at / unit * unit) + step < end ? (at / unit * unit) + step : end;
        if (!mc_grow(&f->pieces, &f->capacity, f->count, sizeof *f->pieces)) return false;
        piece *p = &f->pieces[f->count++];
        *p = (piece){.source = source, .to = *to};
        p->to.data = (char *)to->data + (size_t)(at - to->first) * mc_dtype_size(to->dtype);
        p->to.first = at;
        p->to.count = next - at;
    }
    if (step > f->most) f->most = step;
    return true;
}

static mc_status list_pieces(fill *f, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        mc_parameter_place places[MC_PARAMETER_PLACES];
        int n = 0;
        if (!f->sources[i].entry) continue;
        mc_status status = mc_parameter_places(f->sources[i].to, places, &n);
        if (status) return status;
        for (int k = 0; k < n; k++)
            if (!add_pieces(f, i, &places[k])) return mc_fail_nomem(f->ctx, "reading weights");
    }
    return MC_OK;
}

/* ---- one piece ------------------------------------------------------------------------------- */

static bool is_finite(const void *data, mc_dtype dtype, int64_t n)
{
    int64_t bad = 0;
    if (dtype == MC_F32) {
        const float *x = data;
        for (int64_t i = 0; i < n; i++) bad += !isfinite(x[i]);
    } else {
        const uint16_t *x = data, top = dtype == MC_F16 ? 0x7c00 : 0x7f80; /* of the exponent */
        for (int64_t i = 0; i < n; i++) bad += (x[i] & top) == top;
    }
    return bad == 0;
}

static void convert(const fill *f, const float *from, int64_t n, mc_dtype dtype, void *to)
{
    if (dtype == MC_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else
        f->crew->kernels->scale(f->crew, n, (mc_matrix){(void *)(uintptr_t)from, MC_F32, n}, 1,
                                (mc_matrix){to, dtype, n}, false);
}

/* values (rows, columns) = the transpose of columns first .. first + rows of a tensor with `width`
 * columns. */
static mc_status read_transposed(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                                 int64_t rows, int64_t columns, int64_t width, float *values)
{
    enum { BAND = 16, ROWS = 256 };
    float tile[BAND][ROWS];
    for (int64_t column = 0; column < columns; column += BAND)
        for (int64_t row = 0; row < rows; row += ROWS) {
            int64_t band = columns - column < BAND ? columns - column : BAND;
            int64_t n = rows - row < ROWS ? rows - row : ROWS;
            for (int64_t i = 0; i < band; i++) {
                int64_t at = (column + i) * width + first + row;
                mc_status status = mc_tensor_copy_f32(err, entry, at, n, tile[i]);
                if (status) return status;
            }
            for (int64_t k = 0; k < n; k++)
                for (int64_t i = 0; i < band; i++)
                    values[(row + k) * columns + column + i] = tile[i][k];
        }
    return MC_OK;
}

mc_status mc_weight_read(mc_error *err, const mc_tensor_entry *entry, mc_weight_place place,
                         mc_shape shape, float *values)
{
    int64_t count = mc_shape_count(shape), rows = shape.dim[0];
    if (!place.transpose || shape.ndim != 2)
        return mc_tensor_copy_f32(err, entry, place.part * count, count, values);
    return read_transposed(err, entry, place.part * rows, rows, shape.dim[1], place.parts * rows,
                           values);
}

/* By way of whole rows in f32. */
static bool fill_transposed(worker *w, const piece *p, const mc_weight_source *s, void *to)
{
    int64_t unit = unit_of(s), first = p->to.first / unit;
    int64_t rows = (p->to.first + p->to.count - 1) / unit + 1 - first, all = s->to->shape.dim[0];
    if (read_transposed(&w->err, s->entry, s->place.part * all + first, rows, unit,
                        s->place.parts * all, w->values))
        return true;
    const float *values = w->values + (p->to.first - first * unit);
    bool finite = is_finite(values, MC_F32, p->to.count);
    for (int64_t at = 0; at < p->to.count; at += BLOCK) {
        int64_t n = p->to.count - at < BLOCK ? p->to.count - at : BLOCK;
        convert(w->f, values + at, n, p->to.dtype,
                (char *)to + (size_t)at * mc_dtype_size(p->to.dtype));
    }
    return finite;
}

static bool fill_straight(worker *w, const piece *p, const mc_weight_source *s, void *to)
{
    float values[BLOCK];
    bool finite = true, same = s->entry->dtype == p->to.dtype;
    int64_t from = s->place.part * mc_shape_count(s->to->shape) + p->to.first;
    size_t size = mc_dtype_size(p->to.dtype);
    for (int64_t at = 0; at < p->to.count && !w->err.status; at += BLOCK) {
        int64_t n = p->to.count - at < BLOCK ? p->to.count - at : BLOCK;
        void *here = (char *)to + (size_t)at * size;
        if (same) {
            mc_tensor_copy_bytes(&w->err, s->entry, from + at, n, here);
            finite &= is_finite(here, p->to.dtype, n);
        } else if (mc_tensor_copy_f32(&w->err, s->entry, from + at, n, values) == MC_OK) {
            finite &= is_finite(values, MC_F32, n);
            convert(w->f, values, n, p->to.dtype, here);
        }
    }
    return finite;
}

static void device_failed(worker *w, const char *complaint)
{
    if (complaint) mc_error_set(&w->err, MC_ERR_DEVICE, "reading weights: %s", complaint);
}

static void fill_piece(worker *w, const piece *p)
{
    const mc_weight_source *s = &w->f->sources[p->source];
    const mc_device *d = w->f->ctx->device;
    bool straight = !s->place.transpose || s->to->shape.ndim != 2;
    int turn = w->turn;
    if (!p->to.on_host) device_failed(w, d->lanes->wait(w->f->ctx->device, w->fence[turn]));
    if (w->err.status) return;
    void *to = p->to.on_host ? p->to.data : w->buffer[turn];
    bool finite = straight ? fill_straight(w, p, s, to) : fill_transposed(w, p, s, to);
    if (!finite) __atomic_store_n(&w->f->not_finite[p->source], 1, __ATOMIC_RELAXED);
    if (p->to.on_host || w->err.status) return;
    device_failed(w, d->lanes->copy_in(w->f->ctx->device, w->lane, p->to.data, to,
                                       (size_t)p->to.count * mc_dtype_size(p->to.dtype)));
    device_failed(w, d->lanes->fence_set(w->f->ctx->device, w->fence[turn], w->lane));
    w->turn = (turn + 1) % BUFFERS;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* `before`: what the device has to do first; NULL where parameters lie on the host. */
static bool worker_open(worker *w, mc_fence *before)
{
    mc_device *d = w->f->ctx->device;
    size_t bytes = (size_t)w->f->most * sizeof(float);
    if (!(w->values = mc_malloc(bytes))) return false;
    if (!before) return true;
    d->lanes->attach(d);
    device_failed(w, d->lanes->lane_new(d, &w->lane));
    for (int i = 0; i < BUFFERS && !w->err.status; i++) {
        device_failed(w, d->lanes->fence_new(d, &w->fence[i]));
        if (!(w->buffer[i] = d->host_alloc(d, bytes))) return false;
    }
    if (!w->err.status) device_failed(w, d->lanes->after(d, w->lane, before));
    return true;
}

/* Waits for its copies. */
static void worker_close(worker *w)
{
    mc_device *d = w->f->ctx->device;
    d->lanes->lane_free(d, w->lane);
    for (int i = 0; i < BUFFERS; i++) {
        d->lanes->fence_free(d, w->fence[i]);
        d->host_free(d, w->buffer[i], (size_t)w->f->most * sizeof(float));
    }
    mc_free(w->values);
}

static void work(fill *f, mc_fence *before)
{
    worker w = {.f = f};
    if (!worker_open(&w, before))
        mc_error_set(&w.err, MC_ERR_NOMEM, "out of memory for reading weights");
    while (!w.err.status && !__atomic_load_n(&f->failed, __ATOMIC_RELAXED)) {
        size_t at = __atomic_fetch_add(&f->next, 1, __ATOMIC_RELAXED);
        if (at >= f->count) break;
        fill_piece(&w, &f->pieces[at]);
    }
    worker_close(&w);
    if (!w.err.status) return;
    __atomic_store_n(&f->failed, 1, __ATOMIC_RELAXED);
#pragma omp critical(mc_weights_fill)
    mc_error_move(f->err, &w.err);
}

static void run_threads(fill *f)
{
    mc_device *d = f->ctx->device;
    mc_fence *before = NULL;
    int threads = omp_get_max_threads();
    if (threads > THREADS) threads = THREADS;
    if ((size_t)threads > f->count) threads = (int)f->count;
    if (!d->is_host) {
        const char *complaint = d->lanes->fence_new(d, &before);
        if (!complaint) complaint = d->lanes->fence_set(d, before, NULL);
        if (complaint) mc_fail(f->ctx, MC_ERR_DEVICE, "reading weights: %s", complaint);
    }
    if (!mc_failed(f->ctx)) {
#pragma omp parallel num_threads(threads)
        work(f, before);
    }
    if (before) d->lanes->fence_free(d, before);
}

mc_status mc_weights_fill(mc_context *ctx, const mc_weight_source *sources, size_t count,
                          uint8_t *not_finite)
{
    mc_device *d = ctx->device;
    mc_error err = {0};
    fill f = {.ctx = ctx, .sources = sources, .not_finite = not_finite, .most = 1, .err = &err};
    if (mc_device_is_plan(d)) return mc_error_status(ctx);
    f.crew = d->is_host ? d : mc_device_open(ctx, "cpu");
    if (f.crew && list_pieces(&f, count) == MC_OK && f.count) run_threads(&f);
    mc_error_move(&ctx->error, &err);
    if (f.crew != d) mc_device_close(f.crew);
    mc_free(f.pieces);
    return mc_error_status(ctx);
}
