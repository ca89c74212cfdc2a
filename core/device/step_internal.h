/* The end of a training step, decided in device memory, where the gradients are, so that the host
 * need not wait for it. Plain C that the CPU and the CUDA device both compile;
 * core/optim/optim_manager.h explains the rules. */
#ifndef MC_DEVICE_STEP_INTERNAL_H
#define MC_DEVICE_STEP_INTERNAL_H

#include <math.h>
#include <stdint.h>
#include "core/device/fp8_internal.h"
#include "core/device/update.h"

#ifdef __CUDACC__
#define MC_ANYWHERE __host__ __device__ static inline
#else
#define MC_ANYWHERE static inline
#endif

/* Statistics of all gradients of a step. All zero: no gradients yet. */
typedef struct mc_gradient_stats {
    double sum_squares; /* of finite and non-finite values alike */
    double sum_powers;  /* sum of |g|^p for the requested norm */
    float largest;      /* largest |g|; NaN if any is NaN */
    int32_t unused;
    uint64_t nonfinite; /* 0: all are finite. Else 2^63 - the number of the first that is not */
} mc_gradient_stats;

typedef enum mc_step_failure {
    MC_STEP_FINE = 0,
    MC_STEP_NONFINITE,  /* a gradient is infinite or NaN, which is an error by the rules */
    MC_STEP_SEED_ZERO,  /* loss_scale / nominal is zero in f32 */
    MC_STEP_NORM_RANGE, /* the sum of powers left the range of double */
    MC_STEP_UNLIKE      /* two ranks divided their losses by different numbers of rows */
} mc_step_failure;

/* A rank's sums in a step. */
typedef struct mc_step_sums {
    mc_gradient_stats stats;     /* of its part of the gradients; zeroed before the measurement */
    double loss_sum, loss_count; /* of the losses in these gradients; zeroed with them */
    double told_sum, told_count; /* of the losses since the last step ended */
    double nominal;              /* the divisor of the loss scale in the seed; in `all` rank 0's */
} mc_step_sums;

/* The state of an OptimManager in device memory. */
typedef struct mc_step_state {
    mc_step_sums own; /* this rank's */
    mc_step_sums all; /* over all ranks, as they were last measured */
    int64_t ended;    /* not 0: the next loss begins a new step */
    /* {loss_scale / nominal, 0}: the gradient of a loss (sum, count) with which backward starts */
    float seed[2];
    /* loss scaling */
    double loss_scale;
    int64_t growth_counter; /* steps since the scale last changed */
    int64_t steps, skipped; /* ended so far, taken and not */
    int64_t stuck;          /* steps skipped in a row at the least loss scale */
    /* the last decision */
    double norm;          /* of the gradient of the mean loss, before clipping */
    double mean_loss;     /* NaN if no row counted */
    float gradient_scale; /* factor of gradients for optimizers */
    int32_t skip;         /* not 0: optimizers do nothing */
    int32_t failure;      /* an mc_step_failure; while it is set no step is taken */
    int32_t unlike;       /* MC_STEP_UNLIKE: the first rank whose nominal is not rank 0's */
    double unlike_nominal;
    uint64_t nonfinite; /* as in stats */
    mc_fp8_total fp8;   /* observations of the step's 8-bit casts, on all ranks */
} mc_step_state;

/* The rules for the end of a step; constant while the manager's options are. */
typedef struct mc_step_rules {
    double power;     /* the p of the norm; INFINITY: the largest */
    double max_norm;  /* INFINITY: no clipping */
    int32_t counted;  /* the gradients come from counted losses; 0: used unchanged */
    int32_t scaling;  /* loss scaling is on */
    int32_t may_skip; /* without loss scaling, a gradient that is not finite skips the step */
    int32_t unused;
    double factor, min_scale, max_scale;
    int64_t growth_steps;
} mc_step_rules;

enum { MC_STEPS_LATE = 3 }; /* the most steps launched without known outcome */

/* The host's settings for an optimizer's next step, for each possible outcome of earlier steps:
 * `step` and lr[0] if none of the unknown ones was skipped; with k of them skipped, step - k and
 * lr[k]. */
typedef struct mc_update_guess {
    double lr[MC_STEPS_LATE + 1];
    int64_t step;
    int64_t known_skipped; /* skipped steps that the host knows of */
} mc_update_guess;

/* Begins the losses of a step. */
MC_ANYWHERE void mc_step_seed(mc_step_state *s, double nominal)
{
    s->seed[0] = (float)(s->loss_scale / nominal);
    s->seed[1] = 0;
    s->own.nominal = nominal;
    if (s->seed[0] == 0) s->failure = MC_STEP_SEED_ZERO;
}

/* Adds a loss whose backward has run. */
MC_ANYWHERE void mc_step_count(mc_step_state *s, const float *loss)
{
    if (s->ended) s->own.told_sum = s->own.told_count = 0;
    s->ended = 0;
    s->own.loss_sum += (double)loss[0];
    s->own.loss_count += (double)loss[1];
    s->own.told_sum += (double)loss[0];
    s->own.told_count += (double)loss[1];
}

/* The p-norm of the present gradients. */
MC_ANYWHERE double mc_step_raw_norm(mc_step_state *s, double p)
{
    const mc_gradient_stats *g = &s->all.stats;
    if (g->nonfinite) return isnan(g->largest) || isnan(g->sum_squares) ? NAN : INFINITY;
    if (isinf(p)) return g->largest;
    if (p == 2) return sqrt(g->sum_squares);
    if (g->largest > 0 && !(g->sum_powers > 0 && isfinite(g->sum_powers))) {
        s->failure = MC_STEP_NORM_RANGE;
        return NAN;
    }
    return pow(g->sum_powers, 1 / p);
}

MC_ANYWHERE void mc_step_add_sums(mc_step_sums *all, const mc_step_sums *part)
{
    all->stats.sum_squares += part->stats.sum_squares;
    all->stats.sum_powers += part->stats.sum_powers;
    if (!(part->stats.largest <= all->stats.largest) && !isnan(all->stats.largest))
        all->stats.largest = part->stats.largest;
    if (part->stats.nonfinite > all->stats.nonfinite) all->stats.nonfinite = part->stats.nonfinite;
    all->loss_sum += part->loss_sum;
    all->loss_count += part->loss_count;
    all->told_sum += part->told_sum;
    all->told_count += part->told_count;
}

/* Computes the norm, and the factor that averages and clips the gradients, from the sums of all
 * ranks in rank order (parts NULL: from this rank's alone). */
MC_ANYWHERE void mc_step_measure(mc_step_state *s, const mc_step_rules *r, int ranks,
                                 const mc_step_sums *parts)
{
    s->all = parts ? parts[0] : s->own;
    for (int i = 1; parts && i < ranks; i++) {
        mc_step_add_sums(&s->all, &parts[i]);
        if (!r->counted || s->failure || parts[i].nominal == s->all.nominal) continue;
        s->failure = MC_STEP_UNLIKE;
        s->unlike = i;
        s->unlike_nominal = parts[i].nominal;
    }
    double count = s->all.loss_count > 0 ? s->all.loss_count : 1;
    double factor = r->counted ? 1 / ((double)s->seed[0] * count) : 1;
    s->norm = mc_step_raw_norm(s, r->power) * factor;
    s->mean_loss = s->all.told_sum / s->all.told_count;
    double clip = isinf(r->max_norm) ? 1 : r->max_norm / (s->norm + 1e-6);
    s->gradient_scale = (float)(factor * (clip < 1 ? clip : 1));
}

enum { MC_STEPS_STUCK = 16 }; /* see stuck: the next one is an error */

/* At the least loss scale a single overflow may be the batch's fault, as at a constant scale. Many
 * in a row are the model's: no step will ever be taken. */
MC_ANYWHERE void mc_step_overflow(mc_step_state *s, const mc_step_rules *r)
{
    bool falls = r->scaling && s->loss_scale > r->min_scale;
    bool tolerated = falls || (r->scaling && s->stuck < MC_STEPS_STUCK);
    if (!tolerated && !r->may_skip) {
        s->failure = MC_STEP_NONFINITE;
        s->ended = 0;
        s->nonfinite = s->all.stats.nonfinite;
        return;
    }
    s->skipped++;
    s->stuck = falls ? 0 : s->stuck + 1;
    if (falls) {
        s->loss_scale /= r->factor;
        s->growth_counter = 0;
    }
}

/* Ends a measured step: decides whether it is taken, and the next loss scale. */
MC_ANYWHERE void mc_step_decide(mc_step_state *s, const mc_step_rules *r)
{
    s->skip = s->failure || s->all.stats.nonfinite;
    if (!s->failure) s->ended = 1;
    if (s->failure) return;
    if (s->skip) {
        mc_step_overflow(s, r);
        return;
    }
    s->steps++;
    s->stuck = 0;
    if (!r->scaling) return;
    s->growth_counter++;
    if (s->growth_counter >= r->growth_steps && s->loss_scale < r->max_scale) {
        s->loss_scale *= r->factor;
        s->growth_counter = 0;
    }
}

/* The settings of an optimizer for the step just decided. */
MC_ANYWHERE void mc_step_update(const mc_step_state *s, const mc_update_guess *g, mc_update *u)
{
    int64_t skipped = s->skipped - (s->skip && !s->failure); /* before this step */
    int64_t late = skipped - g->known_skipped;
    if (late < 0) late = 0;
    if (late > MC_STEPS_LATE) late = MC_STEPS_LATE;
    u->lr = g->lr[late];
    u->step = g->step - late;
    u->gradient_scale = s->gradient_scale;
    u->skip = s->skip;
}

#endif
