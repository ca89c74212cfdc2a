/* What form a table has: by the name of its file, and by its first bytes. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "core/base/file_internal.h"
#include "datasets/table/table_internal.h"

enum { SAMPLE = 1 << 16 };

/* ---- names ----------------------------------------------------------------------------------- */

/* Whether a file's name has an ending, in any case, before ".gz" if it has that. */
static bool ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), size = strlen(ending);
    if (mc_path_is_gzip(path)) length -= strlen(".gz");
    return length > size && !strncasecmp(path + length - size, ending, size);
}

mc_table_format mc_table_format_of(const char *path)
{
    static const struct {
        const char *ending;
        mc_table_format format;
    } known[] = {{".csv", MC_TABLE_CSV},      {".tsv", MC_TABLE_TSV},
                 {".tab", MC_TABLE_TSV},      {".jsonl", MC_TABLE_JSONL},
                 {".ndjson", MC_TABLE_JSONL}, {".json", MC_TABLE_JSONL}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (ends_in(path, known[i].ending)) return known[i].format;
    return MC_TABLE_BY_NAME;
}

/* ---- files of other programs ----------------------------------------------------------------- */

/* A form that is not read here, and the Python that converts it. */
static const struct {
    const char *endings[3], *magic, *what, *python;
} foreign[] = {
    {{".parquet"}, "PAR1", "Parquet", "import pandas; pandas.read_parquet('%s')"},
    {{".xlsx", ".xls", ".ods"},
     "PK\3\4",
     "a spreadsheet",
     "import pandas; pandas.read_excel('%s')"},
    {{NULL}, "\xD0\xCF\x11\xE0", "a spreadsheet", "import pandas; pandas.read_excel('%s')"},
    {{".feather"}, "ARROW1", "Feather", "import pandas; pandas.read_feather('%s')"},
    {{".orc"}, "ORC", "ORC", "import pandas; pandas.read_orc('%s')"},
    {{".arrow"}, NULL, "Arrow", "import datasets; datasets.Dataset.from_file('%s')"},
};
enum { FOREIGN = sizeof foreign / sizeof *foreign };

static void refuse_foreign(mc_context *ctx, const char *path, int i)
{
    char python[MC_PATH_MAX + 128];
    bool frame = strncmp(foreign[i].python, "import pandas", 13) == 0;
    snprintf(python, sizeof python, foreign[i].python, path);
    mc_fail(
        ctx, MC_ERR_UNSUPPORTED,
        "%s: %s, which is not read here: convert it with python3 -c \"%s.to_json('rows.jsonl'%s)\"",
        path, foreign[i].what, python, frame ? ", orient='records', lines=True" : "");
}

bool mc_table_is_foreign(mc_context *ctx, const char *path)
{
    for (int i = 0; i < FOREIGN; i++)
        for (int k = 0; k < 3 && foreign[i].endings[k]; k++) {
            if (!ends_in(path, foreign[i].endings[k])) continue;
            refuse_foreign(ctx, path, i);
            return true;
        }
    return false;
}

bool mc_table_holds_foreign(mc_table *t)
{
    const unsigned char gzip[] = {0x1F, 0x8B, 0x08};
    mc_table_byte(t, 7); /* reads the first bytes */
    const char *text = t->window + t->row;
    size_t size = t->end - t->row;
    if (size >= 3 && memcmp(text, gzip, 3) == 0) {
        mc_fail(t->ctx, MC_ERR_FORMAT, "%s: gzip data: expected a name that ends in .gz", t->path);
        return true;
    }
    for (int i = 0; i < FOREIGN; i++) {
        const char *magic = foreign[i].magic;
        if (!magic || size < strlen(magic) || strlen(magic) < 4) continue;
        if (memcmp(text, magic, strlen(magic)) != 0) continue;
        refuse_foreign(t->ctx, t->path, i);
        return true;
    }
    return mc_failed(t->ctx);
}

/* ---- separators and quotes ------------------------------------------------------------------- */

/* The first rows, as they are with a separator, and with quotes or without. */
typedef struct look {
    bool even;            /* all rows have as many fields as the first, and quotes are sound */
    size_t fields;        /* of the first row */
    bool header_quoted;   /* the first row has a field in quotes */
    bool doubled, spread; /* a field in quotes has quotes written twice; a separator or line end */
} look;

typedef struct sample {
    const char *text;
    size_t size;
    bool whole; /* it is all that there is */
} sample;

/* From the opening quote to after the closing one; SIZE_MAX: the sample ends before. */
static size_t pass_quotes(const sample *s, size_t at, char separator, look *l)
{
    for (at++; at < s->size; at++) {
        char c = s->text[at];
        if (c == separator || c == '\n') l->spread = true;
        if (c != '"') continue;
        if (at + 1 == s->size || s->text[at + 1] != '"') return at + 1;
        l->doubled = true;
        at++;
    }
    return SIZE_MAX;
}

/* To the separator or line end after the field at `at`; SIZE_MAX: the sample ends within quotes. */
static size_t pass_field(const sample *s, size_t at, char separator, bool quotes, look *l)
{
    bool quoted = quotes && at < s->size && s->text[at] == '"';
    if (quoted) at = pass_quotes(s, at, separator, l);
    if (quoted && at == SIZE_MAX) return at;
    if (quoted && at + 1 < s->size && s->text[at] == '\r' && s->text[at + 1] == '\n') at++;
    for (; at < s->size && s->text[at] != separator && s->text[at] != '\n'; at++)
        if (quoted || (quotes && s->text[at] == '"')) l->even = false;
    return at;
}

static look look_at(const sample *s, char separator, bool quotes)
{
    look l = {.even = true};
    bool first = true;
    for (size_t at = 0; at < s->size && l.even;) {
        size_t fields = 0, begin = at;
        for (;; at++) {
            if (first && quotes && at < s->size && s->text[at] == '"') l.header_quoted = true;
            at = pass_field(s, at, separator, quotes, &l);
            fields++;
            if (at >= s->size || s->text[at] == '\n') break;
        }
        bool blank = at < s->size && (at == begin || (at == begin + 1 && s->text[begin] == '\r'));
        bool ended = at < s->size || (s->whole && at != SIZE_MAX);
        if (at == SIZE_MAX && s->whole) l.even = false;
        if (at >= s->size) at = s->size;
        at++;
        if (!ended || blank) continue;
        if (first) l.fields = fields;
        if (fields != l.fields) l.even = false;
        first = false;
    }
    return l;
}

static sample take_sample(mc_table *t)
{
    size_t from = t->row + t->used;
    while (t->end - from < SAMPLE && mc_table_more(t)) from = t->row + t->used;
    from = t->row + t->used;
    return (sample){t->window + from, t->end - from, t->all_read};
}

/* Excel's first line "sep=;" names the separator; '\0': there is none. */
static char named_separator(mc_table *t, const sample *s)
{
    if (s->size < 6 || strncasecmp(s->text, "sep=", 4) != 0) return '\0';
    size_t end = s->text[5] == '\r' && s->size > 6 ? 6 : 5;
    if (s->text[end] != '\n') return '\0';
    char separator = s->text[4];
    t->used += end + 1;
    t->next_line++;
    return separator;
}

/* The separator that the first row has, and with which the next ones are as long; a comma if there
 * is no other. */
static char find_separator(const sample *s)
{
    static const char known[] = ",;\t|";
    char found = '\0';
    for (int i = 0; known[i]; i++) {
        look l = look_at(s, known[i], true);
        if (l.fields < 2) continue;
        if (l.even) return known[i];
        if (!found) found = known[i];
    }
    return found ? found : ',';
}

/* Whether the quotes of a TSV are not text: its names are in quotes, or quotes are written twice,
 * or rows make no sense otherwise. */
static bool has_quotes(const sample *s)
{
    look plain = look_at(s, '\t', false), quoted = look_at(s, '\t', true);
    if (!quoted.even) return false;
    return quoted.header_quoted || quoted.doubled || (quoted.spread && !plain.even);
}

void mc_table_find_form(mc_table *t)
{
    sample s = take_sample(t);
    if (mc_failed(t->ctx)) return;
    if (t->format == MC_TABLE_TSV) {
        t->separator = '\t';
        t->quotes = has_quotes(&s);
        return;
    }
    t->quotes = true;
    t->separator = named_separator(t, &s);
    if (!t->separator) t->separator = find_separator(&s);
}
