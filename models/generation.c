/* Models as generation sees them: prompts are run whole, then a token a sequence over the cache. */
#include "core/autograd/step_internal.h"
#include "core/nn/kv_cache_internal.h"
#include "core/ops/ops_internal.h"
#include "models/generate/batch_internal.h"
#include "models/adapter_internal.h"

typedef struct model_decoder {
    mc_model *m;
    mc_kv_cache *cache;
    /* of encoder-decoders */
    mc_kv_memory *memory;
    int32_t *prompt_ids, *prompt_lengths; /* packed: what the encoder gets */
    int prompts, sequences;
    const mc_chooser *chooser; /* of the step that is being run */
} model_decoder;

static mc_kv_shape kv_shape(const mc_model *m, int sequences, int64_t capacity)
{
    const mc_model_shape *s = &m->shape;
    return (mc_kv_shape){.dtype = m->module.root->dtype,
                         .layers = (int)(m->encoder && m->decoder ? s->decoder_layers : s->layers),
                         .width = s->heads * s->head_dim,
                         .sequences = sequences,
                         .capacity = capacity};
}

/* Virtual tokens in the cache of a decoder, before the tokens of every sequence. */
static int tokens_before(const mc_model *m) { return m->encoder ? 0 : mc_virtual_tokens(m); }

static bool begin(void *state, int sequences, int64_t capacity)
{
    model_decoder *d = state;
    d->sequences = sequences;
    d->cache = mc_kv_cache_new(d->m->module.ctx, kv_shape(d->m, sequences, capacity));
    return d->cache;
}

/* The encoder's result for the prompts, and room for what the decoder's layers make of it. */
static mc_tensor *encode(mc_tape *t, model_decoder *d)
{
    const mc_lengths *l = mc_tape_lengths(t, d->prompt_lengths, d->prompts, 1);
    if (!l) return NULL;
    mc_stack_input in = {.lengths = l, .longest = l->longest};
    in.ids = mc_tape_input(t, MC_I32, MC_SHAPE(l->total), d->prompt_ids, false);
    in.positions = in.call.positions = mc_pack_positions(t, l, NULL);
    if (!in.ids || !in.positions) return NULL;
    in.ids->lengths = l;
    if (!mc_virtual_tokens_prepend(t, d->m, &in)) return NULL;
    d->memory = mc_kv_memory_new(d->m->module.ctx, kv_shape(d->m, d->sequences, 0), in.lengths);
    return d->memory ? d->m->family->encode(t, d->m, &in) : NULL;
}

/* CPM-1 reads its prompt as context. */
static mc_tensor *context_marks(mc_tape *t, int64_t total)
{
    int32_t *marks = mc_tape_alloc(t, ((size_t)total + 1) * sizeof *marks);
    for (int64_t i = 0; marks && i < total; i++) marks[i] = 1;
    return marks ? mc_tape_input(t, MC_I32, MC_SHAPE(total), marks, false) : NULL;
}

/* What the decoder's layers get: `first` alone sees the encoder's result. */
static bool join_memory(mc_tape *t, model_decoder *d, mc_stack_input *in, bool first)
{
    if (!d->m->encoder) return true;
    if (first && !(in->call.memory = encode(t, d))) return false;
    in->call.kept = d->memory;
    return d->memory;
}

static mc_tensor *decode(mc_tape *t, model_decoder *d, mc_stack_input *in)
{
    mc_tensor *hidden = d->m->family->decode(t, d->m, in);
    mc_kv_cache_end(d->cache);
    mc_tensor *last = hidden ? mc_last_tokens(t, hidden) : NULL;
    return last ? mc_model_logits(t, d->m, last) : NULL;
}

static mc_stack_input input_of(const model_decoder *d, const mc_lengths *l)
{
    return (mc_stack_input){
        .lengths = l, .longest = d->cache->shape.capacity, .call = {.cache = d->cache}};
}

/* The logits after ids from the host. */
static mc_tensor *run(mc_tape *t, model_decoder *d, const int32_t *ids, const int32_t *lengths,
                      int count)
{
    mc_model *m = d->m;
    const mc_lengths *l = mc_tape_lengths(t, lengths, count, 1);
    if (!l) return NULL;
    bool first = d->cache->used == 0;
    mc_stack_input in = input_of(d, l);
    in.ids = mc_tape_input(t, MC_I32, MC_SHAPE(l->total), ids, false);
    in.positions = in.call.positions = mc_pack_positions(t, l, first ? NULL : d->cache->length);
    if (!in.ids || !in.positions) return NULL;
    in.ids->lengths = l;
    if (first && !m->encoder && !mc_virtual_tokens_prepend(t, m, &in)) return NULL;
    if (!mc_kv_cache_begin(d->cache, t, in.lengths)) return NULL;
    if (!join_memory(t, d, &in, first)) return NULL;
    if (d->memory && !mc_kv_memory_begin(d->memory, t, l)) return NULL;
    if (m->family->has.marks && first) in.call.marks = context_marks(t, l->total);
    return decode(t, d, &in);
}

/* And after the tokens of a chooser's rows. */
static mc_tensor *run_rows(mc_tape *t, model_decoder *d, const mc_chooser *c)
{
    int count = (int)c->call.rows;
    int32_t *ones = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *ones);
    for (int i = 0; ones && i < count; i++) ones[i] = 1;
    const mc_lengths *l = ones ? mc_tape_lengths(t, ones, count, 1) : NULL;
    if (!l || !mc_kv_cache_begin_rows(d->cache, t, l, c->rows)) return NULL;
    d->cache->table = c->table;
    mc_stack_input in = input_of(d, l);
    in.ids = mc_row_field(t, c->rows, MC_ROW_TOKEN, count);
    in.positions = in.call.positions = mc_row_field(t, c->rows, MC_ROW_POSITION, count);
    if (!in.ids || !in.positions) return NULL;
    in.ids->lengths = l;
    if (!join_memory(t, d, &in, false)) return NULL;
    if (d->memory && !mc_kv_memory_begin_rows(d->memory, t, l, c->rows)) return NULL;
    return decode(t, d, &in);
}

/* ---- choosing on the device ------------------------------------------------------------------ */

static void choose_from(mc_tape *t, const mc_chooser *c, const mc_tensor *logits)
{
    if (!logits ||
        !mc_op_shape(t, "generation", "logits", logits, MC_SHAPE(c->call.rows, c->call.vocab)))
        return;
    mc_best_call best = c->best;
    best.rows = c->call.rows;
    if (best.best)
        MC_KERNEL(t, "generation", best_tokens, &best, mc_matrix_of(logits));
    else
        MC_KERNEL(t, "generation", choose_tokens, &c->call, mc_matrix_of(logits));
}

static bool choose(void *state, const int32_t *ids, const int32_t *lengths, int count,
                   mc_chooser *c)
{
    model_decoder *d = state;
    mc_context *ctx = d->m->module.ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    d->cache->spread = c->spread ? c->spread : 1;
    if (t) choose_from(t, c, run(t, d, ids, lengths, count));
    mc_tape_end(t);
    return !mc_failed(ctx);
}

/* A step that a GPU records: all that changes stands in the chooser's rows. */
static void recorded_step(mc_context *ctx, void *state)
{
    model_decoder *d = state;
    mc_tape *t = mc_tape_begin_eval(ctx);
    ctx->device->chained = true;
    if (t) choose_from(t, d->chooser, run_rows(t, d, d->chooser));
    ctx->device->chained = false;
    mc_tape_end(t);
}

static bool choose_next(void *state, mc_chooser *c)
{
    model_decoder *d = state;
    d->chooser = c;
    return mc_step_run(d->m->module.ctx, (uint64_t)c->call.rows, recorded_step, d) == MC_OK;
}

static void place(void *state, int sequence, int32_t *row, int64_t stride)
{
    const model_decoder *d = state;
    int32_t memory = 0;
    int32_t n = mc_virtual_tokens(d->m);
    for (int i = 0; i < sequence && d->m->encoder; i++) memory += d->prompt_lengths[i] + n;
    row[MC_ROW_FIRST * stride] = (int32_t)(sequence * d->cache->shape.capacity);
    row[MC_ROW_MEMORY * stride] = memory;
    row[MC_ROW_MEMORY_LENGTH * stride] = d->m->encoder ? d->prompt_lengths[sequence] + n : 0;
}

static void end(void *state)
{
    model_decoder *d = state;
    if (!d) return;
    mc_step_forget_user(d->m->module.ctx, d);
    mc_kv_cache_free(d->cache);
    mc_kv_memory_free(d->memory);
    mc_free(d->prompt_ids);
    mc_free(d->prompt_lengths);
    mc_free(d);
}

/* ---- what generation is given ---------------------------------------------------------------- */

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

/* The prompts as the encoder gets them. */
static bool copy_prompts(model_decoder *d, const int32_t *const *prompts, const int *lengths,
                         int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++) total += lengths[i] > 0 ? (size_t)lengths[i] : 0;
    d->prompts = count;
    d->prompt_ids = mc_malloc((total + 1) * sizeof *d->prompt_ids);
    d->prompt_lengths = mc_malloc(((size_t)count + 1) * sizeof *d->prompt_lengths);
    if (!d->prompt_ids || !d->prompt_lengths) return false;
    int32_t *end = d->prompt_ids;
    for (int i = 0; i < count; i++) {
        d->prompt_lengths[i] = lengths[i];
        for (int k = 0; k < lengths[i]; k++) *end++ = prompts[i][k];
    }
    return true;
}

mc_decoder mc_model_decoder(mc_model *m)
{
    int64_t positions = m->shape.positions;
    const mc_generation_config *file = &m->generation; /* says more than config.json */
    return (mc_decoder){.ctx = m->module.ctx,
                        .model = m->family->title,
                        .vocab = m->shape.vocab_size,
                        .positions = positions ? positions : INT32_MAX,
                        .before = tokens_before(m),
                        .eos = file->eos_count ? file->eos : m->eos,
                        .eos_count = file->eos_count ? file->eos_count : m->eos_count};
}

static mc_decoder new_decoder(mc_model *m)
{
    mc_decoder d = mc_model_decoder(m);
    d.begin = begin;
    d.choose = choose;
    d.choose_next = choose_next;
    d.place = place;
    d.end = end;
    model_decoder *state = mc_calloc(1, sizeof *state);
    if (state)
        state->m = m;
    else
        mc_fail_nomem(d.ctx, "a decoder");
    d.state = state;
    return d;
}

/* One call of generation: the decoder and what it starts from. */
typedef struct generation_start {
    mc_decoder decoder;
    mc_generate_options options;
    const int32_t **prompts; /* (count) */
    int *lengths;
    int count; /* of prompts, each repeated for as many answers as are drawn */
    int32_t start;
} generation_start;

/* The prompts, one for each row of the decoder's batch. */
static bool repeat_prompts(mc_model *m, const int32_t *const *prompts, const int *lengths,
                           int count, generation_start *s)
{
    int each = s->options.sample ? s->options.num_return_sequences : 1;
    if (each < 1) each = 1;
    if (!mc_check_prompts(&s->decoder, prompts, lengths, count)) return false;
    if (count > INT32_MAX / each)
        return !mc_fail(m->module.ctx, MC_ERR_ARGUMENT,
                        "generation with %s: %d answers to each of %d prompts are too many",
                        m->family->title, each, count);
    s->count = count * each;
    s->prompts = mc_malloc(((size_t)s->count + 1) * sizeof *s->prompts);
    s->lengths = mc_malloc(((size_t)s->count + 1) * sizeof *s->lengths);
    if (!s->prompts || !s->lengths) return !mc_fail_nomem(m->module.ctx, "the prompts");
    for (int i = 0; i < s->count; i++) {
        s->prompts[i] = prompts[i / each];
        s->lengths[i] = lengths[i / each];
    }
    return true;
}

/* An encoder-decoder's prompts go to its encoder, and its answers go on from the start token. */
static bool start_decoders(mc_model *m, generation_start *s)
{
    if (!copy_prompts(s->decoder.state, s->prompts, s->lengths, s->count))
        return !mc_fail_nomem(m->module.ctx, "the prompts");
    s->start = (int32_t)mc_start_token(m);
    for (int i = 0; i < s->count; i++) {
        s->prompts[i] = &s->start;
        s->lengths[i] = 1;
    }
    return true;
}

/* Whoever takes the decoder over looks for errors, and so frees it. */
static bool start_generation(mc_model *m, const int32_t *const *prompts, const int *lengths,
                             int count, const mc_generate_options *options, generation_start *s)
{
    *s = (generation_start){.count = count};
    if (options)
        s->options = *options;
    else if (mc_model_generate_options(m, &s->options))
        return false;
    if (!mc_model_check_decodes(m)) return false;
    s->decoder = new_decoder(m);
    if (!mc_failed(m->module.ctx) && repeat_prompts(m, prompts, lengths, count, s) && m->encoder)
        start_decoders(m, s);
    return true;
}

static void release_start(generation_start *s)
{
    mc_free((void *)s->prompts);
    mc_free(s->lengths);
}

mc_generator *mc_model_generator_new(mc_model *m, const int32_t *const *prompts, const int *lengths,
                                     int count, const mc_generate_options *options)
{
    generation_start s;
    if (!m || !start_generation(m, prompts, lengths, count, options, &s)) return NULL;
    mc_generator *g = mc_generator_new(&s.decoder, s.prompts, s.lengths, s.count, &s.options);
    release_start(&s);
    return g;
}

mc_generation *mc_model_generate(mc_model *m, const int32_t *const *prompts, const int *lengths,
                                 int count, const mc_generate_options *options)
{
    generation_start s;
    if (!m || !start_generation(m, prompts, lengths, count, options, &s)) return NULL;
    mc_generation *out = mc_generate(&s.decoder, s.prompts, s.lengths, s.count, &s.options);
    release_start(&s);
    return out;
}
