#include "core/checkpoint/weight_map_internal.h"

#include <omp.h>
#include <string.h>
#include "core/base/context_internal.h"
#include "core/base/memory_internal.h"
#include "core/formats/tensor_check_internal.h"
#include "core/device/device_internal.h"
#include "core/device/plan_internal.h"
#include "core/nn/module_internal.h"

enum {
    PIECE = 1 << 19,   /* elements per copy to their place */
    BLOCK = 1 << 14,   /* elements per conversion, on one thread */
    MATRIX = 48 << 20, /* bytes of a matrix per transposition, or one row of ours if larger */
    SHORT = 32 << 10,  /* bytes; shorter runs are copied from mapped pages */
    LINE = 64,         /* bytes of a row written together */
    BUFFERS = 2,
    BUFFER = PIECE * 4, /* bytes */
    LOOK = 256 << 10,   /* bytes per read, small enough to be in a cache for the checksum */
    THREADS = 16        /* fewer saturate a bus, and their memory stays below a GiB */
};

/* A unit of work of one thread: a run of a parameter's elements, or of a matrix. */
typedef struct piece {
    size_t source;
    mc_parameter_place to; /* of these elements only */
    /* The bytes of it read so far, if the file has checksums: one run, unless `scattered`. */
    mc_checked_run read;
    bool scattered;
} piece;

typedef struct fill {
    mc_context *ctx;
    mc_device *crew; /* converts with its kernels, on any thread */
    const mc_weight_source *sources;
    mc_bytes_place *bytes; /* of each source */
    uint8_t *not_finite;
    piece *pieces;
    size_t count, capacity, next;
    const mc_crc32_table *crc; /* NULL: the file has no checksums */
    size_t matrix;             /* bytes of a transposed piece's whole rows */
    mc_error *err;             /* the first error of any thread */
    int failed;
} fill;

typedef struct worker {
    fill *f;
    mc_error err;
    void *block;  /* (BLOCK): elements in the file's dtype */
    char *matrix; /* (f->matrix bytes): columns, before the transposition */
    mc_lane *lane;
    mc_fence *fence[BUFFERS];
    void *buffer[BUFFERS];
    int turn;
    piece *now;       /* the current piece */
    int bits;         /* of each number in the current run */
    uint32_t largest; /* of the numbers' bits without the sign */
} worker;

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool is_transposed(const mc_weight_source *s)
{
    return s->place.transpose && s->to->shape.ndim == 2;
}

/* The number of rows, whole or not, that a piece of a transposed matrix touches. */
static int64_t rows_of(const mc_parameter_place *to, int64_t columns, int64_t *first)
{
    *first = to->first / columns;
    return (to->first + to->count - 1) / columns + 1 - *first;
}

static void add_piece(fill *f, size_t source, const mc_parameter_place *to, int64_t first,
                      int64_t end)
{
    const mc_weight_source *s = &f->sources[source];
    size_t size = mc_dtype_size(to->dtype);
    piece *p = &f->pieces[f->count++];
    *p = (piece){.source = source, .to = *to};
    p->to.data = (char *)to->data + (size_t)(first - to->first) * size;
    p->to.first = first;
    p->to.count = end - first;
    if (!is_transposed(s)) return;
    int64_t row, columns = s->to->shape.dim[1];
    size_t matrix = (size_t)(rows_of(&p->to, columns, &row) * columns) * size;
    if (matrix > f->matrix) f->matrix = matrix;
}

static bool add_pieces(fill *f, size_t source, const mc_parameter_place *to)
{
    const mc_weight_source *s = &f->sources[source];
    int64_t end = to->first + to->count, unit = 1, step = PIECE;
    if (is_transposed(s)) {
        int64_t most = MATRIX / (int64_t)mc_dtype_size(to->dtype);
        unit = s->to->shape.dim[1];
        step = most / unit > 1 ? most / unit * unit : unit;
    }
    for (int64_t at = to->first, next; at < end; at = next) {
        next = at / unit * unit + step < end ? at / unit * unit + step : end;
        if (!mc_grow(&f->pieces, &f->capacity, f->count, sizeof *f->pieces)) return false;
        add_piece(f, source, to, at, next);
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

/* The bits of infinity: those of finite numbers, without the sign, are smaller. */
static uint32_t infinity_of(mc_dtype dtype)
{
    return dtype == MC_F32 ? 0x7f800000 : dtype == MC_F16 ? 0x7c00 : 0x7f80;
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

/* ---- one piece ------------------------------------------------------------------------------- */

/* Adds bytes that were read for the current piece to its run, with checksum and maximum. */
static void look_at(worker *w, const uint8_t *data, const void *bytes, size_t size)
{
    mc_checked_run *run = &w->now->read;
    if (!run->size) run->data = data;
    if (data != run->data + run->size) w->now->scattered = true;
    if (w->f->crc && !w->now->scattered)
        run->crc = mc_crc32_largest(w->f->crc, run->crc, bytes, size, w->bits, &w->largest);
    else
        mc_largest_bits(bytes, size, w->bits, &w->largest);
    run->size += size;
}

/* Reads n elements of a source in the file's dtype. Long runs use read, which is cheaper than
 * mapping their pages. */
static void read_bytes(worker *w, size_t source, int64_t first, int64_t n, void *to)
{
    const mc_tensor_entry *entry = w->f->sources[source].entry;
    const mc_bytes_place *from = &w->f->bytes[source];
    size_t size = entry->size / (size_t)entry->count, want = (size_t)n * size, have = 0;
    const uint8_t *data = (const uint8_t *)entry->data + (size_t)first * size;
    if (from->fd < 0 || want < SHORT) {
        mc_tensor_copy_bytes(&w->err, entry, first, n, to);
        if (from->fd < 0) w->now->scattered = true;
        if (!w->err.status) look_at(w, data, to, want);
        return;
    }
    while (have < want) {
        size_t part = want - have < LOOK ? want - have : LOOK;
        uint64_t at = from->offset + (uint64_t)first * size + have;
        if (mc_file_read_at(&w->err, from->fd, entry->file, at, (char *)to + have, part)) {
            mc_error_while(&w->err, "reading the tensor \"%.200s\"", entry->name);
            return;
        }
        look_at(w, data + have, (char *)to + have, part);
        have += part;
    }
}

/* Reads n elements of a source from element `first` of its tensor on, as `dtype`. Returns whether
 * they are finite; true after an error. */
static bool read_run(worker *w, size_t source, int64_t first, int64_t n, mc_dtype dtype, char *to)
{
    const mc_tensor_entry *entry = w->f->sources[source].entry;
    bool known = mc_dtype_is_float(entry->dtype);
    mc_dtype is = known ? entry->dtype : MC_F32;
    w->bits = 8 * (int)mc_dtype_size(is);
    w->largest = 0;
    if (entry->dtype == dtype) {
        read_bytes(w, source, first, n, to);
        return w->err.status || w->largest < infinity_of(is);
    }
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t count = n - at < BLOCK ? n - at : BLOCK;
        if (!known) w->now->scattered = true;
        if (known)
            read_bytes(w, source, first + at, count, w->block);
        else if (!mc_tensor_copy_f32(&w->err, entry, first + at, count, w->block))
            mc_largest_bits(w->block, (size_t)count * sizeof(float), w->bits, &w->largest);
        if (w->err.status) return true;
        convert(w->f->crew, w->block, is, count, dtype, to + (size_t)at * mc_dtype_size(dtype));
    }
    return w->largest < infinity_of(is);
}

/* out[i] = element `row` of column i, for n columns that are `stride` bytes apart. */
#define TURN(type)                  \
    for (int64_t i = 0; i < n; i++) \
    memcpy((type *)out + i, from + (size_t)i * stride + (size_t)row * sizeof(type), sizeof(type))
static void turn_line(const char *from, size_t stride, int64_t row, int64_t n, size_t size,
                      void *out)
{
    if (size == sizeof(uint32_t))
        TURN(uint32_t);
    else
        TURN(uint16_t);
}
#undef TURN

/* Reads the part of each file row (our column) that the piece needs, without transposing. */
static bool read_matrix(worker *w, const piece *p)
{
    const mc_weight_source *s = &w->f->sources[p->source];
    int64_t all = s->to->shape.dim[0], columns = s->to->shape.dim[1], first;
    int64_t rows = rows_of(&p->to, columns, &first), width = all * s->place.parts;
    size_t stride = (size_t)rows * mc_dtype_size(p->to.dtype);
    bool finite = true;
    if (rows == width) return read_run(w, p->source, 0, rows * columns, p->to.dtype, w->matrix);
    for (int64_t i = 0; i < columns && !w->err.status; i++)
        finite &= read_run(w, p->source, i * width + s->place.part * all + first, rows, p->to.dtype,
                           w->matrix + (size_t)i * stride);
    return finite;
}

/* Transposes elements first .. last of our rows out of the piece's matrix; the first and last row
 * may be partial. */
static void turn_rows(const worker *w, const piece *p, int64_t first, int64_t last, char *to)
{
    int64_t columns = w->f->sources[p->source].to->shape.dim[1], top;
    size_t size = mc_dtype_size(p->to.dtype);
    size_t stride = (size_t)rows_of(&p->to, columns, &top) * size;
    int64_t line = LINE / (int64_t)size, end_row = (last - 1) / columns + 1;
    for (int64_t column = 0; column < columns; column += line)
        for (int64_t row = first / columns; row < end_row; row++) {
            int64_t at = row * columns + column, end = (row + 1) * columns;
            int64_t from = at < first ? first : at, until = at + line < end ? at + line : end;
            if (until > last) until = last;
            if (from < until)
                turn_line(w->matrix + (size_t)(column + from - at) * stride, stride, row - top,
                          until - from, size, to + (size_t)(from - first) * size);
        }
}

static void device_failed(worker *w, const char *complaint)
{
    if (complaint) mc_error_set(&w->err, MC_ERR_DEVICE, "reading weights: %s", complaint);
}

/* Copies elements first .. last of a piece to their place, through a buffer if that is on the
 * device. */
static bool fill_part(worker *w, const piece *p, int64_t first, int64_t last)
{
    const mc_weight_source *s = &w->f->sources[p->source];
    mc_device *d = w->f->ctx->device;
    size_t size = mc_dtype_size(p->to.dtype);
    char *place = (char *)p->to.data + (size_t)(first - p->to.first) * size;
    int turn = w->turn;
    bool finite = true;
    if (!p->to.on_host) device_failed(w, d->lanes->wait(d, w->fence[turn]));
    if (w->err.status) return true;
    char *to = p->to.on_host ? place : w->buffer[turn];
    if (is_transposed(s))
        turn_rows(w, p, first, last, to);
    else
        finite = read_run(w, p->source, s->place.part * mc_shape_count(s->to->shape) + first,
                          last - first, p->to.dtype, to);
    if (p->to.on_host || w->err.status) return finite;
    device_failed(w, d->lanes->copy_in(d, w->lane, place, to, (size_t)(last - first) * size));
    device_failed(w, d->lanes->fence_set(d, w->fence[turn], w->lane));
    w->turn = (turn + 1) % BUFFERS;
    return finite;
}

static void fill_piece(worker *w, piece *p)
{
    w->now = p;
    bool finite = !is_transposed(&w->f->sources[p->source]) || read_matrix(w, p);
    int64_t last = p->to.first + p->to.count;
    for (int64_t at = p->to.first, next; at < last && !w->err.status; at = next) {
        next = at + PIECE < last ? at + PIECE : last;
        finite &= fill_part(w, p, at, next);
    }
    if (!finite) __atomic_store_n(&w->f->not_finite[p->source], 1, __ATOMIC_RELAXED);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* `before`: the device work to wait for; NULL if parameters are on the host. */
static bool worker_open(worker *w, mc_fence *before)
{
    mc_device *d = w->f->ctx->device;
    w->block = mc_malloc(BLOCK * sizeof(float));
    w->matrix = mc_malloc(w->f->matrix + 1);
    if (!w->block || !w->matrix) return false;
    if (!before) return true;
    device_failed(w, d->lanes->lane_new(d, &w->lane));
    for (int i = 0; i < BUFFERS && !w->err.status; i++) {
        device_failed(w, d->lanes->fence_new(d, &w->fence[i]));
        if (!(w->buffer[i] = d->host_alloc(d, BUFFER))) return false;
    }
    if (!w->err.status) device_failed(w, d->lanes->after(d, w->lane, before));
    return true;
}

/* Waits for the worker's copies. */
static void worker_close(worker *w)
{
    mc_device *d = w->f->ctx->device;
    d->lanes->lane_free(d, w->lane);
    for (int i = 0; i < BUFFERS; i++) {
        d->lanes->fence_free(d, w->fence[i]);
        d->host_free(d, w->buffer[i], BUFFER);
    }
    mc_free(w->block);
    mc_free(w->matrix);
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

/* Compares all parts, read here or not, with the file's checksums. */
static void check_all(const fill *f, mc_tensor_file *file)
{
    size_t count = 0;
    mc_checked_run *runs = mc_calloc(f->count + 1, sizeof *runs);
    if (!runs) mc_fail_nomem(f->ctx, "checking a file");
    for (size_t i = 0; runs && i < f->count; i++)
        if (!f->pieces[i].scattered && f->pieces[i].read.size) runs[count++] = f->pieces[i].read;
    if (runs)
        mc_tensor_parts_check(file, runs, count, f->ctx->mesh.world.rank, f->ctx->mesh.world.size);
    mc_free(runs);
}

mc_status mc_weights_fill(mc_context *ctx, mc_tensor_file *file, const mc_weight_source *sources,
                          size_t count, uint8_t *not_finite)
{
    mc_device *d = ctx->device;
    mc_error err = {0};
    mc_crc32_table crc;
    fill f = {.ctx = ctx, .sources = sources, .not_finite = not_finite, .err = &err};
    if (mc_device_is_plan(d)) return mc_error_status(ctx);
    if (mc_tensor_file_part_count(file)) {
        mc_crc32_table_init(&crc);
        f.crc = &crc;
    }
    f.crew = d->is_host ? d : mc_device_open(ctx, "cpu");
    if (f.crew && list_pieces(&f, file, count) == MC_OK && f.count) run_threads(&f);
    mc_error_move(&ctx->error, &err);
    if (f.crc && !mc_failed(ctx)) check_all(&f, file);
    mc_tensor_file_check(file);
    if (f.crew != d) mc_device_close(f.crew);
    mc_free(f.bytes);
    mc_free(f.pieces);
    return mc_error_status(ctx);
}
