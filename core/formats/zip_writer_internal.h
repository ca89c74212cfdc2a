/* Writing zip files of stored entries, as PyTorch's reader takes them. */
#ifndef MC_FORMATS_ZIP_WRITER_INTERNAL_H
#define MC_FORMATS_ZIP_WRITER_INTERNAL_H

#include "core/base/crc32_internal.h"
#include "core/base/file_internal.h"

enum { MC_ZIP_NAME_MAX = 48, MC_ZIP_ALIGN = 64 };

typedef struct mc_zip_written {
    char name[MC_ZIP_NAME_MAX];
    uint64_t begin, size; /* of the local header; of the data */
    uint32_t crc;
} mc_zip_written;

/* Writes an open file from its beginning. Zero-initialise all but the file and the table. */
typedef struct mc_zip_writer {
    mc_file_writer *file;
    mc_crc32_table crc;
    mc_zip_written *entries;
    size_t count, capacity;
} mc_zip_writer;

void mc_zip_writer_init(mc_zip_writer *zip, mc_file_writer *file);
/* Begins an entry of `size` bytes, whose data starts at a multiple of MC_ZIP_ALIGN. Its bytes
 * follow in pieces of any size; then mc_zip_end ends it. */
mc_status mc_zip_begin(mc_zip_writer *zip, const char *name, uint64_t size);
mc_status mc_zip_add(mc_zip_writer *zip, const void *data, size_t size);
mc_status mc_zip_end(mc_zip_writer *zip);
/* Writes the directory. */
mc_status mc_zip_finish(mc_zip_writer *zip);
void mc_zip_writer_release(mc_zip_writer *zip);

#endif
