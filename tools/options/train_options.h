/* What training commands have in common: options, and what they stand for. */
#ifndef MC_TOOLS_TRAIN_OPTIONS_H
#define MC_TOOLS_TRAIN_OPTIONS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/ranks.h"

/* Each list of names ends in NULL; the index of a name is that of its value. */
extern const char *const train_dtype_names[]; /* f32, f16, bf16 */
extern const mc_dtype train_dtypes[];
enum { TRAIN_F32, TRAIN_F16, TRAIN_BF16 };
extern const char *const train_recompute_names[]; /* none, selective, full */
extern const mc_recompute train_recomputes[];
/* For a `numbered` choice: TRAIN_CUDA + 1 + N is cuda:N. */
extern const char *const train_device_names[]; /* cpu, cuda */
enum { TRAIN_CPU, TRAIN_CUDA };
/* In the library's form. */
typedef struct train_device {
    char name[24];
} train_device;
train_device train_device_of(int device);
extern const char *const train_schedule_names[];
enum { TRAIN_CONSTANT, TRAIN_NOAM, TRAIN_LINEAR, TRAIN_COSINE, TRAIN_EXPONENTIAL };

enum { TRAIN_UNSET = -1 }; /* not given, and the default depends on something else */

typedef struct train_options {
    /* the course of the learning rate, and of the weights */
    int scheduler;
    int64_t warmup; /* or TRAIN_UNSET */
    double lr, gamma, weight_decay, clip;
    /* the machine: indices of names; dtype may be TRAIN_UNSET */
    int device, dtype, recompute, grad_dtype;
    double loss_scale; /* the first */
    bool offload;
    double gpu_share; /* of the state, that stays on the GPU all the same */
    ranks_options ranks;
    const char *log_jsonl, *log_csv, *tensorboard; /* NULL: none */
    int64_t log_every;                             /* steps from line to line; 0: the default */
    bool overwrite, no_save;                       /* see tools/train/train_output.c */
    bool dry_run;                                  /* nothing is trained, nor saved */
    char *run_file; /* all options as JSON (run_file_text); NULL: not kept */
} train_options;

/* Rows of a command's table; the options hold their defaults by then. */
void train_add_course_rows(args_table *table, train_options *o);
void train_add_machine_rows(args_table *table, train_options *o);
void train_add_rank_rows(args_table *table, train_options *o); /* with ranks_add_rows */
void train_add_log_rows(args_table *table, train_options *o);

/* Makes the context, once the options are parsed. */
mc_context *train_start(train_options *o, uint64_t seed, run_log *log);
/* Whether --grad-dtype fits the parameters' dtype, once that is known. Else writes what is wrong to
 * `message`. */
bool train_check_grad_dtype(const train_options *o, char *message, size_t room);
/* The dtype in which gradients travel, by name. */
const char *train_grad_dtype_name(const train_options *o);

mc_optimizer *train_adam_new(mc_context *ctx, const train_options *o, const mc_adam_options *adam);
mc_lr_scheduler *train_schedule_new(mc_context *ctx, const train_options *o, int64_t steps);

#endif
