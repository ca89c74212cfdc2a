/* Training a tokenizer of one's own, by the SentencePiece library (a build option,
 * MC_ENABLE_SENTENCEPIECE; without it training is MC_ERR_UNSUPPORTED).
 *
 *     const char *texts[] = { "corpus.txt" };
 *     mc_tokenizer_train(ctx, texts, 1, "my-tokenizer", &(mc_train_tokenizer_options){
 *                            .vocab_size = 8000 });
 *     mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, "my-tokenizer"); */
#ifndef MC_TOKENIZERS_TRAIN_H
#define MC_TOKENIZERS_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"

typedef enum mc_tokenizer_type {
    MC_TOKENIZER_TYPE_UNIGRAM = 0, /* the pieces that make the texts most likely (T5's) */
    MC_TOKENIZER_TYPE_BPE,         /* merges of the pairs that come most often; read and encoded by
                                      the library too, so that it is slower */
} mc_tokenizer_type;

typedef struct mc_train_tokenizer_options {
    mc_tokenizer_type type;
    int vocab_size; /* tokens in all, sentinels included; 0: 8000 */
    int sentinels;  /* <extra_id_k> behind the pieces, as T5's pretraining takes them */
    /* The share of the texts' characters that are not unknown, 0.98 to 1; 0: 0.9995. Scripts of few
     * characters want 1. */
    double character_coverage;
    bool byte_fallback; /* 256 more pieces, so that bytes stand for characters that are no pieces */
    bool lowercase;     /* texts are lowercased, then and ever after */
    int threads;        /* 0: 1 */
    int64_t max_lines;  /* so many lines are drawn at random, the same each time; 0: all */
} mc_train_tokenizer_options;

/* Trains on the lines of `count` files of UTF-8 (those of more than 1 MiB are left out) and writes
 * spiece.model and tokenizer_config.json into the folder. Tokens are laid out as T5's: <pad> 0,
 * </s> 1, <unk> 2; each text that is encoded ends with </s>. White space is squeezed and characters
 * are brought into NFKC. `options` may be NULL. All lines are in memory, a few times over.
 *
 * Returns MC_OK, or the context's error: a file that is missing; a vocabulary larger than the texts
 * allow, or smaller than their characters take; options out of range; a folder that cannot be
 * written; a build without the library. On failure no file is written. Rank 0 trains, on the others
 * this does nothing. */
MC_API mc_status mc_tokenizer_train(mc_context *ctx, const char *const *inputs, int count,
                                    const char *folder, const mc_train_tokenizer_options *options);

#endif
