#include "core/checkpoint/model_folder_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "core/base/context_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/checkpoint/shards_internal.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* A folder with a model has one of these. */
static const char *const configs[] = {"config.json", "adapter_config.json"};
enum { CONFIGS = sizeof configs / sizeof *configs };

static const char *const weights[] = {"model.safetensors",         "model.safetensors.index.json",
                                      "adapter_model.safetensors", "adapter_model.bin",
                                      "pytorch_model.bin",         "pytorch_model.bin.index.json",
                                      "pytorch_model.pt"};

static const char *const beside[] = {"generation_config.json",
                                     "task.json",
                                     "finetune.json",
                                     "vocab.txt",
                                     "vocab.json",
                                     "merges.txt",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "spiece.model",
                                     "sentencepiece.bpe.model",
                                     "tokenizer.model",
                                     "vocab.model",
                                     "cog-pretrain.model",
                                     "chat_template.jinja",
                                     "preprocessor_config.json",
                                     "modules.json",
                                     "config_sentence_transformers.json"};

static bool is_one_of(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static bool is_config(const char *name) { return is_one_of(name, configs, CONFIGS); }

/* "pytorch_model-00001-of-00002.bin" */
static bool is_torch_shard(const char *name)
{
    unsigned number, count;
    int end = 0;
    return sscanf(name, "pytorch_model-%5u-of-%5u.bin%n", &number, &count, &end) == 2 && end &&
           !name[end];
}

bool mc_model_folder_is_weights(const char *name)
{
    return is_one_of(name, weights, sizeof weights / sizeof *weights) ||
           mc_shard_count_of(name, weights[0]) || is_torch_shard(name);
}

/* "sentence_bert_config.json" */
static bool is_sentence_config(const char *name)
{
    static const char start[] = "sentence_", end[] = "_config.json";
    size_t length = strlen(name), least = sizeof start + sizeof end - 2;
    return length > least && strncmp(name, start, sizeof start - 1) == 0 &&
           strcmp(name + length - (sizeof end - 1), end) == 0;
}

bool mc_model_folder_is_beside(const char *name)
{
    return is_one_of(name, beside, sizeof beside / sizeof *beside) || is_sentence_config(name);
}

bool mc_model_folder_has_name(const char *name)
{
    return name &&
           (is_config(name) || mc_model_folder_is_weights(name) || mc_model_folder_is_beside(name));
}

void mc_model_folder_find(const char *folder, char name[256])
{
    if (!name) return;
    name[0] = '\0';
    DIR *dir = folder ? opendir(folder) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!mc_model_folder_has_name(entry->d_name)) continue;
        if (!*name || is_config(entry->d_name)) snprintf(name, 256, "%.255s", entry->d_name);
    }
    if (dir) closedir(dir);
}

/* ---- removing -------------------------------------------------------------------------------- */

/* Two folders, and the names of the first that an operation takes. */
typedef struct folders {
    mc_error *err;
    const char *from, *to;
    bool (*takes)(const char *name);
    bool strict, differ; /* strict: a file that only `to` lacks counts as a difference */
} folders;

static mc_status remove_name(mc_error *err, const char *folder, const char *name)
{
    char path[MC_PATH_MAX];
    mc_status status = mc_path_join(err, path, folder, name);
    if (status || unlink(path) == 0 || errno == ENOENT) return status;
    return mc_error_set(err, MC_ERR_IO, "%s: cannot remove it: %s", path, strerror(errno));
}

static mc_status remove_taken(void *user, const char *name)
{
    const folders *f = user;
    return f->takes(name) ? remove_name(f->err, f->to, name) : MC_OK;
}

static bool is_any(const char *name) { return name != NULL; }

mc_status mc_model_folder_remove(mc_error *err, const char *folder)
{
    folders f = {.err = err, .to = folder, .takes = is_any};
    mc_status status = mc_folder_each(err, folder, remove_taken, &f);
    if (status || rmdir(folder) == 0 || errno == ENOENT) return status;
    return mc_error_set(err, MC_ERR_IO, "%s: cannot remove it: %s", folder, strerror(errno));
}

mc_status mc_model_folder_unname(mc_error *err, const char *folder)
{
    char path[MC_PATH_MAX];
    mc_status status = mc_path_join(err, path, folder, configs[0]);
    for (int i = 0; i < CONFIGS && !status; i++) status = remove_name(err, folder, configs[i]);
    return status ? status : mc_path_sync_folder(err, path);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool same_bytes(const char *a, const char *b)
{
    mc_error ignored = {0};
    size_t size = 0, other = 0;
    char *x = mc_file_read(&ignored, a, SIZE_MAX, &size);
    char *y = x ? mc_file_read(&ignored, b, SIZE_MAX, &other) : NULL;
    bool same = y && size == other && memcmp(x, y, size) == 0;
    mc_free(x);
    mc_free(y);
    mc_error_clear(&ignored);
    return same;
}

/* Compares a file of `from`, unless it holds weights. */
static mc_status compare(void *user, const char *name)
{
    folders *f = user;
    char from[MC_PATH_MAX], to[MC_PATH_MAX];
    if (!mc_model_folder_has_name(name) || mc_model_folder_is_weights(name)) return MC_OK;
    mc_status status = mc_path_join(f->err, from, f->from, name);
    if (!status) status = mc_path_join(f->err, to, f->to, name);
    if (status || (!f->strict && !mc_path_is_file(to)) || same_bytes(from, to)) return status;
    f->differ = true;
    return MC_OK;
}

mc_status mc_model_folder_make_way(mc_error *err, const char *from, const char *folder,
                                   bool all_of_it)
{
    char name[256];
    mc_model_folder_find(folder, name);
    if (!*name) return MC_OK;
    folders in = {.err = err, .from = from, .to = folder, .strict = true};
    folders out = {.err = err, .from = folder, .to = from, .strict = all_of_it};
    mc_status status = mc_folder_each(err, from, compare, &in);
    if (!status) status = mc_folder_each(err, folder, compare, &out);
    if (status || !(in.differ || out.differ)) return status;
    folders old = {.err = err, .to = folder, .takes = mc_model_folder_has_name};
    status = mc_model_folder_unname(err, folder);
    return status ? status : mc_folder_each(err, folder, remove_taken, &old);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static bool is_beside(const char *name)
{
    return !is_config(name) && !mc_model_folder_is_weights(name);
}

static bool is_index(const char *name)
{
    size_t length = strlen(name), end = sizeof ".index.json" - 1;
    return length > end && strcmp(name + length - end, ".index.json") == 0;
}

static bool is_part(const char *name)
{
    return mc_model_folder_is_weights(name) && !is_index(name);
}

static mc_status move_taken(void *user, const char *name)
{
    const folders *f = user;
    char from[MC_PATH_MAX], to[MC_PATH_MAX];
    if (!f->takes(name)) return MC_OK;
    mc_status status = mc_path_join(f->err, from, f->from, name);
    if (!status) status = mc_path_join(f->err, to, f->to, name);
    if (status || rename(from, to) == 0) return status;
    bool full = errno == ENOTEMPTY || errno == EEXIST; /* a module's folder exists already */
    if (full && (status = mc_model_folder_remove(f->err, to))) return status;
    if (full && rename(from, to) == 0) return MC_OK;
    return mc_error_set(f->err, MC_ERR_IO, "%s: cannot put the finished file in its place: %s", to,
                        strerror(errno));
}

/* Old weights in another number of files are not replaced by name: removes the old model first. */
static mc_status remove_other_weights(mc_error *err, const char *from, const char *folder)
{
    char one[MC_PATH_MAX], old[MC_PATH_MAX];
    mc_status status = mc_path_join(err, one, from, weights[0]);
    if (!status) status = mc_path_join(err, old, folder, weights[0]);
    if (status || (mc_path_is_file(one) && mc_path_is_file(old))) return status;
    folders f = {.err = err, .to = folder, .takes = mc_model_folder_is_weights};
    status = mc_model_folder_unname(err, folder);
    return status ? status : mc_folder_each(err, folder, remove_taken, &f);
}

/* Removes an entry of the temporary folder, which may contain folders of modules ("1_Pooling"). */
static mc_status remove_entry(void *user, const char *name)
{
    const folders *f = user;
    char path[MC_PATH_MAX];
    mc_status status = mc_path_join(f->err, path, f->to, name);
    if (status) return status;
    return mc_path_is_folder(path) ? mc_model_folder_remove(f->err, path)
                                   : remove_name(f->err, f->to, name);
}

static mc_status remove_aside(mc_error *err, const char *path)
{
    folders f = {.err = err, .to = path};
    mc_status status = mc_folder_each(err, path, remove_entry, &f);
    return status ? status : mc_model_folder_remove(err, path);
}

static mc_status move_all(mc_error *err, const char *from, const char *folder)
{
    /* readers look for an index first, and take a config as the sign of a complete model */
    bool (*const order[])(const char *) = {is_beside, is_part, is_index, is_config};
    folders f = {.err = err, .from = from, .to = folder};
    char path[MC_PATH_MAX];
    mc_status status = mc_make_folders(err, folder);
    if (!status) status = mc_model_folder_make_way(err, from, folder, true);
    if (!status) status = remove_other_weights(err, from, folder);
    for (size_t i = 0; i < sizeof order / sizeof *order && !status; i++) {
        f.takes = order[i];
        status = mc_folder_each(err, from, move_taken, &f);
    }
    if (!status) status = mc_path_join(err, path, folder, configs[0]);
    if (!status) status = mc_path_sync_folder(err, path);
    return status ? status : remove_aside(err, from);
}

static mc_status aside_path(mc_error *err, const char *folder, char path[MC_PATH_MAX])
{
    return mc_path_join(err, path, folder, "model.tmp");
}

/* After an error, the folders that mc_model_folder_begin made. */
static mc_status remove_new(mc_context *ctx, const char *path)
{
    mc_remove_new_folders(path, ctx->new_folders);
    ctx->new_folders = 0;
    return mc_error_status(ctx);
}

mc_status mc_model_folder_begin(mc_context *ctx, const char *folder, char *aside, size_t room)
{
    char path[MC_PATH_MAX];
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!folder || !aside)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "mc_model_folder_begin: expected a folder and a room");
    mc_status status = aside_path(&ctx->error, folder, path);
    if (!status && strlen(path) >= room)
        status = mc_fail(ctx, MC_ERR_ARGUMENT, "path too long: %.100s...", path);
    size_t made = 0, aside_made = 0;
    if (!status && !ctx->mesh.world.rank) status = mc_make_new_folders(&ctx->error, folder, &made);
    if (!status && !ctx->mesh.world.rank) status = remove_aside(&ctx->error, path);
    if (!status && !ctx->mesh.world.rank)
        status = mc_make_new_folders(&ctx->error, path, &aside_made);
    if (!status) memcpy(aside, path, strlen(path) + 1);
    ctx->new_folders = made ? made : aside_made;
    return mc_ranks_meet(ctx) ? remove_new(ctx, path) : MC_OK;
}

/* Removes the files written before an error, and the folders made for them. */
static mc_status give_up(mc_context *ctx, const char *path)
{
    mc_error ignored = {0};
    if (!ctx->mesh.world.rank) remove_aside(&ignored, path);
    mc_error_clear(&ignored);
    return remove_new(ctx, path);
}

mc_status mc_model_folder_commit(mc_context *ctx, const char *folder)
{
    char path[MC_PATH_MAX];
    mc_error ignored = {0};
    if (!ctx) return MC_ERR_ARGUMENT;
    if (!folder || aside_path(&ignored, folder, path)) {
        mc_error_clear(&ignored);
        return mc_fail(ctx, MC_ERR_ARGUMENT, "mc_model_folder_commit: expected a folder");
    }
    if (!mc_failed(ctx)) mc_ranks_meet(ctx); /* all ranks have written */
    if (mc_failed(ctx)) return give_up(ctx, path);
    ctx->new_folders = 0;
    if (!ctx->mesh.world.rank) move_all(&ctx->error, path, folder);
    return mc_ranks_meet(ctx);
}
