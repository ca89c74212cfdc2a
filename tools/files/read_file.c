#include "tools/files/read_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

char *read_file(const char *path, size_t most, size_t *size)
{
    enum { PIECE = 1 << 15 };
    FILE *file = fopen(path, "rbe");
    char *text = NULL;
    size_t room = 0, used = 0;
    int failed = file ? 0 : errno;
    for (bool end = false; !failed && !end;) {
        if (used + PIECE > room) {
            char *grown = realloc(text, room = 2 * room + 2 * PIECE);
            if (!grown) failed = ENOMEM;
            if (grown) text = grown;
        }
        size_t got = failed ? 0 : fread(text + used, 1, PIECE - 1, file);
        if (!failed && ferror(file)) failed = errno;
        if ((used += got) >= most) failed = EFBIG;
        end = got < PIECE - 1;
    }
    if (file) fclose(file);
    if (!failed) text[used] = '\0';
    if (!failed && size) *size = used;
    if (!failed) return text;
    free(text);
    errno = failed;
    return NULL;
}
