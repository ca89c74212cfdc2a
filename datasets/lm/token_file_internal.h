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

/* The arrays of an .idx. They lie unaligned in the file, and are checked in stretches before they
 * are used: read them with the functions below. */
typedef struct mc_token_index {
    char *path;
    mc_token_type type;
    bool legacy; /* TNTIDX, whose places are tokens and not bytes */
    int64_t sequences, documents;
    uint64_t bin_size;
    const uint8_t *lengths;  /* i32, legacy i64 (sequences): tokens of each */
    const uint8_t *pointers; /* i64 (sequences): where each begins in the .bin; legacy: and where
                                the last one ends */
    const uint8_t *bounds;   /* i64 (documents + 1): sequence number that begins each */
    const uint8_t *dims;     /* i64 (sequences + 1), legacy: which sizes are those of each */
    _Atomic unsigned char *checked; /* whether each stretch of sequences, and of documents, was */
} mc_token_index;

typedef struct mc_token_shard {
    char *path; /* of the .bin; a program's name for its own */
    mc_token_format format;
    mc_token_type type;
    mc_file_map map, index_map; /* of the .bin; of the .idx, empty for llm.c */
    const uint8_t *data;        /* (count) tokens within map or own; NULL with `read` */
    int64_t count;
    int64_t first;        /* tokens of the shards before */
    int64_t documents;    /* -1: not known */
    mc_token_index index; /* of Megatron's */
    /* a program's own: */
    mc_token_read_fn read;
    void *user;
    int32_t *own;    /* (count) */
    int64_t *begins; /* (documents + 1) where each begins, and the last one ends */
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
/* Whether a file begins as Megatron's indices do. */
bool mc_token_index_is(const uint8_t *file, size_t size);
/* Reads the header of an .idx whose .bin has `bin_size` bytes and checks both ends of its arrays:
 * all of an index of up to 8 Ki sequences. `file` has to outlive it. */
mc_status mc_token_index_init(mc_error *err, const char *path, const uint8_t *file, size_t size,
                              uint64_t bin_size, mc_token_index *index);
void mc_token_index_release(mc_token_index *index);
/* Where document i begins, in tokens; i == documents: where the last one ends. An error where that
 * part of the index is damaged. */
mc_status mc_token_index_document(mc_error *err, const mc_token_index *index, int64_t i,
                                  int64_t *begin);

/* Opens one file, or Megatron pair, whose path is given literally. */
mc_status mc_token_shard_open(mc_error *err, const char *path, mc_token_shard *shard);
void mc_token_shard_release(mc_token_shard *shard);
/* Says how the tokens will be read: here and there, or (the default) one after the other. The
 * system then reads no more of a large file than it has to, or ahead. */
void mc_token_shard_advise(const mc_token_shard *shard, bool random);
/* Begins to read bytes of a mapped file that are needed at once. */
void mc_token_need(const uint8_t *bytes, size_t size);
/* Where document i begins, counted from the shard's first token; i == documents: where the last one
 * ends. Errors: of Megatron's, an index that is damaged there. */
mc_status mc_token_shard_document(mc_error *err, const mc_token_shard *shard, int64_t i,
                                  int64_t *begin);
/* Copies tokens [first, first + count), which have to be there, to out. A token that is negative,
 * or `limit` or more, is an error. */
mc_status mc_token_shard_read(mc_error *err, const mc_token_shard *shard, int64_t first,
                              int64_t count, int64_t limit, int32_t *out);

/* A file without shards, owned by the context. */
mc_token_file *mc_token_file_new(mc_context *ctx);
/* Makes room for one more shard, with which adding it cannot fail; the file takes over what the
 * shard holds. */
bool mc_token_file_reserve(mc_token_file *file);
void mc_token_file_add(mc_token_file *file, const mc_token_shard *shard);

/* The index of the shard that token i (within the file) is in. */
size_t mc_token_file_find(const mc_token_file *file, int64_t i);
void mc_token_file_ref(mc_token_file *file);
void mc_token_file_unref(mc_token_file *file);

#endif
