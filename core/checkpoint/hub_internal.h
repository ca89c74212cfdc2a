/* Finding a pretrained model: a folder, or an identifier looked up in the Hugging Face cache.
 *
 * These functions do not use the network (core/hub does), and only read the cache. Its layout is
 * that of Hugging Face's own tools:
 *
 *     <root>/models--<org>--<name>/refs/<revision>        the commit id of a branch or tag
 *     <root>/models--<org>--<name>/snapshots/<commit>/    the files (often links into blobs/) */
#ifndef MC_CHECKPOINT_HUB_INTERNAL_H
#define MC_CHECKPOINT_HUB_INTERNAL_H

#include "core/base/error_internal.h"
#include "core/base/file_internal.h"

enum {
    MC_HUB_NAME_MAX = 128,     /* characters of an organisation or a name */
    MC_HUB_REVISION_MAX = 200, /* of a branch, a tag or a commit id */
};

/* The parts of an identifier. */
typedef struct mc_hub_id {
    char org[MC_HUB_NAME_MAX + 1]; /* "" for a bare name */
    char name[MC_HUB_NAME_MAX + 1];
    char revision[MC_HUB_REVISION_MAX + 1];
} mc_hub_id;

/* Where to search, and for what. Zeros, or a NULL pointer, mean the defaults. */
typedef struct mc_hub_where {
    const char *revision;  /* NULL: what follows '@' in the identifier, else "main" */
    const char *cache_dir; /* NULL: mc_hub_cache_root */
    /* Whether a snapshot's folder has all needed files; NULL: any folder has. */
    bool (*is_whole)(const void *user, const char *folder);
    const void *user;
} mc_hub_where;

/* The result of a search. */
typedef struct mc_hub_answer {
    bool is_path;             /* the identifier is an existing folder; `id` and `root` are empty */
    bool whole;               /* `folder` has all needed files */
    char folder[MC_PATH_MAX]; /* "": neither a folder nor in the cache */
    char root[MC_PATH_MAX];   /* of the cache */
    mc_hub_id id;
    char looked_at[2 * MC_PATH_MAX + 1024]; /* searched places, and why each failed, for messages */
} mc_hub_answer;

/* Finds the folder that holds the files of `identifier`.
 *
 * An identifier that is an existing folder, relative or absolute, is used unchanged. Anything else
 * must be `name`, `org/name`, or either with `@revision` (a branch, a tag or a commit id; "main"
 * without one). Ids from the time before the hub gave every model an organisation
 * ("bert-base-uncased", "gpt2") are looked up with and without their organisation, whichever form
 * is given. The given form comes first; a complete snapshot is preferred to an incomplete one.
 *
 * A snapshot with a link that leads out of its repository is not used.
 *
 * An identifier that is not in the cache is no error: answer->folder is "". Errors: MC_ERR_ARGUMENT
 * for an absent or empty identifier, one that names a file, a revision that no hub could have, and
 * two revisions (`@v1` and where->revision) that differ; MC_ERR_NOT_FOUND for a text that is
 * neither a folder nor an identifier. */
mc_status mc_hub_resolve(mc_error *err, const char *identifier, const mc_hub_where *where,
                         mc_hub_answer *answer);

/* Whether a path leads, through links, out of the repository's folder (which may be a link
 * itself). */
bool mc_hub_leads_out(const char *repository, const char *path);
/* Searches a snapshot's folder for such a link, and writes its path to `stray`. */
bool mc_hub_find_stray(const char *repository, const char *folder, char stray[MC_PATH_MAX]);

/* Whether a text has the form of an identifier. */
bool mc_hub_is_identifier(const char *text);

/* Sets an error with `status` that lists every searched place; `why` is a sentence of advice. */
mc_status mc_hub_not_found(mc_error *err, mc_status status, const char *identifier,
                           const mc_hub_answer *answer, const char *why);

/* The cache's root: $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else
 * $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. A variable that is set but empty
 * counts as unset; a leading "~/" in one is the home folder. It need not exist. */
mc_status mc_hub_cache_root(mc_error *err, char root[MC_PATH_MAX]);
/* A file or folder of $HF_HOME, else of $XDG_CACHE_HOME/huggingface, else of
 * ~/.cache/huggingface. */
mc_status mc_hub_home(mc_error *err, char path[MC_PATH_MAX], const char *name);
/* A path with a leading "~/" replaced by the home folder. */
mc_status mc_hub_expand(mc_error *err, char out[MC_PATH_MAX], const char *path);

/* The folder of a repository in a cache: <root>/models--<org>--<name>. False if it is too long. */
bool mc_hub_repository(char path[MC_PATH_MAX], const char *root, const char *org, const char *name);

#endif
