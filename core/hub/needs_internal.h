/* Which files of a repository are needed, and whether a folder has them. */
#ifndef MC_HUB_NEEDS_INTERNAL_H
#define MC_HUB_NEEDS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"
#include "core/base/name_index_internal.h"

typedef enum mc_hub_kind {
    MC_HUB_ANY = 0,   /* a model; in a repository without config.json, a tokenizer */
    MC_HUB_MODEL,     /* with its tokenizer, if any */
    MC_HUB_TOKENIZER, /* alone */
    MC_HUB_SENTENCE,  /* MC_HUB_MODEL and the files of sentence-transformers, if any */
    MC_HUB_MATCHING,  /* the files that match the patterns */
} mc_hub_kind;

typedef struct mc_hub_needs {
    mc_hub_kind kind;
    const char *variant;         /* of a model's weights: see mc_safetensors_open; may be NULL */
    const char *const *patterns; /* for MC_HUB_MATCHING, NULL-terminated */
} mc_hub_needs;

enum { MC_HUB_HASH_MAX = 64 };

/* A file of a repository. */
typedef struct mc_hub_file {
    char *name;                     /* relative, with '/'; checked to stay in its folder */
    bool wanted;                    /* it is needed */
    bool known;                     /* hash and size are known */
    char hash[MC_HUB_HASH_MAX + 1]; /* SHA-256 (64 digits) or git's (40) */
    uint64_t size;
    char *content_url; /* the current address of its contents */
} mc_hub_file;

typedef struct mc_hub_list {
    const char *repository; /* for messages */
    mc_hub_file *files;
    size_t count, capacity;
    mc_name_index by_name;
    const mc_hub_file *index; /* the index of sharded weights; NULL: not sharded */
} mc_hub_list;

/* Adds a file. MC_ERR_FORMAT for a name that would leave its folder, or that is listed already. */
mc_status mc_hub_list_add(mc_error *err, mc_hub_list *list, const char *name);
void mc_hub_list_release(mc_hub_list *list);

/* Marks the needed files; of sharded weights only the index. MC_ERR_NOT_FOUND if the repository
 * lacks a required file. */
mc_status mc_hub_choose(mc_error *err, const mc_hub_needs *needs, mc_hub_list *list);
/* Marks the shards named in the index list->index, whose file is `path`. */
mc_status mc_hub_choose_shards(mc_error *err, mc_hub_list *list, const char *path);

/* Iterates over the file names of MC_HUB_ANY that the repository lacks; *next is 0 at first. NULL
 * after the last. The cache records them as huggingface_hub does, as empty files
 * .no_exist/<commit>/<name>. */
const char *mc_hub_next_absent(const mc_hub_list *list, size_t *next);

/* Whether a folder has the needed files (`needs` is an mc_hub_needs), as far as this can be known
 * without the repository's list. */
bool mc_hub_is_whole(const void *needs, const char *folder);

#endif
