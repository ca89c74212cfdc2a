/* How all that loads by name finds its folder: see hub.h. */
#ifndef MC_HUB_FIND_INTERNAL_H
#define MC_HUB_FIND_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/checkpoint/hub_internal.h"
#include "core/hub/needs_internal.h"

typedef struct mc_hub_request {
    mc_hub_needs needs;
    const char *revision, *cache_dir; /* NULL: as mc_hub_options says */
    bool local_files_only, verify;
    /* All ranks of the job ask, and none goes on before all have found it: ranks that share a cache
     * wait for the one that downloads, those of other hosts may take longer than ranks wait for one
     * another. Without it nothing here is collective. */
    bool together;
    bool of_hub; /* the identifier is the hub's: an error does not begin with a missing folder */
} mc_hub_request;

/* Finds the folder that has what is needed, downloading what is missing. Where nothing may be
 * downloaded, a snapshot that is not whole is the answer too: who reads it says what is missing.
 * Sets the context's error. */
mc_status mc_hub_find(mc_context *ctx, const char *identifier, const mc_hub_request *request,
                      char folder[MC_PATH_MAX]);

/* After a failure to read what the identifier names: where that is a local folder, with neither
 * what is needed nor a model, which is called like an identifier of the hub, the error says so. */
void mc_hub_say_hidden(mc_error *err, const char *identifier, const mc_hub_needs *needs);

/* Whether a folder holds an adapter; and the identifier of the model that it belongs to. An adapter
 * that names none is MC_ERR_NOT_FOUND. */
bool mc_hub_is_adapter(const char *folder);
mc_status mc_hub_adapter_base(mc_error *err, const char *folder, char base[MC_PATH_MAX]);

/* The repository that one of ModelCenter's names stands for, in `room`, or the identifier itself.
 * NULL: the name is one of ModelCenter's that no repository has. */
const char *mc_hub_repository_of(const char *identifier, char room[2 * MC_HUB_NAME_MAX]);

#endif
