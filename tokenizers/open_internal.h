/* What the loaders of tokenizers share: the parts of their JSON files. */
#ifndef MC_TOKENIZERS_OPEN_INTERNAL_H
#define MC_TOKENIZERS_OPEN_INTERNAL_H

#include "core/base/json_internal.h"
#include "tokenizers/tokenizer_internal.h"

/* object[key] where it is there and no null. */
static inline const cJSON *mc_tokenizer_part(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}
/* A part's "type", `fallback` where it says none. */
const char *mc_tokenizer_part_type(const cJSON *part, const char *fallback);
mc_status mc_tokenizer_unsupported(mc_error *err, const char *path, const char *part,
                                   const char *found, const char *expected);

/* {"token": id, ...}: the entries, of which one may be "" where `empty` says so; `name` is what
 * errors call it. */
mc_status mc_tokenizer_read_entries(mc_tokenizer *tok, mc_error *err, const char *name,
                                    const cJSON *vocab, bool empty);
/* One added token with its settings. */
mc_status mc_tokenizer_read_added(mc_tokenizer *tok, mc_error *err, const char *name,
                                  const cJSON *part, int64_t id);
/* tokenizer_config.json's "added_tokens_decoder". */
mc_status mc_tokenizer_read_added_decoder(mc_tokenizer *tok, mc_error *err, const char *path,
                                          const cJSON *root);
/* Sets a special token's name: a string, or an object with its content. */
mc_status mc_tokenizer_read_name(mc_error *err, const char *path, const cJSON *root,
                                 const char *key, char **name);

/* The keys of a configuration that name special tokens, and where their names go. */
typedef struct mc_special_name {
    const char *key;
    char **name;
} mc_special_name;
enum { MC_SPECIAL_NAMES = 7 };
void mc_tokenizer_special_names(mc_tokenizer *tok, mc_special_name names[MC_SPECIAL_NAMES]);
/* Sets all of them that are there. */
mc_status mc_tokenizer_read_names(mc_tokenizer *tok, mc_error *err, const char *path,
                                  const cJSON *root);
/* *list = "additional_special_tokens", NULL where there is none. */
mc_status mc_tokenizer_more_specials(mc_error *err, const char *path, const cJSON *root,
                                     const cJSON **list);

/* ---- bpe_open.c ---- */

/* A folder's files; those of the configuration need not be there. */
typedef struct mc_bpe_files {
    char vocab[MC_PATH_MAX], merges[MC_PATH_MAX];
    char config[MC_PATH_MAX], specials[MC_PATH_MAX], added[MC_PATH_MAX];
} mc_bpe_files;

mc_status mc_bpe_load_files(mc_tokenizer *tok, mc_error *err, const mc_bpe_files *files);
/* merges.txt, once the entries are indexed. */
mc_status mc_bpe_read_merges(mc_tokenizer *tok, mc_error *err, const char *path, const char *text,
                             size_t size);
/* Model, normalizer, pre-tokenizer and decoder of a tokenizer.json. */
mc_status mc_bpe_read_json(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root);

/* ---- unigram_model.c, unigram_open.c, unigram_json.c ---- */

/* Reads a SentencePiece model without finishing, and indexes its pieces. */
mc_status mc_unigram_read_model(mc_tokenizer *tok, mc_error *err, const char *path,
                                const char *bytes, size_t size);
/* Reads and finishes one with what a tokenizer_config.json says (`config`: its path, of a file that
 * need not be there, or NULL); `t5`: texts end with </s>, and there are sentinels, as many as
 * `sentinels` says, or -1: as T5 has, unless the configuration names another number. */
mc_status mc_unigram_load_model(mc_tokenizer *tok, mc_error *err, const char *path,
                                const char *config, const char *bytes, size_t size, bool t5,
                                int64_t sentinels);
/* Sets *known to whether a tokenizer_config.json (that need not be there) is of a class whose ids
 * are its .model's. */
mc_status mc_unigram_check_class(mc_error *err, const char *path, bool *known);
/* Model, normalizer, pre-tokenizer and decoder of a tokenizer.json. */
mc_status mc_unigram_read_json(mc_tokenizer *tok, mc_error *err, const char *path,
                               const cJSON *root);
/* Keeps a file's bytes for saving. */
mc_status mc_unigram_keep_source(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const char *text, size_t size);

#endif
