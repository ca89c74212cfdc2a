/* JSON Lines: a reader that hands out one object after the other, and the fields of such a row,
 * with errors that name file, line and key. */
#ifndef MC_DATASETS_JSONL_INTERNAL_H
#define MC_DATASETS_JSONL_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"
#include "core/base/json_internal.h"

typedef struct mc_jsonl {
    mc_error *err;
    const char *name; /* of the file, for errors */
    const char *data; /* not owned */
    size_t size, at;
    int64_t line; /* of `row`, from 1 */
    cJSON *row;   /* the current object; gone at the next call */
    bool nul;     /* strings may hold NUL characters, whose readers ask for lengths */
} mc_jsonl;

/* Starts reading `size` bytes; skips a byte order mark. */
void mc_jsonl_init(mc_jsonl *reader, mc_error *err, const char *name, const char *data,
                   size_t size);
/* Goes to the next line that isn't blank and parses it. False at the end, and on an error: a line
 * that is not one JSON object. */
bool mc_jsonl_next(mc_jsonl *reader);
/* Parses one object that is not a line, beginning on line `line`. False on an error. */
bool mc_jsonl_parse(mc_jsonl *reader, const char *text, size_t size, int64_t line);
void mc_jsonl_release(mc_jsonl *reader);

/* Sets the error "name:line: ..."; the arguments are as printf's, at least one after the format. */
#define mc_jsonl_fail(reader, format, ...)                                         \
    mc_error_set((reader)->err, MC_ERR_FORMAT, "%s:%lld: " format, (reader)->name, \
                 (long long)(reader)->line, __VA_ARGS__)

/* The value of a key of `object`, NULL when absent. A key that is there twice is an error (*ok
 * becomes false): readers disagree on which one counts. */
const cJSON *mc_jsonl_find(mc_jsonl *reader, const cJSON *object, const char *key, bool *ok);

/* The string at a dotted path of the current row, such as "target.span1_text", and its bytes; NULL
 * with an error where it is missing or no string. */
const char *mc_jsonl_string(mc_jsonl *reader, const char *path, size_t *length);

/* What a value is, for messages: `"maybe"`, `7`, `true`, `a list`; NULL, of a missing key, is
 * `nothing`. */
typedef struct mc_json_text {
    char text[64];
} mc_json_text;
mc_json_text mc_json_describe(const cJSON *value);

#endif
