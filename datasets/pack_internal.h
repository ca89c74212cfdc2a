/* A batch on the host: rows of a dataset tokenized and packed into plain buffers, on any thread. */
#ifndef MC_DATASETS_PACK_INTERNAL_H
#define MC_DATASETS_PACK_INTERNAL_H

#include "core/tensor/tensor.h"
#include "datasets/example_internal.h"
#include "datasets/sizes_internal.h"

/* Limits that say how large the buffers start and how far they may grow. */
typedef struct mc_pack_limits {
    int rows;                  /* of the largest batch */
    int round_to;              /* of the capacity */
    int64_t tokens[MC_STACKS]; /* capacity of the largest batch there can be */
    int32_t pad_id;            /* after the last token */
} mc_pack_limits;

/* The sequences of one stack. */
typedef struct mc_packed_stack {
    unsigned lanes;          /* of mc_example_lanes; 0: there is no such stack */
    mc_size size;            /* set by the loader before: the capacity; tokens 0: round_to says */
    mc_lengths lengths;      /* points at the buffers below */
    int32_t *lane[MC_LANES]; /* (lengths.capacity); room for `room` */
    int64_t room;
    int32_t *length, *offset; /* (rows * choices), (rows * choices + 1) */
} mc_packed_stack;

typedef struct mc_packed {
    int64_t epoch, step;
    int rows;
    int64_t all_rows;     /* on all ranks; set by the loader, as is the next */
    int64_t all_tokens;   /* the same of tokens */
    int64_t most_targets; /* of the rank that has the most rows of targets; 0: one rank */
    mc_packed_stack stack[MC_STACKS];
    int32_t *labels;      /* (limits->rows), MC_NO_LABEL after the batch's rows */
    int32_t *answer_rows; /* (limits->rows * choices) */
    float *values;        /* (limits->rows, dataset->values); NULL: rows have none */
    float *pixels;        /* (limits->rows, 3, size, size) of images, else NULL */
    int64_t *row_index;   /* (rows) */
} mc_packed;

/* Numbers of an image. */
size_t mc_pixels_of(const mc_dataset *dataset);
/* Makes the buffers: those of rows in full, those of tokens as mc_pack_start. */
mc_status mc_packed_init(mc_error *err, mc_packed *packed, const mc_pack_limits *limits,
                         const mc_dataset *dataset);
void mc_packed_release(mc_packed *packed);

/* Tokens that buffers for at most `most` hold from the start: all that can be needed when that is
 * little, so that small jobs never grow them. */
int64_t mc_pack_start(int64_t most);
/* The next size of a buffer that holds `room`, needs `wanted` and may hold `most`. */
int64_t mc_pack_grow(int64_t most, int64_t room, int64_t wanted);

/* Fills the batch with `rows` rows: row[0], row[stride], row[2 * stride], ... `example` is scratch
 * that grows and stays. */
mc_status mc_pack(mc_error *err, mc_packed *packed, const mc_pack_limits *limits,
                  const mc_dataset *dataset, const int32_t *row, int64_t stride, int rows,
                  mc_example *example);

#endif
