/* The directory of a zip file in memory, for archives whose entries are stored as they are, which
 * is how PyTorch writes them: entries are used where they lie. Layout: PKWARE's APPNOTE 6.3.9;
 * zip64 included.
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

/* Reads the directory of the file whose `size` bytes are `data`, which have to outlive it, as has
 * `path`, for messages. On failure the zip is empty. */
mc_status mc_zip_init(mc_error *err, mc_zip *zip, const uint8_t *data, size_t size,
                      const char *path);
void mc_zip_release(mc_zip *zip);

/* The entry of that name, or NULL. */
const mc_zip_entry *mc_zip_find(const mc_zip *zip, const char *name, size_t length);

/* Compares an entry's bytes with its CRC, which reads them all. A CRC of 0 says that there is none:
 * torch.save can leave it out. */
mc_status mc_zip_check(mc_error *err, const mc_zip *zip, const mc_zip_entry *entry);

#endif
