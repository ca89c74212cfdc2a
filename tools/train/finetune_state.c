/* What a fine-tuning run leaves in its folder, and going on from there.
 *
 *   without --save-every and --resume   the model to keep, and finetune.json when the run has
 *                                       ended: its result and options. A checkpoint only where
 *                                       the run is interrupted.
 *   with one of them                    checkpoints, of which the last, or the best, is the model
 *                                       to keep (mc_checkpoint_options.best)
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/train/finetune.h"
#include "tools/files/whole_file.h"

enum { PATH_ROOM = 4200 };

/* Whether a run that is killed is to go on where it was. */
static bool is_resumable(const finetune *f)
{
    return f->o.resume || f->o.save_every || f->o.stop_after;
}

/* ---- settings: what is kept with a checkpoint ------------------------------------------------ */

static void add_given(settings *list, const char *name, const char *value)
{
    if (value) settings_add(list, name, value);
}

/* Of files that may lie elsewhere when the run goes on. */
static void find_contents(finetune *f)
{
    const finetune_options *o = &f->o;
    f->model_content = content_of(f->ctx, o->from.model, o->from.revision);
    f->config_content = content_of(f->ctx, o->from.config, NULL);
    f->tokenizer_content = content_of(f->ctx, o->tokenizer, NULL);
}

static void add_where_from(settings *list, const finetune *f)
{
    const finetune_options *o = &f->o;
    add_given(list, "model", o->from.family);
    add_given(list, "pretrained", o->from.model);
    add_given(list, "revision", o->from.revision);
    add_given(list, "config", o->from.config);
    add_given(list, "tokenizer", o->tokenizer);
    settings_add_content(list, "pretrained.content", f->model_content.text);
    settings_add_content(list, "config.content", f->config_content.text);
    settings_add_content(list, "tokenizer.content", f->tokenizer_content.text);
}

/* What decides the course of a run. Names are those of the options. */
static void add_options(settings *list, const finetune *f)
{
    const finetune_options *o = &f->o;
    add_where_from(list, f);
    data_add_settings(list, &o->data);
    settings_add_whole(list, "rows-per-step", o->rows_per_step);
    settings_add_course(list, &o->train);
    settings_add_flag(list, "no-decay-bias-norm", o->no_decay_bias_norm);
    if (o->dropout_given)
        settings_add_real(list, "dropout", o->dropout);
    else
        settings_add(list, "dropout", "the model's own");
    lora_add_settings(list, &o->lora);
    settings_add_whole(list, "seed", (int64_t)o->seed);
    settings_add_flag(list, "shuffle", o->shuffle);
    /* nothing where it is as it always was, so that older checkpoints go on */
    settings_add(list, "no-group-by-length", o->group_by_length ? "" : "true");
    settings_add(list, "keep", finetune_keep_names[o->keep]);
    settings_add(list, "metric", o->metric ? o->metric : "the task's own");
    settings_add_whole(list, "eval-every", o->eval_every);
    settings_add_whole(list, "early-stopping-patience", o->patience);
    settings_add_real(list, "early-stopping-threshold", o->threshold);
    settings_end_fixed(list);
    settings_add_whole(list, "batch-size", o->batch_size);
    settings_add_whole(list, "gradient-accumulation-steps", o->accumulation);
    settings_add_machine(list, &o->train);
    settings_end_rounding(list);
    settings_add_whole(list, "epochs", o->epochs);
    settings_add_whole(list, "max-steps", o->max_steps);
}

/* FNV-1a of all rows' texts, labels and values. */
static uint64_t add_to_hash(uint64_t hash, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t add_text(uint64_t hash, const char *text)
{
    return text ? add_to_hash(hash, text, strlen(text) + 1) : hash;
}

static uint64_t add_rows(uint64_t hash, const mc_dataset *rows)
{
    size_t values = mc_dataset_labels(rows) ? (size_t)mc_dataset_labels(rows) : 1;
    for (int64_t row = 0; row < mc_dataset_rows(rows); row++) {
        int32_t label = mc_dataset_label(rows, row);
        hash = add_to_hash(hash, &label, sizeof label);
        hash = add_text(hash, mc_dataset_target(rows, row));
        if (mc_dataset_values(rows, row))
            hash = add_to_hash(hash, mc_dataset_values(rows, row), values * sizeof(float));
        for (int choice = 0; choice < mc_dataset_choices(rows); choice++) {
            hash = add_text(hash, mc_dataset_text(rows, row, choice));
            hash = add_text(hash, mc_dataset_pair(rows, row, choice));
        }
    }
    return hash;
}

static uint64_t fingerprint(const finetune *f)
{
    return add_rows(add_rows(0xcbf29ce484222325u, f->train_rows), f->val_rows);
}

static void add_state(settings *list, const finetune *f)
{
    mc_data_position at = mc_dataloader_position(f->train[0]);
    const finetune_scores *s = &f->scores;
    settings_add_whole(list, "steps", f->steps);
    settings_add_whole(list, "ranks", mc_data_size(f->ctx));
    settings_add_real(list, "train-seconds", f->train_seconds);
    settings_add_flag(list, "eval-due", f->eval_due);
    settings_add_flag(list, "stopped", f->stopped);
    settings_add_whole(list, "scores.count", s->count);
    settings_add_whole(list, "scores.without", s->without);
    settings_add_whole(list, "scores.best_step", s->best_step);
    settings_add_real(list, "scores.best", s->best);
    settings_add_flag(list, "scores.best_beside", s->best_beside);
    settings_add(list, "scores.result", s->result);
    settings_add_u64(list, "data.fingerprint", f->fingerprint);
    settings_add_u64(list, "data.seed", at.seed);
    settings_add_whole(list, "data.epoch", at.epoch);
    settings_add_whole(list, "data.step", at.step);
    settings_add_whole(list, "data.rows", at.rows);
    settings_add_whole(list, "data.batch_rows", at.batch_rows);
    settings_add_whole(list, "data.dataset_rows", at.dataset_rows);
    settings_add_flag(list, "data.shuffle", at.shuffle);
    settings_add_flag(list, "data.by_length", at.by_length);
}

/* ---- finetune.json: a run that has ended ----------------------------------------------------- */

static bool path_of(char path[PATH_ROOM], const finetune *f, const char *suffix)
{
    int length = snprintf(path, PATH_ROOM, "%s/finetune.json%s", f->o.output, suffix);
    return length < PATH_ROOM;
}

static char *ended_text(const finetune *f)
{
    settings *list = settings_new(f->ctx);
    cJSON *json = list ? cJSON_CreateObject() : NULL, *kept = NULL;
    bool good = json && cJSON_AddNumberToObject(json, "step", (double)f->step) &&
                cJSON_AddStringToObject(json, "result", f->scores.result) &&
                cJSON_AddNumberToObject(json, "train_seconds", f->train_seconds) &&
                (kept = cJSON_AddObjectToObject(json, "settings"));
    if (list) add_options(list, f);
    for (int i = 0; good && i < list->count; i++)
        good = cJSON_AddStringToObject(kept, list->items[i].name, list->items[i].value);
    char *text = good ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    free(list);
    return text;
}

/* After the model: once it is there, all is. */
static void write_ended(finetune *f)
{
    char path[PATH_ROOM];
    if (mc_failed(f->ctx) || mc_rank(f->ctx)) return;
    char *text = ended_text(f);
    if (!text || !path_of(path, f, ""))
        mc_set_error(f->ctx, MC_ERR_NOMEM, "out of memory for finetune.json");
    else
        whole_file_write(f->ctx, path, text);
    cJSON_free(text);
}

/* A model of a run that goes on is not the result of the one before. */
static void remove_ended(finetune *f)
{
    char path[PATH_ROOM];
    if (!f->o.output || mc_failed(f->ctx) || mc_rank(f->ctx) || !path_of(path, f, "")) return;
    if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
        mc_set_error(f->ctx, MC_ERR_IO, "%s: cannot remove it: %s", path, strerror(errno));
}

static cJSON *read_ended(const finetune *f)
{
    enum { MOST = 1 << 20 };
    char path[PATH_ROOM];
    FILE *file = path_of(path, f, "") ? fopen(path, "rb") : NULL;
    char *text = file ? malloc(MOST) : NULL;
    size_t size = text ? fread(text, 1, MOST, file) : 0;
    cJSON *json = size < MOST ? cJSON_ParseWithLength(text, size) : NULL;
    if (file) fclose(file);
    free(text);
    return json;
}

static const char *find_ended(const void *json, const char *name)
{
    const cJSON *kept = cJSON_GetObjectItemCaseSensitive(json, "settings");
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(kept, name));
    return value ? value : "";
}

static bool same_length(const settings *list, const cJSON *json)
{
    for (int i = list->rounding; i < list->count; i++)
        if (strcmp(list->items[i].value, find_ended(json, list->items[i].name)) != 0) return false;
    return true;
}

/* Takes over the result of a run that has ended and left no checkpoint. */
static bool take_ended(finetune *f, const cJSON *json)
{
    char message[1024];
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(json, "step");
    const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(json, "train_seconds");
    const char *result = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "result"));
    if (!cJSON_IsNumber(step) || !cJSON_IsNumber(seconds) || !result)
        return finetune_refuse(f,
                               "%s/finetune.json: expected \"step\", \"result\" and "
                               "\"train_seconds\"",
                               f->o.output);
    settings *list = settings_new(f->ctx);
    if (!list) return false;
    finetune_take_defaults(f);
    find_contents(f);
    add_options(list, f);
    bool same = settings_same(list, find_ended, json, f->o.output, NULL, message, sizeof message);
    bool longer = same && !same_length(list, json);
    free(list);
    if (!same) return finetune_refuse(f, "%s", message);
    if (longer)
        return finetune_refuse(f,
                               "--resume: the run in %s has ended with other --epochs or "
                               "--max-steps, and kept no checkpoint (see --save-every)",
                               f->o.output);
    f->ended = true;
    f->step = f->steps = (int64_t)step->valuedouble;
    f->train_seconds = seconds->valuedouble;
    snprintf(f->scores.result, sizeof f->scores.result, "%s", result);
    return true;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The checkpoint whose model is the run's: see mc_checkpoint_options. */
static int64_t best_step(const finetune *f)
{
    if (f->o.keep == FINETUNE_KEEP_LAST || !f->scores.count) return 0;
    return f->scores.best_beside ? MC_CHECKPOINT_BEST_BESIDE : f->scores.best_step;
}

void finetune_checkpoint(finetune *f)
{
    if (!f->o.output || !f->step || f->checkpoints.saved == f->step) return;
    settings *list = settings_new(f->ctx);
    if (!list) return;
    add_options(list, f);
    add_state(list, f);
    checkpoints_save(&f->checkpoints, f->step, best_step(f), list);
    free(list);
}

void finetune_save_best(finetune *f)
{
    f->scores.best_beside = !is_resumable(f) || !f->step;
    if (f->scores.best_beside)
        checkpoints_save_model(&f->checkpoints);
    else
        finetune_checkpoint(f);
}

bool finetune_has_ended(const finetune *f)
{
    return f->ended || ((f->step >= f->steps || f->stopped) && !f->eval_due);
}

void finetune_save_end(finetune *f)
{
    bool ended = finetune_has_ended(f), plain = ended && (!is_resumable(f) || !f->step);
    if (!plain) finetune_checkpoint(f);
    if (plain && f->o.keep == FINETUNE_KEEP_LAST) checkpoints_save_model(&f->checkpoints);
    if (plain && f->o.output) write_ended(f);
    checkpoints_end(&f->checkpoints);
}

/* ---- resuming -------------------------------------------------------------------------------- */

/* The run that is resumed knows its own; one that has ended may be asked for without a model. */
static void find_family(finetune *f)
{
    model_options *from = &f->o.from;
    if (f->checkpoints.resumed && !from->family)
        from->family =
            mc_family_of_pretrained(f->ctx, mc_checkpoint_folder(f->checkpoints.resumed), NULL);
    else if (from->model || from->config)
        model_find_family(f->ctx, from);
}

/* task.json, and the options, beside the weights that they are about. */
static mc_status save_task(void *user, const char *folder)
{
    const finetune *f = user;
    data_save(f->ctx, &f->o.data, f->train_rows, folder);
    return train_output_write_options(f->ctx, &f->o.train, folder);
}

bool finetune_find(finetune *f)
{
    const finetune_options *o = &f->o;
    char message[1024];
    f->checkpoints = (checkpoints){.ctx = f->ctx,
                                   .log = &f->log,
                                   .folder = o->output,
                                   .save_beside = save_task,
                                   .user = f,
                                   .replace = o->train.overwrite,
                                   .keep = o->save_total_limit - 1,
                                   .max_shard_size = o->max_shard_size};
    if (!checkpoints_find(&f->checkpoints, o->resume, message, sizeof message))
        return *message && finetune_refuse(f, "%s", message);
    find_family(f);
    cJSON *json = o->resume && !f->checkpoints.resumed ? read_ended(f) : NULL;
    bool good = !mc_failed(f->ctx) && (!json || take_ended(f, json));
    cJSON_Delete(json);
    if (o->resume && good && !f->checkpoints.resumed && !f->ended)
        run_log_line(&f->log, "no checkpoint in %s yet: the run begins", o->output);
    if (f->ended && good)
        run_log_line(&f->log, "nothing is left to train: the run in %s has ended", o->output);
    return good;
}

static void take_rows(finetune_options *o, int ranks)
{
    int64_t batch = o->batch_size * ranks;
    if (!o->rows_per_step) o->rows_per_step = batch * (o->accumulation ? o->accumulation : 1);
    if (!o->accumulation) o->accumulation = o->rows_per_step / batch;
}

void finetune_take_defaults(finetune *f)
{
    finetune_options *o = &f->o;
    const mc_checkpoint *then = f->checkpoints.resumed;
    if (then && o->train.dtype == TRAIN_UNSET)
        o->train.dtype = settings_choice_of(then, "dtype", train_dtype_names, TRAIN_UNSET);
    if (o->train.dtype == TRAIN_UNSET)
        o->train.dtype = o->train.device == TRAIN_CPU ? TRAIN_F32 : TRAIN_BF16;
    take_rows(o, mc_data_size(f->ctx));
}

static bool same_options(finetune *f, const mc_checkpoint *then)
{
    char message[1024];
    settings *list = settings_new(f->ctx);
    if (!list) return false;
    add_options(list, f);
    bool same = settings_same(list, NULL, then, f->o.output, NULL, message, sizeof message);
    if (same) {
        settings_tell_changes(list, then, f->ctx, &f->log);
        settings_tell_steps(then, f->steps, &f->o.train, &f->log);
    }
    free(list);
    return same || finetune_refuse(f, "%s", message);
}

bool finetune_check_options(finetune *f)
{
    const mc_checkpoint *then = f->checkpoints.resumed;
    if (f->o.output) f->fingerprint = fingerprint(f);
    if (f->o.output) find_contents(f);
    if (!then) return true;
    if (!same_options(f, then)) return false;
    uint64_t begun = settings_u64_of(then, "data.fingerprint");
    return begun == f->fingerprint ||
           finetune_refuse(f,
                           "--resume: --data is not what the run in %s was begun with "
                           "(fingerprints %016" PRIx64 " here, %016" PRIx64 " there)",
                           f->o.output, f->fingerprint, begun);
}

static mc_data_position position_of(const mc_checkpoint *then)
{
    return (mc_data_position){.seed = settings_u64_of(then, "data.seed"),
                              .epoch = settings_whole_of(then, "data.epoch"),
                              .step = settings_whole_of(then, "data.step"),
                              .rows = settings_whole_of(then, "data.rows"),
                              .batch_rows = settings_whole_of(then, "data.batch_rows"),
                              .dataset_rows = settings_whole_of(then, "data.dataset_rows"),
                              .shuffle = settings_flag_of(then, "data.shuffle"),
                              .by_length = settings_flag_of(then, "data.by_length")};
}

static void take_state(finetune *f, const mc_checkpoint *then)
{
    finetune_scores *s = &f->scores;
    f->step = mc_checkpoint_step(then);
    f->train_seconds = settings_real_of(then, "train-seconds");
    f->eval_due = settings_flag_of(then, "eval-due");
    f->stopped = settings_flag_of(then, "stopped");
    s->count = settings_whole_of(then, "scores.count");
    s->without = settings_whole_of(then, "scores.without");
    s->best_step = settings_whole_of(then, "scores.best_step");
    s->best = settings_real_of(then, "scores.best");
    s->best_beside = settings_flag_of(then, "scores.best_beside");
    snprintf(s->result, sizeof s->result, "%s", settings_text_of(then, "scores.result"));
}

bool finetune_restore(finetune *f)
{
    mc_checkpoint *then = f->checkpoints.resumed;
    f->checkpoints.model = f->model;
    f->checkpoints.tokenizer = f->tokenizer;
    f->checkpoints.optim = f->optim;
    if (!then) return !mc_failed(f->ctx);
    mc_data_position at = position_of(then);
    for (int64_t i = 0; i < f->o.accumulation; i++) mc_dataloader_seek(f->train[i], &at);
    mc_checkpoint_restore(then, f->optim);
    if (mc_failed(f->ctx)) return false;
    take_state(f, then);
    checkpoints_restored(&f->checkpoints);
    return true;
}

/* How many checkpoints the folder is going to hold besides those that are there. */
static int64_t checkpoints_to_come(const finetune *f)
{
    const finetune_options *o = &f->o;
    if (!is_resumable(f)) return 0;
    if (f->checkpoints.resumed) return 1; /* an older one goes for each that comes */
    int64_t saves = o->save_every ? (f->steps + o->save_every - 1) / o->save_every : 1;
    int64_t most = o->save_total_limit + (o->keep == FINETUNE_KEEP_BEST) + 1;
    return saves < most ? saves : most;
}

bool finetune_check_room(finetune *f)
{
    return train_output_check_room(&f->target, f->model, checkpoints_to_come(f));
}

bool finetune_begin(finetune *f)
{
    if (f->checkpoints.resumed) return true;
    remove_ended(f);
    return checkpoints_begin(&f->checkpoints);
}
