/* More about models: the families by name, tasks and labels of classifiers, work and settings.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_MODELS_DETAILS_H
#define MC_MODELS_DETAILS_H

#include "datasets/image/image.h"
#include "models/model.h"

/* ---- families -------------------------------------------------------------------------------- */

/* The i-th family ("bert", "gpt2", ...), NULL after the last; and whether a name is a family's. */
MC_API const char *mc_family_name(int i);
MC_API bool mc_family_known(const char *name);
MC_API mc_model_kind mc_family_kind(const char *name);  /* 0 for an unknown name */
MC_API bool mc_family_has_classifier(const char *name); /* mc_model_heads.labels */
MC_API bool mc_family_reads_images(const char *name);   /* in place of texts, as ViT */
/* How data sets present texts to models of the family; an encoder's style for an unknown name. */
MC_API mc_prompt_style mc_family_prompt_style(const char *name);
/* The i-th named shape of a family for mc_model_new ("gpt2-medium"), NULL after the last. */
MC_API const char *mc_family_shape_name(const char *family, int i);
/* Returns the family of a `config` of mc_model_new ("gpt2-medium": "gpt2"). Returns NULL after an
 * error: no such shape, file or folder; a config.json without a known "model_type" (ModelCenter's
 * configs identify their family only together with weights). */
MC_API const char *mc_family_of_config(mc_context *ctx, const char *config);
/* Returns the family of an identifier of mc_model_from_pretrained (of an adapter: its base's
 * family). Loads no weights, but downloads missing files as loading does. Uses only the options
 * `revision`, `base`, `cache_dir` and `local_files_only`; `options` may be NULL. All ranks call it
 * together. Returns NULL after an error, as mc_model_from_pretrained does. */
MC_API const char *mc_family_of_pretrained(mc_context *ctx, const char *identifier,
                                           const mc_load_options *options);
/* Creates a model with the config and heads of another one, which may belong to another context
 * (for example a planning context). */
MC_API mc_model *mc_model_new_like(mc_context *ctx, const mc_model *other,
                                   const mc_load_options *options);
/* Writes the config as one line of JSON without dropout probabilities, for comparing runs,
 * truncated to `room` bytes. Returns whether it fit. */
MC_API bool mc_model_config_text(const mc_model *model, char *text, size_t room);
/* How data sets present texts to the model, for mc_dataset_options.prompt. Zeros for NULL. */
MC_API mc_prompt mc_model_prompt(const mc_model *model);
/* Returns the tokens that end the model's answers: eos_token_id of generation_config.json, or of
 * config.json in a folder without that file. They live as long as the model; *count is how many
 * there are. NULL, with *count 0, for NULL. */
MC_API const int32_t *mc_model_end_tokens(const mc_model *model, int *count);
/* How a model of images reads them, for mc_image_read and mc_dataset_options.image: the settings of
 * its folder's preprocessor_config.json. Size 0 for other models. */
MC_API mc_image_form mc_model_image_form(const mc_model *model);
/* What errors about computed numbers that are not finite end with: the model's dtype and what
 * helps: ": computed in f16, whose largest number is 65504; bf16 and f32 have room". "" for
 * NULL. */
MC_API const char *mc_model_finite_hint(const mc_model *model);
/* Whether no number is infinite or NaN. False for NULL. */
MC_API bool mc_all_finite(const float *values, size_t count);
/* FLOP of a training step per token, for sequences of `length` T: 6 N + 12 L D T. Frozen parameters
 * count 4 instead of 6, since their gradients are not computed. */
MC_API double mc_model_flops(mc_model *model, int64_t length);
/* Sets a new model's bos, eos and pad ids to the tokenizer's, if the model's vocabulary has them
 * and `config` (as in mc_model_new) lacks their keys, instead of the class's defaults. They are
 * saved with the model. Encoders stay unchanged. */
MC_API mc_status mc_model_take_tokens(mc_model *model, const mc_tokenizer *tokenizer,
                                      const char *config);
/* The task that a classifier was trained for (NULL: none), and the names of its labels in the order
 * of the head's rows (copied; NULL: unchanged). Both are saved in config.json, the names as
 * id2label. Labels without a name are LABEL_0, LABEL_1, ..., as in `transformers`. */
MC_API mc_status mc_model_set_task(mc_model *model, const char *task,
                                   const char *const *label_names);
MC_API const char *mc_model_task(const mc_model *model);
/* The kind of a classifier's outputs in transformers' terms, saved in config.json ("problem_type"):
 * "single_label_classification", "multi_label_classification" or "regression"; NULL: not set.
 * Another word is MC_ERR_ARGUMENT. */
MC_API mc_status mc_model_set_problem_type(mc_model *model, const char *type);
MC_API const char *mc_model_problem_type(const mc_model *model);
/* Reorders the rows of the classifier with their names: row from[i] becomes row i. `from` is a
 * permutation of 0 to labels - 1. */
MC_API mc_status mc_model_order_labels(mc_model *model, const int *from);

/* The classifier of a folder or identifier that is not loaded yet. */
typedef struct mc_model_labels {
    int count;                /* number of labels; 0: the files have no classifier */
    const char **name;        /* (count) those of mc_model_label_name */
    const char *problem_type; /* that of mc_model_problem_type */
    void *memory;             /* of the names */
} mc_model_labels;

/* Reads config.json and the names and shapes of the tensors (for an adapter also those of its own
 * folder), to decide whether to load the classifier or to create a new one
 * (mc_load_options.new_head). Errors: those of loading; nothing needs to be released then. */
MC_API mc_status mc_model_labels_read(mc_context *ctx, const char *identifier,
                                      const mc_load_options *options, mc_model_labels *out);
MC_API void mc_model_labels_release(mc_model_labels *labels);
/* mc_model_loss for few rows, as in masked language models: the head runs only on rows rows[i] of
 * `hidden` (i32, any shape), and labels[i] belongs to rows[i]. Both may be tensors of the context
 * that are refilled between recorded steps; mc_model_loss of an encoder would select the rows on
 * the host. Errors: a row that `hidden` does not have. */
MC_API mc_tensor *mc_model_loss_of_rows(mc_tape *t, mc_model *model, mc_tensor *hidden,
                                        mc_tensor *rows, mc_tensor *labels);

#endif
