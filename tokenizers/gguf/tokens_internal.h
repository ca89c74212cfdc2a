/* A tokenizer's vocabulary among a GGUF file's values, under the names that llama.cpp has for them.
 * Reading makes the files of a folder of it, which stay in memory; models/gguf writes. */
#ifndef MC_TOKENIZERS_GGUF_INTERNAL_H
#define MC_TOKENIZERS_GGUF_INTERNAL_H

#include <string.h>
#include "core/formats/gguf_internal.h"
#include "tokenizers/gguf/inside_internal.h"
#include "tokenizers/tokenizer_internal.h"

/* llama.cpp's numbers for types of tokens are SentencePiece's, mc_piece_type. */

#define MC_GGUF_KEY(name) "tokenizer.ggml." name
#define MC_GGUF_TEMPLATE "tokenizer.chat_template"
#define MC_GGUF_NAMED "general.name"

/* Names of pre-tokenizers there, whose words are cut as by one of `kind`. */
typedef struct mc_gguf_words {
    const char *pre;
    mc_cut_kind kind;
    bool whole_words; /* a word that is an entry is that entry */
    bool nfc;         /* these texts are put into this form first, which llama.cpp leaves out */
    bool adds_bos;    /* where no key says it */
    bool encoder;     /* its ends are [CLS] and [SEP]; the mask takes in spaces before it where the
                         model's name has that of the pre-tokenizer in it, as in llama.cpp */
} mc_gguf_words;

enum { MC_GGUF_WORDS = 4 };
extern const mc_gguf_words mc_gguf_words_known[MC_GGUF_WORDS];

static inline bool mc_gguf_is_bracketed(const char *text, size_t length)
{
    return length > 1 && text[0] == '[' && text[length - 1] == ']';
}

bool mc_gguf_path_is(const char *path); /* a file that begins as a GGUF file does */
bool mc_gguf_has_tokens(const mc_gguf *g);
/* Makes the files of the tokenizer. Errors name file and key: a file without a tokenizer
 * (MC_ERR_NOT_FOUND), one of a kind that is not known. Release *out in any case. */
mc_status mc_gguf_read_tokens(mc_error *err, const mc_gguf *g, mc_inside *out);
/* The same of a path. */
mc_status mc_gguf_read_tokens_of(mc_error *err, const char *path, mc_inside *out);
/* Writes these files into a folder; nothing if there is no tokenizer. */
mc_status mc_gguf_write_tokens(mc_error *err, const mc_gguf *g, const char *folder);

#endif
