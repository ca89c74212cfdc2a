/* More about models: the families by name, tasks and labels of classifiers, work and settings.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_MODELS_DETAILS_H
#define MC_MODELS_DETAILS_H

#include "models/model.h"

/* ---- families -------------------------------------------------------------------------------- */

/* The family number i ("bert", "gpt2", ...), NULL after the last; and whether a name is one. */
MC_API const char *mc_family_name(int i);
MC_API bool mc_family_known(const char *name);
MC_API mc_model_kind mc_family_kind(const char *name);  /* 0 for an unknown name */
MC_API bool mc_family_has_classifier(const char *name); /* mc_model_heads.labels */
/* How data sets put texts to models of the family; as to an encoder for an unknown name. */
MC_API mc_prompt_style mc_family_prompt_style(const char *name);
/* Shape number i that mc_model_new knows by name for a family ("gpt2-medium"), NULL after the
 * last. */
MC_API const char *mc_family_shape_name(const char *family, int i);
/* The family of what mc_model_new takes as `config` ("gpt2-medium": "gpt2"). NULL with an error: no
 * such shape, file or folder; a config.json without a "model_type" that is known (ModelCenter's say
 * their family only together with weights). */
MC_API const char *mc_family_of_config(mc_context *ctx, const char *config);
/* The family of what mc_model_from_pretrained takes, of an adapter that of its base. Nothing is
 * loaded; files that are missing are downloaded, as by loading. Of the options `revision`, `base`,
 * `cache_dir` and `local_files_only` count; NULL: none. All ranks call it together. NULL with an
 * error, as mc_model_from_pretrained has it. */
MC_API const char *mc_family_of_pretrained(mc_context *ctx, const char *identifier,
                                           const mc_load_options *options);
/* A new model of the same config and heads as another, which may belong to another context (one for
 * planning, say). */
MC_API mc_model *mc_model_new_like(mc_context *ctx, const mc_model *other,
                                   const mc_load_options *options);
/* The config as one line of JSON, without probabilities of dropout, to compare runs by: cut at
 * `room` bytes. Returns whether it fit. */
MC_API bool mc_model_config_text(const mc_model *model, char *text, size_t room);
/* How data sets put texts to the model: mc_dataset_options.prompt. Zeros for NULL. */
MC_API mc_prompt mc_model_prompt(const mc_model *model);
/* FLOP of a training step a token of a sequence of `length`: 6 N + 12 L D T; 4 N for parameters
 * that are frozen, whose own gradients are not computed. */
MC_API double mc_model_flops(mc_model *model, int64_t length);
/* Gives a new model of `config` (as mc_model_new takes it) the ids of the tokenizer's tokens that
 * begin, end and pad texts, as far as its vocabulary has them, instead of a class's defaults: for
 * keys that the config lacks. They are saved with it. Encoders are left as they are. */
MC_API mc_status mc_model_take_tokens(mc_model *model, const mc_tokenizer *tokenizer,
                                      const char *config);
/* The task a classifier was trained for, NULL without one, and the names of its labels in the order
 * of the head's rows (copied; NULL: they stay). Both are kept in config.json, names as id2label.
 * Labels that were never named are LABEL_0, LABEL_1, ..., as in `transformers`. */
MC_API mc_status mc_model_set_task(mc_model *model, const char *task,
                                   const char *const *label_names);
MC_API const char *mc_model_task(const mc_model *model);
/* What a classifier's outputs are, in transformers' words, kept in config.json ("problem_type"):
 * "single_label_classification", "multi_label_classification" or "regression"; NULL: not said.
 * Another word is MC_ERR_ARGUMENT. */
MC_API mc_status mc_model_set_problem_type(mc_model *model, const char *type);
MC_API const char *mc_model_problem_type(const mc_model *model);
/* Puts the rows of the classifier, with their names, in another order: row `from[i]` becomes row i.
 * `from` holds each of 0 to labels - 1 once. */
MC_API mc_status mc_model_order_labels(mc_model *model, const int *from);

/* The classifier of a folder or identifier that is not loaded yet. */
typedef struct mc_model_labels {
    int count;                /* of its labels; 0: the files hold no classifier */
    const char **name;        /* (count) those of mc_model_label_name */
    const char *problem_type; /* that of mc_model_problem_type */
    void *memory;             /* of the names */
} mc_model_labels;

/* Reads what config.json and the names and shapes of the tensors say, of an adapter those of its
 * own folder, too, to decide whether to load the classifier or a new one
 * (mc_load_options.new_head). Errors as those of loading; nothing is to be released then. */
MC_API mc_status mc_model_labels_read(mc_context *ctx, const char *identifier,
                                      const mc_load_options *options, mc_model_labels *out);
MC_API void mc_model_labels_release(mc_model_labels *labels);
/* The same where few rows count, as of a masked language model: the head is run on rows rows[i] of
 * `hidden` alone, i32 of any shape, which labels (as many) belong to. Both may be tensors of the
 * context that a recorded step finds refilled; mc_model_loss of an encoder picks the rows that
 * count on the host. Errors: a row that `hidden` does not have. */
MC_API mc_tensor *mc_model_loss_of_rows(mc_tape *t, mc_model *model, mc_tensor *hidden,
                                        mc_tensor *rows, mc_tensor *labels);

#endif
