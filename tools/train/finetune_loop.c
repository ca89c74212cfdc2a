/* Training and evaluating. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "tools/train/finetune.h"
#include "tools/files/text.h"

static bool goes_on(const finetune *f, int64_t n)
{
    return !ranks_stop(f->ctx, n, f->o.train.device != TRAIN_CPU);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Shows the step `late` before the newest, if it has not been shown. On a device that works on its
 * own this waits for that step, while the newer ones run. */
static void report(finetune *f, int late)
{
    mc_step_report r;
    if (!mc_optim_manager_report(f->optim, late, &r) || r.step != f->step - late) return;
    if (r.step <= f->shown) return;
    double before = f->clock.seconds, seconds = step_clock_end(&f->clock, r.ended, r.seconds);
    f->train_seconds += f->clock.seconds - before;
    f->shown = r.step;
    run_log_step(&f->log, &(run_step){.step = r.step,
                                      .loss = r.loss,
                                      .grad_norm = r.grad_norm,
                                      .lr = r.lr,
                                      .loss_scale = r.loss_scale,
                                      .ms = 1e3 * seconds,
                                      .tokens = f->tokens[r.step % FINETUNE_STEPS_KEPT],
                                      .skipped = r.skipped});
}

/* What a GPU records: mc_step_run. */
static void step(mc_context *ctx, void *user)
{
    finetune *f = user;
    mc_optim_manager_zero_grad(f->optim);
    for (int64_t i = 0; i < f->o.accumulation; i++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *loss = task_loss(t, f->model, f->train_rows, f->batch[i], f->ratio);
        mc_optim_manager_backward(f->optim, t, loss);
        mc_tape_end(t);
    }
    mc_optim_manager_step(f->optim);
}

/* The parts of the next step's rows, in the next epoch if this one has ended. False after an error.
 * All parts have one size, which their key stands for. */
static bool next_batches(finetune *f)
{
    for (int64_t i = 0; i < f->o.accumulation; i++) {
        f->batch[i] = mc_dataloader_next(f->train[i]);
        if (!f->batch[i]) f->batch[i] = mc_dataloader_next(f->train[i]);
        if (!f->batch[i]) return false;
    }
    task_ratio_set(f->ratio, f->batch[0]);
    return true;
}

static void train_step(finetune *f)
{
    uint64_t key = f->batch[0]->key; /* 0: batches of any shape, which no recording fits */
    if (key)
        mc_step_run(f->ctx, key, step, f);
    else
        step(f->ctx, f);
    if (mc_failed(f->ctx)) return;
    f->tokens[++f->step % FINETUNE_STEPS_KEPT] = f->batch[0]->all_tokens;
    report(f, f->o.train.device == TRAIN_CPU ? 0 : 1);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static void describe(const task_score *score, char result[FINETUNE_SCORE_TEXT])
{
    text t = text_into(result, FINETUNE_SCORE_TEXT);
    for (int i = 0; i < score->metrics; i++)
        if (!isnan(score->metric[i].value))
            text_add(&t, "%s=%.4f ", score->metric[i].name, score->metric[i].value);
    text_add(&t, "n=%" PRId64, score->n);
}

/* Takes note of an evaluation. Whether it is the best so far. */
static bool take_score(finetune *f, const task_score *score)
{
    finetune_scores *s = &f->scores;
    double value = score->goodness;
    bool best = !s->count || isnan(s->best) || value > s->best;
    bool improved = !s->count || isnan(s->best) || value - s->best > f->o.threshold;
    s->count++;
    s->without = improved ? 0 : s->without + 1;
    if (best) {
        s->best = value;
        s->best_step = f->step;
    }
    if (best || f->o.keep == FINETUNE_KEEP_LAST) describe(score, s->result);
    return best;
}

static void check_patience(finetune *f)
{
    if (!f->o.patience || f->scores.without < f->o.patience || f->step >= f->steps) return;
    f->stopped = true;
    run_log_line(&f->log,
                 "stopping early at step %" PRId64 ": no improvement in the last %" PRId64
                 " evaluations; the best was after step %" PRId64,
                 f->step, f->scores.without, f->scores.best_step);
}

/* Evaluates the model; an evaluation that an interrupt or an error ends is due again. */
static void evaluate(finetune *f)
{
    task_score score;
    int64_t epochs = (f->step + f->steps_per_epoch - 1) / f->steps_per_epoch;
    f->eval_due = true;
    if (!goes_on(f, 0) || !task_evaluate(f->ctx, &f->exam, &f->log, &score)) return;
    if (f->o.metric) task_score_by(&score, f->o.metric);
    f->eval_due = false;
    task_report(&f->log, f->val_rows, "val", &score, f->step, epochs);
    bool best = take_score(f, &score);
    check_patience(f);
    if (best && f->o.keep == FINETUNE_KEEP_BEST) finetune_save_best(f);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static bool is_eval_due(const finetune *f)
{
    int64_t every = f->o.eval_every ? f->o.eval_every : f->steps_per_epoch;
    return f->step % every == 0 || f->step == f->steps;
}

/* What is done between two steps, which are then all reported. Its time is no step's. */
static void between_steps(finetune *f)
{
    bool eval = is_eval_due(f), keep = f->o.save_every && f->step % f->o.save_every == 0;
    if (!eval && !keep) return;
    mc_module_wait(mc_model_module(f->model)); /* the update is of the step too */
    report(f, 0);
    if (eval) evaluate(f);
    if (keep) finetune_checkpoint(f);
    step_clock_start(&f->clock, task_clock());
}

void finetune_train(finetune *f)
{
    f->stop = f->o.stop_after && f->o.stop_after < f->steps ? f->o.stop_after : f->steps;
    f->shown = f->step;
    if (f->eval_due || (!f->steps && !f->scores.count)) evaluate(f);
    step_clock_start(&f->clock, task_clock());
    if (f->step && (f->step >= f->stop || f->stopped))
        run_log_line(&f->log, "nothing is left to train: %" PRId64 " steps are done, of %" PRId64,
                     f->step, f->stop);
    while (f->step < f->stop && !f->stopped && goes_on(f, f->step) && next_batches(f)) {
        train_step(f);
        between_steps(f);
        checkpoints_tell(&f->checkpoints);
    }
    report(f, 0); /* should an interrupt have come in between */
    finetune_save_end(f);
}

mc_status finetune_result(finetune *f)
{
    return run_log_result_line(&f->log, "result task=%s %s train_seconds=%.1f",
                               data_title(&f->o.data), f->scores.result, f->train_seconds);
}
