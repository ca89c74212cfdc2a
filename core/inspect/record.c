/* mc_record: statistics of activations, and of their gradients. */
#include <string.h>
#include "core/inspect/inspect_internal.h"
#include "core/ops/ops_internal.h"
#include "core/ops/fused.h"

enum { CHUNK = 256 };

/* A row of the table. */
typedef struct entry {
    char *name;
    mc_shape shape; /* of the last tensor */
    int64_t first_size;
    bool has_gradient;
} entry;

/* Statistics that a kernel will write, in the order of the calls. */
typedef struct slot {
    size_t entry;
    bool gradient;
} slot;

struct mc_recorder {
    mc_owned owned;
    mc_context *ctx;
    entry *entries;
    size_t entry_count, entry_capacity;
    slot *slots;
    size_t slot_count, slot_capacity;
    mc_tensor_stats **chunks; /* device memory: slot i is chunks[i / CHUNK][i % CHUNK] */
    size_t chunk_count, chunk_capacity;
};

/* ---- on and off ------------------------------------------------------------------------------ */

static void free_recorder(void *object)
{
    struct mc_recorder *r = object;
    mc_device *device = r->ctx->device;
    for (size_t i = 0; i < r->chunk_count; i++)
        device->free(device, r->chunks[i], CHUNK * sizeof **r->chunks);
    for (size_t i = 0; i < r->entry_count; i++) mc_free(r->entries[i].name);
    mc_free(r->chunks);
    mc_free(r->slots);
    mc_free(r->entries);
    r->ctx->recorder = NULL;
    r->ctx->record_block = NULL;
    mc_free(r);
}

/* The path of a module, as its parameters' names start; a part that begins with '/' ends it. */
static void write_path(const mc_module *m, char *text, size_t room)
{
    if (m->parent && *m->name != '/') write_path(m->parent, text, room);
    size_t used = strlen(text);
    const char *name = *m->name == '/' ? m->name + 1 : m->name;
    if (*name) snprintf(text + used, room - used, "%s%s", used ? "." : "", name);
}

static mc_tensor *record_block(mc_tape *t, const mc_module *block, mc_tensor *x)
{
    char name[512] = "";
    write_path(block, name, sizeof name);
    return mc_record(t, x, name);
}

bool mc_record_is_on(const mc_context *ctx) { return ctx && ctx->recorder; }

mc_status mc_record_begin(mc_context *ctx)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (ctx->recorder)
        return mc_fail(ctx, MC_ERR_STATE, "mc_record_begin: recording is on already");
    struct mc_recorder *r = mc_new_owned(ctx, sizeof *r, "recording", free_recorder);
    if (!r) return mc_error_status(ctx);
    r->ctx = ctx;
    ctx->recorder = r;
    ctx->record_block = record_block;
    return MC_OK;
}

/* ---- taking statistics ----------------------------------------------------------------------- */

static entry *find_entry(struct mc_recorder *r, const char *name)
{
    for (size_t i = 0; i < r->entry_count; i++)
        if (strcmp(r->entries[i].name, name) == 0) return &r->entries[i];
    return NULL;
}

static entry *need_entry(struct mc_recorder *r, const char *name)
{
    entry *e = find_entry(r, name);
    if (e) return e;
    size_t size = strlen(name) + 1;
    bool room = mc_grow(&r->entries, &r->entry_capacity, r->entry_count, sizeof *r->entries);
    char *copy = room ? mc_malloc(size) : NULL;
    if (!copy) {
        mc_fail_nomem(r->ctx, "recording");
        return NULL;
    }
    memcpy(copy, name, size);
    e = &r->entries[r->entry_count++];
    *e = (entry){.name = copy};
    return e;
}

/* The next slot for statistics; NULL after an error. */
static mc_tensor_stats *next_slot(struct mc_recorder *r, const entry *e, bool gradient)
{
    mc_device *device = r->ctx->device;
    size_t chunk = r->slot_count / CHUNK;
    bool good = mc_grow(&r->slots, &r->slot_capacity, r->slot_count, sizeof *r->slots);
    if (good && chunk == r->chunk_count) {
        good = mc_grow(&r->chunks, &r->chunk_capacity, chunk, sizeof *r->chunks) &&
               (r->chunks[chunk] = device->alloc(device, CHUNK * sizeof **r->chunks));
        r->chunk_count += good;
    }
    if (!good) {
        mc_fail_nomem(r->ctx, "recording");
        return NULL;
    }
    r->slots[r->slot_count] = (slot){(size_t)(e - r->entries), gradient};
    return &r->chunks[chunk][r->slot_count++ % CHUNK];
}

static void take(mc_tape *t, entry *e, const mc_tensor *x, bool gradient)
{
    struct mc_recorder *r = mc_tape_context(t)->recorder;
    mc_tensor_stats *to = e ? next_slot(r, e, gradient) : NULL;
    if (!to) return;
    MC_KERNEL(t, "record", tensor_stats, mc_tensor_count(x), mc_matrix_flat(x), to);
}

typedef struct record_state {
    char *name;
} record_state;

static void record_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *g = node->output->gradient;
    struct mc_recorder *r = mc_tape_context(t)->recorder;
    entry *e = r ? find_entry(r, ((record_state *)node->state)->name) : NULL;
    if (e && g) {
        e->has_gradient = true;
        take(t, e, g, true);
    }
    mc_gradient_share(t, node->inputs[0], g);
}

static const mc_op record_op = {.name = "record", .backward = record_backward};

/* Returns x through an identity operation, whose backward receives the gradient. */
static mc_tensor *pass_on(mc_tape *t, mc_tensor *x, const char *name)
{
    size_t size = strlen(name) + 1;
    mc_tensor *y = mc_tape_view(t, x, x->shape, 0);
    char *copy = y ? mc_tape_alloc(t, size) : NULL;
    if (!copy) return NULL;
    memcpy(copy, name, size);
    y->lengths = x->lengths;
    mc_node *node = mc_tape_record(t, &record_op, y, sizeof(record_state), 1, &x);
    if (node) ((record_state *)node->state)->name = copy;
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_record(mc_tape *t, mc_tensor *x, const char *name)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_tape_given(t, "record", x ? x->ctx : NULL) || mc_failed(ctx) || !mc_given(ctx, x) ||
        !mc_given(ctx, name))
        return NULL;
    if (!mc_record_is_on(ctx)) return x;
    x = mc_residual_sum(t, x);
    if (!mc_op_ready(t, "record", x) || !mc_op_float(t, "record", "input", x)) return NULL;
    if (ctx->device->recording) {
        mc_fail(ctx, MC_ERR_STATE,
                "mc_record: mc_step_run is recording a step: look at activations without it");
        return NULL;
    }
    if (!mc_tape_replaying(t)) {
        entry *e = need_entry(ctx->recorder, name);
        if (!e) return NULL;
        e->shape = x->shape;
        if (x->shape.ndim) e->first_size += x->shape.dim[0];
        take(t, e, x, false);
    }
    if (mc_failed(ctx)) return NULL;
    return mc_tape_recording(t) && x->requires_grad ? pass_on(t, x, name) : x;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Adds the slots' statistics to the rows they belong to. */
static mc_status add_slots(struct mc_recorder *r, mc_row_parts *parts)
{
    mc_device *device = r->ctx->device;
    mc_tensor_stats stats[CHUNK];
    for (size_t i = 0; i < r->slot_count; i++) {
        size_t left = r->slot_count - i, count = left < CHUNK ? left : CHUNK;
        if (i % CHUNK == 0 &&
            !device->copy_out(device, stats, r->chunks[i / CHUNK], count * sizeof *stats))
            return mc_fail(r->ctx, MC_ERR_DEVICE, "statistics of activations: %s", device->failure);
        mc_row_parts *row = &parts[r->slots[i].entry];
        mc_moments m = mc_moments_of(&stats[i % CHUNK]);
        mc_moments_add(r->slots[i].gradient ? &row->gradient : &row->value, &m);
    }
    return MC_OK;
}

static mc_inspection *make_table(struct mc_recorder *r)
{
    size_t n = r->entry_count;
    mc_row_parts *parts = mc_calloc(n + 1, sizeof *parts);
    const char **names = mc_calloc(n + 1, sizeof *names);
    mc_shape *shapes = mc_calloc(n + 1, sizeof *shapes);
    bool good = parts && names && shapes;
    mc_inspection *table = NULL;
    for (size_t i = 0; good && i < n; i++) {
        names[i] = r->entries[i].name;
        shapes[i] = r->entries[i].shape;
        parts[i].first_size = r->entries[i].first_size;
        parts[i].has_gradient = r->entries[i].has_gradient;
    }
    if (!good) mc_fail_nomem(r->ctx, "a table of statistics");
    if (good && add_slots(r, parts) == MC_OK)
        table = mc_inspection_new(r->ctx, (int)n, names, shapes, parts, true);
    mc_free(parts);
    mc_free(names);
    mc_free(shapes);
    return table;
}

mc_inspection *mc_record_end(mc_context *ctx)
{
    if (!ctx) return NULL;
    struct mc_recorder *r = ctx->recorder;
    if (!r) {
        if (!mc_failed(ctx)) mc_fail(ctx, MC_ERR_STATE, "mc_record_end: recording is not on");
        return NULL;
    }
    mc_inspection *table = mc_failed(ctx) ? NULL : make_table(r);
    mc_disown(&r->owned);
    free_recorder(r);
    return table;
}
