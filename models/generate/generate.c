#include <math.h>
#include <string.h>
#include "models/generate/generate_internal.h"

enum { MOST_BEAMS = 1024, MOST_RETURNED = 65536 };

/* ---- options and prompts --------------------------------------------------------------------- */

static bool bad_option(const mc_decoder *d, const char *name, double value, const char *expected)
{
    mc_fail(d->ctx, MC_ERR_ARGUMENT, "generation with %s: %s %g, expected %s", d->model, name,
            value, expected);
    return false;
}

/* How many answers a prompt may have. */
static bool check_returned(const mc_decoder *d, mc_generate_options *o)
{
    int count = o->num_return_sequences;
    if (count < 1 || count > MOST_RETURNED)
        return bad_option(d, "num_return_sequences", count, "1 to 65536");
    if (o->sample) o->first_prompt *= count; /* from here on a number of answers */
    if (count == 1 || o->sample || count <= o->num_beams) return true;
    return !mc_fail(d->ctx, MC_ERR_ARGUMENT,
                    "generation with %s: num_return_sequences %d, expected %s", d->model, count,
                    o->num_beams > 1 ? "at most num_beams"
                                     : "1: without `sample` or beams all answers are the same");
}

/* Fills defaults in. */
bool mc_generate_read_options(const mc_decoder *d, const mc_generate_options *given,
                              mc_generate_options *o)
{
    *o = given ? *given : (mc_generate_options){0};
    if (!o->max_new_tokens && !o->max_length) o->max_new_tokens = 20;
    if (o->num_return_sequences == 0) o->num_return_sequences = 1;
    if (o->temperature == 0) o->temperature = 1;
    if (o->top_p == 0) o->top_p = 1;
    if (o->repetition_penalty == 0) o->repetition_penalty = 1;
    if (o->num_beams == 0) o->num_beams = 1;
    if (o->length_penalty == 0) o->length_penalty = 1;
    if (o->length_penalty == MC_LENGTH_PENALTY_NONE) o->length_penalty = 0;
    if (!o->eos) {
        o->eos = d->eos;
        o->eos_count = d->eos_count;
    }
    if (o->ignore_eos) o->eos_count = 0;
    if (o->max_new_tokens < 0)
        return bad_option(d, "max_new_tokens", o->max_new_tokens, "at least 1");
    if (o->max_length < 0) return bad_option(d, "max_length", o->max_length, "at least 2");
    if (!(o->temperature > 0 && o->temperature < INFINITY))
        return bad_option(d, "temperature", (double)o->temperature, "above 0");
    if (o->top_k < 0) return bad_option(d, "top_k", o->top_k, "at least 1, or 0 for all");
    if (!(o->top_p > 0 && o->top_p <= 1))
        return bad_option(d, "top_p", (double)o->top_p, "above 0, at most 1");
    if (!(o->repetition_penalty > 0 && o->repetition_penalty < INFINITY))
        return bad_option(d, "repetition_penalty", (double)o->repetition_penalty, "above 0");
    if (o->num_beams < 1 || o->num_beams > MOST_BEAMS)
        return bad_option(d, "num_beams", o->num_beams, "1 to 1024");
    if (!isfinite(o->length_penalty))
        return bad_option(d, "length_penalty", (double)o->length_penalty, "a number");
    if (o->eos_count < 0) return bad_option(d, "eos_count", o->eos_count, "at least 0");
    if (o->num_beams > 1 && o->sample)
        return !mc_fail(d->ctx, MC_ERR_UNSUPPORTED,
                        "generation with %s: beam search does not sample", d->model);
    return check_returned(d, o);
}

bool mc_check_prompts(const mc_decoder *d, const int32_t *const *prompts, const int *lengths,
                      int count)
{
    if (count < 0 || (count && (!prompts || !lengths)))
        return !mc_fail(d->ctx, MC_ERR_ARGUMENT, "generation with %s: %d prompts%s", d->model,
                        count, count < 0 ? "" : ": NULL");
    for (int i = 0; i < count; i++) {
        if (lengths[i] < 1 || !prompts[i])
            return !mc_fail(d->ctx, MC_ERR_ARGUMENT, "generation with %s: prompt %d is empty",
                            d->model, i);
        for (int k = 0; k < lengths[i]; k++)
            if (prompts[i][k] < 0 || prompts[i][k] >= d->vocab)
                return !mc_fail(d->ctx, MC_ERR_ARGUMENT,
                                "generation with %s: token %d of prompt %d is %d, expected 0 to "
                                "%lld",
                                d->model, k, i, prompts[i][k], (long long)d->vocab - 1);
    }
    return true;
}

int mc_most_new(const mc_generate_options *o, int prompt_length)
{
    return o->max_new_tokens ? o->max_new_tokens : o->max_length - prompt_length;
}

/* That the answers have room, too. */
bool mc_check_lengths(const mc_decoder *d, const mc_generate_options *o, const int *lengths,
                      int count)
{
    int each = o->sample ? o->num_return_sequences : 1;
    for (int i = 0; i < count; i++) {
        int most = mc_most_new(o, lengths[i]);
        if (most < 1)
            return !mc_fail(d->ctx, MC_ERR_ARGUMENT,
                            "generation with %s: prompt %d of %d tokens, max_length is %d: "
                            "expected a shorter prompt, or max_new_tokens",
                            d->model, i / each, lengths[i], o->max_length);
        if (lengths[i] + (int64_t)most - 1 > d->positions) /* the last new token is not run */
            return !mc_fail(d->ctx, MC_ERR_ARGUMENT,
                            "generation with %s: prompt %d of %d tokens and %d new ones, the model "
                            "has %lld positions",
                            d->model, i / each, lengths[i], most, (long long)d->positions);
    }
    return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void free_answers(mc_answer *answers, int count)
{
    for (int i = 0; answers && i < count; i++) {
        mc_free(answers[i].ids);
        mc_free(answers[i].log_probs);
    }
    mc_free(answers);
}

static void free_generator(void *object)
{
    mc_generator *g = object;
    mc_batch_free(g->batch);
    mc_run_release(g);
    if (g->decoder.end) g->decoder.end(g->decoder.state);
    free_answers(g->answers, g->count);
    free_answers(g->found, g->count * g->options.num_return_sequences);
    mc_free(g->row_lengths);
    mc_free((void *)(uintptr_t)g->options.eos);
    mc_free(g);
}

void mc_generator_free(mc_generator *g)
{
    if (!g) return;
    mc_disown(&g->owned);
    free_generator(g);
}

static bool copy_eos(mc_generator *g)
{
    size_t bytes = (size_t)g->options.eos_count * sizeof *g->options.eos;
    int32_t *copy = mc_malloc(bytes + 1);
    if (copy && bytes) memcpy(copy, g->options.eos, bytes);
    g->options.eos = copy;
    return copy;
}

static bool copy_prompts(mc_generator *g, const int32_t *const *prompts, const int *lengths,
                         int count)
{
    if (!(g->answers = mc_calloc((size_t)count + 1, sizeof *g->answers))) return false;
    g->count = count;
    int longest = 1;
    for (int i = 0; i < count; i++) {
        mc_answer *a = &g->answers[i];
        *a = (mc_answer){.prompt = lengths[i], .length = lengths[i]};
        a->most = mc_most_new(&g->options, lengths[i]);
        if (a->most > longest) longest = a->most;
        a->ids = mc_malloc(((size_t)lengths[i] + (size_t)a->most) * sizeof *a->ids);
        a->log_probs = mc_malloc((size_t)a->most * sizeof *a->log_probs);
        if (!a->ids || !a->log_probs) return false;
        memcpy(a->ids, prompts[i], (size_t)lengths[i] * sizeof *a->ids);
    }
    g->options.max_new_tokens = longest;
    return true;
}

static bool make_rows(mc_generator *g)
{
    g->rows = g->count;
    g->row_lengths = mc_malloc(((size_t)g->count + 1) * sizeof *g->row_lengths);
    return g->row_lengths;
}

static bool begin_decoder(mc_generator *g)
{
    int64_t capacity = 0;
    for (int i = 0; i < g->count; i++) {
        const mc_answer *a = &g->answers[i];
        int64_t needed = (int64_t)g->decoder.before + a->prompt + a->most - 1;
        if (needed > capacity) capacity = needed;
    }
    int64_t sequences = (int64_t)g->count * g->options.num_beams;
    if (sequences * capacity <= INT32_MAX)
        return !g->count || g->decoder.begin(g->decoder.state, (int)sequences, capacity);
    return !mc_fail(g->ctx, MC_ERR_ARGUMENT,
                    "generation with %s: %lld sequences of %lld tokens are too many",
                    g->decoder.model, (long long)sequences, (long long)capacity);
}

static mc_generator *new_generator(const mc_decoder *decoder, const int32_t *const *prompts,
                                   const int *lengths, int count,
                                   const mc_generate_options *options)
{
    mc_generate_options o;
    mc_context *ctx = decoder->ctx;
    mc_generator *g = NULL;
    if (!mc_failed(ctx) && decoder->state && mc_generate_read_options(decoder, options, &o) &&
        mc_check_prompts(decoder, prompts, lengths, count) &&
        mc_check_lengths(decoder, &o, lengths, count))
        g = mc_new_owned(ctx, sizeof *g, "a generator", free_generator);
    if (!g) {
        decoder->end(decoder->state);
        return NULL;
    }
    g->ctx = ctx;
    g->decoder = *decoder;
    g->options = o;
    if (!copy_eos(g) || !copy_prompts(g, prompts, lengths, count) || !make_rows(g))
        mc_fail_nomem(ctx, "a generator");
    else
        begin_decoder(g);
    if (!mc_failed(ctx) && g->options.num_beams == 1 && g->count) mc_run_init(g);
    if (!mc_failed(ctx)) return g;
    mc_generator_free(g);
    return NULL;
}

mc_generator *mc_generator_new(const mc_decoder *decoder, const int32_t *const *prompts,
                               const int *lengths, int count, const mc_generate_options *options)
{
    mc_generator *g = new_generator(decoder, prompts, lengths, count, options);
    if (!g || g->options.num_beams == 1) return g;
    mc_fail(g->ctx, MC_ERR_ARGUMENT,
            "generation with %s: the tokens of a search with %d beams are only known at its end",
            g->decoder.model, g->options.num_beams);
    mc_generator_free(g);
    return NULL;
}

/* ---- steps ----------------------------------------------------------------------------------- */

int mc_prompt_of(const mc_generator *g, int number)
{
    return g->options.sample ? number / g->options.num_return_sequences : number;
}

bool mc_answer_ends(const mc_generator *g, int number, const int32_t *ids, int count)
{
    const mc_generate_options *o = &g->options;
    if (count == g->answers[number].most) return true;
    for (int i = 0; i < o->eos_count; i++)
        if (o->eos[i] == ids[count - 1]) return true;
    return o->stop && o->stop(o->stop_user, mc_prompt_of(g, number), ids, count);
}

int32_t *mc_pack_prompts(mc_generator *g)
{
    size_t total = 0;
    for (int i = 0; i < g->count; i++) total += (size_t)g->answers[i].prompt;
    int32_t *ids = mc_malloc((total + 1) * sizeof *ids), *end = ids;
    for (int i = 0; ids && i < g->count; i++) {
        size_t n = (size_t)(g->row_lengths[i] = g->answers[i].prompt);
        memcpy(end, g->answers[i].ids, n * sizeof *ids);
        end += n;
    }
    if (!ids) mc_fail_nomem(g->ctx, "the prompts");
    return ids;
}

bool mc_generator_next(mc_generator *g, int32_t *tokens)
{
    if (!g || mc_failed(g->ctx)) return false;
    if (g->given == g->read && !mc_run_more(g)) return false;
    for (int i = 0; i < g->count; i++) {
        const mc_answer *a = &g->answers[i];
        tokens[i] = a->prompt + g->given < a->length ? a->ids[a->prompt + g->given] : -1;
    }
    g->given++;
    return true;
}

void mc_generator_log_probs(const mc_generator *g, float *log_probs)
{
    for (int i = 0; g && g->given && i < g->count; i++) {
        const mc_answer *a = &g->answers[i];
        bool there = a->prompt + g->given <= a->length;
        log_probs[i] = there ? a->log_probs[g->given - 1] : 0;
    }
}

/* ---- whole answers --------------------------------------------------------------------------- */

static void free_generation(void *object)
{
    mc_owned *owned = object;
    mc_generation *out = (mc_generation *)(owned + 1);
    for (int i = 0; out->ids && i < out->count; i++) mc_free(out->ids[i]);
    for (int i = 0; out->log_probs && i < out->count; i++) mc_free(out->log_probs[i]);
    mc_free(out->ids);
    mc_free(out->log_probs);
    mc_free(out->lengths);
    mc_free(out->scores);
    mc_free(owned);
}

void mc_generation_free(mc_generation *generation)
{
    if (!generation) return;
    mc_owned *owned = (mc_owned *)(void *)generation - 1;
    mc_disown(owned);
    free_generation(owned);
}

/* The link of ownership stands before what the user sees. */
static mc_generation *new_generation(mc_context *ctx, int count)
{
    mc_owned *owned = mc_new_owned(ctx, sizeof(mc_owned) + sizeof(mc_generation),
                                   "generated tokens", free_generation);
    if (!owned) return NULL;
    mc_generation *out = (mc_generation *)(owned + 1);
    out->ids = mc_calloc((size_t)count + 1, sizeof *out->ids);
    out->log_probs = mc_calloc((size_t)count + 1, sizeof *out->log_probs);
    out->lengths = mc_calloc((size_t)count + 1, sizeof *out->lengths);
    out->scores = mc_calloc((size_t)count + 1, sizeof *out->scores);
    out->count = count;
    if (out->ids && out->log_probs && out->lengths && out->scores) return out;
    mc_fail_nomem(ctx, "generated tokens");
    mc_generation_free(out);
    return NULL;
}

static mc_generation *collect(const mc_generator *g)
{
    const mc_answer *answers = g->found ? g->found : g->answers;
    int count = g->found ? g->count * g->options.num_return_sequences : g->count;
    mc_generation *out = new_generation(g->ctx, count);
    for (int i = 0; out && i < count; i++) {
        const mc_answer *a = &answers[i];
        size_t n = (size_t)(a->length - a->prompt);
        out->lengths[i] = (int)n;
        out->scores[i] = (float)a->score;
        out->ids[i] = mc_malloc((n + 1) * sizeof *out->ids[i]);
        out->log_probs[i] = mc_malloc((n + 1) * sizeof *out->log_probs[i]);
        if (out->ids[i] && out->log_probs[i]) {
            if (n) memcpy(out->ids[i], a->ids + a->prompt, n * sizeof *out->ids[i]);
            if (n) memcpy(out->log_probs[i], a->log_probs, n * sizeof *out->log_probs[i]);
            continue;
        }
        mc_fail_nomem(g->ctx, "generated tokens");
        mc_generation_free(out);
        return NULL;
    }
    return out;
}

mc_generation *mc_generate(const mc_decoder *decoder, const int32_t *const *prompts,
                           const int *lengths, int count, const mc_generate_options *options)
{
    mc_generator *g = new_generator(decoder, prompts, lengths, count, options);
    if (!g) return NULL;
    int32_t *tokens = mc_malloc(((size_t)count + 1) * sizeof *tokens);
    if (!tokens)
        mc_fail_nomem(g->ctx, "generated tokens");
    else if (g->options.num_beams > 1)
        mc_beam_search(g);
    else
        while (mc_generator_next(g, tokens)) continue;
    mc_generation *out = mc_failed(g->ctx) ? NULL : collect(g);
    mc_free(tokens);
    mc_generator_free(g);
    return out;
}
