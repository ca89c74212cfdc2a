/* Chinese words: what jieba 0.42.1 cuts a text into in its default mode, `jieba.cut(text)`.
 *
 *   jieba         the table: checked, mapped, looked for     jieba_parse  jieba's files
 *   jieba_cut     a text to words                            jieba_build  jieba's files to a table
 *
 * The method is that of jieba (https://github.com/fxsjy/jieba, MIT). A block of Chinese characters,
 * ASCII letters, digits and +#&._%- is cut along the most probable path of words of the dictionary;
 * runs of single characters on that path, which may be a word that the dictionary lacks, are cut by
 * a hidden Markov model of where in a word a character stands. All else is cut into characters.
 * Sums are taken in jieba's order, so that equal paths are decided alike.
 *
 * The table is one file in this machine's byte order, made when the library is built:
 *
 *   mc_jieba_header                         transition probabilities and what lies where
 *   double logs[log_count]                  log(frequency / total), of each frequency once
 *   double emissions[char_count][4]         of the characters from first_char on, in four states
 *   mc_trie_node nodes[trie_size]           the dictionary, by its words' bytes
 *   int32_t values[trie_size]               indices into logs */
#ifndef MC_TOKENIZERS_JIEBA_INTERNAL_H
#define MC_TOKENIZERS_JIEBA_INTERNAL_H

#include "core/base/file_internal.h"
#include "tokenizers/trie_internal.h"

enum {
    MC_JIEBA_VERSION = 1,
    MC_JIEBA_FIRST = 0x4E00, /* the Chinese characters of jieba's regular expressions */
    MC_JIEBA_LAST = 0x9FD5,
    MC_JIEBA_WORD_MAX = 1024,    /* bytes of a word */
    MC_JIEBA_WORDS_MAX = 1 << 24 /* lines of a dictionary */
};

/* The probability of what jieba's tables do not hold. */
#define MC_JIEBA_NEVER (-3.14e100)
#define MC_JIEBA_MAGIC "mcjieba"
#define MC_JIEBA_FILE "jieba.bin"

/* Where in a word a character stands. In the order of their letters, by which jieba decides between
 * equals. */
enum { MC_JIEBA_BEGIN, MC_JIEBA_END, MC_JIEBA_MIDDLE, MC_JIEBA_SINGLE, MC_JIEBA_STATES };

typedef struct mc_jieba_header {
    char magic[8];
    uint32_t version;
    uint32_t byte_order; /* 0x01020304 */
    uint64_t size;       /* of the file */
    uint64_t checksum;   /* mc_jieba_checksum of all after this field */
    uint32_t trie_size, log_count;
    uint32_t longest; /* word, in bytes */
    uint32_t first_char, char_count;
    uint32_t zero;
    double unknown; /* log(1 / total): of a character that is no word */
    double start[MC_JIEBA_STATES];
    double transitions[MC_JIEBA_STATES][MC_JIEBA_STATES]; /* [from][to] */
} mc_jieba_header;

/* A table that is ready for use, in memory that belongs to it. */
typedef struct mc_jieba {
    mc_jieba_header header;
    const double *logs;
    const double (*emissions)[MC_JIEBA_STATES];
    mc_trie trie; /* read-only, not to be released */
    void *image;  /* heap */
} mc_jieba;

/* ---- jieba.c ---- */

/* Opens the table of the folder MC_JIEBA_DIR: its jieba.bin or, without one, jieba's own files
 * (dict.txt and finalseg/). Where that is not set it is the installed table: share/modelcenter
 * beside the library's or program's folder, else where the library was configured to go.
 * Where it is not there MC_ERR_UNSUPPORTED says what was looked for. */
mc_status mc_jieba_open(mc_error *err, mc_jieba *jieba);
/* Opens the file or folder `path` (see above). */
mc_status mc_jieba_open_path(mc_error *err, mc_jieba *jieba, const char *path);
/* Checks a table at an address that is a multiple of 8; `jieba` shows it. Whatever it holds,
 * mc_jieba_cut stays within the table. */
mc_status mc_jieba_read(mc_error *err, const char *path, const void *data, size_t size,
                        mc_jieba *jieba);
uint64_t mc_jieba_checksum(const void *data, size_t size);
void mc_jieba_release(mc_jieba *jieba);

/* ---- jieba_parse.c, jieba_build.c ---- */

/* Names and contents of jieba's files. */
enum { MC_JIEBA_DICT, MC_JIEBA_START_P, MC_JIEBA_TRANS_P, MC_JIEBA_EMIT_P, MC_JIEBA_SOURCES };
typedef struct mc_jieba_source {
    const char *path; /* for errors */
    const char *text;
    size_t size;
} mc_jieba_source;

/* A word of the dictionary; `text` lies in the source. */
typedef struct mc_jieba_word {
    const char *text;
    uint32_t length, line;
    uint64_t frequency;
} mc_jieba_word;

typedef struct mc_jieba_words {
    mc_jieba_word *items; /* heap */
    size_t count, capacity;
} mc_jieba_words;

/* A probability of prob_*.py: of a state, in prob_trans and prob_emit for a second key. */
typedef mc_status mc_jieba_take(void *user, int state, uint32_t key, double value);

/* `word frequency tag` lines. */
mc_status mc_jieba_parse_dict(mc_error *err, const mc_jieba_source *source, mc_jieba_words *words);
/* `P={'B': -0.26, ...}` or, nested, `P={'B': {'E': -0.51, ...}, ...}`; keys are a character or its
 * \uXXXX. Lines before the one that begins with P= are skipped. */
mc_status mc_jieba_parse_p(mc_error *err, const mc_jieba_source *source, bool nested,
                           mc_jieba_take *take, void *user);

/* The table of jieba's files as bytes on the heap, NULL with the error set. */
void *mc_jieba_build(mc_error *err, const mc_jieba_source sources[MC_JIEBA_SOURCES], size_t *size);
/* The same from the folder they lie in. */
void *mc_jieba_build_folder(mc_error *err, const char *folder, size_t *size);

/* ---- jieba_cut.c ---- */

/* Working memory; starts as { 0 }. */
typedef struct mc_jieba_scratch {
    struct mc_jieba_step *route;
    uint8_t *back; /* where Viterbi's paths come from */
    size_t route_capacity, back_capacity;
} mc_jieba_scratch;

void mc_jieba_scratch_release(mc_jieba_scratch *scratch);

/* Receives a word of `size` bytes and `chars` characters; false ends the cutting. */
typedef bool mc_jieba_emit(void *user, const uint8_t *word, size_t size, size_t chars);

/* Cuts a text into its words, one after the other; together they are the text. What is no UTF-8 is
 * cut into the pieces that each are one U+FFFD. Takes 16 bytes for each byte of the longest block,
 * and time linear in the text. Returns MC_OK, also where `emit` ended it; MC_ERR_NOMEM;
 * MC_ERR_UNSUPPORTED for a block of 2 GiB or more. */
mc_status mc_jieba_cut(const mc_jieba *jieba, mc_jieba_scratch *scratch, const uint8_t *text,
                       size_t size, mc_jieba_emit *emit, void *user);

#endif
