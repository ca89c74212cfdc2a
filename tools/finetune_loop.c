/* Training and evaluating. */
#include "tools/finetune.h"

/* Shows the step `late` before the newest, if it has not been shown. On a device that works on its
 * own this waits for that step, while the newer ones run; its time is that since the report
 * before. */
static void report(finetune *f, int late)
{
    mc_step_report r;
    if (!mc_optim_manager_report(f->optim, late, &r) || r.step <= f->shown) return;
    double now = classify_clock(), seconds = now - f->clock;
    f->clock = now;
    f->shown = r.step;
    f->train_seconds += seconds;
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
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *logits = classify_logits(t, f->model, f->train_rows, f->batch);
    mc_tensor *loss = logits ? mc_cross_entropy(t, logits, f->batch->labels, NULL) : NULL;
    mc_optim_manager_backward(f->optim, t, loss);
    mc_optim_manager_step(f->optim);
    mc_tape_end(t);
}

static void train_step(finetune *f)
{
    if (mc_step_run(f->ctx, f->batch->key, step, f)) return;
    f->tokens[++f->step % FINETUNE_STEPS_KEPT] = f->batch->all_tokens;
    report(f, f->o.train.device == TRAIN_CPU ? 0 : 1);
}

static bool going_on(const finetune *f)
{
    return !ranks_stop(f->ctx, f->step, f->o.train.device != TRAIN_CPU);
}

/* Evaluates the model; its score is the run's if it is the one to keep, and the best so far is
 * saved at once, so that it cannot be lost. */
static void evaluate(finetune *f, int64_t epoch)
{
    classify_score score;
    if (!going_on(f) || !classify_evaluate(f->ctx, &f->exam, &f->log, &score)) return;
    classify_report(&f->log, f->val_rows, "val", &score, f->step, epoch);
    bool best = f->score.accuracy.count == 0 || score.accuracy.correct > f->score.accuracy.correct;
    if (f->o.keep == FINETUNE_KEEP_BEST && !best) return;
    f->score = score;
    if (f->o.keep == FINETUNE_KEEP_BEST) finetune_save(f);
}

void finetune_train(finetune *f)
{
    int64_t epoch = 0;
    while (epoch < f->o.epochs && f->step < f->steps && going_on(f)) {
        f->clock = classify_clock();
        while (f->step < f->steps && going_on(f) && (f->batch = mc_dataloader_next(f->train)))
            train_step(f);
        report(f, 0);
        evaluate(f, ++epoch);
    }
    if (epoch == 0) evaluate(f, 0);
    if (f->o.keep == FINETUNE_KEEP_LAST) finetune_save(f);
}
