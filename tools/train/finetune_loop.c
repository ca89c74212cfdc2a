/* The steps of fine-tuning, and its evaluations. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "tools/files/text.h"
#include "tools/train/finetune.h"

/* ---- a step ---------------------------------------------------------------------------------- */

mc_tensor *finetune_loss(mc_tape *t, train_work *w, int pass)
{
    finetune *f = w->user;
    return task_loss(t, w->model, f->train_rows, f->batch[pass], f->ratio);
}

/* The parts of the next step's rows, in the next epoch if this one has ended. All parts have one
 * size, which their key stands for. */
bool finetune_fill(train_run *run)
{
    finetune *f = run->user;
    for (int64_t i = 0; i < f->o.accumulation; i++) {
        f->batch[i] = mc_dataloader_next(f->train[i]);
        if (!f->batch[i]) f->batch[i] = mc_dataloader_next(f->train[i]);
        if (!f->batch[i]) return false;
    }
    task_ratio_set(f->ratio, f->batch[0]);
    run->batch_key = f->batch[0]->key;
    run->batch_tokens = f->batch[0]->all_tokens;
    return true;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static void describe(const task_score *score, char result[SETTINGS_STRING_SIZE])
{
    text t = text_into(result, SETTINGS_STRING_SIZE);
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
        s->best_step = f->run.step;
    }
    if (best || f->o.keep == FINETUNE_KEEP_LAST) describe(score, s->result);
    return best;
}

static void check_patience(finetune *f)
{
    train_run *run = &f->run;
    if (!f->o.patience || f->scores.without < f->o.patience || run->step >= run->steps) return;
    run->stopped = true;
    run_log_line(&run->log,
                 "stopping early at step %" PRId64 ": no improvement in the last %" PRId64
                 " evaluations; the best was after step %" PRId64,
                 run->step, f->scores.without, f->scores.best_step);
}

void finetune_evaluate(train_run *run)
{
    finetune *f = run->user;
    task_score score;
    int64_t epochs = (run->step + run->steps_per_epoch - 1) / run->steps_per_epoch;
    snprintf(f->during, sizeof f->during, "validation of %s after step %" PRId64,
             data_title(&f->o.data), run->step);
    if (!task_evaluate(run->ctx, &f->exam, &run->log, &score)) return;
    if (f->o.metric) task_score_by(&score, f->o.metric);
    run->eval_due = false;
    task_report(&run->log, f->val_rows, "val", &score, run->step, epochs);
    bool best = take_score(f, &score);
    check_patience(f);
    if (best && f->o.keep == FINETUNE_KEEP_BEST) finetune_save_best(f);
}

mc_status finetune_result(train_run *run)
{
    const finetune *f = run->user;
    char line[SETTINGS_STRING_SIZE + 256];
    text t = text_into(line, sizeof line);
    text_add(&t, "result task=%s %s train_seconds=%.1f", data_title(&f->o.data), f->scores.result,
             run->train_seconds);
    int eight = mc_module_fp8_linears(mc_model_module(run->work.model));
    if (eight) text_add(&t, " fp8_linears=%d", eight);
    return run_log_result_line(&run->log, "%s", line);
}
