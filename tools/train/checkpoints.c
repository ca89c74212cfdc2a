#include "tools/train/checkpoints.h"

#include <inttypes.h>
#include <stdio.h>

bool checkpoints_find(checkpoints *c, bool resume, char *message, size_t room)
{
    *message = '\0';
    if (!c->folder) return true;
    if (resume) {
        c->resumed = mc_checkpoint_open(c->ctx, c->folder);
        return !mc_failed(c->ctx);
    }
    if (c->replace || !mc_checkpoint_exists(c->folder)) return true;
    snprintf(message, room,
             "--output %s holds a checkpoint of a run: go on with --resume, or choose another "
             "folder",
             c->folder);
    return false;
}

void checkpoints_restored(checkpoints *c)
{
    if (!c->resumed) return;
    c->saved = c->told = mc_checkpoint_step(c->resumed);
    run_log_line(c->log, "resumed after step %" PRId64 " from %s", c->saved,
                 mc_checkpoint_folder(c->resumed));
}

bool checkpoints_begin(checkpoints *c)
{
    if (!c->folder) return true;
    if (!c->resumed && c->replace && mc_rank(c->ctx) == 0)
        mc_checkpoint_remove_all(c->ctx, c->folder);
    return !mc_failed(c->ctx);
}

/* The tokenizer first: when the weights are there, the folder is whole. */
static mc_status save_files(void *user, const char *folder)
{
    const checkpoints *c = user;
    bool first = mc_rank(c->ctx) == 0;
    mc_status status = c->tokenizer && first ? mc_tokenizer_save(c->tokenizer, folder) : MC_OK;
    if (!status && first && c->save_beside) status = c->save_beside(c->user, folder);
    mc_save_options options = {.max_shard_size = c->max_shard_size};
    return status ? status : mc_model_save_as(c->model, folder, &options);
}

void checkpoints_save_model(checkpoints *c)
{
    if (!c->folder || mc_failed(c->ctx)) return;
    char aside[4096];
    run_log_line(c->log, "saving to %s", c->folder);
    if (mc_model_folder_begin(c->ctx, c->folder, aside, sizeof aside) == MC_OK)
        save_files(c, aside);
    mc_model_folder_commit(c->ctx, c->folder);
}

void checkpoints_save(checkpoints *c, int64_t step, int64_t best, const settings *list)
{
    double start = progress_bar_now();
    if (!c->folder || !list || mc_failed(c->ctx) || c->saved == step) return;
    checkpoints_end(c); /* of the one before */
    mc_checkpoint_options options = {.step = step,
                                     .keep = c->keep,
                                     .best = best,
                                     .replaces_model = c->replace && !c->resumed && !c->saved,
                                     .optim = c->optim,
                                     .save_files = save_files,
                                     .user = c,
                                     .settings = list->items,
                                     .setting_count = list->count,
                                     .background = true};
    if (mc_checkpoint_save(c->ctx, c->folder, &options) == MC_OK) c->saved = step;
    c->pause = progress_bar_now() - start;
}

void checkpoints_tell(checkpoints *c)
{
    int64_t step;
    if (mc_checkpoint_poll(c->ctx, &step) != MC_OK || step <= c->told) return;
    c->told = step;
    run_log_line(c->log, "saved step %" PRId64 " to %s (training paused for %.0f ms)", step,
                 c->folder, 1e3 * c->pause);
}

void checkpoints_end(checkpoints *c)
{
    mc_checkpoint_wait(c->ctx);
    checkpoints_tell(c);
}

void checkpoints_report_newest(const checkpoints *c)
{
    if (!c->folder || !mc_failed(c->ctx) || mc_rank(c->ctx) || !mc_checkpoint_exists(c->folder))
        return;
    /* the run's own context does nothing any more */
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.single = true, .device = "cpu"});
    mc_checkpoint *newest = mc_checkpoint_open(ctx, c->folder);
    if (newest)
        fprintf(stderr,
                "the newest checkpoint is of step %" PRId64 ", in %s; --resume goes on there\n",
                mc_checkpoint_step(newest), mc_checkpoint_folder(newest));
    mc_checkpoint_free(newest);
    mc_context_free(ctx);
}
