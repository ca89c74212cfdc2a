#include "tools/files/line_reader.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 16 };

/* Room for a piece, and a NUL after it. */
static bool reserve(line_reader *r)
{
    if (r->begin) {
        memmove(r->data, r->data + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    if (r->room - r->end > PIECE) return true;
    size_t room = 2 * r->room + PIECE + 1;
    char *grown = realloc(r->data, room);
    if (!grown) return false;
    r->data = grown;
    r->room = room;
    return true;
}

static bool has_input(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) != 0; /* an error is one of the read */
}

static line_state read_more(line_reader *r, bool wait)
{
    if (r->ended) return LINE_END;
    if (!wait && !has_input(r->fd)) return LINE_LATER;
    if (!reserve(r)) {
        errno = ENOMEM;
        return LINE_FAILED;
    }
    ssize_t n;
    do n = read(r->fd, r->data + r->end, PIECE);
    while (n < 0 && errno == EINTR);
    if (n < 0) return LINE_FAILED;
    r->end += (size_t)n;
    r->ended = n == 0;
    return n ? LINE_READ : LINE_END;
}

/* Finds the next line; `next` becomes where the one after it begins. */
static line_state find(line_reader *r, bool wait, size_t *size, size_t *next)
{
    for (size_t seen = 0;;) {
        char *end =
            r->data ? memchr(r->data + r->begin + seen, '\n', r->end - r->begin - seen) : NULL;
        if (end) {
            *size = (size_t)(end - r->data) - r->begin;
            *next = r->begin + *size + 1;
            return LINE_READ;
        }
        seen = r->end - r->begin;
        line_state state = read_more(r, wait);
        if (state == LINE_READ) continue;
        if (state != LINE_END || r->begin == r->end) return state;
        *size = r->end - r->begin; /* the last line has no end */
        *next = r->end;
        return LINE_READ;
    }
}

bool line_begins_list(const char *line, size_t size)
{
    size_t at = 1;
    while (at < size && strchr(" \t\r", line[at])) at++;
    return size && *line == '[' && (at == size || line[at] == '{');
}

line_state line_reader_next(line_reader *r, bool wait, const char **line, size_t *size)
{
    size_t next;
    line_state state = find(r, wait, size, &next);
    if (state != LINE_READ) return state;
    char *at = r->data + r->begin;
    if (*size && at[*size - 1] == '\r' && next > r->begin + *size) --*size;
    at[*size] = '\0';
    *line = at;
    r->begin = next;
    r->number++;
    return LINE_READ;
}

line_state line_reader_peek(line_reader *r, const char **line, size_t *size)
{
    size_t next;
    line_state state = find(r, true, size, &next);
    if (state == LINE_READ) *line = r->data + r->begin;
    return state;
}

line_state line_reader_rest(line_reader *r, const char **data, size_t *size)
{
    line_state state = LINE_READ;
    while (state == LINE_READ) state = read_more(r, true);
    if (state != LINE_END) return state;
    *data = r->data + r->begin;
    *size = r->end - r->begin;
    return LINE_READ;
}

void line_reader_release(line_reader *r)
{
    free(r->data);
    *r = (line_reader){.fd = -1};
}

bool line_input_is_there(void)
{
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 &&
           (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode) || S_ISSOCK(info.st_mode));
}
