/* Optimizer steps over flat arrays, in one pass each: bound by memory. Adam on f32 parameters reads
 * gradient, m, v and parameter and writes m, v and parameter, 28 bytes an element (30 with a 16-bit
 * parameter beside an f32 master, which is not read; 2 less with a 16-bit gradient); SGD with
 * momentum 20. */
#include <math.h>
#include "core/device/cpu/isa/convert_internal.h"
#include "core/device/dynamic_map_internal.h"

/* The scalars of an Adam step: see mc_adam_step. */
typedef struct adam_scalars {
    float gradient_scale, step_size, sqrt_correction2, decay, l2;
} adam_scalars;

static adam_scalars adam_scalars_of(const mc_adam_step *step)
{
    const mc_update *u = step->update;
    double t = (double)(u->step + step->step_offset), lr = u->lr * (double)step->lr_factor;
    return (adam_scalars){
        .gradient_scale = u->gradient_scale,
        .step_size = (float)(lr / (1 - pow(step->beta1, t))),
        .sqrt_correction2 = (float)sqrt(1 - pow(step->beta2, t)),
        .decay = step->l2 ? 0 : (float)(lr * (double)step->weight_decay),
        .l2 = step->l2 ? step->weight_decay : 0,
    };
}

mc_status MC_K(adam)(mc_device *d, int64_t count, mc_adam_step step, mc_matrix gradient, float *m,
                     float *v, float *master, void *parameter, mc_dtype parameter_dtype)
{
    (void)d;
    if (step.update->skip) return MC_OK;
    const adam_scalars s = adam_scalars_of(&step);
    float *p = master ? master : parameter;
    const float m_new = 1.0f - step.beta1, v_new = 1.0f - step.beta2;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL / 4)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float buffer[MC_CHUNK];
        const float *gs = mc_read(gradient, k.column, k.n, buffer);
        float *ms = m + k.column, *vs = v + k.column, *ps = p + k.column;
#pragma omp simd
        for (int j = 0; j < k.n; j++) {
            float g = gs[j] * s.gradient_scale + s.l2 * ps[j];
            float mean = step.beta1 * ms[j] + m_new * g;
            float square = step.beta2 * vs[j] + v_new * (g * g);
            float divisor = sqrtf(square) / s.sqrt_correction2 + step.eps;
            ms[j] = mean;
            vs[j] = square;
            ps[j] = ps[j] - s.step_size * mean / divisor - s.decay * ps[j];
        }
        if (master) mc_convert_out(ps, k.n, parameter, parameter_dtype, k.column);
    }
    return MC_OK;
}

/* ---- Adam with its state in 8 bits ----------------------------------------------------------- */

static void decode_block(const float *map, const uint8_t *code, float scale, int n, float *x)
{
    for (int j = 0; j < n; j++) x[j] = map[code[j]] * scale;
}

/* The nearest number of the map; the smaller of two that are equally near. Zero state is code 0,
 * whatever the map has there. With `keeps`, nothing above zero becomes zero: under Adam's root that
 * could make a step arbitrarily large. */
static void encode_block(const float *map, const float *x, int n, bool keeps, uint8_t *code,
                         float *scale)
{
    float largest = 0;
    for (int j = 0; j < n; j++) largest = fabsf(x[j]) > largest ? fabsf(x[j]) : largest;
    *scale = largest;
    for (int j = 0; j < n; j++) {
        float part = largest > 0 ? x[j] / largest : 0;
        int at = 0; /* the last entry not above it */
        for (int step = MC_MAP_SIZE / 2; step; step /= 2) at += map[at + step] <= part ? step : 0;
        if (at + 1 < MC_MAP_SIZE && map[at + 1] - part < part - map[at]) at++;
        at += keeps && at == 0 && x[j] > 0;
        code[j] = (uint8_t)(largest > 0 ? at : 0);
    }
}

mc_status MC_K(adam8)(mc_device *d, int64_t count, mc_adam_step step, mc_matrix gradient,
                      mc_state8 m, mc_state8 v, float *master, void *parameter,
                      mc_dtype parameter_dtype)
{
    (void)d;
    if (step.update->skip) return MC_OK;
    const adam_scalars s = adam_scalars_of(&step);
    float *p = master ? master : parameter, signed_map[MC_MAP_SIZE], unsigned_map[MC_MAP_SIZE];
    const float m_new = 1.0f - step.beta1, v_new = 1.0f - step.beta2;
    mc_dynamic_map(true, signed_map);
    mc_dynamic_map(false, unsigned_map);
    int64_t blocks = (count + MC_STATE_BLOCK - 1) / MC_STATE_BLOCK;
#pragma omp parallel for schedule(static) if (count > MC_SERIAL / 4)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * MC_STATE_BLOCK;
        int n = (int)mc_min_i64(MC_STATE_BLOCK, count - first);
        float buffer[MC_STATE_BLOCK], ms[MC_STATE_BLOCK], vs[MC_STATE_BLOCK];
        const float *gs = mc_read(gradient, first, n, buffer);
        float *ps = p + first;
        decode_block(signed_map, m.code + first, m.scale[b], n, ms);
        decode_block(unsigned_map, v.code + first, v.scale[b], n, vs);
#pragma omp simd
        for (int j = 0; j < n; j++) {
            float g = gs[j] * s.gradient_scale + s.l2 * ps[j];
            ms[j] = step.beta1 * ms[j] + m_new * g;
            vs[j] = step.beta2 * vs[j] + v_new * (g * g);
            float divisor = sqrtf(vs[j]) / s.sqrt_correction2 + step.eps;
            ps[j] = ps[j] - s.step_size * ms[j] / divisor - s.decay * ps[j];
        }
        encode_block(signed_map, ms, n, false, m.code + first, &m.scale[b]);
        encode_block(unsigned_map, vs, n, true, v.code + first, &v.scale[b]);
        if (master) mc_convert_out(ps, n, parameter, parameter_dtype, first);
    }
    return MC_OK;
}

/* ---- SGD ------------------------------------------------------------------------------------- */

typedef struct sgd_scalars {
    float scale, lr, momentum, decay, l2;
    bool nesterov, first;
} sgd_scalars;

static sgd_scalars sgd_scalars_of(const mc_sgd_step *step)
{
    const mc_update *u = step->update;
    double lr = u->lr * (double)step->lr_factor;
    return (sgd_scalars){
        .scale = u->gradient_scale,
        .lr = (float)lr,
        .momentum = step->momentum,
        .decay = step->l2 ? 0 : (float)(lr * (double)step->weight_decay),
        .l2 = step->l2 ? step->weight_decay : 0,
        .nesterov = step->nesterov,
        .first = u->step + step->step_offset == 1,
    };
}

static void sgd_chunk(const sgd_scalars *step, int n, const float *gradient, float *buffer,
                      float *p)
{
    const float old = step->first ? 0.0f : step->momentum;
    const float now = step->nesterov ? 1.0f : 0.0f;
    const float kept = step->nesterov ? step->momentum : 1.0f;
    const bool first = step->first;
#pragma omp simd
    for (int j = 0; j < n; j++) {
        float g = gradient[j] * step->scale + step->l2 * p[j];
        float b = first ? g : old * buffer[j] + g; /* a first step does not read the buffer */
        buffer[j] = b;
        p[j] = p[j] - step->lr * (now * g + kept * b) - step->decay * p[j];
    }
}

static void sgd_chunk_plain(const sgd_scalars *step, int n, const float *gradient, float *p)
{
#pragma omp simd
    for (int j = 0; j < n; j++) {
        float g = gradient[j] * step->scale + step->l2 * p[j];
        p[j] = p[j] - step->lr * g - step->decay * p[j];
    }
}

mc_status MC_K(sgd)(mc_device *d, int64_t count, mc_sgd_step given, mc_matrix gradient,
                    float *buffer, float *master, void *parameter, mc_dtype parameter_dtype)
{
    (void)d;
    if (given.update->skip) return MC_OK;
    float *p = master ? master : parameter;
    const sgd_scalars step = sgd_scalars_of(&given);
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL / 4)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float piece[MC_CHUNK];
        const float *g = mc_read(gradient, k.column, k.n, piece);
        if (buffer && step.momentum != 0.0f)
            sgd_chunk(&step, k.n, g, buffer + k.column, p + k.column);
        else
            sgd_chunk_plain(&step, k.n, g, p + k.column);
        if (master) mc_convert_out(p + k.column, k.n, parameter, parameter_dtype, k.column);
    }
    return MC_OK;
}

/* ---- statistics of gradients ----------------------------------------------------------------- */

enum { STATS_BLOCK = 16384 };

typedef struct block_stats {
    double squares, powers;
    uint32_t largest; /* bits of |g|, ordered as required: finite values, inf, NaN */
} block_stats;

static block_stats stats_of(const float *g, int n, double power)
{
    double squares = 0, powers = 0;
    uint32_t largest = 0;
#pragma omp simd reduction(+ : squares) reduction(max : largest)
    for (int i = 0; i < n; i++) {
        uint32_t bits = mc_float_bits(g[i]) & 0x7fffffff;
        squares += (double)g[i] * (double)g[i];
        largest = bits > largest ? bits : largest;
    }
    if (power == 1.0) {
#pragma omp simd reduction(+ : powers)
        for (int i = 0; i < n; i++) powers += (double)fabsf(g[i]);
    } else if (power != 2.0 && isfinite(power)) {
        for (int i = 0; i < n; i++) powers += pow(fabs((double)g[i]), power);
    }
    return (block_stats){squares, powers, largest};
}

/* The gradient of a block; `buffer` (STATS_BLOCK) is for gradients that are not f32. */
static const float *block_of(mc_matrix gradient, int64_t count, int64_t i, int *n, float *buffer)
{
    *n = (int)mc_min_i64(STATS_BLOCK, count - i * STATS_BLOCK);
    return mc_read(gradient, i * STATS_BLOCK, *n, buffer);
}

/* The first element of a block that is infinite or NaN. */
static int first_nonfinite(const float *g, int n)
{
    for (int i = 0; i < n; i++)
        if ((mc_float_bits(g[i]) & 0x7fffffff) >= 0x7f800000) return i;
    return n;
}

mc_status MC_K(gradient_stats)(mc_device *d, int64_t count, mc_matrix gradient, double power,
                               int64_t first, mc_gradient_stats *stats)
{
    int64_t blocks = (count + STATS_BLOCK - 1) / STATS_BLOCK;
    block_stats *block = d->alloc(d, (size_t)blocks * sizeof *block);
    if (!block) return MC_ERR_NOMEM;
#pragma omp parallel for schedule(static) if (count > MC_SERIAL)
    for (int64_t i = 0; i < blocks; i++) {
        int n;
        float buffer[STATS_BLOCK];
        const float *g = block_of(gradient, count, i, &n, buffer);
        block[i] = stats_of(g, n, power);
    }
    uint32_t largest = 0;
    float buffer[STATS_BLOCK];
    for (int64_t i = blocks - 1; i >= 0; i--) {
        if (block[i].largest < 0x7f800000) continue;
        int n;
        const float *g = block_of(gradient, count, i, &n, buffer);
        int64_t at = first + i * STATS_BLOCK + first_nonfinite(g, n);
        uint64_t mark = ((uint64_t)1 << 63) - (uint64_t)at;
        if (mark > stats->nonfinite) stats->nonfinite = mark;
    }
    for (int64_t i = 0; i < blocks; i++) {
        stats->sum_squares += block[i].squares;
        stats->sum_powers += block[i].powers;
        largest = block[i].largest > largest ? block[i].largest : largest;
    }
    float value = mc_bits_float(largest);
    if (!(value <= stats->largest) && !isnan(stats->largest)) stats->largest = value;
    d->free(d, block, (size_t)blocks * sizeof *block);
    return MC_OK;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

mc_status MC_K(step_seed)(mc_device *d, double nominal, mc_step_state *state)
{
    (void)d;
    mc_step_seed(state, nominal);
    return MC_OK;
}

mc_status MC_K(step_count)(mc_device *d, const float *loss, mc_step_state *state)
{
    (void)d;
    mc_step_count(state, loss);
    return MC_OK;
}

mc_status MC_K(step_measure)(mc_device *d, mc_step_rules rules, int ranks,
                             const mc_step_sums *parts, mc_step_state *state)
{
    (void)d;
    mc_step_measure(state, &rules, ranks, parts);
    return MC_OK;
}

mc_status MC_K(step_decide)(mc_device *d, mc_step_rules rules, mc_step_state *state)
{
    (void)d;
    mc_step_decide(state, &rules);
    return MC_OK;
}

mc_status MC_K(step_update)(mc_device *d, const mc_step_state *state, const mc_update_guess *guess,
                            mc_update *update)
{
    (void)d;
    mc_step_update(state, guess, update);
    return MC_OK;
}
