#include "core/checkpoint/module_file.h"

#include <stdio.h>
#include "core/base/context_internal.h"
#include "core/checkpoint/pretrained_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/formats/torch_writer_internal.h"
#include "core/checkpoint/weight_map_internal.h"
#include "core/nn/module_internal.h"

/* Each parameter keeps its own name. */
static const mc_weight_rule no_rules[] = {{0}};
static const mc_weight_map own_names = {.rules = no_rules, .base_prefix = "", .with_factors = true};

/* MC_OK if the call can go on. */
static mc_status check(const mc_module *module, const char *path, const char *call)
{
    if (!module) return MC_ERR_ARGUMENT;
    if (!mc_failed(module->ctx) && !path)
        mc_fail(module->ctx, MC_ERR_ARGUMENT, "%s: the path is NULL", call);
    return mc_error_status(module->ctx);
}

mc_status mc_module_save(mc_module *module, const char *path)
{
    return mc_module_save_as(module, path, NULL);
}

mc_status mc_module_save_as(mc_module *module, const char *path, const mc_save_options *options)
{
    mc_status status = check(module, path, "mc_module_save");
    if (status) return status;
    mc_weight_form form = {.map = &own_names};
    if (!mc_save_options_check(module->ctx, options)) return mc_error_status(module->ctx);
    if (options) form.max_shard_size = options->max_shard_size;
    mc_weight_files *files = mc_weights_write(module, &form, path);
    mc_weight_files_rename(files);
    mc_weight_files_free(files);
    return mc_error_status(module->ctx);
}

mc_status mc_torch_file_from(mc_context *ctx, const char *from, const char *path)
{
    mc_ranks_work work;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (ctx->mesh.world.rank) return mc_ranks_work_wait(ctx);
    mc_ranks_work_begin(&work, ctx);
    mc_tensor_file *file = mc_tensor_file_open(ctx, from, NULL);
    mc_status status = mc_error_status(ctx);
    if (file) status = mc_torch_write_file_ticking(file, path, mc_ranks_work_tick, &work);
    mc_tensor_file_free(file);
    return status ? status : mc_ranks_work_end(&work);
}

mc_status mc_module_save_torch(mc_module *module, const char *path)
{
    char aside[MC_PATH_MAX];
    mc_status status = check(module, path, "mc_module_save_torch");
    if (status) return status;
    mc_context *ctx = module->ctx;
    int length = snprintf(aside, sizeof aside, "%s.safetensors", path);
    if (length < 0 || (size_t)length >= sizeof aside)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "%.100s...: the path is too long", path);
    if (mc_path_is_file(aside)) /* it is somebody else's file */
        return mc_fail(ctx, MC_ERR_ARGUMENT, "%s: is in the way of what is written there meanwhile",
                       aside);
    if (mc_module_save(module, aside) == MC_OK) mc_torch_file_from(ctx, aside, path);
    if (!ctx->mesh.world.rank) remove(aside);
    return mc_ranks_meet(ctx); /* before the temporary's name can be another save's */
}

mc_status mc_module_load(mc_module *module, const char *path)
{
    mc_status status = check(module, path, "mc_module_load");
    if (status) return status;
    mc_tensor_file *file = mc_tensor_file_open(module->ctx, path, NULL);
    mc_parameter_iterator it = {0};
    const mc_parameter *first = mc_module_next_parameter(module, &it);
    if (file && first) mc_weights_unwrap(&own_names, first->name, file, path);
    if (file) status = mc_weights_load(module, &own_names, 0, file, path, NULL);
    mc_tensor_file_free(file);
    return mc_error_status(module->ctx);
}
