/* A file that is read as a whole. */
#ifndef MC_TOOLS_READ_FILE_H
#define MC_TOOLS_READ_FILE_H

#include <stddef.h>

/* The file's bytes with a NUL after them, to be freed, and their number, if `size` is not NULL. A
 * file of `most` bytes or more is an error. NULL: errno says why, EFBIG of one that is too long. */
char *read_file(const char *path, size_t most, size_t *size);

#endif
