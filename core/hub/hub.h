/* Models by name: the Hugging Face hub, and the cache of what was downloaded from it.
 *
 * Loading a model or a tokenizer by identifier looks into the cache and, where files are missing
 * there, downloads them (needs a build with libcurl: MC_ENABLE_CURL). No request is made when the
 * identifier is a path (it begins with '/', '.' or '~', or exists), when all files that are needed
 * lie in the cache, and when HF_HUB_OFFLINE is set. What is needed of a model: config.json,
 * generation_config.json, the first that the repository has of
 *
 *     model.safetensors, model.safetensors.index.json and the shards that it names,
 *     pytorch_model.bin, pytorch_model.bin.index.json and its shards, pytorch_model.pt,
 *
 * and, where it has any, the files of its tokenizer.
 *
 *     mc_hub_options options = {.revision = "v1.0"};
 *     char folder[4096];
 *     mc_hub_download(ctx, "google-bert/bert-base-uncased", &options, folder, sizeof folder);
 *
 * The environment, with the meaning that Hugging Face's own client gives it:
 *
 *     HF_ENDPOINT            the hub; https://huggingface.co
 *     HF_TOKEN               a token for gated and private repositories, else the contents of the
 *     HF_TOKEN_PATH          file of this name ($HF_HOME/token). No other host ever receives it
 *     HF_HOME, HF_HUB_CACHE  where the cache is; ~/.cache/huggingface and $HF_HOME/hub
 *     HF_HUB_OFFLINE         1, ON, YES or TRUE: no requests (TRANSFORMERS_OFFLINE too)
 *     SSL_CERT_FILE, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE  a file of certificates to trust in place
 *                            of the system's
 *     HF_HUB_DOWNLOAD_TIMEOUT  seconds without a byte until a transfer is begun again; 10. Each
 *                            list and header has 60 times that as a whole, and a file has to come
 *                            at 1024 bytes a second or more, on average over 6 times that
 *
 * and libcurl's (https_proxy, no_proxy, ...). A redirect from https to http is an error. The cache
 * has the layout of huggingface_hub, so that either finds what the other has downloaded:
 *
 *     models--ORG--NAME/blobs/HASH                   the contents, each once
 *     models--ORG--NAME/snapshots/COMMIT/FILE        links to them
 *     models--ORG--NAME/refs/REVISION                the commit of a branch or tag
 *     models--ORG--NAME/.no_exist/COMMIT/FILE        empty: the commit has no such file
 *     models--ORG--NAME/blobs/HASH.modelcenter.incomplete   what has arrived of a blob so far
 *     .locks/models--ORG--NAME/modelcenter.lock
 *
 * where ORG-- is missing if the identifier has no organisation. Contents are checked before they
 * get their name (SHA-256 of large files, git's hash of others), links are made when all contents
 * are there, and the ref last, so that a process that dies leaves nothing that looks whole and is
 * not. Large files come over eight connections; a transfer that breaks goes on at its byte, in the
 * same call and in later ones. One process (or rank) at a time downloads a repository; others wait
 * for it and then find the files. Ranks of hosts with caches of their own download one each. A
 * process that dies at its download leaves a note in the lock's file: the next one that uses the
 * repository hashes its blobs first.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_HUB_HUB_H
#define MC_HUB_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include "core/base/context.h"

typedef struct mc_hub_options {
    const char *revision;  /* a branch, a tag or a commit; NULL: what follows '@' in the identifier,
                              else "main" */
    const char *cache_dir; /* in place of HF_HUB_CACHE; NULL: none */
    bool local_files_only; /* no requests, as with HF_HUB_OFFLINE */
    bool verify;           /* hash what the cache has of the repository before it is used: what is
                              not what its name says is removed, and fetched anew if need be. Where
                              nothing may be asked for that is MC_ERR_FORMAT */
    /* Patterns of the files that are needed, with *, ? and [...], where * stands for slashes too,
     * and "folder/" for all below it; NULL ends the list. NULL: what a model or a tokenizer needs.
     */
    const char *const *include;
} mc_hub_options;

/* What the environment says about the hub. */
typedef struct mc_hub_state {
    char endpoint[512];     /* the hub's address */
    char cache[4096];       /* the folder that models are downloaded into; it need not exist.
                               "": there is none (no HOME) */
    const char *offline_by; /* the variable that forbids requests; NULL: none does */
    bool can_download;      /* the build has libcurl */
    bool has_token;         /* the token itself is not shown */
    char token_from[4096];  /* the variable, or the file, that holds it; "": there is none */
    char problem[512];      /* a variable that cannot be what it is, "": none */
} mc_hub_state;

/* Reads it. Asks no network. */
MC_API void mc_hub_look(mc_hub_state *state);

/* Asks the hub for the header of its list of models, with the token, if there is one: whether
 * downloads can work. Errors as mc_hub_download's; MC_ERR_UNSUPPORTED also where requests are
 * forbidden. */
MC_API mc_status mc_hub_reach(mc_context *ctx);

/* Finds the files of an identifier (`name`, `org/name`, either with `@revision`), downloads those
 * that are missing, and copies the path of their folder to `folder`, which has `room` bytes. An
 * existing folder is its own answer. `options` may be NULL. ModelCenter's names of models are
 * those of the repositories that hold them ("gpt2-base" is gpt2). Not collective: each rank may
 * call it or not.
 *
 * Errors name the repository and the file: MC_ERR_NOT_FOUND for what the hub does not have or does
 * not show (gated repositories: with what to do), or is not in the cache when nothing may be asked
 * for; MC_ERR_IO for a hub that cannot be reached or keeps refusing, a full disk; MC_ERR_FORMAT for
 * contents whose checksum is wrong, and answers that are none; MC_ERR_UNSUPPORTED where the build
 * has no libcurl; MC_ERR_INTERRUPTED; MC_ERR_ARGUMENT. */
MC_API mc_status mc_hub_download(mc_context *ctx, const char *identifier,
                                 const mc_hub_options *options, char *folder, size_t room);

/* Copies the path of the folder that an identifier has now, maybe without some of its files: an
 * existing folder, or what the cache holds. Asks no network and raises no error: false where there
 * is no such folder, or its path does not fit. */
MC_API bool mc_hub_cached(const char *identifier, const mc_hub_options *options, char *folder,
                          size_t room);

#endif
