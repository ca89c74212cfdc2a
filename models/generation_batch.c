/* Models whose sequences join and leave: whole prompts of those that join, then a token a row over
 * caches in pages. Row i of the batch is sequence i of the pages. */
#include "core/autograd/step_internal.h"
#include "core/nn/kv_cache_internal.h"
#include "core/ops/ops_internal.h"
#include "models/adapter_internal.h"
#include "models/generate/batch_internal.h"

struct mc_batch_model {
    mc_model *m;
    mc_kv_pages *pages, *memory_pages; /* memory: of encoder-decoders, else NULL */
    mc_kv_cache *cache;
    mc_kv_memory *memory;
    size_t bytes;
    int32_t start;             /* of an encoder-decoder's answers */
    const mc_chooser *chooser; /* of the step that is being run */
};

/* ---- life ------------------------------------------------------------------------------------ */

static mc_kv_shape kv_shape(const mc_model *m)
{
    const mc_model_shape *s = &m->shape;
    return (mc_kv_shape){.dtype = m->module.root->dtype,
                         .layers = (int)(m->encoder ? s->decoder_layers : s->layers),
                         .width = s->heads * s->head_dim,
                         .sequences = 1};
}

/* Keys and values of the pages' rows. */
static size_t bytes_of(const mc_kv_shape *s, const mc_kv_pages *p)
{
    size_t rows = (size_t)p->count << p->shift;
    return rows * 2 * (size_t)(s->layers * s->width) * mc_dtype_size(s->dtype);
}

static bool make_memory(mc_batch_model *b, const mc_batch_shape *o)
{
    mc_context *ctx = b->m->module.ctx;
    mc_kv_shape shape = kv_shape(b->m);
    b->memory_pages = mc_kv_pages_new(ctx, o->rows, o->longest, o->tokens, o->page_shift);
    if (!b->memory_pages) return false;
    shape.capacity = (int64_t)b->memory_pages->count << o->page_shift;
    b->bytes += bytes_of(&shape, b->memory_pages);
    b->memory = mc_kv_memory_new_paged(ctx, shape, b->memory_pages);
    return b->memory;
}

static bool make_cache(mc_batch_model *b, const mc_batch_shape *o)
{
    mc_context *ctx = b->m->module.ctx;
    mc_kv_shape shape = kv_shape(b->m);
    b->pages = mc_kv_pages_new(ctx, o->rows, o->longest, o->tokens, o->page_shift);
    if (!b->pages) return false;
    shape.sequences = b->pages->count;
    shape.capacity = (int64_t)1 << o->page_shift;
    b->bytes = bytes_of(&shape, b->pages);
    if (!(b->cache = mc_kv_cache_new(ctx, shape))) return false;
    b->cache->pages = b->pages;
    return !b->m->encoder || make_memory(b, o);
}

mc_batch_model *mc_batch_model_new(mc_model *m, const mc_batch_shape *shape)
{
    mc_batch_model *b = mc_calloc(1, sizeof *b);
    if (!b) {
        mc_fail_nomem(m->module.ctx, "a batch");
        return NULL;
    }
    b->m = m;
    if (m->encoder) b->start = (int32_t)mc_start_token(m);
    if (make_cache(b, shape)) return b;
    mc_batch_model_free(b);
    return NULL;
}

void mc_batch_model_free(mc_batch_model *b)
{
    if (!b) return;
    mc_step_forget_user(b->m->module.ctx, b);
    mc_kv_cache_free(b->cache);
    mc_kv_memory_free(b->memory);
    mc_kv_pages_free(b->pages);
    mc_kv_pages_free(b->memory_pages);
    mc_free(b);
}

size_t mc_batch_model_bytes(const mc_batch_model *b) { return b->bytes; }

/* ---- rows ------------------------------------------------------------------------------------ */

const int32_t *mc_batch_model_begins_with(const mc_batch_model *b, const int32_t *ids, int *count)
{
    if (!b->m->encoder) return ids;
    *count = 1;
    return &b->start;
}

/* Rows that the decoder's tokens need (the last one is not run), and the encoder's. */
static int64_t cache_rows(const mc_batch_model *b, int prompt, int most)
{
    if (b->m->encoder) return most;
    return (int64_t)mc_virtual_tokens(b->m) + prompt + most - 1;
}

static int64_t memory_rows(const mc_batch_model *b, int prompt)
{
    return b->m->encoder ? (int64_t)mc_virtual_tokens(b->m) + prompt : 0;
}

static bool fits(const mc_kv_pages *p, int64_t rows)
{
    return !p || (rows <= p->longest && rows <= (int64_t)p->count << p->shift);
}

bool mc_batch_model_can(const mc_batch_model *b, int prompt, int most)
{
    return fits(b->pages, cache_rows(b, prompt, most)) &&
           fits(b->memory_pages, memory_rows(b, prompt));
}

bool mc_batch_model_has_room(const mc_batch_model *b, int prompt, int most)
{
    return mc_kv_pages_have(b->pages, cache_rows(b, prompt, most)) &&
           (!b->memory_pages || mc_kv_pages_have(b->memory_pages, memory_rows(b, prompt)));
}

void mc_batch_model_join(mc_batch_model *b, int row, int prompt, int most, int32_t *fields)
{
    int32_t length = b->m->encoder ? 1 : prompt + mc_virtual_tokens(b->m);
    mc_kv_pages_take(b->pages, row, cache_rows(b, prompt, most));
    fields[MC_ROW_TOKEN] = 0; /* choosing what follows the prompt sets it */
    fields[MC_ROW_POSITION] = length - 1;
    fields[MC_ROW_LENGTH] = length;
    fields[MC_ROW_FIRST] = row * b->pages->each;
    fields[MC_ROW_MEMORY] = fields[MC_ROW_MEMORY_LENGTH] = 0;
    fields[MC_ROW_STEP] = fields[MC_ROW_ENDED] = 0;
    if (!b->memory_pages) return;
    mc_kv_pages_take(b->memory_pages, row, memory_rows(b, prompt));
    fields[MC_ROW_MEMORY] = row * b->memory_pages->each;
    fields[MC_ROW_MEMORY_LENGTH] = (int32_t)memory_rows(b, prompt);
}

void mc_batch_model_leave(mc_batch_model *b, int row)
{
    mc_kv_pages_give_back(b->pages, row);
    if (b->memory_pages) mc_kv_pages_give_back(b->memory_pages, row);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* As many sequences of one token. */
static const mc_lengths *lengths_of_ones(mc_tape *t, int count)
{
    int32_t *ones = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *ones);
    for (int i = 0; ones && i < count; i++) ones[i] = 1;
    return ones ? mc_tape_lengths(t, ones, count, 1) : NULL;
}

static bool fill_input(mc_tape *t, const mc_lengths *l, const int32_t *ids, mc_stack_input *in)
{
    if (!l) return false;
    in->lengths = l;
    in->ids = mc_tape_input(t, MC_I32, MC_SHAPE(l->total), ids, false);
    in->positions = in->call.positions = mc_pack_positions(t, l, NULL);
    if (!in->ids || !in->positions) return false;
    in->ids->lengths = l;
    return true;
}

/* What the decoder begins with, once the encoder has read the prompts. */
static bool encode(mc_tape *t, mc_batch_model *b, const mc_lengths *l, const int32_t *ids,
                   const int *rows, mc_stack_input *in)
{
    mc_stack_input encoded = {.longest = l->longest};
    if (!fill_input(t, l, ids, &encoded) || !mc_virtual_tokens_prepend(t, b->m, &encoded) ||
        !mc_kv_memory_begin_joining(b->memory, t, encoded.lengths, rows))
        return false;
    int32_t *starts = mc_tape_alloc(t, ((size_t)l->count + 1) * sizeof *starts);
    for (int i = 0; starts && i < l->count; i++) starts[i] = b->start;
    if (!starts || !fill_input(t, lengths_of_ones(t, l->count), starts, in)) return false;
    in->call.kept = b->memory;
    in->call.memory = b->m->family->encode(t, b->m, &encoded);
    return in->call.memory;
}

static mc_tensor *decode(mc_tape *t, mc_batch_model *b, mc_stack_input *in)
{
    mc_tensor *hidden = b->m->family->decode(t, b->m, in);
    mc_kv_cache_end(b->cache);
    mc_tensor *last = hidden ? mc_last_tokens(t, hidden) : NULL;
    return last ? mc_model_logits(t, b->m, last) : NULL;
}

static mc_stack_input new_input(mc_batch_model *b)
{
    return (mc_stack_input){.longest = mc_kv_cache_longest(b->cache), .call = {.cache = b->cache}};
}

/* CPM-1 reads its prompt as context. */
static bool mark_context(mc_tape *t, const mc_batch_model *b, mc_stack_input *in)
{
    if (!b->m->family->has.marks) return true;
    int64_t total = in->lengths->total;
    int32_t *marks = mc_tape_alloc(t, ((size_t)total + 1) * sizeof *marks);
    for (int64_t i = 0; marks && i < total; i++) marks[i] = 1;
    in->call.marks = marks ? mc_tape_input(t, MC_I32, MC_SHAPE(total), marks, false) : NULL;
    return in->call.marks;
}

static mc_tensor *run_prompts(mc_tape *t, mc_batch_model *b, const int32_t *ids,
                              const int32_t *lengths, const int *rows, int count)
{
    const mc_lengths *l = mc_tape_lengths(t, lengths, count, 1);
    mc_stack_input in = new_input(b);
    if (!l) return NULL;
    if (b->m->encoder) {
        if (!encode(t, b, l, ids, rows, &in)) return NULL;
    } else if (!fill_input(t, l, ids, &in) || !mc_virtual_tokens_prepend(t, b->m, &in)) {
        return NULL;
    }
    if (!mc_kv_cache_begin_joining(b->cache, t, in.lengths, rows) || !mark_context(t, b, &in))
        return NULL;
    return decode(t, b, &in);
}

/* Each row's choice by itself: those that join have any rows of the batch. */
bool mc_batch_model_prompts(mc_batch_model *b, const int32_t *ids, const int32_t *lengths,
                            const int *rows, int count, const mc_chooser *c)
{
    mc_context *ctx = b->m->module.ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *logits = t ? run_prompts(t, b, ids, lengths, rows, count) : NULL;
    for (int i = 0; logits && i < count; i++) {
        mc_choose_call call = c->call;
        mc_matrix row = mc_matrix_of(logits);
        row.data = (char *)row.data + (size_t)(i * row.stride) * mc_dtype_size(row.dtype);
        call.rows = 1;
        call.state += rows[i];
        MC_KERNEL(t, "generation", choose_tokens, &call, row);
    }
    mc_tape_end(t);
    return !mc_failed(ctx);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static mc_tensor *run_rows(mc_tape *t, mc_batch_model *b, const mc_chooser *c)
{
    int count = (int)c->call.rows;
    const mc_lengths *l = lengths_of_ones(t, count);
    if (!l || !mc_kv_cache_begin_rows(b->cache, t, l, c->rows)) return NULL;
    mc_stack_input in = new_input(b);
    in.lengths = l;
    in.ids = mc_row_field(t, c->rows, MC_ROW_TOKEN, count);
    in.positions = in.call.positions = mc_row_field(t, c->rows, MC_ROW_POSITION, count);
    if (!in.ids || !in.positions) return NULL;
    in.ids->lengths = l;
    in.call.kept = b->memory;
    if (b->memory && !mc_kv_memory_begin_rows(b->memory, t, l, c->rows)) return NULL;
    return decode(t, b, &in);
}

/* What a GPU records: all that changes stands in the chooser's rows and in the tables of pages. */
static void recorded_step(mc_context *ctx, void *batch)
{
    mc_batch_model *b = batch;
    mc_tape *t = mc_tape_begin_eval(ctx);
    ctx->device->chained = true;
    mc_tensor *logits = t ? run_rows(t, b, b->chooser) : NULL;
    if (logits) MC_KERNEL(t, "generation", choose_tokens, &b->chooser->call, mc_matrix_of(logits));
    ctx->device->chained = false;
    mc_tape_end(t);
}

bool mc_batch_model_step(mc_batch_model *b, const mc_chooser *c)
{
    b->chooser = c;
    return mc_step_run(b->m->module.ctx, (uint64_t)c->call.rows, recorded_step, b) == MC_OK;
}
