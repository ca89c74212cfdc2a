/* Saving a checkpoint of a run. */
#include "core/checkpoint/optim_state.h"
#include "core/checkpoint/ranks_internal.h"
#include "core/checkpoint/training_internal.h"
#include "core/checkpoint/training_state.h"
#include "core/optim/optimizer_internal.h"

/* training.json but for its list of files. */
static mc_status describe(mc_saving *s, const mc_checkpoint_options *o)
{
    cJSON *json = s->json = cJSON_CreateObject();
    bool good = json && cJSON_AddNumberToObject(json, "format", MC_TRAINING_FORMAT) &&
                cJSON_AddNumberToObject(json, "step", (double)o->step) &&
                mc_training_add_u64(json, "seed", s->ctx->seed) &&
                mc_training_add_u64(json, "rng_offset", s->ctx->rng_offset);
    cJSON *settings = good ? cJSON_AddObjectToObject(json, "settings") : NULL;
    for (int i = 0; settings && i < o->setting_count; i++)
        if (!cJSON_AddStringToObject(settings, o->settings[i].name, o->settings[i].value))
            settings = NULL;
    s->files = settings ? cJSON_AddObjectToObject(json, "files") : NULL;
    return s->files ? MC_OK : mc_fail_nomem(s->ctx, MC_TRAINING_JSON);
}

static mc_status find_paths(mc_saving *s, const char *folder)
{
    mc_status status = mc_path_join(s->err, s->folder, folder, "");
    if (!status) status = mc_checkpoint_path(s->err, s->path, folder, s->step, "");
    if (!status) status = mc_checkpoint_path(s->err, s->aside, folder, s->step, MC_TRAINING_ASIDE);
    return status;
}

/* What all ranks write together. */
static mc_status write_aside(mc_saving *s, const mc_checkpoint_options *o)
{
    char path[MC_PATH_MAX];
    mc_status status = mc_optim_manager_settle(o->optim);
    s->ctx->save_queue = o->background ? &s->queue : NULL;
    if (!status) status = o->save_files(o->user, s->aside);
    if (!status) status = mc_path_join(s->err, path, s->aside, MC_TRAINING_OPTIMIZER);
    if (!status) status = mc_optim_manager_save(o->optim, path);
    s->ctx->save_queue = NULL;
    if (status && !mc_failed(s->ctx))
        mc_fail(s->ctx, status, "%s: saving its files failed", s->aside);
    return status ? status : mc_ranks_meet(s->ctx);
}

/* Rank 0 makes a checkpoint of what has been written; the others wait. */
static mc_status finish(mc_saving *s)
{
    mc_ranks_work work;
    if (s->ctx->rank) return mc_ranks_work_wait(s->ctx);
    mc_ranks_work_begin(&work, s->ctx);
    s->tick = mc_ranks_work_tick;
    s->tick_user = &work;
    mc_status status = mc_saving_finish(s);
    return status ? status : mc_ranks_work_end(&work);
}

static mc_status save(mc_saving *s, const char *folder, const mc_checkpoint_options *o)
{
    bool first = s->ctx->rank == 0;
    mc_status status = find_paths(s, folder);
    if (!status && first) status = describe(s, o);
    if (!status && first) status = mc_saving_begin(s);
    if (!status) status = mc_ranks_meet(s->ctx);
    if (!status) status = write_aside(s, o);
    if (!status) status = o->background ? mc_saving_start(s) : finish(s);
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
    mc_status status = mc_checkpoint_wait(ctx);
    if (status) return status;
    mc_saving *s = mc_calloc(1, sizeof *s);
    if (!s) return mc_fail_nomem(ctx, "saving a checkpoint");
    s->ctx = ctx;
    s->err = &ctx->error;
    s->step = options->step;
    s->keep = options->keep;
    status = save(s, folder, options);
    if (status)
        mc_error_while(&ctx->error, "saving the checkpoint of step %lld to %s",
                       (long long)options->step, folder);
    if (ctx->saving != s) mc_saving_free(s);
    return status;
}
