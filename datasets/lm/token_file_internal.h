/* The inside of token files: shards, and how their headers are read. */
#ifndef MC_DATASETS_LM_TOKEN_FILE_INTERNAL_H
#define MC_DATASETS_LM_TOKEN_FILE_INTERNAL_H

#include <stddef.h>
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "datasets/lm.h"

enum {
    MC_LLMC_HEADER = 1024, /* bytes: 256 i32 */
    MC_LLMC_MAGIC = 20240520,
    MC_LLMC_VERSION = 1,
    MC_LLMC_MAGIC_U32 = 20240801, /* of Llama 3's vocabulary */
    MC_LLMC_VERSION_U32 = 7,
    MC_MEGATRON_HEADER = 34, /* bytes before the arrays, which are therefore not aligned */
};

/* "MMIDIDX\0\0" */
#define MC_MEGATRON_MAGIC "MMIDIDX\0"
enum { MC_MEGATRON_MAGIC_SIZE = 9, MC_MEGATRON_VERSION = 1 };

/* How a token is stored; the numbers are those of an .idx, and U32 is llm.c's only. */
typedef enum mc_token_type {
    MC_TOKEN_U8 = 1,
    MC_TOKEN_I8 = 2,
    MC_TOKEN_I16 = 3,
    MC_TOKEN_I32 = 4,
    MC_TOKEN_I64 = 5,
    MC_TOKEN_F64 = 6, /* no tokens: named in errors */
    MC_TOKEN_F32 = 7,
    MC_TOKEN_U16 = 8,
    MC_TOKEN_U32 = 100,
} mc_token_type;

/* Bytes of a token, 0 for what is no type of tokens. */
size_t mc_token_width(mc_token_type type);

/* The arrays of an .idx, all checked. They lie unaligned in the file: read them with the functions
 * below. */
typedef struct mc_token_index {
    mc_token_type type;
    int64_t sequences, documents;
    const uint8_t *pointers; /* i64 (sequences): where each begins in the .bin, in bytes */
    const uint8_t *bounds;   /* i64 (documents + 1): sequence number that begins each */
} mc_token_index;

typedef struct mc_token_shard {
    char *path; /* of the .bin */
    mc_token_format format;
    mc_token_type type;
    mc_file_map map, index_map; /* of the .bin; of the .idx, empty for llm.c */
    const uint8_t *data;        /* (count) tokens within map */
    int64_t count;
    int64_t first;        /* tokens of the shards before */
    mc_token_index index; /* of Megatron's */
} mc_token_shard;

struct mc_token_file {
    mc_owned owned;
    mc_context *ctx;
    int references; /* the context's or caller's one, and one a loader */
    mc_token_shard *shards;
    size_t shard_count, shard_capacity;
    int64_t count;
};

/* Reads the header of a shard of llm.c's, the whole file: type, data and count of `shard`. `path`
 * is for errors. */
mc_status mc_llmc_read(mc_error *err, const char *path, const uint8_t *file, size_t size,
                       mc_token_shard *shard);
/* Reads and checks a whole .idx, whose .bin has `bin_size` bytes. */
mc_status mc_token_index_read(mc_error *err, const char *path, const uint8_t *file, size_t size,
                              uint64_t bin_size, mc_token_index *index);
/* Where document i begins, in tokens; i == documents: where the last one ends. */
int64_t mc_token_index_document(const mc_token_index *index, int64_t i);

/* Opens one file, or Megatron pair, whose path is given literally. */
mc_status mc_token_shard_open(mc_error *err, const char *path, mc_token_shard *shard);
void mc_token_shard_release(mc_token_shard *shard);
/* Copies tokens [first, first + count), which have to be there, to out. A token that is negative,
 * or `limit` or more, is an error. */
mc_status mc_token_shard_read(mc_error *err, const mc_token_shard *shard, int64_t first,
                              int64_t count, int64_t limit, int32_t *out);

/* The index of the shard that token i (within the file) is in. */
size_t mc_token_file_find(const mc_token_file *file, int64_t i);
void mc_token_file_ref(mc_token_file *file);
void mc_token_file_unref(mc_token_file *file);

#endif
