/* What the writers of tokenizers share. */
#ifndef MC_TOKENIZERS_SAVE_INTERNAL_H
#define MC_TOKENIZERS_SAVE_INTERNAL_H

#include "tokenizers/tokenizer_internal.h"

enum { MC_SAVE_FILES = 4 };

/* A file and what writes it; NULL: it is left out. */
typedef struct mc_save_file {
    char path[MC_PATH_MAX];
    void (*write)(const mc_tokenizer *tok, mc_file_writer *w);
} mc_save_file;

void mc_save_text(mc_file_writer *w, const char *text);
void mc_save_format(mc_file_writer *w, const char *format, ...) MC_PRINTF(2, 3);
void mc_save_string(mc_file_writer *w, const char *text); /* as JSON */
const char *mc_save_bool(bool value);

/* The keys of an added token, without its id. */
void mc_save_settings(const mc_tokenizer *tok, mc_file_writer *w, const mc_added_token *token);

/* Keys of a tokenizer.json, with the comma behind. */
void mc_save_added(const mc_tokenizer *tok, mc_file_writer *w);
void mc_save_post_processor(const mc_tokenizer *tok, mc_file_writer *w);

/* Keys of a tokenizer_config.json, likewise: all added tokens, and special tokens by name. */
void mc_save_added_decoder(const mc_tokenizer *tok, mc_file_writer *w);
void mc_save_names(const mc_tokenizer *tok, mc_file_writer *w);

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
