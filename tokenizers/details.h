/* More about tokenizers: facts about a vocabulary's tokens, streams of text, strict decoding.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_TOKENIZERS_DETAILS_H
#define MC_TOKENIZERS_DETAILS_H

#include "tokenizers/tokenizer.h"

/* The most tokens of a text, special ones included, that the model is meant for, from
 * tokenizer_config.json ("model_max_length"); 0 if it is missing, and for NULL. It is the default
 * limit of mc_text_classifier_options and others; mc_tokenizer_encode itself truncates only to its
 * own max_length. */
MC_API int64_t mc_tokenizer_max_length(const mc_tokenizer *tok);
/* Whether truncation drops the start of a text and keeps its end ("truncation_side": "left"). False
 * for NULL. */
MC_API bool mc_tokenizer_cuts_start(const mc_tokenizer *tok);
/* Whether a token continues the word of the token before it: 1, or 0 if it begins a word. WordPiece
 * marks continuations (##), byte-level BPE and Unigram beginnings (a space before). Added tokens
 * begin a word, and so does an id without a token. -1: the vocabulary does not say (CPM's). */
MC_API int mc_tokenizer_continues(const mc_tokenizer *tok, int32_t id);
/* Appends the ids of a text to those in the encoding, without the special tokens that
 * mc_tokenizer_encode puts around one and without truncation; type ids are 0. This is for streams
 * of any size: set encoding->count to 0 to start again, and give each thread its own encoding.
 * Returns as mc_tokenizer_encode; after an error the encoding has its old contents. */
MC_API mc_status mc_tokenizer_append(const mc_tokenizer *tok, const char *text, size_t length,
                                     mc_encoding *encoding);

/* Where a long text can be cut, so that several threads encode it: appending the ids of text[0,
 * cut) and then those of text[cut, length) gives the ids of the whole text. Returns the first such
 * place at or after `from` (at least 1) that it finds, which is directly before white space; or
 * `length`, if it finds none, if added tokens that contain or absorb white space rule it out, or if
 * the normaliser of a Unigram model does not squeeze white space. By SentencePiece's rules sums of
 * scores run over a whole text, so where pieces have equal or nearly equal scores (`-----`) the
 * ones after a cut may differ.
 *
 *     for (size_t at = 0, next; at < size; at = next) {
 *         next = at + mc_tokenizer_cut(tok, text + at, size - at, 1 << 20);
 *         ... one thread appends text[at, next) ...
 *     } */
MC_API size_t mc_tokenizer_cut(const mc_tokenizer *tok, const char *text, size_t length,
                               size_t from);

/* Checks that all of these ids are rows of a model's embedding, which has `vocabulary` rows. If
 * not, returns MC_ERR_ARGUMENT, set in the context; the message names the first token without a
 * row, the tokenizer's file and both numbers of tokens. A tokenizer may have more tokens than its
 * model, as long as no text needs them. */
MC_API mc_status mc_tokenizer_check_ids(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                                        int64_t vocabulary);

#endif
