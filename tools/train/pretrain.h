/* Training a language model on token files: the parts of `modelcenter pretrain`. */
#ifndef MC_TOOLS_PRETRAIN_H
#define MC_TOOLS_PRETRAIN_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/train/token_data.h"
#include "tools/train/train_run.h"

/* As on the command line; the rest is in train_run_options, whose batch_size is 0 for auto. */
typedef struct pretrain_options {
    const char *prompt;
    args_list data, val;    /* paths and patterns of token files, with weights or without */
    const char *batch_text; /* a number or "auto" */
    int64_t target_length;  /* tokens at most of a target of spans; 0: any number */
    int64_t seq_length, tokens_per_step, steps; /* the tokens of all ranks */
    int64_t val_every, val_batches, sample_every, sample_length;
    double beta1, beta2, eps;
    double memory; /* GiB; 0: what is free */
    double peak_tflops;
    bool whole_words, no_nsp;
    bool separate_documents;
    int document_token,
        document_at; /* -1: the tokenizer's or the model's; 0 it begins one, 1 ends */
    bool decay_all, shuffle;
} pretrain_options;

/* What a step reads, on the context of its train_work: for each pass the arrays of a batch
 * (mc_objective_batch) as tensors (batch_size, width of the field), NULL for those that it does not
 * have. Where documents are kept apart ids are packed, and `lengths` has those of their pieces. */
typedef struct pretrain_inputs {
    mc_tensor *(*field)[MC_FIELDS]; /* (passes) */
    mc_lm_lengths *lengths;
} pretrain_inputs;

/* All of a run. */
typedef struct pretrain {
    train_run run;
    pretrain_options o; /* with everything filled in once set up */
    mc_model_shape shape;
    pretrain_inputs inputs;
    mc_memory_plan plan;
    token_data data, val_data;
    mc_objective_options objective; /* what is an option of it is read into it */
    int window;                     /* tokens of the data that a sequence takes */
    mc_objective *train, *val;
    mc_lm_position position; /* of train, when the run's state is saved or restored */
    mc_lm_position val_start;
    mc_lm_position val_data_of; /* its tokens, fingerprint and (window) sequences, as saved */
    int64_t val_batches;        /* of a validation */
    mc_tokenizer *tokenizer;    /* that the objective or samples need; run.tokenizer is saved */
    const int32_t *prompt;      /* of samples: the ids of `words`, or end_of_text; NULL: none */
    int prompt_length;
    mc_encoding words;
    int32_t end_of_text;
    int64_t windows; /* sequences in the data */
    double val_loss; /* the last; -1: none was measured */
} pretrain;

/* ---- pretrain_model.c ---- */

/* Makes the model, of --config or with weights; it takes no memory yet. */
bool pretrain_find_model(pretrain *p, mc_model **model);
/* Plans the memory of a step, chooses the batch if that is asked for, and shows the plan. */
bool pretrain_plan(pretrain *p);
/* Makes the inputs of the run's steps, and all memory of a step. */
bool pretrain_make(pretrain *p);

/* ---- pretrain_objective.c ---- */

/* Rows of the command's table. */
void pretrain_add_objective_rows(args_table *table, pretrain *p);
/* Whether the family has a use for the options that were given; else says so in `message`. */
bool pretrain_fits_objective(const pretrain *p, char *message, size_t room);
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

/* ---- pretrain_state.c: the train_kind's functions of these names ---- */

extern const settings_field pretrain_state[];
void pretrain_place_state(train_run *run, bool saving);
bool pretrain_take_defaults(train_run *run);
void pretrain_add_options(settings *list, const train_run *run);
/* The shape that --config asks for too. */
bool pretrain_same_config(pretrain *p);
bool pretrain_same_data(train_run *run);

/* ---- pretrain_loop.c: the same ---- */

bool pretrain_prepare_samples(pretrain *p);
bool pretrain_fill(train_run *run);
void pretrain_validate(train_run *run);
void pretrain_sample(train_run *run);
mc_status pretrain_result(train_run *run);

#endif
