/* How answers are chosen: options of the commands that generate. */
#ifndef MC_TOOLS_ANSWER_OPTIONS_H
#define MC_TOOLS_ANSWER_OPTIONS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"

typedef struct answer_options {
    mc_generate_options how; /* by the command line alone */
    struct {
        bool sample, temperature, top_k, top_p, repetition_penalty, seed, num_beams, length_penalty,
            early_stopping, ignore_eos, stop, ignore_file;
    } given;
    args_list stop; /* texts that end an answer */
    bool early_stopping;
    bool ignore_file; /* generation_config.json */
} answer_options;

/* Defaults, and room for as many texts as the command line has words. */
void answer_options_init(answer_options *o, int argc);
void answer_options_release(answer_options *o);
void answer_add_rows(args_table *table, answer_options *o);
/* EXIT_OK, or EXIT_USAGE after an error that names the options that do not go together. */
int answer_options_check(const args_spec *spec, const answer_options *o);
/* The name of an option that was on the command line; NULL: none was. */
const char *answer_option_given(const answer_options *o);
/* What the model's generation_config.json says and, before it, the command line. Lengths are the
 * file's. False after an error in the model's context. */
bool answer_options_resolve(const answer_options *o, mc_model *model, mc_generate_options *how);
/* Adds the end of an answer to the resolved stop texts, which become *list: the caller frees it.
 * False: memory is out. */
bool answer_add_stop(mc_generate_options *how, const char *end, const char ***list);
/* What ends answers besides tokens of the model: the stop texts of resolved options. `tokens` is a
 * token for each prompt: mc_stop.tokens. */
mc_stop answer_stop(const mc_generate_options *how, const mc_tokenizer *tok, const int32_t *tokens);

#endif
