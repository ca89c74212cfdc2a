/* Models as generation sees them: prompts that join, whole or in pieces, then a token a row, over
 * caches in pages. */
#include "core/autograd/step_internal.h"
#include "models/generate/kv_cache_internal.h"
#include "core/ops/ops_internal.h"
#include "models/adapters/adapter_internal.h"
#include "models/generate/batch_model_internal.h"

struct mc_batch_model {
    mc_model *m;
    mc_kv_cache *cache;
    mc_kv_memory *memory;      /* of encoder-decoders; else NULL */
    const mc_chooser *chooser; /* of the step that is being run */
};

/* ---- what can be generated ------------------------------------------------------------------- */

bool mc_model_check_decodes(mc_model *m)
{
    mc_context *ctx = m->module.ctx;
    if (mc_failed(ctx)) return false;
    if (m->shape.kind == MC_MODEL_ENCODER)
        return !mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: an encoder does not generate text",
                        m->family->title);
    if (!m->heads.lm)
        return !mc_fail(ctx, MC_ERR_STATE, "%s: the model has no language model head",
                        m->family->title);
    if (m->encoder && mc_start_token(m) < 0)
        return !mc_fail(ctx, MC_ERR_STATE, "%s: the model has no decoder start token",
                        m->family->title);
    return true;
}

mc_decoder mc_model_decoder(mc_model *m)
{
    int64_t positions = m->shape.positions;
    int eos_count;
    const int32_t *eos = mc_model_end_tokens(m, &eos_count);
    return (mc_decoder){.ctx = m->module.ctx,
                        .model = m->family->title,
                        .of = m,
                        .vocab = m->shape.vocab_size,
                        .positions = positions ? positions : INT32_MAX,
                        .start = m->encoder ? (int32_t)mc_start_token(m) : -1,
                        .before = m->encoder ? 0 : mc_virtual_tokens(m),
                        .eos = eos,
                        .eos_count = eos_count};
}

/* ---- life ------------------------------------------------------------------------------------ */

static mc_kv_shape kv_shape(const mc_model *m)
{
    const mc_model_shape *s = &m->shape;
    return (mc_kv_shape){.dtype = m->module.root->dtype,
                         .layers = (int)(m->encoder ? s->decoder_layers : s->layers),
                         .width = (s->key_heads ? s->key_heads : s->heads) * s->head_dim};
}

mc_cache_plan mc_batch_model_plan(const mc_model *m, const mc_batch_shape *o)
{
    mc_kv_shape shape = kv_shape(m);
    int64_t page = (int64_t)1 << o->page_shift, pages = (o->tokens + page - 1) / page;
    if (m->encoder) pages += (o->memory_tokens + page - 1) / page;
    return (mc_cache_plan){o->rows, pages * page, mc_kv_bytes(&shape, pages * page)};
}

static mc_kv_pages *new_pages(const mc_model *m, const mc_batch_shape *o, int64_t longest,
                              int64_t tokens)
{
    mc_kv_pages *p = mc_kv_pages_new(m->module.ctx, o->rows, longest, tokens, o->page_shift);
    if (p) p->in_line = o->in_line;
    return p;
}

static bool make_cache(mc_batch_model *b, const mc_batch_shape *o)
{
    mc_context *ctx = b->m->module.ctx;
    b->cache = mc_kv_cache_new(ctx, kv_shape(b->m), new_pages(b->m, o, o->longest, o->tokens));
    if (!b->cache || !b->m->encoder) return b->cache;
    b->memory = mc_kv_memory_new(ctx, kv_shape(b->m),
                                 new_pages(b->m, o, o->memory_longest, o->memory_tokens));
    return b->memory;
}

mc_batch_model *mc_batch_model_new(mc_model *m, const mc_batch_shape *shape)
{
    mc_batch_model *b = mc_calloc(1, sizeof *b);
    if (!b) {
        mc_fail_nomem(m->module.ctx, "a batch");
        return NULL;
    }
    b->m = m;
    if (make_cache(b, shape)) return b;
    mc_batch_model_free(b);
    return NULL;
}

void mc_batch_model_free(mc_batch_model *b)
{
    if (!b) return;
    mc_batch_model_forget(b);
    mc_kv_cache_free(b->cache);
    mc_kv_memory_free(b->memory);
    mc_free(b);
}

void mc_batch_model_forget(mc_batch_model *b) { mc_step_forget_user(b->m->module.ctx, b); }

mc_kv_pages *mc_batch_model_pages(mc_batch_model *b) { return b->cache->pages; }

/* ---- sequences ------------------------------------------------------------------------------- */

/* Rows of the cache that are there before an answer's first token is run. */
static int64_t rows_before(const mc_model *m, int prompt)
{
    return m->encoder ? 1 : (int64_t)mc_virtual_tokens(m) + prompt;
}

/* Those of its own tokens, of which the last is not run. */
static int64_t rows_of_answer(int most) { return most - 1; }

static int64_t rows_of_input(const mc_model *m, int prompt)
{
    return m->encoder ? (int64_t)mc_virtual_tokens(m) + prompt : 0;
}

static void add_room(int64_t rows, int count, int page_shift, int64_t *longest, int64_t *tokens)
{
    int64_t page = (int64_t)1 << page_shift;
    if (rows > *longest) *longest = rows;
    *tokens += count * ((rows + page - 1) / page * page);
}

void mc_batch_shape_add(mc_batch_shape *s, mc_model *m, int prompt, int most, int answers,
                        int beams)
{
    int64_t own = rows_of_answer(most);
    add_room(rows_before(m, prompt) + own, answers, s->page_shift, &s->longest, &s->tokens);
    add_room(own, answers * (beams - 1), s->page_shift, &s->longest, &s->tokens);
    add_room(rows_of_input(m, prompt), answers, s->page_shift, &s->memory_longest,
             &s->memory_tokens);
    s->rows += answers * beams;
}

bool mc_batch_model_has_pieces(const mc_model *m)
{
    return !m->encoder && !m->family->has.marks && !m->family->places;
}

/* Of all beams of an answer, in whole pages. */
static int64_t rows_of_all(const mc_batch_model *b, int prompt, int most, int beams)
{
    const mc_kv_pages *p = b->cache->pages;
    int64_t own = rows_of_answer(most);
    return mc_kv_pages_round(p, rows_before(b->m, prompt) + own) +
           (beams - 1) * mc_kv_pages_round(p, own);
}

bool mc_batch_model_can(const mc_batch_model *b, int prompt, int most, int beams)
{
    const mc_kv_pages *p = b->cache->pages, *q = b->memory ? b->memory->pages : NULL;
    int64_t input = rows_of_input(b->m, prompt);
    return rows_before(b->m, prompt) + rows_of_answer(most) <= p->longest &&
           rows_of_all(b, prompt, most, beams) <= mc_kv_pages_rows(p) &&
           (!q || (input <= q->longest && input <= mc_kv_pages_rows(q)));
}

bool mc_batch_model_has_room(const mc_batch_model *b, int prompt, int most, int beams)
{
    return mc_kv_pages_have(b->cache->pages, rows_of_all(b, prompt, most, beams)) &&
           (!b->memory || mc_kv_pages_have(b->memory->pages, rows_of_input(b->m, prompt)));
}

void mc_batch_model_join(mc_batch_model *b, int sequence, int prompt, int most)
{
    mc_kv_pages_take(b->cache->pages, sequence, rows_before(b->m, prompt) + rows_of_answer(most));
    if (b->memory) mc_kv_pages_take(b->memory->pages, sequence, rows_of_input(b->m, prompt));
}

void mc_batch_model_join_beam(mc_batch_model *b, int sequence, int prompt, int most)
{
    mc_kv_pages_take_from(b->cache->pages, sequence, rows_before(b->m, prompt),
                          rows_of_answer(most));
}

void mc_batch_model_leave(mc_batch_model *b, int sequence)
{
    mc_kv_pages_give_back(b->cache->pages, sequence);
    if (b->memory) mc_kv_pages_give_back(b->memory->pages, sequence);
}

void mc_batch_model_fields(const mc_batch_model *b, int sequence, const int32_t *ids, int prompt,
                           int count, int32_t *fields)
{
    int32_t length = (int32_t)rows_before(b->m, prompt), position = length, place = 0;
    for (int i = 0; i < MC_ROW_FIELDS; i++) fields[i] = 0;
    if (b->m->family->places) (void)b->m->family->places(b->m, ids, prompt, &place, &position);
    fields[MC_ROW_POSITION] = position - 1 + count;
    fields[MC_ROW_PLACE] = place;
    fields[MC_ROW_LENGTH] = length + count;
    fields[MC_ROW_FIRST] = mc_kv_pages_first(b->cache->pages, sequence);
    fields[MC_ROW_STEP] = count;
    if (!b->memory) return;
    fields[MC_ROW_MEMORY] = mc_kv_pages_first(b->memory->pages, sequence);
    fields[MC_ROW_MEMORY_LENGTH] = (int32_t)rows_of_input(b->m, prompt);
}

/* ---- running --------------------------------------------------------------------------------- */

static mc_tensor *decode(mc_tape *t, mc_batch_model *b, mc_stack_input *in)
{
    mc_tensor *hidden = b->m->family->decode(t, b->m, in);
    mc_kv_cache_end(b->cache);
    mc_tensor *last = hidden ? mc_last_tokens(t, hidden) : NULL;
    return last ? mc_model_logits(t, b->m, last) : NULL;
}

static mc_stack_input new_input(mc_batch_model *b)
{
    return (mc_stack_input){.longest = b->cache->pages->longest,
                            .call = {.decode = &b->cache->decode}};
}

/* So many i32 of one value. */
static int32_t *repeated(mc_tape *t, int32_t value, int64_t count)
{
    int32_t *values = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *values);
    for (int64_t i = 0; values && i < count; i++) values[i] = value;
    return values;
}

/* As many sequences of one token. */
static const mc_lengths *lengths_of_ones(mc_tape *t, int count)
{
    int32_t *ones = repeated(t, 1, count);
    return ones ? mc_tape_lengths(t, ones, count, 1) : NULL;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static bool fill_input(mc_tape *t, const mc_lengths *l, const int32_t *ids, const int32_t *before,
                       mc_stack_input *in)
{
    if (!l) return false;
    in->lengths = l;
    in->ids = mc_tape_input(t, MC_I32, MC_SHAPE(l->total), ids, false);
    in->positions = in->call.positions = mc_pack_positions(t, l, before);
    if (!in->ids || !in->positions) return false;
    in->ids->lengths = l;
    return true;
}

/* What the decoder begins with, once the encoder has read the prompts. */
static bool encode(mc_tape *t, mc_batch_model *b, const mc_prompt_pass *p, const mc_lengths *l,
                   mc_stack_input *in)
{
    mc_stack_input encoded = {.longest = l->longest};
    if (!fill_input(t, l, p->ids, NULL, &encoded) ||
        !mc_virtual_tokens_prepend(t, b->m, &encoded) ||
        !mc_kv_memory_begin_prompts(b->memory, t, encoded.lengths, p->sequences))
        return false;
    int32_t *starts = repeated(t, (int32_t)mc_start_token(b->m), p->count);
    if (!starts || !fill_input(t, lengths_of_ones(t, p->count), starts, NULL, in)) return false;
    in->call.decode_memory = &b->memory->decode;
    in->call.memory = b->m->family->encode(t, b->m, &encoded);
    return in->call.memory;
}

/* CPM-1 reads its prompt as context. */
static bool mark_context(mc_tape *t, const mc_batch_model *b, mc_stack_input *in)
{
    if (!b->m->family->has.marks) return true;
    int64_t total = in->lengths->total;
    int32_t *marks = repeated(t, 1, total);
    in->call.marks = marks ? mc_tape_input(t, MC_I32, MC_SHAPE(total), marks, false) : NULL;
    return in->call.marks;
}

/* Tokens of the cache before those of each sequence of the pass; NULL: none. */
static const int32_t *cached_before(mc_tape *t, const mc_batch_model *b, const mc_prompt_pass *p)
{
    int32_t *before = p->before ? repeated(t, mc_virtual_tokens(b->m), p->count) : NULL;
    for (int i = 0; before && i < p->count; i++) before[i] += p->before[i];
    return before;
}

static mc_tensor *run_prompts(mc_tape *t, mc_batch_model *b, const mc_prompt_pass *p)
{
    const mc_lengths *l = mc_tape_lengths(t, p->lengths, p->count, 1);
    const int32_t *before = cached_before(t, b, p);
    mc_stack_input in = new_input(b);
    if (!l || (p->before && !before)) return NULL;
    if (b->m->encoder) {
        if (!encode(t, b, p, l, &in)) return NULL;
    } else if (!fill_input(t, l, p->ids, before, &in) ||
               (!before && !mc_virtual_tokens_prepend(t, b->m, &in))) {
        return NULL;
    }
    if (!mc_kv_cache_begin_prompts(b->cache, t, in.lengths, p->sequences, before) ||
        !mark_context(t, b, &in))
        return NULL;
    return decode(t, b, &in);
}

static mc_matrix row_of(const mc_tensor *logits, int64_t row)
{
    mc_matrix x = mc_matrix_of(logits);
    x.data = (char *)x.data + (size_t)(row * x.stride) * mc_dtype_size(x.dtype);
    return x;
}

/* The candidates of rows from a column on. */
static void find_best(mc_tape *t, const mc_chooser *c, int64_t column, int64_t rows, mc_matrix x)
{
    mc_best_call best = c->best;
    best.rows = rows;
    best.penalty += column;
    best.seen += column * mc_seen_words(best.vocab);
    best.best += column * best.count;
    MC_KERNEL(t, "generation", best_tokens, &best, x);
}

/* Those with columns one after the other choose together. */
static void choose_each(mc_tape *t, const mc_prompt_pass *p, const mc_chooser *c,
                        const mc_tensor *logits)
{
    for (int i = 0, end; i < p->whole; i = end) {
        end = i + 1;
        if (p->searched[i]) {
            find_best(t, c, p->columns[i], 1, row_of(logits, i));
            continue;
        }
        while (end < p->whole && !p->searched[end] && p->columns[end] == p->columns[end - 1] + 1)
            end++;
        mc_choose_call call = c->call;
        call.rows = end - i;
        call.state += p->columns[i];
        MC_KERNEL(t, "generation", choose_tokens, &call, row_of(logits, i));
    }
}

bool mc_batch_model_prompts(mc_batch_model *b, const mc_prompt_pass *pass, const mc_chooser *c)
{
    mc_context *ctx = b->m->module.ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *logits = t ? run_prompts(t, b, pass) : NULL;
    if (logits) choose_each(t, pass, c, logits);
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
    if (b->m->family->places) {
        in.blocks = in.positions;
        in.positions = in.call.positions = mc_row_field(t, c->rows, MC_ROW_PLACE, count);
    }
    if (!in.ids || !in.positions) return NULL;
    in.ids->lengths = l;
    if (b->memory) {
        if (!mc_kv_memory_begin_rows(b->memory, t, l, c->rows)) return NULL;
        in.call.decode_memory = &b->memory->decode;
    }
    return decode(t, b, &in);
}

/* What a GPU records: all that changes stands in the chooser's rows and in the tables of pages. */
static void recorded_step(mc_context *ctx, void *batch)
{
    mc_batch_model *b = batch;
    const mc_chooser *c = b->chooser;
    mc_tape *t = mc_tape_begin_eval(ctx);
    if (!t) return;
    mc_list_open(ctx->device);
    mc_tensor *logits = run_rows(t, b, c);
    if (logits) MC_KERNEL(t, "generation", choose_tokens, &c->call, mc_matrix_of(logits));
    if (logits && c->best.rows) find_best(t, c, 0, c->best.rows, mc_matrix_of(logits));
    mc_op_ok(t, "generation", mc_list_close(ctx->device));
    mc_tape_end(t);
}

bool mc_batch_model_step(mc_batch_model *b, const mc_chooser *c)
{
    const mc_best_call *best = &c->best;
    uint64_t searched = best->rows ? (uint64_t)best->count << 32 : 0;
    b->chooser = c;
    return mc_step_run(b->m->module.ctx, searched | (uint64_t)c->call.rows, recorded_step, b) ==
           MC_OK;
}
