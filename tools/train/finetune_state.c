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
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/train/finetune.h"
#include "tools/files/read_file.h"
#include "tools/files/whole_file.h"

enum { PATH_ROOM = 4200 };

bool finetune_is_resumable(const train_run *run)
{
    return run->o.resume || run->o.save_every || run->o.stop_after;
}

/* ---- settings: what is kept with a checkpoint ------------------------------------------------ */

/* Of files that may lie elsewhere when the run goes on. */
static void find_contents(finetune *f)
{
    const train_run_options *o = &f->run.o;
    f->model_content = content_of(f->run.ctx, o->from.model, o->from.revision);
    f->config_content = content_of(f->run.ctx, o->from.config, NULL);
    f->tokenizer_content = content_of(f->run.ctx, o->tokenizer, NULL);
}

static void add_where_from(settings *list, const finetune *f)
{
    const train_run_options *o = &f->run.o;
    settings_add_given(list, "model", o->from.family);
    settings_add_given(list, "pretrained", o->from.model);
    settings_add_given(list, "revision", o->from.revision);
    settings_add_given(list, "config", o->from.config);
    settings_add_given(list, "tokenizer", o->tokenizer);
    settings_add_given(list, "pretrained.content", f->model_content.text);
    settings_add_given(list, "config.content", f->config_content.text);
    settings_add_given(list, "tokenizer.content", f->tokenizer_content.text);
}

/* Names are those of the options. */
void finetune_add_options(settings *list, const train_run *run)
{
    const finetune *f = run->user;
    const finetune_options *o = &f->o;
    add_where_from(list, f);
    data_add_settings(list, &o->data);
    settings_add_whole(list, "rows-per-step", o->rows_per_step);
    settings_add_course(list, &run->o.train);
    settings_add_flag(list, "no-decay-bias-norm", run->adam.no_decay_bias_norm);
    if (o->dropout_given)
        settings_add_real(list, "dropout", run->o.dropout);
    else
        settings_add(list, "dropout", "the model's own");
    lora_add_settings(list, &run->o.lora);
    settings_add_whole(list, "seed", (int64_t)run->o.seed);
    settings_add_flag(list, "shuffle", o->shuffle);
    /* nothing where it is as it always was, so that older checkpoints go on */
    settings_add(list, "no-group-by-length", o->group_by_length ? "" : "true");
    settings_add(list, "keep", finetune_keep_names[o->keep]);
    settings_add(list, "metric", o->metric ? o->metric : "the task's own");
    settings_add_whole(list, "eval-every", o->eval_every);
    settings_add_whole(list, "early-stopping-patience", o->patience);
    settings_add_real(list, "early-stopping-threshold", o->threshold);
    settings_end_fixed(list);
    settings_add_whole(list, "batch-size", run->o.batch_size);
    settings_add_whole(list, "gradient-accumulation-steps", o->accumulation);
    settings_add_machine(list, &run->o.train);
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

void finetune_identify(finetune *f)
{
    if (!f->run.o.output) return;
    f->fingerprint = add_rows(add_rows(0xcbf29ce484222325u, f->train_rows), f->val_rows);
    find_contents(f);
}

bool finetune_same_data(train_run *run)
{
    const finetune *f = run->user;
    uint64_t begun = settings_u64_of(run->resumed, "data.fingerprint");
    return begun == f->fingerprint ||
           train_run_refuse(run,
                            "--resume: --data is not what the run in %s was begun with "
                            "(fingerprints %016" PRIx64 " here, %016" PRIx64 " there)",
                            run->o.output, f->fingerprint, begun);
}

/* ---- settings: where a run stands ------------------------------------------------------------ */

const settings_field finetune_state[] = {
    {"train-seconds", SETTINGS_REAL, offsetof(finetune, run.train_seconds)},
    {"eval-due", SETTINGS_FLAG, offsetof(finetune, run.eval_due)},
    {"stopped", SETTINGS_FLAG, offsetof(finetune, run.stopped)},
    {"scores.count", SETTINGS_WHOLE, offsetof(finetune, scores.count)},
    {"scores.without", SETTINGS_WHOLE, offsetof(finetune, scores.without)},
    {"scores.best_step", SETTINGS_WHOLE, offsetof(finetune, scores.best_step)},
    {"scores.best", SETTINGS_REAL, offsetof(finetune, scores.best)},
    {"scores.best_beside", SETTINGS_FLAG, offsetof(finetune, scores.best_beside)},
    {"scores.result", SETTINGS_STRING, offsetof(finetune, scores.result)},
    {"data.fingerprint", SETTINGS_U64, offsetof(finetune, fingerprint)},
    {"data.seed", SETTINGS_U64, offsetof(finetune, position.seed)},
    {"data.epoch", SETTINGS_WHOLE, offsetof(finetune, position.epoch)},
    {"data.step", SETTINGS_WHOLE, offsetof(finetune, position.step)},
    {"data.rows", SETTINGS_WHOLE, offsetof(finetune, position.rows)},
    {"data.batch_rows", SETTINGS_WHOLE, offsetof(finetune, position.batch_rows)},
    {"data.dataset_rows", SETTINGS_WHOLE, offsetof(finetune, position.dataset_rows)},
    {"data.shuffle", SETTINGS_FLAG, offsetof(finetune, position.shuffle)},
    {"data.by_length", SETTINGS_FLAG, offsetof(finetune, position.by_length)},
    {NULL},
};

void finetune_place_state(train_run *run, bool saving)
{
    finetune *f = run->user;
    const finetune_scores *scores = &f->scores;
    if (saving)
        f->position = mc_dataloader_position(f->train[0]);
    else
        for (int i = 0; i < run->work.passes; i++) mc_dataloader_seek(f->train[i], &f->position);
    if (run->keeps_best && scores->count)
        run->best = scores->best_beside ? MC_CHECKPOINT_BEST_BESIDE : scores->best_step;
}

/* ---- finetune.json: a run that has ended ----------------------------------------------------- */

static void path_of(char path[PATH_ROOM], const finetune *f)
{
    snprintf(path, PATH_ROOM, "%.4100s/finetune.json", f->run.o.output);
}

static char *ended_text(const finetune *f)
{
    settings *list = settings_new(f->run.ctx);
    cJSON *json = list ? cJSON_CreateObject() : NULL, *kept = NULL;
    bool good = json && cJSON_AddNumberToObject(json, "step", (double)f->run.step) &&
                cJSON_AddStringToObject(json, "result", f->scores.result) &&
                cJSON_AddNumberToObject(json, "train_seconds", f->run.train_seconds) &&
                (kept = cJSON_AddObjectToObject(json, "settings"));
    if (list) finetune_add_options(list, &f->run);
    for (int i = 0; good && i < list->count; i++)
        good = cJSON_AddStringToObject(kept, list->items[i].name, list->items[i].value);
    char *text = good ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    free(list);
    return text;
}

/* Written after the model: once it is there, all is. A model of a run that goes on is not the
 * result of the one before, whose file goes. */
void finetune_mark_ended(train_run *run, bool ended)
{
    const finetune *f = run->user;
    char path[PATH_ROOM];
    if (mc_failed(run->ctx) || mc_rank(run->ctx)) return;
    path_of(path, f);
    char *text = ended ? ended_text(f) : NULL;
    if (ended && !text)
        mc_set_error(run->ctx, MC_ERR_NOMEM, "out of memory for finetune.json");
    else if (ended)
        whole_file_write(run->ctx, path, text);
    else if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
        mc_set_error(run->ctx, MC_ERR_IO, "%s: cannot remove it: %s", path, strerror(errno));
    cJSON_free(text);
}

static cJSON *read_ended(const finetune *f)
{
    enum { MOST = 1 << 20 };
    char path[PATH_ROOM];
    path_of(path, f);
    char *text = read_file(path, MOST, NULL);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    free(text);
    return json;
}

static const char *find_setting(const void *json, const char *name)
{
    const cJSON *kept = cJSON_GetObjectItemCaseSensitive(json, "settings");
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(kept, name));
    return value ? value : "";
}

static bool same_length(const settings *list, const cJSON *json)
{
    for (int i = list->rounding; i < list->count; i++)
        if (strcmp(list->items[i].value, find_setting(json, list->items[i].name)) != 0)
            return false;
    return true;
}

/* Whether a run that has ended and left no checkpoint is this one. */
static bool same_run(finetune *f, const cJSON *json)
{
    settings *list = settings_new(f->run.ctx);
    if (!list) return false;
    find_contents(f);
    finetune_add_options(list, &f->run);
    bool same = train_run_same(&f->run, list, find_setting, json);
    bool longer = same && !same_length(list, json);
    free(list);
    if (longer)
        return train_run_refuse(&f->run,
                                "--resume: the run in %s has ended with other --epochs or "
                                "--max-steps, and kept no checkpoint (see --save-every)",
                                f->run.o.output);
    return same;
}

/* Takes over its result. */
static bool take_ended(finetune *f, const cJSON *json)
{
    train_run *run = &f->run;
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(json, "step");
    const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(json, "train_seconds");
    const char *result = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "result"));
    if (!cJSON_IsNumber(step) || !cJSON_IsNumber(seconds) || !result)
        return train_run_refuse(run,
                                "%s/finetune.json: expected \"step\", \"result\" and "
                                "\"train_seconds\"",
                                run->o.output);
    if (!same_run(f, json)) return false;
    run->ended = true;
    run->step = run->steps = (int64_t)step->valuedouble;
    run->train_seconds = seconds->valuedouble;
    snprintf(f->scores.result, sizeof f->scores.result, "%s", result);
    return true;
}

bool finetune_find_ended(train_run *run)
{
    finetune *f = run->user;
    cJSON *json = read_ended(f);
    bool good = !json || take_ended(f, json);
    cJSON_Delete(json);
    return good;
}

/* ---- saving ---------------------------------------------------------------------------------- */

void finetune_save_best(finetune *f)
{
    f->scores.best_beside = !finetune_is_resumable(&f->run) || !f->run.step;
    if (f->scores.best_beside)
        train_run_save_model(&f->run);
    else
        train_run_save_checkpoint(&f->run);
}

/* task.json. */
mc_status finetune_save_task(train_run *run, const char *folder)
{
    const finetune *f = run->user;
    data_save(run->ctx, &f->o.data, f->train_rows, folder);
    return mc_error_status(run->ctx);
}
