/* `modelcenter tokenizer train`: a tokenizer of a user's own. */
#include <stdlib.h>
#include <string.h>
#include "core/base/context.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/train.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/ranks.h"
#include "tools/run_log.h"

typedef struct tokenizer_command {
    const char *action, *output;
    args_list inputs;
    mc_train_tokenizer_options train;
    int type; /* an mc_tokenizer_type, the index into type_names */
} tokenizer_command;

static const char *const type_names[] = {"unigram", "bpe", NULL};

static const char details[] =
    "Texts are files of UTF-8, a sentence or paragraph a line. The folder then holds\n"
    "spiece.model and tokenizer_config.json, laid out as T5's (<pad> 0, </s> 1, <unk> 2),\n"
    "and is a --tokenizer of every command. Takes a build with the SentencePiece library.\n\n"
    "  modelcenter tokenizer train --input corpus/*.txt --vocab-size 8000 \\\n"
    "      --type unigram --output my-tokenizer\n"
    "  modelcenter tokenize --model my-tokenizer --text 'is water wet'\n";

static int train(tokenizer_command *c)
{
    run_log log = {0};
    mc_context *ctx =
        mc_init_distributed(&(mc_init_options){.log = run_log_library_line, .log_user = &log});
    ranks_is_single(ctx, "tokenizer");
    c->train.type = (mc_tokenizer_type)c->type;
    mc_tokenizer_train(ctx, c->inputs.items, c->inputs.count, c->output, &c->train);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, c->output);
    int code = EXIT_OK;
    if (mc_print_error(ctx, stderr))
        code = EXIT_RUN_FAILED;
    else
        printf("result vocabulary=%d folder=%s\n", mc_tokenizer_vocab_size(tok), c->output);
    return ranks_leave(ctx, code);
}

static int run(tokenizer_command *c)
{
    if (strcmp(c->action, "train") == 0) return train(c);
    fprintf(stderr, "modelcenter tokenizer: unknown action \"%s\", expected train\n", c->action);
    return EXIT_USAGE;
}

int cmd_tokenizer(int argc, char **argv)
{
    tokenizer_command c = {
        .train = {.vocab_size = 8000, .character_coverage = 0.9995, .threads = 1}};
    c.inputs.items = calloc((size_t)argc, sizeof *c.inputs.items);
    c.inputs.room = c.inputs.items ? argc : 0;
    const args_option options[] = {
        {ARGS_TEXT("action", &c.action, "train"), .required = true, .positional = true},
        {ARGS_PATHS("input", &c.inputs, "texts to train on"), .required = true,
         .known_as = "file,data,text"},
        {ARGS_PATH("output", &c.output, "folder to write the tokenizer to"), .required = true,
         .known_as = "model-prefix"},
        {ARGS_INT("vocab-size", &c.train.vocab_size, 4, 1 << 24, "tokens in all")},
        {ARGS_CHOICE("type", &c.type, type_names, "what is trained"), .known_as = "model-type"},
        {ARGS_INT("sentinels", &c.train.sentinels, 0, 100000,
                  "how many of them are <extra_id_k>, for T5's pretraining"),
         .known_as = "extra-ids"},
        {ARGS_REAL("character-coverage", &c.train.character_coverage, 0.98, 1,
                   "share of the texts' characters that are not unknown")},
        {ARGS_FLAG("byte-fallback", &c.train.byte_fallback,
                   "let bytes stand for unknown characters")},
        {ARGS_FLAG("lowercase", &c.train.lowercase, "lowercase all texts")},
        {ARGS_INT("max-lines", &c.train.max_lines, 0, INT64_MAX,
                  "lines to draw at random and train on"),
         .default_text = "all", .known_as = "input-sentence-size"},
        {ARGS_INT("threads", &c.train.threads, 1, 1024, "threads that train"),
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
    return code;
}
