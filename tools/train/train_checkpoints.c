/* The checkpoints of a run: found, compared with the options, saved in the background, and reported
 * when they are whole. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/log/progress_bar.h"
#include "tools/train/train_run.h"

#define FP8_KINDS "fp8.kinds"

/* ---- finding --------------------------------------------------------------------------------- */

static bool open_newest(train_run *run)
{
    const train_run_options *o = &run->o;
    if (!o->output) return true;
    if (o->resume) {
        run->resumed = mc_checkpoint_open(run->ctx, o->output);
        return !mc_failed(run->ctx);
    }
    return o->train.overwrite || !mc_checkpoint_exists(o->output) ||
           train_run_refuse(run,
                            "--output %s holds a checkpoint of a run: go on with --resume, or "
                            "choose another folder",
                            o->output);
}

/* A --config of another family, which this family's reader would not understand. */
static bool check_family(train_run *run)
{
    const model_options *from = &run->o.from;
    const char *family = from->config ? mc_family_of_config(run->ctx, from->config) : NULL;
    if (mc_failed(run->ctx)) mc_clear_error(run->ctx); /* it does not say, and need not */
    return !family || strcmp(family, from->family) == 0 ||
           train_run_refuse(run, "--resume: --config is %s, but the run in %s was begun with %s",
                            family, run->o.output, from->family);
}

/* The run that is resumed knows its own; one that has ended may be asked for without a model. */
static bool find_family(train_run *run)
{
    model_options *from = &run->o.from;
    bool base = lora_options_given(&run->o.lora) && from->model; /* it may lie elsewhere now */
    const mc_load_options load = {.base = from->base};
    if (run->resumed && !from->family && !base) {
        from->family = mc_family_of_pretrained(run->ctx, mc_checkpoint_folder(run->resumed), &load);
        return !mc_failed(run->ctx) && check_family(run);
    }
    if (from->model || from->config) model_find_family(run->ctx, from);
    return !mc_failed(run->ctx);
}

static void take_dtype(train_run *run)
{
    train_options *o = &run->o.train;
    if (run->resumed && o->dtype == TRAIN_UNSET)
        o->dtype = settings_choice_of(run->resumed, "dtype", train_dtype_names, TRAIN_UNSET);
    if (o->dtype == TRAIN_UNSET) o->dtype = o->device == TRAIN_CPU ? TRAIN_F32 : TRAIN_BF16;
}

/* A run's layers in 8 bits are chosen once: so a run that is resumed goes on to the bit. */
static void take_fp8_kinds(train_run *run)
{
    bool chosen = run->resumed && *settings_text_of(run->resumed, FP8_KINDS);
    run->fp8_kinds = chosen ? settings_u64_of(run->resumed, FP8_KINDS) : TRAIN_RUN_ALL_KINDS;
}

/* Which decides how the checkpoint is loaded. */
static bool same_adapter(train_run *run)
{
    settings *list = settings_new(run->ctx);
    if (!list) return false;
    lora_add_settings(list, &run->o.lora);
    settings_end_fixed(list);
    bool same = train_run_same(run, list, NULL, run->resumed);
    free(list);
    return same;
}

bool train_run_find(train_run *run)
{
    const train_run_options *o = &run->o;
    if (!open_newest(run) || !find_family(run)) return false;
    take_dtype(run);
    take_fp8_kinds(run);
    if (!run->kind->take_defaults(run)) return false;
    if (run->resumed) return same_adapter(run);
    if (!o->resume) return true;
    if (run->kind->find_ended && !run->kind->find_ended(run)) return false;
    if (run->ended)
        run_log_line(&run->log, "nothing is left to train: the run in %s has ended", o->output);
    else
        run_log_line(&run->log, "no checkpoint in %s yet: the run begins", o->output);
    return true;
}

/* ---- settings -------------------------------------------------------------------------------- */

static settings *options_of(const train_run *run)
{
    settings *list = settings_new(run->ctx);
    if (list) run->kind->add_options(list, run);
    return list;
}

bool train_run_same(train_run *run, const settings *list, settings_find_fn find, const void *then)
{
    char message[1024];
    return settings_same(list, find, then, run->o.output, message, sizeof message) ||
           train_run_refuse(run, "%s", message);
}

bool train_run_check_settings(train_run *run)
{
    const mc_checkpoint *then = run->resumed;
    if (!then) return !mc_failed(run->ctx);
    settings *list = options_of(run);
    bool same = list && train_run_same(run, list, NULL, then) && run->kind->same_data(run);
    if (same) {
        settings_tell_changes(list, then, run->ctx, &run->log);
        settings_tell_steps(then, run->steps, &run->o.train, &run->log);
    }
    free(list);
    return same;
}

/* Whether the run now ends at a step that was not its end, and after which it was not evaluated. */
static bool ends_without_eval(const train_run *run)
{
    bool was_end = run->step >= settings_whole_of(run->resumed, "steps");
    bool evaluated = run->eval_every > 0 && run->step % run->eval_every == 0;
    return run->step >= run->steps && !was_end && !evaluated;
}

bool train_run_restore(train_run *run)
{
    mc_checkpoint *then = run->resumed;
    if (!then) return !mc_failed(run->ctx);
    settings_read_fields(then, run->kind->state, run->user);
    run->kind->place_state(run, false);
    mc_checkpoint_restore(then, run->work.optim);
    if (mc_failed(run->ctx)) return false;
    run->step = run->saved = run->reported = mc_checkpoint_step(then);
    run->eval_due = run->eval_due || ends_without_eval(run);
    run_log_line(&run->log, "resumed after step %" PRId64 " from %s", run->step,
                 mc_checkpoint_folder(then));
    return true;
}

/* ---- saving ---------------------------------------------------------------------------------- */

bool train_run_begin(train_run *run)
{
    if (!run->o.output || run->resumed) return !mc_failed(run->ctx);
    if (run->kind->mark_ended) run->kind->mark_ended(run, false);
    if (run->o.train.overwrite && mc_rank(run->ctx) == 0)
        mc_checkpoint_remove_all(run->ctx, run->o.output);
    return !mc_failed(run->ctx);
}

/* The tokenizer first: when the weights are there, the folder is whole. */
static mc_status save_files(void *user, const char *folder)
{
    train_run *run = user;
    bool first = mc_rank(run->ctx) == 0;
    mc_status status = MC_OK;
    if (first && run->tokenizer) status = mc_tokenizer_save(run->tokenizer, folder);
    if (first && !status && run->kind->save_beside) status = run->kind->save_beside(run, folder);
    if (first && !status) status = train_run_write_options(run, folder);
    mc_save_options options = {.max_shard_size = run->o.max_shard_size};
    return status ? status : mc_model_save_as(run->work.model, folder, &options);
}

void train_run_save_model(train_run *run)
{
    const char *folder = run->o.output;
    char aside[OUTPUT_PATH];
    if (!folder || mc_failed(run->ctx)) return;
    run_log_line(&run->log, "saving to %s", folder);
    if (mc_model_folder_begin(run->ctx, folder, aside, sizeof aside) == MC_OK)
        save_files(run, aside);
    mc_model_folder_commit(run->ctx, folder);
}

static void save_settings(train_run *run, const settings *list)
{
    mc_checkpoint_options options = {.step = run->step,
                                     .keep = run->o.keep,
                                     .best = run->best,
                                     .replaces_model =
                                         run->o.train.overwrite && !run->resumed && !run->saved,
                                     .optim = run->work.optim,
                                     .save_files = save_files,
                                     .user = run,
                                     .settings = list->items,
                                     .setting_count = list->count,
                                     .background = true};
    double start = progress_bar_now();
    train_run_wait(run); /* for the one before */
    if (mc_checkpoint_save(run->ctx, run->o.output, &options) == MC_OK) run->saved = run->step;
    run->pause = progress_bar_now() - start;
}

void train_run_save_checkpoint(train_run *run)
{
    if (!run->o.output || run->saved == run->step || mc_failed(run->ctx)) return;
    settings *list = options_of(run);
    if (!list) return;
    settings_add_whole(list, "steps", run->steps);
    settings_add_whole(list, "ranks", mc_data_size(run->ctx));
    if (run->o.train.fp8 == MC_FP8_AUTO) settings_add_u64(list, FP8_KINDS, run->fp8_kinds);
    run->kind->place_state(run, true);
    settings_add_fields(list, run->kind->state, run->user);
    save_settings(run, list);
    free(list);
}

void train_run_save(train_run *run)
{
    bool model = train_run_is_done(run) && (run->only_model || !run->step);
    if (!model) train_run_save_checkpoint(run);
    if (!model || !run->o.output || (run->step && run->saved == run->step)) return;
    if (!run->keeps_best) train_run_save_model(run); /* else it was saved when it was found */
    if (run->kind->mark_ended) run->kind->mark_ended(run, true);
    run->saved = run->step;
}

void train_run_tell_saved(train_run *run)
{
    int64_t step;
    if (mc_checkpoint_poll(run->ctx, &step) != MC_OK || step <= run->reported) return;
    run->reported = step;
    run_log_line(&run->log, "saved step %" PRId64 " to %s (training paused for %.0f ms)", step,
                 run->o.output, 1e3 * run->pause);
}

void train_run_wait(train_run *run)
{
    mc_checkpoint_wait(run->ctx);
    train_run_tell_saved(run);
}

void train_run_report_newest(const train_run *run)
{
    const char *folder = run->o.output;
    if (!folder || !mc_failed(run->ctx) || mc_rank(run->ctx) || !mc_checkpoint_exists(folder))
        return;
    /* the run's own context does nothing any more */
    mc_context *ctx = mc_context_new(&(mc_init_options){.device = "cpu"});
    mc_checkpoint *newest = mc_checkpoint_open(ctx, folder);
    if (newest)
        fprintf(stderr,
                "the newest checkpoint is of step %" PRId64 ", in %s; --resume goes on there\n",
                mc_checkpoint_step(newest), mc_checkpoint_folder(newest));
    mc_checkpoint_free(newest);
    mc_context_free(ctx);
}
