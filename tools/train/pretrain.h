/* Training a language model on token files: the parts of `modelcenter pretrain`. */
#ifndef MC_TOOLS_PRETRAIN_H
#define MC_TOOLS_PRETRAIN_H

#include "core/modelcenter.h"
#include "tools/options/args.h"
#include "tools/train/checkpoints.h"
#include "tools/options/lora_options.h"
#include "tools/options/model_options.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"
#include "tools/options/settings.h"
#include "tools/log/step_clock.h"
#include "tools/train/token_data.h"
#include "tools/options/train_options.h"
#include "tools/train/train_output.h"

/* As on the command line. */
typedef struct pretrain_options {
    model_options from;
    const char *output, *tokenizer, *prompt;
    int64_t max_shard_size;
    args_list data, val;    /* paths and patterns of token files, with weights or without */
    const char *batch_text; /* a number or "auto" */
    int64_t batch_size;     /* of a rank; 0: auto. tokens_per_step is that of all ranks */
    int64_t target_length;  /* tokens at most of a target of spans; 0: any number */
    int64_t seq_length, tokens_per_step, steps, stop_after;
    int64_t val_every, val_batches, sample_every, sample_length, save_every;
    int keep, save_total_limit; /* the same, the newest included; 0: not given */
    double beta1, beta2, eps, dropout;
    double memory; /* GiB; 0: what is free */
    double peak_tflops;
    double mask_probability, noise_density, mean_span_length; /* 0: the objective's default */
    bool whole_words, no_nsp;
    bool separate_documents;
    int document_token,
        document_at; /* -1: the tokenizer's or the model's; 0 it begins one, 1 ends */
    bool decay_all, shuffle, resume;
    uint64_t seed;
    lora_options lora;
    train_options train;
} pretrain_options;

/* The arrays of a batch (mc_objective_batch) as tensors: (batch_size, width of the field), NULL for
 * those that it does not have. */
typedef struct pretrain_inputs {
    mc_tensor *field[MC_FIELDS];
} pretrain_inputs;

/* Model, optimizer and inputs on one context, and the step that uses them. */
typedef struct pretrain_work {
    mc_context *ctx;
    mc_model *model;
    mc_optim_manager *optim;
    const mc_objective_options *objective;
    int64_t batch_size;
    int micro_steps;         /* of a step */
    pretrain_inputs *inputs; /* (micro_steps) */
    bool separate;           /* documents are kept apart: */
    mc_lm_lengths *lengths;  /* of their pieces, for each micro-step; ids are then packed */
} pretrain_work;

/* All of a run. */
typedef struct pretrain {
    pretrain_options o; /* with everything filled in once set up */
    mc_context *ctx;
    run_log log;
    bool refused; /* pretrain_refuse has said why */
    mc_model_shape shape;
    pretrain_work work;
    mc_memory_plan plan;
    token_data data, val_data;
    mc_objective_options objective;
    int window; /* tokens of the data that a sequence takes */
    mc_objective *train, *val;
    mc_lm_position val_start;
    int64_t val_batches; /* of a validation */
    mc_tokenizer *kept;  /* is saved with the model, where the run has no use for one; NULL: none */
    mc_tokenizer *tokenizer;
    int32_t *prompt;
    int prompt_length;
    mc_checkpoint *resumed; /* NULL: a new run */
    int64_t windows;        /* sequences in the data */
    int64_t step, stop;     /* the last that was launched, and the one to stop after */
    int64_t shown;          /* the last that was logged */
    train_output target;
    checkpoints checkpoints;
    double flops;          /* of a token of seq_length */
    double peak;           /* FLOP/s of the device; 0: unknown */
    double loss, val_loss; /* the last; -1: none was measured */
    bool val_due;          /* an interrupt came before the last step's validation */
    /* of this process */
    step_clock clock;
    int64_t later;
} pretrain;

/* ---- pretrain_model.c ---- */

/* Makes the model, of --config or with weights; it takes no memory yet. */
bool pretrain_find_model(pretrain *p);
/* Plans the memory of a step, chooses the batch if that is asked for, and shows the plan. */
bool pretrain_plan(pretrain *p);
/* Makes the model (where it is not loaded yet), the optimizer and the inputs. */
bool pretrain_make(pretrain *p);
/* One training step, for mc_step_run; `user` is the pretrain_work. */
void pretrain_step(mc_context *ctx, void *user);
void pretrain_work_release(pretrain_work *work);

/* ---- pretrain_objective.c ---- */

/* Rows of the command's table. */
void pretrain_add_objective_rows(args_table *table, pretrain_options *o);
/* Whether the family has a use for the options that were given; else says so in `message`. */
bool pretrain_fits_objective(const pretrain_options *o, char *message, size_t room);
/* The heads of a new model. */
mc_model_heads pretrain_heads(const pretrain *p);
/* Makes `objective` and `window` of the model, the options and the tokenizer, which it opens. */
bool pretrain_find_objective(pretrain *p);
/* Finds the tokenizer that is saved with a model whose objective needs none: that of --model or of
 * the run that is resumed; says so if there is none. */
void pretrain_keep_tokenizer(pretrain *p);
void pretrain_describe_objective(pretrain *p);
/* What of it a run that goes on has to have too. */
void pretrain_add_objective_settings(settings *list, const pretrain *p);
/* Finds the token that documents begin or end with, where they are to be kept apart. */
bool pretrain_find_documents(pretrain *p);
/* Batches of files. */
mc_objective *pretrain_open_batches(const pretrain *p, const token_data *data,
                                    const mc_lm_loader_options *options);
/* What a step computes of a sequence. */
mc_sequence_work pretrain_sequence_work(const pretrain *p);

/* ---- pretrain_state.c ---- */

/* Opens the newest checkpoint of --output with --resume; refuses to begin a run over another one.
 */
bool pretrain_find_checkpoint(pretrain *p);
/* Fills in what was not given: as in the run that is resumed, and the dtype by the device. */
void pretrain_take_defaults(pretrain *p);
/* Compares the options with those that the run was begun with. */
bool pretrain_check_options(pretrain *p);
/* Goes on where the checkpoint stopped. */
bool pretrain_restore(pretrain *p);
/* Whether what will be saved has room. */
bool pretrain_check_room(pretrain *p);
/* The last before training: a new run takes the place of what its folder holds. */
bool pretrain_begin(pretrain *p);
/* Saves a checkpoint of the last step in the background, unless there is one; at the end of a run
 * without --output its weights. */
void pretrain_save(pretrain *p);

/* ---- pretrain_loop.c ---- */

bool pretrain_prepare_samples(pretrain *p);
/* Trains to the last step, an interrupt or an error. */
void pretrain_train(pretrain *p);
/* The result line. */
mc_status pretrain_result(pretrain *p);

/* Whether to go on with whatever is number n: see ranks_stop. */
bool pretrain_goes_on(const pretrain *p, int64_t n);
/* Prints "error: ...", which ends the job of several ranks, and returns false. */
bool pretrain_refuse(pretrain *p, const char *format, ...) MC_PRINTF(2, 3);

#endif
