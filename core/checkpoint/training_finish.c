/* Rank 0's work for a checkpoint that all ranks write: its folder, training.json, the rename. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"
#include "core/checkpoint/model_folder_internal.h"
#include "core/checkpoint/training_internal.h"
#include "core/checkpoint/training_state.h"

mc_status mc_saving_failed_to(mc_saving *s, const char *what, const char *path)
{
    return mc_error_set(s->err, MC_ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* ---- removing -------------------------------------------------------------------------------- */

typedef struct removal {
    mc_error *err;
    const char *folder;
} removal;

/* Removes the leftovers of a process that died while saving. */
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
    return status ? status : mc_model_folder_remove(r->err, path);
}

/* Renames a checkpoint before removing it, so that its rest is not taken for a checkpoint. */
static mc_status remove_checkpoint(mc_saving *s, int64_t step)
{
    char path[MC_PATH_MAX], aside[MC_PATH_MAX];
    mc_status status = mc_checkpoint_path(s->err, path, s->folder, step, "");
    if (!status) status = mc_checkpoint_path(s->err, aside, s->folder, step, MC_TRAINING_ASIDE);
    if (!status && rename(path, aside) != 0) return mc_saving_failed_to(s, "remove it", path);
    return status ? status : mc_model_folder_remove(s->err, aside);
}

static mc_status remove_old(mc_saving *s)
{
    int64_t *steps;
    size_t count;
    int kept = 0;
    mc_status status = mc_checkpoint_steps(s->err, s->folder, &steps, &count);
    for (size_t i = 0; !status && i < count; i++) {
        if (steps[i] >= s->step || steps[i] == s->best || kept++ < s->keep) continue;
        status = remove_checkpoint(s, steps[i]);
    }
    mc_free(steps);
    return status;
}

/* ---- training.json --------------------------------------------------------------------------- */

bool mc_training_add_u64(cJSON *object, const char *name, uint64_t value)
{
    char text[32]; /* a string: many JSON readers use doubles */
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return cJSON_AddStringToObject(object, name, text);
}

static mc_status out_of_memory(mc_saving *s)
{
    return mc_error_set(s->err, MC_ERR_NOMEM, "%s: out of memory for %s", s->aside,
                        MC_TRAINING_JSON);
}

/* Records size and checksum of a written file. */
static mc_status print_file(void *user, const char *name)
{
    mc_saving *s = user;
    char path[MC_PATH_MAX];
    mc_file_print print;
    mc_status status = mc_path_join(s->err, path, s->aside, name);
    if (!status) status = mc_file_print_of(s->err, path, s->tick, s->tick_user, &print);
    if (status) return status;
    cJSON *file = cJSON_AddObjectToObject(s->files, name);
    if (file && mc_training_add_u64(file, "bytes", print.bytes) &&
        mc_training_add_u64(file, "checksum", print.checksum))
        return MC_OK;
    return out_of_memory(s);
}

static mc_status write_json(mc_saving *s)
{
    char path[MC_PATH_MAX];
    mc_status status = mc_folder_each(s->err, s->aside, print_file, s);
    if (status) return status;
    char *text = cJSON_Print(s->json);
    if (!text) return out_of_memory(s);
    mc_file_writer writer;
    status = mc_path_join(s->err, path, s->aside, MC_TRAINING_JSON);
    if (!status) {
        status = mc_file_writer_init(s->err, &writer, path);
        if (!status) status = mc_file_write(&writer, text, strlen(text));
        if (!status) status = mc_file_commit(&writer);
        mc_file_writer_release(&writer);
    }
    cJSON_free(text);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------- */

/* Syncs the folder's entries to disk. */
static mc_status sync_folder(mc_saving *s, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return mc_saving_failed_to(s, "open it", path);
    /* some file systems cannot sync folders and return EINVAL, which is no failure */
    mc_status status =
        fsync(fd) == 0 || errno == EINVAL ? MC_OK : mc_saving_failed_to(s, "sync it", path);
    close(fd);
    return status;
}

/* Renames the new checkpoint atomically; one of the same step is exchanged with it. */
static mc_status take_name(mc_saving *s)
{
    if (rename(s->aside, s->path) == 0) return sync_folder(s, s->folder);
    if (errno != ENOTEMPTY && errno != EEXIST)
        return mc_saving_failed_to(s, "name the checkpoint", s->path);
    if (renameat2(AT_FDCWD, s->aside, AT_FDCWD, s->path, RENAME_EXCHANGE) != 0) {
        mc_status status = mc_model_folder_remove(s->err, s->path);
        if (status) return status;
        if (rename(s->aside, s->path) != 0)
            return mc_saving_failed_to(s, "name the checkpoint", s->path);
    }
    mc_status status = sync_folder(s, s->folder);
    return status ? status : mc_model_folder_remove(s->err, s->aside);
}

mc_status mc_checkpoint_remove_all(mc_context *ctx, const char *folder)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!folder) return mc_fail(ctx, MC_ERR_ARGUMENT, "mc_checkpoint_remove_all: folder is NULL");
    mc_saving s = {.ctx = ctx, .err = &ctx->error};
    int64_t *steps = NULL;
    size_t count = 0;
    mc_status status = mc_path_join(s.err, s.folder, folder, "");
    if (!status) status = mc_checkpoint_steps(s.err, folder, &steps, &count);
    for (size_t i = 0; !status && i < count; i++) status = remove_checkpoint(&s, steps[i]);
    mc_free(steps);
    return status ? status : mc_checkpoint_clean(s.err, folder);
}

mc_status mc_checkpoint_clean(mc_error *err, const char *folder)
{
    removal leftovers = {err, folder};
    return mc_folder_each(err, folder, remove_leftover, &leftovers);
}

mc_status mc_saving_begin(mc_saving *s)
{
    size_t made = 0;
    mc_status status = mc_make_new_folders(s->err, s->folder, &s->new_folders);
    if (!status) status = mc_checkpoint_clean(s->err, s->folder);
    if (!status) status = mc_make_new_folders(s->err, s->aside, &made);
    if (!s->new_folders) s->new_folders = made;
    return status;
}

mc_status mc_saving_finish(mc_saving *s)
{
    mc_status status = write_json(s);
    if (!status) status = sync_folder(s, s->aside);
    if (!status) status = take_name(s);
    if (!status) status = mc_checkpoint_publish(s->err, s->folder, s->step, s->best, s->replaces);
    return status ? status : remove_old(s);
}
