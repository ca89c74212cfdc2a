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
 * one or several members; in a library without zlib that is an error. Its bytes are inflated by one
 * thread at a time, while others tokenize: so one .gz is read no faster than one core inflates.
 *
 * Threads tokenize pieces of about a megabyte, which are written in their order: the files do not
 * depend on how many threads there are. A long text is cut where tokens end whatever surrounds
 * them, at a line's end between two ASCII letters or the like. Memory stays bounded, at a few times
 * the piece (or the longest line) a thread, and for Megatron's format four bytes a document.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_PREPARE_H
#define MC_DATASETS_PREPARE_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/context.h"
#include "datasets/lm.h"
#include "tokenizers/tokenizer.h"

/* What has been done so far. */
typedef struct mc_prepare_result {
    int64_t documents;
    int64_t tokens;      /* written, those that end a text included */
    int64_t bytes;       /* of text and JSON, read: of a .gz, what it holds */
    int64_t file_bytes;  /* of the inputs as they lie, read */
    int64_t total_bytes; /* the same of all inputs */
} mc_prepare_result;

/* Called now and then, on the calling thread, with the progress so far; false ends it with
 * MC_ERR_INTERRUPTED, and nothing is written. */
typedef bool (*mc_prepare_progress)(void *user, const mc_prepare_result *done);

/* Where the end-of-text token goes. */
typedef enum mc_end_of_text {
    MC_END_OF_TEXT_DEFAULT =
        0, /* as is usual there: BEFORE in llm.c's files, AFTER in Megatron's */
    MC_END_OF_TEXT_NONE,
    MC_END_OF_TEXT_BEFORE, /* each document */
    MC_END_OF_TEXT_AFTER,  /* each document */
} mc_end_of_text;

typedef struct mc_prepare_options {
    mc_token_format format;     /* of the output */
    const char *json_key;       /* of the text in JSON Lines. NULL: "text" */
    mc_end_of_text end_of_text; /* where it goes */
    const char *end_token;      /* that token. NULL: the tokenizer's (mc_tokenizer_end_of_text_id),
                                   or what ends a text where it has none ([SEP]) */
    int threads;                /* that tokenize. 0: as many as the process has cores */
    mc_prepare_progress progress;
    void *progress_user;
} mc_prepare_options;

/* Writes the documents of `count` inputs, in their order, to `output`: one file of llm.c's format
 * (u16 tokens), or Megatron's pair F.bin and F.idx where `output` is F.bin or F (u16 tokens for a
 * vocabulary below 65,500, else i32; a document is a sequence). Special tokens that a tokenizer
 * puts around a text are left out. Files are written aside, synced and renamed: on an error
 * whatever was there before is still there. `options` and `result` may be NULL.
 *
 * Errors, set in the context and returned: an input that is not there, is no regular file, or is
 * the output too; a .gz that is damaged or cut off; an output that is a folder, a device or a pipe;
 * bytes that are no UTF-8, a line
 * that is no JSON object, a key that is missing or no string (each with file and line; the first in
 * the order of the inputs, whatever the threads); a tokenizer without the end-of-text token; for
 * llm.c's format a vocabulary of more than 65,536 or more than 2^31 - 1 tokens; no tokens at all; a
 * write that fails; memory. */
MC_API mc_status mc_prepare_tokens(mc_context *ctx, const mc_tokenizer *tok,
                                   const char *const *inputs, int count, const char *output,
                                   const mc_prepare_options *options, mc_prepare_result *result);

#endif
