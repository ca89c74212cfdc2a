/* The data loader: a dataset's rows in packed batches, tokenized ahead in a background thread.
 *
 *     mc_dataloader *train = mc_dataloader_new(dataset, &(mc_dataloader_options){
 *                                                           .batch_size = 64, .shuffle = true });
 *     for (int epoch = 0; epoch < 5; epoch++)
 *         for (mc_batch *b; (b = mc_dataloader_next(train)); )
 *             ... b->ids, b->lengths, b->labels ...
 *
 * Order. Without shuffling, rows come in the file's order. With shuffling, an epoch is a
 * permutation by (seed, epoch), and rows of similar length go into the same batch (unless
 * `batching` selects another order): the shuffled rows are divided into windows of 16 batches and
 * sorted by tokens within each, and the order of the batches is shuffled again. For this the
 * background thread counts the tokens of every row once, before the first batch. Similar lengths
 * balance the work of the ranks in a step. Their cost is memory: the longest batch has more tokens
 * than a mixed one.
 *
 * Sizes. A GPU runs a recorded step (core/autograd/step.h) only for batches of the shape that was
 * recorded. With `sizes` there are at most this many shapes, and `key` identifies a batch's shape.
 * The capacity of packed tensors is rounded up to one of `sizes` values. Every batch has the
 * numbers of sequences and labels of a full one; sequences after the last row are empty and have
 * the label MC_NO_LABEL. The values are chosen before the first batch, from the lengths of all
 * rows, so that little padding is added (a few percent of a batch). They are the same on all ranks
 * and for every seed. The tensors keep their addresses for the life of the loader, and are
 * refilled:
 *
 *     static void step(mc_context *ctx, void *user) { ... forward from run->batch, backward ... }
 *     ...
 *     while ((run->batch = mc_dataloader_next(train)))
 *         mc_step_run(ctx, run->batch->key, step, run);
 *
 * Ranks. The rows of a step over all ranks, batch_size * world of them, are ordered first. Rank r
 * takes row i if i % world == r, so rows sorted by length are divided evenly. The rows of a step
 * are the same at any world size with the same batch_size * world. Every row comes exactly once an
 * epoch; none is repeated to fill a batch. Every rank gets the same number of batches; the last
 * one may have fewer rows on some ranks than on others, or none. Labels, targets and values carry
 * the number of rows of the rank that has the most, so that losses computed from them, or from
 * views of them, divide by the same number on all ranks (mc_step_plan).
 *
 * A loader belongs to its dataset's context, and to the thread that uses that context.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DATASETS_LOADER_H
#define MC_DATASETS_LOADER_H

#include <stdbool.h>
#include <stdint.h>
#include "core/tensor/tensor.h"
#include "datasets/dataset.h"

typedef struct mc_dataloader mc_dataloader;

/* Which rows share a batch. */
typedef enum mc_batching {
    MC_BATCHING_DEFAULT = 0, /* BY_LENGTH when shuffling, IN_ORDER when not */
    MC_BATCHING_BY_LENGTH,   /* rows of similar length; row_index gives their places in the file */
    MC_BATCHING_IN_ORDER,    /* consecutive rows of the file's or the shuffled order */
} mc_batching;

typedef struct mc_dataloader_options {
    int batch_size;      /* rows of a batch on this rank; required, > 0 */
    bool shuffle;        /* a new order each epoch */
    uint64_t seed;       /* 0: the context's; MC_INT_ZERO: 0 */
    int64_t epoch_start; /* number of the first epoch */
    bool drop_last;      /* leave out the last batch of an epoch if it is not full */
    mc_batching batching;
    int round_to;    /* round the capacity of packed tensors up to a multiple of this. 0: 1 */
    int sizes;       /* the most shapes of batches, 1 to 16. 0: each batch has its own */
    int prefetch;    /* batches prepared ahead, 1 to 64. 0: 2 */
    int world, rank; /* world 0: mc_data_rank and mc_data_size of the context */
} mc_dataloader_options;

/* A batch of `rows` rows; choice c of row r is sequence r * choices + c. Tokens are packed: there
 * is no padding between sequences. Places from `tokens` to the capacity have pad ids (0 if the
 * tokenizer has none) of type 0, which are ignored. A batch may have zero rows: its tensors then
 * have the shape (0). Members that a task does not need are NULL. datasets/dataset.h describes the
 * tokens of a row. */
typedef struct mc_batch {
    mc_tensor *ids;      /* i32 (capacity); mc_tensor_lengths(ids) == lengths */
    mc_tensor *type_ids; /* i32 (capacity): 0 in the first text, 1 in the pair */
    /* Images: f32 (rows, 3, size, size); with `sizes`, a full batch, with zeros after the last row.
     * ids and lengths are then NULL. */
    mc_tensor *pixels;
    const mc_lengths *lengths; /* of rows * choices sequences; with `sizes` of a full batch's */
    mc_tensor *marks;          /* i32 (capacity): 2 * span + context of each token. CPM-1 */
    /* For an encoder-decoder, the decoder's ids and lengths, as above. */
    mc_tensor *decoder_ids;
    const mc_lengths *decoder_lengths;
    /* i32, as long as decoder_ids, or ids if there are none: the token to be predicted at each row,
     * MC_NO_LABEL for none, as mc_model_loss takes them. */
    mc_tensor *targets;
    /* i32 (sequences): the packed row, of the decoder if there is one, at which the answer of
     * mc_dataset_answers is read; 0 for an empty sequence. */
    mc_tensor *answer_rows;
    /* i32 (sequences / choices): classes, MC_NO_LABEL if there is none. */
    mc_tensor *labels;
    /* REGRESS: f32 (sequences / choices). MULTI_LABEL: f32 (sequences / choices, labels), 1 and 0.
     * With `sizes`, zeros after the last row. */
    mc_tensor *values;
    int rows;                 /* on this rank */
    int choices;              /* sequences of a row: 2 for COPA, else 1 */
    const int64_t *row_index; /* (rows): the number of each row in the dataset */
    int64_t tokens;           /* of all sequences, those of the decoder included */
    uint64_t key;             /* with `sizes`: identifies its shape, for mc_step_run; else 0 */
    int64_t nominal_rows; /* rows of a full batch over all ranks: batch_size * world, constant */
    int64_t all_rows;     /* of this batch on all ranks */
    int64_t all_tokens;   /* the same of tokens */
    int64_t epoch, step;  /* the step-th batch (from 0) of the epoch */
} mc_batch;

/* Creates a loader; the background thread starts with the first mc_dataloader_next. The dataset is
 * kept as long as the loader needs it; its tokenizer must outlive the loader. Errors (NULL): a
 * batch_size that is missing or not positive, an option out of its range, drop_last with fewer rows
 * than one batch. A NULL dataset gives NULL (its context has the error already). */
MC_API mc_dataloader *mc_dataloader_new(mc_dataset *dataset, const mc_dataloader_options *options);

/* Stops the background thread and frees the loader with its batches, at any time, on a failed
 * context too. NULL is allowed. */
MC_API void mc_dataloader_free(mc_dataloader *loader);

/* Returns the next batch, after waiting for the background thread if necessary. Returns NULL at the
 * end of an epoch (the call after that starts the next epoch), and while the context has an error,
 * the background thread's included.
 *
 * The batch belongs to the loader. It stays valid until the second call after the one that returned
 * it, so the batch before the newest one can still be read. With `sizes` it is valid until the next
 * call, which refills its tensors; steps that the device is still running read the old contents.
 * When buffers have grown to the largest batch, nothing more is allocated. */
MC_API mc_batch *mc_dataloader_next(mc_dataloader *loader);

MC_API int64_t mc_dataloader_batches(const mc_dataloader *loader); /* of an epoch, on every rank */
MC_API mc_dataset *mc_dataloader_dataset(const mc_dataloader *loader);

/* A loader's position: plain numbers for a checkpoint, the same on all ranks, and valid for any
 * number of ranks with the same batch_size * world. */
typedef struct mc_data_position {
    uint64_t seed; /* the real one, no default */
    int64_t epoch;
    int64_t step;         /* batches delivered in this epoch */
    int64_t rows;         /* rows of these over all ranks */
    int64_t batch_rows;   /* what the order depends on: rows of a full batch over all ranks, */
    int64_t dataset_rows; /* rows of the dataset, */
    bool shuffle;         /* and the options */
    bool by_length;
} mc_data_position;

/* The position after the batch delivered last. All zeros for NULL. */
MC_API mc_data_position mc_dataloader_position(const mc_dataloader *loader);

/* Goes to a position of this loader or of one like it: the next batches are those that followed
 * there, bit for bit. The loader takes over the position's seed. Batches returned before become
 * invalid. Errors: a position of another dataset size, global batch size or order, or one that is
 * not within an epoch; the loader then keeps its own position. */
MC_API mc_status mc_dataloader_seek(mc_dataloader *loader, const mc_data_position *position);

#endif
