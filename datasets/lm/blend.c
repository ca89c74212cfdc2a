#include "datasets/lm/blend_internal.h"
#include <math.h>
#include <string.h>
#include "core/base/memory_internal.h"

enum {
    UNITS = 1000000,       /* of a weight of 1: weights are read to that */
    MOST_PERIOD = 1 << 20, /* windows, */
    MOST_WORK = 1 << 24,   /* and times the sources: what a seek takes, some 20 ms */
};

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Weights as whole numbers of units, without their common divisor. False where they are not whole,
 * or their sum is over `most`. */
static bool take_exactly(mc_lm_blend *b, const double *weights, int64_t most)
{
    int64_t divisor = 0;
    b->period = 0;
    for (int i = 0; i < b->count; i++) {
        double units = weights[i] * UNITS, whole = nearbyint(units);
        if (whole < 1 || whole > 1e15 || fabs(units - whole) > 1e-9 * whole) return false;
        b->part[i] = (int64_t)whole;
        divisor = common_divisor(b->part[i], divisor);
    }
    for (int i = 0; i < b->count; i++) {
        b->part[i] /= divisor;
        b->period += b->part[i];
        if (b->period > most) return false;
    }
    return true;
}

/* Weights as shares of about `most`. */
static void take_rounded(mc_lm_blend *b, const double *weights, int64_t most)
{
    double largest = 0, sum = 0;
    for (int i = 0; i < b->count; i++) largest = fmax(largest, weights[i]);
    for (int i = 0; i < b->count; i++) sum += weights[i] / largest; /* which does not overflow */
    b->period = 0;
    for (int i = 0; i < b->count; i++) {
        double share = weights[i] / largest / sum * (double)most;
        b->part[i] = share < 1 ? 1 : (int64_t)nearbyint(share);
        b->period += b->part[i];
    }
}

bool mc_lm_blend_init(mc_lm_blend *b, const double *weights, int count)
{
    *b = (mc_lm_blend){.count = count};
    b->part = mc_calloc((size_t)count, sizeof *b->part);
    b->taken = mc_calloc((size_t)count, sizeof *b->taken);
    if (!b->part || !b->taken) return false;
    int64_t most = MOST_WORK / count < MOST_PERIOD ? MOST_WORK / count : MOST_PERIOD;
    if (!take_exactly(b, weights, most)) take_rounded(b, weights, most);
    return true;
}

void mc_lm_blend_release(mc_lm_blend *b)
{
    mc_free(b->part);
    mc_free(b->taken);
    *b = (mc_lm_blend){0};
}

void mc_lm_blend_seek(mc_lm_blend *b, int64_t n)
{
    int64_t sample, round = n / b->period, at = n % b->period;
    if (round != b->round || at < b->at) {
        memset(b->taken, 0, (size_t)b->count * sizeof *b->taken);
        b->round = round;
        b->at = 0;
    }
    while (b->at < at) mc_lm_blend_next(b, &sample);
}

int mc_lm_blend_next(mc_lm_blend *b, int64_t *sample)
{
    int64_t n = b->round || b->at ? b->at : 1, most = INT64_MIN;
    int best = 0;
    for (int i = 0; i < b->count; i++) {
        int64_t lag = b->part[i] * n - b->taken[i] * b->period;
        if (lag <= most) continue;
        most = lag;
        best = i;
    }
    *sample = b->round * b->part[best] + b->taken[best]++;
    if (++b->at == b->period) {
        memset(b->taken, 0, (size_t)b->count * sizeof *b->taken);
        b->at = 0;
        b->round++;
    }
    return best;
}
