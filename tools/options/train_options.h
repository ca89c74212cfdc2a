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
extern const char *const train_fp8_names[];         /* none, auto, all */
extern const char *const train_fp8_scaling_names[]; /* delayed, current */
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

extern const char *const train_optimizer_names[];
enum { TRAIN_ADAM, TRAIN_MUON };
extern const char *const train_state_names[]; /* f32, 8bit */
enum { TRAIN_STATE_F32, TRAIN_STATE_8BIT };
extern const char *const train_muon_scale_names[]; /* match-rms, shape */
extern const char *const train_muon_dtype_names[]; /* bf16, f32 */

enum { TRAIN_UNSET = -1 }; /* not given, and the default depends on something else */

typedef struct train_options {
    /* the course of the learning rate, and of the weights */
    int scheduler;
    int64_t warmup; /* or TRAIN_UNSET */
    double lr, gamma, weight_decay, clip;
    int optimizer_state; /* of Adam; index of a name */
    int optimizer;       /* TRAIN_ADAM, TRAIN_MUON; of the latter alone: */
    double lr_other;
    int muon_scale, muon_dtype; /* indices of names */
    bool lr_other_given, muon_scale_given, muon_dtype_given;
    /* the machine: indices of names; dtype may be TRAIN_UNSET */
    int device, dtype, recompute, grad_dtype, fp8, fp8_scaling;
    double loss_scale; /* the first */
    bool offload;
    double gpu_share; /* of the state, that stays on the GPU all the same */
    /* with other options alone: see train_check_pairs */
    bool gamma_given, fp8_scaling_given, loss_scale_given, gpu_share_given;
    ranks_options ranks;
    const char *log_jsonl, *log_csv, *tensorboard; /* NULL: none */
    int64_t log_every;                             /* steps from line to line; 0: the default */
    bool overwrite, no_save;                       /* see tools/train/train_output.c */
    bool dry_run;                                  /* nothing is trained, nor saved */
    char *run_file; /* all options as JSON (run_file_text); NULL: not kept */
} train_options;

/* Rows of a command's table; the options hold their defaults by then. */
void train_add_course_rows(args_table *table, train_options *o);
void train_add_optimizer_rows(args_table *table, train_options *o);
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

/* An option that its --dtype, or the lack of another option, makes useless; NULL: none. Call it
 * again once a dtype that is not given is known. */
const char *train_check_pairs(const train_options *o);
/* What is wrong with the optimizer's options; NULL: nothing. */
const char *train_check_optimizer(const train_options *o);
/* The optimizer with the options' weight decay; `adam` has Adam's own options. */
mc_optimizer *train_optimizer_new(mc_context *ctx, const train_options *o,
                                  const mc_adam_options *adam);
/* Training in 8 bits, as it was asked for. */
mc_recipe train_recipe(const train_options *o);
/* With --fp8 auto: why nothing is in 8 bits. */
#define TRAIN_NO_FP8_LAYER "no linear layer of a block has sizes that are multiples of 16"
/* With --fp8 auto: the line of a kind of layers that was measured. */
enum { TRAIN_FP8_LINE = 256 };
const char *train_fp8_line(const train_options *o, const mc_fp8_kind *kind,
                           char line[TRAIN_FP8_LINE]);
mc_lr_scheduler *train_schedule_new(mc_context *ctx, const train_options *o, int64_t steps);

#endif
