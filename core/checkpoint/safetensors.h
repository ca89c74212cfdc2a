/* Safetensors files: the format in which pretrained weights are exchanged.
 *
 * A file is a length, a JSON header that names every tensor with its dtype, shape and byte range,
 * and the tensors' bytes, row-major and little-endian. Reading maps the file into memory and checks
 * all of the header before anything is handed out; opening costs no copy of the data. Writing
 * streams: shapes are declared first, the bytes follow, and nothing is visible under the file's
 * name until all of it is on disk.
 *
 * Reading, whether the weights are one file or many:
 *
 *     mc_safetensors *file = mc_safetensors_open(ctx, "models/minilm", NULL);
 *     const mc_safetensors_entry *w = mc_safetensors_find(file, "pooler.dense.weight");
 *     if (w) mc_safetensors_read_f32(file, w, 0, w->count, values);
 *     mc_safetensors_free(file);
 *
 * Writing:
 *
 *     mc_safetensors_spec specs[] = {{.name = "w", .dtype = MC_F32, .ndim = 2,
 *                                     .shape = (int64_t[]){3, 4}}};
 *     mc_safetensors_writer *out =
 *         mc_safetensors_writer_new(ctx, "w.safetensors", specs, 1, NULL, 0);
 *     mc_safetensors_write(out, values, sizeof values);
 *     mc_safetensors_writer_commit(out);
 *     mc_safetensors_writer_free(out);
 *
 * Errors go to the context; while it holds one, everything here does nothing and returns NULL, zero
 * or the context's status, and NULL objects are accepted everywhere. */
#ifndef MC_CHECKPOINT_SAFETENSORS_H
#define MC_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"
#include "core/tensor/dtype.h"

/* ---- Reading ------------------------------------------------------------------------------- */

/* An open file, or all the shards of a folder taken together. Owned by its context. */
typedef struct mc_safetensors mc_safetensors;

/* One tensor of an open file. Everything it points to lives as long as the mc_safetensors. */
typedef struct mc_safetensors_entry {
    const char *name; /* as in the file; UTF-8, any length, "" is possible */
    mc_dtype dtype;   /* MC_DTYPE_DEFAULT when the file's dtype is none of ours (F64, I16, ...) */
    const char *dtype_name; /* the file's own text: "F32", "BF16", "F8_E4M3", ... */
    int ndim;               /* 0 for a scalar */
    const int64_t *shape;   /* ndim numbers, each >= 0, row-major */
    int64_t count;          /* elements: the product of shape, 1 for a scalar */
    size_t size;            /* bytes at data */
    const void *data;       /* in the mapped file; may be unaligned for its dtype: use memcpy or the
                               read functions. Valid (but not to be read) when size is 0 */
    const char *file;       /* the path of the file that holds it, for messages */
} mc_safetensors_entry;

typedef struct mc_safetensors_options {
    const char *variant; /* in a folder: read model.<variant>.safetensors or its index, as "fp16" */
} mc_safetensors_options;

/* Opens `path`: a .safetensors file, an index (.json), or a folder. In a folder the first of these
 * that exists is taken:
 *     model.safetensors
 *     model.safetensors.index.json      and the shards that its weight_map names
 *     model.<variant>.safetensors       or model.safetensors.index.<variant>.json, if there is
 *                                       exactly one variant; several are an error that lists them
 * With options->variant only that variant is looked for. `options` may be NULL.
 *
 * Returns NULL with the context's error set to
 *     MC_ERR_NOT_FOUND  nothing there, a shard is missing, or a shard lacks a tensor of the index
 *     MC_ERR_FORMAT     a damaged file: the message names file, tensor and what is wrong
 *     MC_ERR_ARGUMENT   several variants and none asked for
 *     MC_ERR_IO, MC_ERR_NOMEM
 * The files must not be truncated while they are open; replacing them by renaming is harmless. */
MC_API mc_safetensors *mc_safetensors_open(mc_context *ctx, const char *path,
                                           const mc_safetensors_options *options);

/* Unmaps the files. Entries and their data are gone with it. */
MC_API void mc_safetensors_free(mc_safetensors *file);

/* The number of tensors, and the i-th of them in the byte order of their names (NULL when i is out
 * of range). */
MC_API size_t mc_safetensors_count(const mc_safetensors *file);
MC_API const mc_safetensors_entry *mc_safetensors_at(const mc_safetensors *file, size_t i);

/* The tensor of that name, or NULL, which is no error. Takes O(log n). */
MC_API const mc_safetensors_entry *mc_safetensors_find(const mc_safetensors *file,
                                                       const char *name);

/* The strings of `__metadata__`: the value of a key (NULL when absent; of several shards the first
 * that has it), the number of strings, and the key and value of the i-th. */
MC_API const char *mc_safetensors_metadata(const mc_safetensors *file, const char *key);
MC_API size_t mc_safetensors_metadata_count(const mc_safetensors *file);
MC_API const char *mc_safetensors_metadata_key(const mc_safetensors *file, size_t i);
MC_API const char *mc_safetensors_metadata_value(const mc_safetensors *file, size_t i);

/* Copies elements first .. first + count - 1 of a tensor (in row-major order) into `out`, which has
 * room for `count` numbers. F64, F32, F16, BF16, the integers I64 to U8 and BOOL (any byte but 0 is
 * 1) can be read; a value that the output cannot hold exactly is rounded to the nearest. NaNs stay
 * NaN. MC_ERR_ARGUMENT for a range not in the tensor, MC_ERR_UNSUPPORTED for other dtypes. */
MC_API mc_status mc_safetensors_read_f32(mc_safetensors *file, const mc_safetensors_entry *entry,
                                         int64_t first, int64_t count, float *out);
MC_API mc_status mc_safetensors_read_f64(mc_safetensors *file, const mc_safetensors_entry *entry,
                                         int64_t first, int64_t count, double *out);

/* ---- Writing ------------------------------------------------------------------------------- */

/* What a tensor of a new file will be. */
typedef struct mc_safetensors_spec {
    const char *name;       /* UTF-8, unique in the file, not "__metadata__" */
    mc_dtype dtype;         /* F32 for MC_DTYPE_DEFAULT */
    const char *dtype_name; /* NULL: dtype's; else one of the format's dtypes, e.g. "F64" */
    int ndim;               /* 0 for a scalar */
    const int64_t *shape;   /* ndim numbers >= 0; may be NULL for a scalar */
} mc_safetensors_spec;

/* A string for `__metadata__`. */
typedef struct mc_safetensors_string {
    const char *key, *value; /* UTF-8 */
} mc_safetensors_string;

/* A file being written. Owned by its context. */
typedef struct mc_safetensors_writer mc_safetensors_writer;

/* Begins the file `path`, written beside it under a temporary name. The tensors' bytes will follow
 * in the order of `specs` (`count` of them; copied, as is all that is given here). Every tensor has
 * to start at a multiple of its element size, which is so when larger elements come first:
 * mc_safetensors_sort() orders specs like that. `__metadata__` holds {"format": "pt"}, which
 * Hugging Face's loaders want, and the given strings; a given "format" replaces it. NULL on error:
 * MC_ERR_ARGUMENT for specs that make no file, MC_ERR_IO or MC_ERR_NOT_FOUND where the folder
 * cannot be written, MC_ERR_NOMEM. */
MC_API mc_safetensors_writer *
mc_safetensors_writer_new(mc_context *ctx, const char *path, const mc_safetensors_spec *specs,
                          size_t count, const mc_safetensors_string *strings, size_t string_count);

/* Appends `size` bytes of tensor data, cut anywhere. More than was declared is MC_ERR_ARGUMENT; a
 * full disk MC_ERR_IO. After a failed call the file can only be freed. */
MC_API mc_status mc_safetensors_write(mc_safetensors_writer *writer, const void *data, size_t size);

/* Finishes the file: syncs it to disk and renames it to its name, replacing an old file in one
 * step. MC_ERR_STATE when declared bytes are still missing. A file that belongs together with
 * others is synced first and renamed when all of them are synced; commit does both. Each may be
 * called once. */
MC_API mc_status mc_safetensors_writer_commit(mc_safetensors_writer *writer);
MC_API mc_status mc_safetensors_writer_sync(mc_safetensors_writer *writer);
MC_API mc_status mc_safetensors_writer_rename(mc_safetensors_writer *writer);

/* Frees the writer. What was not renamed is removed, and an old file of that name is untouched. */
MC_API void mc_safetensors_writer_free(mc_safetensors_writer *writer);

/* Sorts specs by falling element size, then by name, which is the order Hugging Face writes. */
MC_API void mc_safetensors_sort(mc_safetensors_spec *specs, size_t count);

#endif
