/* Muon's elementwise parts, one memory-bound pass each; gemm computes the products between them.
 * Sums have the form of torch's lerp, so that f32 results differ only by rounding. */
#include <math.h>
#include "core/device/cpu/isa/convert_internal.h"

mc_status MC_K(muon_momentum)(mc_device *d, int64_t count, mc_muon_step step, mc_matrix gradient,
                              float *buffer, mc_matrix x)
{
    (void)d;
    const bool skip = step.update->skip;
    const float scale = step.update->gradient_scale, fresh = 1.0f - step.momentum;
    const float back = step.nesterov ? fresh : 0.0f;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL / 4)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float read[MC_CHUNK], written[MC_CHUNK];
        const float *gs = mc_read(gradient, k.column, k.n, read);
        float *bs = buffer + k.column, *xs = mc_write_begin(x, k.column, written);
        if (skip) {
            memset(xs, 0, (size_t)k.n * sizeof *xs);
        } else {
#pragma omp simd
            for (int j = 0; j < k.n; j++) {
                float g = gs[j] * scale;
                float b = bs[j] + fresh * (g - bs[j]);
                bs[j] = b;
                xs[j] = b - back * (b - g);
            }
        }
        mc_write_end(x, k.column, k.n, xs);
    }
    return MC_OK;
}

mc_status MC_K(muon_normalize)(mc_device *d, int64_t count, const mc_gradient_stats *stats,
                               float least, mc_matrix x)
{
    (void)d;
    float norm = (float)sqrt(stats->sum_squares);
    const float divisor = norm > least ? norm : least;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL / 4)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float read[MC_CHUNK], written[MC_CHUNK];
        const float *from = mc_read(x, k.column, k.n, read);
        float *to = mc_write_begin(x, k.column, written);
#pragma omp simd
        for (int j = 0; j < k.n; j++) to[j] = from[j] / divisor;
        mc_write_end(x, k.column, k.n, to);
    }
    return MC_OK;
}

/* A tile from row `top` and column `left` on, where its columns are after the row's strip. */
#define MIRROR(E)                                                                       \
    static void mirror_##E(int64_t n, int64_t strip, E *x, int64_t stride, int64_t top, \
                           int64_t left)                                                \
    {                                                                                   \
        int64_t bottom = top + TILE < n ? top + TILE : n;                               \
        int64_t right = left + TILE < n ? left + TILE : n;                              \
        for (int64_t i = top; i < bottom; i++) {                                        \
            int64_t end = mc_strip_end(n, strip, i);                                    \
            for (int64_t j = left > end ? left : end; j < right; j++)                   \
                x[i * stride + j] = x[j * stride + i];                                  \
        }                                                                               \
    }
enum { TILE = 64 }; /* both sides of it stay in the first cache */
MIRROR(uint16_t)
MIRROR(uint32_t)

mc_status MC_K(muon_mirror)(mc_device *d, int64_t batch, int64_t n, int64_t strip, mc_matrix x,
                            int64_t step)
{
    (void)d;
    const int64_t tiles = (n + TILE - 1) / TILE;
#pragma omp parallel for schedule(static) if (batch * n * n > MC_SERIAL)
    for (int64_t i = 0; i < batch * tiles * tiles; i++) {
        int64_t first = i / (tiles * tiles) * step, top = i / tiles % tiles * TILE,
                left = i % tiles * TILE;
        if (x.dtype == MC_F32)
            mirror_uint32_t(n, strip, (uint32_t *)x.data + first, x.stride, top, left);
        else
            mirror_uint16_t(n, strip, (uint16_t *)x.data + first, x.stride, top, left);
    }
    return MC_OK;
}

mc_status MC_K(muon_update)(mc_device *d, int64_t count, mc_muon_step step, mc_matrix x,
                            float *master, void *parameter, mc_dtype parameter_dtype)
{
    (void)d;
    if (step.update->skip) return MC_OK;
    double lr = step.update->lr * (double)step.lr_factor;
    const float keep = (float)(1 - lr * (double)step.weight_decay);
    const float size = (float)(lr * (double)step.scale);
    float *p = master ? master : parameter;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL / 4)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float read[MC_CHUNK];
        const float *xs = mc_read(x, k.column, k.n, read);
        float *ps = p + k.column;
#pragma omp simd
        for (int j = 0; j < k.n; j++) ps[j] = keep * ps[j] - size * xs[j];
        if (master) mc_convert_out(ps, k.n, parameter, parameter_dtype, k.column);
    }
    return MC_OK;
}
