#include "models/generate/kv_pages_internal.h"

#include <string.h>
#include "core/base/memory_internal.h"
#include "core/device/device_internal.h"

static int pages_of(const mc_kv_pages *p, int64_t rows)
{
    return (int)((rows + ((int64_t)1 << p->shift) - 1) >> p->shift);
}

static mc_tensor *new_table(mc_context *ctx, int sequences, int64_t each)
{
    mc_tensor *table = mc_tensor_new_computed(ctx, MC_SHAPE(sequences, each));
    if (table) mc_disown(&table->owned); /* it goes with the pages */
    return table;
}

static bool make(mc_kv_pages *p)
{
    size_t n = (size_t)p->sequences, cells = n * (size_t)p->each;
    p->host = mc_calloc(cells, sizeof *p->host);
    p->taken = mc_calloc(n, sizeof *p->taken);
    p->from = mc_calloc(n, sizeof *p->from);
    p->free = mc_malloc((size_t)p->count * sizeof *p->free);
    if (!p->host || !p->taken || !p->from || !p->free)
        return !mc_fail_nomem(p->ctx, "the pages of a cache");
    for (int i = 0; i < p->count; i++) p->free[i] = p->count - 1 - i;
    p->free_count = p->count;
    p->table = new_table(p->ctx, p->sequences, p->each);
    mc_tensor_write(p->table, p->host, cells * sizeof *p->host);
    return !mc_failed(p->ctx);
}

mc_kv_pages *mc_kv_pages_new(mc_context *ctx, int sequences, int64_t longest, int64_t rows,
                             int shift)
{
    if (mc_failed(ctx)) return NULL;
    mc_kv_pages *p = mc_calloc(1, sizeof *p);
    if (!p) {
        mc_fail_nomem(ctx, "the pages of a cache");
        return NULL;
    }
    *p = (mc_kv_pages){.ctx = ctx, .shift = shift, .sequences = sequences, .longest = longest};
    p->count = pages_of(p, rows);
    p->each = pages_of(p, longest);
    if (make(p)) return p;
    mc_kv_pages_free(p);
    return NULL;
}

void mc_kv_pages_free(mc_kv_pages *p)
{
    if (!p) return;
    mc_tensor_free(p->table);
    mc_tensor_free(p->row_table);
    void *const memory[] = {p->host, p->taken, p->from, p->free, p->rows, p->moved};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) mc_free(memory[i]);
    mc_free(p);
}

bool mc_kv_pages_have(const mc_kv_pages *p, int64_t rows)
{
    return pages_of(p, rows) <= p->free_count;
}

int64_t mc_kv_pages_round(const mc_kv_pages *p, int64_t rows)
{
    return (int64_t)pages_of(p, rows) << p->shift;
}

/* Sends rows first .. end of a table of `each` columns. */
static void send(mc_kv_pages *p, mc_tensor *table, const int32_t *host, int64_t each, int first,
                 int end)
{
    mc_device *d = p->ctx->device;
    size_t at = (size_t)first * (size_t)each, count = (size_t)(end - first) * (size_t)each;
    d->copy_in(d, (int32_t *)mc_tensor_data(table) + at, host + at, count * sizeof *host);
}

/* The rows of a sequence's own pages. */
static void fill_rows(mc_kv_pages *p, int sequence)
{
    int64_t count = (int64_t)p->taken[sequence] << p->shift, from = p->from[sequence];
    if (from + count > p->longest) count = p->longest - from;
    for (int64_t i = from; i < from + count; i++)
        p->rows[sequence * p->longest + i] = mc_kv_pages_row(p, sequence, i);
}

void mc_kv_pages_take_from(mc_kv_pages *p, int sequence, int64_t from, int64_t rows)
{
    int count = pages_of(p, rows);
    int32_t *own = p->host + (int64_t)sequence * p->each;
    for (int i = 0; i < count; i++) own[i] = p->free[--p->free_count];
    p->taken[sequence] = count;
    p->from[sequence] = from;
    send(p, p->table, p->host, p->each, sequence, sequence + 1);
    if (!p->by_rows) return;
    fill_rows(p, sequence);
    send(p, p->row_table, p->rows, p->longest, sequence, sequence + 1);
}

void mc_kv_pages_take(mc_kv_pages *p, int sequence, int64_t rows)
{
    mc_kv_pages_take_from(p, sequence, 0, rows);
}

void mc_kv_pages_give_back(mc_kv_pages *p, int sequence)
{
    for (int i = p->taken[sequence] - 1; i >= 0; i--)
        p->free[p->free_count++] = p->host[sequence * p->each + i];
    p->taken[sequence] = 0;
}

int32_t mc_kv_pages_first(const mc_kv_pages *p, int sequence)
{
    int first = sequence * p->each;
    if (p->by_rows) return (int32_t)(sequence * p->longest);
    return p->in_line ? (int32_t)((int64_t)p->host[first] << p->shift) : first;
}

const int32_t *mc_kv_pages_table(const mc_kv_pages *p)
{
    if (p->by_rows) return mc_tensor_data(p->row_table);
    return p->in_line ? NULL : mc_tensor_data(p->table);
}

int mc_kv_pages_shift(const mc_kv_pages *p) { return p->by_rows ? 0 : p->shift; }

int32_t mc_kv_pages_row(const mc_kv_pages *p, int sequence, int64_t position)
{
    return (int32_t)mc_page_row(p->host, p->shift, sequence * p->each,
                                position - p->from[sequence]);
}

/* ---- sequences that share rows --------------------------------------------------------------- */

bool mc_kv_pages_by_rows(mc_kv_pages *p, bool on)
{
    size_t cells = (size_t)p->sequences * (size_t)p->longest;
    if (on == p->by_rows) return true;
    if (on && !p->rows) p->rows = mc_calloc(cells, sizeof *p->rows);
    if (on && !p->moved) p->moved = mc_malloc(cells * sizeof *p->moved);
    if (on && !p->row_table) p->row_table = new_table(p->ctx, p->sequences, p->longest);
    if (on && !(p->rows && p->moved && p->row_table))
        return !mc_fail_nomem(p->ctx, "the rows of a cache");
    p->by_rows = on;
    for (int i = 0; on && i < p->sequences; i++) fill_rows(p, i);
    if (on) send(p, p->row_table, p->rows, p->longest, 0, p->sequences);
    p->moved_first = p->sequences;
    p->moved_end = 0;
    return true;
}

void mc_kv_pages_follow(mc_kv_pages *p, const int *sequence, const int *parent, int count,
                        int64_t length)
{
    size_t bytes = (size_t)length * sizeof *p->rows;
    for (int i = 0; i < count; i++)
        memcpy(p->moved + i * p->longest, p->rows + sequence[parent[i]] * p->longest, bytes);
    for (int i = 0; i < count; i++) {
        if (parent[i] == i) continue;
        memcpy(p->rows + sequence[i] * p->longest, p->moved + i * p->longest, bytes);
        if (sequence[i] < p->moved_first) p->moved_first = sequence[i];
        if (sequence[i] >= p->moved_end) p->moved_end = sequence[i] + 1;
    }
}

void mc_kv_pages_send_moved(mc_kv_pages *p)
{
    if (p->moved_first < p->moved_end)
        send(p, p->row_table, p->rows, p->longest, p->moved_first, p->moved_end);
    p->moved_first = p->sequences;
    p->moved_end = 0;
}
