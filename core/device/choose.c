/* Choosing tokens on the host: see choose_internal.h. */
#include "core/device/choose_internal.h"

#include <math.h>
#include <stdlib.h>

void mc_penalise(float *logits, int64_t vocab, const uint32_t *seen, float penalty)
{
    if (penalty == 1) return;
    for (int64_t word = 0; word < mc_seen_words(vocab); word++)
        for (uint32_t bits = seen[word]; bits; bits &= bits - 1) {
            float *x = &logits[word * 32 + __builtin_ctz(bits)];
            *x = *x < 0 ? *x * penalty : *x / penalty;
        }
}

/* ---- filters --------------------------------------------------------------------------------- */

static int compare_logits(const void *a, const void *b, void *user)
{
    const float *logits = user;
    int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    if (logits[i] != logits[k]) return logits[i] < logits[k] ? -1 : 1;
    return i < k ? 1 : -1; /* the first of equal ones counts as more probable */
}

/* Sorts the tokens that are not filtered out, the least probable first; returns their number. */
static int64_t sort_tokens(float *logits, int64_t vocab, int32_t *order)
{
    int64_t n = 0;
    for (int64_t i = 0; i < vocab; i++)
        if (logits[i] > -INFINITY) order[n++] = (int32_t)i;
    qsort_r(order, (size_t)n, sizeof *order, compare_logits, logits);
    return n;
}

/* Keeps the k largest, and all that equal the smallest of these. */
static void keep_top_k(float *logits, const int32_t *order, int64_t n, int k)
{
    if (k <= 0 || k >= n) return;
    float least = logits[order[n - k]];
    for (int64_t i = 0; i < n && logits[order[i]] < least; i++) logits[order[i]] = -INFINITY;
}

/* Removes the least probable tokens while their sum is at most 1 - p of the probability. */
static void keep_top_p(float *logits, const int32_t *order, int64_t n, double p)
{
    double sum = 0, total = 0, largest = n ? (double)logits[order[n - 1]] : 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)logits[order[i]];
        if (x > -INFINITY) total += exp(x - largest);
    }
    for (int64_t i = 0; i + 1 < n; i++) {
        float *x = &logits[order[i]];
        if (*x == -INFINITY) continue;
        sum += exp((double)*x - largest);
        if (sum > (1 - p) * total) break;
        *x = -INFINITY;
    }
}

void mc_filter(float *logits, int64_t vocab, const mc_sampling *how, int32_t *order)
{
    if (how->temperature != 1)
        for (int64_t i = 0; i < vocab; i++) logits[i] /= how->temperature;
    bool by_k = how->top_k > 0 && how->top_k < vocab, by_p = how->top_p < 1;
    if (!by_k && !by_p) return;
    int64_t n = sort_tokens(logits, vocab, order);
    if (by_k) keep_top_k(logits, order, n, how->top_k);
    if (by_p) keep_top_p(logits, order, n, (double)how->top_p);
}

/* ---- choices --------------------------------------------------------------------------------- */

double mc_log_sum_exp(const float *logits, int64_t vocab)
{
    double sum = 0, largest = -INFINITY;
    for (int64_t i = 0; i < vocab; i++) {
        if (!(logits[i] < INFINITY)) return NAN;
        if ((double)logits[i] > largest) largest = (double)logits[i];
    }
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - largest);
    return largest + log(sum);
}

int32_t mc_most_probable(const float *logits, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

int32_t mc_draw(const float *logits, int64_t vocab, double log_sum, double u)
{
    double sum = 0;
    int32_t last = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (logits[i] == -INFINITY) continue;
        sum += exp((double)logits[i] - log_sum);
        last = (int32_t)i;
        if (sum > u) break;
    }
    return last; /* rounding may leave the sum below u: then the last possible token */
}

/* Inserts a token if it is among the best so far. */
static void offer(mc_chosen *best, int32_t count, mc_chosen c)
{
    int32_t at = count - 1;
    if (best[at].token >= 0 && !(c.log_probability > best[at].log_probability)) return;
    for (; at > 0; at--) {
        const mc_chosen *before = &best[at - 1];
        if (before->token >= 0 && !(c.log_probability > before->log_probability)) break;
        best[at] = *before;
    }
    best[at] = c;
}

void mc_find_best(const mc_best_call *c, int64_t row, float *logits)
{
    mc_chosen *best = c->best + row * c->count;
    float penalty = c->penalty ? c->penalty[row] : 1;
    if (penalty == 0) return;
    double log_sum = mc_log_sum_exp(logits, c->vocab);
    for (int32_t i = 0; i < c->count; i++) best[i] = (mc_chosen){MC_CHOSEN_NOTHING, 0};
    if (!isfinite(log_sum)) {
        best[0].token = MC_CHOSEN_NOT_FINITE;
        return;
    }
    for (int64_t i = 0; i < c->vocab; i++) logits[i] = (float)((double)logits[i] - log_sum);
    if (penalty != 1)
        mc_penalise(logits, c->vocab, c->seen + row * mc_seen_words(c->vocab), penalty);
    for (int64_t i = 0; i < c->vocab; i++)
        offer(best, c->count, (mc_chosen){(int32_t)i, logits[i]});
}

mc_chosen mc_choose(const mc_choose_call *c, int64_t row, float *logits, int32_t *order)
{
    const int32_t *at = c->state + row;
    int64_t answer = at[MC_ROW_ANSWER * c->stride];
    const mc_answer_rules *rules = &c->rules[answer];
    const mc_sampling *how = &rules->how;
    if (how->repetition_penalty != 1)
        mc_penalise(logits, c->vocab, c->seen + answer * mc_seen_words(c->vocab),
                    how->repetition_penalty);
    if (how->sample) mc_filter(logits, c->vocab, how, order);
    double log_sum = mc_log_sum_exp(logits, c->vocab);
    if (!isfinite(log_sum)) return (mc_chosen){MC_CHOSEN_NOT_FINITE, 0};
    double u = mc_uniform(how->seed, (uint64_t)rules->place, (uint64_t)at[MC_ROW_STEP * c->stride]);
    int32_t token =
        how->sample ? mc_draw(logits, c->vocab, log_sum, u) : mc_most_probable(logits, c->vocab);
    return (mc_chosen){token, (float)((double)logits[token] - log_sum)};
}
