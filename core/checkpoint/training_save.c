/* Saving a checkpoint of a run. */
#include "core/checkpoint/optim_state.h"
#include "core/dist/ranks_internal.h"
#include "core/checkpoint/training_internal.h"
#include "core/checkpoint/training_state.h"
#include "core/device/cpu/cpu_internal.h"
#include "core/dist/world_internal.h"
#include "core/optim/optimizer_internal.h"

/* Creates training.json except for its list of files. */
static mc_status describe(mc_saving *s, const mc_checkpoint_options *o)
{
    cJSON *json = s->json = cJSON_CreateObject();
    bool good = json && cJSON_AddNumberToObject(json, "format", MC_TRAINING_FORMAT) &&
                cJSON_AddNumberToObject(json, "step", (double)o->step) &&
                cJSON_AddNumberToObject(json, "best", (double)o->best) &&
                cJSON_AddNumberToObject(json, "loss_rows", (double)o->optim->open.rows) &&
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

/* Writes the files that all ranks write together. */
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

/* Rank 0 turns the files into a checkpoint; the others wait. */
static mc_status finish(mc_saving *s)
{
    mc_ranks_work work;
    if (s->ctx->mesh.world.rank) return mc_ranks_work_wait(s->ctx);
    mc_ranks_work_begin(&work, s->ctx);
    s->tick = mc_ranks_work_tick;
    s->tick_user = &work;
    mc_status status = mc_saving_finish(s);
    return status ? status : mc_ranks_work_end(&work);
}

/* Counts the bytes of optimizer state that this rank writes. */
static mc_status count_bytes(void *user, const mc_state_item *item)
{
    *(uint64_t *)user += (uint64_t)item->own_count * item->size;
    return MC_OK;
}

/* Whether every host has memory for its ranks' copies: optimizer state, and weights, estimated as
 * at most half as much. The system grants memory that it doesn't have, so this must be checked
 * first. */
static mc_status find_room(mc_saving *s, mc_optim_manager *optim, bool *room)
{
    uint64_t bytes = 0, available = mc_cpu_free_memory(NULL);
    mc_status status = mc_optim_manager_each_state(optim, count_bytes, NULL, &bytes);
    bytes = (bytes + bytes / 2) * (uint64_t)mc_world_ranks_here(s->ctx);
    uint8_t lacks = available && bytes > available / 8 * 7;
    if (!status) status = mc_ranks_any(s->ctx, &lacks, 1);
    *room = !lacks;
    if (lacks && !status)
        mc_log(s->ctx, MC_LOG_WARNING,
               "no host memory for a copy of the checkpoint of step %lld, of about %.3g GB a rank: "
               "the step waits until it is written",
               (long long)s->step, 1e-9 * (double)bytes / mc_world_ranks_here(s->ctx));
    return status;
}

static mc_status save(mc_saving *s, const char *folder, mc_checkpoint_options *o)
{
    bool first = s->ctx->mesh.world.rank == 0;
    mc_status status = find_paths(s, folder);
    if (!status && o->background) status = find_room(s, o->optim, &o->background);
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
        options->keep < 0 || options->best < MC_CHECKPOINT_BEST_BESIDE ||
        options->best > options->step)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "mc_checkpoint_save: expected a folder, an OptimManager, save_files, a step "
                       "of 1 or more, a keep of 0 or more and a best up to the step");
    mc_status status = mc_checkpoint_wait(ctx);
    if (status) return status;
    mc_saving *s = mc_calloc(1, sizeof *s);
    if (!s) return mc_fail_nomem(ctx, "saving a checkpoint");
    s->ctx = ctx;
    s->err = &ctx->error;
    s->step = options->step;
    s->best = options->best;
    s->replaces = options->replaces_model;
    s->keep = options->keep;
    mc_checkpoint_options chosen = *options;
    status = save(s, folder, &chosen);
    if (!status && !chosen.background) ctx->saved_step = s->step;
    if (status)
        mc_error_while(&ctx->error, "saving the checkpoint of step %lld to %s",
                       (long long)options->step, folder);
    if (ctx->saving != s) mc_saving_free(s);
    return status;
}
