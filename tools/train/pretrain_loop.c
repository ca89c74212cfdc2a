/* Training, validation, samples. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/tasks/task_run.h"
#include "tools/train/interrupt.h"
#include "tools/train/pretrain.h"
#include "tools/files/text.h"

enum {
    STEP_KEY = 1, /* of mc_step_run: steps are alike but for the pieces of documents */
    RESULT_ROOM = 1024
};

bool pretrain_goes_on(const pretrain *p, int64_t n)
{
    return !ranks_stop(p->ctx, n, p->o.train.device != TRAIN_CPU);
}

/* ---- reports --------------------------------------------------------------------------------- */

static double mfu_of(const pretrain *p, double tokens_per_second)
{
    return p->peak > 0 ? p->flops * tokens_per_second / p->peak : 0;
}

/* Shows the step `late` before the newest, if it has not been shown. On a device that works on its
 * own this waits for that step, while the newer ones run. */
static void report(pretrain *p, int late)
{
    mc_step_report r;
    if (!mc_optim_manager_report(p->work.optim, late, &r) || r.step != p->step - late) return;
    if (r.step <= p->shown) return;
    p->shown = r.step;
    p->loss = r.loss;
    double seconds = step_clock_end(&p->clock, r.ended, r.seconds),
           tokens = (double)p->o.tokens_per_step;
    run_log_step(&p->log, &(run_step){.step = r.step,
                                      .loss = r.loss,
                                      .grad_norm = r.grad_norm,
                                      .lr = r.lr,
                                      .loss_scale = r.loss_scale,
                                      .ms = 1e3 * seconds,
                                      .tokens = p->o.tokens_per_step,
                                      .mfu = seconds > 0 ? mfu_of(p, tokens / seconds) : 0,
                                      .peak = train_dtype_names[p->o.train.dtype],
                                      .skipped = r.skipped});
}

/* ---- a step ---------------------------------------------------------------------------------- */

static size_t field_bytes(const pretrain *p, mc_objective_field field, int sequences)
{
    return (size_t)sequences * (size_t)mc_objective_width(&p->objective, field) * sizeof(int32_t);
}

static bool fill_inputs(pretrain *p)
{
    pretrain_work *w = &p->work;
    for (int i = 0; i < w->micro_steps; i++) {
        const mc_objective_batch *batch = mc_objective_next(p->train);
        if (!batch) return false;
        for (int f = 0; f < MC_FIELDS; f++) {
            mc_tensor *to = w->inputs[i].field[f];
            if (to) mc_tensor_write(to, batch->field[f], field_bytes(p, f, batch->batch_size));
        }
        mc_lm_lengths_set(w->lengths, i, batch->windows);
    }
    return true;
}

static void train_step(pretrain *p)
{
    /* the CPU is done with a step when it returns; others are then still at work on it */
    int late = p->o.train.device == TRAIN_CPU ? 0 : 1;
    if (!fill_inputs(p)) return;
    uint64_t key = STEP_KEY + (uint64_t)mc_lm_lengths_write(p->work.lengths);
    if (mc_model_soft_prompt(p->work.model)) /* types of tokens are read on the host */
        pretrain_step(p->ctx, &p->work);
    else
        mc_step_run(p->ctx, key, pretrain_step, &p->work);
    if (mc_failed(p->ctx)) return;
    p->step++;
    report(p, late);
}

/* ---- validation ------------------------------------------------------------------------------ */

static double batch_loss(pretrain *p, const mc_objective_batch *batch)
{
    mc_tape *t = mc_tape_begin_eval(p->ctx);
    mc_tensor *field[MC_FIELDS] = {NULL};
    const int32_t *pieces = batch->windows->lengths;
    for (int f = 0; f < MC_FIELDS; f++) {
        mc_shape shape = MC_SHAPE(batch->batch_size, mc_objective_width(&p->objective, f));
        if (pieces) shape = MC_SHAPE(shape.dim[0] * shape.dim[1]);
        if (batch->field[f]) field[f] = mc_tape_input(t, MC_I32, shape, batch->field[f], false);
    }
    if (pieces)
        field[MC_FIELD_IDS] = mc_with_lengths(
            t, field[MC_FIELD_IDS], mc_tape_lengths(t, pieces, batch->windows->pieces, 1));
    mc_tensor *of_rank = mc_model_pretraining_loss(t, p->work.model, field);
    double loss = mc_global_mean_loss(p->ctx, of_rank);
    mc_tape_end(t);
    return loss;
}

/* The same sequences each time. False where an interrupt or an error came first. */
static bool validate(pretrain *p)
{
    double start = task_clock(), sum = 0;
    int64_t tokens = 0, done = 0;
    mc_objective_seek(p->val, &p->val_start);
    while (done < p->val_batches && pretrain_goes_on(p, done)) {
        const mc_objective_batch *batch = mc_objective_next(p->val);
        if (!batch) return false;
        double targets = ranks_sum(p->ctx, (double)batch->targets);
        sum += batch_loss(p, batch) * targets;
        tokens += (int64_t)targets;
        run_log_progress(&p->log, "val", "batch", ++done, p->val_batches);
    }
    if (done < p->val_batches) return false;
    p->val_loss = sum / (double)tokens;
    run_log_validation(&p->log, &(run_validation){.step = p->step,
                                                  .loss = p->val_loss,
                                                  .tokens = tokens,
                                                  .seconds = task_clock() - start});
    return true;
}

/* ---- samples --------------------------------------------------------------------------------- */

static bool encode_prompt(pretrain *p)
{
    mc_encoding e = {0};
    const char *prompt = p->o.prompt;
    if (mc_tokenizer_append(p->tokenizer, prompt, strlen(prompt), &e) != MC_OK || !e.count) {
        mc_encoding_release(&e);
        return pretrain_refuse(p, "--prompt: expected a text of at least one token");
    }
    p->prompt = malloc(e.count * sizeof *p->prompt);
    if (p->prompt) memcpy(p->prompt, e.ids, e.count * sizeof *p->prompt);
    p->prompt_length = (int)e.count;
    mc_encoding_release(&e);
    return p->prompt || pretrain_refuse(p, "out of memory for the prompt");
}

/* Without a prompt texts begin where the data's do: after an end of text. */
static bool default_prompt(pretrain *p)
{
    int32_t end = mc_tokenizer_end_of_text_id(p->tokenizer);
    if (end < 0)
        return pretrain_refuse(p, "--tokenizer %s has no token that ends a text: give a --prompt",
                               p->o.tokenizer);
    p->prompt = malloc(sizeof *p->prompt);
    if (!p->prompt) return pretrain_refuse(p, "out of memory for the prompt");
    p->prompt[0] = end;
    p->prompt_length = 1;
    return true;
}

bool pretrain_prepare_samples(pretrain *p)
{
    const pretrain_options *o = &p->o;
    if (!o->sample_every) return true;
    if (!(o->prompt ? encode_prompt(p) : default_prompt(p))) return false;
    if (p->prompt_length + o->sample_length <= p->shape.positions) return true;
    return pretrain_refuse(p,
                           "--sample-length %" PRId64
                           " and a prompt of %d tokens are more than the "
                           "model's %" PRId64 " positions",
                           o->sample_length, p->prompt_length, p->shape.positions);
}

/* Prompt and answer as one text. */
static void show_sample(pretrain *p, const mc_generation *g)
{
    size_t count = (size_t)p->prompt_length + (size_t)g->lengths[0], size;
    const mc_decode_options options = {.skip_special = true, .skip_unknown = true};
    int32_t *ids = malloc(count * sizeof *ids);
    if (!ids) return;
    memcpy(ids, p->prompt, (size_t)p->prompt_length * sizeof *ids);
    memcpy(ids + p->prompt_length, g->ids[0], (size_t)g->lengths[0] * sizeof *ids);
    char *words = mc_tokenizer_decode_sized(p->tokenizer, ids, count, &options, &size);
    for (size_t i = 0; words && i < size; i++) /* a NUL would end the line there */
        if (!words[i]) words[i] = ' ';
    if (words) run_log_sample(&p->log, p->step, words);
    mc_string_free(words);
    free(ids);
}

/* Every rank runs the model, parts of which the others may hold; the texts are the same. */
static void sample(pretrain *p)
{
    const int32_t *prompts[] = {p->prompt};
    mc_generate_options options = {.max_new_tokens = (int)p->o.sample_length,
                                   .sample = true,
                                   .top_k = 40,
                                   .seed = p->o.seed + (uint64_t)p->step};
    mc_generation *g = mc_model_generate(p->work.model, prompts, &p->prompt_length, 1, &options);
    if (g) show_sample(p, g);
    mc_generation_free(g);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static bool is_due(const pretrain *p, int64_t every) { return every > 0 && p->step % every == 0; }

/* What is done between two steps, which are then all reported. Its time is no step's. */
static void between_steps(pretrain *p, bool last)
{
    bool end = p->step == p->o.steps;
    bool val = p->val && (is_due(p, p->o.val_every) || end);
    bool show = p->prompt && (is_due(p, p->o.sample_every) || end);
    bool keep = p->o.output && (is_due(p, p->o.save_every) || last);
    if (!val && !show && !keep && !last) return;
    mc_module_wait(mc_model_module(p->work.model)); /* the update is of the step too */
    report(p, 0);
    p->val_due = val && !(pretrain_goes_on(p, 0) && validate(p));
    if (show && pretrain_goes_on(p, 0)) sample(p);
    if (keep) pretrain_save(p);
    step_clock_start(&p->clock, task_clock());
}

void pretrain_train(pretrain *p)
{
    p->stop = p->o.steps;
    if (p->o.stop_after && p->o.stop_after < p->stop) p->stop = p->o.stop_after;
    p->shown = p->step;
    if (p->val_due && p->val && pretrain_goes_on(p, 0)) p->val_due = !validate(p);
    step_clock_start(&p->clock, task_clock());
    if (p->step >= p->stop)
        run_log_line(&p->log, "nothing is left to train: %" PRId64 " steps are done, of %" PRId64,
                     p->step, p->stop);
    while (p->step < p->stop && pretrain_goes_on(p, p->step)) {
        train_step(p);
        between_steps(p, p->step == p->stop || interrupt_requested());
        checkpoints_tell(&p->checkpoints);
    }
    report(p, 0); /* should an interrupt have come in between */
    pretrain_save(p);
    checkpoints_end(&p->checkpoints);
}

/* ` key=number` of what was measured. (printf writes some NaNs as "-nan".) */
static void add_measured(text *t, bool measured, const char *key, int digits, double value)
{
    if (measured) text_add(t, " %s=%.*f", key, digits, isnan(value) ? NAN : value);
}

mc_status pretrain_result(pretrain *p)
{
    double seconds = step_clock_mean(&p->clock); /* of a step */
    bool measured = seconds > 0;
    double rate = measured ? (double)p->o.tokens_per_step / seconds : 0;
    mc_memory_use use = mc_memory(p->ctx);
    char line[RESULT_ROOM];
    text t = text_into(line, sizeof line);
    text_add(&t, "result model=%s steps=%" PRId64 " tokens=%" PRId64,
             mc_model_family(p->work.model), p->step, p->step * p->o.tokens_per_step);
    add_measured(&t, !(p->loss < 0), "loss", 6, p->loss);
    add_measured(&t, !(p->val_loss < 0), "val_loss", 6, p->val_loss);
    add_measured(&t, measured, "ms", 3, 1e3 * seconds);
    add_measured(&t, measured, "tokens_per_s", 1, rate);
    add_measured(&t, measured && p->peak > 0, "mfu", 4, mfu_of(p, rate));
    text_add(&t,
             " peak_bytes=%" PRIu64 " planned_bytes=%" PRIu64 " touched_bytes=%" PRIu64
             " train_seconds=%.3f",
             use.peak, p->plan.peak, use.touched, p->clock.seconds);
    return run_log_result_line(&p->log, "%s", line);
}
