/* OptimManager: runs optimizers, their schedules, loss scaling, gradient clipping and accumulation.
 *
 *     mc_optim_manager *optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){
 *                                                             .loss_scale = 1024 });
 *     mc_optim_manager_add(optim, adam, mc_noam_new(ctx, 1e-5, 100));
 *     for (...) {
 *         mc_optim_manager_zero_grad(optim);
 *         mc_tape *t = mc_tape_begin(ctx);
 *         mc_tensor *loss = ...;
 *         mc_optim_manager_backward(optim, t, loss);
 *         double norm = mc_optim_manager_clip_grad_norm(optim, 1.0);
 *         mc_optim_manager_step(optim);
 *         mc_tape_end(t);
 *     }
 *
 * The order within a step: zero_grad; then a tape, a loss and backward for each micro-step; then,
 * optionally, clip_grad_norm; then step. Only one manager of a context may be between zero_grad and
 * step: backward of another one is MC_ERR_STATE.
 *
 * Averaging. A loss is a sum and a count. Backward does not divide by the count but by a number
 * that is the same for all micro-steps (the rows of a whole step). The counts are added up, and the
 * step divides by their total. So a step over several micro-steps equals the step over one batch of
 * all their rows, however unevenly ignored labels are distributed. (BMTrain averages the averages.)
 * Gradients computed without the manager, by mc_tape_backward, are used unchanged; do not mix both
 * kinds in a step.
 *
 * With several ranks each rank computes the losses of its own rows: mc_data_rank and mc_data_size
 * say which, and loaders choose them by themselves. Sums, counts, norms, overflows and skipped
 * steps are over the rows of all ranks, and the same on each rank. Every rank makes the same calls
 * in the same order and the same number of forward and backward passes; a rank that has run out of
 * rows uses an empty batch.
 *
 * Loss scaling has the same states as BMTrain's. If a gradient has overflowed (is infinite or NaN),
 * the optimizers and schedules skip the step; if the scale is above the minimum, it is divided by
 * the factor and the growth counter is set to 0; and the gradients are zeroed (on an asynchronous
 * device only by the next zero_grad, which must be called before the next forward pass anyway).
 * Otherwise, after the optimizers and schedules have stepped, the counter is incremented; if it has
 * reached loss_scale_steps and the scale is below the maximum, the scale is multiplied by the
 * factor and the counter is set to 0. The scale is compared with minimum and maximum, not clamped
 * to them. Unlike BMTrain, the manager saves the counter, checks the gradients of f32 parameters
 * for overflow too, and ends training that skips every step at the least scale (mc_nonfinite).
 *
 * On a failed context all functions here do nothing: functions that return numbers return NaN, the
 * others the status of the error or NULL. A NULL manager is MC_ERR_ARGUMENT or NaN.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_OPTIM_OPTIM_MANAGER_H
#define MC_OPTIM_OPTIM_MANAGER_H

#include "core/optim/lr_scheduler.h"
#include "core/optim/optimizer.h"

typedef struct mc_optim_manager mc_optim_manager;

/* How a step handles infinite or NaN gradients while loss scaling is off, and with loss scaling
 * after 16 skipped steps in a row at the least scale: the scale is then not the reason, and without
 * an error training would go on for ever without a step. */
typedef enum mc_nonfinite {
    MC_NONFINITE_DEFAULT = 0, /* as MC_NONFINITE_ERROR */
    MC_NONFINITE_ERROR = 1,   /* MC_ERR_STATE that names the parameter; nothing is changed */
    MC_NONFINITE_SKIP = 2     /* the step is skipped and counted, and the gradients are zeroed */
} mc_nonfinite;

/* NULL or zero fields mean the defaults; MC_TRUE_ZERO (context.h) means zero. */
typedef struct mc_optim_manager_options {
    double loss_scale;        /* the first scale, e.g. 1024; 0: no loss scaling */
    double loss_scale_factor; /* 0: 2; a factor below 1 means its inverse; must not be 1 */
    int64_t loss_scale_steps; /* steps without overflow before the scale grows; 0: 1024 */
    double min_loss_scale;    /* 0: 1; MC_TRUE_ZERO: no minimum */
    double max_loss_scale;    /* 0: none; MC_TRUE_ZERO: never grows */
    int micro_steps;          /* backward passes of a step without an mc_step_plan, which also
                                 decides the first layout of gradients (mc_grad_dtype); 0: 1 */
    double max_grad_norm;     /* every step without a call of clip_grad_norm clips to this norm,
                                 without waiting for the result; 0: no clipping */
    mc_nonfinite nonfinite;
} mc_optim_manager_options;

/* Makes a manager, owned by the context. NULL on MC_ERR_ARGUMENT (an option out of range) and
 * MC_ERR_NOMEM. */
MC_API mc_optim_manager *mc_optim_manager_new(mc_context *ctx,
                                              const mc_optim_manager_options *options);

/* Frees the manager now, but not its optimizers and schedules. NULL is allowed. */
MC_API void mc_optim_manager_free(mc_optim_manager *optim);

/* Adds an optimizer with its schedule; NULL: the optimizer's own learning rate. Errors:
 * MC_ERR_ARGUMENT for a NULL optimizer or one of another context, MC_ERR_STATE for an optimizer or
 * a schedule that is in use already. */
MC_API mc_status mc_optim_manager_add(mc_optim_manager *optim, mc_optimizer *optimizer,
                                      mc_lr_scheduler *scheduler);

/* Allocates gradients and state of all optimizers now instead of at the first step, so that a lack
 * of memory shows before training. At levels 2 and 3 zero_grad frees the gradients' shards, and
 * each is allocated again when its first reduction begins. */
MC_API mc_status mc_optim_manager_prepare(mc_optim_manager *optim);

/* Zeros the gradients of all parameters of all optimizers, and begins a step. Call it before the
 * first operation of the step's first tape, because some operations write gradients in the forward
 * pass. */
MC_API mc_status mc_optim_manager_zero_grad(mc_optim_manager *optim);

/* The planned size of a step, the same on all ranks; 0: not planned. */
typedef struct mc_step_plan {
    int64_t nominal_rows; /* rows of its losses, in all passes and on all ranks: examples, tokens of
                             a language model, elements of mc_mse_loss */
    int passes;           /* backward passes; 0: the manager's micro_steps */
} mc_step_plan;

/* zero_grad for a step with a plan; NULL: mc_optim_manager_zero_grad. Within mc_step_run the key
 * must identify the plan too. The actual numbers of rows and passes may differ: nominal_rows only
 * scales gradients, which the step divides by the rows that counted, and sums over ranks begin in
 * the last planned pass.
 *
 * nominal_rows 0 means rows * passes * ranks. With one rank, rows is that of the step's first loss.
 * With several ranks, it is that of the manager's first loss, for all its steps and for runs that
 * resume from its checkpoints: the number that labels of an mc_dataloader carry, else the loss's
 * own rows (1 for a tensor that no loss operation returned). It must be equal on all ranks; if it
 * is not, set nominal_rows.
 *
 * Errors: MC_ERR_ARGUMENT for a negative field. If two ranks have divided by different numbers,
 * mc_optim_manager_step (or clip_grad_norm) fails with MC_ERR_STATE on all ranks and names both
 * numbers. */
MC_API mc_status mc_optim_manager_zero_grad_plan(mc_optim_manager *optim, const mc_step_plan *plan);

/* Runs backward from a loss (a tensor of two f32, sum and count: see mc_cross_entropy) on its tape,
 * with the loss scale. Errors: MC_ERR_SHAPE for a tensor that is not a loss, MC_ERR_ARGUMENT for
 * NULL or a tape of another context, and those of mc_tape_backward. */
MC_API mc_status mc_optim_manager_backward(mc_optim_manager *optim, mc_tape *tape, mc_tensor *loss);

/* Clips the gradients to a 2-norm of at most `max_norm`, taken over all parameters of all
 * optimizers, and returns the norm before clipping: that of the gradient of the mean loss, at any
 * loss scale and number of micro-steps. Infinite or NaN after an overflow. Gradients are multiplied
 * by
 *     c = max_norm / (norm + 1e-6)     if c < 1
 * within step; mc_parameter_read_gradient returns unclipped gradients. max_norm INFINITY clips
 * nothing. A call replaces an earlier one. A backward after the call cancels it, and step then
 * fails with MC_ERR_STATE unless clip_grad_norm is called again. Errors: MC_ERR_ARGUMENT for a
 * max_norm that is negative or NaN. */
MC_API double mc_optim_manager_clip_grad_norm(mc_optim_manager *optim, double max_norm);

/* The same with the p-norm (sum |g|^p)^(1/p), p > 0, INFINITY for the largest |g|. Fails with
 * MC_ERR_UNSUPPORTED if the sum of powers leaves the range of double (for example p above 6 with
 * extreme gradients). */
MC_API double mc_optim_manager_clip_grad_norm_p(mc_optim_manager *optim, double max_norm, double p);

/* Ends a step: steps all optimizers, then their schedules, then updates the loss scale, as
 * described above. An overflow is not an error: this returns MC_OK, and
 * mc_optim_manager_last_step_skipped returns true. Gradients of a step that was not skipped stay
 * until zero_grad. Errors, which change nothing: MC_ERR_STATE for a gradient that is not finite
 * (see mc_nonfinite), which names the parameter, and before it the first one whose values are not
 * finite, if there is one, on all ranks (GPU ranks that do not store it wait up to 2 seconds for
 * the error of the one that does); without an optimizer, or with one that has no parameters; and
 * for a model that has had neither zero_grad nor a pass yet; MC_ERR_NOMEM at the first step. */
MC_API mc_status mc_optim_manager_step(mc_optim_manager *optim);

/* ---- what happened ----------------------------------------------------------------------- */

/* On an asynchronous device a step is still running when mc_optim_manager_step returns: its outcome
 * is known later, and a later call reports its errors. A training loop that should not wait reads
 * the report of an earlier step; all other functions here wait for the launched steps. */
typedef struct mc_step_report {
    int64_t step;      /* steps taken and skipped so far, this one included */
    double loss;       /* the mean, as mc_optim_manager_mean_loss */
    double grad_norm;  /* before clipping, as mc_optim_manager_grad_norm */
    double lr;         /* learning rate of the first optimizer */
    double loss_scale; /* after the step */
    bool skipped;
    /* When the step ended (not when the report was read), in seconds of CLOCK_MONOTONIC, by the
     * device's clock if it has one. NaN: unknown, for example if the step ended before the first
     * wait for any step. */
    double ended;
    /* From the end of the previous step to the end of this one, host work included, by the device's
     * clock if it has one. NaN: unknown, for example for the first step. */
    double seconds;
    /* With mc_recipe.fp8: the shares of all elements that the step cast to 8 bits, on all ranks,
     * that were clamped to the format's largest number, and that were rounded to 0. Casts with a
     * scale for each row (weights that are stored in 8 bits) do not count. NaN if no cast does. */
    double fp8_saturated, fp8_vanished;
} mc_step_report;

/* Writes the report of the step `late` steps before the newest, 0 <= late <= 3, after waiting for
 * its end. Returns false if there is no such step (yet, or since the manager was loaded) or the
 * context has failed. */
MC_API bool mc_optim_manager_report(mc_optim_manager *optim, int late, mc_step_report *report);

/* The learning rate of the first optimizer: that of its last step; before the first step, that of
 * the first step. */
MC_API double mc_optim_manager_lr(const mc_optim_manager *optim);
/* The loss scale now; 1 without loss scaling. */
MC_API double mc_optim_manager_loss_scale(const mc_optim_manager *optim);
/* Steps taken, and steps skipped, since the manager was made or loaded. 0 for NULL. */
MC_API int64_t mc_optim_manager_steps(const mc_optim_manager *optim);
MC_API int64_t mc_optim_manager_skipped_steps(const mc_optim_manager *optim);
/* Whether the last step was skipped. */
MC_API bool mc_optim_manager_last_step_skipped(const mc_optim_manager *optim);
/* The norm before clipping of the last clip_grad_norm or, without such a call, the 2-norm that the
 * last step computed. NaN before the first. */
MC_API double mc_optim_manager_grad_norm(const mc_optim_manager *optim);
/* The mean loss of the step: the micro-steps' sums divided by their counts. It stays until the next
 * backward; from then to the end of the step it is the mean of this rank's losses so far. NaN if no
 * row counted. */
MC_API double mc_optim_manager_mean_loss(const mc_optim_manager *optim);

#endif
