/* The data loader: a dataset's rows in packed batches, tokenized ahead in a background thread.
 *
 *     mc_dataloader *train = mc_dataloader_new(dataset, &(mc_dataloader_options){
 *                                                           .batch_size = 64, .shuffle = true });
 *     for (int epoch = 0; epoch < 5; epoch++)
 *         for (mc_batch *b; (b = mc_dataloader_next(train)); )
 *             ... b->ids, b->lengths, b->labels ...
 *
 * Order. Without shuffling rows come in the file's order. With shuffling an epoch is a permutation
 * by (seed, epoch), and rows of similar length go into the same batch: the shuffled rows are taken
 * in windows of 16 batches, sorted by tokens within each, and the batches shuffled again
 * (`batching` chooses otherwise). For this the background thread counts the tokens of every row
 * before the first batch, once. It balances the work of the ranks in a step, and the lengths within
 * a batch. On the other hand the longest batch has more tokens than a mixed one, so peak memory is
 * higher.
 *
 * Sizes. A GPU runs a recorded step (core/autograd/step.h) only for batches of the shape that was
 * recorded. With `sizes` all batches have one of this number of shapes: the capacity of packed
 * tensors is rounded up to one of `sizes` values; the numbers of sequences and labels are always
 * those of a full batch, where sequences after the last row are empty with the label MC_NO_LABEL;
 * and `key` identifies the shape. The values are chosen before the first batch, from the lengths of
 * all rows, so that little padding is added (a few percent of a batch); they are the same on all
 * ranks and for every seed. The tensors keep their addresses for the life of the loader, and are
 * refilled:
 *
 *     static void step(mc_context *ctx, void *user) { ... forward from run->batch, backward ... }
 *     ...
 *     while ((run->batch = mc_dataloader_next(train)))
 *         mc_step_run(ctx, run->batch->key, step, run);
 *
 * Ranks. The batch of a step over all ranks, batch_size * world rows, is ordered first; of its rows
 * i = 0, 1, ... rank r takes those with i % world == r, which by length deals long and short ones
 * out evenly. So the rows of a step are the same at any world size with the same batch_size *
 * world. Every row comes exactly once an epoch and none is repeated to fill up; every rank gets the
 * same number of batches, of which the last may hold fewer rows on some ranks than on others, or
 * none. Labels, targets and values carry the rows of the rank that has the most, so that losses
 * made from them, or from views of them, divide by the same number on all ranks (mc_step_plan).
 *
 * A loader belongs to its dataset's context, and to the thread that uses that context. */
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
    MC_BATCHING_BY_LENGTH,   /* rows of similar length; without shuffling, row_index says where a
                                row belongs */
    MC_BATCHING_IN_ORDER,    /* the next rows of the order, file's or shuffled */
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
    int prefetch;    /* batches made ahead, 1 to 64. 0: 2 */
    int world, rank; /* world 0: mc_data_rank and mc_data_size of the context */
} mc_dataloader_options;

/* A batch of `rows` rows; sequences are row * choices + choice. Tokens are packed: no padding
 * between sequences, and from `tokens` to the capacity pad ids (0 where the tokenizer has none; of
 * type 0), which are ignored. A batch may have zero rows: its tensors then have the shape (0).
 * What a task does not need is NULL. How rows are put, datasets/dataset.h says. */
typedef struct mc_batch {
    mc_tensor *ids;            /* i32 (capacity); mc_tensor_lengths(ids) == lengths */
    mc_tensor *type_ids;       /* i32 (capacity): 0 in the first text, 1 in the pair */
    const mc_lengths *lengths; /* of rows * choices sequences; with `sizes` of a full batch's */
    mc_tensor *marks;          /* i32 (capacity): 2 * span + context of each token. CPM-1 */
    /* What the decoder of an encoder-decoder reads, as ids and lengths above. */
    mc_tensor *decoder_ids;
    const mc_lengths *decoder_lengths;
    /* i32, as long as decoder_ids or, without these, ids: the token that each row has to give,
     * MC_NO_LABEL where nothing counts, as mc_model_loss takes it. */
    mc_tensor *targets;
    /* i32 (sequences): the packed row, of the decoder if there is one, at which the answer of
     * mc_dataset_answers is read; 0 of sequences that are empty. */
    mc_tensor *answer_rows;
    /* i32 (sequences / choices): classes, MC_NO_LABEL if there is none. */
    mc_tensor *labels;
    /* f32 (sequences / choices) of REGRESS; (sequences / choices, labels) of MULTI_LABEL, of 1 and
     * 0. With `sizes`, zeros after the last row. */
    mc_tensor *values;
    int rows;                 /* on this rank */
    int choices;              /* sequences of a row: 2 for COPA, else 1 */
    const int64_t *row_index; /* (rows): which dataset row each is */
    int64_t tokens;           /* of all sequences, those of the decoder included */
    uint64_t key;             /* with `sizes`, of mc_step_run: stands for its shape; else 0 */
    int64_t nominal_rows; /* rows of a full batch over all ranks: batch_size * world, constant */
    int64_t all_rows;     /* of this batch on all ranks */
    int64_t all_tokens;   /* the same of tokens */
    int64_t epoch, step;  /* the step-th batch (from 0) of the epoch */
} mc_batch;

/* Makes a loader; the background thread starts with the first mc_dataloader_next. The dataset is
 * kept as long as the loader needs it; its tokenizer must outlive the loader. Errors (NULL): a
 * batch_size that is missing or not positive, an option out of its range, drop_last with fewer rows
 * than one batch. A NULL dataset gives NULL (its context has the error already). */
MC_API mc_dataloader *mc_dataloader_new(mc_dataset *dataset, const mc_dataloader_options *options);

/* Stops the background thread and frees the loader with its batches, at any time, on a failed
 * context too. NULL is allowed. */
MC_API void mc_dataloader_free(mc_dataloader *loader);

/* The next batch; NULL at the end of an epoch, and the call after that starts the next epoch. NULL
 * too while the context has an error, also one that the background thread met. Waits for the thread
 * where it isn't ahead.
 *
 * The batch belongs to the loader. It stays valid until the second call after the one that gave
 * it: while one batch is being used the one before is still whole (not so with `sizes`: its
 * tensors are refilled by the next call, which steps that are still at work do not notice). Once
 * buffers have grown to the largest batch, nothing is allocated any more. */
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

/* Goes to a position, of this loader or one like it: the batches that follow are those that
 * followed there, bit for bit. The loader takes over the position's seed. Batches given out before
 * are gone. Errors: a position of another dataset size, global batch size or order, or one that is
 * not within an epoch; the loader then stays where it was. */
MC_API mc_status mc_dataloader_seek(mc_dataloader *loader, const mc_data_position *position);

#endif
