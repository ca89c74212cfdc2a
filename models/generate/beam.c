/* Scores are f32 as there; what must not be chosen gets a score far below all others. */
#include "models/generate/beam_internal.h"

#include <math.h>
#include <string.h>

static const float excluded = -1e9f;

/* A continuation of one of the running beams. */
typedef struct mc_beam_candidate {
    int beam;
    int32_t token;
    float log_prob, score;
    bool ends;
} candidate;

/* ---- memory ---------------------------------------------------------------------------------- */

static mc_beam *new_beams(int count, int most)
{
    mc_beam *beams = mc_calloc((size_t)count, sizeof *beams);
    bool good = beams;
    for (int i = 0; good && i < count; i++)
        good = (beams[i].ids = mc_malloc((size_t)most * sizeof *beams[i].ids)) &&
               (beams[i].log_probs = mc_malloc((size_t)most * sizeof *beams[i].log_probs));
    return beams; /* what is missing is found by has_memory */
}

static bool has_memory(const mc_beam *beams, int count)
{
    return beams && beams[count - 1].log_probs;
}

static void free_beams(mc_beam *beams, int count)
{
    for (int i = 0; beams && i < count; i++) {
        mc_free(beams[i].ids);
        mc_free(beams[i].log_probs);
    }
    mc_free(beams);
}

int mc_search_looks(const mc_generate_options *o, int64_t vocab)
{
    int64_t every = o->num_beams * vocab;
    int64_t looks = (int64_t)(o->eos_count > 1 ? 1 + o->eos_count : 2) * o->num_beams;
    return (int)(looks < every ? looks : every);
}

mc_search *mc_search_new(const mc_generate_options *o, int64_t vocab, int prompt, int most)
{
    mc_search *s = mc_calloc(1, sizeof *s);
    int beams = o->num_beams;
    if (!s) return NULL;
    *s = (mc_search){.options = o,
                     .prompt = prompt,
                     .most = most,
                     .running_count = 1,
                     .looked = mc_search_looks(o, vocab)};
    s->running = new_beams(beams, most);
    s->next = new_beams(beams, most);
    s->finished = new_beams(beams, most);
    s->candidates = mc_malloc((size_t)s->looked * sizeof *s->candidates);
    s->parents = mc_malloc((size_t)beams * sizeof *s->parents);
    if (has_memory(s->running, beams) && has_memory(s->next, beams) &&
        has_memory(s->finished, beams) && s->candidates && s->parents)
        return s;
    mc_search_free(s);
    return NULL;
}

void mc_search_free(mc_search *s)
{
    if (!s) return;
    int beams = s->options->num_beams;
    free_beams(s->running, beams);
    free_beams(s->next, beams);
    free_beams(s->finished, beams);
    mc_free(s->candidates);
    mc_free(s->parents);
    mc_free(s);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Puts a candidate in its place if it is among the best so far; of equals the first is better. */
static void offer(mc_search *s, candidate c)
{
    int at = s->candidate_count;
    if (at == s->looked && !(c.score > s->candidates[at - 1].score)) return;
    if (at < s->looked) s->candidate_count++;
    if (at == s->looked) at--;
    for (; at > 0 && c.score > s->candidates[at - 1].score; at--)
        s->candidates[at] = s->candidates[at - 1];
    s->candidates[at] = c;
}

void mc_search_begin(mc_search *s) { s->candidate_count = 0; }

bool mc_search_offer(mc_search *s, int beam, const mc_chosen *best, int32_t count)
{
    if (best->token == MC_CHOSEN_NOT_FINITE) return false;
    for (int32_t i = 0; i < count && best[i].token >= 0; i++) {
        float x = best[i].log_probability;
        offer(s, (candidate){beam, best[i].token, x, x + s->running[beam].score, false});
    }
    return true;
}

static void copy_beam(mc_beam *to, const mc_beam *from, const candidate *c)
{
    memcpy(to->ids, from->ids, (size_t)from->length * sizeof *to->ids);
    memcpy(to->log_probs, from->log_probs, (size_t)from->length * sizeof *to->log_probs);
    to->ids[from->length] = c->token;
    to->log_probs[from->length] = c->log_prob;
    to->length = from->length + 1;
    to->score = c->score;
}

/* Keeps a finished hypothesis if it is among the best. */
static void finish(mc_search *s, const candidate *c, float score)
{
    int at = s->finished_count, beams = s->options->num_beams;
    if (at == beams && !(score > s->finished[at - 1].score)) return;
    if (at < beams) s->finished_count++;
    if (at == beams) at--;
    mc_beam place = s->finished[at];
    for (; at > 0 && score > s->finished[at - 1].score; at--) s->finished[at] = s->finished[at - 1];
    copy_beam(&place, &s->running[c->beam], c);
    place.score = score;
    s->finished[at] = place;
}

/* The best candidates that have not ended run on. */
static void run_on(mc_search *s)
{
    int n = 0;
    for (int ended = 0; ended < 2; ended++) /* those that ended only where others are missing */
        for (int i = 0; i < s->candidate_count && n < s->options->num_beams; i++) {
            candidate *c = &s->candidates[i];
            if (c->ends != ended) continue;
            copy_beam(&s->next[n], &s->running[c->beam], c);
            if (ended) s->next[n].score += excluded;
            s->parents[n++] = c->beam;
        }
    mc_beam *old = s->running;
    s->running = s->next;
    s->next = old;
    s->running_count = n;
}

static bool ends(const mc_search *s, const candidate *c)
{
    const mc_generate_options *o = s->options;
    const mc_beam *b = &s->running[c->beam];
    int count = b->length + 1;
    b->ids[b->length] = c->token; /* to be asked about, after what is there */
    if (count == s->most) return true;
    for (int i = 0; i < o->eos_count; i++)
        if (o->eos[i] == c->token) return true;
    return o->stop && o->stop(o->stop_user, s->prompt, b->ids, count);
}

/* What the sum of the best running beam is divided by to find its best score. */
static float best_norm(const mc_search *s, float norm)
{
    float penalty = s->options->length_penalty;
    bool longest = s->options->early_stopping == MC_EARLY_STOPPING_NEVER && penalty > 0;
    return longest ? (float)pow(s->most, (double)penalty) : norm;
}

void mc_search_advance(mc_search *s)
{
    const mc_generate_options *o = s->options;
    int length = s->running[0].length + 1, beams = o->num_beams;
    float norm = (float)pow(length, (double)o->length_penalty);
    bool at_once = o->early_stopping == MC_EARLY_STOPPING_AT_ONCE;
    bool full = s->finished_count == beams && at_once;
    for (int i = 0; i < s->candidate_count; i++) {
        candidate *c = &s->candidates[i];
        c->ends = ends(s, c);
        if (c->ends && i < beams && !full) finish(s, c, c->score / norm);
    }
    run_on(s);
    bool all = s->finished_count == beams;
    float best = s->running[0].score / best_norm(s, norm);
    s->over =
        length == s->most || (all && at_once) || (all && !(best > s->finished[beams - 1].score));
}
