/* Writing a checkpoint of a run. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/json_internal.h"
#include "core/checkpoint/optim_state.h"
#include "core/checkpoint/ranks_internal.h"
#include "core/checkpoint/training_internal.h"
#include "core/checkpoint/training_state.h"
#include "core/optim/optimizer_internal.h"

typedef struct saving {
    mc_context *ctx;
    mc_error *err;
    const char *folder;
    const mc_checkpoint_options *options;
    char aside[MC_PATH_MAX], path[MC_PATH_MAX];
    cJSON *files; /* of training.json */
    mc_ranks_work work;
} saving;

static mc_status failed_to(saving *s, const char *what, const char *path)
{
    return mc_error_set(s->err, MC_ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* ---- removing -------------------------------------------------------------------------------- */

typedef struct removal {
    mc_error *err;
    const char *folder;
} removal;

static mc_status remove_file(void *user, const char *name)
{
    const removal *r = user;
    char path[MC_PATH_MAX];
    mc_status status = mc_path_join(r->err, path, r->folder, name);
    if (status || unlink(path) == 0 || errno == ENOENT) return status;
    return mc_error_set(r->err, MC_ERR_IO, "%s: cannot remove it: %s", path, strerror(errno));
}

/* Removes a folder and its files; none there is fine. */
static mc_status remove_folder(mc_error *err, const char *path)
{
    removal r = {err, path};
    mc_status status = mc_folder_each(err, path, remove_file, &r);
    if (status || rmdir(path) == 0 || errno == ENOENT) return status;
    return mc_error_set(err, MC_ERR_IO, "%s: cannot remove it: %s", path, strerror(errno));
}

/* What a process left that died while it saved. */
static mc_status remove_leftover(void *user, const char *name)
{
    const removal *r = user;
    static const char start[] = "checkpoint-";
    size_t length = strlen(name), end = sizeof MC_TRAINING_ASIDE - 1;
    if (strncmp(name, start, sizeof start - 1) != 0 || length < end ||
        strcmp(name + length - end, MC_TRAINING_ASIDE) != 0)
        return MC_OK;
    char path[MC_PATH_MAX];
    mc_status status = mc_path_join(r->err, path, r->folder, name);
    return status ? status : remove_folder(r->err, path);
}

/* A checkpoint that goes loses its name first, so that what is left of it is not taken for one. */
static mc_status remove_checkpoint(saving *s, int64_t step)
{
    char path[MC_PATH_MAX], aside[MC_PATH_MAX];
    mc_status status = mc_checkpoint_path(s->err, path, s->folder, step, "");
    if (!status) status = mc_checkpoint_path(s->err, aside, s->folder, step, MC_TRAINING_ASIDE);
    if (!status && rename(path, aside) != 0) return failed_to(s, "remove it", path);
    return status ? status : remove_folder(s->err, aside);
}

static mc_status remove_old(saving *s)
{
    int64_t *steps;
    size_t count;
    int kept = 0;
    mc_status status = mc_checkpoint_steps(s->err, s->folder, &steps, &count);
    for (size_t i = 0; !status && i < count; i++) {
        if (steps[i] >= s->options->step || kept++ < s->options->keep) continue;
        status = remove_checkpoint(s, steps[i]);
    }
    mc_free(steps);
    return status;
}

/* ---- training.json --------------------------------------------------------------------------- */

static bool add_u64(cJSON *object, const char *name, uint64_t value)
{
    char text[32]; /* JSON's numbers are doubles to many readers */
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return cJSON_AddStringToObject(object, name, text);
}

/* Notes size and checksum of a file that was written. */
static mc_status print_file(void *user, const char *name)
{
    saving *s = user;
    char path[MC_PATH_MAX];
    mc_file_print print;
    mc_status status = mc_path_join(s->err, path, s->aside, name);
    if (!status) status = mc_file_print_of(s->err, path, mc_ranks_work_tick, &s->work, &print);
    if (status) return status;
    cJSON *file = cJSON_AddObjectToObject(s->files, name);
    if (file && add_u64(file, "bytes", print.bytes) && add_u64(file, "checksum", print.checksum))
        return MC_OK;
    return mc_fail_nomem(s->ctx, MC_TRAINING_JSON);
}

static cJSON *describe(saving *s)
{
    const mc_checkpoint_options *o = s->options;
    cJSON *json = cJSON_CreateObject();
    bool good = json && cJSON_AddNumberToObject(json, "format", MC_TRAINING_FORMAT) &&
                cJSON_AddNumberToObject(json, "step", (double)o->step) &&
                add_u64(json, "seed", s->ctx->seed) &&
                add_u64(json, "rng_offset", s->ctx->rng_offset);
    cJSON *settings = good ? cJSON_AddObjectToObject(json, "settings") : NULL;
    for (int i = 0; settings && i < o->setting_count; i++)
        if (!cJSON_AddStringToObject(settings, o->settings[i].name, o->settings[i].value))
            settings = NULL;
    s->files = settings ? cJSON_AddObjectToObject(json, "files") : NULL;
    if (s->files && mc_folder_each(s->err, s->aside, print_file, s) == MC_OK) return json;
    if (!mc_failed(s->ctx)) mc_fail_nomem(s->ctx, MC_TRAINING_JSON);
    cJSON_Delete(json);
    return NULL;
}

static mc_status write_json(saving *s)
{
    char path[MC_PATH_MAX];
    cJSON *json = describe(s);
    char *text = json ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    if (!text) return mc_failed(s->ctx) ? s->err->status : mc_fail_nomem(s->ctx, MC_TRAINING_JSON);
    mc_file_writer writer;
    mc_status status = mc_path_join(s->err, path, s->aside, MC_TRAINING_JSON);
    if (!status) {
        status = mc_file_writer_init(s->err, &writer, path);
        if (!status) status = mc_file_write(&writer, text, strlen(text));
        if (!status) status = mc_file_commit(&writer);
        mc_file_writer_release(&writer);
    }
    cJSON_free(text);
    return status;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* What all ranks write together. */
static mc_status write_aside(saving *s)
{
    const mc_checkpoint_options *o = s->options;
    char path[MC_PATH_MAX];
    mc_status status = mc_optim_manager_settle(o->optim);
    if (!status) status = o->save_files(o->user, s->aside);
    if (!status) status = mc_path_join(s->err, path, s->aside, MC_TRAINING_OPTIMIZER);
    return status ? status : mc_optim_manager_save(o->optim, path);
}

/* The folder's entries reach the disk. */
static mc_status sync_folder(saving *s, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return failed_to(s, "open it", path);
    /* some file systems cannot sync folders and say EINVAL: nothing more can be done there */
    mc_status status = fsync(fd) == 0 || errno == EINVAL ? MC_OK : failed_to(s, "sync it", path);
    close(fd);
    return status;
}

/* The new checkpoint takes its name in one step; one of the same step changes places with it. */
static mc_status take_name(saving *s)
{
    if (rename(s->aside, s->path) == 0) return sync_folder(s, s->folder);
    if (errno != ENOTEMPTY && errno != EEXIST) return failed_to(s, "name the checkpoint", s->path);
    if (renameat2(AT_FDCWD, s->aside, AT_FDCWD, s->path, RENAME_EXCHANGE) != 0) {
        mc_status status = remove_folder(s->err, s->path);
        if (status) return status;
        if (rename(s->aside, s->path) != 0) return failed_to(s, "name the checkpoint", s->path);
    }
    mc_status status = sync_folder(s, s->folder);
    return status ? status : remove_folder(s->err, s->aside);
}

/* An empty folder, by rank 0. */
static mc_status begin(saving *s)
{
    removal leftovers = {s->err, s->folder};
    mc_status status = mc_make_folders(s->err, s->folder);
    if (!status) status = mc_folder_each(s->err, s->folder, remove_leftover, &leftovers);
    return status ? status : mc_make_folders(s->err, s->aside);
}

/* What makes a checkpoint of what all have written, by rank 0. */
static mc_status finish(saving *s)
{
    mc_ranks_work_begin(&s->work, s->ctx);
    mc_status status = write_json(s);
    if (!status) status = sync_folder(s, s->aside);
    if (!status) status = take_name(s);
    if (!status) status = mc_checkpoint_publish(s->err, s->folder, s->path);
    if (!status) status = remove_old(s);
    return status ? status : mc_ranks_work_end(&s->work);
}

static mc_status save(saving *s)
{
    const mc_checkpoint_options *o = s->options;
    bool first = s->ctx->rank == 0;
    mc_status status = mc_checkpoint_path(s->err, s->path, s->folder, o->step, "");
    if (!status)
        status = mc_checkpoint_path(s->err, s->aside, s->folder, o->step, MC_TRAINING_ASIDE);
    if (!status && first) status = begin(s);
    if (!status) status = mc_ranks_meet(s->ctx);
    if (!status) status = write_aside(s);
    if (!status) status = mc_ranks_meet(s->ctx);
    if (!status) status = first ? finish(s) : mc_ranks_work_wait(s->ctx);
    return status;
}

mc_status mc_checkpoint_save(mc_context *ctx, const char *folder,
                             const mc_checkpoint_options *options)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!folder || !options || !options->optim || !options->save_files || options->step < 1 ||
        options->keep < 0)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "mc_checkpoint_save: expected a folder, an OptimManager, save_files, a step "
                       "of 1 or more and a keep of 0 or more");
    saving s = {.ctx = ctx, .err = &ctx->error, .folder = folder, .options = options};
    mc_status status = save(&s);
    if (status && !mc_failed(ctx)) mc_fail(ctx, status, "%s: saving its files failed", s.aside);
    if (status)
        mc_error_while(&ctx->error, "saving the checkpoint of step %lld to %s",
                       (long long)options->step, folder);
    return status;
}
