/* Statistics of tensors. Elements are divided into blocks by their number alone, and the blocks are
 * added in order, so that the bits do not depend on the number of threads. */
#include <math.h>
#include "core/device/cpu/isa/convert_internal.h"

enum { BLOCK = 16384 /* a multiple of MC_CHUNK */ };

typedef struct part {
    double sum, squares;
    float largest, smallest;
    int nans;
} part;

/* Adds n <= MC_CHUNK elements. */
static void add_chunk(part *p, const float *x, int n, double shift)
{
    double sum = 0, squares = 0;
    float largest = p->largest, smallest = p->smallest;
    int nans = 0;
#pragma omp simd reduction(+ : sum, squares, nans) \
    reduction(max : largest) reduction(min : smallest)
    for (int i = 0; i < n; i++) {
        double value = (double)x[i] - shift;
        sum += value;
        squares += value * value;
        largest = x[i] > largest ? x[i] : largest;
        smallest = x[i] < smallest ? x[i] : smallest;
        nans += x[i] != x[i];
    }
    p->sum += sum;
    p->squares += squares;
    p->largest = largest;
    p->smallest = smallest;
    p->nans += nans;
}

static part part_of(mc_matrix x, int64_t first, int64_t last, double shift)
{
    float buffer[MC_CHUNK];
    part p = {.largest = -INFINITY, .smallest = INFINITY};
    for (int64_t at = first; at < last; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, last - at);
        add_chunk(&p, mc_read(x, at, n, buffer), n, shift);
    }
    return p;
}

static double shift_of(mc_matrix x, int64_t count)
{
    float first = 0;
    if (count) mc_convert_in(x.data, x.dtype, 0, 1, &first);
    return isfinite(first) ? (double)first : 0;
}

mc_status MC_K(tensor_stats)(mc_device *d, int64_t count, mc_matrix x, mc_tensor_stats *out)
{
    int64_t blocks = (count + BLOCK - 1) / BLOCK;
    part *parts = d->alloc(d, (size_t)blocks * sizeof *parts);
    if (!parts) return MC_ERR_NOMEM;
    double shift = shift_of(x, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL)
    for (int64_t i = 0; i < blocks; i++)
        parts[i] = part_of(x, i * BLOCK, mc_min_i64((i + 1) * BLOCK, count), shift);
    part all = {.largest = -INFINITY, .smallest = INFINITY};
    for (int64_t i = 0; i < blocks; i++) {
        all.sum += parts[i].sum;
        all.squares += parts[i].squares;
        all.largest = parts[i].largest > all.largest ? parts[i].largest : all.largest;
        all.smallest = parts[i].smallest < all.smallest ? parts[i].smallest : all.smallest;
        all.nans |= parts[i].nans;
    }
    *out = (mc_tensor_stats){.count = count,
                             .shift = shift,
                             .sum = all.sum,
                             .squares = all.squares,
                             .largest = all.nans ? NAN : all.largest,
                             .smallest = all.nans ? NAN : all.smallest};
    d->free(d, parts, (size_t)blocks * sizeof *parts);
    return MC_OK;
}
