#include "core/nn/kv_pages_internal.h"

#include "core/base/memory_internal.h"
#include "core/device/device_internal.h"

static int pages_of(const mc_kv_pages *p, int64_t rows)
{
    return (int)((rows + ((int64_t)1 << p->shift) - 1) >> p->shift);
}

static bool make(mc_kv_pages *p)
{
    size_t cells = (size_t)p->sequences * (size_t)p->each;
    p->host = mc_calloc(cells, sizeof *p->host);
    p->taken = mc_calloc((size_t)p->sequences, sizeof *p->taken);
    p->free = mc_malloc((size_t)p->count * sizeof *p->free);
    if (!p->host || !p->taken || !p->free) return !mc_fail_nomem(p->ctx, "the pages of a cache");
    for (int i = 0; i < p->count; i++) p->free[i] = p->count - 1 - i;
    p->free_count = p->count;
    p->table = mc_tensor_new_computed(p->ctx, MC_SHAPE(p->sequences, p->each));
    if (!p->table) return false;
    mc_disown(&p->table->owned); /* it goes with the pages */
    mc_kv_pages_send(p);
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
    mc_free(p->host);
    mc_free(p->taken);
    mc_free(p->free);
    mc_free(p);
}

bool mc_kv_pages_have(const mc_kv_pages *p, int64_t rows)
{
    return pages_of(p, rows) <= p->free_count;
}

void mc_kv_pages_take(mc_kv_pages *p, int sequence, int64_t rows)
{
    int count = pages_of(p, rows);
    size_t first = (size_t)sequence * (size_t)p->each;
    mc_device *d = p->ctx->device;
    for (int i = 0; i < count; i++) p->host[first + (size_t)i] = p->free[--p->free_count];
    p->taken[sequence] = count;
    d->copy_in(d, (int32_t *)mc_tensor_data(p->table) + first, p->host + first,
               (size_t)count * sizeof *p->host);
}

void mc_kv_pages_give_back(mc_kv_pages *p, int sequence)
{
    for (int i = p->taken[sequence] - 1; i >= 0; i--)
        p->free[p->free_count++] = p->host[sequence * p->each + i];
    p->taken[sequence] = 0;
}

void mc_kv_pages_send(mc_kv_pages *p)
{
    mc_tensor_write(p->table, p->host, (size_t)p->sequences * (size_t)p->each * sizeof *p->host);
}

int32_t mc_kv_pages_first(const mc_kv_pages *p, int sequence)
{
    int first = sequence * p->each;
    return p->in_line ? (int32_t)((int64_t)p->host[first] << p->shift) : first;
}

const int32_t *mc_kv_pages_table(const mc_kv_pages *p)
{
    return p->in_line ? NULL : mc_tensor_data(p->table);
}

int32_t mc_kv_pages_row(const mc_kv_pages *p, int sequence, int64_t position)
{
    return (int32_t)mc_page_row(p->host, p->shift, sequence * p->each, position);
}
