/* Adapters: what is trained beside a frozen model, and kept in PEFT's files. Factors of weights
 * (lora.c) and virtual tokens before every sequence (soft_prompt.c) share what is here. */
#ifndef MC_MODELS_ADAPTER_INTERNAL_H
#define MC_MODELS_ADAPTER_INTERNAL_H

#include "models/adapters/adapter.h"
#include "models/model_internal.h"

enum { MC_ADAPTER_NAMES = 64 }; /* targets, and modules to save, at most */

/* A model's adapter, of one of the two kinds. All that it points to lives as long as the model. */
typedef struct mc_model_adapter {
    const char *kind;              /* in messages: "LoRA", "soft prompt" */
    mc_lora_options lora;          /* with defaults filled in; rank 0: no factors */
    mc_soft_prompt_options prompt; /* the same; tokens 0: no virtual tokens */
    mc_parameter *vectors;         /* (tokens * stacks, dim): of the virtual tokens */
    const char *const *modules;    /* that are trained and saved whole */
    const char *base;              /* what its files name as the base; NULL: nothing */
} mc_model_adapter;

/* Gives a model an adapter that holds nothing yet: freezes all but the modules to save (NULL: the
 * classification head) and those of new parameters (mc_heads_mark_new), which become modules to
 * save, since nothing else would keep their initial values. `base` NULL: what the model was loaded
 * from. NULL after an error: the model has an adapter, or names that no adapter can have; a module
 * that it does not have. */
mc_model_adapter *mc_adapter_begin(mc_model *m, const char *kind, const char *const *modules,
                                   const char *base);
/* A copy of a list that lives as long as the model. */
const char *const *mc_adapter_copy_list(mc_model *m, const char *kind, const char *const *list,
                                        const char *what);
/* The name of a parameter in `transformers` without ".weight" or ".bias": its module's. */
bool mc_adapter_module_name(const mc_model *m, const mc_parameter *p, char out[MC_NAME_MAX]);
/* Whether a module's name is `name` or ends with it, whole parts compared. */
bool mc_adapter_name_ends(const char *module, const char *name);
/* Whether a module is `name` (see mc_adapter_name_ends) or within it. */
bool mc_adapter_is_within(const char *module, const char *name);
/* A family's weight map for the files of an adapter, of virtual tokens or of factors. */
mc_weight_map mc_adapter_map(const mc_family *family, bool virtual_tokens);

/* ---- virtual tokens (soft_prompt.c) ---------------------------------------------------------- */

/* How many come before each sequence of the stack that ids go into; 0: none. */
int mc_virtual_tokens(const mc_model *m);
/* Puts them before each sequence of in->lengths: from here on the input's lengths, positions, types
 * and key mask are those of the longer sequences, and in->rows says which row is which. in->ids
 * remain without. Nothing where the model has none. False after an error. */
bool mc_virtual_tokens_prepend(mc_tape *t, mc_model *m, mc_stack_input *in);
/* The rows of `hidden` without the virtual tokens', with the lengths of in->ids; itself where there
 * are none. */
mc_tensor *mc_virtual_tokens_drop(mc_tape *t, mc_tensor *hidden, const mc_stack_input *in);
/* (tokens, dim): what they are embedded as. */
mc_tensor *mc_virtual_tokens_table(mc_tape *t, mc_model *m);

/* ---- folders (adapter_file.c) ---------------------------------------------------------------- */

/* An adapter's folder, opened. */
typedef struct mc_adapter_file {
    mc_context *ctx;
    cJSON *json;
    char path[MC_PATH_MAX]; /* of adapter_config.json */
    const char *targets[MC_ADAPTER_NAMES + 1], *modules[MC_ADAPTER_NAMES + 1];
    bool virtual_tokens;           /* whether `prompt` says what it is, or `lora` */
    mc_lora_options lora;          /* points into these */
    mc_soft_prompt_options prompt; /* too */
    int64_t token_dim;             /* 0: not said */
    const char *task;              /* task_type, one that is supported; NULL: not said */
    const char *base, *revision;   /* NULL: not said */
    mc_tensor_file *weights;
} mc_adapter_file;

/* Reads adapter_config.json, and opens the weights. All but what it says is to be released in any
 * case. */
bool mc_adapter_file_open(mc_context *ctx, const char *folder, mc_adapter_file *out);
void mc_adapter_file_release(mc_adapter_file *file);
/* Whether a model of the family can have the adapter's task_type; else the error names it. */
bool mc_adapter_file_fits(const mc_adapter_file *file, const mc_family *family);
/* Whether the adapter's model may classify texts, by its task_type. */
bool mc_adapter_file_classifies(const mc_adapter_file *file);
/* Whether the heads are those of the task_type: a classifier must have classes. Else an error. */
bool mc_adapter_file_accepts(const mc_adapter_file *file, const mc_model_heads *heads);
/* Classes of the classification head that is saved with the adapter; 0: none is, or its task_type
 * is another. */
int mc_adapter_file_classes(const mc_adapter_file *file, const mc_family *family);
/* The tensor of a parameter, by our name for it; NULL: the adapter does not hold it. */
const mc_tensor_entry *mc_adapter_file_find(const mc_adapter_file *file, const mc_family *family,
                                            const char *ours);
/* Heads of pretraining that are saved with the adapter as a whole. */
mc_model_heads mc_adapter_file_heads(const mc_adapter_file *file, const mc_family *family);
/* The base that an adapter names, or the one that the options ask for in its place; sets the
 * options' revision. NULL after an error. */
const char *mc_adapter_file_base(const mc_adapter_file *file, mc_load_options *options);
/* Fills in the factors of a model that was made with the file's options, or its virtual tokens, and
 * what is saved with them; not the classifier's rows if the head is new. */
bool mc_adapter_file_load(const mc_adapter_file *file, mc_model *m, const char *folder,
                          bool new_head);
/* The text of adapter_config.json (cJSON_free it); NULL after an error. */
char *mc_adapter_config_text(mc_model *m);

/* ---- the base's tables (adapter_tables.c) ---------------------------------------------------- */

#define MC_WORDS_WEIGHT "input_embedding.weight"
/* The language model's own matrix. */
#define MC_HEAD_WEIGHT(family) \
    ((family)->kind == MC_MODEL_ENCODER ? "lm_head.decoder.weight" : "output_projection.weight")

/* Before a model's parts are declared: if the options' adapter has words or head for a module to
 * save, the two are no longer tied (in m->config), and m->untied is set. Returns it. */
bool mc_adapter_untie(mc_model *m, const mc_load_options *options, const mc_model_file *f);
/* Whether a module to save may hold the parameter: not words that PEFT would use elsewhere. False
 * with the error. */
bool mc_adapter_can_train(const mc_model *m, const char *kind, const mc_parameter *p);

/* Tables of the base that an adapter's file holds. */
typedef struct mc_adapter_tables {
    bool words, head;
} mc_adapter_tables;

/* Finds them, gives the config as many words as they have, and unties an encoder's head that the
 * file holds. False after an error. */
bool mc_adapter_tables_find(const mc_adapter_file *file, const mc_family *family, void *config,
                            mc_adapter_tables *tables);
/* Makes them parts of the model's adapter, that are not trained. A tied head is the words. */
void mc_adapter_tables_take(mc_adapter_tables *tables, mc_model *m);

#endif
