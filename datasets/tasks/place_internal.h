/* Values deep in a JSON object, with errors that name the whole way to them:
 *
 *     train.jsonl:7: key "passage.questions[2].answers[0].text": expected a string, found 5
 *
 * A place lives on the caller's stack and points at the one that it lies in. */
#ifndef MC_DATASETS_PLACE_INTERNAL_H
#define MC_DATASETS_PLACE_INTERNAL_H

#include "datasets/table/jsonl_internal.h"

typedef struct mc_place {
    mc_jsonl *reader;          /* whose row it is; line 0: a file that is one document */
    const struct mc_place *in; /* NULL: the whole row */
    const char *key;           /* its key in an object; NULL: */
    int index;                 /* its number in a list */
    const cJSON *value;
} mc_place;

/* The reader's current row. */
mc_place mc_place_row(mc_jsonl *reader);
/* Sets the error: the place, and what was expected of it. False. */
bool mc_place_fail(const mc_place *place, const char *expected);
/* The value at `key` of an object, which must be there: an object, a list, a string. False with an
 * error otherwise. */
bool mc_place_object(const mc_place *in, const char *key, mc_place *out);
bool mc_place_list(const mc_place *in, const char *key, mc_place *out);
bool mc_place_string(const mc_place *in, const char *key, const char **out);
/* A whole number from 0 to `high`. */
bool mc_place_index(const mc_place *in, const char *key, int64_t high, int64_t *out);
/* Whether the object has the key, other than as null. */
bool mc_place_has(const mc_place *in, const char *key);
/* Goes to the next element of a list, which must be an object; at first, with out->value NULL, to
 * the first. False at the end, and on an error. */
bool mc_place_next(const mc_place *list, mc_place *out);

#endif
