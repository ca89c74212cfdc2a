/* The tokenizers' inside, shared by the files of this room.
 *
 *   unicode*     what code points are, and their forms normalizer  text to normal form
 *   trie         longest match                         wordpiece   text without added tokens to ids
 *   vocabulary   entries, added tokens, templates      encode      added tokens, pairs, truncation
 *   open         folder, vocab.txt                     decode      ids to text
 *   open_json    tokenizer.json                        save        a folder that opens again
 *   settings*    what the configuration files beside a vocabulary say; keys: what they may say
 *   bpe, bpe_*   byte-level BPE, in bpe_internal.h
 *   cpm          CPM                         jieba*        Chinese words, in jieba_internal.h
 *   unigram_*    Unigram and SentencePiece's models, in unigram_internal.h
 *
 * Making one goes: a loader (open, open_json) fills `entries`, `added` and the settings of a zeroed
 * mc_tokenizer, then mc_tokenizer_finish() checks it and derives all the rest. */
#ifndef MC_TOKENIZERS_TOKENIZER_INTERNAL_H
#define MC_TOKENIZERS_TOKENIZER_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "tokenizers/bpe/bpe_internal.h"
#include "core/base/bytes_internal.h"
#include "tokenizers/cpm/jieba_internal.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/trie_internal.h"
#include "tokenizers/unicode/unicode_internal.h"
#include "tokenizers/unicode/unicode_forms_internal.h"
#include "tokenizers/unigram/unigram_internal.h"

enum {
    MC_TOKENS_MAX = 1 << 24, /* entries there may be */
    MC_MODEL_NAMES = 6,      /* that a SentencePiece model may have */
    MC_MODEL_OF_GLM = 4,     /* which of them is that of ModelCenter's GLM */
    MC_TEMPLATE_MAX = 16,    /* special tokens a template may put at one place */
    MC_TOKENIZER_FILE_MAX = 1 << 29
};

/* ---- normalizer.c ---- */

typedef enum mc_strip_accents {
    MC_STRIP_AS_LOWERCASE = 0, /* null in the file: where lowercasing is on */
    MC_STRIP_NO,
    MC_STRIP_YES
} mc_strip_accents;

/* The settings of Hugging Face's BertNormalizer, under its names. */
typedef struct mc_normalizer_options {
    bool clean_text, handle_chinese_chars, lowercase;
    mc_strip_accents strip_accents;
} mc_normalizer_options;

/* What a byte is to the word scanner. A byte of a word is its own (lowercased) value; OTHER are
 * bytes past ASCII and control characters, which take the general path. */
enum { MC_BYTE_SPACE = 0, MC_BYTE_PUNCT, MC_BYTE_OTHER, MC_BYTE_WORD };

typedef struct mc_normalizer {
    bool identity; /* changes nothing: for text in normal form, which is only cut into words */
    bool clean, chinese, strip, lower;
    uint16_t attention; /* flags of the code points that it changes */
    uint8_t bytes[256]; /* MC_BYTE_* */
} mc_normalizer;

/* NULL options: the identity. */
void mc_normalizer_init(mc_normalizer *normalizer, const mc_normalizer_options *options);

/* Puts `text` in normal form (UTF-8; U+FFFD for bytes that were none) at the end of `out`, in time
 * linear in its size. `spare` is working memory. False when memory is out. */
bool mc_normalizer_run(const mc_normalizer *normalizer, const uint8_t *text, size_t size,
                       mc_bytes *out, mc_bytes *spare);

/* Sets `out` to what added tokens and words are looked for in; `spare` and `before` are working
 * memory. False when memory is out. */
bool mc_tokenizer_normalize(const mc_tokenizer *tok, const uint8_t *text, size_t size,
                            mc_bytes *out, mc_bytes *spare, mc_bytes *before);

/* ---- vocabulary.c ---- */

typedef struct mc_entry {
    size_t offset;   /* of its text, NUL-terminated, in the pool */
    uint32_t length; /* in bytes; 0: there is no entry of this id */
} mc_entry;

typedef struct mc_added_token {
    mc_entry entry;
    int32_t id;           /* set by mc_tokenizer_finish */
    int32_t named_id;     /* what the file said, -1 where it said nothing */
    const char *named_in; /* the file's path, of the settings; NULL: the vocabulary's file */
    bool special, normalized, single_word, lstrip, rstrip;
    /* set by mc_tokenizer_finish: what decoding shows for it, the normal form of a normalized
     * token, and whether decoding leaves it out where it skips special tokens */
    mc_entry shown;
    bool skipped;
} mc_added_token;

/* Finds added tokens in text: leftmost first, the longest at a place. */
typedef struct mc_matcher {
    mc_trie trie;    /* values: indices into tok->added */
    size_t count;    /* of tokens it knows */
    bool first[256]; /* bytes a match can begin with */
    int only_first;  /* that byte if there is but one, else -1 */
} mc_matcher;

/* Where special tokens go: prefix A middle B suffix; a single text has no middle and B. */
typedef struct mc_template_special {
    int32_t id;
    uint8_t type_id;
} mc_template_special;

typedef struct mc_template {
    int prefix_count, middle_count, suffix_count;
    mc_template_special prefix[MC_TEMPLATE_MAX], middle[MC_TEMPLATE_MAX], suffix[MC_TEMPLATE_MAX];
    uint8_t type_a, type_b;
} mc_template;

typedef enum mc_tokenizer_kind {
    MC_TOKENIZER_WORDPIECE = 0,
    MC_TOKENIZER_BYTE_BPE,
    MC_TOKENIZER_UNIGRAM, /* and SentencePiece's other types */
    MC_TOKENIZER_CPM
} mc_tokenizer_kind;

/* Between tokens stands what a WordPiece decoder puts there, a space, or nothing. */
typedef enum mc_decoder_kind {
    MC_DECODER_WORDPIECE = 0,
    MC_DECODER_SPACES,
    MC_DECODER_JOINED
} mc_decoder_kind;

/* CPM's, see cpm.c. */
typedef struct mc_cpm {
    const char *space, *line; /* the entries for a space and a line break; NULL: no CPM */
    int32_t space_id, line_id;
    size_t sentinels;       /* <s_0> ..., one after the other */
    int32_t first_sentinel; /* the id of <s_0> */
    bool stops[256];        /* bytes that a space, a line break or a token for one begins with */
    mc_jieba jieba;
} mc_cpm;

/* The configuration files of a folder: settings_internal.h. */
typedef struct mc_settings mc_settings;

struct mc_tokenizer {
    mc_owned owned;
    mc_context *ctx;
    char *path; /* heap: the file, for errors; set by mc_tokenizer_finish */

    const struct mc_inside *inside; /* while it is opened: its files, if they lie in memory */

    /* set by the loader */
    mc_settings *settings; /* NULL: there are no files of settings */
    int64_t max_length;    /* tokens of a text, as the settings say; 0: no limit */
    bool cuts_left;        /* truncation cuts the start of texts off */
    bool no_types;         /* models are not given the types of a pair's tokens */
    bool cleans_up;        /* decoded text gets its spaces before punctuation taken out */
    mc_tokenizer_kind kind;
    mc_bpe bpe;         /* of a byte-level tokenizer; the loader's and the derived part */
    mc_unigram unigram; /* the same */
    mc_cpm cpm;         /* the same, of CPM-1 and CPM-2 */
    mc_bytes pool;      /* texts of entries and added tokens */
    mc_entry *entries;  /* (entry_count): by id */
    size_t entry_count, entry_capacity;
    bool has_empty;        /* an entry of no characters, which no text holds, but which counts */
    size_t empty_id;       /* its id */
    mc_added_token *added; /* (added_count) */
    size_t added_count, added_capacity;
    mc_normalizer_options normalizer_options;
    bool has_normalizer;
    mc_unicode_form forms[MC_FORMS_MAX]; /* before the rest of the normalizer, but Unigram's */
    int form_count;
    char *unk_token, *cls_token, *sep_token, *pad_token, *mask_token; /* heap */
    char *bos_token, *eos_token;                                      /* heap */
    char *prefix;       /* heap: of continuing pieces, "##" */
    uint64_t max_chars; /* a word of more code points is unknown */
    bool whole_texts;   /* there is no pre-tokenizer: what stands between added tokens is a word */
    mc_decoder_kind decoder;
    char *decoder_prefix; /* heap */
    bool decoder_cleanup;
    mc_template single, pair;
    bool has_templates;     /* else the finish makes BERT's, */
    bool roberta_templates; /* or RoBERTa's, */
    bool ends_templates;    /* or, whatever the loader read, these two around each text: */
    bool puts_bos, puts_eos;

    /* derived by mc_tokenizer_finish */
    size_t model_count;   /* entries that are there, the empty one too */
    size_t id_end;        /* 1 + the largest id, added tokens included */
    int32_t *id_to_added; /* (id_end): index into added, -1 */
    mc_trie trie;         /* all entries */
    uint32_t continuing;  /* the trie's state after the prefix; MC_TRIE_NONE: no piece continues */
    mc_trie added_trie;   /* all added tokens, to their indices */
    mc_matcher raw, normalized;
    mc_normalizer normalizer, identity;
    int32_t unk_id, cls_id, sep_id, pad_id, eos_id;
    int32_t ascii_ids[128]; /* of words of one ASCII character */
};

/* Fresh tokenizer of `ctx` with the defaults of BERT's settings; NULL with the error set. */
mc_tokenizer *mc_tokenizer_new(mc_context *ctx);

/* Adds the text of an entry or added token to the pool. */
bool mc_tokenizer_store(mc_tokenizer *tok, const char *text, size_t length, mc_entry *entry);
static inline const char *mc_tokenizer_text(const mc_tokenizer *tok, mc_entry entry)
{
    return (const char *)tok->pool.data + entry.offset;
}
/* Whether an entry has this id. */
static inline bool mc_tokenizer_holds(const mc_tokenizer *tok, size_t id)
{
    return id < tok->entry_count &&
           (tok->entries[id].length || (tok->has_empty && tok->empty_id == id));
}
/* Adds an added token; its id is given by mc_tokenizer_finish. */
bool mc_tokenizer_add(mc_tokenizer *tok, const mc_added_token *token);
/* Replaces a heap string; false when memory is out. */
bool mc_tokenizer_set_string(char **string, const char *value);

/* `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`. */
void mc_bert_templates(mc_template *single, mc_template *pair, int32_t cls_id, int32_t sep_id);
/* `<s> A </s>` and `<s> A </s></s> B </s>`, all of type 0. */
void mc_roberta_templates(mc_template *single, mc_template *pair, int32_t cls_id, int32_t sep_id);
/* Sorts the added tokens from number `from` on by their named ids. */
void mc_tokenizer_sort_added(mc_tokenizer *tok, size_t from);

/* Indexes the entries, for a loader that looks them up: mc_tokenizer_finish does it otherwise. */
mc_status mc_tokenizer_index(mc_tokenizer *tok, mc_error *err, const char *path, bool lines);
/* Checks what a loader read and derives the rest. `path` names the file in errors; `lines`: entry i
 * stands on line i + 1 of it. */
mc_status mc_tokenizer_finish(mc_tokenizer *tok, mc_error *err, const char *path, bool lines);

/* Whether the entries look cased: one that lowercasing changes, [THIS] and <this> kind aside. */
bool mc_tokenizer_looks_cased(const mc_tokenizer *tok);

/* ---- open.c, open_json.c ---- */

/* Names of SentencePiece's models, the first of them T5's, in the order in which they are looked
 * for. */
extern const char *const mc_model_names[MC_MODEL_NAMES];

/* Fill and finish a new tokenizer from the text of a file that is named `path` in errors. */
mc_status mc_tokenizer_load_vocab(mc_tokenizer *tok, mc_error *err, const char *path,
                                  const char *text, size_t size, mc_lowercase lowercase);
mc_status mc_tokenizer_load_json(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const char *text, size_t size, mc_lowercase lowercase);
/* Reads a tokenizer.json without finishing. */
mc_status mc_tokenizer_read_json(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const char *text, size_t size);

/* ---- settings.c, unigram_tables.c ---- */

/* The chat template that lies beside the vocabulary and the file that has it; NULL: none. */
const char *mc_tokenizer_chat_template(const mc_tokenizer *tok, const char **path);
/* The special token that the files name for a key, "bos_token" or "eos_token", or that the
 * vocabulary has by itself; else `otherwise`. */
const char *mc_tokenizer_named(const mc_tokenizer *tok, const char *key, const char *otherwise);
/* Whether text after a special token gets a space in front. */
bool mc_tokenizer_puts_spaces(const mc_tokenizer *tok);

/* ---- wordpiece.c, encode.c ---- */

struct mc_encode_scratch {
    mc_bytes text, spare, before, word;
    mc_bpe_scratch bpe;
    mc_jieba_scratch jieba;
    mc_unigram_scratch unigram;
};

/* Where ids go. Encoding stops after the first word with which there are `limit` ids or more. */
typedef struct mc_encoder {
    const mc_tokenizer *tok;
    mc_encoding *out;
    size_t limit;
    bool stopped; /* by the limit, or by lack of memory */
    mc_status status;
    const uint8_t *text; /* the whole text */
    bool at_start;       /* what is being encoded stands at its start */
} mc_encoder;

bool mc_encoder_grow(mc_encoder *encoder);
/* Makes room for `more` ids. */
bool mc_encoder_reserve(mc_encoder *encoder, size_t more);

static inline void mc_encoder_push(mc_encoder *encoder, int32_t id)
{
    mc_encoding *out = encoder->out;
    if (out->count == out->capacity && !mc_encoder_grow(encoder)) return;
    out->ids[out->count++] = id;
}

/* Stops encoding for a reason. */
static inline void mc_encoder_stop(mc_encoder *encoder, mc_status status)
{
    encoder->status = status;
    encoder->stopped = true;
}

/* Appends the ids of a text in which added tokens are not looked for. */
void mc_wordpiece_encode(mc_encoder *encoder, const mc_normalizer *normalizer, const uint8_t *text,
                         size_t size);

/* mc_tokenizer_check_ids with the caller's own error. */
mc_status mc_tokenizer_check(const mc_tokenizer *tok, mc_error *err, const int32_t *ids,
                             size_t count, int64_t vocabulary);

/* mc_tokenizer_encode_batch with the caller's own error, for any thread: these are the texts from
 * number `first` on of `all` that there are. */
mc_status mc_encode_texts(mc_error *err, const mc_tokenizer *tok, const mc_text_span *texts,
                          const mc_text_span *pairs, size_t count, size_t max_length, size_t first,
                          size_t all, mc_batch_encoding *batch);

/* ---- bpe_tables.c, bpe_cut.c, bpe_words.c ---- */

/* Makes the table of merges, of which none may come twice; `lines`: merges.txt. */
mc_status mc_bpe_index_merges(mc_tokenizer *tok, mc_error *err, const char *path, bool lines);
/* The part of mc_tokenizer_finish that is about merges. */
mc_status mc_bpe_finish(mc_tokenizer *tok, mc_error *err, const char *path);
void mc_bpe_release(mc_bpe *bpe);
/* The regular expression of words that are cut in C; NULL of other kinds. */
const char *mc_bpe_pattern(mc_cut_kind kind);
/* The end of the word that begins at text < end, of a kind other than MC_CUT_REGEX. */
const uint8_t *mc_bpe_word_end(mc_cut_kind kind, const uint8_t *text, const uint8_t *end);
/* Appends the ids of a text in which added tokens are not looked for. */
void mc_bpe_encode(mc_encoder *encoder, const uint8_t *text, size_t size);
/* Cuts a text into words and appends their ids. */
void mc_bpe_cut_words(mc_encoder *encoder, const uint8_t *text, size_t size);
/* Appends the ids of a word, which may be read up to `end`, if the limit is not reached. */
void mc_bpe_encode_word(mc_encoder *encoder, const uint8_t *word, size_t size, const uint8_t *end);
/* Makes the working memory this tokenizer's; false, and the encoder stopped, when memory is out. */
bool mc_bpe_take_scratch(mc_encoder *encoder);
/* Whether words end before a space, or a line break where `line` says so, that follows something
 * else than white space, whatever stands around. */
bool mc_bpe_allows_cuts(const mc_bpe *bpe, bool line);

/* ---- bpe_pieces.c ---- */

/* Makes the merges of a SentencePiece model's pieces, which are indexed. *possible: whether merges
 * can stand for them; they cannot where a piece is unused or has a character that is none. */
mc_status mc_bpe_merges_of_pieces(mc_tokenizer *tok, mc_error *err, const char *path,
                                  bool *possible);
/* The part of mc_tokenizer_finish that is about merges of characters; bpe.unk_id has been set. */
mc_status mc_bpe_finish_pieces(mc_tokenizer *tok, mc_error *err, const char *path);
/* The part of both that is about the order of merges. */
mc_status mc_bpe_finish_merges(mc_tokenizer *tok, mc_error *err, const char *path);
/* Appends the ids of text whose spaces are symbols, cut before these where that changes nothing. */
void mc_bpe_encode_pieces(mc_encoder *encoder, const uint8_t *text, size_t size);

/* ---- cpm.c ---- */

/* Whether the entries are CPM-1's or CPM-2's. */
bool mc_cpm_is(const mc_tokenizer *tok);
/* Finishes a tokenizer of such entries, which opens jieba's dictionary. */
mc_status mc_cpm_load(mc_tokenizer *tok, mc_error *err, const char *path);
/* The part of mc_tokenizer_finish that is about CPM. */
mc_status mc_cpm_finish(mc_tokenizer *tok, mc_error *err, const char *path);
/* Appends the ids of a text. */
void mc_cpm_encode(mc_encoder *encoder, const uint8_t *text, size_t size);
/* Appends the text of ids; false when memory is out. */
bool mc_cpm_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count, bool skip_special,
                   mc_bytes *text);

/* ---- unigram*.c ---- */

/* The part of mc_tokenizer_finish that is about pieces. */
mc_status mc_unigram_finish(mc_tokenizer *tok, mc_error *err, const char *path);
void mc_unigram_release(mc_unigram *unigram);
/* Makes room for the scores and types of `count` entries. */
mc_status mc_unigram_reserve(mc_unigram *unigram, mc_error *err, const char *path, size_t count);

/* Appends SentencePiece's normal form of a text: of a whole one; or of a part of one, cut at
 * spaces, of a model that is `fast`. Of a part the space after it is left out. False when memory
 * is out. */
bool mc_unigram_normalize(const mc_unigram *unigram, const uint8_t *text, size_t size,
                          bool at_start, mc_bytes *out);
bool mc_unigram_normalize_part(const mc_unigram *unigram, const uint8_t *text, size_t size,
                               mc_bytes *out);
/* Sets `out` to Hugging Face's normal form. False when memory is out. */
bool mc_unigram_apply_steps(const mc_unigram *unigram, const uint8_t *text, size_t size,
                            mc_bytes *out, mc_bytes *spare);

/* Finds the best pieces of `size` >= 1 bytes in normal form, whose scores are added to *sum.
 * Returns where the first of them ends, 0 when memory is out; scratch->nodes[where a piece
 * ends].start then is where the next one does. */
size_t mc_unigram_find_path(const mc_tokenizer *tok, mc_unigram_scratch *scratch,
                            const uint8_t *text, size_t size, double *sum, mc_unigram_path *path);

/* Appends the ids of a text in which added tokens are not looked for: of text as it stands, and, by
 * Hugging Face's rules, of text in normal form. */
void mc_unigram_encode(mc_encoder *encoder, const uint8_t *text, size_t size);
void mc_unigram_encode_normal(mc_encoder *encoder, const uint8_t *text, size_t size);
/* Whether texts can be cut at all, and whether they can in front of the byte at p < end (p > text):
 * a space that nothing before it joins, after something that is not dropped at a text's end. */
bool mc_unigram_allows_cuts(const mc_tokenizer *tok);
bool mc_unigram_cuts_before(const mc_unigram *unigram, const uint8_t *text, const uint8_t *p,
                            const uint8_t *end);

/* Appends the text of ids; those without a token are skipped. False when memory is out. */
bool mc_unigram_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                       const mc_decode_options *options, mc_bytes *text);

#endif
