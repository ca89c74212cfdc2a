/* The directory of a zip file in memory, for archives of uncompressed entries, as PyTorch writes
 * them: entries are used in place. Layout: PKWARE's APPNOTE 6.3.9; zip64 included.
 *
 * All of the directory is checked before anything is returned. Refused with the entry's name:
 * compressed, encrypted, repeated and overlapping entries, entries outside of the file, and fields
 * of local headers and of zip64 that contradict the directory. */
#ifndef MC_FORMATS_ZIP_INTERNAL_H
#define MC_FORMATS_ZIP_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"

typedef struct mc_zip_entry {
    const char *name; /* in the file, without a NUL */
    size_t length;    /* of the name */
    const uint8_t *data;
    size_t size;
    uint64_t begin; /* of its local header, in the file */
    uint32_t crc;   /* what the directory says; see mc_zip_check */
} mc_zip_entry;

typedef struct mc_zip {
    const char *path;
    const uint8_t *data;
    mc_zip_entry *entries; /* sorted by name */
    size_t count;
} mc_zip;

/* Reads the directory of a file whose `size` bytes are `data`. `data` and `path` (for messages)
 * must outlive it. On failure the zip is empty. */
mc_status mc_zip_init(mc_error *err, mc_zip *zip, const uint8_t *data, size_t size,
                      const char *path);
void mc_zip_release(mc_zip *zip);

/* The entry of that name, or NULL. */
const mc_zip_entry *mc_zip_find(const mc_zip *zip, const char *name, size_t length);

/* Reads all of an entry's bytes and compares them with its CRC. A CRC of 0 means that there is
 * none: torch.save can leave it out. */
mc_status mc_zip_check(mc_error *err, const mc_zip *zip, const mc_zip_entry *entry);

#endif
