/* The thread that writes a checkpoint while the program continues.
 *
 * Communicators belong to the program's thread. So each rank reports to rank 0 that it has written
 * its part by creating a file in the checkpoint's folder. Rank 0 removes these files and
 * finishes. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "core/base/signals_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/checkpoint/training_internal.h"
#include "core/checkpoint/training_state.h"
#include "core/dist/world_internal.h"

static void pause_ms(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

/* ---- on the thread --------------------------------------------------------------------------- */

static mc_status mark_path(mc_saving *s, int rank, char path[MC_PATH_MAX])
{
    char name[48];
    snprintf(name, sizeof name, "rank-%d-has-written", rank);
    return mc_path_join(s->err, path, s->aside, name);
}

static mc_status make_mark(mc_saving *s)
{
    char path[MC_PATH_MAX];
    mc_status status = mark_path(s, s->ctx->mesh.world.rank, path);
    if (status) return status;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return mc_saving_failed_to(s, "create it", path);
    close(fd);
    return MC_OK;
}

/* Whether the job has failed; its error is then this checkpoint's too. */
static mc_status check_job(void *user)
{
    mc_saving *s = user;
    return mc_world_failed(s->ctx, s->err) ? s->err->status : MC_OK;
}

/* Waits until a rank has written its part. The wait ends if a rank dies or fails. */
static mc_status take_mark(mc_saving *s, int rank)
{
    char path[MC_PATH_MAX];
    mc_status status = mark_path(s, rank, path);
    for (int ms = 1; !status; ms = ms < 50 ? 2 * ms : ms) {
        if (unlink(path) == 0) return MC_OK;
        if (errno != ENOENT) return mc_saving_failed_to(s, "remove it", path);
        status = check_job(s);
        if (!status) pause_ms(ms);
    }
    return status;
}

static mc_status write_all(mc_saving *s)
{
    mc_status status = mc_save_queue_write(s->err, &s->queue, check_job, s);
    if (status || s->ctx->mesh.world.rank) return status ? status : make_mark(s);
    for (int rank = 1; rank < s->ctx->mesh.world.size && !status; rank++)
        status = take_mark(s, rank);
    if (!status) status = mc_save_queue_rename(&s->queue);
    return status ? status : mc_saving_finish(s);
}

static void *run(void *user)
{
    mc_saving *s = user;
    if (write_all(s)) mc_world_report_error(s->ctx, s->err);
    atomic_store(&s->done, true);
    return NULL;
}

/* ---- on the program's thread ----------------------------------------------------------------- */

void mc_saving_free(mc_saving *s)
{
    mc_save_queue_release(&s->queue);
    mc_remove_new_folders(s->aside, s->new_folders); /* after an error they may be empty */
    mc_error_clear(&s->error);
    cJSON_Delete(s->json);
    mc_free(s);
}

static void join(mc_saving *s)
{
    pthread_join(s->thread, NULL);
    s->ctx->saving = NULL;
}

/* Called when the context is freed. */
static void release(void *object)
{
    mc_saving *s = object;
    join(s);
    if (mc_error_is_set(&s->error))
        mc_log(s->ctx, MC_LOG_WARNING, "the checkpoint of step %lld was not saved: %s",
               (long long)s->step, s->error.message);
    mc_saving_free(s);
}

mc_status mc_saving_start(mc_saving *s)
{
    sigset_t before;
    s->err = &s->error;
    s->tick = check_job;
    s->tick_user = s;
    mc_signals_block(&before); /* signals stay with the program's own threads */
    int failure = pthread_create(&s->thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure)
        return mc_fail(s->ctx, MC_ERR_NOMEM, "cannot start a thread that saves: %s",
                       strerror(failure));
    s->ctx->saving = s;
    mc_own(s->ctx, &s->owned, s, release);
    return MC_OK;
}

/* Returns when rank 0's thread is done, which implies that all ranks' threads are. */
static mc_status wait_for_first(mc_saving *s)
{
    mc_ranks_work work;
    if (s->ctx->mesh.world.rank) return mc_ranks_work_wait(s->ctx);
    mc_ranks_work_begin(&work, s->ctx);
    mc_status status = MC_OK;
    for (; !status && !atomic_load(&s->done); status = mc_ranks_work_tick(&work)) pause_ms(1);
    if (!status) status = s->error.status; /* the others learn of it as of any error */
    return status ? status : mc_ranks_work_end(&work);
}

static void say_what_for(const mc_saving *s, mc_error *error)
{
    mc_error_while(error, "saving the checkpoint of step %lld to %s", (long long)s->step,
                   s->folder);
}

/* Joins the thread, takes over its result, and frees it. */
static mc_status end(mc_saving *s)
{
    mc_context *ctx = s->ctx;
    join(s);
    say_what_for(s, &s->error);
    mc_error_move(&ctx->error, &s->error);
    if (!mc_failed(ctx)) ctx->saved_step = s->step;
    mc_disown(&s->owned);
    mc_saving_free(s);
    return mc_error_status(ctx);
}

mc_status mc_checkpoint_wait(mc_context *ctx)
{
    mc_saving *s = ctx ? ctx->saving : NULL;
    if (!s) return mc_error_status(ctx);
    if (!mc_failed(ctx) && wait_for_first(s)) say_what_for(s, &ctx->error);
    return end(s);
}

/* With several ranks only mc_checkpoint_wait, which is collective, ends a successful save. */
mc_status mc_checkpoint_poll(mc_context *ctx, int64_t *step)
{
    mc_saving *s = ctx ? ctx->saving : NULL;
    if (s && atomic_load(&s->done)) {
        if (!ctx->mesh.world.comm || mc_error_is_set(&s->error))
            end(s);
        else if (!ctx->mesh.world.rank)
            ctx->saved_step = s->step;
    }
    if (step) *step = ctx ? ctx->saved_step : 0;
    return mc_error_status(ctx);
}
