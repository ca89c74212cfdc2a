/* A batch on the host: rows of a dataset tokenized and packed into plain buffers, on any thread. */
#ifndef MC_DATASETS_PACK_INTERNAL_H
#define MC_DATASETS_PACK_INTERNAL_H

#include "core/tensor/tensor.h"
#include "datasets/dataset_internal.h"
#include "datasets/sizes_internal.h"

/* Limits that say how large the buffers start and how far they may grow. */
typedef struct mc_pack_limits {
    int rows;       /* of the largest batch */
    int round_to;   /* of the capacity */
    int64_t tokens; /* capacity of the largest batch there can be */
    int32_t pad_id; /* behind the last token */
} mc_pack_limits;

typedef struct mc_packed {
    int64_t epoch, step;
    int rows;
    int64_t all_rows;        /* on all ranks; set by the loader, as is the next */
    int64_t all_tokens;      /* the same of tokens */
    mc_size size;            /* set by the loader before: the capacity; tokens 0: round_to says */
    mc_lengths lengths;      /* points at the buffers below */
    int32_t *ids, *type_ids; /* (lengths.capacity); room for `room` */
    int64_t room;
    int32_t *length, *offset; /* (rows * choices), (rows * choices + 1) */
    int32_t *labels;          /* (limits->rows), MC_NO_LABEL behind the batch's rows */
    int64_t *row_index;       /* (rows) */
} mc_packed;

/* Makes the buffers: those of rows in full, those of tokens as mc_pack_start. */
mc_status mc_packed_init(mc_error *err, mc_packed *packed, const mc_pack_limits *limits,
                         int choices);
void mc_packed_release(mc_packed *packed);

/* Tokens that buffers hold from the start: all that can be needed when that is little, so that
 * small jobs never grow them. */
int64_t mc_pack_start(const mc_pack_limits *limits);
/* The next size of a buffer that holds `room` and needs `wanted`. */
int64_t mc_pack_grow(const mc_pack_limits *limits, int64_t room, int64_t wanted);

/* Tokenizes one input of a row, cut to the dataset's max_length. Errors name the row's line. */
mc_status mc_pack_encode(mc_error *err, const mc_dataset *dataset, int64_t row, int choice,
                         mc_encoding *encoding);

/* Fills the batch with `rows` rows: row[0], row[stride], row[2 * stride], ... `encoding` is scratch
 * that grows and stays. */
mc_status mc_pack(mc_error *err, mc_packed *packed, const mc_pack_limits *limits,
                  const mc_dataset *dataset, const int32_t *row, int64_t stride, int rows,
                  mc_encoding *encoding);

#endif
