#include "core/checkpoint/pretrained_internal.h"

#include <string.h>
#include "core/base/context_internal.h"
#include "core/base/memory_internal.h"
#include "core/checkpoint/model_folder_internal.h"
#include "core/dist/ranks_internal.h"

bool mc_save_options_check(mc_context *ctx, const mc_save_options *options)
{
    if (!options || options->max_shard_size >= 0) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT, "max_shard_size %lld: expected a number from 0 up",
                    (long long)options->max_shard_size);
}

/* Rank 0 writes a config, up to the rename. */
static void begin_config(mc_context *ctx, mc_file_writer *config, const char *folder,
                         const char *name, const char *text)
{
    char path[MC_PATH_MAX];
    if (!text || ctx->mesh.world.rank || mc_failed(ctx) ||
        mc_path_join(&ctx->error, path, folder, name) ||
        mc_file_writer_init(&ctx->error, config, path))
        return;
    mc_file_write(config, text, strlen(text));
    mc_file_write(config, "\n", 1);
    mc_file_sync(config);
}

/* Whether the folder's config differs from the new one. */
static bool differs(const char *folder, const char *name, const char *text)
{
    mc_error ignored = {0};
    char path[MC_PATH_MAX];
    size_t size = 0, length = text ? strlen(text) : 0;
    enum { MOST = 1 << 24 };
    if (mc_path_join(&ignored, path, folder, name) || !mc_path_is_file(path)) return false;
    char *old = mc_file_read(&ignored, path, MOST, &size);
    bool same = old && text && size == length + 1 && memcmp(old, text, length) == 0;
    mc_free(old);
    mc_error_clear(&ignored);
    return !same;
}

static void write_files(const mc_pretrained_folder *what, const char *folder,
                        const char *weights_path)
{
    mc_context *ctx = what->model->ctx;
    mc_weight_files *weights = mc_weights_write(what->model, &what->form, weights_path);
    const struct {
        const char *name, *text;
    } files[] = {{"config.json", what->config},
                 {"generation_config.json", what->generation},
                 {"preprocessor_config.json", what->preprocessor},
                 {"adapter_config.json", what->adapter}};
    enum { FILES = sizeof files / sizeof *files };
    mc_file_writer writers[FILES];
    for (int i = 0; i < FILES; i++) {
        writers[i] = (mc_file_writer){.aside = {.fd = -1}};
        begin_config(ctx, &writers[i], folder, files[i].name, files[i].text);
    }
    bool other = false, first = !ctx->mesh.world.rank;
    for (int i = 0; i < FILES; i++) other = other || differs(folder, files[i].name, files[i].text);
    /* the folder must not look complete while weights and config are of different models */
    if (other && first && !mc_failed(ctx)) mc_model_folder_unname(&ctx->error, folder);
    mc_weight_files_rename(weights);
    for (int i = FILES; i-- > 0;)
        if (!mc_failed(ctx) && first && files[i].text) mc_file_rename(&writers[i]);
    for (int i = 0; i < FILES; i++) mc_file_writer_release(&writers[i]);
    mc_weight_files_free(weights);
    /* configs are renamed last; the files of a background checkpoint are renamed later, together */
    if (!ctx->save_queue) mc_ranks_meet(ctx);
}

mc_status mc_pretrained_write(const mc_pretrained_folder *what, const char *folder)
{
    mc_context *ctx = what->model->ctx;
    char weights_path[MC_PATH_MAX];
    size_t made = 0;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!what->config) return mc_fail_nomem(ctx, "config.json");
    if (mc_path_join(&ctx->error, weights_path, folder,
                     what->adapter ? "adapter_model.safetensors" : "model.safetensors") ||
        (!ctx->mesh.world.rank && mc_make_new_folders(&ctx->error, folder, &made)))
        return mc_error_status(ctx);
    write_files(what, folder, weights_path);
    if (mc_failed(ctx)) mc_remove_new_folders(folder, made);
    return mc_error_status(ctx);
}
