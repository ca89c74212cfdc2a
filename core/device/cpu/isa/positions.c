/* Where tokens are: a bias by distance from its table, and rotary positions. */
#include <math.h>
#include "core/device/cpu/isa/convert_internal.h"

/* ---- bias by distance ------------------------------------------------------------------------ */

mc_status MC_K(position_bias)(mc_device *d, int64_t heads, int64_t distances, mc_matrix table,
                              const int32_t *bucket, float *out)
{
    (void)d;
#pragma omp parallel for schedule(static) if (heads * distances > MC_SERIAL)
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < distances; i++)
            mc_convert_in(table.data, table.dtype, bucket[i] * table.stride + h, 1,
                          out + h * distances + i);
    return MC_OK;
}

mc_status MC_K(position_bias_backward)(mc_device *d, int64_t buckets, int64_t heads,
                                       int64_t distances, const float *dy, const int32_t *bucket,
                                       mc_matrix dtable, bool accumulate)
{
    int64_t size = buckets * heads;
    if (size == 0) return MC_OK;
    float *sums = mc_scratch_new(d, size);
    if (!sums) return MC_ERR_NOMEM;
    memset(sums, 0, (size_t)size * sizeof *sums);
#pragma omp parallel for schedule(static) if (heads * distances > MC_SERIAL)
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < distances; i++)
            sums[h * buckets + bucket[i]] += dy[h * distances + i];
    for (int64_t b = 0; b < buckets; b++)
        for (int64_t h = 0; h < heads; h++)
            mc_write(dtable, b * dtable.stride + h, 1, sums + h * buckets + b, accumulate);
    mc_scratch_free(d, sums, size);
    return MC_OK;
}

/* ---- rotary positions ------------------------------------------------------------------------ */

/* The turn of each pair at a position. Angles of thousands of turns keep f32's digits only where
 * they are taken in double. */
static void turns_at(const double *frequency, int pairs, double position, float sign, float *cosine,
                     float *sine)
{
    for (int i = 0; i < pairs; i++) {
        double angle = position * frequency[i];
        cosine[i] = (float)cos(angle);
        sine[i] = sign * (float)sin(angle);
    }
}

/* Both of a pair are read before either is written, so that y may be x. */
static void rotate_halves(const float *cosine, const float *sine, int pairs, const float *x,
                          float *y)
{
#pragma omp simd
    for (int i = 0; i < pairs; i++) {
        float a = x[i], b = x[i + pairs];
        y[i] = a * cosine[i] - b * sine[i];
        y[i + pairs] = b * cosine[i] + a * sine[i];
    }
}

static void rotate_neighbours(const float *cosine, const float *sine, int pairs, const float *x,
                              float *y)
{
#pragma omp simd
    for (int i = 0; i < pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cosine[i] - b * sine[i];
        y[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

mc_status MC_K(rotary)(mc_device *d, int64_t rows, mc_rotation r, const int32_t *positions,
                       mc_matrix x)
{
    int pairs = r.rotary_dim / 2;
    int64_t wide = mc_round_up(r.rotary_dim, 16);
    if (rows == 0 || r.heads == 0) return MC_OK;
    bool parallel = rows * r.heads * r.rotary_dim > MC_SERIAL;
    int64_t threads = parallel ? mc_min_i64(omp_get_max_threads(), rows) : 1;
    int64_t size = wide + 2 * wide * threads; /* frequencies; a thread's turns and one head */
    float *scratch = mc_scratch_new(d, size);
    if (!scratch) return MC_ERR_NOMEM;
    double *frequency = (double *)(void *)scratch;
    for (int i = 0; i < pairs; i++)
        frequency[i] = pow((double)r.base, -2.0 * i / (double)r.rotary_dim);
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t row = 0; row < rows; row++) {
        float *cosine = scratch + wide + 2 * wide * omp_get_thread_num();
        float *sine = cosine + pairs, *head = cosine + wide;
        turns_at(frequency, pairs, positions[row], r.inverse ? -1.0f : 1.0f, cosine, sine);
        for (int64_t h = 0; h < r.heads; h++) {
            int64_t at = row * x.stride + h * r.head_dim;
            const float *from = mc_read(x, at, r.rotary_dim, head);
            float *to = mc_write_begin(x, at, head);
            (r.halves ? rotate_halves : rotate_neighbours)(cosine, sine, pairs, from, to);
            mc_write_end(x, at, r.rotary_dim, to);
        }
    }
    mc_scratch_free(d, scratch, size);
    return MC_OK;
}
