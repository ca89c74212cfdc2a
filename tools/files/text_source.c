#include "tools/files/text_source.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/files/line_reader.h"
#include "tools/files/prompt_file.h"
#include "tools/files/text.h"

enum { CHUNKS = 2, MOST_BYTES = 64 << 20 }; /* a chunk ends early once its texts are so large */

/* A chunk and its memory. Spans hold offsets into `data` while it grows. */
typedef struct chunk {
    text_chunk view;
    char *data;
    size_t used, room, row_room;
    mc_text_span *pairs, *cells; /* (row_room), whether or not there are any */
    bool full;
} chunk;

struct text_source {
    mc_context *ctx; /* of who uses the texts */
    text_source_options o;
    mc_context *own;    /* the thread's: a context belongs to one thread */
    mc_table *table;    /* NULL: lines or texts that are given */
    line_reader lines;  /* of standard input */
    int text, pair;     /* columns; pair -1: none */
    bool chats;         /* the texts are prompts of conversations */
    const char **names; /* (columns) which the thread does not touch */
    int columns;
    int64_t rows; /* read so far */
    chunk chunks[CHUNKS];
    int64_t given; /* chunks */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended, stop; /* under the lock, with chunk.full */
};

/* ---- the thread ------------------------------------------------------------------------------ */

static bool out_of_memory(text_source *s)
{
    mc_set_error(s->own, MC_ERR_NOMEM, "out of memory for texts");
    return false;
}

/* Room for `size` bytes and a NUL after the chunk's. */
static bool reserve_bytes(text_source *s, chunk *c, size_t size)
{
    if (c->used + size < c->room) return true;
    size_t room = 2 * (c->used + size) + 4096;
    char *grown = realloc(c->data, room);
    if (!grown) return out_of_memory(s);
    c->data = grown;
    c->room = room;
    return true;
}

/* Copies a text after the chunk's. */
static bool copy_text(text_source *s, chunk *c, const char *bytes, size_t size, mc_text_span *span)
{
    if (!reserve_bytes(s, c, size)) return false;
    memcpy(c->data + c->used, bytes, size);
    c->data[c->used + size] = '\0';
    *span = (mc_text_span){.data = (const char *)c->used, .size = size};
    c->used += size + 1;
    return true;
}

static bool reserve(text_source *s, chunk *c, size_t rows)
{
    if (rows <= c->row_room) return true;
    mc_text_span *texts = realloc(c->view.texts, rows * sizeof *texts);
    if (texts) c->view.texts = texts;
    mc_text_span *pairs = realloc(c->pairs, rows * sizeof *pairs);
    if (pairs) c->pairs = pairs;
    mc_text_span *cells = realloc(c->cells, rows * sizeof *cells);
    if (cells) c->cells = cells;
    if (!texts || !pairs || !cells) return out_of_memory(s);
    c->row_room = rows;
    return true;
}

/* Of a column of the current row. */
static bool copy_column(text_source *s, chunk *c, int column, mc_text_span *span)
{
    size_t size;
    const text_source_options *o = &s->o;
    const char *bytes = !s->chats ? mc_table_text(s->table, column, &size)
                        : o->chat_format
                            ? mc_table_chat_in(s->table, column, o->tok, o->chat_format, &size)
                            : mc_table_chat(s->table, column, &size);
    if (!bytes || !copy_text(s, c, bytes, size, span)) return false;
    span->file = mc_table_path(s->table);
    span->line = mc_table_line(s->table);
    return true;
}

static bool fail_line(text_source *s, const char *why)
{
    mc_set_error(s->own, MC_ERR_FORMAT, "standard input:%lld: %s, expected a text a line",
                 (long long)s->lines.number, why);
    return false;
}

/* A line is waited for only where the chunk has none yet. */
static bool copy_line(text_source *s, chunk *c, size_t i)
{
    const char *line;
    size_t size;
    line_state state = line_reader_next(&s->lines, i == 0, &line, &size);
    if (state == LINE_FAILED)
        mc_set_error(s->own, MC_ERR_IO, "standard input: cannot read: %s", strerror(errno));
    if (state != LINE_READ) return false;
    if (strlen(line) < size) return fail_line(s, "a NUL byte");
    if (!is_utf8(line, size)) return fail_line(s, "not UTF-8");
    if (!copy_text(s, c, line, size, &c->view.texts[i])) return false;
    c->view.texts[i].file = "standard input";
    c->view.texts[i].line = (int64_t)s->lines.number;
    return true;
}

static bool copy_given(text_source *s, chunk *c, size_t i)
{
    const text_source_options *o = &s->o;
    int64_t row = s->rows + (int64_t)i;
    if (row >= o->count) return false;
    return copy_text(s, c, o->given[row], strlen(o->given[row]), &c->view.texts[i]) &&
           (!o->given_pairs ||
            copy_text(s, c, o->given_pairs[row], strlen(o->given_pairs[row]), &c->pairs[i]));
}

/* ---- rows as CSV ---- */

static bool add_cell(text_source *s, chunk *c, const char *cell, size_t size, bool first)
{
    if (!cell || !reserve_bytes(s, c, 2 * size + 3)) return false;
    text t = text_into(c->data + c->used, c->room - c->used);
    text_add(&t, "%s", first ? "" : ",");
    text_add_csv_bytes(&t, cell, size);
    c->used += t.used;
    return true;
}

/* A text of the chunk, which moves where it grows. */
static bool add_span(text_source *s, chunk *c, const mc_text_span *span, bool first)
{
    return reserve_bytes(s, c, 2 * span->size + 3) &&
           add_cell(s, c, c->data + (size_t)span->data, span->size, first);
}

static bool add_columns(text_source *s, chunk *c)
{
    const char *other = mc_table_other_key(s->table);
    if (other)
        mc_set_error(
            s->own, MC_ERR_FORMAT,
            "%s:%lld: key \"%.100s\", which the first row does not have: CSV has the first "
            "row's columns: expected that key there too (null will do), or an --output "
            "that ends in .jsonl",
            mc_table_path(s->table), (long long)mc_table_line(s->table), other);
    bool good = !other;
    for (int k = 0; good && k < s->columns; k++) {
        size_t size;
        const char *cell = mc_table_cell(s->table, k, &size);
        good = add_cell(s, c, cell, size, k == 0);
    }
    return good;
}

static bool copy_cells(text_source *s, chunk *c, size_t i)
{
    size_t start = c->used;
    bool good = s->table ? add_columns(s, c)
                         : add_span(s, c, &c->view.texts[i], true) &&
                               (!s->o.given_pairs || add_span(s, c, &c->pairs[i], false));
    if (!good || !reserve_bytes(s, c, 0)) return false;
    c->cells[i] = (mc_text_span){.data = (const char *)start, .size = c->used - start};
    c->data[c->used++] = '\0';
    return true;
}

/* ---- chunks ---- */

/* The texts of row i of the chunk; false past the last row. */
static bool copy_row(text_source *s, chunk *c, size_t i)
{
    if (s->table)
        return mc_table_next(s->table) && copy_column(s, c, s->text, &c->view.texts[i]) &&
               (s->pair < 0 || copy_column(s, c, s->pair, &c->pairs[i]));
    return s->o.path ? copy_line(s, c, i) : copy_given(s, c, i);
}

/* False where there is no further row. */
static bool fill(text_source *s, chunk *c)
{
    size_t most = (size_t)(s->rows ? s->o.rows : s->o.first_rows);
    c->view.first = s->rows;
    c->view.chats = s->chats;
    c->view.count = 0;
    c->used = 0;
    if (!reserve(s, c, most)) return false;
    while (c->view.count < most && c->used < MOST_BYTES && copy_row(s, c, c->view.count) &&
           (!s->o.cells || copy_cells(s, c, c->view.count)))
        c->view.count++;
    bool pairs = s->pair >= 0 || s->o.given_pairs;
    for (size_t i = 0; i < c->view.count; i++) {
        c->view.texts[i].data = c->data + (size_t)c->view.texts[i].data;
        if (pairs) c->pairs[i].data = c->data + (size_t)c->pairs[i].data;
        if (s->o.cells) c->cells[i].data = c->data + (size_t)c->cells[i].data;
    }
    c->view.pairs = pairs ? c->pairs : NULL;
    c->view.cells = s->o.cells ? c->cells : NULL;
    s->rows += (int64_t)c->view.count;
    return c->view.count && !mc_failed(s->own);
}

static void *work(void *argument)
{
    text_source *s = argument;
    pthread_mutex_lock(&s->lock);
    for (int64_t n = 0; !s->ended; n++) {
        chunk *c = &s->chunks[n % CHUNKS];
        while (c->full && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
        if (s->stop) break;
        pthread_mutex_unlock(&s->lock);
        bool more = fill(s, c);
        pthread_mutex_lock(&s->lock);
        c->full = more;
        s->ended = !more;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- making ---------------------------------------------------------------------------------- */

static int find_column(const text_source *s, const char *name)
{
    int i = mc_table_columns(s->table);
    while (--i >= 0 && strcmp(mc_table_column_name(s->table, i), name) != 0) {
    }
    return i;
}

/* The column that is asked for, else that of conversations, else "text", else the only one. */
static int choose_column(text_source *s)
{
    int chats = !s->o.text && s->o.messages ? find_column(s, s->o.messages) : -1;
    s->chats = chats >= 0;
    if (s->chats) return chats;
    if (!s->o.text && s->o.usual && find_column(s, s->o.usual) >= 0)
        return find_column(s, s->o.usual);
    if (!s->o.text && find_column(s, "text") >= 0) return find_column(s, "text");
    if (!s->o.text && mc_table_columns(s->table) == 1) return 0;
    return mc_table_column(s->table, s->o.text ? s->o.text : "text");
}

/* ---- standard input ---- */

/* Whether the line has a field of that name, between separators, in quotes or not. */
static bool has_field(const char *line, size_t size, char separator, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = line, *end = line + size; at <= end;) {
        const char *stop = memchr(at, separator, (size_t)(end - at));
        if (!stop) stop = end;
        const char *from = at, *to = stop;
        if (to > from && to[-1] == '\r') to--;
        if (to - from >= 2 && *from == '"' && to[-1] == '"') from++, to--;
        if ((size_t)(to - from) == length && memcmp(from, name, length) == 0) return true;
        at = stop + 1;
    }
    return false;
}

/* The form that the first line shows; 0: a text a line. A line that is no more than the name of the
 * column that was trained on, or asked for, is the head of a table of one column, as in a file. */
static mc_table_format form_of(const text_source *s, const char *line, size_t size)
{
    static const char separators[] = "\t,;";
    const char *trained = s->o.text ? s->o.text : s->o.usual;
    if (size >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) line += 3, size -= 3;
    if ((size && *line == '{') || line_begins_list(line, size)) return MC_TABLE_JSONL;
    if (trained && has_field(line, size, '\n', trained)) return MC_TABLE_CSV;
    for (const char *c = separators; *c; c++) {
        bool named = (trained && has_field(line, size, *c, trained)) ||
                     (!s->o.text && has_field(line, size, *c, "text"));
        if (named && memchr(line, *c, size)) return *c == '\t' ? MC_TABLE_TSV : MC_TABLE_CSV;
    }
    return s->o.asked ? MC_TABLE_CSV : 0;
}

/* A table is read whole, lines as they come. */
static void open_input(text_source *s)
{
    const char *data;
    size_t size;
    s->lines.fd = STDIN_FILENO;
    line_state state = line_reader_peek(&s->lines, &data, &size);
    if (state == LINE_END)
        mc_set_error(s->own, MC_ERR_FORMAT, "standard input: it is empty, expected texts");
    mc_table_format form = state == LINE_READ ? form_of(s, data, size) : 0;
    if (form && (state = line_reader_rest(&s->lines, &data, &size)) == LINE_READ)
        s->table = mc_table_from_memory(s->own, "standard input", data, size,
                                        &(mc_table_options){.format = form});
    if (state == LINE_FAILED)
        mc_set_error(s->own, MC_ERR_IO, "standard input: cannot read: %s", strerror(errno));
    if (state == LINE_READ && !form && s->o.pair)
        mc_set_error(s->own, MC_ERR_ARGUMENT,
                     "standard input: lines have no second text (column %s): expected a table",
                     s->o.pair);
}

static void open_table(text_source *s)
{
    const text_source_options *o = &s->o;
    if (o->path && strcmp(o->path, "-") == 0)
        open_input(s);
    else if (o->path)
        s->table = mc_table_open_list(s->own, o->paths, o->path_count, NULL);
    s->text = s->table ? choose_column(s) : -1;
    s->pair = s->table && o->pair ? mc_table_column(s->table, o->pair) : -1;
}

static void name_columns(text_source *s)
{
    static const char *const given[] = {"text", "text_pair"};
    int count = s->table ? mc_table_columns(s->table) : 1 + (s->o.given_pairs != NULL);
    s->names = calloc((size_t)count + 1, sizeof *s->names);
    if (!s->names) out_of_memory(s);
    for (; s->names && s->columns < count; s->columns++)
        s->names[s->columns] =
            s->table ? mc_table_column_name(s->table, s->columns) : given[s->columns];
}

/* An error of the thread's context becomes one of the user's. */
static void pass_error(text_source *s)
{
    if (mc_failed(s->own) && !mc_failed(s->ctx))
        mc_set_error(s->ctx, mc_error_status(s->own), "%s", mc_error_message(s->own));
}

/* Signals stay with the program's own threads. */
static void start(text_source *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->running = pthread_create(&s->thread, NULL, work, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!s->running) mc_set_error(s->ctx, MC_ERR_NOMEM, "cannot start a thread that reads texts");
}

text_source *text_source_new(mc_context *ctx, const text_source_options *options)
{
    if (mc_failed(ctx)) return NULL;
    text_source *s = calloc(1, sizeof *s);
    if (!s) {
        mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for reading texts");
        return NULL;
    }
    s->ctx = ctx;
    s->o = *options;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->own = mc_context_new(NULL);
    open_table(s);
    name_columns(s);
    pass_error(s);
    if (!mc_failed(ctx)) start(s);
    if (!mc_failed(ctx)) return s;
    text_source_free(s);
    return NULL;
}

void text_source_free(text_source *s)
{
    if (!s) return;
    if (s->running) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    for (int i = 0; i < CHUNKS; i++) {
        free(s->chunks[i].data);
        free(s->chunks[i].view.texts);
        free(s->chunks[i].pairs);
        free(s->chunks[i].cells);
    }
    free(s->names);
    mc_context_free(s->own);
    line_reader_release(&s->lines);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int text_source_columns(const text_source *s) { return s->columns; }
const char *text_source_column_name(const text_source *s, int i) { return s->names[i]; }

const text_chunk *text_source_next(text_source *s)
{
    if (!s || mc_failed(s->ctx)) return NULL;
    pthread_mutex_lock(&s->lock);
    if (s->given) s->chunks[(s->given - 1) % CHUNKS].full = false;
    pthread_cond_broadcast(&s->changed);
    chunk *c = &s->chunks[s->given % CHUNKS];
    while (!c->full && !s->ended) pthread_cond_wait(&s->changed, &s->lock);
    bool there = c->full;
    pthread_mutex_unlock(&s->lock);
    s->given++;
    if (there) return &c->view;
    pass_error(s);
    return NULL;
}
