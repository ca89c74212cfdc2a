/* Turns the values of a PyTorch file's pickle into a table of its tensors. */
#ifndef MC_FORMATS_TORCH_INTERNAL_H
#define MC_FORMATS_TORCH_INTERNAL_H

#include "core/formats/pickle_internal.h"
#include "core/formats/zip_internal.h"

/* A storage's bytes in a file of the legacy form. */
typedef struct mc_torch_block {
    const mc_torch_storage *storage;
    const uint8_t *data; /* NULL: not found in the file yet */
} mc_torch_block;

/* The places of storages' bytes: entries of a zip file, or blocks. */
typedef struct mc_torch_bytes {
    const char *path;
    uint64_t size; /* of the file */
    const mc_zip *zip;
    const char *prefix; /* of the entries' names, with its '/' */
    size_t prefix_length;
    const mc_torch_block *blocks; /* sorted by key; used where zip is NULL */
    size_t block_count;
    bool big_endian;
} mc_torch_bytes;

/* The block of a key, or NULL. */
const mc_torch_block *mc_torch_block_find(const mc_torch_block *blocks, size_t count,
                                          const char *key, size_t length);

/* Fills the table with the tensors in a pickle's value. A single tensor is named ""; tensors in
 * containers are named by their keys and numbers, joined by dots. From a training checkpoint only
 * the weights are taken. `work` limits the number of values visited (to the pickle's bytes). On
 * failure the table may be partly filled and must be released. */
mc_status mc_torch_table(mc_error *err, mc_tensor_table *table, const mc_pickle_value *root,
                         const mc_torch_bytes *bytes, size_t work);

#endif
