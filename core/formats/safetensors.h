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
 * Errors go to the context. On a failed context all functions here do nothing and return NULL, zero
 * or the context's status. NULL objects are accepted everywhere.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_FORMATS_SAFETENSORS_H
#define MC_FORMATS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"
#include "core/tensor/dtype.h"

/* Declares a tensor of a new file. */
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

/* Begins the file `path`, under a temporary name beside it. The tensors' bytes follow in the order
 * of `specs` (`count` of them; all arguments are copied). Every tensor must start at a multiple of
 * its element size, which holds if larger elements come first: mc_safetensors_sort() sorts specs
 * that way. `__metadata__` holds {"format": "pt"}, which Hugging Face's loaders require, and the
 * given strings; a given "format" replaces it. Returns NULL after an error: MC_ERR_ARGUMENT for
 * invalid specs, MC_ERR_IO or MC_ERR_NOT_FOUND if the folder cannot be written, MC_ERR_NOMEM. */
MC_API mc_safetensors_writer *
mc_safetensors_writer_new(mc_context *ctx, const char *path, const mc_safetensors_spec *specs,
                          size_t count, const mc_safetensors_string *strings, size_t string_count);

/* Appends `size` bytes of tensor data, in pieces of any size. More than was declared is
 * MC_ERR_ARGUMENT; a full disk is MC_ERR_IO. After a failed call the writer can only be freed. */
MC_API mc_status mc_safetensors_write(mc_safetensors_writer *writer, const void *data, size_t size);

/* Finishes the file: syncs it to disk and renames it to its name, replacing an old file in one
 * step. MC_ERR_STATE when declared bytes are still missing. To write several files as one, sync all
 * of them first and then rename them; commit does both for one file. Each may be called once. */
MC_API mc_status mc_safetensors_writer_commit(mc_safetensors_writer *writer);
MC_API mc_status mc_safetensors_writer_sync(mc_safetensors_writer *writer);
MC_API mc_status mc_safetensors_writer_rename(mc_safetensors_writer *writer);

/* Frees the writer. Removes a file that was not renamed; an old file of that name then stays. */
MC_API void mc_safetensors_writer_free(mc_safetensors_writer *writer);

/* Sorts specs by descending element size, then by name: Hugging Face's order. */
MC_API void mc_safetensors_sort(mc_safetensors_spec *specs, size_t count);

#endif
