/* Where a training run saves: --output, else a folder of its own under runs/, or nowhere with
 * --no-save. */
#ifndef MC_TOOLS_TRAIN_OUTPUT_H
#define MC_TOOLS_TRAIN_OUTPUT_H

#include "tools/train/checkpoints.h"
#include "tools/files/output.h"
#include "tools/options/train_options.h"

typedef struct train_output {
    output out;               /* its inputs are to be added before train_output_open */
    char folder[OUTPUT_PATH]; /* "": nothing is saved */
    bool own;                 /* the folder is the run's own choice: the final weights go there */
} train_output;

/* --overwrite and --no-save. */
void train_output_add_rows(args_table *table, train_options *o);
/* What is wrong with the options together, or NULL. */
const char *train_output_check(const train_options *o, const char *given, bool resume,
                               int64_t save_every);

/* Finds the folder, makes and locks it, and checks the logs. `given` is --output, or NULL; `name`
 * what a folder of the run's own is called after. With --dry-run the checks are the same, and
 * nothing is made. False with the context's error. Collective. */
bool train_output_open(train_output *t, run_log *log, const train_options *o, const char *given,
                       const char *name, bool resume);
/* Whether the disk has room for what the run will save: `saved` checkpoints at a time besides
 * those that are there, or the weights alone (0). Collective. */
bool train_output_check_room(train_output *t, mc_model *model, int64_t saved);
/* The run's options, run.json, into the folder of its model; on one rank. */
mc_status train_output_write_options(mc_context *ctx, const train_options *o, const char *folder);

#endif
