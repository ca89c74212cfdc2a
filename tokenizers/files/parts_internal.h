/* What the loaders of tokenizers share: the parts of their JSON files. */
#ifndef MC_TOKENIZERS_PARTS_INTERNAL_H
#define MC_TOKENIZERS_PARTS_INTERNAL_H

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
/* Reads a normalizer's forms of Unicode, alone or before others in a Sequence, which may be empty.
 * *rest: the one part that is no form, NULL if all are. */
mc_status mc_tokenizer_read_forms(mc_tokenizer *tok, mc_error *err, const char *path,
                                  const cJSON *root, const cJSON **rest);
/* A pre-tokenizer, or the only part of a Sequence; NULL of an empty one. */
const cJSON *mc_tokenizer_only_part(const cJSON *part, const char *list);
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
/* ---- bpe_open.c ---- */

/* vocab.json and merges.txt, with the settings that were read before. */
mc_status mc_bpe_load_files(mc_tokenizer *tok, mc_error *err, const char *vocab,
                            const char *merges);
/* Makes a text that may be an entry a special token, as it is where it is an added token already.
 */
mc_status mc_tokenizer_add_special(mc_tokenizer *tok, mc_error *err, const char *path,
                                   const char *text);
/* Llama's class's names of special tokens, and RoBERTa's. */
mc_status mc_llama_names(mc_tokenizer *tok, mc_error *err, const char *path);
mc_status mc_roberta_names(mc_tokenizer *tok, mc_error *err, const char *path);
/* merges.txt, once the entries are indexed. */
mc_status mc_bpe_read_merges(mc_tokenizer *tok, mc_error *err, const char *path, const char *text,
                             size_t size);
/* The model of a tokenizer.json; `characters`: its tokens begin as these. */
mc_status mc_bpe_read_model(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *model,
                            bool characters);
/* Model, normalizer, pre-tokenizer and decoder of a tokenizer.json. */
mc_status mc_bpe_read_json(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root);

/* ---- bpe_cut_json.c ---- */

/* The pre-tokenizer of byte-level BPE: Split and Digits, and ByteLevel after them. */
mc_status mc_bpe_read_cuts(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *part);

/* ---- unigram_model.c, unigram_open.c, unigram_fairseq.c, unigram_json.c ---- */

/* Reads a SentencePiece model without indexing its pieces and finishing. */
mc_status mc_unigram_read_model(mc_tokenizer *tok, mc_error *err, const char *path,
                                const char *bytes, size_t size);
/* Reads and finishes one with the settings that were read before; `t5`: texts end with </s>, and
 * there are sentinels, as many as `sentinels` says, or -1: as T5 has, unless the settings name
 * another number. */
mc_status mc_unigram_load_model(mc_tokenizer *tok, mc_error *err, const char *path,
                                const char *bytes, size_t size, bool t5, int64_t sentinels);
/* Gives the pieces of a SentencePiece model fairseq's ids: XLM-R's or CamemBERT's, by the class.
 * Names have been read. */
mc_status mc_fairseq_number(mc_tokenizer *tok, mc_error *err, const char *path);
/* Whether the settings are of a class whose ids are its .model's. */
bool mc_unigram_has_model_ids(const mc_tokenizer *tok);
/* Model, normalizer, pre-tokenizer and decoder of a tokenizer.json. */
mc_status mc_unigram_read_json(mc_tokenizer *tok, mc_error *err, const char *path,
                               const cJSON *root);
/* The same of a BPE model over characters, as SentencePiece trains it. */
mc_status mc_pieces_read_json(mc_tokenizer *tok, mc_error *err, const char *path,
                              const cJSON *root);
/* Whether a tokenizer.json has such a model: without ByteLevel, with spaces written as symbols. */
bool mc_pieces_are_in(const mc_tokenizer *tok, const cJSON *root);
/* Keeps a file's bytes for saving. */
mc_status mc_unigram_keep_source(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const char *text, size_t size);

#endif
