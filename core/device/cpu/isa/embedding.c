/* Rows by index: embedding lookup, its gradient, gathering, scattering. */
#include "core/device/cpu/isa/convert_internal.h"

typedef struct lookup {
    mc_chunks chunks;
    int tables;
    const mc_matrix *table;
    const int32_t *const *index;
    float scale;
    mc_matrix y;
} lookup;

static void lookup_item(void *call, int64_t item, int thread)
{
    const lookup *l = call;
    mc_chunk k = mc_chunk_at(l->chunks, item);
    float sum[MC_CHUNK], buffer[MC_CHUNK], scale = l->scale;
    (void)thread;
    memset(sum, 0, (size_t)k.n * sizeof *sum);
    for (int t = 0; t < l->tables; t++) {
        int64_t at = l->index[t][k.row] * l->table[t].stride + k.column;
        const float *from = mc_read(l->table[t], at, k.n, buffer);
#pragma omp simd
        for (int j = 0; j < k.n; j++) sum[j] += from[j];
    }
#pragma omp simd
    for (int j = 0; j < k.n; j++) sum[j] *= scale;
    mc_write(l->y, k.row * l->y.stride + k.column, k.n, sum, false);
}

mc_status MC_K(embedding)(mc_device *d, int64_t rows, int64_t columns, int tables,
                          const mc_matrix *table, const int32_t *const *index, float scale,
                          mc_matrix y)
{
    lookup l = {mc_chunks_of(rows, columns), tables, table, index, scale, y};
    mc_run(d, rows, mc_threads_for(rows * columns), l.chunks.count, lookup_item, &l);
    return MC_OK;
}

/* Work is divided by columns, so that every element of the table gets its sums in row order; with
 * more threads than columns can use, it is divided by rows of the table too. */
mc_status MC_K(embedding_backward)(mc_device *d, int64_t rows, int64_t columns, mc_matrix dy,
                                   const int32_t *index, float scale, mc_matrix dtable)
{
    (void)d;
    enum { SLAB = 128 };
    int64_t slabs = (columns + SLAB - 1) / SLAB, threads = omp_get_max_threads();
    int64_t classes = slabs >= threads || slabs == 0 ? 1 : (threads + slabs - 1) / slabs;
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL)
    for (int64_t item = 0; item < slabs * classes; item++) {
        int64_t column = item % slabs * SLAB, class = item / slabs;
        int n = (int)mc_min_i64(SLAB, columns - column);
        float buffer[SLAB], scaled[SLAB];
        for (int64_t row = 0; row < rows; row++) {
            if (index[row] < 0 || index[row] % classes != class) continue;
            const float *from = mc_read(dy, row * dy.stride + column, n, buffer);
#pragma omp simd
            for (int i = 0; i < n; i++) scaled[i] = from[i] * scale;
            mc_write(dtable, index[row] * dtable.stride + column, n, scaled, true);
        }
    }
    return MC_OK;
}

typedef struct rows_call {
    mc_chunks chunks;
    mc_matrix x, y;
    const int32_t *index;
} rows_call;

static void gather_item(void *call, int64_t item, int thread)
{
    const rows_call *c = call;
    mc_chunk k = mc_chunk_at(c->chunks, item);
    float buffer[MC_CHUNK];
    const float *from = buffer;
    (void)thread;
    if (c->index[k.row] < 0)
        memset(buffer, 0, (size_t)k.n * sizeof *buffer);
    else
        from = mc_read(c->x, c->index[k.row] * c->x.stride + k.column, k.n, buffer);
    mc_write(c->y, k.row * c->y.stride + k.column, k.n, from, false);
}

mc_status MC_K(token_positions)(mc_device *d, const mc_lengths *lengths,
                                const int32_t *device_lengths, const int32_t *ids, int32_t pad,
                                int32_t first, int32_t *position)
{
    (void)d, (void)device_lengths;
    for (int i = 0; i < lengths->count; i++) {
        int32_t next = first;
        for (int32_t k = lengths->offset[i]; k < lengths->offset[i + 1]; k++)
            position[k] = ids[k] == pad ? first - 1 : next++;
    }
    for (int64_t k = lengths->offset[lengths->count]; k < lengths->capacity; k++)
        position[k] = first - 1;
    return MC_OK;
}

/* The first row at or after `row` with the token; `end` if there is none. */
static int32_t find_token(const int32_t *ids, int32_t row, int32_t end, int32_t token)
{
    while (row < end && ids[row] != token) row++;
    return row;
}

/* Marks rows first .. end - 1 of the sequence that starts at `begin`: a block whose blank is at row
 * `mask` (negative: none), or with `mark` the text. */
static void place_rows(const mc_blanks_call *c, int32_t begin, int32_t first, int32_t end,
                       int32_t mask, int32_t mark)
{
    for (int32_t k = first; k < end; k++) {
        c->mark[k] = mark;
        c->position[k] = (mark || mask < 0 ? k : mask) - begin;
        c->block[k] = mark ? 0 : k - first + 1;
    }
}

static void place_blanks(const mc_blanks_call *c, int32_t begin, int32_t end)
{
    int32_t start = find_token(c->ids, begin, end, c->start);
    int32_t next_mask = find_token(c->ids, begin, end, c->mask), mask = -1;
    place_rows(c, begin, begin, start, -1, 1);
    for (int32_t next; start < end; start = next) {
        next = find_token(c->ids, start + 1, end, c->start);
        do { /* the next mask, or the last one */
            if (next_mask == end) break;
            mask = next_mask;
            next_mask = find_token(c->ids, mask + 1, end, c->mask);
        } while (next == end);
        place_rows(c, begin, start, next, mask, 0);
    }
}

mc_status MC_K(find_blanks)(mc_device *d, const mc_lengths *lengths, const int32_t *device_lengths,
                            const mc_blanks_call *call)
{
    (void)d, (void)device_lengths;
    int32_t total = lengths->offset[lengths->count];
    for (int i = 0; i < lengths->count; i++)
        place_blanks(call, lengths->offset[i], lengths->offset[i + 1]);
    for (int64_t k = total; k < lengths->capacity; k++)
        call->mark[k] = call->position[k] = call->block[k] = 0;
    return MC_OK;
}

mc_status MC_K(gather_rows)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                            const int32_t *index, mc_matrix y)
{
    rows_call c = {mc_chunks_of(rows, columns), x, y, index};
    mc_run(d, rows, mc_threads_for(rows * columns), c.chunks.count, gather_item, &c);
    return MC_OK;
}

static void scatter_item(void *call, int64_t row, int thread)
{
    const rows_call *c = call;
    size_t size = mc_dtype_size(c->x.dtype), bytes = (size_t)c->chunks.columns * size;
    (void)thread;
    memcpy((char *)c->y.data + (size_t)(c->index[row] * c->y.stride) * size,
           (const char *)c->x.data + (size_t)(row * c->x.stride) * size, bytes);
}

mc_status MC_K(scatter_rows)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                             const int32_t *index, mc_matrix y)
{
    rows_call c = {mc_chunks_of(rows, columns), x, y, index};
    mc_run(d, rows, mc_threads_for(rows * columns), rows, scatter_item, &c);
    return MC_OK;
}
