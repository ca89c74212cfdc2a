/* Tokenizers: text to token ids and back.
 *
 *     mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, "bert-base-uncased");
 *     mc_encoding e = { 0 };
 *     mc_tokenizer_encode(tok, "Hello!", 6, NULL, 0, 512, &e);    ids 101 7592 999 102
 *     char *text = mc_tokenizer_decode(tok, e.ids, e.count, true);   "hello!"
 *
 * WordPiece (BERT), byte-level BPE (GPT-2, Llama 3, Qwen) and BPE of characters (Llama; from a
 * .model alone as SentencePiece), exact against Hugging Face's fast tokenizers (`tokenizers` 0.23):
 * normal form, words, pieces, special tokens, truncation, decoding. Unigram (T5, mT5), exact
 * against SentencePiece 0.2.2 and later where a folder has its .model, and against Hugging Face's
 * where it has a tokenizer.json alone. CPM-1's and CPM-2's, exact against ModelCenter's over jieba
 * 0.42.1. The files of a folder decide which one is opened. A tokenizer belongs to its context, is
 * read-only once made and may be used by several threads at a time, each with its own mc_encoding.
 * Time is linear in the text, whatever it holds (a single word of n bytes takes n log n where
 * merges are in an order that no training writes, one before another that makes a part of it). */
#ifndef MC_TOKENIZERS_TOKENIZER_H
#define MC_TOKENIZERS_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"

typedef struct mc_tokenizer mc_tokenizer;

/* Whether text is lowercased, which a bare vocab.txt does not say. Unless something else is said,
 * accents are stripped where text is lowercased, as in the original BERT. */
typedef enum mc_lowercase {
    MC_LOWERCASE_DEFAULT = 0, /* as tokenizer_config.json ("do_lower_case") or, without it,
                                 BERT's class or tokenizer.json says; where none does:
                                 uncased, unless the vocabulary holds an entry that lowercasing
                                 would change, names in brackets ([CLS], <S>) aside */
    MC_LOWERCASE_NO,
    MC_LOWERCASE_YES,
} mc_lowercase;

typedef struct mc_tokenizer_options {
    mc_lowercase lowercase;
    /* Where an identifier's files come from: as in mc_load_options. */
    const char *revision, *cache_dir;
    bool local_files_only;
    /* Of an adapter's folder that has no tokenizer, the base whose tokenizer is
     * opened; NULL: the one that the adapter names. */
    const char *base;
} mc_tokenizer_options;

/* Opens the tokenizer of a folder or of an identifier, from the Hugging Face cache or the hub, as
 * core/hub/hub.h says. `options` may be NULL. The first of these that is there is
 * read:
 *
 *   spiece.model     (or sentencepiece.bpe.model, sentencepiece.model, tokenizer.model) A
 *                    SentencePiece model: Unigram or BPE, or of another of its types where this
 *                    build has the SentencePiece library (which also merges BPE whose pieces do not
 *                    say all: unused ones, two of one score, a character that is no piece). Where
 *                    tokenizer_config.json names another class
 *                    than T5's, MT5's or a general one, a
 *                    tokenizer.json beside it is read instead. The class LlamaTokenizer puts the
 *                    space in front of a text at its start alone, not after special tokens too,
 *                    unless "legacy" is true; other classes do the opposite. Control pieces are
 *                    special tokens. A
 *                    spiece.model is T5's unless tokenizer_config.json says otherwise: texts end
 *                    with </s>, and 100 sentinels (or "extra_ids"), <extra_id_99> first, come
 *                    after the pieces and before other added tokens, unless they are pieces of
 *                    the model as mT5's are. Where the files list extra special tokens, the
 *                    sentinels that the list lacks are pieces, which stand after a space's.
 *                    Others do as "add_bos_token" and "add_eos_token" say.
 *   tokenizer.json   Either a WordPiece model with BertNormalizer, BertPreTokenizer (or none), a
 *                    TemplateProcessing or BertProcessing (or none: then nothing is put around
 *                    texts); or a BPE model without dropout, byte fallback, prefix or suffix, with
 *                    ByteLevel (add_prefix_space or not) as decoder and pre-tokenizer, where steps
 *                    Split (Isolated or Removed, inverted or not) and Digits may stand before it,
 *                    no normalizer but Unicode's forms, and ByteLevel, TemplateProcessing,
 *                    RobertaProcessing or nothing
 *                    after it. Split's patterns of GPT-2, cl100k (Llama 3), Qwen, o200k and Tekken
 *                    are known, others go through PCRE2 (whose Unicode decides what the newest
 *                    characters are), and are MC_ERR_UNSUPPORTED in a build without it;
 *                    or a BPE model of characters (without ByteLevel), with Prepend and Replace (of
 *                    a text) as normalizers, Metaspace or nothing as pre-tokenizer, and as decoder
 *                    Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip; of class
 *                    LlamaTokenizer these parts are the class's, as above;
 *                    or a Unigram model without byte fallback, with Precompiled, Strip
 *                    and Replace (of spaces) as normalizers, Metaspace or WhitespaceSplit and
 *                    Metaspace as pre-tokenizer (or none), Metaspace or nothing as decoder. Without
 *                    a pre-tokenizer the text between added tokens is one word. Added tokens come
 *                    with all their settings; of truncation the side counts, its length and padding
 *                    belong to a call.
 *                    NFC, NFD, NFKC and NFKD are read before the other normalizers. A Sequence may
 *                    be empty, but a BPE model's pre-tokenizer and decoder: of a decoder it joins
 *                    tokens without spaces.
 *   vocab.txt        WordPiece, one entry a line without the white space at its end: ids are line
 *                    numbers, of empty and of repeated lines the last one counts. With
 *                    an entry </_> it is CPM-1's, with <s_0> CPM-2's: an entry a line without white
 *                    space around it, and nothing but the vocabulary is read. These need a
 *                    dictionary of Chinese words: that of the installation, or what MC_JIEBA_DIR
 *                    names (a folder with a jieba.bin, or that of Python's jieba).
 *   vocab.json       Byte-level BPE with merges.txt ("#version" lines are skipped).
 *                    <|endoftext|> is a special token if it is an entry. RoBERTa's (by its class
 *                    or, if none is named, by entries <s>, </s> and <mask>) puts <s> and </s>
 *                    around texts, and <mask> includes the space before it.
 *
 * What lies beside them counts as in transformers 5.24. tokenizer_config.json wins: special and
 * added tokens, texts or objects with settings; do_lower_case, strip_accents,
 * tokenize_chinese_chars; add_prefix_space; add_bos_token and add_eos_token (of a
 * tokenizer.json they count instead of its post-processor, but for BERT's, GPT-2's and RoBERTa's
 * classes); model_max_length and truncation_side; clean_up_tokenization_spaces (decoding). Without
 * its "added_tokens_decoder" special_tokens_map.json and added_tokens.json count, too. BERT's,
 * GPT-2's and RoBERTa's classes ("tokenizer_class", of config.json where it has none, or by its
 * "model_type") do not look at a tokenizer.json's normalizer and pre-tokenizer, and what they are
 * not given is their default; a log line says where that differs from the file. A class that is not
 * known is MC_ERR_UNSUPPORTED, unless a tokenizer.json says all; one that cuts words in Python
 * always is. So are keys that would change ids and are not supported (do_basic_tokenize false,
 * never_split, split_special_tokens); keys that no table has (files/keys.c) are log lines.
 *
 * Ids of added tokens that are no entries count on after the vocabulary in the order of the file,
 * whatever ids it names, as in Hugging Face's (a log line says so where they differ).
 *
 * NULL with the context's error set, which names file and line or entry: a missing folder or file;
 * a tokenizer.json of another kind; WordPiece: no entry [UNK], [CLS], [SEP] or [PAD] (or whatever
 * they are called); CPM: no entry <unk>, <pad>, <eod>, or for spaces and line breaks, an entry
 * U+FFF2 or U+FFF3, or no dictionary (MC_ERR_UNSUPPORTED, which says where it was looked for); BPE:
 * a merge that is not two entries, whose result is no entry, or that comes twice, and ids with
 * gaps; Unigram: no unknown piece, a score that is no number, a table of normal forms that points
 * out of itself, a piece of 8000 bytes and more; an entry that comes twice, or is empty (but
 * in a vocab.txt of WordPiece's); two entries of one id; more
 * than 2^24 entries; bytes that are no UTF-8; a file of more than 512 MiB; memory. */
MC_API mc_tokenizer *mc_tokenizer_from_pretrained(mc_context *ctx, const char *identifier);
MC_API mc_tokenizer *mc_tokenizer_open(mc_context *ctx, const char *identifier,
                                       const mc_tokenizer_options *options);
/* Frees it before its context does. NULL is allowed. */
MC_API void mc_tokenizer_free(mc_tokenizer *tok);

/* 1 + the largest id, added tokens included; 0 for NULL. */
MC_API int mc_tokenizer_vocab_size(const mc_tokenizer *tok);
/* The id of exactly this entry or added token, -1 if there is none. Entries of a byte-level
 * vocabulary are written as in its file, in GPT-2's alphabet of bytes ("\u0120the" for " the"). */
MC_API int32_t mc_tokenizer_token_to_id(const mc_tokenizer *tok, const char *token);
/* The text of an id, NULL if there is none. Belongs to the tokenizer. */
MC_API const char *mc_tokenizer_id_to_token(const mc_tokenizer *tok, int32_t id);
/* The ids that pad a batch, begin a text and end one; -1 for NULL, and where a tokenizer has
 * none (GPT-2's has none of these, T5's nothing that begins a text). */
MC_API int32_t mc_tokenizer_pad_id(const mc_tokenizer *tok);
MC_API int32_t mc_tokenizer_cls_id(const mc_tokenizer *tok);
MC_API int32_t mc_tokenizer_sep_id(const mc_tokenizer *tok);
/* The id that stands in place of a token that is to be guessed (BERT's [MASK]); -1 as above. */
MC_API int32_t mc_tokenizer_mask_id(const mc_tokenizer *tok);
/* The id that stands between the texts of a stream: GPT-2's <|endoftext|>, T5's </s>, or the
 * eos_token that tokenizer_config.json names; -1 if there is none (BERT's) and for NULL. */
MC_API int32_t mc_tokenizer_end_of_text_id(const mc_tokenizer *tok);

/* Ids of one text or pair. Starts as { 0 }; use one value for many calls: its arrays and working
 * memory grow to what the texts need and stay, so that later calls allocate nothing. Byte-level BPE
 * keeps the words it has met here, in 2 MiB at most, and takes 24 bytes for each of its longest
 * word; CPM up to 26 bytes for each of the longest stretch without a space or punctuation. */
typedef struct mc_encoding {
    int32_t *ids;      /* (count) */
    uint8_t *type_ids; /* (count): 0 for the first text and its specials, 1 for the second */
    size_t count;
    size_t capacity;                   /* private */
    struct mc_encode_scratch *scratch; /* private */
} mc_encoding;

/* Encodes `[CLS] text [SEP]` or, with a pair, `[CLS] text [SEP] pair [SEP]` (or what the file's
 * post-processor puts there; GPT-2's and CPM's put nothing). `pair` NULL is a single text, an empty
 * pair still is a pair. Texts are UTF-8 of the given lengths in bytes, without a NUL needed after;
 * NULs in them count. Bytes that are no UTF-8 are U+FFFD to WordPiece (BERT's clean-up drops it);
 * to byte-level BPE they are symbols, neither letter nor space, and keep their bytes, so that
 * decoding can give them back; to SentencePiece each is U+FFFD. Special tokens written in a text
 * are those tokens; to CPM only those for a space and a line break (</_>, </n>; U+2582, U+2583), as
 * in ModelCenter.
 *
 * `max_length` > 0 truncates to at most that many ids, specials included, by cutting ends off, the
 * longer text's first (or starts, where mc_tokenizer_cuts_start); 0 does not truncate. Where ends
 * are cut a text is encoded only as far as truncation can need it: up to the word in which it
 * reaches max_length ids. Where two texts both reach the same number, that decides which of them
 * gets an odd last place, as it does in `tokenizers` 0.23.1 and 0.23.2 (0.22 and 0.23.3 compare
 * whole lengths, as is done here where starts are cut).
 *
 * Returns MC_OK; MC_ERR_NOMEM; MC_ERR_ARGUMENT for a NULL tokenizer or a max_length too small for
 * the special tokens; MC_ERR_UNSUPPORTED for a single word of 2 GiB or more; after an error the
 * encoding is empty and still usable. Touches no context. */
MC_API mc_status mc_tokenizer_encode(const mc_tokenizer *tok, const char *text, size_t text_length,
                                     const char *pair, size_t pair_length, size_t max_length,
                                     mc_encoding *encoding);

/* Bytes of UTF-8; they need no NUL after them. */
typedef struct mc_text_span {
    const char *data; /* NULL only of size 0 */
    size_t size;
    const char *file; /* where it comes from, as errors say it ("rows.csv:12"); NULL: its number */
    int64_t line;
} mc_text_span;

/* Ids of many texts, one after the other without padding: a packed batch, as a model takes it with
 * its lengths. Starts as { 0 } and is used for many calls, as an mc_encoding is. */
typedef struct mc_batch_encoding {
    int32_t *ids;      /* (count) */
    uint8_t *type_ids; /* (count) */
    int32_t *lengths;  /* (rows): how many of the ids are each text's */
    size_t count, rows;
    size_t longest;                /* the largest length, 0 without rows */
    size_t capacity, row_capacity; /* private */
    mc_encoding one;               /* private */
} mc_batch_encoding;

/* Encodes `count` texts, or pairs where `pairs` (count) is not NULL, as mc_tokenizer_encode does
 * each.
 *
 *     mc_batch_encoding b = { 0 };
 *     mc_tokenizer_encode_batch(tok, texts, NULL, 32, 512, &b);
 *     const mc_lengths *l = mc_tape_lengths(t, b.lengths, (int)b.rows, 0);
 *
 * Errors as there, also set in the context, with the number of the text; the batch is empty then
 * and still usable. A call for the context's own thread. */
MC_API mc_status mc_tokenizer_encode_batch(const mc_tokenizer *tok, const mc_text_span *texts,
                                           const mc_text_span *pairs, size_t count,
                                           size_t max_length, mc_batch_encoding *batch);
/* Frees what it holds and makes it { 0 } again. */
MC_API void mc_batch_encoding_release(mc_batch_encoding *batch);

/* Frees what it holds and makes it { 0 } again. */
MC_API void mc_encoding_release(mc_encoding *encoding);

/* Decodes ids to text as Hugging Face's decode does. WordPiece: pieces joined, spaces between
 * words, and the decoder's clean-up of English punctuation (`don ' t .` keeps its first spaces, "
 * ." closes up). Byte-level BPE: the bytes of all tokens, with U+FFFD for what is no UTF-8 in the
 * whole of them. Unigram: as SentencePiece does from a .model (an unknown piece is " \u2047 ", also
 * where special tokens are left out), as Hugging Face does from a tokenizer.json. CPM: the tokens'
 * text, with spaces and line breaks for their tokens; <unk> stays where special tokens are left
 * out. Skips ids out of range, and with `skip_special` special tokens. Gives a heap string for
 * mc_string_free, NULL when memory is out. */
MC_API char *mc_tokenizer_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                                 bool skip_special);

typedef struct mc_decode_options {
    bool skip_special; /* leave special tokens out */
    bool raw_bytes;    /* byte-level BPE: bytes that are no UTF-8 as they are, not U+FFFD (pieces
                          of a text that is still growing may end within a character) */
    bool skip_unknown; /* leave ids out that are no tokens: a model may know more */
} mc_decode_options;

/* As mc_tokenizer_decode, with the size (a text may hold NULs; the one after it does not count)
 * and strict by default: an id that is no token gives NULL and the context's error,
 * which names its place in the list. `options` may be NULL. An error makes this a call for the
 * context's own thread. */
MC_API char *mc_tokenizer_decode_sized(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                                       const mc_decode_options *options, size_t *size);
MC_API void mc_string_free(char *string);

/* Writes the tokenizer's files into a folder (created if needed), so that the folder opens with the
 * same tokenizer again, here and in `transformers`.
 *
 * WordPiece: vocab.txt and tokenizer_config.json. A tokenizer.json comes with them where they
 * cannot say everything (added tokens, other settings than BERT's; then vocab.txt is left out if an
 * entry does not fit on a line or an id has none) and where the folder holds one already, which
 * would be read instead. Byte-level BPE: tokenizer.json, tokenizer_config.json, and vocab.json with
 * merges.txt, unless an entry that is merged holds white space, as none of GPT-2's alphabet does.
 * CPM: vocab.txt; MC_ERR_ARGUMENT where the folder holds a tokenizer.json, which would be read
 * instead. Unigram: the .model or tokenizer.json that it was read from, byte for byte, and
 * tokenizer_config.json; an error where the folder holds a model that would be read instead.
 *
 * All files are written aside and synced before the first is renamed into place. On failure the
 * context's error is set and returned; the files before are still there. In a job of several ranks
 * rank 0 writes; on the others this does nothing, and they need not call it. */
MC_API mc_status mc_tokenizer_save(const mc_tokenizer *tok, const char *folder);

#endif
