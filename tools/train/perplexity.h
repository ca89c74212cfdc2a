/* The perplexity of a decoder on text: `modelcenter eval gpt2 --model M --data F.txt`.
 *
 * Tokens 0 .. n-1 are covered by windows of N tokens that begin at 0, M, 2 M, ... up to the first
 * that reaches the end. Each token but the first is predicted once, in the first window that holds
 * it, from all tokens before it there: from N - M at least, where so many come before it.
 *
 *     loss = -1 / (n - 1) * sum over i = 1 .. n-1 of log p(token i | those before it in its window)
 *     perplexity = exp(loss)
 *
 * With M = N windows do not overlap, and the first token of each is not predicted: it does not
 * count.
 *
 * These are the windows of Hugging Face's page on the perplexity of fixed-length models. Its
 * example weighs the mean of each window by one token less than the window predicts; this does
 * not. */
#ifndef MC_TOOLS_PERPLEXITY_H
#define MC_TOOLS_PERPLEXITY_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/log/run_log.h"

typedef struct perplexity_options {
    int64_t seq_length; /* N; 0: the model's positions, 1024 without */
    int64_t stride;     /* M; 0: half of N */
    int64_t batch_size; /* windows at once, per rank */
    /* .txt files; token files; or tables, whose rows are texts of their own; of patterns too */
    const args_list *files;
    const char *text; /* the table's column; NULL: "text", or the only one */
    bool gpu;
} perplexity_options;

/* --seq-length and --stride. */
void perplexity_add_rows(args_table *table, perplexity_options *o);

/* Measures it on all ranks, shows it, and prints the result line
 * `result model=gpt2 perplexity=24.1 loss=3.18 tokens=287643`. False after an error or an
 * interrupt. `tok` may be NULL where data are tokens. */
bool perplexity_evaluate(mc_context *ctx, mc_model *model, const mc_tokenizer *tok,
                         const perplexity_options *o, run_log *log);
/* Whether the files hold tokens, by the first one's name: .bin, .idx, or a pattern that ends in
 * none of the endings of texts and tables. */
bool perplexity_has_tokens(const args_list *files);
/* Whether each is one text: .txt. */
bool perplexity_has_text(const args_list *files);

#endif
