/* Sequential reading of a file, plain or compressed with gzip (RFC 1952).
 *
 *     mc_file_reader reader;
 *     if (mc_file_reader_init(err, &reader, "rows.csv.gz")) return ...;
 *     for (size_t got; (got = mc_file_read_next(&reader, buffer, sizeof buffer)); ) ...
 *     mc_file_reader_release(&reader);
 *     if (mc_error_is_set(err)) ...
 *
 * A name that ends in ".gz" is a gzip file; it may hold several members one after the other, as
 * pigz and `cat a.gz b.gz` write them, and zero bytes as padding at its end. */
#ifndef MC_BASE_FILE_READER_INTERNAL_H
#define MC_BASE_FILE_READER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"

typedef struct mc_gzip mc_gzip; /* core/base/gzip.c: the state of decompression */

typedef struct mc_file_reader {
    mc_error *err;
    char *path;
    int fd;
    uint64_t size; /* of the file when it was opened; 0: not a regular file */
    mc_gzip *gzip; /* NULL: the file is plain */
} mc_file_reader;

/* Whether a file's name ends in ".gz". */
bool mc_path_is_gzip(const char *path);

/* Opens the file. Errors name it: it is missing, is a folder, or ends in .gz but the library was
 * built without zlib. The reader may be released in any case. */
mc_status mc_file_reader_init(mc_error *err, mc_file_reader *reader, const char *path);

/* Reads the next bytes, as many as fit; fewer only at the end. 0: at the end, or after an error: a
 * gzip file that is cut off or damaged, or a file that has become shorter since it was opened. */
size_t mc_file_read_next(mc_file_reader *reader, void *buffer, size_t size);

void mc_file_reader_release(mc_file_reader *reader);

/* For mc_file_reader alone. A member's header and checksum are checked by zlib. */
mc_gzip *mc_gzip_new(mc_error *err, const char *path);
size_t mc_gzip_read(mc_file_reader *reader, void *buffer, size_t size);
void mc_gzip_free(mc_gzip *gzip);
/* read(2) until the buffer is full or the file ends. */
size_t mc_file_read_plain(mc_file_reader *reader, void *buffer, size_t size);

#endif
