/* Preparing data: text to token files (datasets/lm.h says what these are).
 *
 *     mc_prepare_result r;
 *     mc_prepare_tokens(ctx, tok, (const char *[]){ "a.txt", "b.jsonl" }, 2, "train.bin",
 *                       NULL, &r);
 *
 * Inputs. A file whose name ends in .jsonl, .ndjson or .json is JSON: an object a line with the
 * text of a document (JSON Lines; blank lines are skipped), or one list of such objects, on any
 * number of lines. Any other file is a text and one document. All are UTF-8; a byte order mark is
 * not part of the text. Each may be a gzip file, whose name ends in .gz after that (.jsonl.gz), of
 * one or several members; in a library without zlib that is an error. One thread at a time inflates
 * its bytes while others tokenize, so a single .gz is read at the rate at which one core inflates.
 *
 * Threads tokenize pieces of about a megabyte, which are written in order, so the files do not
 * depend on the number of threads. A long text is cut only where a token always ends, such as a
 * line's end between two ASCII letters. Memory is bounded: a few times the piece (or the longest
 * line) for each thread, and four bytes a document for Megatron's format.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_PREPARE_H
#define MC_DATASETS_PREPARE_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/context.h"
#include "datasets/lm.h"
#include "tokenizers/tokenizer.h"

/* Progress so far. */
typedef struct mc_prepare_result {
    int64_t documents;
    int64_t tokens;      /* written, those that end a text included */
    int64_t bytes;       /* of text and JSON read; of a .gz, after decompression */
    int64_t file_bytes;  /* of input files read; of a .gz, compressed */
    int64_t total_bytes; /* of all input files */
} mc_prepare_result;

/* Called from time to time, on the calling thread. Returning false ends the preparation with
 * MC_ERR_INTERRUPTED; nothing is written. */
typedef bool (*mc_prepare_progress)(void *user, const mc_prepare_result *done);

/* Where the end-of-text token goes. */
typedef enum mc_end_of_text {
    MC_END_OF_TEXT_DEFAULT = 0, /* BEFORE in llm.c's files, AFTER in Megatron's */
    MC_END_OF_TEXT_NONE,
    MC_END_OF_TEXT_BEFORE, /* each document */
    MC_END_OF_TEXT_AFTER,  /* each document */
} mc_end_of_text;

typedef struct mc_prepare_options {
    mc_token_format format; /* of the output */
    const char *json_key;   /* key of the text in JSON Lines. NULL: "text" */
    mc_end_of_text end_of_text;
    /* The end-of-text token. NULL: mc_tokenizer_end_of_text_id, or if the tokenizer has none, the
     * token that ends a text ([SEP]). */
    const char *end_token;
    int threads; /* that tokenize. 0: the number of the process's cores */
    mc_prepare_progress progress;
    void *progress_user;
} mc_prepare_options;

/* Writes the documents of `count` inputs, in their order, to `output`: one file of llm.c's format
 * (u16 tokens), or Megatron's pair F.bin and F.idx where `output` is F.bin or F (u16 tokens for a
 * vocabulary below 65,500, else i32; a document is a sequence). Special tokens that a tokenizer
 * puts around a text are left out. Files are written under temporary names, synced and renamed, so
 * after an error the old files are still there. `options` and `result` may be NULL.
 *
 * Errors, set in the context and returned: an input that does not exist, is not a regular file, or
 * is also the output; a .gz that is damaged or incomplete; an output that is a folder, a device or
 * a pipe; bytes that are not UTF-8, a line that is not a JSON object, a key that is missing or not
 * a string (each with file and line; the first one in the order of the inputs); a tokenizer without
 * the end-of-text token; for llm.c's format a vocabulary of more than 65,536 or more than 2^31 - 1
 * tokens; no tokens at all; a write that fails; memory. */
MC_API mc_status mc_prepare_tokens(mc_context *ctx, const mc_tokenizer *tok,
                                   const char *const *inputs, int count, const char *output,
                                   const mc_prepare_options *options, mc_prepare_result *result);

#endif
