/* Beam search with the rules, and to the tie the results, of Hugging Face's generate(). Scores are
 * f32 as there; what must not be chosen gets a score far below all others.
 *
 * The device finds the most probable continuations of every beam; the host reads these few alone
 * and decides. Beam b of prompt i is the cache's sequence i * beams + b. Where it goes on with
 * another's tokens, no key or value moves: pages have one token, and a beam gets its parent's part
 * of their table. A token is written to the page of its own sequence, where nothing else is written
 * at that position. */
#include <math.h>
#include <string.h>
#include "models/generate/batch_internal.h"

static const float excluded = -1e9f;

/* A hypothesis: new tokens and a score. */
typedef struct beam {
    int32_t *ids;     /* (max_new_tokens) */
    float *log_probs; /* the same */
    int length;
    float score;
} beam;

/* A continuation of one of the running beams. */
typedef struct candidate {
    int beam;
    int32_t token;
    float log_prob, score;
    bool ends;
} candidate;

/* The search for one prompt. */
typedef struct search {
    beam *running, *next, *finished; /* (beams) */
    int running_count, finished_count;
    candidate *candidates; /* (most), best first */
    int candidate_count;
    bool over;
} search;

typedef struct beam_search {
    const mc_generate_call *call;
    mc_context *ctx;
    mc_batch_model *model;
    mc_kv_pages *pages;
    mc_chooser chooser;
    int beams, longest; /* longest: new tokens at most of any answer */
    int most;           /* candidates that are looked at each step */
    search *searches;   /* (prompts) */
    int *batch;         /* the prompts that have rows: batch_count, in their order */
    int batch_count, rows_each, rows, steps;
    int32_t *moved;     /* (beams, pages->each) the next part of the table */
    bool table_changed; /* since the device has got it */
    mc_chosen *best;    /* (rows, chooser.best.count), pinned memory */
    size_t best_bytes;  /* on the device, too */
    uint32_t *seen;     /* (rows, words); NULL: no penalty */
    int32_t *state;     /* (MC_ROW_FIELDS, prompts * beams): what rows are set to */
} beam_search;

static mc_device *device_of(const beam_search *s) { return s->ctx->device; }

/* Rows of all beams of all prompts. */
static int all_rows(const beam_search *s) { return s->call->count * s->beams; }

/* New tokens at most of a prompt's answers. */
static int most_of(const beam_search *s, int prompt)
{
    return mc_most_new(&s->call->decoder, &s->call->options, s->call->lengths[prompt]);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A cache whose pages are tokens. An encoder's memory is that of its prompt's first beam. */
bool mc_beam_shape(const mc_generate_call *call, mc_batch_shape *shape)
{
    int beams = call->options.num_beams;
    *shape = (mc_batch_shape){0};
    for (int i = 0; i < call->count; i++) {
        int most = mc_most_new(&call->decoder, &call->options, call->lengths[i]);
        mc_batch_shape_add(shape, call->model, call->lengths[i], most, beams, 1);
        if (shape->rows * shape->longest > INT32_MAX || shape->memory_tokens > INT32_MAX)
            return !mc_fail(call->decoder.ctx, MC_ERR_ARGUMENT,
                            "generation with %s: %d sequences or more of %lld tokens are too many",
                            call->decoder.model, shape->rows, (long long)shape->longest);
    }
    return true;
}

static beam *new_beams(const beam_search *s)
{
    beam *beams = mc_calloc((size_t)s->beams + 1, sizeof *beams);
    size_t most = (size_t)s->longest;
    bool good = beams;
    for (int i = 0; good && i < s->beams; i++)
        good = (beams[i].ids = mc_malloc(most * sizeof *beams[i].ids)) &&
               (beams[i].log_probs = mc_malloc(most * sizeof *beams[i].log_probs));
    return beams; /* what is missing is found by has_memory */
}

static void free_beams(const beam_search *s, beam *beams)
{
    for (int i = 0; beams && i < s->beams; i++) {
        mc_free(beams[i].ids);
        mc_free(beams[i].log_probs);
    }
    mc_free(beams);
}

static bool has_memory(const beam_search *s, const beam *beams)
{
    return beams && beams[s->beams - 1].log_probs;
}

static void release(beam_search *s)
{
    mc_chooser *c = &s->chooser;
    mc_device *d = device_of(s);
    for (int i = 0; s->searches && i < s->call->count; i++) {
        free_beams(s, s->searches[i].running);
        free_beams(s, s->searches[i].next);
        free_beams(s, s->searches[i].finished);
        mc_free(s->searches[i].candidates);
    }
    mc_batch_model_free(s->model);
    if (c->best.best) d->free(d, c->best.best, s->best_bytes);
    if (c->seen) d->free(d, c->seen, c->seen_bytes);
    if (s->best) d->host_free(d, s->best, s->best_bytes);
    mc_tensor_free(c->rows);
    mc_free(s->searches);
    mc_free(s->batch);
    mc_free(s->moved);
    mc_free(s->seen);
    mc_free(s->state);
}

static bool make_searches(beam_search *s)
{
    bool good = (s->searches = mc_calloc((size_t)s->call->count + 1, sizeof *s->searches)) &&
                (s->batch = mc_malloc(((size_t)s->call->count + 1) * sizeof *s->batch));
    for (int i = 0; good && i < s->call->count; i++) {
        search *p = &s->searches[i];
        p->running = new_beams(s);
        p->next = new_beams(s);
        p->finished = new_beams(s);
        p->candidates = mc_malloc(((size_t)s->most + 1) * sizeof *p->candidates);
        good = has_memory(s, p->running) && has_memory(s, p->next) && has_memory(s, p->finished) &&
               p->candidates;
        p->running_count = 1; /* all beams would begin alike */
    }
    return good;
}

static bool make_model(beam_search *s)
{
    const mc_generate_call *call = s->call;
    mc_batch_shape shape;
    if (!mc_beam_shape(call, &shape)) return false;
    if (!(s->model = mc_batch_model_new(call->model, &shape))) return false;
    s->pages = mc_batch_model_pages(s->model);
    for (int i = 0; i < all_rows(s); i++) {
        int length = call->lengths[i / s->beams], most = most_of(s, i / s->beams);
        if (i % s->beams)
            mc_kv_pages_take(s->pages, i, mc_batch_model_rows(call->model, length, most));
        else
            mc_batch_model_join(s->model, i, length, most);
    }
    return true;
}

/* What the device needs, for as many rows as there can be. */
static bool make_chooser(beam_search *s)
{
    mc_chooser *c = &s->chooser;
    mc_device *d = device_of(s);
    int64_t vocab = s->call->decoder.vocab, rows = all_rows(s);
    c->best = (mc_best_call){.vocab = vocab,
                             .count = (int32_t)(s->most < vocab ? s->most : vocab),
                             .penalty = s->call->options.repetition_penalty};
    c->call.vocab = vocab;
    s->best_bytes = (size_t)(rows * c->best.count) * sizeof *s->best;
    if (c->best.penalty != 1) {
        c->seen_bytes = (size_t)(rows * mc_seen_words(vocab)) * sizeof *s->seen;
        s->seen = mc_malloc(c->seen_bytes);
        c->seen = d->alloc(d, c->seen_bytes);
        if (!s->seen || !c->seen) return false;
        c->best.seen = c->seen;
    }
    c->best.best = d->alloc(d, s->best_bytes);
    s->best = d->host_alloc(d, s->best_bytes);
    s->state = mc_calloc((size_t)rows * MC_ROW_FIELDS, sizeof *s->state);
    s->moved = mc_malloc((size_t)s->beams * (size_t)s->pages->each * sizeof *s->moved);
    c->rows = mc_tensor_new_computed(s->ctx, MC_SHAPE(MC_ROW_FIELDS, rows));
    return c->best.best && s->best && s->state && s->moved && c->rows;
}

static bool init(beam_search *s, const mc_generate_call *call)
{
    int eos = call->options.eos_count;
    int64_t every = (int64_t)call->options.num_beams * call->decoder.vocab;
    *s = (beam_search){.call = call,
                       .ctx = call->decoder.ctx,
                       .beams = call->options.num_beams,
                       .longest = 1,
                       .rows_each = 1};
    s->most = (eos > 1 ? 1 + eos : 2) * s->beams;
    if (s->most > every) s->most = (int)every;
    for (int i = 0; i < call->count; i++)
        if (most_of(s, i) > s->longest) s->longest = most_of(s, i);
    if (call->count && !make_model(s)) return false;
    if (!make_searches(s) || (call->count && !make_chooser(s)))
        mc_fail_nomem(s->ctx, "beam search");
    for (int i = 0; !mc_failed(s->ctx) && i < call->count; i++) s->batch[s->batch_count++] = i;
    return !mc_failed(s->ctx);
}

/* ---- one step of one prompt ------------------------------------------------------------------ */

/* Puts a candidate in its place if it is among the best so far; of equals the first is better. */
static void offer(const beam_search *s, search *p, candidate c)
{
    int at = p->candidate_count;
    if (at == s->most && !(c.score > p->candidates[at - 1].score)) return;
    if (at < s->most) p->candidate_count++;
    if (at == s->most) at--;
    for (; at > 0 && c.score > p->candidates[at - 1].score; at--)
        p->candidates[at] = p->candidates[at - 1];
    p->candidates[at] = c;
}

/* The continuations of one beam, as the device has found them in a row. */
static bool extend(const beam_search *s, int prompt, int number, int row)
{
    search *p = &s->searches[prompt];
    int32_t count = s->chooser.best.count;
    const mc_chosen *best = s->best + (int64_t)row * count;
    if (best->token == MC_CHOSEN_NOT_FINITE)
        return !mc_fail(s->ctx, MC_ERR_STATE,
                        "generation with %s: the logits of beam %d of prompt %d are not finite",
                        s->call->decoder.model, number, prompt);
    for (int32_t i = 0; i < count && best[i].token >= 0; i++) {
        float x = best[i].log_probability;
        offer(s, p, (candidate){number, best[i].token, x, x + p->running[number].score, false});
    }
    return true;
}

static void copy_beam(beam *to, const beam *from, const candidate *c)
{
    memcpy(to->ids, from->ids, (size_t)from->length * sizeof *to->ids);
    memcpy(to->log_probs, from->log_probs, (size_t)from->length * sizeof *to->log_probs);
    to->ids[from->length] = c->token;
    to->log_probs[from->length] = c->log_prob;
    to->length = from->length + 1;
    to->score = c->score;
}

/* Keeps a finished hypothesis if it is among the best. */
static void finish(const beam_search *s, search *p, const candidate *c, float score)
{
    int at = p->finished_count;
    if (at == s->beams && !(score > p->finished[at - 1].score)) return;
    if (at < s->beams) p->finished_count++;
    if (at == s->beams) at--;
    beam place = p->finished[at];
    for (; at > 0 && score > p->finished[at - 1].score; at--) p->finished[at] = p->finished[at - 1];
    copy_beam(&place, &p->running[c->beam], c);
    place.score = score;
    p->finished[at] = place;
}

/* The best candidates that have not ended run on; parents[i] is the beam that beam i was. */
static void run_on(const beam_search *s, search *p, int *parents)
{
    int n = 0;
    for (int ended = 0; ended < 2; ended++) /* those that ended only where others are missing */
        for (int i = 0; i < p->candidate_count && n < s->beams; i++) {
            candidate *c = &p->candidates[i];
            if (c->ends != ended) continue;
            copy_beam(&p->next[n], &p->running[c->beam], c);
            if (ended) p->next[n].score += excluded;
            parents[n++] = c->beam;
        }
    beam *old = p->running;
    p->running = p->next;
    p->next = old;
    p->running_count = n;
}

static bool ends(const beam_search *s, int prompt, const candidate *c)
{
    const mc_generate_options *o = &s->call->options;
    const beam *b = &s->searches[prompt].running[c->beam];
    int count = b->length + 1;
    b->ids[b->length] = c->token; /* to be asked about, behind what is there */
    if (count == most_of(s, prompt)) return true;
    for (int i = 0; i < o->eos_count; i++)
        if (o->eos[i] == c->token) return true;
    return o->stop && o->stop(o->stop_user, prompt, b->ids, count);
}

/* Goes one token further, by the candidates that were found. */
static void advance(const beam_search *s, int prompt, int *parents)
{
    const mc_generate_options *o = &s->call->options;
    search *p = &s->searches[prompt];
    int length = p->running[0].length + 1;
    float norm = (float)pow(length, (double)o->length_penalty);
    bool full = p->finished_count == s->beams && o->early_stopping;
    for (int i = 0; i < p->candidate_count; i++) {
        candidate *c = &p->candidates[i];
        c->ends = ends(s, prompt, c);
        if (c->ends && i < s->beams && !full) finish(s, p, c, c->score / norm);
    }
    run_on(s, p, parents);
    bool all = p->finished_count == s->beams;
    float best = p->running[0].score / norm;
    p->over = length == most_of(s, prompt) || (all && o->early_stopping) ||
              (all && !(best > p->finished[s->beams - 1].score));
}

/* ---- all prompts ----------------------------------------------------------------------------- */

/* The tokens of a row's prompt and beam. */
static void mark_seen(const beam_search *s, int prompt, int number, int row)
{
    const beam *b = &s->searches[prompt].running[number];
    int64_t words = mc_seen_words(s->call->decoder.vocab);
    uint32_t *seen = s->seen + row * words;
    int count = s->call->lengths[prompt];
    const int32_t *ids = mc_decoder_begins(&s->call->decoder, s->call->prompts[prompt], &count);
    memset(seen, 0, (size_t)words * sizeof *seen);
    for (int i = 0; i < count; i++) mc_see(seen, ids[i]);
    for (int i = 0; i < b->length; i++) mc_see(seen, b->ids[i]);
}

/* What a step needs of a beam. Where there is none, or its prompt is done, the row sees no token
 * and nothing comes of it. */
static void set_row(const beam_search *s, int prompt, int number, int row)
{
    const search *p = &s->searches[prompt];
    bool there = !p->over && number < p->running_count;
    const beam *b = &p->running[there ? number : 0];
    int32_t fields[MC_ROW_FIELDS];
    int first = prompt * s->beams;
    mc_batch_model_fields(s->model, first, s->call->lengths[prompt], b->length, fields);
    fields[MC_ROW_FIRST] = mc_kv_pages_first(s->pages, first + number);
    fields[MC_ROW_TOKEN] = b->ids[b->length - 1];
    if (!there) fields[MC_ROW_LENGTH] = fields[MC_ROW_MEMORY_LENGTH] = 0;
    for (int f = 0; f < MC_ROW_FIELDS; f++) s->state[f * all_rows(s) + row] = fields[f];
    if (s->seen && there) mark_seen(s, prompt, number, row);
}

/* Rows for the batch, sent to the device with what else has changed. */
static void send_rows(beam_search *s)
{
    mc_chooser *c = &s->chooser;
    mc_device *d = device_of(s);
    for (int i = 0; i < s->rows; i++) set_row(s, s->batch[i / s->beams], i % s->beams, i);
    mc_tensor_write(c->rows, s->state, (size_t)(all_rows(s) * MC_ROW_FIELDS) * sizeof *s->state);
    if (s->table_changed) mc_kv_pages_send(s->pages);
    s->table_changed = false;
    if (s->seen) d->copy_in(d, c->seen, s->seen, c->seen_bytes);
}

static bool run_prompts(beam_search *s)
{
    const mc_generate_call *call = s->call;
    mc_device *d = device_of(s);
    size_t total = 0;
    for (int i = 0; i < call->count; i++) total += (size_t)call->lengths[i];
    int32_t *ids = mc_malloc((total + 1) * sizeof *ids), *end = ids;
    int *sequences = mc_malloc(((size_t)call->count + 1) * sizeof *sequences);
    bool good = ids && sequences;
    for (int i = 0; good && i < call->count; i++) {
        memcpy(end, call->prompts[i], (size_t)call->lengths[i] * sizeof *end);
        end += call->lengths[i];
        sequences[i] = i * s->beams;
        if (s->seen) mark_seen(s, i, 0, i);
    }
    const mc_prompt_pass pass = {.ids = ids,
                                 .lengths = call->lengths,
                                 .sequences = sequences,
                                 .count = call->count,
                                 .whole = call->count};
    if (!good) mc_fail_nomem(s->ctx, "the prompts");
    if (good && s->seen) d->copy_in(d, s->chooser.seen, s->seen, s->chooser.seen_bytes);
    good = good && mc_batch_model_prompts(s->model, &pass, &s->chooser);
    mc_free(ids);
    mc_free(sequences);
    return good;
}

/* Runs the prompts (the first time) or the beams, and reads the candidates. */
static bool run(beam_search *s)
{
    mc_chooser *c = &s->chooser;
    mc_device *d = device_of(s);
    c->call.rows = s->rows = s->batch_count * s->rows_each;
    if (s->steps) send_rows(s);
    bool good = s->steps ? mc_batch_model_step(s->model, c) : run_prompts(s);
    if (!good || mc_failed(s->ctx)) return false;
    size_t bytes = (size_t)s->rows * (size_t)c->best.count * sizeof *s->best;
    if (d->wait(d, d->copy_out_later(d, s->best, c->best.best, bytes))) return true;
    return !mc_fail(s->ctx, MC_ERR_DEVICE, "generation with %s: %s", s->call->decoder.model,
                    d->failure);
}

/* Each beam gets its parent's part of the table, up to the parent's last token. */
static void follow(beam_search *s, int prompt, const int *parents)
{
    const search *p = &s->searches[prompt];
    int32_t fields[MC_ROW_FIELDS], each = s->pages->each;
    mc_batch_model_fields(s->model, prompt * s->beams, s->call->lengths[prompt],
                          p->running[0].length - 1, fields);
    size_t bytes = (size_t)fields[MC_ROW_LENGTH] * sizeof *s->moved;
    int32_t *table = s->pages->host + (int64_t)prompt * s->beams * each;
    for (int b = 0; b < p->running_count; b++)
        memcpy(s->moved + (int64_t)b * each, table + (int64_t)parents[b] * each, bytes);
    for (int b = 0; b < p->running_count; b++) {
        if (parents[b] == b) continue;
        memcpy(table + (int64_t)b * each, s->moved + (int64_t)b * each, bytes);
        s->table_changed = true;
    }
}

/* Takes prompts out that are done: at once where the host computes, else when half of them are. */
static void drop_done(beam_search *s)
{
    int left = 0;
    for (int i = 0; i < s->batch_count; i++) left += !s->searches[s->batch[i]].over;
    if (left && !device_of(s)->is_host && 2 * left > s->batch_count) return;
    s->batch_count = 0;
    for (int i = 0; i < s->call->count; i++)
        if (!s->searches[i].over) s->batch[s->batch_count++] = i;
}

/* Takes a step for every prompt of the batch. */
static bool step(beam_search *s, int *parents)
{
    if (!run(s)) return false;
    for (int k = 0; k < s->batch_count; k++) {
        int prompt = s->batch[k];
        search *p = &s->searches[prompt];
        if (p->over) continue;
        p->candidate_count = 0;
        for (int b = 0; b < p->running_count; b++)
            if (!extend(s, prompt, b, k * s->rows_each + b)) return false;
        advance(s, prompt, parents);
        if (!p->over) follow(s, prompt, parents);
    }
    s->steps++;
    s->rows_each = s->beams;
    drop_done(s);
    return true;
}

/* The best hypotheses of each prompt; the search loses their arrays. */
static mc_answer *take_best(beam_search *s)
{
    int each = s->call->options.num_return_sequences, count = s->call->count * each;
    mc_answer *found = mc_answers_new(count);
    for (int i = 0; found && i < count; i++) {
        search *p = &s->searches[i / each];
        beam *b = &p->finished[i % each];
        found[i].score = -INFINITY;
        if (i % each >= p->finished_count) continue; /* a vocabulary smaller than the beams */
        found[i] = (mc_answer){
            .ids = b->ids, .log_probs = b->log_probs, .length = b->length, .score = b->score};
        *b = (beam){NULL};
    }
    if (!found) mc_fail_nomem(s->ctx, "beam search");
    return found;
}

mc_answer *mc_beam_search(const mc_generate_call *call)
{
    beam_search s;
    int *parents = NULL;
    mc_answer *found = NULL;
    if (init(&s, call) && !(parents = mc_malloc((size_t)s.beams * sizeof *parents)))
        mc_fail_nomem(s.ctx, "beam search");
    while (!mc_failed(s.ctx) && s.batch_count && step(&s, parents)) continue;
    if (!mc_failed(s.ctx)) found = take_best(&s);
    mc_free(parents);
    release(&s);
    return found;
}
