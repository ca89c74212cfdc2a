/* `modelcenter tokenizer train`: a tokenizer of a user's own. */
#include <stdlib.h>
#include <string.h>
#include "core/base/context.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/train.h"
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/files/output.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"

typedef struct tokenizer_command {
    const char *action, *output;
    args_list inputs, specials;
    mc_train_tokenizer_options train;
    bool overwrite;
    int type; /* an mc_tokenizer_type, the index into type_names */
} tokenizer_command;

static const char *const type_names[] = {"unigram", "bpe", "byte-bpe", NULL};

static const char details[] =
    "Texts are files of UTF-8, a sentence or paragraph a line. Every command takes the folder as\n"
    "--tokenizer, and transformers opens it with the same ids.\n\n"
    "  unigram   T5's; spiece.model, laid out as T5's (<pad> 0, </s> 1, <unk> 2)\n"
    "  bpe       the same, by merges of characters\n"
    "  byte-bpe  GPT-2's; vocab.json and merges.txt. Every byte is kept, white space included.\n"
    "            Hugging Face's trainer makes the same merges of the same files\n\n"
    "unigram and bpe turn line breaks and runs of spaces into one space. They need a build with\n"
    "the SentencePiece library.\n\n"
    "  modelcenter tokenizer train --input corpus/*.txt --vocab-size 8000 \\\n"
    "      --type byte-bpe --output my-tokenizer\n"
    "  modelcenter tokenize --model my-tokenizer --text 'is water wet'\n";

static int train(tokenizer_command *c)
{
    run_log log = {0};
    mc_context *ctx =
        mc_init_distributed(&(mc_init_options){.log = run_log_library_line, .log_user = &log});
    ranks_is_single(ctx, "tokenizer");
    c->train.type = (mc_tokenizer_type)c->type;
    if (c->specials.count) c->train.special_tokens = c->specials.items;
    char aside[OUTPUT_PATH];
    output out;
    output_init(&out, ctx, c->overwrite);
    inputs_add_list(&out.inputs, "--input", &c->inputs);
    if (output_open_folder(&out, &log, "--output", c->output, false) &&
        mc_model_folder_begin(ctx, c->output, aside, sizeof aside) == MC_OK) {
        mc_tokenizer_train(ctx, c->inputs.items, c->inputs.count, aside, &c->train);
        mc_model_folder_commit(ctx, c->output);
    }
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, c->output);
    int code = EXIT_OK;
    if (mc_print_error(ctx, stderr))
        code = EXIT_RUN_FAILED;
    else
        printf("result vocabulary=%d folder=%s\n", mc_tokenizer_vocab_size(tok), c->output);
    return output_leave(&out, ctx, code);
}

static int run(tokenizer_command *c)
{
    if (strcmp(c->action, "train") == 0) return train(c);
    fprintf(stderr, "modelcenter tokenizer: unknown action \"%s\", expected train\n", c->action);
    return EXIT_USAGE;
}

int cmd_tokenizer(int argc, char **argv)
{
    tokenizer_command c = {.inputs = args_list_new(argc),
                           .specials = args_list_new(argc),
                           .train = {.vocab_size = 8000}};
    const args_option options[] = {
        {ARGS_TEXT("action", &c.action, "train"), .required = true, .positional = true},
        {ARGS_PATHS("input", &c.inputs, "texts to train on"), .required = true,
         .known_as = "file,data,text"},
        {ARGS_PATH("output", &c.output, "folder to write the tokenizer to"), .required = true,
         .known_as = "model-prefix"},
        OUTPUT_OVERWRITE_ROW(&c.overwrite),
        {ARGS_INT("vocab-size", &c.train.vocab_size, 4, 1 << 24, "size of the vocabulary")},
        {ARGS_CHOICE("type", &c.type, type_names, "kind of tokenizer"), .known_as = "model-type"},
        {ARGS_TEXTS("special-token", &c.specials,
                    "byte-bpe: a token that is never split; may be repeated"),
         .default_text = "<|endoftext|>"},
        {ARGS_INT("min-frequency", &c.train.min_frequency, 1, INT64_MAX,
                  "byte-bpe: pairs that occur less often are not merged"),
         .default_text = "2"},
        {ARGS_INT("sentinels", &c.train.sentinels, 0, 100000,
                  "how many tokens are <extra_id_k>, for T5's pretraining"),
         .known_as = "extra-ids"},
        {ARGS_REAL("character-coverage", &c.train.character_coverage, 0.98, 1,
                   "share of the texts' characters that the vocabulary covers"),
         .default_text = "0.9995"},
        {ARGS_FLAG("byte-fallback", &c.train.byte_fallback,
                   "let bytes stand for unknown characters")},
        {ARGS_FLAG("lowercase", &c.train.lowercase, "lowercase all texts")},
        {ARGS_INT("max-lines", &c.train.max_lines, 0, INT64_MAX,
                  "lines to draw at random and train on"),
         .default_text = "all", .known_as = "input-sentence-size"},
        {ARGS_INT("threads", &c.train.threads, 1, 1024, "threads that train"), .default_text = "1",
         .known_as = "num-threads"},
        {0},
    };
    const args_spec spec = {.command = "tokenizer",
                            .summary = "Trains a tokenizer on texts.",
                            .details = details,
                            .options = options};
    int code;
    if (args_parse(&spec, argc, argv, &code)) code = run(&c);
    free(c.inputs.items);
    free(c.specials.items);
    return code;
}
