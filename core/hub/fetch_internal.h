/* Downloading: the progress of one call, and the functions that download a repository. */
#ifndef MC_HUB_FETCH_INTERNAL_H
#define MC_HUB_FETCH_INTERNAL_H

#include <time.h>
#include "core/base/context_internal.h"
#include "core/checkpoint/hub_internal.h"
#include "core/hub/needs_internal.h"

/* One call's progress, and the state of its waiting. */
typedef struct mc_hub_watch {
    mc_context *ctx;
    mc_download progress;
    double shown;     /* when the callback was called last */
    bool waited;      /* the log has reported that another process holds the lock */
    bool together;    /* see mc_hub_request */
    double last_sign; /* when the other ranks last heard from this one */
} mc_hub_watch;

/* Seconds of a monotonic clock. */
static inline double mc_hub_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Calls the callback when it is due, and returns the context's status: an error if the callback
 * returned false or another rank has failed. `watch` is an mc_hub_watch. */
mc_status mc_hub_tick(void *watch);

/* Downloads the needed files of answer->id into the cache answer->root: contents, links, and the
 * ref. The caller must hold the repository's lock. Copies the snapshot's path to `folder`. Errors
 * go to the context. (Built with libcurl only.) */
mc_status mc_hub_fetch(mc_hub_watch *watch, const mc_hub_answer *answer, const mc_hub_needs *needs,
                       char folder[MC_PATH_MAX]);

/* Hashes all blobs of a repository's folder in the cache and removes those whose hash differs from
 * their name; *wrong is their number. The caller should hold the repository's lock. (Built with
 * libcurl only.) */
mc_status mc_hub_verify(mc_hub_watch *watch, const char *repository, size_t *wrong);

/* Requests the hub's list of models. Errors go to the context. (Built with libcurl only.) */
mc_status mc_hub_knock(mc_hub_watch *watch);

#endif
