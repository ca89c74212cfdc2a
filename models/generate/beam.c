/* Beam search with the rules, and to the tie the results, of Hugging Face's generate(). Scores are
 * f32 as there; what must not be chosen gets a score far below all others. */
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
    uint32_t *seen;   /* the set of tokens of a prompt and a beam, for the penalty */
} beam_search;

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
    for (int i = 0; s->searches && i < s->g->count; i++) {
        free_beams(s, s->searches[i].running);
        free_beams(s, s->searches[i].next);
        free_beams(s, s->searches[i].finished);
        mc_free(s->searches[i].candidates);
    }
    mc_free(s->searches);
    mc_free(s->seen);
}

static bool init(beam_search *s, mc_generator *g)
{
    int eos = g->options.eos_count;
    int64_t every = (int64_t)g->options.num_beams * g->decoder.vocab;
    *s = (beam_search){.g = g, .beams = g->options.num_beams};
    s->most = (eos > 1 ? 1 + eos : 2) * s->beams;
    if (s->most > every) s->most = (int)every;
    s->seen = mc_malloc((size_t)mc_seen_words(g->decoder.vocab) * sizeof *s->seen);
    s->searches = mc_calloc((size_t)g->count + 1, sizeof *s->searches);
    bool good = s->seen && s->searches;
    for (int i = 0; good && i < g->count; i++) {
        search *p = &s->searches[i];
        p->running = new_beams(s);
        p->next = new_beams(s);
        p->finished = new_beams(s);
        p->candidates = mc_malloc(((size_t)s->most + 1) * sizeof *p->candidates);
        good = has_memory(s, p->running) && has_memory(s, p->next) && has_memory(s, p->finished) &&
               p->candidates;
        p->running_count = 1; /* all beams would begin alike */
    }
    if (!good) mc_fail_nomem(g->ctx, "beam search");
    return good;
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

/* The continuations of one beam; its logits become log-probabilities. */
static bool extend(beam_search *s, int prompt, int number, float *logits)
{
    mc_generator *g = s->g;
    search *p = &s->searches[prompt];
    const mc_answer *a = &g->answers[prompt];
    const beam *b = &p->running[number];
    int64_t vocab = g->decoder.vocab;
    double log_sum = mc_log_sum_exp(logits, vocab);
    if (!isfinite(log_sum))
        return !mc_fail(g->ctx, MC_ERR_STATE,
                        "generation with %s: the logits of beam %d of prompt %d are not finite",
                        g->decoder.model, number, prompt);
    for (int64_t i = 0; i < vocab; i++) logits[i] = (float)((double)logits[i] - log_sum);
    memset(s->seen, 0, (size_t)mc_seen_words(vocab) * sizeof *s->seen);
    for (int i = 0; i < a->prompt; i++) mc_see(s->seen, a->ids[i]);
    for (int i = 0; i < b->length; i++) mc_see(s->seen, b->ids[i]);
    mc_penalise(logits, vocab, s->seen, g->options.repetition_penalty);
    for (int64_t i = 0; i < vocab; i++)
        offer(s, p, (candidate){number, (int32_t)i, logits[i], logits[i] + b->score, false});
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

/* Runs the prompts (the first time) or row_ids, and fills the logits. */
static bool run(mc_generator *g)
{
    if (mc_failed(g->ctx)) return false;
    int32_t *prompts = g->steps ? NULL : mc_pack_prompts(g);
    if (!g->steps && !prompts) return false;
    for (int i = 0; g->steps && i < g->rows; i++) g->row_lengths[i] = 1;
    bool good = g->decoder.step(g->decoder.state, prompts ? prompts : g->row_ids, g->row_lengths,
                                g->rows, g->logits);
    mc_free(prompts);
    return good;
}

/* Takes a step for every prompt that is still searched. Rows of the decoder stand in the order of
 * prompts and their beams, before and after. */
static bool step(beam_search *s, int *parents)
{
    mc_generator *g = s->g;
    int row = 0, rows = 0;
    if (!run(g)) return false;
    for (int i = 0; i < g->count; i++) {
        search *p = &s->searches[i];
        int first = row;
        if (p->over) continue;
        p->candidate_count = 0;
        for (int b = 0; b < p->running_count; b++, row++)
            if (!extend(s, i, b, g->logits + row * g->decoder.vocab)) return false;
        advance(s, i, parents);
        for (int b = 0; b < p->running_count && !p->over; b++, rows++) {
            g->row_from[rows] = first + parents[b];
            g->row_ids[rows] = p->running[b].ids[p->running[b].length - 1];
        }
    }
    g->steps++;
    g->rows = rows;
    return rows && g->decoder.select(g->decoder.state, g->row_from, rows);
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
    while (!mc_failed(g->ctx) && g->rows && step(&s, parents)) continue;
    if (!mc_failed(g->ctx)) take_best(&s);
    mc_free(parents);
    release(&s);
    return !mc_failed(g->ctx);
}
