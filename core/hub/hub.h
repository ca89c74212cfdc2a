/* Models by name: the Hugging Face hub and its local cache.
 *
 * Loading a model or a tokenizer by identifier searches the cache and downloads what is missing
 * there. Downloads need a build with libcurl (MC_ENABLE_CURL). No request is made
 *
 *   - if the identifier is a path: it begins with '/', '.' or '~', or exists;
 *   - if the cache has all needed files;
 *   - if HF_HUB_OFFLINE is set.
 *
 * The files that a model needs, as far as the repository has them:
 *
 *   - config.json, generation_config.json, and the files of its tokenizer;
 *   - weights, the first of: model.safetensors; model.safetensors.index.json with the shards that
 *     it names; pytorch_model.bin; pytorch_model.bin.index.json with its shards; pytorch_model.pt.
 *
 *     mc_hub_options options = {.revision = "v1.0"};
 *     char folder[4096];
 *     mc_hub_download(ctx, "google-bert/bert-base-uncased", &options, folder, sizeof folder);
 *
 * Environment variables mean what they mean to Hugging Face's own client; the default is after "=":
 *
 *     HF_ENDPOINT            the hub = https://huggingface.co
 *     HF_TOKEN               a token for gated and private repositories = the contents of the file
 *                            HF_TOKEN_PATH. Only the hub receives it
 *     HF_TOKEN_PATH          = $HF_HOME/token
 *     HF_HOME                = ~/.cache/huggingface
 *     HF_HUB_CACHE           the cache = $HF_HOME/hub
 *     HF_HUB_OFFLINE         1, ON, YES or TRUE: no requests. TRANSFORMERS_OFFLINE is the same
 *     HF_HUB_DOWNLOAD_TIMEOUT  seconds without a byte until a transfer is begun again = 10. A list
 *                            or header may take 60 times that in all. A file is too slow if it
 *                            comes at less than 1024 bytes a second, on average over 6 times that
 *     SSL_CERT_FILE, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE
 *                            a file of certificates to trust = the system's
 *
 * libcurl's own variables (https_proxy, no_proxy, ...) count too. A redirect from https to http is
 * an error.
 *
 * The cache has the layout of huggingface_hub, so that either finds what the other has downloaded:
 *
 *     models--ORG--NAME/blobs/HASH                   the contents, each once
 *     models--ORG--NAME/snapshots/COMMIT/FILE        links to them
 *     models--ORG--NAME/refs/REVISION                the commit of a branch or tag
 *     models--ORG--NAME/.no_exist/COMMIT/FILE        empty: the commit has no such file
 *     models--ORG--NAME/blobs/HASH.modelcenter.incomplete   what has arrived of a blob so far
 *     .locks/models--ORG--NAME/modelcenter.lock
 *
 * ORG-- is missing if the identifier has no organisation.
 *
 *   - Contents are checked before they get their name: SHA-256 of large files, git's hash of
 *     others.
 *   - Links are created when all contents have arrived, and the ref last. So a process that dies
 *     never leaves an incomplete model that looks complete.
 *   - Large files use eight connections. A transfer that breaks resumes at its byte, in the same
 *     call and in later ones.
 *   - One process (or rank) at a time downloads a repository; others wait, and then find the files.
 *     If hosts have separate caches, one rank of each host downloads.
 *   - A process that dies during a download leaves a note in the lock file. The next one that uses
 *     the repository first hashes its blobs.
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
    bool verify;           /* hash the repository's files in the cache before use. A file whose hash
                              is not its name is removed, and downloaded again if needed; if
                              requests are forbidden it is MC_ERR_FORMAT */
    /* Patterns of the needed files, with *, ? and [...]; * matches slashes too, and "folder/"
     * everything below it. NULL ends the list. NULL: what a model or a tokenizer needs.
     */
    const char *const *include;
} mc_hub_options;

/* The hub's settings from the environment. */
typedef struct mc_hub_state {
    char endpoint[512];     /* the hub's address */
    char cache[4096];       /* the folder of downloaded models, which need not exist. "": none (no
                               HOME) */
    const char *offline_by; /* the variable that forbids requests; NULL: none */
    bool can_download;      /* the build has libcurl */
    bool has_token;         /* the token itself is not shown */
    char token_from[4096];  /* the variable or file that contains the token; "": none */
    char problem[512];      /* an invalid variable; "": none */
} mc_hub_state;

/* Reads the settings. Does not use the network. */
MC_API void mc_hub_look(mc_hub_state *state);

/* Checks whether downloads can work: requests the header of the hub's list of models, with the
 * token if one is set. Errors: those of mc_hub_download; MC_ERR_UNSUPPORTED also if requests are
 * forbidden. */
MC_API mc_status mc_hub_reach(mc_context *ctx);

/* Finds the files of an identifier (`name`, `org/name`, either with `@revision`), downloads those
 * that are missing, and copies the path of their folder to `folder`, which has `room` bytes. For an
 * existing folder this is the folder itself. `options` may be NULL. ModelCenter's names of models
 * stand for the repositories that hold them ("gpt2-base" is gpt2). Not collective.
 *
 * Errors name the repository and the file: MC_ERR_NOT_FOUND for a file that the hub does not have
 * or does not show (for gated repositories with instructions), or that is not in the cache while
 * requests are forbidden; MC_ERR_IO for a hub that cannot be reached or keeps refusing, and for a
 * full disk; MC_ERR_FORMAT for contents with a wrong checksum and for malformed answers;
 * MC_ERR_UNSUPPORTED if the build has no libcurl; MC_ERR_INTERRUPTED; MC_ERR_ARGUMENT. */
MC_API mc_status mc_hub_download(mc_context *ctx, const char *identifier,
                                 const mc_hub_options *options, char *folder, size_t room);

/* Copies the path of an identifier's local folder, which may lack some files: an existing folder,
 * or the one in the cache. Does not use the network and sets no error. Returns false if there is no
 * such folder or its path does not fit. */
MC_API bool mc_hub_cached(const char *identifier, const mc_hub_options *options, char *folder,
                          size_t room);

#endif
