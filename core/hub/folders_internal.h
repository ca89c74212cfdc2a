/* Folders of a cache, which others may have write access to as well. */
#ifndef MC_HUB_FOLDERS_INTERNAL_H
#define MC_HUB_FOLDERS_INTERNAL_H

#include "core/base/error_internal.h"

/* Makes the folder `path`, which is below the folder `root`, with all folders between. The root may
 * be a symbolic link; one below it is an error, for what is written there would leave the cache. */
mc_status mc_hub_make_folders(mc_error *err, const char *root, const char *path);
/* The same for the folder that the file `path` is in. */
mc_status mc_hub_make_parent(mc_error *err, const char *root, const char *path);

#endif
