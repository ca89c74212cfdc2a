/* The known keys of a JSON file in a model's folder: a table with one row per key, and a check of
 * the file against it, so that no key is ignored silently.
 *
 *     static const mc_key_row rows[] = {
 *         {"do_lower_case", MC_KEY_FOLLOWED},
 *         {"do_basic_tokenize", MC_KEY_ONLY, "[true]", "words are always split"},
 *         {"chat_template", MC_KEY_NO_EFFECT},
 *         {"*_token", MC_KEY_FOLLOWED},              keys by their end
 *         {NULL}};
 *     const mc_key_table mc_keys_of_x = {"tokenizer_config.json", rows};
 *     if (!mc_keys_check(ctx, err, path, json, &mc_keys_of_x)) return err->status;
 *
 * tests/check_folder_keys.c prints the tables, and check_folder_keys.py compares them with the
 * Python packages that read and write these files. A new table must be added to the list there. */
#ifndef MC_BASE_JSON_KEYS_INTERNAL_H
#define MC_BASE_JSON_KEYS_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/base/json_internal.h"

typedef enum mc_key_meaning {
    MC_KEY_NO_EFFECT = 0, /* known, without effect on results */
    MC_KEY_FOLLOWED,      /* the file's loader reads it */
    MC_KEY_ONLY,          /* changes results: any value but the harmless ones is an error */
    MC_KEY_WARNED         /* not supported: any value but the harmless ones is a warning */
} mc_key_meaning;

typedef struct mc_key_row {
    const char *key; /* NULL ends a table; "*_token": all keys with this end that have no row */
    mc_key_meaning meaning;
    const char *harmless; /* JSON, a list of values: "[true]", "[0, 1]"; null always is harmless */
    const char *note;     /* reason or advice at the end of the error or warning; NULL: none */
} mc_key_row;

typedef struct mc_key_table {
    const char *file; /* its name in a folder, for tests; errors name the path */
    const mc_key_row *rows;
} mc_key_table;

/* The row of a key, NULL if the table has none. */
const mc_key_row *mc_keys_find(const mc_key_table *table, const char *key);

/* Checks every key of an object. At the first unsupported value, returns false with `err` set
 * (MC_ERR_UNSUPPORTED); the error names file, key and accepted values. MC_KEY_WARNED values, and
 * keys without a row, are warnings in the context's log unless they are null. */
bool mc_keys_check(mc_context *ctx, mc_error *err, const char *path, const cJSON *json,
                   const mc_key_table *table);
/* The warning about a key that no table knows. */
void mc_keys_warn_unknown(mc_context *ctx, const char *path, const char *key);

#endif
