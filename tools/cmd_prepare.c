/* `modelcenter prepare`: texts to token files. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/context.h"
#include "datasets/prepare.h"
#include "tokenizers/tokenizer.h"
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/log/download_bar.h"
#include "tools/train/interrupt.h"
#include "tools/files/output.h"
#include "tools/log/progress_bar.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"
#include "tools/files/text.h"

enum { MEGABYTE = 1000000 };

typedef struct prepare_command {
    const char *tokenizer, *revision, *output, *json_key, *end_token;
    args_list inputs;
    int format, end_of_text; /* indices into the names below */
    bool overwrite;
    int threads;
    progress_bar bar;
    double started;
} prepare_command;

/* In the order of mc_token_format, after its default. */
static const char *const format_names[] = {"llmc", "megatron", NULL};
enum { FORMAT_LLMC, FORMAT_MEGATRON };
/* In the order of mc_end_of_text. */
static const char *const end_names[] = {"auto", "none", "before", "after", NULL};

static const char details[] =
    "An input whose name ends in .jsonl, .ndjson or .json holds an object a line, each with the\n"
    "text of a document under --json-key (dots reach into objects). Any other input is a text\n"
    "and one document. Both may be compressed (.jsonl.gz, .txt.gz): one file is inflated by one\n"
    "thread, while others tokenize. llmc writes one file, whose tokens have 16 bits; megatron\n"
    "writes F.bin and F.idx. On an error, or Ctrl-C, nothing is written.\n\n"
    "  modelcenter prepare --tokenizer gpt2 --input corpus/*.txt --output train.bin\n"
    "  modelcenter prepare --tokenizer gpt2 --input web.jsonl --output web.bin \\\n"
    "      --format megatron\n";

static bool show_progress(void *user, const mc_prepare_result *done)
{
    prepare_command *c = user;
    if (interrupt_requested()) return false;
    if (!c->bar.on || !progress_bar_is_due(&c->bar) || done->file_bytes < MEGABYTE) return true;
    double seconds = progress_bar_now() - c->started;
    progress_line line = {
        .label = "prepare",
        .unit = "MB",
        .done = done->file_bytes / MEGABYTE,
        .total = done->total_bytes / MEGABYTE,
        .seconds = seconds * MEGABYTE / (double)done->file_bytes,
        .field_count = 1,
    };
    snprintf(line.fields[0], sizeof line.fields[0], "%" PRId64 " tokens", done->tokens);
    progress_bar_draw(&c->bar, &line);
    return true;
}

/* The file, and Megatron's two, which are named after it. */
static bool check_output(prepare_command *c, mc_context *ctx)
{
    char index[OUTPUT_PATH];
    output out;
    output_init(&out, ctx, c->overwrite);
    inputs_add_list(&out.inputs, "--input", &c->inputs);
    inputs_add_model(&out.inputs, ctx, "--tokenizer", c->tokenizer, c->revision);
    size_t length = strlen(c->output), end = sizeof ".bin" - 1;
    bool named = length > end && strcmp(c->output + length - end, ".bin") == 0;
    bool good = output_check_file(&out, "--output", c->output);
    if (good && strcmp(c->output, "-") == 0)
        good = mc_set_error(ctx, MC_ERR_ARGUMENT,
                            "--output -: expected a file, whose head is "
                            "written last") == MC_OK;
    text t = text_into(index, sizeof index);
    text_add(&t, "%.*s.idx", (int)(named ? length - end : length), c->output);
    if (good && c->format == FORMAT_MEGATRON) good = output_check_file(&out, "--output", index);
    t = text_into(index, sizeof index);
    text_add(&t, "%s.bin", c->output);
    if (good && c->format == FORMAT_MEGATRON && !named)
        good = output_check_file(&out, "--output", index);
    output_release(&out);
    return good;
}

/* A table is read as a text, header and separators included, which is seldom meant. */
static void warn_of_tables(const prepare_command *c)
{
    static const char *const endings[] = {".csv", ".tsv", ".tab"};
    for (int i = 0; i < c->inputs.count; i++) {
        const char *path = c->inputs.items[i];
        size_t length = strlen(path);
        if (length > 3 && strcmp(path + length - 3, ".gz") == 0) length -= 3;
        for (size_t k = 0; k < sizeof endings / sizeof *endings; k++)
            if (length > 4 && strncmp(path + length - 4, endings[k], 4) == 0)
                fprintf(stderr,
                        "warning: %s: a table is read as one text, with its header and "
                        "separators: for the texts of a column write it as JSON Lines\n",
                        path);
    }
}

static int prepare(prepare_command *c, mc_context *ctx)
{
    if (!check_output(c, ctx)) {
        mc_print_error(ctx, stderr);
        return EXIT_RUN_FAILED;
    }
    mc_tokenizer *tok =
        mc_tokenizer_open(ctx, c->tokenizer, &(mc_tokenizer_options){.revision = c->revision});
    mc_prepare_result done;
    warn_of_tables(c);
    c->started = progress_bar_now();
    mc_prepare_options options = {
        .format = (mc_token_format)(c->format + 1),
        .json_key = c->json_key,
        .end_of_text = (mc_end_of_text)c->end_of_text,
        .end_token = c->end_token,
        .threads = c->threads,
        .progress = show_progress,
        .progress_user = c,
    };
    mc_prepare_tokens(ctx, tok, c->inputs.items, c->inputs.count, c->output, &options, &done);
    double seconds = progress_bar_now() - c->started;
    progress_bar_clear(&c->bar);
    bool interrupted = mc_error_status(ctx) == MC_ERR_INTERRUPTED;
    if (mc_print_error(ctx, stderr)) return interrupted ? EXIT_INTERRUPTED : EXIT_RUN_FAILED;
    printf("result documents=%" PRId64 " tokens=%" PRId64 " seconds=%.3f mb_per_s=%.2f\n",
           done.documents, done.tokens, seconds,
           seconds > 0 ? (double)done.bytes / MEGABYTE / seconds : 0.0);
    return EXIT_OK;
}

static int run(prepare_command *c)
{
    run_log log = {0};
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = run_log_library_line,
                                                             .log_user = &log,
                                                             .download = download_bar_show,
                                                             .download_user = &log});
    progress_bar_init(&c->bar, stderr);
    interrupt_init();
    ranks_is_single(ctx, "prepare");
    int code = prepare(c, ctx);
    interrupt_release();
    return ranks_leave(ctx, code);
}

int cmd_prepare(int argc, char **argv)
{
    prepare_command c = {.json_key = "text", .inputs = args_list_new(argc)};
    const args_option options[] = {
        {ARGS_PATH("tokenizer", &c.tokenizer, "folder or identifier of the tokenizer"),
         .required = true, .known_as = "model,pretrained,vocab"},
        DOWNLOAD_REVISION_ROW(&c.revision),
        {ARGS_PATHS("input", &c.inputs,
                    "files of text or JSON, in the order in which to write them"),
         .required = true, .known_as = "file,data,text"},
        {ARGS_PATH("output", &c.output, "the file to write"), .required = true,
         .known_as = "output-prefix"},
        OUTPUT_OVERWRITE_ROW(&c.overwrite),
        {ARGS_CHOICE("format", &c.format, format_names, "format of the token files")},
        {ARGS_TEXT("json-key", &c.json_key, "key of the text in a JSON object"),
         .known_as = "json-keys,key"},
        {ARGS_CHOICE("end-of-text", &c.end_of_text, end_names,
                     "where each document gets an end-of-text token; auto is before for llmc, "
                     "after for megatron"),
         .known_as = "append-eod"},
        {ARGS_TEXT("end-token", &c.end_token,
                   "that token; without this option the tokenizer's <|endoftext|>, or [SEP]")},
        {ARGS_INT("threads", &c.threads, 0, 1024, "threads that tokenize"),
         .default_text = "all cores", .known_as = "workers,jobs"},
        {0},
    };
    const args_spec spec = {.command = "prepare",
                            .summary = "Turns texts into token files for pretraining.",
                            .details = details,
                            .options = options};
    int code;
    bool good = args_parse(&spec, argc, argv, &code);
    for (int i = 0; good && i < c.inputs.count; i++)
        if (strcmp(c.inputs.items[i], "-") == 0) {
            code = args_error(&spec, "--input -: expected files");
            good = false;
        }
    if (good) code = run(&c);
    free(c.inputs.items);
    return code;
}
