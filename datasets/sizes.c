#include "datasets/sizes_internal.h"

#include <stdbool.h>
#include <string.h>

enum { LEAST_UNIT = 64 };

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

static int cell_of(const mc_sizes *s, int64_t tokens)
{
    return tokens > s->unit ? (int)((tokens + s->unit - 1) / s->unit) : 1;
}

static int64_t unit_of(int64_t largest, int64_t round_to)
{
    int64_t least = (largest + MC_SIZE_CELLS - 1) / MC_SIZE_CELLS;
    return round_up(round_up(least > 1 ? least : 1, LEAST_UNIT), round_to);
}

int64_t mc_sizes_rounding(int64_t largest, int64_t round_to) { return unit_of(largest, round_to); }

void mc_sizes_init(mc_sizes *s, mc_size largest, int64_t round_to)
{
    memset(s, 0, sizeof *s);
    s->unit = unit_of(largest.tokens, round_to);
}

void mc_sizes_note(mc_sizes *s, mc_size batch)
{
    int cell = cell_of(s, batch.tokens);
    s->batches[cell]++;
    if (batch.longest > s->longest[cell]) s->longest[cell] = batch.longest;
}

/* chosen[0 .. n): the cells, ascending and at most `most`, that the batches of cells 1 .. last are
 * rounded up to. cost[k][j] is the least sum of the batches' sizes up to cell j with k sizes, of
 * which j is the last. */
static int choose_cells(const mc_sizes *s, int most, int last, int chosen[MC_MOST_SIZES])
{
    int64_t cost[MC_MOST_SIZES + 1][MC_SIZE_CELLS + 1], before[MC_SIZE_CELLS + 1] = {0};
    int16_t from[MC_MOST_SIZES + 1][MC_SIZE_CELLS + 1];
    for (int j = 1; j <= last; j++) {
        before[j] = before[j - 1] + s->batches[j];
        cost[1][j] = before[j] * j;
        from[1][j] = 0;
    }
    int best = 1;
    for (int k = 2; k <= most && k <= last; k++) {
        for (int j = k; j <= last; j++) {
            cost[k][j] = INT64_MAX;
            for (int i = k - 1; i < j; i++) {
                int64_t sum = cost[k - 1][i] + (before[j] - before[i]) * j;
                if (sum >= cost[k][j]) continue;
                cost[k][j] = sum;
                from[k][j] = (int16_t)i;
            }
        }
        if (cost[k][last] < cost[best][last]) best = k;
    }
    for (int k = best, j = last; k > 0; j = from[k--][j]) chosen[k - 1] = j;
    return best;
}

/* The longest sequence of all batches so far, and some more, for others of the size. */
static int32_t rounded_longest(int32_t longest, mc_size largest)
{
    int64_t rounded = round_up(longest, LEAST_UNIT);
    return rounded < largest.longest ? (int32_t)rounded : largest.longest;
}

void mc_sizes_choose(mc_sizes *s, int most, mc_size largest)
{
    int last = 0, chosen[MC_MOST_SIZES], n = 0;
    for (int j = 1; j <= MC_SIZE_CELLS; j++)
        if (s->batches[j]) last = j;
    if (last && most > 1) n = choose_cells(s, most - 1, last, chosen);
    int32_t longest = 0;
    for (int i = 0, cell = 0; i < n; i++) {
        for (; cell <= chosen[i]; cell++)
            if (s->longest[cell] > longest) longest = s->longest[cell];
        s->size[i] = (mc_size){chosen[i] * s->unit, rounded_longest(longest, largest)};
    }
    mc_size end = {cell_of(s, largest.tokens) * s->unit, largest.longest};
    bool there = n && s->size[n - 1].tokens == end.tokens && s->size[n - 1].longest == end.longest;
    if (!there) s->size[n++] = end;
    s->count = n;
}

mc_size mc_sizes_fit(const mc_sizes *s, mc_size batch)
{
    int i = 0;
    while (i + 1 < s->count &&
           (s->size[i].tokens < batch.tokens || s->size[i].longest < batch.longest))
        i++;
    return s->size[i];
}
