/* Positions of tokens: a bias by distance from its table, and rotary positions. */
#include <math.h>
#include "core/device/cpu/isa/convert_internal.h"

/* ---- bias by distance ------------------------------------------------------------------------ */

typedef struct bias_call {
    int64_t distances;
    mc_matrix table;
    const int32_t *bucket;
    float *out;
} bias_call;

static void bias_item(void *call, int64_t head, int thread)
{
    const bias_call *c = call;
    (void)thread;
    for (int64_t i = 0; i < c->distances; i++)
        mc_convert_in(c->table.data, c->table.dtype, c->bucket[i] * c->table.stride + head, 1,
                      c->out + head * c->distances + i);
}

mc_status MC_K(position_bias)(mc_device *d, int64_t heads, int64_t distances, mc_matrix table,
                              const int32_t *bucket, float *out)
{
    bias_call c = {distances, table, bucket, out};
    mc_run(d, heads, mc_threads_for(heads * distances), heads, bias_item, &c);
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

/* Cosine and sine of each pair at a position. Angles of thousands of turns keep f32 precision only
 * if they are computed in double. */
static void turns_at(const mc_rotation *r, const double *frequency, double position, float *cosine,
                     float *sine)
{
    float magnitude = mc_rotary_magnitude(r), sign = r->inverse ? -magnitude : magnitude;
    for (int i = 0; i < r->rotary_dim / 2; i++) {
        double angle = position * frequency[i];
        cosine[i] = magnitude * (float)cos(angle);
        sine[i] = sign * (float)sin(angle);
    }
}

/* Reads both columns of a pair before it writes either, so that y may be x. */
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

typedef struct rotary_call {
    mc_rotation rotation;
    const int32_t *positions;
    mc_matrix x;
    const double *frequency;
    float *scratch; /* per thread: cosines and sines, and one head, `wide` floats apart */
    int64_t wide;
} rotary_call;

static void rotary_item(void *call, int64_t row, int thread)
{
    const rotary_call *c = call;
    const mc_rotation *r = &c->rotation;
    int pairs = r->rotary_dim / 2;
    float *cosine = c->scratch + 2 * c->wide * thread, *sine = cosine + pairs,
          *head = cosine + c->wide;
    turns_at(r, c->frequency, c->positions[row], cosine, sine);
    for (int64_t h = 0; h < r->heads; h++) {
        int64_t at = row * c->x.stride + h * r->head_dim;
        const float *from = mc_read(c->x, at, r->rotary_dim, head);
        float *to = mc_write_begin(c->x, at, head);
        (r->halves ? rotate_halves : rotate_neighbours)(cosine, sine, pairs, from, to);
        mc_write_end(c->x, at, r->rotary_dim, to);
    }
}

mc_status MC_K(rotary)(mc_device *d, int64_t rows, mc_rotation r, const int32_t *positions,
                       mc_matrix x)
{
    int64_t wide = mc_round_up(r.rotary_dim, 16);
    if (rows == 0 || r.heads == 0) return MC_OK;
    int64_t threads = mc_min_i64(mc_threads_for(rows * r.heads * r.rotary_dim), rows);
    int64_t size = wide + 2 * wide * threads; /* the frequencies first */
    float *scratch = mc_scratch_new(d, size);
    if (!scratch) return MC_ERR_NOMEM;
    double *frequency = (double *)(void *)scratch;
    for (int i = 0; i < r.rotary_dim / 2; i++)
        frequency[i] = mc_rotary_angle(&r, i, pow((double)r.base, -2.0 * i / (double)r.rotary_dim));
    rotary_call c = {r, positions, x, frequency, scratch + wide, wide};
    mc_run(d, rows, (int)threads, rows, rotary_item, &c);
    mc_scratch_free(d, scratch, size);
    return MC_OK;
}
