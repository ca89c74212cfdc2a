/* Adapters on the command line, LoRA's and soft prompts, for the commands that train: options, and
 * what they stand for. */
#ifndef MC_TOOLS_LORA_OPTIONS_H
#define MC_TOOLS_LORA_OPTIONS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/options/settings.h"

enum { LORA_NAMES = 64, LORA_TEXT = 2048 };

/* All zero: no adapter. */
typedef struct lora_options {
    /* as on the command line */
    int rank;    /* 0: no LoRA */
    int weights; /* of the base's linear layers: a mc_weight_format */
    double alpha, dropout;
    bool rslora, alpha_given, dropout_given, rslora_given;
    const char *targets, *save; /* with commas between; NULL: by default */
    int virtual_tokens;         /* 0: no soft prompt */
    const char *virtual_text;   /* that the virtual tokens begin as; NULL: random values */
    char wrong[160];            /* what lora_options_check returns */
    /* as lora_options_read takes them apart */
    char text[2][LORA_TEXT];
    const char *target_names[LORA_NAMES + 1], *save_names[LORA_NAMES + 1];
    mc_lora_options read;
    mc_soft_prompt_options prompt;
} lora_options;

/* The initial value of an options struct. */
#define LORA_DEFAULTS \
    {                 \
        .alpha = 16   \
    }

/* A row for commands that take an adapter's folder as a model. */
#define LORA_BASE_ROW(pointer)                                            \
    {                                                                     \
        ARGS_PATH("base", pointer,                                        \
                  "folder or identifier of the base, if the model is an " \
                  "adapter"),                                             \
            .default_text = "the one that it names"                       \
    }

/* Rows of a command's table, with a heading. */
void lora_add_rows(args_table *table, lora_options *o);
/* Takes the lists apart. NULL, or what is wrong: a message for args_error. `may_be_adapter`: the
 * model is loaded, and may bring an adapter to train further, which lora_quantize checks. */
const char *lora_options_check(lora_options *o, bool may_be_adapter);
/* The same for --fp8, 0 for none, beside a base in 8 bits. */
const char *lora_check_fp8(const lora_options *o, int fp8);
/* Whether an adapter is asked for. */
bool lora_options_given(const lora_options *o);
/* Sets mc_load_options.lora or .soft_prompt. The options have to stay where they are. */
void lora_options_load(const lora_options *o, mc_load_options *load);
/* Lets the virtual tokens of a loaded model begin as the words of a text, if one was given. */
void lora_begin_prompt(mc_context *ctx, const lora_options *o, mc_model *model,
                       const mc_tokenizer *tokenizer);
/* Puts the base into the weights that were asked for, once it is loaded. Errors are on its context;
 * NULL is allowed. */
void lora_quantize(mc_context *ctx, const lora_options *o, mc_model *model);
/* A line about how much is trained, where the model has an adapter. */
void lora_tell(run_log *log, mc_model *model);
/* The settings that a run which goes on must have too. */
void lora_add_settings(settings *list, const lora_options *o);

#endif
