/* The steps of pretraining, validation, samples. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/files/text.h"
#include "tools/tasks/task_run.h"
#include "tools/train/pretrain.h"

enum {
    STEP_KEY = 1, /* of mc_step_run: steps are alike but for the pieces of documents */
    RESULT_ROOM = 1024
};

/* ---- a step ---------------------------------------------------------------------------------- */

static size_t field_bytes(const pretrain *p, mc_objective_field field, int sequences)
{
    return (size_t)sequences * (size_t)mc_objective_width(&p->objective, field) * sizeof(int32_t);
}

bool pretrain_fill(train_run *run)
{
    pretrain *p = run->user;
    for (int i = 0; i < run->work.passes; i++) {
        const mc_objective_batch *batch = mc_objective_next(p->train);
        if (!batch) return false;
        for (int f = 0; f < MC_FIELDS; f++) {
            mc_tensor *to = p->inputs.field[i][f];
            if (to) mc_tensor_write(to, batch->field[f], field_bytes(p, f, batch->batch_size));
        }
        mc_lm_lengths_set(p->inputs.lengths, i, batch->windows);
    }
    run->batch_key = STEP_KEY + (uint64_t)mc_lm_lengths_write(p->inputs.lengths);
    /* types of tokens are read on the host, which a recording does not */
    if (mc_model_soft_prompt(run->work.model)) run->batch_key = 0;
    run->batch_tokens = p->o.tokens_per_step;
    return true;
}

/* ---- validation ------------------------------------------------------------------------------ */

static double batch_loss(pretrain *p, const mc_objective_batch *batch)
{
    mc_tape *t = mc_tape_begin_eval(p->run.ctx);
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
    mc_tensor *of_rank = mc_model_pretraining_loss(t, p->run.work.model, field);
    double loss = mc_global_mean_loss(p->run.ctx, of_rank);
    mc_tape_end(t);
    return loss;
}

/* The same sequences each time. */
void pretrain_validate(train_run *run)
{
    pretrain *p = run->user;
    double start = task_clock(), sum = 0;
    int64_t tokens = 0, done = 0;
    mc_objective_seek(p->val, &p->val_start);
    while (done < p->val_batches && train_run_goes_on(run, done)) {
        const mc_objective_batch *batch = mc_objective_next(p->val);
        if (!batch) return;
        double targets = ranks_sum(run->ctx, (double)batch->targets);
        sum += batch_loss(p, batch) * targets;
        tokens += (int64_t)targets;
        run_log_progress(&run->log, "val", "batch", ++done, p->val_batches);
    }
    if (done < p->val_batches) return;
    run->eval_due = false;
    p->val_loss = sum / (double)tokens;
    if (!isfinite(p->val_loss))
        run_log_line(&run->log,
                     "warning: the validation loss after step %" PRId64 " is not finite%s",
                     run->step, mc_model_finite_hint(run->work.model));
    run_log_validation(&run->log, &(run_validation){.step = run->step,
                                                    .loss = p->val_loss,
                                                    .tokens = tokens,
                                                    .seconds = task_clock() - start});
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Without --prompt texts begin where the data's do: after an end of text. */
static bool find_prompt(pretrain *p)
{
    const char *given = p->o.prompt;
    mc_encoding *words = &p->words;
    p->end_of_text = mc_tokenizer_end_of_text_id(p->tokenizer);
    if (!given && p->end_of_text < 0)
        return train_run_refuse(&p->run,
                                "--tokenizer %s has no token that ends a text: give a --prompt",
                                p->run.o.tokenizer);
    if (given &&
        (mc_tokenizer_append(p->tokenizer, given, strlen(given), words) != MC_OK || !words->count))
        return train_run_refuse(&p->run, "--prompt: expected a text of at least one token");
    p->prompt = given ? words->ids : &p->end_of_text;
    p->prompt_length = given ? (int)words->count : 1;
    return true;
}

bool pretrain_prepare_samples(pretrain *p)
{
    const pretrain_options *o = &p->o;
    if (!o->sample_every) return true;
    if (!find_prompt(p)) return false;
    if (p->prompt_length + o->sample_length <= p->shape.positions) return true;
    return train_run_refuse(&p->run,
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
    if (words) run_log_sample(&p->run.log, p->run.step, words);
    mc_string_free(words);
    free(ids);
}

/* Every rank runs the model, parts of which the others may hold; the texts are the same. */
void pretrain_sample(train_run *run)
{
    pretrain *p = run->user;
    const int32_t *prompts[] = {p->prompt};
    mc_generate_options options = {.max_new_tokens = (int)p->o.sample_length,
                                   .sample = true,
                                   .top_k = 40,
                                   .seed = run->o.seed + (uint64_t)run->step};
    mc_generation *g = mc_model_generate(run->work.model, prompts, &p->prompt_length, 1, &options);
    if (g) show_sample(p, g);
    mc_generation_free(g);
}

/* ---- the result ------------------------------------------------------------------------------ */

/* ` key=number` of what was measured. (printf writes some NaNs as "-nan".) */
static void add_measured(text *t, bool measured, const char *key, int digits, double value)
{
    if (measured) text_add(t, " %s=%.*f", key, digits, isnan(value) ? NAN : value);
}

mc_status pretrain_result(train_run *run)
{
    const pretrain *p = run->user;
    double seconds = step_clock_mean(&run->clock); /* of a step */
    bool measured = seconds > 0;
    double rate = measured ? (double)p->o.tokens_per_step / seconds : 0;
    mc_memory_use use = mc_memory(run->ctx);
    char line[RESULT_ROOM];
    text t = text_into(line, sizeof line);
    text_add(&t, "result model=%s steps=%" PRId64 " tokens=%" PRId64,
             mc_model_family(run->work.model), run->step, run->step * p->o.tokens_per_step);
    add_measured(&t, !(run->loss < 0), "loss", 6, run->loss);
    add_measured(&t, !(p->val_loss < 0), "val_loss", 6, p->val_loss);
    add_measured(&t, measured, "ms", 3, 1e3 * seconds);
    add_measured(&t, measured, "tokens_per_s", 1, rate);
    add_measured(&t, measured && run->peak > 0, "mfu", 4, train_run_mfu(run, rate));
    text_add(&t,
             " peak_bytes=%" PRIu64 " planned_bytes=%" PRIu64 " touched_bytes=%" PRIu64
             " train_seconds=%.3f",
             use.peak, p->plan.peak, use.touched, run->clock.seconds);
    int eight = mc_module_fp8_linears(mc_model_module(run->work.model));
    if (eight) text_add(&t, " fp8_linears=%d", eight);
    return run_log_result_line(&run->log, "%s", line);
}
