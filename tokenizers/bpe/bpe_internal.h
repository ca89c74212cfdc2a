/* Byte-level BPE (GPT-2) and SentencePiece's over characters: the merges of a vocabulary, and what
 * encoding with them works on.
 *
 * A text is cut into words, whose bytes are tokens to begin with. Then, of all neighbours that are
 * a merge, those of the merge that comes first in the file become one token, leftmost first, until
 * no neighbours are a merge.
 *
 *   bpe_tables  from what a loader read            bpe_merge   the merging of one word
 *   bpe_cut     text to words                      bpe_words   words to ids
 *   bpe_pieces  BPE over characters, SentencePiece's
 *   bpe_regex   patterns through PCRE2             bpe_open    vocab.json, merges.txt, their JSON
 *   bpe_save    the same files, written            bpe_cut_json  the JSON's pre-tokenizer */
#ifndef MC_TOKENIZERS_BPE_INTERNAL_H
#define MC_TOKENIZERS_BPE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"

#define MC_BPE_NONE UINT32_MAX

/* The merge of rank i is number i. */
typedef struct mc_bpe_merge {
    int32_t left, right, result;
    uint32_t number; /* of its line in merges.txt from 1, of its entry in tokenizer.json from 0 */
} mc_bpe_merge;

/* A slot of the table from pairs to ranks: open addressing, the next slots in turn. The pair itself
 * is the merge's. */
typedef struct mc_bpe_slot {
    uint32_t tag;  /* bits of the pair's hash that do not choose the slot */
    uint32_t rank; /* MC_BPE_NONE: an empty slot */
} mc_bpe_slot;

/* How a text is cut into words, a step of a pre-tokenizer. The first five are regular expressions
 * of public models, in C. */
typedef enum mc_cut_kind {
    MC_CUT_GPT2 = 0,
    MC_CUT_CL100K, /* GPT-3.5's and GPT-4's, Llama 3's */
    MC_CUT_QWEN,   /* Qwen 1 to 3's: as CL100K, each number by itself */
    MC_CUT_O200K,  /* GPT-4o's */
    MC_CUT_TEKKEN, /* Mistral's: as O200K, each number by itself and no 's */
    MC_CUT_DIGITS, /* each number is a word */
    MC_CUT_REGEX   /* any other regular expression */
} mc_cut_kind;

typedef struct mc_cut {
    mc_cut_kind kind;
    bool drops_matches, drops_gaps; /* of a regular expression: what it matches, or all else */
    struct mc_regex *regex;         /* of MC_CUT_REGEX */
} mc_cut;

enum { MC_CUTS_MAX = 8 };

typedef struct mc_bpe {
    /* set by the loader */
    mc_cut cuts[MC_CUTS_MAX]; /* each cuts the words of the one before it further */
    int cut_count;
    bool has_cuts;    /* else they are GPT-2's */
    bool whole_words; /* a word that is an entry is that entry, whatever the merges make of it */
    char *cuts_json;  /* heap: the pre-tokenizer as a tokenizer.json has it; NULL: GPT-2's */
    mc_bpe_merge *merges; /* (merge_count) */
    size_t merge_count, merge_capacity;
    bool add_prefix_space; /* a text gets a space in front unless it begins with one */
    bool has_unk;          /* a byte (or character) without entry is unk_id; else it is left out */
    bool fuse_unk;         /* several in a row are one */
    bool byte_fallback;    /* of characters: those without an entry are their bytes' entries */
    uint32_t *groups;      /* (merge_count): the rank that a merge has with others, for all of which
                              the leftmost is first; NULL: its number */
    int32_t *results;      /* by group; -1: its merges have several, each its own */

    /* derived by mc_bpe_finish */
    mc_bpe_slot *slots; /* (slot_mask + 1), a power of two */
    size_t slot_mask;
    uint64_t *followers;   /* (entry_count): a bit for the hash of each token that may be merged
                               after one; most pairs are none, and this says so without the
                               table, which is too large for the nearest caches */
    uint32_t *byte_ranks;  /* (256, 256): of the merge of two bytes, where all_bytes */
    int32_t byte_ids[256]; /* -1: the byte has no entry */
    bool characters;       /* tokens begin as characters, not as bytes (bpe_pieces.c) */
    bool front_spaces;     /* then: words each begin with a space's symbol */
    const struct mc_trie *trie; /* then: of the entries */
    int32_t unk_id;             /* where has_unk */
    bool all_bytes;             /* every byte has an entry */
    size_t longest;             /* entry, in bytes of its letters */
    bool ordered;               /* every merge comes after those that make its parts */
    uint64_t fingerprint;       /* of all that ids depend on */
    struct mc_entry *bytes; /* (id_end): what decoding gives for an id, in the tokenizer's pool */
} mc_bpe;

/* A word whose ids are known. The cache holds one for each value of a hash. */
typedef struct mc_bpe_word {
    uint64_t key[2]; /* its bytes, then zeros */
    int32_t ids[3];  /* (count) */
    uint8_t length;  /* in bytes; 0: the place is free */
    uint8_t count;
} mc_bpe_word;

/* A token of a long word that is being merged, one for each of its bytes. */
typedef struct mc_bpe_node {
    int32_t id;
    uint32_t previous, next; /* tokens; MC_BPE_NONE at the ends */
    uint32_t rank;           /* of the merge with the next, MC_BPE_NONE */
    uint32_t before, after;  /* in the list of all tokens of that rank */
} mc_bpe_node;

enum { MC_BPE_LEVELS = 5 };

/* Working memory of one thread. What it remembers belongs to the vocabulary `owner` (a
 * fingerprint). */
typedef struct mc_bpe_scratch {
    uint64_t owner;
    mc_bpe_word *words; /* (word_count), a power of two or 0 */
    size_t word_count, words_put;
    mc_bpe_node *nodes; /* (node_capacity) */
    size_t node_capacity;
    /* of an ordered vocabulary: a list of tokens for each rank, and which are not empty */
    uint32_t *heads;                 /* (merge_count) */
    uint64_t *bits;                  /* all levels, one after the other */
    uint64_t *levels[MC_BPE_LEVELS]; /* a bit says that there are any in 64 bits of the one below */
    int level_count;
    /* of any other: all that may be merged, as rank << 32 | token, smallest on top */
    uint64_t *heap;
    size_t heap_count, heap_capacity;
    void *regex_data; /* see mc_regex_find */
} mc_bpe_scratch;

void mc_bpe_scratch_release(mc_bpe_scratch *scratch);

/* ---- bpe_regex.c ---- */

typedef struct mc_regex mc_regex;

/* Compiles a pattern as Hugging Face's tokenizers read it (Oniguruma's syntax). `name` is what
 * errors call it: MC_ERR_UNSUPPORTED without PCRE2, or of a pattern that PCRE2 reads otherwise or
 * not at all. NULL with an error. */
mc_regex *mc_regex_new(mc_error *err, const char *name, const char *pattern);
void mc_regex_free(mc_regex *regex);
/* Finds the next match in a text of valid UTF-8 that begins at `from` or later. *match is set to
 * its start and end, both `size` if there is none; an empty match is none. *data is a thread's
 * working memory, NULL at first. MC_ERR_NOMEM, or MC_ERR_UNSUPPORTED where it takes too many
 * steps. */
mc_status mc_regex_find(const mc_regex *regex, void **data, const uint8_t *text, size_t size,
                        size_t from, size_t match[2]);
void mc_regex_release_data(void *data);

static inline uint64_t mc_bpe_hash(int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ pair >> 32;
}

static inline uint64_t mc_bpe_follower_bit(int32_t right)
{
    return (uint64_t)1 << ((uint32_t)right * 0x9E3779B9u >> 26);
}

/* The number of the merge of two tokens, or MC_BPE_NONE. */
static inline uint32_t mc_bpe_find(const mc_bpe *bpe, int32_t left, int32_t right)
{
    if (!(bpe->followers[left] & mc_bpe_follower_bit(right))) return MC_BPE_NONE;
    uint64_t hash = mc_bpe_hash(left, right);
    for (size_t at = (size_t)hash & bpe->slot_mask;; at = (at + 1) & bpe->slot_mask) {
        mc_bpe_slot slot = bpe->slots[at];
        if (slot.rank == MC_BPE_NONE) return MC_BPE_NONE;
        if (slot.tag != (uint32_t)(hash >> 32)) continue;
        const mc_bpe_merge *merge = &bpe->merges[slot.rank];
        if (merge->left == left && merge->right == right) return slot.rank;
    }
}

/* Its rank, or MC_BPE_NONE. */
static inline uint32_t mc_bpe_rank(const mc_bpe *bpe, int32_t left, int32_t right)
{
    uint32_t merge = mc_bpe_find(bpe, left, right);
    return merge != MC_BPE_NONE && bpe->groups ? bpe->groups[merge] : merge;
}

/* What two tokens, whose merge has this rank, become. */
static inline int32_t mc_bpe_result(const mc_bpe *bpe, uint32_t rank, int32_t left, int32_t right)
{
    if (!bpe->results) return bpe->merges[rank].result;
    int32_t result = bpe->results[rank];
    return result >= 0 ? result : bpe->merges[mc_bpe_find(bpe, left, right)].result;
}

/* The letters that stand for bytes in the files: a code point each, and back (-1: none of them). */
uint32_t mc_bpe_letter_of(uint8_t byte);
int mc_bpe_byte_of(uint32_t letter);

/* ---- bpe_merge.c ---- */

/* Encodes one word of `size` (1 to INT32_MAX) bytes; `out` has room for `size` ids. Sets *count.
 * False when memory is out. */
bool mc_bpe_merge_word(const mc_bpe *bpe, mc_bpe_scratch *scratch, const uint8_t *word, size_t size,
                       int32_t *out, size_t *count);

#endif
