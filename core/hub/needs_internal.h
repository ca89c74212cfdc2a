/* Which files of a repository are needed, and whether a folder has them. */
#ifndef MC_HUB_NEEDS_INTERNAL_H
#define MC_HUB_NEEDS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"
#include "core/base/name_index_internal.h"

typedef enum mc_hub_kind {
    MC_HUB_ANY = 0,   /* a model's, or in a repository without config.json a tokenizer's */
    MC_HUB_MODEL,     /* its tokenizer too, where there is one */
    MC_HUB_TOKENIZER, /* alone */
    MC_HUB_SENTENCE,  /* as MC_HUB_MODEL, and what sentence-transformers adds, where it does */
    MC_HUB_MATCHING,  /* the patterns */
} mc_hub_kind;

typedef struct mc_hub_needs {
    mc_hub_kind kind;
    const char *variant;         /* of a model's weights: see mc_safetensors_open; may be NULL */
    const char *const *patterns; /* MC_HUB_MATCHING: NULL at the end */
} mc_hub_needs;

enum { MC_HUB_HASH_MAX = 64 };

/* A file of a repository. */
typedef struct mc_hub_file {
    char *name;                     /* relative, with '/'; checked: it stays in its folder */
    bool wanted;                    /* it is needed */
    bool known;                     /* hash and size are */
    char hash[MC_HUB_HASH_MAX + 1]; /* SHA-256 (64 digits) or git's (40) */
    uint64_t size;
    char *content_url; /* where its contents are now */
} mc_hub_file;

typedef struct mc_hub_list {
    const char *repository; /* for messages */
    mc_hub_file *files;
    size_t count, capacity;
    mc_name_index by_name;
    const mc_hub_file *index; /* of sharded weights; NULL: none are */
} mc_hub_list;

/* Adds a file. MC_ERR_FORMAT for a name that would leave its folder, or that is there already. */
mc_status mc_hub_list_add(mc_error *err, mc_hub_list *list, const char *name);
void mc_hub_list_release(mc_hub_list *list);

/* Marks the files that are needed; of sharded weights only the index. MC_ERR_NOT_FOUND where the
 * repository has not what it should. */
mc_status mc_hub_choose(mc_error *err, const mc_hub_needs *needs, mc_hub_list *list);
/* Marks the shards that list->index, which lies at `path`, names. */
mc_status mc_hub_choose_shards(mc_error *err, mc_hub_list *list, const char *path);

/* Goes through the names, of those that MC_HUB_ANY looks for, that the repository does not have;
 * *next is 0 at first. NULL after the last. The cache remembers them, in huggingface_hub's way, by
 * empty files .no_exist/<commit>/<name>. */
const char *mc_hub_next_absent(const mc_hub_list *list, size_t *next);

/* Whether a folder has what is needed (`needs` is an mc_hub_needs), as far as can be known without
 * the repository's list. */
bool mc_hub_is_whole(const void *needs, const char *folder);

#endif
