#include "core/checkpoint/pretrained_internal.h"

#include <string.h>
#include "core/base/context_internal.h"

static void write_files(const mc_pretrained_folder *what, const char *config_path,
                        const char *weights_path)
{
    mc_context *ctx = what->model->ctx;
    mc_safetensors_writer *weights =
        mc_weights_write(what->model, what->map, what->layers, what->prefixed, weights_path);
    mc_file_writer config;
    if (mc_file_writer_init(&ctx->error, &config, config_path) == MC_OK) {
        mc_file_write(&config, what->config, strlen(what->config));
        mc_file_write(&config, "\n", 1);
        mc_file_sync(&config);
        mc_safetensors_writer_sync(weights);
        mc_file_rename(&config);
        mc_safetensors_writer_rename(weights);
    }
    mc_file_writer_release(&config);
    mc_safetensors_writer_free(weights);
}

mc_status mc_pretrained_write(const mc_pretrained_folder *what, const char *folder)
{
    mc_context *ctx = what->model->ctx;
    char config_path[MC_PATH_MAX], weights_path[MC_PATH_MAX];
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!what->config) return mc_fail_nomem(ctx, "config.json");
    if (mc_make_folders(&ctx->error, folder) ||
        mc_path_join(&ctx->error, config_path, folder, "config.json") ||
        mc_path_join(&ctx->error, weights_path, folder, "model.safetensors"))
        return mc_error_status(ctx);
    write_files(what, config_path, weights_path);
    return mc_error_status(ctx);
}
