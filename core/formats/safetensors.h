/* Writing safetensors files: the format in which pretrained weights are exchanged.
 *
 * A file is a length, a JSON header that names every tensor with its dtype, shape and byte range,
 * and the tensors' bytes, row-major and little-endian. Writing streams: shapes are declared first,
 * the bytes follow, and nothing is visible under the file's name until all of it is on disk.
 * tensor_file.h reads it.
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
 * or the context's status, and NULL objects are accepted everywhere.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_FORMATS_SAFETENSORS_H
#define MC_FORMATS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"
#include "core/tensor/dtype.h"

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
