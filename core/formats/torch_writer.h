/* Writing PyTorch files: a state dict as torch.save writes it, for torch.load (also with
 * weights_only), BMTrain's bmt.load and other readers of pytorch_model.bin. tensor_file.h reads it.
 *
 * The file is an OrderedDict from names to contiguous tensors on the CPU, each with a storage of
 * its own. Like safetensors.h, writing streams, and nothing is visible under the file's name until
 * all of it is on disk:
 *
 *     mc_torch_writer *out = mc_torch_writer_new(ctx, "pytorch_model.pt", specs, 1);
 *     mc_torch_write(out, values, sizeof values);
 *     mc_torch_writer_commit(out);
 *     mc_torch_writer_free(out);
 *
 * Errors go to the context. On a failed context all functions here do nothing and return NULL or
 * the context's status. NULL objects are accepted everywhere.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_FORMATS_TORCH_WRITER_H
#define MC_FORMATS_TORCH_WRITER_H

#include "core/formats/safetensors.h"
#include "core/formats/tensor_file.h"

/* A file being written. Owned by its context. */
typedef struct mc_torch_writer mc_torch_writer;

/* Begins the file `path`, under a temporary name beside it. The tensors' bytes follow in the order
 * of `specs` (`count` of them; copied), row-major and little-endian. A spec's dtype_name may be any
 * dtype of mc_tensor_entry except F6 and F4, which PyTorch lacks. Returns NULL after an error:
 * MC_ERR_ARGUMENT for invalid specs, MC_ERR_IO or MC_ERR_NOT_FOUND if the folder cannot be written,
 * MC_ERR_NOMEM. */
MC_API mc_torch_writer *mc_torch_writer_new(mc_context *ctx, const char *path,
                                            const mc_safetensors_spec *specs, size_t count);

/* Appends `size` bytes of tensor data, in pieces of any size. More than was declared is
 * MC_ERR_ARGUMENT; a full disk is MC_ERR_IO. After a failed call the writer can only be freed. */
MC_API mc_status mc_torch_write(mc_torch_writer *writer, const void *data, size_t size);

/* Finishes the file: syncs it to disk and renames it to its name, replacing an old file in one
 * step. MC_ERR_STATE if declared bytes are still missing, or if it was called before. */
MC_API mc_status mc_torch_writer_commit(mc_torch_writer *writer);

/* Frees the writer. Removes a file that was not committed; an old file of that name then stays. */
MC_API void mc_torch_writer_free(mc_torch_writer *writer);

/* Writes all tensors of an open file, of any format, to a PyTorch file under the same names:
 * through a buffer of a megabyte, so that files larger than memory can be converted. Errors as
 * above, and MC_ERR_UNSUPPORTED for dtypes that PyTorch doesn't have. */
MC_API mc_status mc_torch_write_file(mc_tensor_file *from, const char *path);

#endif
