/* `modelcenter tokenize`: what a model's tokenizer makes of texts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "core/base/context.h"
#include "tokenizers/tokenizer.h"
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/log/download_bar.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"

typedef struct tokenize_options {
    const char *model, *revision, *text, *pair, *file;
    int lowercase; /* an mc_lowercase, the index into lowercase_names */
    int64_t max_length;
} tokenize_options;

static const char *const lowercase_names[] = {"auto", "no", "yes", NULL};

static const char details[] =
    "Prints two lines a text, its tokens and their ids, special tokens included.\n"
    "Tokens of a byte-level vocabulary are shown in its own letters, \u0120 for a space.\n\n"
    "  modelcenter tokenize --model bert-base-uncased --text 'is water wet'\n"
    "  modelcenter tokenize --model gpt2 --text 'is water wet'\n"
    "  modelcenter tokenize --model ./my-model --file questions.txt\n";

static void print_encoding(const mc_tokenizer *tokenizer, const mc_encoding *encoding)
{
    fputs("tokens:", stdout);
    for (size_t i = 0; i < encoding->count; i++) {
        const char *token = mc_tokenizer_id_to_token(tokenizer, encoding->ids[i]);
        printf(" %s", token ? token : "?");
    }
    fputs("\nids:", stdout);
    for (size_t i = 0; i < encoding->count; i++) printf(" %d", (int)encoding->ids[i]);
    fputc('\n', stdout);
}

/* Encodes and prints one text; `where` names it in errors. */
static int show_text(const tokenize_options *o, const mc_tokenizer *tokenizer, const char *where,
                     const char *text, size_t length, mc_encoding *encoding)
{
    mc_status status =
        mc_tokenizer_encode(tokenizer, text, length, o->pair, o->pair ? strlen(o->pair) : 0,
                            (size_t)o->max_length, encoding);
    if (status == MC_OK) {
        print_encoding(tokenizer, encoding);
        return EXIT_OK;
    }
    if (status == MC_ERR_ARGUMENT)
        fprintf(stderr, "error: %s: --max-length %lld has no room for the special tokens\n", where,
                (long long)o->max_length);
    else
        fprintf(stderr, "error: %s: %s\n", where, mc_status_text(status));
    return EXIT_RUN_FAILED;
}

static FILE *open_input(const char *path)
{
    if (strcmp(path, "-") == 0) return stdin;
    FILE *file = fopen(path, "re");
    struct stat info;
    if (file && fstat(fileno(file), &info) == 0 && S_ISDIR(info.st_mode)) {
        fclose(file);
        file = NULL;
        errno = EISDIR;
    }
    if (!file) fprintf(stderr, "error: %s: cannot open: %s\n", path, strerror(errno));
    return file;
}

/* Each line of the file is a text. */
static int show_file(const tokenize_options *o, const mc_tokenizer *tokenizer,
                     mc_encoding *encoding)
{
    FILE *file = open_input(o->file);
    if (!file) return EXIT_RUN_FAILED;
    int code = EXIT_OK;
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    errno = 0;
    while (code == EXIT_OK && (length = getline(&line, &room, file)) >= 0) {
        if (length && line[length - 1] == '\n') length--;
        if (length && line[length - 1] == '\r') length--;
        code = show_text(o, tokenizer, o->file, line, (size_t)length, encoding);
        errno = 0;
    }
    if (code == EXIT_OK && !feof(file)) {
        fprintf(stderr, "error: %s: cannot read: %s\n", o->file, strerror(errno));
        code = EXIT_RUN_FAILED;
    }
    free(line);
    if (file != stdin) fclose(file);
    return code;
}

static int run(const tokenize_options *o)
{
    run_log log = {0};
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = run_log_library_line,
                                                             .log_user = &log,
                                                             .download = download_bar_show,
                                                             .download_user = &log});
    ranks_is_single(ctx, "tokenize");
    mc_tokenizer *tokenizer = mc_tokenizer_open(
        ctx, o->model,
        &(mc_tokenizer_options){.lowercase = (mc_lowercase)o->lowercase, .revision = o->revision});
    int code = mc_print_error(ctx, stderr) ? EXIT_RUN_FAILED : EXIT_OK;
    mc_encoding encoding = {0};
    if (code == EXIT_OK) {
        code = o->file ? show_file(o, tokenizer, &encoding)
                       : show_text(o, tokenizer, "--text", o->text, strlen(o->text), &encoding);
    }
    mc_encoding_release(&encoding);
    return ranks_leave(ctx, code);
}

int cmd_tokenize(int argc, char **argv)
{
    tokenize_options o = {.lowercase = MC_LOWERCASE_DEFAULT};
    const args_option options[] = {
        {ARGS_PATH("model", &o.model, "folder or identifier whose tokenizer is used"),
         .required = true, .known_as = "pretrained,tokenizer,vocab"},
        DOWNLOAD_REVISION_ROW(&o.revision),
        {ARGS_TEXT("text", &o.text, "the text")},
        {ARGS_TEXT("pair", &o.pair, "a second text, put after each first one")},
        {ARGS_PATH("file", &o.file, "a file with a text a line, - for stdin")},
        {ARGS_INT("max-length", &o.max_length, 0, 1 << 24,
                  "cut to this many ids, special tokens included; 0: do not cut")},
        {ARGS_CHOICE("lowercase", &o.lowercase, lowercase_names,
                     "lowercase the text; auto: as the model's files say")},
        {0},
    };
    const args_spec spec = {.command = "tokenize",
                            .summary = "Shows the tokens and ids of texts.",
                            .details = details,
                            .options = options};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    if (!o.text == !o.file) return args_error(&spec, "expected one of --text and --file");
    return run(&o);
}
