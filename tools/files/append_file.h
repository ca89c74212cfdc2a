/* A file that grows by whole records.
 *
 * Each record is on its way to the disk when append_file_write returns. When one can't be written
 * whole (a full disk), the part that was is cut off again, so that the file stays readable, and
 * nothing more is written: the status and the message stay until they are read. */
#ifndef MC_TOOLS_APPEND_FILE_H
#define MC_TOOLS_APPEND_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/status.h"

enum { APPEND_FILE_PATH = 4096 };

typedef enum append_file_mode {
    APPEND_FILE_ANEW,      /* what the file held is lost */
    APPEND_FILE_CONTINUED, /* keeps it; writes after it */
    APPEND_FILE_EXCLUSIVE, /* the file must not exist yet: MC_ERR_STATE */
} append_file_mode;

/* Zero-initialised it is a closed file: writing and releasing do nothing. */
typedef struct append_file {
    bool open;
    int fd;
    int64_t size;     /* bytes of whole records */
    mc_status status; /* of the first failure */
    char path[APPEND_FILE_PATH];
    char message[APPEND_FILE_PATH + 128]; /* "<path>: cannot ...: <reason>", "" without a failure */
} append_file;

/* Opens the file, making the folders it lies in. MC_ERR_IO, MC_ERR_ARGUMENT (a path too long). */
mc_status append_file_init(append_file *file, const char *path, append_file_mode mode);
/* Cuts the file to its first `size` bytes; the next record goes there. */
mc_status append_file_cut(append_file *file, int64_t size);
mc_status append_file_write(append_file *file, const void *record, size_t size);
/* Closes the file. The status is that of the first failure, closing included; message stays. */
mc_status append_file_release(append_file *file);

#endif
