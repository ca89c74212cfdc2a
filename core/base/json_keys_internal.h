/* What a JSON file of a model's folder may say: a table with a row a key, and one walk over it, so
 * that no key is skipped in silence.
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
 * Python packages that read and write these files. A new table goes into its list. */
#ifndef MC_BASE_JSON_KEYS_INTERNAL_H
#define MC_BASE_JSON_KEYS_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/base/json_internal.h"

typedef enum mc_key_meaning {
    MC_KEY_NO_EFFECT = 0, /* known, and changes nothing of what is computed here */
    MC_KEY_FOLLOWED,      /* the file's loader reads it */
    MC_KEY_ONLY,          /* changes answers: every value but the harmless ones is an error */
    MC_KEY_WARNED         /* is not followed: every value but the harmless ones is a warning */
} mc_key_meaning;

typedef struct mc_key_row {
    const char *key; /* NULL ends a table; "*_token": all keys with this end that have no row */
    mc_key_meaning meaning;
    const char *harmless; /* JSON, a list of values: "[true]", "[0, 1]"; null always is harmless */
    const char *note;     /* why, or what to do; ends the error or warning. NULL: nothing */
} mc_key_row;

typedef struct mc_key_table {
    const char *file; /* its name in a folder, which tests print; errors give the path */
    const mc_key_row *rows;
} mc_key_table;

/* The row of a key, NULL if the table has none. */
const mc_key_row *mc_keys_find(const mc_key_table *table, const char *key);

/* Looks at every key of an object. False with `err` set (MC_ERR_UNSUPPORTED) at the first value
 * that is not supported, which the error names with file, key and what is expected. Values that are
 * not followed, and keys without a row, are warnings in the context's log, null values aside. */
bool mc_keys_check(mc_context *ctx, mc_error *err, const char *path, const cJSON *json,
                   const mc_key_table *table);
/* The warning about a key that no table knows. */
void mc_keys_warn_unknown(mc_context *ctx, const char *path, const char *key);

#endif
