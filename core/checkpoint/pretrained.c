#include "core/checkpoint/pretrained_internal.h"

#include <string.h>
#include "core/base/context_internal.h"

bool mc_save_options_check(mc_context *ctx, const mc_save_options *options)
{
    if (!options || options->max_shard_size >= 0) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT, "max_shard_size %lld: expected a number from 0 up",
                    (long long)options->max_shard_size);
}

/* config.json, by rank 0 alone, up to where it takes its name. */
static void begin_config(const mc_pretrained_folder *what, mc_file_writer *config, const char *path)
{
    mc_context *ctx = what->model->ctx;
    if (ctx->rank || mc_file_writer_init(&ctx->error, config, path)) return;
    mc_file_write(config, what->config, strlen(what->config));
    mc_file_write(config, "\n", 1);
    mc_file_sync(config);
}

static void write_files(const mc_pretrained_folder *what, const char *config_path,
                        const char *weights_path)
{
    mc_context *ctx = what->model->ctx;
    mc_weight_files *weights = mc_weights_write(what->model, &what->form, weights_path);
    mc_file_writer config = {.fd = -1};
    if (!mc_failed(ctx)) begin_config(what, &config, config_path);
    if (!mc_failed(ctx) && !ctx->rank) mc_file_rename(&config);
    mc_weight_files_rename(weights);
    mc_file_writer_release(&config);
    mc_weight_files_free(weights);
}

mc_status mc_pretrained_write(const mc_pretrained_folder *what, const char *folder)
{
    mc_context *ctx = what->model->ctx;
    char config_path[MC_PATH_MAX], weights_path[MC_PATH_MAX];
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!what->config) return mc_fail_nomem(ctx, "config.json");
    if ((!ctx->rank && mc_make_folders(&ctx->error, folder)) ||
        mc_path_join(&ctx->error, config_path, folder, "config.json") ||
        mc_path_join(&ctx->error, weights_path, folder, "model.safetensors"))
        return mc_error_status(ctx);
    write_files(what, config_path, weights_path);
    return mc_error_status(ctx);
}
