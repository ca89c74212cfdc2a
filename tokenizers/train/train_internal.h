/* Training byte-level BPE: the words of files with their counts, and the merges that follow.
 *
 *   train          options, SentencePiece's types        train_words   files to words and counts
 *   train_bpe      merges by count                       train_save    the tokenizer they make */
#ifndef MC_TOKENIZERS_TRAIN_INTERNAL_H
#define MC_TOKENIZERS_TRAIN_INTERNAL_H

#include "tokenizers/tokenizer_internal.h"
#include "tokenizers/train.h"

/* A set of byte strings, numbered in the order in which they were added. Zeroed it is empty. */
typedef struct mc_text_set {
    mc_bytes pool;
    mc_entry *texts; /* (count) */
    size_t count, capacity;
    uint32_t *slots; /* (slot_count), a power of two: number + 1, 0: free */
    size_t slot_count;
} mc_text_set;

/* The number of a text, which is added if it is new; -1 when memory is out. */
int64_t mc_text_set_add(mc_text_set *set, const void *text, size_t length);
void mc_text_set_release(mc_text_set *set);
static inline const uint8_t *mc_text_set_get(const mc_text_set *set, size_t number)
{
    return set->pool.data + set->texts[number].offset;
}

/* Different words and how often each comes. */
typedef struct mc_word_counts {
    mc_text_set words;
    int64_t *counts; /* (words.count) */
    size_t count_capacity;
} mc_word_counts;

/* Adds the words of a file of UTF-8 (.gz too), as GPT-2 cuts them. Each line is cut by itself, its
 * line break included, as Hugging Face's trainers read files. Errors name the file, and the line of
 * invalid UTF-8. */
mc_status mc_count_words(mc_error *err, mc_word_counts *counts, const char *path);
void mc_word_counts_release(mc_word_counts *counts);

typedef struct mc_trained_merge {
    int32_t left, right, result;
} mc_trained_merge;

/* A vocabulary in the letters that stand for bytes, by id, and its merges in order. */
typedef struct mc_trained_bpe {
    mc_text_set tokens;
    mc_trained_merge *merges; /* (merge_count) */
    size_t merge_count, merge_capacity;
} mc_trained_bpe;

/* Ids are: the special tokens, the 256 bytes in the order of their letters, then what merges make.
 * Of all pairs of neighbours the one with the largest count is merged, of equals the one with the
 * smaller ids, until there are `size` tokens or no pair comes `least` times. */
mc_status mc_train_bpe(mc_error *err, const mc_word_counts *counts, const char *const *specials,
                       size_t size, int64_t least, mc_trained_bpe *bpe);
void mc_trained_bpe_release(mc_trained_bpe *bpe);

/* Trains as mc_tokenizer_train says it of MC_TOKENIZER_TYPE_BYTE_BPE, and saves. */
mc_status mc_tokenizer_train_bytes(mc_context *ctx, const char *const *inputs, int count,
                                   const char *folder, const mc_train_tokenizer_options *options,
                                   size_t vocab_size);

#endif
