/* Language modelling: token files, and a loader of batches from them.
 *
 *     mc_token_file *file = mc_token_file_open(ctx, "data/fineweb_train_*.bin");
 *     mc_lm_loader *train = mc_lm_loader_new(file, &(mc_lm_loader_options){
 *                                                      .batch_size = 64, .seq_length = 1024,
 *                                                      .vocabulary = 50257, .repeat = true });
 *     for (const mc_lm_batch *b; (b = mc_lm_loader_next(train)); )
 *         ... b->ids, b->labels ...
 *
 * Token files are mapped into memory, never read whole; they may be larger than memory. The content
 * of a file, not its name, decides its format:
 *
 *   llm.c     a header of 1,024 bytes, 256 i32: [0] magic, [1] version, [2] count of tokens; then
 *             the tokens. Magic 20240520, version 1: u16 tokens; magic 20240801, version 7: u32
 *             tokens. At most 2^31 - 1 tokens.
 *   Megatron  F.bin, the tokens one after the other, and F.idx, an index of their type (u8, i8,
 *             u16, i16, i32 or i64), the sequences and the documents. Both forms of the index are
 *             read: MMIDIDX, and the older TNTIDX with sequences of one dimension.
 *
 * All numbers are little endian. `modelcenter prepare` and datasets/prepare.h write both.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DATASETS_LM_H
#define MC_DATASETS_LM_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/context.h"
#include "core/tensor/tensor.h"

/* ---- token files ----------------------------------------------------------------------------- */

typedef struct mc_token_file mc_token_file;

typedef enum mc_token_format {
    MC_TOKENS_DEFAULT = 0, /* MC_TOKENS_LLMC */
    MC_TOKENS_LLMC,        /* .bin with a header */
    MC_TOKENS_MEGATRON,    /* .bin and .idx */
    MC_TOKENS_PROGRAM,     /* no file: of mc_token_file_from_source or mc_token_file_from_arrays */
} mc_token_format;

/* Opens a token file, or several as one: its shards, one after the other. `pattern` is a path, or
 * a pattern of the shell (*, ?, [...]) whose matches are taken in the order of their bytes. A
 * Megatron pair is named by its .bin, its .idx or their common beginning, and counts once where a
 * pattern matches both. A path that exists is not taken as a pattern. The file belongs to the
 * context.
 *
 * Headers and both ends of an .idx are checked here: all of it up to 8 Ki sequences. The rest of a
 * larger one is checked in stretches, each before its first use, so that opening takes no longer
 * for 10 billion tokens than for a thousand. Tokens are checked when they are read. Errors (NULL),
 * which name the file: it does not exist, or nothing matches; neither format (the message names
 * what was found: a model of llm.c, bare tokens, ...); another version; a count of tokens that does
 * not fit the file's size (the message has both), as after an interrupted write; no tokens; an .idx
 * whose sequences lie outside its .bin, overlap or leave gaps, or whose documents are out of order;
 * a type of numbers that is no integer. */
MC_API mc_token_file *mc_token_file_open(mc_context *ctx, const char *pattern);
/* Frees it before its context does; loaders keep what they need. NULL is allowed. */
MC_API void mc_token_file_free(mc_token_file *file);

MC_API int64_t mc_token_file_count(const mc_token_file *file); /* tokens of all shards */

/* ---- a program's own tokens ------------------------------------------------------------------ */

/* Writes tokens [first, first + count) to out (count). False is an error. Functions of the file and
 * of its loaders call it, on the thread that called them. */
typedef bool (*mc_token_read_fn)(void *user, int64_t first, int64_t count, int32_t *out);

typedef struct mc_token_source {
    const char *name; /* in errors; copied. NULL: "tokens" */
    int64_t count;    /* tokens; > 0 */
    mc_token_read_fn read;
    void *user;               /* for read */
    const int64_t *documents; /* (document_count) tokens of each, `count` in total; copied. NULL:
                                 not known */
    int64_t document_count;
} mc_token_source;

/* Creates a token file of one shard from tokens that a function of the program returns, for loaders
 * and blends like any other file. The function may be called for any range, in any order, and must
 * return the same tokens each time. Errors (NULL): no function, no tokens, documents that are
 * negative or do not add up.
 */
MC_API mc_token_file *mc_token_file_from_source(mc_context *ctx, const mc_token_source *source);
/* The same from arrays: document i is counts[i] >= 0 ids at documents[i]. They are copied. */
MC_API mc_token_file *mc_token_file_from_arrays(mc_context *ctx, const int32_t *const *documents,
                                                const int64_t *counts, int64_t count);

/* ---- the loader ------------------------------------------------------------------------------ */

/* A sequence is a window of the file. With T = seq_length, window w of a shard has the tokens
 * [w * T, w * T + T) as its inputs, and the T tokens from w * T + 1 on as its labels. So a shard of
 * n tokens has (n - 1) / T windows. A window never spans two shards; at the end of each, up to T
 * tokens are left out. Unless `separate_documents` is set, a window may contain the end of one
 * document and the beginning of the next.
 *
 * Order. Without shuffling, windows come in the file's order, as in llm.c: batches of B * T
 * consecutive tokens. With shuffling, an epoch is a permutation of all windows by (seed, epoch). It
 * is computed for each window, so it takes no memory.
 *
 * Ranks. The windows of a step over all ranks, batch_size * world of them, are ordered first; rank
 * r takes the r-th batch_size of these. So the tokens of a step are the same at any number of ranks
 * with the same batch_size * world. At the end of an epoch, windows that do not fill such a batch
 * are left out, so that all batches have the same shape. With `keep_last` they form a smaller
 * batch, divided among the ranks as evenly as possible: every window then occurs exactly once an
 * epoch, and every rank gets the same number of batches, the last of which may be empty on some.
 *
 * Blends. mc_lm_loader_new_blend mixes the windows of several files by weight, in Megatron's order:
 * window n (counted from the start of epoch 0) comes from the source whose number of windows so far
 * is furthest below weight * max(n, 1), the first of equal ones. Each source delivers its windows
 * in its own order (the file's, or a permutation by seed, its own epoch and its number), and begins
 * its next epoch when they have run out, independently of the others. So a small source with a
 * large weight is repeated. An epoch of the blend has as many windows as its sources together. The
 * order takes no memory, and any position in it is found at once: it repeats with a period, in
 * which each source has its exact share. Weights are exact to a millionth if the period is below
 * 2^20 windows (2^24 / sources if that is less), and else rounded to that.
 *
 * Separate documents. With `separate_documents` a window is divided where documents begin, and the
 * batch has the lengths of these pieces: attention and positions start again in each. A document's
 * last label in a window is MC_LM_IGNORE. So losses are those of the pieces on their own.
 * Megatron's index, or the token `document_token`, gives the places where documents begin. */
typedef struct mc_lm_loader mc_lm_loader;

typedef struct mc_lm_loader_options {
    int batch_size;      /* sequences of a batch on this rank; required, > 0 */
    int seq_length;      /* tokens of a sequence; required, > 0 */
    bool shuffle;        /* a new order each epoch */
    uint64_t seed;       /* of the order. 0: the context's; MC_INT_ZERO: 0 */
    bool repeat;         /* continue with the next epoch: mc_lm_loader_next returns NULL only after
                            an error */
    bool keep_last;      /* deliver the windows that do not fill a batch */
    int64_t vocabulary;  /* a token of this id or more is an error. 0: not checked */
    int64_t epoch_start; /* number of the first epoch */
    int world, rank;     /* world 0: mc_data_rank and mc_data_size of the context */
    bool separate_documents;
    /* With separate_documents: the token that begins each document of a file without an index
     * (llm.c's), for which it is required. MC_INT_ZERO: 0 */
    int32_t document_token;
    bool document_token_ends; /* that token ends a document instead */
} mc_lm_loader_options;

/* A label that is ignored. */
#define MC_LM_IGNORE (-100)

/* A batch on the host. Its arrays belong to the loader and are valid until its next call of
 * mc_lm_loader_next, mc_lm_loader_seek or mc_lm_loader_free. */
typedef struct mc_lm_batch {
    const int32_t *ids;    /* (batch_size * seq_length), sequence by sequence */
    const int32_t *labels; /* (batch_size * seq_length): labels[i] is the token after ids[i] */
    int batch_size;        /* windows on this rank: as in the options, except in a last batch */
    int seq_length;
    /* With separate_documents, else NULL, 0 and 0: */
    const int32_t *lengths; /* (pieces) tokens of each, together `tokens`; at most seq_length */
    int pieces;
    int most_pieces;     /* the largest number of pieces of a rank, rounded up to batch_size (of the
                        options) times a power of two, or to batch_size * seq_length: one of a few
                        sizes, the same on all ranks */
    int64_t tokens;      /* batch_size * seq_length, on this rank */
    int64_t all_tokens;  /* on all ranks, those with ignored labels included */
    int64_t epoch, step; /* the step-th batch (from 0) of the epoch; after a seek to a position that
                            a loader of another batch size has left, step is rounded down */
    int64_t first;       /* the place in the epoch's order (over all ranks) of the first sequence */
} mc_lm_batch;

/* Creates a loader. The file is kept as long as the loader needs it. Errors (NULL): an option that
 * is missing or out of its range; a file with too few windows for one batch (with keep_last, with
 * none). A NULL file gives NULL (its context has the error already). */
MC_API mc_lm_loader *mc_lm_loader_new(mc_token_file *file, const mc_lm_loader_options *options);
/* Frees it before its context does. NULL is allowed. */
MC_API void mc_lm_loader_free(mc_lm_loader *loader);

/* Returns the next batch. Returns NULL at the end of an epoch (the call after that starts the next
 * one) unless `repeat` is set, while the context has an error, and after an error of its own: a
 * token beyond the vocabulary, named with its file, position and value. Nothing is allocated. */
MC_API const mc_lm_batch *mc_lm_loader_next(mc_lm_loader *loader);

MC_API int64_t mc_lm_loader_batches(const mc_lm_loader *loader); /* of an epoch, on every rank */

/* A loader's position: plain numbers for a checkpoint, the same on all ranks, and valid for any
 * batch size and number of ranks. */
typedef struct mc_lm_position {
    uint64_t seed;      /* the real one, no default */
    int64_t epoch;      /* of the next batch */
    int64_t window;     /* windows of this epoch that were delivered, on all ranks together */
    int64_t tokens;     /* what the order depends on: tokens of the data, */
    int64_t windows;    /* its windows, */
    int64_t seq_length; /* and the options */
    bool shuffle;
    uint64_t fingerprint;  /* of the data: of its shards' sizes, of samples of their tokens, and of
                             the weights of a blend */
    int64_t epoch_windows; /* that an epoch delivers: what seeks ends its own there. 0: any */
} mc_lm_position;

/* The position after the batch delivered last. All zeros for NULL. */
MC_API mc_lm_position mc_lm_loader_position(const mc_lm_loader *loader);
/* Goes to a position of this loader or of one like it: the next batches are those that followed
 * there, bit for bit. The loader takes over the position's seed. Errors: a position of other data,
 * of another seq_length or of another order, or one that is not within an epoch; the loader then
 * keeps its own position. */
MC_API mc_status mc_lm_loader_seek(mc_lm_loader *loader, const mc_lm_position *position);

#endif
