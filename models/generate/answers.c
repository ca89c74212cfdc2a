/* Answers in the making, and as the caller gets them. */
#include <string.h>
#include "models/generate/generate_internal.h"

mc_answer *mc_answers_new(int count) { return mc_calloc((size_t)count + 1, sizeof(mc_answer)); }

bool mc_answer_reserve(mc_answer *a, int most)
{
    a->most = most;
    a->ids = mc_malloc((size_t)most * sizeof *a->ids);
    a->log_probs = mc_malloc((size_t)most * sizeof *a->log_probs);
    return a->ids && a->log_probs;
}

void mc_answers_free(mc_answer *answers, int count)
{
    for (int i = 0; answers && i < count; i++) {
        mc_free(answers[i].ids);
        mc_free(answers[i].log_probs);
    }
    mc_free(answers);
}

/* ---- finished -------------------------------------------------------------------------------- */

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

static bool copy_answer(mc_generation *out, int i, const mc_answer *a)
{
    size_t n = (size_t)a->length;
    out->lengths[i] = a->length;
    out->scores[i] = (float)a->score;
    out->ids[i] = mc_malloc((n + 1) * sizeof *out->ids[i]);
    out->log_probs[i] = mc_malloc((n + 1) * sizeof *out->log_probs[i]);
    if (!out->ids[i] || !out->log_probs[i]) return false;
    if (n) memcpy(out->ids[i], a->ids, n * sizeof *out->ids[i]);
    if (n) memcpy(out->log_probs[i], a->log_probs, n * sizeof *out->log_probs[i]);
    return true;
}

/* The link of ownership stands before what the user sees. */
mc_generation *mc_generation_of(mc_context *ctx, const mc_answer *answers, int count)
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
    bool good = out->ids && out->log_probs && out->lengths && out->scores;
    for (int i = 0; good && i < count; i++) good = copy_answer(out, i, &answers[i]);
    if (good) return out;
    mc_fail_nomem(ctx, "generated tokens");
    mc_generation_free(out);
    return NULL;
}
