/* What the writers of tokenizers share. */
#ifndef MC_TOKENIZERS_SAVE_INTERNAL_H
#define MC_TOKENIZERS_SAVE_INTERNAL_H

#include <cjson/cJSON.h>
#include "tokenizers/tokenizer_internal.h"

enum { MC_SAVE_FILES = 5 };

/* A file and what writes it; NULL: it is left out. */
typedef struct mc_save_file {
    char path[MC_PATH_MAX];
    void (*write)(const mc_tokenizer *tok, mc_file_writer *w);
} mc_save_file;

void mc_save_text(mc_file_writer *w, const char *text);
void mc_save_format(mc_file_writer *w, const char *format, ...) MC_PRINTF(2, 3);
void mc_save_string(mc_file_writer *w, const char *text); /* as JSON */
const char *mc_save_bool(bool value);

/* Keys of a tokenizer.json, with the comma after it. `rest` writes the part after the forms of
 * Unicode, NULL: there is none. */
void mc_save_normalizer(const mc_tokenizer *tok, mc_file_writer *w,
                        void (*rest)(const mc_tokenizer *tok, mc_file_writer *w));
void mc_save_added(const mc_tokenizer *tok, mc_file_writer *w);
void mc_save_post_processor(const mc_tokenizer *tok, mc_file_writer *w);

/* A tokenizer_config.json begins as the one that was read, or empty; keys are set; the end adds
 * what all kinds have, with the name of a class where none was read, writes it and frees it. NULL,
 * for lack of memory, is an error at the end. */
cJSON *mc_save_config_begin(const mc_tokenizer *tok);
void mc_save_config_set(cJSON *config, const char *key, cJSON *item);
void mc_save_config_name(const mc_tokenizer *tok, cJSON *config, const char *key, const char *token,
                         bool null);
void mc_save_config_names(const mc_tokenizer *tok, cJSON *config);
void mc_save_config_end(const mc_tokenizer *tok, mc_file_writer *w, cJSON *config,
                        const char *class);

/* Names the files of a Unigram tokenizer and what writes them. */
mc_status mc_unigram_choose_files(const mc_tokenizer *tok, mc_error *err, const char *folder,
                                  mc_save_file *files);

/* Whether transformers needs a tokenizer.json beside the .model to give the same ids, one of
 * SentencePiece's BPE models with its usual settings, and what writes that file. */
bool mc_sentencepiece_has_json(const mc_tokenizer *tok);
void mc_sentencepiece_write_json(const mc_tokenizer *tok, mc_file_writer *w);

/* Says what writes vocab.json, merges.txt, tokenizer.json and tokenizer_config.json. */
void mc_bpe_choose_files(const mc_tokenizer *tok, mc_save_file *files);

#endif
