/* Downloading: what one call has fetched so far, and the repository that it fetches. */
#ifndef MC_HUB_FETCH_INTERNAL_H
#define MC_HUB_FETCH_INTERNAL_H

#include <time.h>
#include "core/base/context_internal.h"
#include "core/checkpoint/hub_internal.h"
#include "core/hub/needs_internal.h"

/* One call's progress, and what it asks whether to go on. */
typedef struct mc_hub_watch {
    mc_context *ctx;
    mc_download progress;
    double shown;  /* when the callback was called last */
    bool waited;   /* it was said that another process has the lock */
    bool together; /* see mc_hub_request */
    double told;   /* when the other ranks heard last that this one is at work */
} mc_hub_watch;

/* Seconds of a clock that only goes forward. */
static inline double mc_hub_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Calls the callback, if it is time to, and returns the context's status, which is not MC_OK any
 * more when the callback says so or another rank has failed. `watch` is an mc_hub_watch. */
mc_status mc_hub_tick(void *watch);

/* Downloads what is needed of answer->id into the cache answer->root: contents, links, and the ref.
 * The repository's lock must be held. Copies the snapshot's path to `folder`. Errors go to the
 * context. (Built with libcurl only.) */
mc_status mc_hub_fetch(mc_hub_watch *watch, const mc_hub_answer *answer, const mc_hub_needs *needs,
                       char folder[MC_PATH_MAX]);

/* Hashes all blobs of a repository's folder in the cache and removes those that are not what their
 * names say, whose number is *wrong. The repository's lock should be held. (Built with libcurl
 * only.) */
mc_status mc_hub_verify(mc_hub_watch *watch, const char *repository, size_t *wrong);

/* Asks the hub for its list of models. Errors go to the context. (Built with libcurl only.) */
mc_status mc_hub_knock(mc_hub_watch *watch);

#endif
