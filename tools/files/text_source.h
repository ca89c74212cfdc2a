/* Texts of a table's columns, of standard input or of the command line, a chunk at a time, read by
 * a thread ahead of who uses them.
 *
 *     text_source *s = text_source_new(ctx, &(text_source_options){.path = "rows.csv", ...});
 *     for (const text_chunk *c; (c = text_source_next(s)); )
 *         ... c->texts[0 .. c->count) ...
 *     text_source_free(s);
 *
 * Every rank reads the whole table, and all get the same chunks; standard input has only one.
 * Texts of a pipe are given as they come: a chunk ends where the next would have to be waited for.
 */
#ifndef MC_TOOLS_TEXT_SOURCE_H
#define MC_TOOLS_TEXT_SOURCE_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "datasets/conversation.h"

typedef struct text_source text_source;

typedef struct text_source_options {
    /* The table; "-" is standard input, by its first line: JSON where that is an object or begins a
     * list, CSV or TSV where it names `text`, or `asked` is set, else a text a line. NULL: the
     * texts are `given`. */
    const char *path;
    const char *const *paths; /* (path_count) of `path`, the first, and what is read after it: paths
                                 and patterns of one table */
    int path_count;
    const char *const *given, *const *given_pairs; /* (count); pairs NULL: single texts */
    int count;
    const char *text;     /* the column; NULL: `usual`, "text", or the only one */
    const char *usual;    /* a column that is taken where the table has it; NULL: none */
    bool asked;           /* the user named the column */
    const char *pair;     /* of the second text; NULL: none */
    const char *messages; /* a column of conversations, whose prompts are the texts, in place of
                                 `text` where the table has it; NULL: none */
    mc_chat_format chat_format; /* in which these prompts are written, for `tok`; 0: in lines such
                                    as "User: ..." */
    const mc_tokenizer *tok;
    int64_t first_rows, rows; /* of the first chunk, and of later ones */
    bool cells;               /* chunks have their rows as CSV too */
} text_source_options;

/* Rows first .. first + count of the table. Texts are closed with a NUL, and know file and line. */
typedef struct text_chunk {
    int64_t first;
    size_t count;
    bool chats;                  /* the texts are prompts of conversations */
    mc_text_span *texts, *pairs; /* (count); pairs NULL without such a column */
    mc_text_span *cells; /* (count) all columns of the row as CSV, without a line's end; NULL unless
                            asked for */
} text_chunk;

/* Opens the table and starts the thread. The options are copied, not the texts they point to. NULL
 * with the context's error. */
text_source *text_source_new(mc_context *ctx, const text_source_options *options);
/* The columns of the table; of lines and given texts "text", and "text_pair" where there are second
 * texts. A row of JSON with a key that is no column is an error where `cells` are asked for. */
int text_source_columns(const text_source *s);
const char *text_source_column_name(const text_source *s, int i);
/* The next chunk, valid until the next call. NULL at the end, and with the context's error: what is
 * wrong with a row, as mc_table says it. */
const text_chunk *text_source_next(text_source *s);
void text_source_free(text_source *s); /* NULL is allowed */

#endif
