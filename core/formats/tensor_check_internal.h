/* Checksums stored in tensor files: a PyTorch zip has a CRC-32 for each storage. */
#ifndef MC_FORMATS_TENSOR_CHECK_INTERNAL_H
#define MC_FORMATS_TENSOR_CHECK_INTERNAL_H

#include "core/base/crc32_internal.h"
#include "core/formats/tensor_file_internal.h"

/* Bytes of a part that have been read, and their CRC. */
typedef struct mc_checked_run {
    const uint8_t *data; /* in the mapped file */
    size_t size;
    uint32_t crc;
} mc_checked_run;

/* Checks all parts of the file that have a checksum, together with the other ranks. A part that the
 * `count` runs cover completely is not read again; each other part is read by one rank. Sorts the
 * runs. MC_ERR_FORMAT names file and entry. */
mc_status mc_tensor_parts_check(mc_tensor_file *file, mc_checked_run *runs, size_t count, int rank,
                                int ranks);

#endif
