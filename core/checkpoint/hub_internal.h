/* Where a pretrained model lies: a folder, or an identifier looked up in the Hugging Face cache.
 *
 * Nothing here touches the network. The cache is only read, in the layout that Hugging Face's own
 * tools leave behind:
 *
 *     <root>/models--<org>--<name>/refs/<revision>        the commit id of a branch or tag
 *     <root>/models--<org>--<name>/snapshots/<commit>/    the files (often links into blobs/)
 */
#ifndef MC_CHECKPOINT_HUB_INTERNAL_H
#define MC_CHECKPOINT_HUB_INTERNAL_H

#include "core/base/error_internal.h"
#include "core/base/file_internal.h"

/* Finds the folder that holds the files of `identifier` and copies its path to `folder`.
 *
 * An identifier that is a folder, relative or absolute, is used as it stands. Anything else has to
 * be `name`, `org/name`, or either with `@revision` (a branch, a tag or a commit id; "main" without
 * one). Ids from the time before the hub gave every model an organisation ("bert-base-uncased",
 * "gpt2") are looked up under their bare name and under their organisation's, whichever of the two
 * forms is given; the given one goes first.
 *
 * Errors: MC_ERR_ARGUMENT for an absent or empty identifier and for one that names a file;
 * MC_ERR_NOT_FOUND otherwise, with a message that lists every place looked at. */
mc_status mc_hub_resolve(mc_error *err, const char *identifier, char folder[MC_PATH_MAX]);

/* The cache's root: $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else
 * $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. A variable that is set but empty
 * counts as unset; a leading "~/" in one is the home folder. It need not exist. */
mc_status mc_hub_cache_root(mc_error *err, char root[MC_PATH_MAX]);

#endif
