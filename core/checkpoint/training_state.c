/* Opening a checkpoint of a run, and resuming from it. */
#include "core/checkpoint/training_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/json_internal.h"
#include "core/checkpoint/optim_state.h"
#include "core/dist/ranks_internal.h"
#include "core/checkpoint/training_internal.h"
#include "core/optim/optimizer_internal.h"

struct mc_checkpoint {
    mc_owned owned;
    mc_context *ctx;
    char folder[MC_PATH_MAX], run[MC_PATH_MAX];
    cJSON *json;
    int64_t step, best;
    int64_t loss_rows; /* mc_open_step.rows, which affects the last bits of gradients */
    uint64_t seed, rng_offset;
    mc_ranks_work work; /* used while it is checked */
};

static void checkpoint_release(void *object)
{
    mc_checkpoint *c = object;
    cJSON_Delete(c->json);
    mc_free(c);
}

void mc_checkpoint_free(mc_checkpoint *c)
{
    if (!c) return;
    mc_disown(&c->owned);
    checkpoint_release(c);
}

/* ---- checking -------------------------------------------------------------------------------- */

/* Reads a whole number that is stored as a string. */
static bool get_u64(mc_error *err, const cJSON *object, const char *name, const char *key,
                    uint64_t *value)
{
    const char *text = NULL;
    if (!mc_json_get_string(err, object, name, key, &text)) return false;
    size_t digits = text ? strspn(text, "0123456789") : 0;
    errno = 0;
    if (digits && !text[digits]) *value = strtoull(text, NULL, 10);
    if (digits && !text[digits] && !errno) return true;
    mc_error_set(err, MC_ERR_FORMAT, "%s: key \"%s\": expected a whole number in quotes, found %s",
                 name, key, text ? text : "nothing");
    return false;
}

static mc_status check_file(mc_checkpoint *c, mc_error *err, const char *folder,
                            const char *json_path, const cJSON *file)
{
    char path[MC_PATH_MAX];
    mc_file_print expected, found;
    if (strchr(file->string, '/'))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: \"%s\" is no name of a file", json_path,
                            file->string);
    if (!get_u64(err, file, json_path, "bytes", &expected.bytes) ||
        !get_u64(err, file, json_path, "checksum", &expected.checksum))
        return err->status;
    mc_status status = mc_path_join(err, path, folder, file->string);
    if (!status) status = mc_file_print_of(err, path, mc_ranks_work_tick, &c->work, &found);
    if (status) return status;
    if (found.bytes != expected.bytes)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: %llu bytes, expected %llu", path,
                            (unsigned long long)found.bytes, (unsigned long long)expected.bytes);
    if (found.checksum != expected.checksum)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: damaged: its checksum is not the one in %s",
                            path, MC_TRAINING_JSON);
    return MC_OK;
}

static mc_status check_files(mc_checkpoint *c, mc_error *err, const char *folder, const char *path,
                             const cJSON *json)
{
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files"), *file;
    if (!cJSON_IsObject(files) || !cJSON_GetObjectItemCaseSensitive(files, MC_TRAINING_OPTIMIZER))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: key \"files\": expected an object with \"%s\"",
                            path, MC_TRAINING_OPTIMIZER);
    mc_status status = MC_OK;
    cJSON_ArrayForEach(file, files) if (!status) status = check_file(c, err, folder, path, file);
    return status;
}

static mc_status check_best(mc_checkpoint *c, mc_error *err)
{
    char folder[MC_PATH_MAX], path[MC_PATH_MAX];
    if (c->best < 1 || c->best == c->step) return MC_OK;
    mc_status status = mc_checkpoint_path(err, folder, c->run, c->best, "");
    if (!status) status = mc_path_join(err, path, folder, MC_TRAINING_JSON);
    if (status) return status;
    cJSON *json = mc_json_read_object(err, path, MC_TRAINING_JSON_LIMIT);
    status = json ? check_files(c, err, folder, path, json) : err->status;
    cJSON_Delete(json);
    return status;
}

/* Reads training.json; rank 0 also compares all files with it. */
static mc_status open_one(mc_checkpoint *c, mc_error *err, int64_t step)
{
    char path[MC_PATH_MAX];
    int64_t format = 0;
    mc_status status = mc_checkpoint_path(err, c->folder, c->run, step, "");
    if (!status) status = mc_path_join(err, path, c->folder, MC_TRAINING_JSON);
    if (status) return status;
    cJSON_Delete(c->json);
    c->best = c->loss_rows = 0; /* the values if missing */
    c->json = mc_json_read_object(err, path, MC_TRAINING_JSON_LIMIT);
    if (!c->json || !mc_json_get_int(err, c->json, path, "format", 1, INT32_MAX, &format) ||
        !mc_json_get_int(err, c->json, path, "step", 1, INT64_MAX, &c->step) ||
        !mc_json_get_int(err, c->json, path, "best", MC_CHECKPOINT_BEST_BESIDE, step, &c->best) ||
        !mc_json_get_int(err, c->json, path, "loss_rows", 0, INT64_MAX, &c->loss_rows) ||
        !get_u64(err, c->json, path, "seed", &c->seed) ||
        !get_u64(err, c->json, path, "rng_offset", &c->rng_offset))
        return err->status;
    if (format != MC_TRAINING_FORMAT)
        return mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: format %lld, expected %d", path,
                            (long long)format, MC_TRAINING_FORMAT);
    if (c->step != step)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: says step %lld, its folder %lld", path,
                            (long long)c->step, (long long)step);
    if (c->ctx->mesh.world.rank) return MC_OK;
    status = check_files(c, err, c->folder, path, c->json);
    return status ? status : check_best(c, err);
}

/* ---- opening --------------------------------------------------------------------------------- */

bool mc_checkpoint_exists(const char *folder)
{
    mc_error err = {0};
    int64_t *steps;
    size_t count;
    mc_status status = folder ? mc_checkpoint_steps(&err, folder, &steps, &count) : MC_OK;
    bool exists = folder && !status && count;
    if (folder) mc_free(steps);
    mc_error_clear(&err);
    return exists;
}

/* Rank 0 finds the newest complete checkpoint. If none is complete, the error of the newest is
 * reported. */
static mc_status open_newest(mc_checkpoint *c, const int64_t *steps, size_t count)
{
    mc_error first = {0};
    mc_status status = MC_ERR_NOT_FOUND;
    for (size_t i = 0; status && i < count; i++) {
        mc_error err = {0};
        status = open_one(c, &err, steps[i]);
        if (mc_failed(c->ctx))
            i = count; /* another rank has failed */
        else if (status && status != MC_ERR_NOMEM && i + 1 < count)
            mc_log(c->ctx, MC_LOG_WARNING, "%s: the checkpoint before it is taken", err.message);
        if (status == MC_ERR_NOMEM) i = count;
        mc_error_move(&first, &err);
        mc_error_clear(&err);
    }
    if (status) mc_error_move(&c->ctx->error, &first);
    mc_error_clear(&first);
    return status;
}

/* Looks for a checkpoint; sets *step to its step, 0 if there is none. */
static mc_status find(mc_checkpoint *c, int64_t *step)
{
    int64_t *steps = NULL;
    size_t count = 0;
    *step = 0;
    mc_status status = mc_checkpoint_steps(&c->ctx->error, c->run, &steps, &count);
    mc_ranks_work_begin(&c->work, c->ctx);
    if (!status && count) status = open_newest(c, steps, count);
    if (!status && count) *step = c->step;
    mc_free(steps);
    return status ? status : mc_ranks_work_end(&c->work);
}

/* Opens the checkpoint that rank 0 has found. */
static mc_status open_found(mc_checkpoint *c, int64_t *step)
{
    mc_context *ctx = c->ctx;
    mc_status status = ctx->mesh.world.rank ? mc_ranks_work_wait(ctx) : find(c, step);
    if (!status) status = mc_ranks_share(ctx, step, sizeof *step);
    if (!status && ctx->mesh.world.rank && *step) status = open_one(c, &ctx->error, *step);
    return status ? status : mc_ranks_meet(ctx);
}

mc_checkpoint *mc_checkpoint_open(mc_context *ctx, const char *folder)
{
    int64_t step = 0;
    if (!mc_failed(ctx) && !folder)
        mc_fail(ctx, MC_ERR_ARGUMENT, "the folder of checkpoints is NULL");
    mc_checkpoint *c = mc_new_owned(ctx, sizeof *c, "a checkpoint", checkpoint_release);
    if (!c) return NULL;
    c->ctx = ctx;
    mc_status status = mc_path_join(&ctx->error, c->run, folder, "");
    if (!status) status = open_found(c, &step);
    if (!status && step) return c;
    mc_error_while(&ctx->error, "opening the newest checkpoint of %s", folder);
    mc_checkpoint_free(c);
    return NULL;
}

int64_t mc_checkpoint_step(const mc_checkpoint *c) { return c ? c->step : 0; }

const char *mc_checkpoint_folder(const mc_checkpoint *c) { return c ? c->folder : NULL; }

const char *mc_checkpoint_setting_of(const mc_checkpoint *c, const char *name)
{
    const cJSON *settings = c ? cJSON_GetObjectItemCaseSensitive(c->json, "settings") : NULL;
    const cJSON *value = name ? cJSON_GetObjectItemCaseSensitive(settings, name) : NULL;
    return cJSON_IsString(value) ? value->valuestring : NULL;
}

/* ---- going on -------------------------------------------------------------------------------- */

/* Renames a checkpoint so that it is not found again. */
static mc_status set_aside(mc_checkpoint *c, int64_t step)
{
    enum { MOST = 1000 };
    char path[MC_PATH_MAX], aside[MC_PATH_MAX], suffix[32] = ".damaged";
    mc_status status = mc_checkpoint_path(&c->ctx->error, path, c->run, step, "");
    for (int i = 2; !status; i++) {
        status = mc_checkpoint_path(&c->ctx->error, aside, c->run, step, suffix);
        if (status || rename(path, aside) == 0) return status;
        if ((errno != ENOTEMPTY && errno != EEXIST) || i > MOST)
            return mc_fail(c->ctx, MC_ERR_IO, "%s: cannot rename it to %s: %s", path, aside,
                           strerror(errno));
        snprintf(suffix, sizeof suffix, ".damaged-%d", i);
    }
    return status;
}

static mc_status set_newer_aside(mc_checkpoint *c)
{
    int64_t *steps;
    size_t count;
    mc_status status = mc_checkpoint_steps(&c->ctx->error, c->run, &steps, &count);
    for (size_t i = 0; !status && i < count && steps[i] > c->step; i++)
        status = set_aside(c, steps[i]);
    mc_free(steps);
    return status;
}

mc_status mc_checkpoint_restore(mc_checkpoint *c, mc_optim_manager *optim)
{
    char path[MC_PATH_MAX];
    if (!c) return MC_ERR_ARGUMENT;
    if (mc_failed(c->ctx)) return mc_error_status(c->ctx);
    if (!optim || optim->ctx != c->ctx)
        return mc_fail(c->ctx, MC_ERR_ARGUMENT,
                       "%s: the OptimManager is NULL or of another context", c->folder);
    if (c->seed != c->ctx->seed)
        return mc_fail(c->ctx, MC_ERR_ARGUMENT, "%s: saved with seed %llu, the context's is %llu",
                       c->folder, (unsigned long long)c->seed, (unsigned long long)c->ctx->seed);
    mc_status status = mc_path_join(&c->ctx->error, path, c->folder, MC_TRAINING_OPTIMIZER);
    if (!status) status = mc_optim_manager_load(optim, path);
    if (!status && !c->ctx->mesh.world.rank) status = set_newer_aside(c);
    if (!status && !c->ctx->mesh.world.rank) status = mc_checkpoint_clean(&c->ctx->error, c->run);
    if (!status && !c->ctx->mesh.world.rank)
        status = mc_checkpoint_publish(&c->ctx->error, c->run, c->step, c->best, false);
    if (!status) status = mc_ranks_meet(c->ctx);
    if (!status) c->ctx->rng_offset = c->rng_offset;
    if (!status) optim->open.rows = c->loss_rows;
    return status;
}
