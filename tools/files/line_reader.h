/* Lines of a pipe as they come, so that their writer gets answers before it ends. */
#ifndef MC_TOOLS_LINE_READER_H
#define MC_TOOLS_LINE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum line_state {
    LINE_READ,
    LINE_LATER,  /* none is there yet */
    LINE_END,    /* of the file */
    LINE_FAILED, /* errno says why */
} line_state;

/* Zero-initialised but for `fd`. */
typedef struct line_reader {
    int fd;
    char *data; /* bytes [begin, end) are read and not yet given */
    size_t begin, end, room;
    bool ended;
    int64_t number; /* of the last line, from 1 */
} line_reader;

/* Whether a line begins a JSON list of objects, on one line or on several. */
bool line_begins_list(const char *line, size_t size);

/* The next line without its end (LF or CRLF), closed with a NUL, valid until the next call. Without
 * `wait` LINE_LATER where it would have to be waited for. */
line_state line_reader_next(line_reader *r, bool wait, const char **line, size_t *size);
/* The next line, which remains to be read. */
line_state line_reader_peek(line_reader *r, const char **line, size_t *size);
/* All that is left, in memory of the reader's. */
line_state line_reader_rest(line_reader *r, const char **data, size_t *size);
void line_reader_release(line_reader *r);

/* Whether something is connected to standard input: a pipe, a file or a socket, neither a terminal
 * nor /dev/null. */
bool line_input_is_there(void);

#endif
