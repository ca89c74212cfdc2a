/* A run's options in a file, run.json: any option of a command by its name.
 *
 *     {
 *         "command": "finetune",
 *         "model": "bert-base-uncased",
 *         "data": "reviews.csv",
 *         "epochs": 3,
 *         "no-shuffle": true
 *     }
 *
 * Numbers, texts, true and false of flags, and lists of options that take several values; null says
 * nothing. '_' in a name reads as '-'. "command" and "version" may be missing. Everything goes by
 * the command's option table, so that a new option works here without further lists.
 *
 * A run writes its own into its folder. No option holds a secret (tokens come from the
 * environment), so neither does the file. */
#ifndef MC_TOOLS_RUN_FILE_H
#define MC_TOOLS_RUN_FILE_H

#include "tools/options/args.h"

/* The name of the file in a run's folder. */
#define RUN_FILE_NAME "run.json"

/* Sets the targets of the table to the file's values, and seen[row] of each. Their texts stay until
 * the process ends. EXIT_OK, or EXIT_USAGE with an error on `err` that names the file and the key:
 * an unknown option (with what may be meant), a value that the option does not take, another
 * command's file, a key that stands there twice, a file that is no JSON object. */
int run_file_read(const args_spec *spec, const char *path, bool *seen, FILE *err);

/* A run that is started from the run.json of a folder must not go over that run: if the folder is
 * --output too, either the command line has another (`typed`: rows that it gave) or --resume is
 * there. EXIT_OK, or EXIT_USAGE with an error. */
int run_file_check(const args_spec *spec, const char *path, const bool *typed, FILE *err);

/* All options with their values, as run_file_read takes them. Left out are those without a value,
 * and those of a single call (args_option.once). `seen` as from args_spec.seen. To be freed with
 * run_file_free; NULL when memory is out. */
char *run_file_text(const args_spec *spec, const bool *seen);
void run_file_free(char *content);

#endif
