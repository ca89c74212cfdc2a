/* Classification on a dataset: what finetune, eval and ask have in common. */
#ifndef MC_TOOLS_CLASSIFY_H
#define MC_TOOLS_CLASSIFY_H

#include "core/modelcenter.h"
#include "tools/run_log.h"

/* Option `sizes` of data loaders: how many shapes batches may have. Few where kernels are chosen
 * for each shape and steps are recorded; 0, any, on the CPU, and for models whose classifier reads
 * the last token, which the host has to find. */
int classify_sizes(int device, const mc_model *model);

/* Logits of a batch, (rows, labels): a row with several choices has one logit a choice. With sizes
 * some rows may be empty. */
mc_tensor *classify_logits(mc_tape *t, mc_model *model, const mc_dataset *dataset,
                           const mc_batch *batch);

/* Answers of a whole split. */
typedef struct classify_score {
    mc_accuracy accuracy;
    double seconds;
} classify_score;

/* Who answers what. It stays where it is as long as the context is used, whose recorded steps have
 * its address. */
typedef struct classify_exam {
    mc_model *model;
    mc_dataloader *loader;
    bool gpu;
    const mc_batch *batch; /* of the running step, and its logits; the rest is the caller's */
    mc_tensor *logits;
} classify_exam;

/* What the model can read: texts of at most `max_length` tokens (0: 512) and its positions. */
mc_dataset_options classify_rows(const mc_model *model, int64_t max_length);

/* Runs the model over the rest of the loader's epoch, on all ranks. Stops at an error or an
 * interrupt; false then. */
bool classify_evaluate(mc_context *ctx, classify_exam *exam, run_log *log, classify_score *score);

/* Shows a score: a line on the progress stream, and the log files. */
void classify_report(run_log *log, const mc_dataset *dataset, const char *split,
                     const classify_score *score, int64_t step, int64_t epoch);

/* The result line, last on stdout. */
mc_status classify_result(run_log *log, const mc_dataset *dataset, const classify_score *score,
                          double train_seconds);

/* Seconds on a clock that only runs forward. */
double classify_clock(void);

#endif
