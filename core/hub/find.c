#include "core/hub/find_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "core/dist/ranks_internal.h"
#include "core/dist/world_internal.h"
#include "core/hub/fetch_internal.h"
#include "core/hub/hub.h"
#include "core/hub/lock_internal.h"
#include "core/hub/settings_internal.h"

/* ---- progress -------------------------------------------------------------------------------- */

static void show(mc_hub_watch *w)
{
    mc_context *ctx = w->ctx;
    w->shown = mc_hub_now();
    if (!ctx->download || ctx->download(ctx->download_user, &w->progress) || w->progress.finished)
        return;
    mc_fail(ctx, MC_ERR_INTERRUPTED, "%s: the download was interrupted; it goes on where it was",
            w->progress.repository);
}

/* Lets the waiting ranks, which found their files, know that this one is still working. */
static void tell_ranks(mc_hub_watch *w)
{
    enum { SECONDS = 1 }; /* less than any sensible timeout */
    uint8_t busy = 1;
    if (!w->together || mc_hub_now() - w->last_sign < SECONDS) return;
    w->last_sign = mc_hub_now();
    mc_ranks_any(w->ctx, &busy, 1);
}

/* Waits until all ranks have finished. */
static mc_status meet_ranks(mc_context *ctx)
{
    uint8_t busy = ctx->mesh.world.comm != NULL;
    while (busy && !mc_failed(ctx)) {
        busy = 0;
        mc_ranks_any(ctx, &busy, 1);
    }
    return mc_error_status(ctx);
}

mc_status mc_hub_tick(void *watch)
{
    mc_hub_watch *w = watch;
    mc_context *ctx = w->ctx;
    if (mc_hub_now() - w->shown < 0.1 || mc_failed(ctx)) return mc_error_status(ctx);
    if (!mc_world_failed(ctx, &ctx->error)) {
        show(w);
        tell_ranks(w);
    }
    return mc_error_status(ctx);
}

/* ---- finding --------------------------------------------------------------------------------- */

/* Why downloads are not possible; NULL: they are. */
static const char *why_not(const mc_hub_request *request)
{
    if (request->local_files_only) return "Only local files were asked for (local_files_only)";
    const char *variable = mc_hub_offline_by();
    if (variable)
        return strcmp(variable, "HF_HUB_OFFLINE") == 0
                   ? "HF_HUB_OFFLINE is set, so nothing was asked of the hub"
                   : "TRANSFORMERS_OFFLINE is set, so nothing was asked of the hub";
#ifdef MC_HAVE_CURL
    return NULL;
#else
    return "This build cannot download, it has no libcurl (MC_ENABLE_CURL): give the folder that "
           "holds the model, or set HF_HOME or HF_HUB_CACHE to a cache that has it";
#endif
}

/* The result if downloads are not possible. */
static mc_status answer_offline(mc_context *ctx, const char *identifier,
                                const mc_hub_answer *answer, const char *why)
{
    bool unable = strstr(why, "MC_ENABLE_CURL");
    if (!*answer->folder)
        return mc_hub_not_found(&ctx->error, unable ? MC_ERR_UNSUPPORTED : MC_ERR_NOT_FOUND,
                                identifier, answer, why);
    mc_log(ctx, MC_LOG_WARNING, "%s: not all of \"%s\" is in the cache. %s", answer->folder,
           identifier, why);
    return MC_OK;
}

#ifdef MC_HAVE_CURL
/* A repository in the cache: its folder, and the path of its lock. */
typedef struct place {
    char folder[MC_PATH_MAX], lock[MC_PATH_MAX];
} place;

/* The place of the snapshot that was found, else of the identifier. */
static mc_status find_place(mc_error *err, const mc_hub_answer *answer, place *p)
{
    bool good = mc_hub_repository(p->folder, answer->root, answer->id.org, answer->id.name);
    if (*answer->folder) {
        memcpy(p->folder, answer->folder, strlen(answer->folder) + 1);
        for (int i = 0; i < 2; i++) *strrchr(p->folder, '/') = '\0'; /* drops snapshots/COMMIT */
    }
    int written = good ? snprintf(p->lock, MC_PATH_MAX, "%s/.locks%s/modelcenter.lock",
                                  answer->root, strrchr(p->folder, '/'))
                       : -1;
    if (written >= 0 && written < MC_PATH_MAX) return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", answer->root);
}

/* Called while another process holds the lock. */
static mc_status wait(void *watch)
{
    mc_hub_watch *w = watch;
    if (!w->waited)
        mc_log(w->ctx, MC_LOG_INFO, "%s: waiting for another process that downloads it",
               w->progress.repository);
    w->waited = true;
    return mc_hub_tick(watch);
}

/* Returns -1 with the error set. */
static int take_lock(mc_hub_watch *watch, const mc_hub_answer *answer, place *p)
{
    mc_error *err = &watch->ctx->error;
    if (find_place(err, answer, p)) return -1;
    return mc_hub_lock(err, answer->root, p->lock, wait, watch);
}

/* Clears the lock's note, even after an error: contents are synced before they get their names, so
 * there is nothing to verify. */
static void end_work(int lock, const char *path)
{
    mc_error ignored = {0};
    if (lock >= 0) mc_hub_lock_note(&ignored, lock, path, MC_HUB_NO_WORK);
    mc_error_clear(&ignored);
    mc_hub_unlock(lock);
}

/* Verifies under the lock, unless another process has done so during the wait for it, and then
 * searches the cache again. */
static mc_status verify_locked(mc_hub_watch *watch, const mc_hub_where *where,
                               const mc_hub_request *request, mc_hub_answer *answer, size_t *wrong)
{
    place p;
    mc_error *err = &watch->ctx->error;
    int lock = take_lock(watch, answer, &p);
    if (lock < 0) return err->status;
    bool due = request->verify || mc_hub_lock_noted(lock);
    mc_status status = due ? mc_hub_lock_note(err, lock, p.lock, MC_HUB_VERIFIES) : MC_OK;
    if (due && !status) status = mc_hub_verify(watch, p.folder, wrong);
    if (!status) status = mc_hub_resolve(err, watch->progress.repository, where, answer);
    if (status)
        mc_hub_unlock(lock); /* keeps the note */
    else
        end_work(lock, p.lock);
    return status;
}

/* Hashes the cached files if the caller requests it or a process died while it downloaded them.
 * *wrong becomes the number of removed files. */
static mc_status verify(mc_context *ctx, const char *identifier, const mc_hub_where *where,
                        const mc_hub_request *request, mc_hub_answer *answer, size_t *wrong)
{
    place p;
    mc_hub_watch watch = {
        .ctx = ctx, .progress = {.repository = identifier}, .together = request->together};
    *wrong = 0;
    if (answer->is_path || !*answer->folder) return MC_OK;
    if (find_place(&ctx->error, answer, &p)) return mc_error_status(ctx);
    bool stale = mc_hub_lock_is_stale(p.lock);
    if (request->verify || (stale && access(p.lock, W_OK) == 0))
        return verify_locked(&watch, where, request, answer, wrong);
    /* a cache to which we cannot write */
    return stale ? mc_hub_verify(&watch, p.folder, wrong) : MC_OK;
}

/* Downloads under the lock, unless another process has done so during the wait for it. */
static mc_status download(mc_context *ctx, const char *identifier, const mc_hub_where *where,
                          const mc_hub_request *request, mc_hub_answer *answer)
{
    char name[2 * MC_HUB_NAME_MAX + 2];
    place p = {.lock = ""};
    mc_error *err = &ctx->error;
    snprintf(name, sizeof name, "%s%s%s", answer->id.org, *answer->id.org ? "/" : "",
             answer->id.name);
    mc_hub_watch watch = {
        .ctx = ctx, .progress = {.repository = name}, .together = request->together};
    /* rank 0 shows the progress, so it should get the lock */
    if (ctx->mesh.world.rank) nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
    int lock = take_lock(&watch, answer, &p);
    size_t wrong;
    if (lock >= 0 && mc_hub_lock_noted(lock)) mc_hub_verify(&watch, p.folder, &wrong);
    if (lock >= 0 && mc_hub_resolve(err, identifier, where, answer) == MC_OK && !answer->whole &&
        mc_hub_lock_note(err, lock, p.lock, MC_HUB_DOWNLOADS) == MC_OK)
        mc_hub_fetch(&watch, answer, where->user, answer->folder);
    end_work(lock, p.lock);
    if (!*answer->folder && !request->of_hub)
        mc_error_prefix(
            err,
            "\"%.300s\": no such folder, and not in the Hugging Face cache: looked at %s; "
            "asked of the hub: ",
            identifier, answer->looked_at);
    mc_error_while(err, "downloading \"%s\", for there is no such folder", identifier);
    watch.progress.file = NULL;
    watch.progress.finished = true;
    show(&watch);
    return mc_error_status(ctx);
}
#endif

/* Searches the cache, then the hub. `identifier` is the repository's, or the path of a folder. */
static mc_status find(mc_context *ctx, const char *identifier, const mc_hub_request *request,
                      char folder[MC_PATH_MAX])
{
    mc_hub_answer answer;
    mc_hub_where where = {.revision = request->revision,
                          .cache_dir = request->cache_dir,
                          .is_whole = mc_hub_is_whole,
                          .user = &request->needs};
    size_t wrong = 0;
    mc_status status = mc_hub_resolve(&ctx->error, identifier, &where, &answer);
#ifdef MC_HAVE_CURL
    if (!status) status = verify(ctx, identifier, &where, request, &answer, &wrong);
#else
    if (!status && request->verify)
        status = mc_fail(ctx, MC_ERR_UNSUPPORTED,
                         "%s: this build computes no checksums, it has no libcurl (MC_ENABLE_CURL)",
                         identifier);
#endif
    const char *why = status || answer.whole ? NULL : why_not(request);
    if (why && wrong)
        status =
            mc_fail(ctx, MC_ERR_FORMAT,
                    "%s: %zu of its files in the cache had other contents than their names say "
                    "and were removed. %s",
                    identifier, wrong, why);
    else if (why)
        status = answer_offline(ctx, identifier, &answer, why);
#ifdef MC_HAVE_CURL
    else if (!status && !answer.whole)
        status = download(ctx, identifier, &where, request, &answer);
#endif
    memcpy(folder, answer.folder, strlen(answer.folder) + 1);
    return status;
}

mc_status mc_hub_find(mc_context *ctx, const char *identifier, const mc_hub_request *request,
                      char folder[MC_PATH_MAX])
{
    char room[2 * MC_HUB_NAME_MAX];
    struct stat info;
    folder[0] = '\0';
    if (mc_failed(ctx)) return mc_error_status(ctx);
    bool is_name = identifier && *identifier && stat(identifier, &info) != 0;
    const char *repository = is_name ? mc_hub_repository_of(identifier, room) : identifier;
    if (is_name && !repository)
        return mc_fail(ctx, MC_ERR_NOT_FOUND,
                       "\"%s\": no such folder, and the name of a model of ModelCenter's that has "
                       "no repository on the Hugging Face hub: give the folder that holds it",
                       identifier);
    mc_status status = find(ctx, repository, request, folder);
    return request->together ? meet_ranks(ctx) : status;
}

void mc_hub_say_hidden(mc_error *err, const char *identifier, const mc_hub_needs *needs)
{
    static const char hides[] = "hides the hub's identifier of that name";
    static const mc_hub_needs model = {.kind = MC_HUB_MODEL};
    if (err->status != MC_ERR_NOT_FOUND || strstr(err->message, hides) || !identifier ||
        !mc_hub_is_identifier(identifier) || !mc_path_is_folder(identifier) ||
        mc_hub_is_whole(needs, identifier) || mc_hub_is_whole(&model, identifier))
        return;
    mc_error_prefix(err, "the local folder \"%.200s\" %s: ", identifier, hides);
}

mc_status mc_hub_download(mc_context *ctx, const char *identifier, const mc_hub_options *options,
                          char *folder, size_t room)
{
    mc_hub_options o = options ? *options : (mc_hub_options){0};
    mc_hub_request request = {.revision = o.revision,
                              .cache_dir = o.cache_dir,
                              .local_files_only = o.local_files_only,
                              .verify = o.verify,
                              .of_hub = true};
    char found[MC_PATH_MAX];
    if (!ctx) return MC_ERR_NOMEM;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!folder || !room) return mc_fail(ctx, MC_ERR_ARGUMENT, "no room for a folder's path");
    folder[0] = '\0';
    if (o.include && !o.include[0])
        return mc_fail(ctx, MC_ERR_ARGUMENT, "an empty list of patterns, expected one or more");
    if (o.include) request.needs = (mc_hub_needs){.kind = MC_HUB_MATCHING, .patterns = o.include};
    mc_status status = mc_hub_find(ctx, identifier, &request, found);
    if (!status && strlen(found) >= room)
        status = mc_fail(ctx, MC_ERR_ARGUMENT, "%s: expected room for a path of %zu bytes", found,
                         strlen(found) + 1);
    if (status) return status;
    memcpy(folder, found, strlen(found) + 1);
    return MC_OK;
}

bool mc_hub_cached(const char *identifier, const mc_hub_options *options, char *folder, size_t room)
{
    char name[2 * MC_HUB_NAME_MAX];
    mc_hub_where where = {0};
    mc_hub_answer answer;
    mc_error ignored = {0};
    struct stat info;
    if (!identifier || !*identifier || !folder || !room) return false;
    folder[0] = '\0';
    if (options) where = (mc_hub_where){options->revision, options->cache_dir, NULL, NULL};
    if (stat(identifier, &info) != 0) identifier = mc_hub_repository_of(identifier, name);
    bool found = identifier && mc_hub_resolve(&ignored, identifier, &where, &answer) == MC_OK &&
                 *answer.folder && strlen(answer.folder) < room;
    if (found) memcpy(folder, answer.folder, strlen(answer.folder) + 1);
    mc_error_clear(&ignored);
    return found;
}
