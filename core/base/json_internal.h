/* JSON through cJSON, with errors that name the file, the line and the key. */
#ifndef MC_BASE_JSON_INTERNAL_H
#define MC_BASE_JSON_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <cjson/cJSON.h>
#include "core/base/error_internal.h"
#include "core/base/number_internal.h"

/* Bytes of the UTF-8 character at the start of a text of `room` > 0 bytes, 0 if there is none. */
size_t mc_utf8_length(const char *text, size_t room);
/* Whether all of the text is well-formed UTF-8. */
bool mc_utf8_is_valid(const char *text, size_t size);

/* Parses `size` bytes (NUL terminated or not). `name` is what errors call it (a path); lines in
 * errors count from `first_line` (1 for a file). The whole text must be one JSON value (white space
 * around it allowed), in UTF-8, nested at most 64 deep, without control characters or "\\u0000" in
 * strings. Keys may repeat; callers may check. Free with cJSON_Delete. NULL on error. */
cJSON *mc_json_parse(mc_error *err, const char *text, size_t size, const char *name,
                     int64_t first_line);
/* The same for a row of data, of at most 1,048,576 values. With `nul` its strings (but not its
 * keys) may hold NUL characters: read them with mc_json_length. */
cJSON *mc_json_parse_row(mc_error *err, const char *text, size_t size, const char *name,
                         int64_t first_line, bool nul);

/* Parses a text of the library's own, known to be JSON: NULL only if memory is out. (cJSON_Parse
 * writes a static pointer, which is not safe with contexts in several threads.) */
cJSON *mc_json_parse_own(const char *text);

/* Bytes of a string, including NUL characters within it. */
size_t mc_json_length(const cJSON *string);
/* A number as text: the digits of a whole number as they stand in the file, however many; of other
 * numbers the shortest decimal form that is read as this double. Points into the node or `room`. */
enum { MC_JSON_NUMBER_ROOM = MC_NUMBER_ROOM };
const char *mc_json_number(const cJSON *number, char room[MC_JSON_NUMBER_ROOM]);
/* Reads and parses a file whose top level must be an object. */
cJSON *mc_json_read_object(mc_error *err, const char *path, size_t limit);

/* Field access: each reads object[key] into *out. An absent key (or null) leaves *out alone and is
 * no error; a value of another type, out of [low, high], not whole, or not finite is MC_ERR_FORMAT:
 * `name: key "hidden_size": expected a whole number from 1 to 65536, found "many"`.
 * Strings point into the object. Each returns false only on an error. */
bool mc_json_get_int(mc_error *err, const cJSON *object, const char *name, const char *key,
                     int64_t low, int64_t high, int64_t *out);
bool mc_json_get_number(mc_error *err, const cJSON *object, const char *name, const char *key,
                        double low, double high, double *out);
bool mc_json_get_bool(mc_error *err, const cJSON *object, const char *name, const char *key,
                      bool *out);
bool mc_json_get_string(mc_error *err, const cJSON *object, const char *name, const char *key,
                        const char **out);

#endif
