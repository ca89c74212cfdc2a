/* Folders of a cache that other users may write to as well. */
#ifndef MC_HUB_FOLDERS_INTERNAL_H
#define MC_HUB_FOLDERS_INTERNAL_H

#include "core/base/error_internal.h"

/* Creates the folder `path` below the folder `root`, with all folders between. The root may be a
 * symbolic link. A link below it is an error, because files written there would leave the cache. */
mc_status mc_hub_make_folders(mc_error *err, const char *root, const char *path);
/* The same for the folder that the file `path` is in. */
mc_status mc_hub_make_parent(mc_error *err, const char *root, const char *path);

#endif
