#include "core/checkpoint/weights_fill_internal.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <string.h>
#include <unistd.h>
#include "core/base/context_internal.h"
#include "core/base/memory_internal.h"
#include "core/checkpoint/tensor_file_internal.h"
#include "core/device/device_internal.h"
#include "core/device/plan_internal.h"
#include "core/nn/module_internal.h"

enum {
    PIECE = 1 << 19, /* elements that are read at a time, or one row of a transposed matrix */
    BLOCK = 1 << 14, /* elements that are converted at a time, on one thread */
    LINE = 64,       /* bytes of a row that are written together */
    RUN = 256,       /* neighbours in the file of a matrix that is transposed */
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
    mc_bytes_place *bytes; /* of each source */
    uint8_t *not_finite;
    piece *pieces;
    size_t count, capacity, next;
    size_t most;   /* bytes of a piece that does not lie on the host */
    mc_error *err; /* the first of any thread */
    int failed;
} fill;

typedef struct worker {
    fill *f;
    mc_error err;
    void *block; /* of elements as the file has them */
    mc_lane *lane;
    mc_fence *fence[BUFFERS];
    void *buffer[BUFFERS];
    int turn;
} worker;

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool is_transposed(const mc_weight_source *s)
{
    return s->place.transpose && s->to->shape.ndim == 2;
}

static bool add_pieces(fill *f, size_t source, const mc_parameter_place *to)
{
    const mc_weight_source *s = &f->sources[source];
    int64_t unit = is_transposed(s) ? s->to->shape.dim[1] : 1, end = to->first + to->count;
    int64_t step = PIECE / unit > 1 ? PIECE / unit * unit : unit;
    size_t size = mc_dtype_size(to->dtype);
    for (int64_t at = to->first, next; at < end; at = next) {
        next = at / unit * unit + step < end ? at / unit * unit + step : end;
        if (!mc_grow(&f->pieces, &f->capacity, f->count, sizeof *f->pieces)) return false;
        piece *p = &f->pieces[f->count++];
        *p = (piece){.source = source, .to = *to};
        p->to.data = (char *)to->data + (size_t)(at - to->first) * size;
        p->to.first = at;
        p->to.count = next - at;
        if (!to->on_host && (size_t)p->to.count * size > f->most)
            f->most = (size_t)p->to.count * size;
    }
    return true;
}

static mc_status list_pieces(fill *f, const mc_tensor_file *file, size_t count)
{
    f->bytes = mc_calloc(count + 1, sizeof *f->bytes);
    if (!f->bytes) return mc_fail_nomem(f->ctx, "reading weights");
    for (size_t i = 0; i < count; i++) {
        mc_parameter_place places[MC_PARAMETER_PLACES];
        int n = 0;
        if (!f->sources[i].entry) continue;
        f->bytes[i] = mc_tensor_file_bytes(file, f->sources[i].entry);
        mc_status status = mc_parameter_places(f->sources[i].to, places, &n);
        if (status) return status;
        for (int k = 0; k < n; k++)
            if (!add_pieces(f, i, &places[k])) return mc_fail_nomem(f->ctx, "reading weights");
    }
    return MC_OK;
}

/* ---- elements -------------------------------------------------------------------------------- */

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

static void convert(mc_device *crew, const void *from, mc_dtype is, int64_t n, mc_dtype dtype,
                    void *to)
{
    mc_matrix x = {(void *)(uintptr_t)from, is, n};
    if (is == dtype)
        memcpy(to, from, (size_t)n * mc_dtype_size(is));
    else
        crew->kernels->scale(crew, n, x, 1, (mc_matrix){to, dtype, n}, false);
}

/* n <= RUN elements of a tensor as `dtype`; returns whether they are finite. `crew` may be NULL for
 * f32. */
static bool read_run(mc_error *err, mc_device *crew, const mc_tensor_entry *entry, int64_t first,
                     int64_t n, mc_dtype dtype, void *to)
{
    float values[RUN];
    if (entry->dtype == dtype) {
        if (mc_tensor_copy_bytes(err, entry, first, n, to)) return true;
        return is_finite(to, dtype, n);
    }
    if (mc_tensor_copy_f32(err, entry, first, n, values)) return true;
    convert(crew, values, MC_F32, n, dtype, to);
    return is_finite(values, MC_F32, n);
}

/* Columns of a tile become parts of rows: out[i] = column i's element number `row`. */
#define TURN(type)                  \
    for (int64_t i = 0; i < n; i++) \
    memcpy((type *)out + i, tile + (size_t)i * stride + (size_t)row * sizeof(type), sizeof(type))
static void turn(const char *tile, size_t stride, int64_t row, int64_t n, mc_dtype dtype, void *out)
{
    if (dtype == MC_F32)
        TURN(uint32_t);
    else
        TURN(uint16_t);
}
#undef TURN

/* Elements of a transposed matrix: `out` gets to->count from to->first on, whole rows or not.
 * The tensor has `width` columns, of which `first` is our row 0. Returns whether they are finite. */
static bool read_transposed(mc_error *err, mc_device *crew, const mc_tensor_entry *entry,
                            int64_t first, int64_t width, int64_t columns,
                            const mc_parameter_place *to, char *out)
{
    char tile[LINE / 2][RUN * 2 + LINE]; /* a band of columns; or half as many, twice as wide */
    size_t size = mc_dtype_size(to->dtype), stride = size == 2 ? sizeof *tile : 2 * sizeof *tile;
    int64_t last = to->first + to->count, end = (last - 1) / columns + 1, line = LINE / (int)size;
    bool finite = true;
    for (int64_t row = to->first / columns; row < end; row += RUN) {
        int64_t rows = end - row < RUN ? end - row : RUN;
        for (int64_t column = 0; column < columns; column += line) {
            int64_t band = columns - column < line ? columns - column : line;
            for (int64_t i = 0; i < band && !err->status; i++)
                finite &= read_run(err, crew, entry, (column + i) * width + first + row, rows,
                                   to->dtype, *tile + (size_t)i * stride);
            if (err->status) return true;
            for (int64_t k = 0; k < rows; k++) {
                int64_t at = (row + k) * columns + column; /* of the band; the ends may be cut */
                int64_t from = at < to->first ? to->first : at;
                int64_t until = at + band < last ? at + band : last;
                if (from < until)
                    turn(*tile + (size_t)(from - at) * stride, stride, k, until - from, to->dtype,
                         out + (size_t)(from - to->first) * size);
            }
        }
    }
    return finite;
}

mc_status mc_weight_read(mc_error *err, const mc_tensor_entry *entry, mc_weight_place place,
                         mc_shape shape, float *values)
{
    int64_t count = mc_shape_count(shape), rows = shape.dim[0];
    mc_parameter_place to = {.dtype = MC_F32, .count = count};
    if (!place.transpose || shape.ndim != 2)
        return mc_tensor_copy_f32(err, entry, place.part * count, count, values);
    if (count)
        read_transposed(err, NULL, entry, place.part * rows, place.parts * rows, shape.dim[1], &to,
                        (char *)values);
    return err->status;
}

/* ---- one piece ------------------------------------------------------------------------------- */

/* n elements of a source as the file has them: read, which costs less than mapped pages do, where
 * they lie one behind the other. */
static void read_bytes(worker *w, size_t source, int64_t first, int64_t n, void *to)
{
    const mc_tensor_entry *entry = w->f->sources[source].entry;
    const mc_bytes_place *from = &w->f->bytes[source];
    size_t size = entry->size / (size_t)entry->count, want = (size_t)n * size, have = 0;
    if (from->fd < 0) {
        mc_tensor_copy_bytes(&w->err, entry, first, n, to);
        return;
    }
    while (have < want) {
        off_t at = (off_t)(from->offset + (size_t)first * size + have);
        ssize_t got = pread(from->fd, (char *)to + have, want - have, at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            mc_error_set(&w->err, MC_ERR_IO, "%s: tensor \"%.200s\": %s", entry->file, entry->name,
                         got ? strerror(errno) : "the file has become shorter");
            return;
        }
        have += (size_t)got;
    }
}

static bool fill_straight(worker *w, const piece *p, char *to)
{
    const mc_weight_source *s = &w->f->sources[p->source];
    mc_dtype is = s->entry->dtype;
    int64_t from = s->place.part * mc_shape_count(s->to->shape) + p->to.first;
    size_t size = mc_dtype_size(p->to.dtype);
    bool finite = true, known = mc_dtype_is_float(is);
    if (is == p->to.dtype) {
        read_bytes(w, p->source, from, p->to.count, to);
        return w->err.status || is_finite(to, is, p->to.count);
    }
    for (int64_t at = 0; at < p->to.count && !w->err.status; at += BLOCK) {
        int64_t n = p->to.count - at < BLOCK ? p->to.count - at : BLOCK;
        if (known)
            read_bytes(w, p->source, from + at, n, w->block);
        else
            mc_tensor_copy_f32(&w->err, s->entry, from + at, n, w->block);
        if (w->err.status) break;
        finite &= is_finite(w->block, known ? is : MC_F32, n);
        convert(w->f->crew, w->block, known ? is : MC_F32, n, p->to.dtype, to + (size_t)at * size);
    }
    return finite;
}

static bool fill_transposed(worker *w, const piece *p, char *to)
{
    const mc_weight_source *s = &w->f->sources[p->source];
    int64_t rows = s->to->shape.dim[0], columns = s->to->shape.dim[1];
    return read_transposed(&w->err, w->f->crew, s->entry, s->place.part * rows,
                           s->place.parts * rows, columns, &p->to, to);
}

static void device_failed(worker *w, const char *complaint)
{
    if (complaint) mc_error_set(&w->err, MC_ERR_DEVICE, "reading weights: %s", complaint);
}

static void fill_piece(worker *w, const piece *p)
{
    const mc_weight_source *s = &w->f->sources[p->source];
    mc_device *d = w->f->ctx->device;
    int turn = w->turn;
    if (!p->to.on_host) device_failed(w, d->lanes->wait(d, w->fence[turn]));
    if (w->err.status) return;
    char *to = p->to.on_host ? p->to.data : w->buffer[turn];
    bool finite = is_transposed(s) ? fill_transposed(w, p, to) : fill_straight(w, p, to);
    if (!finite) __atomic_store_n(&w->f->not_finite[p->source], 1, __ATOMIC_RELAXED);
    if (p->to.on_host || w->err.status) return;
    device_failed(w, d->lanes->copy_in(d, w->lane, p->to.data, to,
                                       (size_t)p->to.count * mc_dtype_size(p->to.dtype)));
    device_failed(w, d->lanes->fence_set(d, w->fence[turn], w->lane));
    w->turn = (turn + 1) % BUFFERS;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* `before`: what the device has to do first; NULL where parameters lie on the host. */
static bool worker_open(worker *w, mc_fence *before)
{
    mc_device *d = w->f->ctx->device;
    if (!(w->block = mc_malloc(BLOCK * sizeof(float)))) return false;
    if (!before) return true;
    d->lanes->attach(d);
    device_failed(w, d->lanes->lane_new(d, &w->lane));
    for (int i = 0; i < BUFFERS && !w->err.status; i++) {
        device_failed(w, d->lanes->fence_new(d, &w->fence[i]));
        if (!(w->buffer[i] = d->host_alloc(d, w->f->most))) return false;
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
        d->host_free(d, w->buffer[i], w->f->most);
    }
    mc_free(w->block);
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

mc_status mc_weights_fill(mc_context *ctx, const mc_tensor_file *file,
                          const mc_weight_source *sources, size_t count, uint8_t *not_finite)
{
    mc_device *d = ctx->device;
    mc_error err = {0};
    fill f = {.ctx = ctx, .sources = sources, .not_finite = not_finite, .err = &err};
    if (mc_device_is_plan(d)) return mc_error_status(ctx);
    f.crew = d->is_host ? d : mc_device_open(ctx, "cpu");
    if (f.crew && list_pieces(&f, file, count) == MC_OK && f.count) run_threads(&f);
    mc_error_move(&ctx->error, &err);
    if (f.crew != d) mc_device_close(f.crew);
    mc_free(f.bytes);
    mc_free(f.pieces);
    return mc_error_status(ctx);
}
