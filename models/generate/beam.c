/* Beam search with the rules, and to the tie the results, of Hugging Face's generate(). Scores are
 * f32 as there; what must not be chosen gets a score far below all others.
 *
 * The device finds the most probable continuations of every beam; the host reads these few alone
 * and decides. Beam b of prompt i is the cache's sequence i * beams + b. Where it goes on with
 * another's tokens, no key or value moves: a table says for each sequence in which row of the cache
 * each of its tokens lies, and a beam gets its parent's part of it. A token is written to the place
 * of its own sequence, where nothing else is written at that position. */
#include <math.h>
#include <string.h>
#include "models/generate/generate_internal.h"

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
    mc_generator *g;
    int beams, most;  /* candidates that are looked at each step */
    search *searches; /* (prompts) */
    int *batch;       /* the prompts that have rows: batch_count, in their order */
    int batch_count, rows_each;
    int64_t capacity;       /* tokens of a sequence */
    int32_t *table, *moved; /* (prompts * beams, capacity): the cache's, and the next one */
    bool table_changed;     /* since the device has got it */
    mc_chosen *best;        /* (rows, chooser.best.count), pinned memory */
    size_t best_bytes;      /* on the device, too */
    uint32_t *seen;         /* (rows, words); NULL: no penalty */
} beam_search;

static mc_device *device_of(const beam_search *s) { return s->g->ctx->device; }

/* ---- memory ---------------------------------------------------------------------------------- */

static beam *new_beams(const beam_search *s)
{
    beam *beams = mc_calloc((size_t)s->beams + 1, sizeof *beams);
    size_t most = (size_t)s->g->options.max_new_tokens;
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
    mc_chooser *c = &s->g->chooser;
    mc_device *d = device_of(s);
    for (int i = 0; s->searches && i < s->g->count; i++) {
        free_beams(s, s->searches[i].running);
        free_beams(s, s->searches[i].next);
        free_beams(s, s->searches[i].finished);
        mc_free(s->searches[i].candidates);
    }
    if (c->best.best) d->free(d, c->best.best, s->best_bytes);
    if (s->best) d->host_free(d, s->best, s->best_bytes);
    mc_tensor_free(c->table);
    c->table = NULL;
    c->best = (mc_best_call){0};
    mc_free(s->searches);
    mc_free(s->batch);
    mc_free(s->table);
    mc_free(s->moved);
    mc_free(s->seen);
}

static bool make_searches(beam_search *s)
{
    bool good = (s->searches = mc_calloc((size_t)s->g->count + 1, sizeof *s->searches)) &&
                (s->batch = mc_malloc(((size_t)s->g->count + 1) * sizeof *s->batch));
    for (int i = 0; good && i < s->g->count; i++) {
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

/* At first every token is where its own sequence has it. */
static bool make_table(beam_search *s)
{
    int64_t sequences = (int64_t)s->g->count * s->beams, count = sequences * s->capacity;
    s->table = mc_malloc((size_t)(count + 1) * sizeof *s->table);
    s->moved = mc_malloc((size_t)(count + 1) * sizeof *s->moved);
    for (int64_t i = 0; s->table && i < count; i++) s->table[i] = (int32_t)i;
    s->table_changed = true;
    s->g->chooser.table = mc_tensor_new_computed(s->g->ctx, MC_SHAPE(sequences, s->capacity));
    return s->table && s->moved && s->g->chooser.table;
}

/* What the device needs, for as many rows as there can be. */
static bool make_chooser(beam_search *s)
{
    mc_generator *g = s->g;
    mc_chooser *c = &g->chooser;
    mc_device *d = device_of(s);
    int64_t vocab = g->decoder.vocab, rows = (int64_t)g->count * s->beams;
    c->best = (mc_best_call){.vocab = vocab,
                             .count = (int32_t)(s->most < vocab ? s->most : vocab),
                             .penalty = g->options.repetition_penalty};
    c->spread = s->beams;
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
    g->row_state = mc_calloc((size_t)rows * MC_ROW_FIELDS, sizeof *g->row_state);
    c->rows = mc_tensor_new_computed(g->ctx, MC_SHAPE(MC_ROW_FIELDS, rows));
    return c->best.best && s->best && g->row_state && c->rows;
}

static bool init(beam_search *s, mc_generator *g)
{
    int eos = g->options.eos_count;
    int64_t every = (int64_t)g->options.num_beams * g->decoder.vocab;
    *s = (beam_search){.g = g, .beams = g->options.num_beams, .rows_each = 1};
    s->most = (eos > 1 ? 1 + eos : 2) * s->beams;
    if (s->most > every) s->most = (int)every;
    for (int i = 0; i < g->count; i++) {
        const mc_answer *a = &g->answers[i];
        int64_t tokens = (int64_t)g->decoder.before + a->prompt + a->most - 1;
        if (tokens > s->capacity) s->capacity = tokens;
    }
    if (!make_searches(s) || !make_table(s) || !make_chooser(s))
        mc_fail_nomem(g->ctx, "beam search");
    for (int i = 0; !mc_failed(g->ctx) && i < g->count; i++) s->batch[s->batch_count++] = i;
    return !mc_failed(g->ctx);
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
    mc_generator *g = s->g;
    search *p = &s->searches[prompt];
    int32_t count = g->chooser.best.count;
    const mc_chosen *best = s->best + (int64_t)row * count;
    if (best->token == MC_CHOSEN_NOT_FINITE)
        return !mc_fail(g->ctx, MC_ERR_STATE,
                        "generation with %s: the logits of beam %d of prompt %d are not finite",
                        g->decoder.model, number, prompt);
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
    const beam *b = &s->searches[prompt].running[c->beam];
    b->ids[b->length] = c->token; /* to be asked about, behind what is there */
    return mc_answer_ends(s->g, prompt, b->ids, b->length + 1);
}

/* Goes one token further, by the candidates that were found. */
static void advance(const beam_search *s, int prompt, int *parents)
{
    const mc_generate_options *o = &s->g->options;
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
    p->over = length == s->g->answers[prompt].most || (all && o->early_stopping) ||
              (all && !(best > p->finished[s->beams - 1].score));
}

/* ---- all prompts ----------------------------------------------------------------------------- */

/* The tokens of a row's prompt and beam. */
static void mark_seen(const beam_search *s, int prompt, int number, int row)
{
    const mc_answer *a = &s->g->answers[prompt];
    const beam *b = &s->searches[prompt].running[number];
    int64_t words = mc_seen_words(s->g->decoder.vocab);
    uint32_t *seen = s->seen + row * words;
    memset(seen, 0, (size_t)words * sizeof *seen);
    for (int i = 0; i < a->prompt; i++) mc_see(seen, a->ids[i]);
    for (int i = 0; i < b->length; i++) mc_see(seen, b->ids[i]);
}

/* What a step needs of a beam. Where there is none, or its prompt is done, the row sees no token
 * and nothing comes of it. */
static void set_row(const beam_search *s, int prompt, int number, int row, int64_t stride)
{
    mc_generator *g = s->g;
    const search *p = &s->searches[prompt];
    int32_t *at = g->row_state + row;
    bool there = !p->over && number < p->running_count;
    const beam *b = &p->running[there ? number : 0];
    int length = g->decoder.before + g->answers[prompt].prompt + b->length;
    g->decoder.place(g->decoder.state, prompt, at, stride);
    at[MC_ROW_FIRST * stride] = (int32_t)((prompt * s->beams + number) * s->capacity);
    at[MC_ROW_TOKEN * stride] = b->ids[b->length - 1];
    at[MC_ROW_POSITION * stride] = length - 1;
    at[MC_ROW_LENGTH * stride] = there ? length : 0;
    if (!there) at[MC_ROW_MEMORY_LENGTH * stride] = 0;
    if (s->seen && there) mark_seen(s, prompt, number, row);
}

/* Rows for the batch, sent to the device with what else has changed. */
static void send_rows(beam_search *s)
{
    mc_generator *g = s->g;
    mc_chooser *c = &g->chooser;
    mc_device *d = device_of(s);
    int64_t stride = (int64_t)g->count * s->beams;
    for (int i = 0; i < g->rows; i++) set_row(s, s->batch[i / s->beams], i % s->beams, i, stride);
    mc_tensor_write(c->rows, g->row_state, (size_t)(stride * MC_ROW_FIELDS) * sizeof *g->row_state);
    if (s->table_changed)
        mc_tensor_write(c->table, s->table, (size_t)(stride * s->capacity) * sizeof *s->table);
    s->table_changed = false;
    if (s->seen) d->copy_in(d, c->seen, s->seen, c->seen_bytes);
}

/* Runs the prompts (the first time) or the beams, and reads the candidates. */
static bool run(beam_search *s)
{
    mc_generator *g = s->g;
    mc_chooser *c = &g->chooser;
    mc_device *d = device_of(s);
    bool good;
    g->rows = s->batch_count * s->rows_each;
    c->call.rows = g->rows;
    if (g->steps) {
        send_rows(s);
        good = g->decoder.choose_next(g->decoder.state, c);
    } else {
        int32_t *prompts = mc_pack_prompts(g);
        for (int i = 0; s->seen && i < g->count; i++) mark_seen(s, i, 0, i);
        if (s->seen) d->copy_in(d, c->seen, s->seen, c->seen_bytes);
        good = prompts && g->decoder.choose(g->decoder.state, prompts, g->row_lengths, g->count, c);
        mc_free(prompts);
    }
    if (!good || mc_failed(g->ctx)) return false;
    size_t bytes = (size_t)g->rows * (size_t)c->best.count * sizeof *s->best;
    if (d->wait(d, d->copy_out_later(d, s->best, c->best.best, bytes))) return true;
    return !mc_fail(g->ctx, MC_ERR_DEVICE, "generation with %s: %s", g->decoder.model, d->failure);
}

/* Each beam gets its parent's part of the table, up to the parent's last token. */
static void follow(beam_search *s, int prompt, const int *parents)
{
    const search *p = &s->searches[prompt];
    int length = s->g->decoder.before + s->g->answers[prompt].prompt + p->running[0].length - 1;
    size_t bytes = (size_t)length * sizeof *s->table;
    int32_t *table = s->table + (int64_t)prompt * s->beams * s->capacity,
            *moved = s->moved + (int64_t)prompt * s->beams * s->capacity;
    for (int b = 0; b < p->running_count; b++)
        memcpy(moved + b * s->capacity, table + parents[b] * s->capacity, bytes);
    for (int b = 0; b < p->running_count; b++) {
        if (parents[b] == b) continue;
        memcpy(table + b * s->capacity, moved + b * s->capacity, bytes);
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
    for (int i = 0; i < s->g->count; i++)
        if (!s->searches[i].over) s->batch[s->batch_count++] = i;
}

/* Takes a step for every prompt of the batch. */
static bool step(beam_search *s, int *parents)
{
    mc_generator *g = s->g;
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
    g->steps++;
    s->rows_each = s->beams;
    drop_done(s);
    return true;
}

/* The best hypotheses of each prompt; the search loses their arrays. */
static bool take_best(beam_search *s)
{
    mc_generator *g = s->g;
    int each = g->options.num_return_sequences;
    g->found = mc_calloc((size_t)g->count * (size_t)each + 1, sizeof *g->found);
    for (int i = 0; g->found && i < g->count * each; i++) {
        search *p = &s->searches[i / each];
        beam *b = &p->finished[i % each];
        g->found[i].score = -INFINITY;
        if (i % each >= p->finished_count) continue; /* a vocabulary smaller than the beams */
        g->found[i] = (mc_answer){
            .ids = b->ids, .log_probs = b->log_probs, .length = b->length, .score = b->score};
        *b = (beam){NULL};
    }
    return g->found || !mc_fail_nomem(g->ctx, "beam search");
}

bool mc_beam_search(mc_generator *g)
{
    beam_search s;
    int *parents = NULL;
    if (init(&s, g) && !(parents = mc_malloc((size_t)s.beams * sizeof *parents)))
        mc_fail_nomem(g->ctx, "beam search");
    while (!mc_failed(g->ctx) && s.batch_count && step(&s, parents)) continue;
    if (!mc_failed(g->ctx)) take_best(&s);
    mc_free(parents);
    release(&s);
    return !mc_failed(g->ctx);
}
