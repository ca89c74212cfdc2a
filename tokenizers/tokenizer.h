/* Tokenizers: text to token ids and back.
 *
 *     mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, "bert-base-uncased");
 *     mc_encoding e = { 0 };
 *     mc_tokenizer_encode(tok, "Hello!", 6, NULL, 0, 512, &e);    ids 101 7592 999 102
 *     char *text = mc_tokenizer_decode(tok, e.ids, e.count, true);   "hello!"
 *
 * The files of a folder decide the kind (mc_tokenizer_open). Each kind gives the ids of the program
 * beside it: normal form, words, pieces, special tokens, truncation and decoding are the same.
 *
 *   WordPiece           BERT                   Hugging Face's `tokenizers` 0.23
 *   byte-level BPE      GPT-2, Llama 3, Qwen   the same
 *   BPE of characters   Llama, Mistral         the same; from a .model alone, SentencePiece
 *   Unigram             T5, mT5, XLM-R         SentencePiece 0.2.2 and later; from a tokenizer.json
 *                                              alone, `tokenizers`
 *   CPM                 CPM-1, CPM-2           ModelCenter over jieba 0.42.1
 *
 * A tokenizer belongs to its context and never changes. Several threads may use it at a time, each
 * with an mc_encoding of its own. Time is linear in the length of the text, with one exception: if
 * a merge of BPE comes before another whose result it takes, which no training writes, a word of n
 * bytes takes n log n.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_TOKENIZERS_TOKENIZER_H
#define MC_TOKENIZERS_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"

typedef struct mc_tokenizer mc_tokenizer;

/* Whether text is lowercased, which a vocab.txt alone does not say. Lowercasing also strips
 * accents, as in the original BERT, unless the files say otherwise. */
typedef enum mc_lowercase {
    MC_LOWERCASE_DEFAULT = 0, /* the first that says it: tokenizer_config.json ("do_lower_case"),
                                 BERT's class, tokenizer.json. Else text is lowercased, unless
                                 that would change an entry of the vocabulary; names in brackets
                                 ([CLS], <S>) do not count */
    MC_LOWERCASE_NO,
    MC_LOWERCASE_YES,
} mc_lowercase;

typedef struct mc_tokenizer_options {
    mc_lowercase lowercase;
    /* Where an identifier's files come from: as in mc_load_options. */
    const char *revision, *cache_dir;
    bool local_files_only;
    /* If the folder is an adapter's and has no tokenizer: the base whose tokenizer is opened.
     * NULL: the base that the adapter names. */
    const char *base;
} mc_tokenizer_options;

/* Opens the tokenizer of a folder, or of an identifier: then its files come from the Hugging Face
 * cache or the hub (core/hub/hub.h). `options` may be NULL.
 *
 * Reads the first of these files that the folder has; what each may hold is listed below:
 *
 *   1. spiece.model, sentencepiece.bpe.model, sentencepiece.model, tokenizer.model, vocab.model,
 *      cog-pretrain.model
 *   2. tokenizer.json
 *   3. vocab.txt
 *   4. vocab.json, with merges.txt
 *
 * A .model: Unigram or BPE, of SentencePiece.
 *   - Other types of models, and BPE with unused pieces or with a character inside a piece that is
 *     no piece itself, need a build with the SentencePiece library.
 *   - If tokenizer_config.json names a class other than T5's, MT5's or a general one, a
 *     tokenizer.json beside the .model is read instead.
 *   - Control pieces are special tokens. "add_bos_token" and "add_eos_token" decide what is put
 *     around texts.
 *   - spiece.model is T5's, unless tokenizer_config.json names another class. Texts end with </s>.
 *     After the pieces come 100 sentinels (or "extra_ids" of them), <extra_id_99> first, then other
 *     added tokens. mT5's sentinels are pieces of the model. If the files list extra special
 *     tokens, a sentinel that is not in the list is an ordinary piece, and a space in front of it
 *     a piece of its own.
 *   - XLMRobertaTokenizer and CamembertTokenizer (also by config.json's "model_type") number the
 *     pieces as fairseq does: special tokens first, <mask> last. RoBERTa's tokens are put around
 *     texts. A sentencepiece.bpe.model whose class no file names is an error, unless there is a
 *     tokenizer.json.
 *   - LlamaTokenizer puts a space in front of a text, but not after special tokens, unless "legacy"
 *     is true. Other classes put one after special tokens too.
 *   - vocab.model is that of ModelCenter's GLM: nine special tokens come after the pieces, among
 *     them [CLS], [S], [E] and [MASK].
 *   - GLMChineseTokenizer (cog-pretrain.model) puts added tokens at the ids that the files name,
 *     and cls_token and eos_token around texts.
 *
 * A tokenizer.json: a model, with the parts that are listed for it. Parts may be missing,
 * except byte-level BPE's pre-tokenizer and decoder. Without a pre-tokenizer the text between added
 * tokens is one word, without a post-processor nothing is put around texts. Added tokens have all
 * their settings. Of "truncation" the side counts; length and padding belong to a call.
 *   - WordPiece. Normalizer: BertNormalizer. Pre-tokenizer: BertPreTokenizer. Post-processor:
 *     TemplateProcessing, BertProcessing, RobertaProcessing.
 *   - Byte-level BPE. Pre-tokenizer: steps Split (Isolated or Removed, also inverted) and Digits,
 *     then ByteLevel. Decoder: ByteLevel. Post-processor: ByteLevel, TemplateProcessing,
 *     RobertaProcessing. Dropout, prefixes, suffixes and byte fallback are refused. Split's
 *     patterns of GPT-2, cl100k (Llama 3), Qwen, o200k and Tekken are C code. Others need a build
 *     with PCRE2, whose version of Unicode decides what the newest characters are; without it
 *     they are MC_ERR_UNSUPPORTED.
 *   - BPE of characters. Normalizer: Prepend, Replace (of a text). Pre-tokenizer: Metaspace.
 *     Decoder: Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip. Class
 *     LlamaTokenizer has its own parts, as with a .model.
 *   - Unigram, without byte fallback. Normalizer: Precompiled, Strip, Replace (of spaces).
 *     Pre-tokenizer: Metaspace, or WhitespaceSplit and Metaspace. Decoder: Metaspace.
 *   - NFC, NFD, NFKC and NFKD may come before the other normalizers. A Sequence may be empty,
 *     except as the pre-tokenizer or decoder of BPE; an empty decoder joins tokens without spaces.
 *
 * A vocab.txt: WordPiece, or CPM's.
 *   - WordPiece: an entry a line, without the white space at its end. Ids are line numbers; of
 *     repeated or empty lines the last one counts.
 *   - With an entry </_> it is CPM-1's, with <s_0> CPM-2's: an entry a line, without white space
 *     around it. No other file of the folder is read. A dictionary of Chinese words is required:
 *     the installed one, or the one in the folder that MC_JIEBA_DIR names (jieba.bin, or Python's
 *     jieba).
 *
 * A vocab.json with merges.txt: byte-level BPE. Lines "#version" are skipped.
 *   - <|endoftext|> is a special token if it is an entry.
 *   - RoBERTa's, by its class or, if none is named, by the entries <s>, </s> and <mask>: <s> and
 *     </s> are put around texts, and <mask> includes the space before it.
 *   - Qwen2Tokenizer (also by config.json's "model_type" qwen2 or qwen3): NFC, and words of its
 *     own.
 *
 * A GGUF file has its tokenizer inside (docs/files.md).
 *
 * Files beside these count as in transformers 5.24.
 *   - tokenizer_config.json comes first: special and added tokens, as texts or objects with
 *     settings; do_lower_case, strip_accents, tokenize_chinese_chars; add_prefix_space;
 *     add_bos_token and add_eos_token, which replace a tokenizer.json's post-processor, except of
 *     BERT's, GPT-2's and RoBERTa's classes; model_max_length, truncation_side;
 *     clean_up_tokenization_spaces, for decoding.
 *   - special_tokens_map.json and added_tokens.json count if it has no "added_tokens_decoder".
 *   - BERT's, GPT-2's and RoBERTa's classes ("tokenizer_class", else that of config.json, else by
 *     its "model_type") ignore a tokenizer.json's normalizer and pre-tokenizer, and use their own
 *     defaults. A log line reports a difference.
 *   - An unknown class is MC_ERR_UNSUPPORTED, unless there is a tokenizer.json. A class that cuts
 *     words in Python always is, and so are keys that would change ids (do_basic_tokenize false,
 *     never_split, split_special_tokens). Unknown keys (files/keys.c lists the known ones) are log
 *     lines.
 *   - An added token that is no entry gets the next free id after the vocabulary, in the order of
 *     the file, as in Hugging Face's tokenizers. A log line reports it if the file names another.
 *
 * Returns NULL with the context's error set, which names the file and the line or entry:
 *   - a missing folder or file; a tokenizer.json of another kind; more than 512 MiB or 2^24
 *     entries; bytes that are not UTF-8; out of memory
 *   - an entry that is empty or comes twice (both are allowed in a vocab.txt of WordPiece); two
 *     entries of one id
 *   - WordPiece: no entry [UNK], [CLS], [SEP] or [PAD], or the names that replace them
 *   - CPM: no entry <unk>, <pad> or <eod>, or none for spaces and line breaks; an entry U+FFF2 or
 *     U+FFF3; no dictionary (MC_ERR_UNSUPPORTED, with the places that were searched)
 *   - BPE: a merge that comes twice, is not of two entries, or has no entry as its result; ids with
 *     gaps
 *   - Unigram: no unknown piece; a score that is not a number; a table of normal forms that points
 *     outside itself; a piece of 8000 bytes or more */
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
/* The ids that pad a batch, begin a text and end one; -1 if the tokenizer has none (GPT-2's has
 * none of the three, T5's none that begins a text), and for NULL. */
MC_API int32_t mc_tokenizer_pad_id(const mc_tokenizer *tok);
MC_API int32_t mc_tokenizer_cls_id(const mc_tokenizer *tok);
MC_API int32_t mc_tokenizer_sep_id(const mc_tokenizer *tok);
/* The id that replaces a token to be predicted (BERT's [MASK]); -1 as above. */
MC_API int32_t mc_tokenizer_mask_id(const mc_tokenizer *tok);
/* The id between the texts of a stream: GPT-2's <|endoftext|>, T5's </s>, or the
 * eos_token that tokenizer_config.json names; -1 if there is none (BERT's) and for NULL. */
MC_API int32_t mc_tokenizer_end_of_text_id(const mc_tokenizer *tok);

/* Ids of one text or pair. Starts as { 0 }. Use one value for many calls: its arrays and working
 * memory grow to what the texts need and are kept, so later calls allocate nothing. Byte-level BPE
 * caches words here, in 2 MiB at most, and needs 24 bytes for each byte of its longest word. CPM
 * needs up to 26 bytes for each byte of the longest run without a space or punctuation. */
typedef struct mc_encoding {
    int32_t *ids;      /* (count) */
    uint8_t *type_ids; /* (count): 0 for the first text and its specials, 1 for the second */
    size_t count;
    size_t capacity;                   /* private */
    struct mc_encode_scratch *scratch; /* private */
} mc_encoding;

/* Encodes `[CLS] text [SEP]` or, with a pair, `[CLS] text [SEP] pair [SEP]`, or with the special
 * tokens of the file's post-processor (GPT-2's and CPM's add none). `pair` NULL is a single text;
 * an empty pair is a pair. Texts are UTF-8 of the given lengths in bytes; they need no NUL at the
 * end, and may contain NULs.
 *
 * Bytes that are not UTF-8: byte-level BPE treats them as symbols, neither letter nor space, which
 * decoding restores; for the others each is U+FFFD, which BERT's clean-up removes.
 *
 * A special token written in a text becomes that token. With CPM only those of a space and a line
 * break do (</_>, </n>; U+2582, U+2583), as in ModelCenter.
 *
 * `max_length` > 0 truncates to at most that many ids, specials included; 0 does not truncate. The
 * longer text is cut first, at its end, or at its start if mc_tokenizer_cuts_start. When ends are
 * cut, a text is encoded only up to the word in which it reaches max_length ids. Two texts that
 * reach the same number count as equally long, and this decides which of them keeps an odd last
 * place, as in `tokenizers` 0.23.1 and 0.23.2. (0.22 and 0.23.3 compare whole lengths, and so does
 * cutting at starts.)
 *
 * Returns MC_OK; MC_ERR_NOMEM; MC_ERR_ARGUMENT for a NULL tokenizer or a max_length too small for
 * the special tokens; MC_ERR_UNSUPPORTED for a single word of 2 GiB or more. After an error the
 * encoding is empty and still usable. Does not use the context. */
MC_API mc_status mc_tokenizer_encode(const mc_tokenizer *tok, const char *text, size_t text_length,
                                     const char *pair, size_t pair_length, size_t max_length,
                                     mc_encoding *encoding);

/* Bytes of UTF-8; they need no NUL after them. */
typedef struct mc_text_span {
    const char *data; /* NULL only of size 0 */
    size_t size;
    const char *file; /* its source, for errors ("rows.csv:12"); NULL: errors give its number */
    int64_t line;
} mc_text_span;

/* Ids of many texts, one after the other without padding: the packed batch that a model takes, with
 * its lengths. Starts as { 0 }; use one value for many calls, as an mc_encoding. */
typedef struct mc_batch_encoding {
    int32_t *ids;      /* (count) */
    uint8_t *type_ids; /* (count) */
    int32_t *lengths;  /* (rows): the number of ids of each text */
    size_t count, rows;
    size_t longest;                /* the largest length, 0 without rows */
    size_t capacity, row_capacity; /* private */
    mc_encoding one;               /* private */
} mc_batch_encoding;

/* Encodes `count` texts, or pairs if `pairs` (count) is not NULL, as mc_tokenizer_encode does each.
 *
 *     mc_batch_encoding b = { 0 };
 *     mc_tokenizer_encode_batch(tok, texts, NULL, 32, 512, &b);
 *     const mc_lengths *l = mc_tape_lengths(t, b.lengths, (int)b.rows, 0);
 *
 * Errors are those of mc_tokenizer_encode, also set in the context, with the number of the text.
 * After an error the batch is empty and still usable. Call it from the context's own thread. */
MC_API mc_status mc_tokenizer_encode_batch(const mc_tokenizer *tok, const mc_text_span *texts,
                                           const mc_text_span *pairs, size_t count,
                                           size_t max_length, mc_batch_encoding *batch);
/* Frees the arrays and sets all members to 0 again. */
MC_API void mc_batch_encoding_release(mc_batch_encoding *batch);

/* Frees the arrays and sets all members to 0 again. */
MC_API void mc_encoding_release(mc_encoding *encoding);

/* Decodes ids to text as Hugging Face's decode does:
 *
 *   WordPiece        pieces joined, a space between words, English punctuation cleaned up (" ." is
 *                    closed up; `don ' t .` keeps its first spaces)
 *   byte-level BPE   the bytes of all tokens; U+FFFD for what is then not UTF-8
 *   Unigram          from a .model as SentencePiece does (an unknown piece is " \u2047 ", also with
 *                    skip_special), from a tokenizer.json as Hugging Face does
 *   CPM              the tokens' text, with spaces and line breaks for their tokens; <unk> stays
 *                    with skip_special
 *
 * Skips ids out of range, and with `skip_special` special tokens. Returns a string for
 * mc_string_free; NULL if out of memory. */
MC_API char *mc_tokenizer_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                                 bool skip_special);

typedef struct mc_decode_options {
    bool skip_special; /* leave special tokens out */
    /* byte-level BPE: keep bytes that are not UTF-8 (the text of an unfinished answer may end
     * within a character) */
    bool raw_bytes;
    bool skip_unknown; /* leave out ids without a token: a model may have more rows */
} mc_decode_options;

/* As mc_tokenizer_decode, but strict by default: for an id without a token it returns NULL and sets
 * the context's error, which names the id's place in the list. `*size` is in bytes, without the NUL
 * at the end; a text may contain NULs. `options` may be NULL. Call it from the context's own
 * thread, since it may set an error. */
MC_API char *mc_tokenizer_decode_sized(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                                       const mc_decode_options *options, size_t *size);
MC_API void mc_string_free(char *string);

/* Writes the tokenizer's files into a folder (created if needed), so that the folder opens with the
 * same tokenizer again, here and in `transformers`.
 *
 *   WordPiece        vocab.txt, tokenizer_config.json. Also a tokenizer.json if these cannot say
 *                    everything (added tokens, settings that are not BERT's), or if the folder has
 *                    one already, which would be read instead. vocab.txt is left out if an entry
 *                    does not fit on a line or an id has none
 *   byte-level BPE   tokenizer.json, tokenizer_config.json; vocab.json and merges.txt too, unless
 *                    an entry that is merged contains white space (none of GPT-2's alphabet does)
 *   CPM              vocab.txt. MC_ERR_ARGUMENT if the folder has a tokenizer.json, which would be
 *                    read instead
 *   .model, Unigram  the file that was read, byte for byte, and tokenizer_config.json. An error if
 *                    the folder has a model that would be read instead
 *
 * All files are written under other names and synced before the first is renamed. On failure the
 * context's error is set and returned, and the old files are still there. In a job of several ranks
 * rank 0 writes; the others need not call it, and if they do, nothing happens. */
MC_API mc_status mc_tokenizer_save(const mc_tokenizer *tok, const char *folder);

#endif
