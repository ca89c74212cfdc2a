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
 *         double norm = mc_optim_manager_clip_grad_norm(optim, 1.0f);
 *         mc_optim_manager_step(optim);
 *         mc_tape_end(t);
 *     }
 *
 * The order within a step: zero_grad; then a tape, a loss and backward for each micro-step; then,
 * if wanted, clip_grad_norm; then step. Between zero_grad and step one manager of a context is at
 * work.
 *
 * What is averaged. A loss is a sum and a count. Backward does not divide by the count but by a
 * number that is the same for all micro-steps (the rows of a whole step), and the counts are added
 * up; the step divides by their total. So a step over several micro-steps is the step over one
 * batch of all their rows, however unevenly the ignored labels lie. (BMTrain averages the
 * averages.) Gradients that were computed without the manager, by mc_tape_backward, are taken as
 * they are; the two kinds are not to be mixed within a step.
 *
 * Over several ranks all of this is of all rows of all ranks, and the same on each: sums, counts,
 * norms, overflows, skipped steps. Every rank makes the same calls in the same order, and as many
 * forward and backward passes: with a batch of no rows where it has none.
 *
 * Loss scaling is BMTrain's, state for state. When a gradient overflowed (is infinite or NaN): if
 * the scale is above the minimum it is divided by the factor and the growth counter is set to 0;
 * there is no step of optimizers and schedules; and the gradients are zeroed, though where a device
 * works on its own only by the next zero_grad, which is to be called before a step's first forward
 * pass anyway. Otherwise, after the optimizers and the schedules have stepped, the counter is
 * raised by 1; if it has reached loss_scale_steps and the scale is below the maximum, the scale is
 * multiplied by the factor and the counter set to 0. Minimum and maximum are compared with, not
 * clamped to. Unlike BMTrain we save the counter, and look for overflow in f32 parameters too.
 *
 * Once the context has failed everything here does nothing: functions that return numbers return
 * NaN, the others the status of the error or NULL. A NULL manager is MC_ERR_ARGUMENT or NaN. */
#ifndef MC_OPTIM_OPTIM_MANAGER_H
#define MC_OPTIM_OPTIM_MANAGER_H

#include "core/optim/lr_scheduler.h"
#include "core/optim/optimizer.h"

typedef struct mc_optim_manager mc_optim_manager;

/* What a step does about gradients that are infinite or NaN while loss scaling is off. */
typedef enum mc_nonfinite {
    MC_NONFINITE_DEFAULT = 0, /* as MC_NONFINITE_ERROR */
    MC_NONFINITE_ERROR = 1,   /* MC_ERR_STATE that names the parameter; nothing is changed */
    MC_NONFINITE_SKIP = 2     /* the step is skipped and counted, and the gradients are zeroed */
} mc_nonfinite;

/* NULL or zero fields are defaults; MC_TRUE_ZERO (optimizer.h) is a zero that is not. */
typedef struct mc_optim_manager_options {
    double loss_scale;        /* the first scale, e.g. 1024; 0: no loss scaling */
    double loss_scale_factor; /* 0: 2; one below 1 is taken as its inverse; not 1 */
    int64_t loss_scale_steps; /* steps without overflow before the scale grows; 0: 1024 */
    double min_loss_scale;    /* 0: 1; MC_TRUE_ZERO: no minimum */
    double max_loss_scale;    /* 0: none; MC_TRUE_ZERO: never grows */
    int micro_steps;          /* backward passes of a step without an mc_step_plan, and what
                                 gradients are first made for (mc_grad_dtype); 0: 1 */
    double max_grad_norm;     /* clip_grad_norm within every step that did not call it, without
                                        waiting to tell the norm; 0: no clipping */
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

/* Makes gradients and state of all optimizers now, which otherwise come with the first step: who
 * calls it finds out before the first step whether there is memory enough. */
MC_API mc_status mc_optim_manager_prepare(mc_optim_manager *optim);

/* Zeros the gradients of all parameters of all optimizers, and begins a step. It comes before the
 * first operation of the step's first tape, since some write gradients in the forward pass. */
MC_API mc_status mc_optim_manager_zero_grad(mc_optim_manager *optim);

/* What a step consists of, the same on all ranks; 0 where it is not planned. */
typedef struct mc_step_plan {
    int64_t nominal_rows; /* that its losses are taken over, in all passes and on all ranks:
                             examples, tokens of a language model, elements of mc_mse_loss */
    int passes;           /* backward passes; 0: the manager's micro_steps */
} mc_step_plan;

/* zero_grad for a step with a plan; NULL: mc_optim_manager_zero_grad. Within mc_step_run the key
 * stands for the plan too. Other numbers of rows and passes are fine: nominal_rows only scale
 * gradients, which the step divides by what counted, and sums over ranks begin in the last pass
 * planned.
 *
 * Without nominal_rows they are rows * passes * ranks. One rank takes the rows of the step's first
 * loss. Several take those of the manager's first loss for all its steps, also of runs that resume
 * from its checkpoints: the rows that labels of an mc_dataloader carry, else the loss's own (1 for
 * a tensor that no loss operation made). Those have to be equal on all ranks; if not, plan them.
 *
 * Errors: MC_ERR_ARGUMENT for a negative field. If two ranks have divided by different numbers,
 * mc_optim_manager_step (or clip_grad_norm) is MC_ERR_STATE on all ranks and names both numbers. */
MC_API mc_status mc_optim_manager_zero_grad_plan(mc_optim_manager *optim, const mc_step_plan *plan);

/* Backward from a loss (a tensor of two f32, sum and count: see mc_cross_entropy) on its tape, with
 * the loss scale. Errors: MC_ERR_SHAPE for a tensor that is no loss, MC_ERR_ARGUMENT for NULL or a
 * tape of another context, and those of mc_tape_backward. */
MC_API mc_status mc_optim_manager_backward(mc_optim_manager *optim, mc_tape *tape, mc_tensor *loss);

/* Clips the gradients to a 2-norm of at most `max_norm`, taken over all parameters of all
 * optimizers, and returns the norm before: of the gradient of the mean loss, whatever the loss
 * scale and the number of micro-steps. Infinite or NaN after an overflow. Gradients are multiplied
 * by
 *     c = max_norm / (norm + 1e-6)     if c < 1
 * which happens within step: mc_parameter_read_gradient does not see it. max_norm INFINITY clips
 * nothing. A call replaces the one before; backward voids it, and step without a new one is then
 * MC_ERR_STATE. Errors: MC_ERR_ARGUMENT for a max_norm that is negative or NaN. */
MC_API double mc_optim_manager_clip_grad_norm(mc_optim_manager *optim, double max_norm);

/* The same with the p-norm (sum |g|^p)^(1/p), p > 0, INFINITY for the largest |g|.
 * MC_ERR_UNSUPPORTED where the sum of powers leaves the range of double (p above 6, say, and
 * extreme gradients). */
MC_API double mc_optim_manager_clip_grad_norm_p(mc_optim_manager *optim, double max_norm, double p);

/* Ends a step: all optimizers, then their schedules, then the loss scale, as said above. An
 * overflow is no error: MC_OK, and mc_optim_manager_last_step_skipped says so. Gradients of a step
 * that was taken stay as they are until zero_grad. Errors: MC_ERR_STATE for a gradient that is not
 * finite (see mc_nonfinite), which names the parameter, and MC_ERR_NOMEM at the first step; nothing
 * is changed then. */
MC_API mc_status mc_optim_manager_step(mc_optim_manager *optim);

/* ---- what happened ----------------------------------------------------------------------- */

/* On a device that works on its own a step has not ended when mc_optim_manager_step returns: what
 * became of it is known later, and errors of a step are raised by a later call. A training loop
 * that does not want to wait reads the report of an earlier step; everything else here waits for
 * the steps that were launched. */
typedef struct mc_step_report {
    int64_t step;      /* steps taken and skipped so far, this one included */
    double loss;       /* the mean, as mc_optim_manager_mean_loss */
    double grad_norm;  /* before clipping, as mc_optim_manager_grad_norm */
    double lr;         /* that the first optimizer used */
    double loss_scale; /* after the step */
    bool skipped;
    /* When the step ended, in seconds of CLOCK_MONOTONIC, by the device's own clock where it has
     * one: not when the report was read. NaN: not known, as of a step that had ended unobserved
     * before any other was waited for. */
    double ended;
    /* From the end of the step before to this one's, by the device's own clock where it has one,
     * what the host did in between included. NaN: not known, as of the first step. */
    double seconds;
} mc_step_report;

/* The report of the step `late` steps before the newest, 0 <= late <= 3, waiting until that one has
 * ended. False if there is none (yet, or since the manager was loaded) or the context failed. */
MC_API bool mc_optim_manager_report(mc_optim_manager *optim, int late, mc_step_report *report);

/* The learning rate of the first optimizer: the one its last step used; before, the one it will. */
MC_API double mc_optim_manager_lr(const mc_optim_manager *optim);
/* The loss scale now; 1 without loss scaling. */
MC_API double mc_optim_manager_loss_scale(const mc_optim_manager *optim);
/* Steps taken, and steps skipped, since the manager was made or loaded. 0 for NULL. */
MC_API int64_t mc_optim_manager_steps(const mc_optim_manager *optim);
MC_API int64_t mc_optim_manager_skipped_steps(const mc_optim_manager *optim);
/* Whether the last call of step skipped. */
MC_API bool mc_optim_manager_last_step_skipped(const mc_optim_manager *optim);
/* The norm before clipping of the last clip_grad_norm or, where that was not called, the 2-norm
 * that step found. NaN before there is one. */
MC_API double mc_optim_manager_grad_norm(const mc_optim_manager *optim);
/* The mean of the losses of the step: all micro-steps' sums over all their counts. It stays until
 * the next backward; from then to the end of the step it is that of this rank's losses so far. NaN
 * where nothing counted. */
MC_API double mc_optim_manager_mean_loss(const mc_optim_manager *optim);

#endif
