/* Tokenizers: text to token ids and back.
 *
 * Exact against Hugging Face's fast tokenizers (`tokenizers` library). A tokenizer is read-only once
 * made and may be used by several threads at a time. */
#ifndef MC_TOKENIZERS_TOKENIZER_H
#define MC_TOKENIZERS_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"

typedef struct mc_tokenizer mc_tokenizer;

/* Case handling for a bare vocab.txt, which does not say it. */
typedef enum mc_lowercase {
    MC_LOWERCASE_DEFAULT = 0, /* tokenizer.json or tokenizer_config.json ("do_lower_case") where the
                                 folder has one; else cased if the vocabulary holds an entry with a
                                 capital letter besides [SPECIALS], uncased if not */
    MC_LOWERCASE_NO,
    MC_LOWERCASE_YES,
} mc_lowercase;

typedef struct mc_tokenizer_options {
    mc_lowercase lowercase;
} mc_tokenizer_options;

/* Opens the tokenizer of a folder (tokenizer.json, else vocab.txt) or of an identifier in the
 * Hugging Face cache, as mc_bert_from_pretrained resolves it. Errors: a missing folder or file, a
 * tokenizer.json of another kind than WordPiece, a vocabulary without [UNK], [CLS], [SEP] or [PAD],
 * a duplicate or empty entry (with its line), more than 2^24 entries, bytes that are no UTF-8. */
MC_API mc_tokenizer *mc_tokenizer_from_pretrained(mc_context *ctx, const char *identifier);
MC_API mc_tokenizer *mc_tokenizer_open(mc_context *ctx, const char *identifier,
                                       const mc_tokenizer_options *options);
MC_API void mc_tokenizer_free(mc_tokenizer *tok);

MC_API int mc_tokenizer_vocab_size(const mc_tokenizer *tok);
/* The id of an exact vocabulary entry, -1 if there is none. */
MC_API int32_t mc_tokenizer_token_to_id(const mc_tokenizer *tok, const char *token);
/* The entry of an id, NULL if out of range. Belongs to the tokenizer. */
MC_API const char *mc_tokenizer_id_to_token(const mc_tokenizer *tok, int32_t id);
MC_API int32_t mc_tokenizer_pad_id(const mc_tokenizer *tok);
MC_API int32_t mc_tokenizer_cls_id(const mc_tokenizer *tok);
MC_API int32_t mc_tokenizer_sep_id(const mc_tokenizer *tok);

/* Ids of one text or pair; reuse one value over many calls, its arrays grow and stay.
 *     mc_encoding e = { 0 };
 *     mc_tokenizer_encode(tok, text, strlen(text), NULL, 0, 512, &e);
 *     ... e.ids[0 .. e.count) ...
 *     mc_encoding_release(&e);                                                                   */
typedef struct mc_encoding {
    int32_t *ids;      /* (count) */
    uint8_t *type_ids; /* (count): 0 for the first text and its specials, 1 for the second */
    size_t count;
    size_t capacity;   /* private */
    struct mc_encode_scratch *scratch; /* private */
} mc_encoding;

/* Encodes `[CLS] text [SEP]` or, with a pair, `[CLS] text [SEP] pair [SEP]`; texts are UTF-8 of the
 * given lengths in bytes (NULs count; bytes that are no UTF-8 become U+FFFD). Special tokens written
 * in a text are those tokens. `max_length` > 0 truncates to at most that many ids, specials
 * included, longest text first as Hugging Face does; 0 does not truncate. `pair` NULL: a single
 * text. Returns MC_OK or MC_ERR_NOMEM, or MC_ERR_ARGUMENT for a max_length too small for the special
 * tokens; the encoding is then empty. Thread-safe: touches no context. */
MC_API mc_status mc_tokenizer_encode(const mc_tokenizer *tok, const char *text, size_t text_length,
                                     const char *pair, size_t pair_length, size_t max_length,
                                     mc_encoding *encoding);
MC_API void mc_encoding_release(mc_encoding *encoding);

/* Decodes ids to text as Hugging Face's decode does (WordPiece decoder, clean-up on): a heap string
 * for mc_string_free, NULL when memory is out. Ids out of range are skipped; special tokens too if
 * `skip_special`. */
MC_API char *mc_tokenizer_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                                 bool skip_special);
MC_API void mc_string_free(char *string);

/* Writes vocab.txt and tokenizer_config.json into a folder, so that the folder opens with the same
 * tokenizer again, here and in `transformers`. Sets the context's error on failure. */
MC_API mc_status mc_tokenizer_save(const mc_tokenizer *tok, const char *folder);

#endif
