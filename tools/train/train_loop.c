/* Steps, and what is due between them. */
#include <inttypes.h>
#include <math.h>
#include "tools/tasks/task_run.h"
#include "tools/train/interrupt.h"
#include "tools/train/train_run.h"

static bool is_on_gpu(const train_run *run) { return run->o.train.device != TRAIN_CPU; }

bool train_run_goes_on(const train_run *run, int64_t n)
{
    return !ranks_stop(run->ctx, n, is_on_gpu(run));
}

bool train_run_is_done(const train_run *run)
{
    return run->ended || ((run->step >= run->steps || run->stopped) && !run->eval_due);
}

/* ---- a step ---------------------------------------------------------------------------------- */

double train_run_mfu(const train_run *run, double tokens_per_second)
{
    return run->peak > 0 ? run->flops * tokens_per_second / run->peak : 0;
}

/* Shows the step `late` before the newest, if it has not been shown. On a device that works on its
 * own this waits for that step, while the newer ones run. */
static void report(train_run *run, int late)
{
    mc_step_report r;
    if (!mc_optim_manager_report(run->work.optim, late, &r) || r.step != run->step - late) return;
    if (r.step <= run->shown) return;
    int64_t tokens = run->tokens[r.step % TRAIN_RUN_REPORTS];
    double before = run->clock.seconds, seconds = step_clock_end(&run->clock, r.ended, r.seconds);
    run->train_seconds += run->clock.seconds - before;
    run->shown = r.step;
    run->loss = r.loss;
    run_log_step(&run->log,
                 &(run_step){.step = r.step,
                             .loss = r.loss,
                             .grad_norm = r.grad_norm,
                             .lr = r.lr,
                             .loss_scale = r.loss_scale,
                             .ms = 1e3 * seconds,
                             .tokens = tokens,
                             .mfu = seconds > 0 ? train_run_mfu(run, (double)tokens / seconds) : 0,
                             .peak = train_dtype_names[run->o.train.dtype],
                             .fp8 = !isnan(r.fp8_saturated),
                             .fp8_saturated = r.fp8_saturated,
                             .fp8_vanished = r.fp8_vanished,
                             .skipped = r.skipped});
}

static void train_step(train_run *run)
{
    if (run->batch_key)
        mc_step_run(run->ctx, run->batch_key, train_work_step, &run->work);
    else
        train_work_step(run->ctx, &run->work);
    if (mc_failed(run->ctx)) return;
    run->tokens[++run->step % TRAIN_RUN_REPORTS] = run->batch_tokens;
    /* the CPU is done with a step when it returns; others are then still at work on it */
    report(run, is_on_gpu(run) ? 1 : 0);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* An evaluation that an interrupt or an error ends is due again. */
static void evaluate(train_run *run)
{
    run->eval_due = true;
    if (train_run_goes_on(run, 0)) run->kind->evaluate(run);
}

static bool is_due(const train_run *run, int64_t every)
{
    return every > 0 && run->step % every == 0;
}

/* What is done between two steps, which are then all reported. Its time is no step's. */
static void between_steps(train_run *run)
{
    bool end = run->step == run->steps, last = run->step == run->stop || interrupt_requested();
    bool eval = run->evaluates && (is_due(run, run->eval_every) || end);
    bool show = run->show_every && (is_due(run, run->show_every) || end);
    bool keep = is_due(run, run->o.save_every);
    if (!eval && !show && !keep && !last) return;
    mc_module_wait(mc_model_module(run->work.model)); /* the update is of the step too */
    report(run, 0);
    if (eval) evaluate(run);
    if (show && train_run_goes_on(run, 0)) run->kind->show(run);
    if (keep || last) train_run_save(run);
    step_clock_start(&run->clock, task_clock());
}

/* Its outcome belongs to this step's checkpoint, which is written again. */
static void evaluate_resumed(train_run *run)
{
    run->saved = 0;
    evaluate(run);
}

void train_run_train(train_run *run)
{
    int64_t stop_after = run->o.stop_after;
    run->stop = stop_after && stop_after < run->steps ? stop_after : run->steps;
    run->shown = run->step;
    run->eval_due = run->eval_due && run->evaluates;
    if (run->eval_due) evaluate_resumed(run);
    step_clock_start(&run->clock, task_clock());
    if (run->step && (run->step >= run->stop || run->stopped))
        run_log_line(&run->log, "nothing is left to train: %" PRId64 " steps are done, of %" PRId64,
                     run->step, run->stop);
    while (run->step < run->stop && !run->stopped && train_run_goes_on(run, run->step) &&
           run->kind->fill(run)) {
        train_step(run);
        between_steps(run);
        train_run_tell_saved(run);
    }
    report(run, 0); /* should an interrupt have come in between */
    train_run_save(run);
    train_run_wait(run);
}
