/* Unigram (T5, mT5): pieces with scores, of which a text gets those whose scores add up to most.
 *
 * Two sets of rules, which differ in a few texts of a thousand:
 *   SentencePiece's, for a .model: sums in f32 over the whole text, its own normaliser
 *   Hugging Face's, for a tokenizer.json: sums in f64 over each word, its normalizer's steps
 *
 *   unigram_tables     from what a loader read            unigram_words   texts to words, the cache
 *   unigram_viterbi    one word                           unigram_decode  ids to text
 *   unigram_normalize  SentencePiece's normal form        unigram_steps   Hugging Face's
 *   unigram_model      reads a .model (protobuf)          unigram_json    reads a tokenizer.json
 *   unigram_fairseq    XLM-R's and CamemBERT's ids
 *   charsmap           the table of normal forms          graphemes       what one character is */
#ifndef MC_TOKENIZERS_UNIGRAM_INTERNAL_H
#define MC_TOKENIZERS_UNIGRAM_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tokenizers/unigram/charsmap_internal.h"
#include "tokenizers/trie_internal.h"

/* SentencePiece's numbers. */
typedef enum mc_piece_type {
    MC_PIECE_NORMAL = 1,
    MC_PIECE_UNKNOWN = 2,
    MC_PIECE_CONTROL = 3,
    MC_PIECE_USER_DEFINED = 4,
    MC_PIECE_UNUSED = 5,
    MC_PIECE_BYTE = 6
} mc_piece_type;

typedef enum mc_prepend { MC_PREPEND_NEVER = 0, MC_PREPEND_FIRST, MC_PREPEND_ALWAYS } mc_prepend;

enum {
    MC_PIECE_MAX = 8000, /* a piece has fewer bytes, as in SentencePiece: it bounds the time of a
                            character */
    MC_STEPS_MAX = 16,
    MC_SPACE_SIZE = 3 /* of the space's symbol */
};

/* U+2581, which stands for a space in pieces. */
#define MC_SPACE_SYMBOL "\xE2\x96\x81"

/* A step of Hugging Face's normalizer. */
typedef enum mc_step_kind {
    MC_STEP_CHARSMAP = 0,
    MC_STEP_STRIP,
    MC_STEP_SPACES,
    MC_STEP_FORM,
    MC_STEP_PREPEND,
    MC_STEP_REPLACE
} mc_step_kind;

enum { MC_STEP_TEXT = 16 };

typedef struct mc_step {
    mc_step_kind kind;
    bool left, right; /* strip: white space at which ends */
    bool symbol;      /* spaces: two and more become the space's symbol, not one space */
    int form;         /* form: an mc_unicode_form */
    char from[MC_STEP_TEXT], to[MC_STEP_TEXT]; /* replace; prepend puts `to` in front */
} mc_step;

/* What an ASCII byte is where another one or the end follows. */
enum { MC_UNIGRAM_SLOW = 0, MC_UNIGRAM_PLAIN, MC_UNIGRAM_SPACE };

typedef struct mc_unigram {
    /* set by the loader */
    double *scores; /* heap, (count), by id */
    uint8_t *types; /* heap, (count): mc_piece_type */
    size_t count;   /* of entries */
    mc_charsmap charsmap;
    bool t5;           /* texts end with </s> */
    bool fairseq;      /* ids are fairseq's: the last is <mask>, which takes in spaces before it */
    int64_t sentinels; /* how many of them are after the vocabulary */
    bool by_library;   /* the SentencePiece library encodes: a model of another type */
    bool bpe;          /* a BPE model: merges of characters (bpe_pieces.c), unless by_library */
    struct mc_sentencepiece *library;
    char *source; /* heap: the file, for saving */
    size_t source_size;
    bool single; /* SentencePiece's rules: f32 */
    bool byte_fallback;
    int32_t unk_id; /* -1: none */
    /* SentencePiece's normaliser */
    bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces, whitespace_as_suffix;
    bool prefix_first; /* there is a dummy prefix at a text's start, not after special tokens */
    char *unk_surface; /* heap */
    /* Hugging Face's */
    mc_step steps[MC_STEPS_MAX];
    int step_count;
    bool split_white; /* WhitespaceSplit stands before Metaspace */
    mc_prepend prepend, decoder_prepend;
    bool split_symbols; /* Metaspace splits */
    bool plain;         /* no pre-tokenizer: texts as they are, without symbols of spaces */
    bool joins_spaces;  /* no decoder: spaces between tokens */
    bool joins_plain;   /* a decoder of no steps: the tokens as they are */
    bool fuses;         /* a decoder that puts spaces for symbols and, */
    bool joins_bytes;   /* where this is said, characters for pieces of bytes, */
    int64_t strips;     /* and takes as many spaces off the text's start */

    /* derived by mc_unigram_finish */
    double *weights; /* heap, (count): what a piece adds; -INFINITY: it is in no text */
    double unknown;  /* what an unknown character adds */
    bool separable;  /* every piece has the space's symbol at its front or not at all, so that the
                         words of a text do not depend on one another */
    bool fast;       /* texts can be cut at spaces of ASCII before they are normalised */
    double highest;  /* what a word that the cache takes can add to a sum, at most */
    bool cacheable;  /* scores are such that sums can be judged without computing them anew */
    mc_trie symbols; /* user-defined pieces, which normalising leaves alone */
    bool has_symbols;
    int32_t byte_ids[256]; /* with byte_fallback */
    uint8_t bytes[256];    /* MC_UNIGRAM_* */
    uint64_t fingerprint;  /* of all that ids depend on */
} mc_unigram;

/* The best pieces up to a place. */
typedef struct mc_unigram_node {
    double best;
    float gap;      /* to the second best, as far as it was met */
    uint32_t start; /* of its last piece; UINT32_MAX: not reached */
    int32_t id;
} mc_unigram_node;

/* A word whose ids are known. */
typedef struct mc_unigram_word {
    uint64_t key[2]; /* its bytes without the space's symbol in front, then zeros */
    int32_t ids[4];  /* (count) */
    float gap;       /* the closest decision on the way to them, less what rounding may be */
    float lowest;    /* the smallest sum on the way, from a sum of 0 */
    uint8_t length;  /* in bytes + 1; 0: the place is free */
    uint8_t count;
} mc_unigram_word;

/* Working memory of one thread. */
typedef struct mc_unigram_scratch {
    uint64_t owner; /* the vocabulary whose words these are */
    mc_unigram_word *words;
    size_t word_count, words_put;
    mc_unigram_node *nodes; /* (node_capacity) */
    size_t node_capacity;
} mc_unigram_scratch;

void mc_unigram_scratch_release(mc_unigram_scratch *scratch);

/* Where sums have got to in a text. */
typedef struct mc_unigram_sum {
    double value;  /* 0 at a text's start */
    bool unknown;  /* the last piece was unknown */
    size_t spaces; /* symbols of spaces that are dropped if nothing follows */
} mc_unigram_sum;

/* What a word's decisions were like. */
typedef struct mc_unigram_path {
    float gap, lowest;
    bool unknown; /* it has an unknown piece */
} mc_unigram_path;

#endif
