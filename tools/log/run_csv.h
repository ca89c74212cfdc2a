/* A run's metrics as CSV: a row for each object of its JSON Lines (run_log.h), with the same
 * names. Steps, evaluations and validations share one header, so that a row leaves cells empty;
 * what a JSON line has as null or not at all is empty too, and "recall" is the object's text. */
#ifndef MC_TOOLS_RUN_CSV_H
#define MC_TOOLS_RUN_CSV_H

#include "tools/files/text.h"

/* Adds the header, with the line's end. */
void run_csv_add_header(text *t);
/* Adds the row of a JSON object. False where the object has a key that is no column; its name is
 * copied to `key`. */
bool run_csv_add_row(text *t, const char *json, char key[64]);
/* The step of a row, 0 of the header; -1: the line is not of ours or is torn. Sets *trained if the
 * row reports the step itself, rather than an evaluation after it. */
int64_t run_csv_step_of(const char *line, bool *trained);

#endif
