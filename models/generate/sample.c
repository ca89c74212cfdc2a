/* From logits to tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "models/generate/generate_internal.h"

bool mc_sampler_init(mc_sampler *s, int64_t vocab)
{
    s->vocab = vocab;
    s->order = mc_malloc((size_t)vocab * sizeof *s->order);
    s->marks = mc_calloc((size_t)vocab, 1);
    return s->order && s->marks;
}

void mc_sampler_release(mc_sampler *s)
{
    mc_free(s->order);
    mc_free(s->marks);
}

void mc_penalise(mc_sampler *s, float *logits, const int32_t *seen, int count, float penalty)
{
    if (penalty == 1) return;
    for (int i = 0; i < count; i++) { /* each token once, however often it was seen */
        float *x = &logits[seen[i]];
        if (s->marks[seen[i]]) continue;
        s->marks[seen[i]] = 1;
        *x = *x < 0 ? *x * penalty : *x / penalty;
    }
    for (int i = 0; i < count; i++) s->marks[seen[i]] = 0;
}

/* ---- filters --------------------------------------------------------------------------------- */

static int compare_logits(const void *a, const void *b, void *user)
{
    const float *logits = user;
    int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    if (logits[i] != logits[k]) return logits[i] < logits[k] ? -1 : 1;
    return i < k ? 1 : -1; /* of equals the first token counts as the more probable */
}

/* The tokens not filtered out yet, the least probable first; gives their number. */
static int64_t sort_tokens(mc_sampler *s, float *logits)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->vocab; i++)
        if (logits[i] > -INFINITY) s->order[n++] = (int32_t)i;
    qsort_r(s->order, (size_t)n, sizeof *s->order, compare_logits, logits);
    return n;
}

/* Keeps the k largest, and those that equal the smallest of them. */
static void keep_top_k(const mc_sampler *s, float *logits, int64_t n, int k)
{
    if (k <= 0 || k >= n) return;
    float least = logits[s->order[n - k]];
    for (int64_t i = 0; i < n && logits[s->order[i]] < least; i++) logits[s->order[i]] = -INFINITY;
}

/* Takes away from below as long as what is taken stays within 1 - p of the probability. */
static void keep_top_p(const mc_sampler *s, float *logits, int64_t n, double p)
{
    double sum = 0, total = 0, largest = n ? (double)logits[s->order[n - 1]] : 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)logits[s->order[i]];
        if (x > -INFINITY) total += exp(x - largest);
    }
    for (int64_t i = 0; i + 1 < n; i++) {
        float *x = &logits[s->order[i]];
        if (*x == -INFINITY) continue;
        sum += exp((double)*x - largest);
        if (sum > (1 - p) * total) break;
        *x = -INFINITY;
    }
}

void mc_filter(mc_sampler *s, float *logits, const mc_generate_options *o)
{
    if (o->temperature != 1)
        for (int64_t i = 0; i < s->vocab; i++) logits[i] /= o->temperature;
    bool by_k = o->top_k > 0 && o->top_k < s->vocab, by_p = o->top_p < 1;
    if (!by_k && !by_p) return;
    int64_t n = sort_tokens(s, logits);
    if (by_k) keep_top_k(s, logits, n, o->top_k);
    if (by_p) keep_top_p(s, logits, n, (double)o->top_p);
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
    return last; /* rounding may leave the sum below u: then the last that can be */
}

/* splitmix64's finaliser (Steele et al. 2014). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double mc_uniform(uint64_t seed, uint64_t sequence, uint64_t step)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t z = mix(mix(mix(seed + golden) + golden * (sequence + 1)) + golden * (step + 1));
    return (double)(z >> 11) * 0x1p-53;
}
