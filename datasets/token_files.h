/* More about token files: lists and shards of them, documents, blends, and the lengths of documents
 * in recorded steps.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_TOKEN_FILES_H
#define MC_DATASETS_TOKEN_FILES_H

#include "datasets/lm.h"

/* mc_token_file_open for several paths or patterns, one after the other. An .idx is skipped if its
 * .bin is listed too. */
MC_API mc_token_file *mc_token_file_open_list(mc_context *ctx, const char *const *patterns,
                                              int count);

MC_API int mc_token_file_shards(const mc_token_file *file);
/* Path (of the .bin), format and number of tokens of shard i. Out of range: NULL, 0, 0. */
MC_API const char *mc_token_file_path(const mc_token_file *file, int shard);
MC_API mc_token_format mc_token_file_format(const mc_token_file *file, int shard);
MC_API int64_t mc_token_file_shard_count(const mc_token_file *file, int shard);

/* The number of documents in all shards; -1 if a shard is llm.c's, which does not contain it. */
MC_API int64_t mc_token_file_documents(const mc_token_file *file);
/* The first token of document i, and its number of tokens. False if i is out of range, if documents
 * are not known, and if the .idx is damaged there, which is an error as when opening. */
MC_API bool mc_token_file_document(const mc_token_file *file, int64_t i, int64_t *first,
                                   int64_t *count);

/* Copies tokens [first, first + count) to out (count). Errors, set in the context and returned: a
 * range that is not within the file; a negative token, or one past 2^31 - 1 (read_within: of
 * `vocabulary` or more), with its position in its shard. */
MC_API mc_status mc_token_file_read(const mc_token_file *file, int64_t first, int64_t count,
                                    int32_t *out);
MC_API mc_status mc_token_file_read_within(const mc_token_file *file, int64_t first, int64_t count,
                                           int64_t vocabulary, int32_t *out);
/* The largest token of the file, which is read as a whole. To be compared with a vocabulary. -1
 * after an error, as in mc_token_file_read. */
MC_API int32_t mc_token_file_largest(const mc_token_file *file);

/* A file of a blend. Its share is its weight divided by the sum of all weights. */
typedef struct mc_lm_source {
    mc_token_file *file;
    double weight;
} mc_lm_source;

/* Creates a loader of a blend. Errors: those of mc_lm_loader_new; no sources; a weight that is not
 * a positive number; a source without a window. */
MC_API mc_lm_loader *mc_lm_loader_new_blend(const mc_lm_source *sources, int count,
                                            const mc_lm_loader_options *options);
/* The current epoch. After its last batch it is still current, unless `repeat` is set. */
MC_API int64_t mc_lm_loader_epoch(const mc_lm_loader *loader);
MC_API int64_t mc_lm_loader_windows(const mc_lm_loader *loader);     /* of an epoch, on all ranks */
MC_API int64_t mc_lm_loader_tokens(const mc_lm_loader *loader);      /* of the files */
MC_API mc_token_file *mc_lm_loader_file(const mc_lm_loader *loader); /* the first one */

/* ---- separate documents in a recorded step --------------------------------------------------- */

/* Lengths of the pieces of a step's batches, for models: lengths of the context (mc_lengths_new) in
 * only a few shapes, so that steps can be recorded (core/autograd/step.h).
 *
 *     mc_lm_lengths *lengths = mc_lm_lengths_new(ctx, micro_steps, batch_size, seq_length);
 *     ... for each batch i of a step:  mc_lm_lengths_set(lengths, i, batch);
 *     int shape = mc_lm_lengths_write(lengths);
 *     mc_step_run(ctx, STEP_KEY + shape, step, run);
 *     ... and in the step:  .ids = ids[i] (batch_size * seq_length), .lengths =
 *                           mc_lm_lengths_get(lengths, i) */
typedef struct mc_lm_lengths mc_lm_lengths;

/* For `batches` batches of a step (micro-steps). Until lengths are set, each has batch_size whole
 * windows. Owned by the context. NULL after an error: memory, a number that is not positive. */
MC_API mc_lm_lengths *mc_lm_lengths_new(mc_context *ctx, int batches, int batch_size,
                                        int seq_length);
/* Copies the lengths of a batch as those of batch i. Without separate_documents they are whole
 * windows. Errors: i out of range, a batch larger than batch_size or of another
 * seq_length. */
MC_API mc_status mc_lm_lengths_set(mc_lm_lengths *lengths, int i, const mc_lm_batch *batch);
/* Writes the lengths of all batches to the device, in the smallest shape that fits all of them.
 * Returns the shape's number, 0 to 31, for a key. A new shape allocates memory. */
MC_API int mc_lm_lengths_write(mc_lm_lengths *lengths);
/* The lengths written last for batch i. */
MC_API const mc_lengths *mc_lm_lengths_get(const mc_lm_lengths *lengths, int i);
/* Frees it before its context does. NULL is allowed. */
MC_API void mc_lm_lengths_free(mc_lm_lengths *lengths);

#endif
