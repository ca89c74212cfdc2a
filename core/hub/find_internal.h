/* How every function that loads by name finds its folder: see hub.h. */
#ifndef MC_HUB_FIND_INTERNAL_H
#define MC_HUB_FIND_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/checkpoint/hub_internal.h"
#include "core/hub/needs_internal.h"

typedef struct mc_hub_request {
    mc_hub_needs needs;
    const char *revision, *cache_dir; /* NULL: as mc_hub_options says */
    bool local_files_only, verify;
    /* All ranks of the job call, and none returns before all have found the files. Ranks that share
     * a cache wait for the one that downloads; ranks of other hosts may wait longer than the
     * communication timeout. If false, nothing is collective. */
    bool together;
    bool of_hub; /* the identifier is the hub's: errors do not mention a missing folder */
} mc_hub_request;

/* Finds a folder with the needed files and downloads missing ones. If downloads are not possible,
 * it may return an incomplete snapshot: the reader then reports what is missing. Sets the context's
 * error. */
mc_status mc_hub_find(mc_context *ctx, const char *identifier, const mc_hub_request *request,
                      char folder[MC_PATH_MAX]);

/* Call this after a failure to read an identifier. If a local folder of that name hides an
 * identifier of the hub, and has neither the needed files nor a model, the error explains that. */
void mc_hub_say_hidden(mc_error *err, const char *identifier, const mc_hub_needs *needs);

/* Whether a folder holds an adapter; and the identifier of the adapter's base model. An adapter
 * without one is MC_ERR_NOT_FOUND. */
bool mc_hub_is_adapter(const char *folder);
mc_status mc_hub_adapter_base(mc_error *err, const char *folder, char base[MC_PATH_MAX]);
/* Call this after a failure to find the base of the adapter in `folder`: the error explains what
 * names the base, --base (`given`) or the adapter. */
void mc_hub_say_base(mc_error *err, const char *folder, bool given);

/* The repository of one of ModelCenter's model names, in `room`, or the identifier itself. NULL: a
 * name of ModelCenter that no repository has. */
const char *mc_hub_repository_of(const char *identifier, char room[2 * MC_HUB_NAME_MAX]);

#endif
