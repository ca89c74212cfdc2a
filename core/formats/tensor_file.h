/* Reading files of tensors: pretrained weights and checkpoints, in several formats.
 *
 * Opening maps a file into memory and copies no data. It checks all offsets, shapes and sizes
 * before it returns. One handle serves all formats and any number of shards:
 *
 *     mc_tensor_file *file = mc_tensor_file_open(ctx, "models/minilm", NULL);
 *     const mc_tensor_entry *w = mc_tensor_file_find(file, "pooler.dense.weight");
 *     if (w) mc_tensor_file_read_f32(file, w, 0, w->count, values);
 *     mc_tensor_file_free(file);
 *
 * The format is detected from the file's first bytes, whatever its name:
 *
 *     safetensors      a JSON header, then the data (see safetensors.h, which writes it)
 *     PyTorch zip      what torch.save writes (pytorch_model.bin, .pt, .pth): a zip archive, mapped
 *                      in place, of a pickle and the data, with a CRC-32 of each storage unless its
 *                      field is 0
 *     PyTorch legacy   what torch.save wrote before 1.6: pickles, then the data
 *     llm.c            its checkpoints of GPT-2, versions 3 (f32) and 5 (bf16), under Hugging
 *                      Face's names: matrices are views, the vocabulary's padding is left out
 *
 * Pickles are programs. The reader executes nothing. It knows only the opcodes and names of tensors
 * and plain containers, and refuses all others by name. A tensor's name consists of the keys of the
 * dicts that contain it, joined by dots. From a training checkpoint only the weights are read,
 * under their bare names: the tensors under the first of the keys state_dict, model_state_dict,
 * model, module, model_state, net, network and weights that holds any. The log reports how many
 * others there are. Views and tensors that share storage are entries that point to the same bytes.
 *
 * Errors go to the context. On a failed context all functions here do nothing and return NULL, zero
 * or the context's status. NULL objects are accepted everywhere.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_FORMATS_TENSOR_FILE_H
#define MC_FORMATS_TENSOR_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"
#include "core/tensor/dtype.h"

/* An open file, or all the shards of a folder taken together. Owned by its context. */
typedef struct mc_tensor_file mc_tensor_file;

/* One tensor of an open file. Everything it points to lives as long as the mc_tensor_file. */
typedef struct mc_tensor_entry {
    const char *name; /* as in the file; UTF-8, any length, "" is possible */
    mc_dtype dtype;   /* MC_DTYPE_DEFAULT if mc_dtype lacks the file's dtype (F64, I16, ...) */
    const char *dtype_name; /* as safetensors calls it: "F32", "BF16", "F8_E4M3", ... */
    int ndim;               /* 0 for a scalar */
    const int64_t *shape;   /* ndim numbers, each >= 0 */
    const int64_t *strides; /* ndim numbers >= 0: elements from one index to the next in each
                               dimension; those of a row-major tensor unless it is a view */
    int64_t count;          /* elements: the product of shape, 1 for a scalar */
    size_t size;            /* bytes of that many elements */
    const void *data;       /* the first element, in the mapped file; may be unaligned for its
                               dtype. Valid (but not to be read) when size is 0 */
    bool dense;             /* data holds the tensor's `size` bytes in row-major order,
                               little-endian. Otherwise use the read functions */
    bool big_endian;        /* elements are stored big-endian */
    const char *file;       /* the path of the file that holds it, for messages */
} mc_tensor_entry;

typedef struct mc_tensor_file_options {
    const char *variant; /* in a folder: read model.<variant>.safetensors, for example "fp16"; see
                            below */
} mc_tensor_file_options;

/* Opens `path`: a file of tensors, an index (.json), or a folder. In a folder it opens the first of
 * these that exists:
 *     model.safetensors
 *     model.safetensors.index.json      and the shards that its weight_map names
 *     model.<variant>.safetensors       or model.safetensors.index.<variant>.json, if there is
 *                                       exactly one variant
 *     pytorch_model.bin
 *     pytorch_model.bin.index.json      and its shards
 *     pytorch_model.pt                  ModelCenter's
 *     adapter_model.safetensors         of a PEFT adapter, without its base's weights
 *     adapter_model.bin
 * Several variants without a PyTorch file are an error that lists them. With options->variant it
 * opens only that variant, which may also be pytorch_model.<variant>.bin or its index. `options`
 * may be NULL.
 *
 * Returns NULL with the context's error set to
 *     MC_ERR_NOT_FOUND  nothing there, a shard is missing, or a shard lacks a tensor of the index
 *     MC_ERR_FORMAT     a damaged file: the message names file, tensor and what is wrong
 *     MC_ERR_ARGUMENT   several variants and none requested
 *     MC_ERR_IO, MC_ERR_NOMEM
 * The files must not be truncated while they are open; replacing them by renaming is harmless. */
MC_API mc_tensor_file *mc_tensor_file_open(mc_context *ctx, const char *path,
                                           const mc_tensor_file_options *options);

/* Unmaps the files. Entries and their data become invalid. */
MC_API void mc_tensor_file_free(mc_tensor_file *file);

/* The number of tensors, and the i-th tensor in the byte order of names (NULL if i is out of
 * range). */
MC_API size_t mc_tensor_file_count(const mc_tensor_file *file);
MC_API const mc_tensor_entry *mc_tensor_file_at(const mc_tensor_file *file, size_t i);

/* Returns the tensor of that name, or NULL without an error. Takes O(log n). */
MC_API const mc_tensor_entry *mc_tensor_file_find(const mc_tensor_file *file, const char *name);

/* The format of the file (or of its first shard), one of the names above: "safetensors". */
MC_API const char *mc_tensor_file_format(const mc_tensor_file *file);

/* The file's metadata (`__metadata__` of safetensors; for llm.c's files the keys of a config.json:
 * model_type, n_layer, ...): the value of a key (NULL if absent; with several shards that of the
 * first that has it), the number of strings, and the i-th key and value. */
MC_API const char *mc_tensor_file_metadata(const mc_tensor_file *file, const char *key);
MC_API size_t mc_tensor_file_metadata_count(const mc_tensor_file *file);
MC_API const char *mc_tensor_file_metadata_key(const mc_tensor_file *file, size_t i);
MC_API const char *mc_tensor_file_metadata_value(const mc_tensor_file *file, size_t i);

/* How many of a file's storages have a checksum, and how many do not. */
typedef struct mc_tensor_checksums {
    size_t checked, absent;
} mc_tensor_checksums;

/* Reads the tensors' bytes and compares them with the file's checksums: the CRC-32 of each entry of
 * a PyTorch zip (0 means no checksum). Other formats have none, and *found (`found` may be NULL)
 * becomes zeros. MC_ERR_FORMAT names the entry that differs. Loading a model or a module checks
 * them too. */
MC_API mc_status mc_tensor_file_verify(mc_tensor_file *file, mc_tensor_checksums *found);

/* Counts, without reading data, the storages whose checksum mc_tensor_file_verify would compare,
 * and those of a PyTorch zip that have none. */
MC_API mc_status mc_tensor_file_checksums(mc_tensor_file *file, mc_tensor_checksums *found);

/* The CRC-32 of zip files (polynomial 0xedb88320) over a tensor's bytes, in row-major order: *own
 * becomes the tensor's CRC, and *all (0 before the first tensor) is continued over its bytes. */
MC_API mc_status mc_tensor_file_crc32(mc_tensor_file *file, const mc_tensor_entry *entry,
                                      uint32_t *own, uint32_t *all);

/* Copies elements first .. first + count - 1 of a tensor (in row-major order) into `out`, which has
 * room for `count` numbers. F64, F32, F16, BF16, the integers I64 to U8 and BOOL (any byte but 0 is
 * 1) can be read; a value that the output cannot hold exactly is rounded to the nearest. NaNs stay
 * NaN. Views are gathered through a small buffer. MC_ERR_ARGUMENT for a range not in the tensor,
 * MC_ERR_UNSUPPORTED for other dtypes. */
MC_API mc_status mc_tensor_file_read_f32(mc_tensor_file *file, const mc_tensor_entry *entry,
                                         int64_t first, int64_t count, float *out);
MC_API mc_status mc_tensor_file_read_f64(mc_tensor_file *file, const mc_tensor_entry *entry,
                                         int64_t first, int64_t count, double *out);

/* Call this after reading mc_tensor_entry.data, which is mapped. If a part of the file could not be
 * read, for example because the file has become shorter, it sets the context's error and returns
 * MC_ERR_IO. This needs the handler of core/base/fault.h. The functions that read tensors check
 * this themselves. */
MC_API mc_status mc_tensor_file_check(mc_tensor_file *file);

/* Reads elements without conversion, for any dtype of whole bytes: writes count * (entry->size /
 * entry->count) bytes to `out`, little-endian. */
MC_API mc_status mc_tensor_file_read_bytes(mc_tensor_file *file, const mc_tensor_entry *entry,
                                           int64_t first, int64_t count, void *out);

#endif
