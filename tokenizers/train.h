/* Training your own tokenizer.
 *
 *     const char *texts[] = { "corpus.txt" };
 *     mc_tokenizer_train(ctx, texts, 1, "my-tokenizer", &(mc_train_tokenizer_options){
 *                            .type = MC_TOKENIZER_TYPE_BYTE_BPE, .vocab_size = 8000 });
 *     mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, "my-tokenizer");
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_TOKENIZERS_TRAIN_H
#define MC_TOKENIZERS_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"

typedef enum mc_tokenizer_type {
    MC_TOKENIZER_TYPE_UNIGRAM = 0, /* the pieces that make the texts most likely (T5's) */
    MC_TOKENIZER_TYPE_BPE,         /* merges of the most frequent pairs of characters, by the
                                      SentencePiece library, which also encodes: slower */
    MC_TOKENIZER_TYPE_BYTE_BPE,    /* merges of the most frequent pairs of bytes (GPT-2's) */
} mc_tokenizer_type;

typedef struct mc_train_tokenizer_options {
    mc_tokenizer_type type;
    int vocab_size; /* tokens in all, special tokens and sentinels included; 0: 8000 */

    /* UNIGRAM and BPE */
    int sentinels; /* <extra_id_k> after the pieces, for T5's pretraining */
    /* The share of the texts' characters that the vocabulary covers, 0.98 to 1; 0: 0.9995. Scripts
     * with few characters need 1. */
    double character_coverage;
    bool byte_fallback; /* 256 more pieces, for the bytes of characters that have no piece */
    bool lowercase;     /* texts are lowercased, in training and whenever they are encoded */
    int threads;        /* 0: 1 */
    int64_t max_lines;  /* number of lines drawn at random, the same each time; 0: all */

    /* BYTE_BPE */
    int64_t min_frequency;             /* less frequent pairs are not merged; 0: 2 */
    const char *const *special_tokens; /* NULL at the end: the first ids; NULL: "<|endoftext|>" */
} mc_train_tokenizer_options;

/* Trains on `count` files of UTF-8 and writes a folder that mc_tokenizer_from_pretrained and
 * transformers' AutoTokenizer open, with the same ids. `options` may be NULL.
 *
 * UNIGRAM and BPE train on the files' lines (those of more than 1 MiB are left out) and write
 * spiece.model and tokenizer_config.json, BPE also a tokenizer.json for transformers, whose classes
 * read every spiece.model as Unigram. Tokens are laid out as T5's: <pad> 0, </s> 1, <unk> 2; each
 * text that is encoded ends with </s>. Characters are brought into NFKC, and white space does not
 * survive: line breaks become spaces, runs of spaces become one. All lines are in memory, a few
 * times over.
 *
 * BYTE_BPE keeps every byte, white space included. It writes vocab.json, merges.txt,
 * tokenizer.json and tokenizer_config.json. Ids are: the special tokens, the 256 bytes in GPT-2's
 * order of their letters, merges. The files (.gz too) are cut into lines, each with its line break,
 * and lines into words as GPT-2 does; vocabulary and merges equal those of Hugging Face's
 * BpeTrainer with a ByteLevel pre-tokenizer (add_prefix_space false) and its whole alphabet. Only
 * the different words are in memory. There may be fewer tokens than vocab_size where the texts have
 * no more pairs. "<|endoftext|>" among the special tokens begins and ends texts; "<s>",
 * "</s>", "<pad>", "<unk>" and "<mask>" get RoBERTa's roles.
 *
 * Returns MC_OK, or the context's error: a file that is missing or not UTF-8; a vocabulary larger
 * than the texts allow, or smaller than their characters take; options out of range, or of another
 * type; a folder that cannot be written; UNIGRAM or BPE in a build without the SentencePiece
 * library (MC_ERR_UNSUPPORTED; a build option, MC_ENABLE_SENTENCEPIECE). On failure no file is
 * written. Rank 0 trains, on the others this does nothing. */
MC_API mc_status mc_tokenizer_train(mc_context *ctx, const char *const *inputs, int count,
                                    const char *folder, const mc_train_tokenizer_options *options);

#endif
