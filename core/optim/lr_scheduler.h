/* Learning rate schedules.
 *
 * A schedule is a function from the number n of optimizer steps taken to a learning rate, together
 * with the current n. mc_optim_manager_add attaches it to an optimizer. Step n + 1 of the optimizer
 * uses the value at n, so the first step of a new run uses n = 0 (with a warm-up, a rate of 0). A
 * step that is skipped for overflow does not advance it.
 *
 *     mc_optim_manager_add(optim, adam, mc_noam_new(ctx, 1e-5, 100));
 *
 * All values are computed in double. The formulas are those of BMTrain's `lr_scheduler` (W is
 * `warmup`, E is `end`, both in optimizer steps); the first W steps of each rise linearly from 0,
 * and W = 0 means no warm-up. Differences from BMTrain, where its code fails, are noted below.
 *
 * Schedules belong to their context. One schedule serves one optimizer. Constructors return NULL on
 * a failed context, and after an error: MC_ERR_ARGUMENT (a rate that is negative or not finite, a
 * negative step count) or MC_ERR_NOMEM.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_OPTIM_LR_SCHEDULER_H
#define MC_OPTIM_LR_SCHEDULER_H

#include "core/base/context.h"

typedef struct mc_lr_scheduler mc_lr_scheduler;

/* lr * n / W for n < W, then lr. */
MC_API mc_lr_scheduler *mc_no_decay_new(mc_context *ctx, double lr, int64_t warmup);

/* lr / sqrt(W) * n / W for n < W, then lr / sqrt(n) (Vaswani et al. 2017, without the model's
 * width). Its peak is lr / sqrt(W). With W = 0 the value at n = 0 is lr, where BMTrain divides by
 * zero. */
MC_API mc_lr_scheduler *mc_noam_new(mc_context *ctx, double lr, int64_t warmup);

/* lr * n / W for n < W, then on a straight line from lr at W to 0 at E, and 0 from then on. */
MC_API mc_lr_scheduler *mc_linear_decay_new(mc_context *ctx, double lr, int64_t warmup,
                                            int64_t end);

/* lr * n / W for n < W, then lr / 2 * (1 + cos(pi (n - W) / (E - W))), and 0 from E on, where
 * BMTrain's rises again. */
MC_API mc_lr_scheduler *mc_cosine_new(mc_context *ctx, double lr, int64_t warmup, int64_t end);

/* lr * n / W for n < W, then lr * gamma^(n - W). gamma in (0, 1]; 0 means 0.95. */
MC_API mc_lr_scheduler *mc_exponential_new(mc_context *ctx, double lr, int64_t warmup,
                                           double gamma);

/* A custom schedule: returns the rate after n steps. It may be called in any order and must depend
 * only on n and `user`. A value that is negative or not finite is an error (MC_ERR_ARGUMENT) at the
 * step that uses it. `user` must outlive the schedule. */
typedef double (*mc_lr_fn)(void *user, int64_t n);
MC_API mc_lr_scheduler *mc_lr_scheduler_new(mc_context *ctx, mc_lr_fn fn, void *user);

/* Frees a schedule now; its optimizer then keeps the learning rate it has. NULL is allowed. */
MC_API void mc_lr_scheduler_free(mc_lr_scheduler *scheduler);

/* The rate after n steps, n >= 0, whatever the schedule's own count. NaN for NULL. */
MC_API double mc_lr_scheduler_at(const mc_lr_scheduler *scheduler, int64_t n);

/* The rate the next step uses: mc_lr_scheduler_at its own count. NaN for NULL. */
MC_API double mc_lr_scheduler_lr(const mc_lr_scheduler *scheduler);

/* The schedule's whole state: the number of steps taken. OptimManagers advance and save it; a
 * program without one does so itself. NULL counts 0; a negative count is MC_ERR_ARGUMENT. */
MC_API int64_t mc_lr_scheduler_count(const mc_lr_scheduler *scheduler);
MC_API mc_status mc_lr_scheduler_set_count(mc_lr_scheduler *scheduler, int64_t count);

#endif
