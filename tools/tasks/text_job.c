#include "tools/tasks/text_job.h"

#include <stdlib.h>
#include <string.h>
#include "tools/train/interrupt.h"
#include "tools/files/line_reader.h"
#include "tools/files/output.h"
#include "tools/options/train_options.h"
#include "tools/options/weights_option.h"

/* Rows of a chunk on each rank: on a GPU few at first, which the second chunk is read beside; on a
 * CPU as many as one waits for after Ctrl-C. */
enum { GPU_FIRST_ROWS = 4096, GPU_ROWS = 32768, CPU_ROWS = 64 };

static const mc_dtype dtypes[] = {MC_DTYPE_DEFAULT, MC_F32, MC_F16, MC_BF16};

mc_dtype text_job_dtype(const text_job_options *o)
{
    if (dtypes[o->dtype]) return dtypes[o->dtype];
    return o->device == TRAIN_CPU ? MC_F32 : MC_BF16;
}

void text_job_add_rows(args_table *table, text_job_options *o, int ways)
{
    model_add_rows(table, &o->from, ways, "folder or identifier of the model");
    ARGS_ADD(
        table,
        {ARGS_PATHS("data", &o->files,
                    "files with rows: .csv, .tsv or .json, .gz too, or patterns of them; - for "
                    "stdin: a table or a text a line"),
         .default_text = "stdin, where texts are piped in", .known_as = "input,file,dataset"},
        {ARGS_TEXTS("text", &o->texts, "a text, in place of --data; may be repeated")},
        {ARGS_TEXT("text-column", &o->text, "the column of the texts"), .given = &o->column_given,
         .default_text = "that the model was trained with, text, or the only column",
         .known_as = "column,sentence1-key"},
        {ARGS_PATH("output", &o->output, "the file to write; - for stdout"), .default_text = "-",
         .known_as = "output-file,out"},
        OUTPUT_OVERWRITE_ROW(&o->overwrite),
        {ARGS_INT("max-length", &o->max_length, 0, 1 << 20, "longest text, in tokens"),
         .default_text = "the model's",
         .known_as = "max-seq-length,max-encoder-length,seq-length"});
}

void text_job_add_pair_rows(args_table *table, text_job_options *o)
{
    ARGS_ADD(table, {ARGS_TEXTS("text-pair", &o->pairs, "the second text of a --text")},
             {ARGS_TEXT("text-pair-column", &o->pair, "the column of second texts"),
              .default_text = "that the model was trained with"});
}

void text_job_options_init(text_job_options *o, int argc)
{
    args_list *lists[] = {&o->texts, &o->pairs, &o->files};
    for (int i = 0; i < 3; i++) *lists[i] = args_list_new(argc);
}

void text_job_options_release(text_job_options *o)
{
    free(o->texts.items);
    free(o->pairs.items);
    free(o->files.items);
}

/* With --data, --text has always named a column; one name is enough. */
static int take_column(const args_spec *spec, args_list *old, const char **column,
                       const char *option)
{
    if (!old->count) return EXIT_OK;
    if (*column)
        return args_error(spec, "--%s \"%.100s\": expected no text besides --data", option,
                          old->items[0]);
    *column = old->items[old->count - 1];
    old->count = 0;
    args_old_form(spec, strcmp(option, "text") == 0 ? "--text COLUMN" : "--text-pair COLUMN",
                  strcmp(option, "text") == 0 ? "--text-column" : "--text-pair-column");
    return EXIT_OK;
}

int text_job_check(const args_spec *spec, text_job_options *o)
{
    if (!o->output) o->output = "-";
    for (int i = 0; i < o->files.count; i++)
        if (strcmp(o->files.items[i], "/dev/stdin") == 0) o->files.items[i] = "-";
    if (o->files.count) o->data = o->files.items[0];
    for (int i = 0; o->files.count > 1 && i < o->files.count; i++)
        if (strcmp(o->files.items[i], "-") == 0)
            return args_error(spec, "--data: expected - alone, or files");
    if (!o->data && !o->texts.count && line_input_is_there()) o->data = "-";
    if (o->data) {
        int code = take_column(spec, &o->texts, &o->text, "text");
        return code == EXIT_OK ? take_column(spec, &o->pairs, &o->pair, "text-pair") : code;
    }
    if (!o->texts.count)
        return args_error(spec,
                          "required and missing: --data FILE, --text TEXT, or texts on stdin");
    if (o->text || o->pair)
        return args_error(spec, "--text-column, --text-pair-column: expected --data with them");
    if (o->pairs.count && o->pairs.count != o->texts.count)
        return args_error(spec, "--text-pair: %d for %d of --text, expected as many",
                          o->pairs.count, o->texts.count);
    return EXIT_OK;
}

void text_job_add_machine_rows(args_table *table, text_job_options *o)
{
    ARGS_ADD(
        table, {ARGS_HEADING("Machine")},
        {ARGS_CHOICE("device", &o->device, train_device_names, "where to run"), .numbered = true},
        {ARGS_CHOICE("dtype", &o->dtype, run_dtype_names,
                     "dtype of weights and activations; auto is f32 on the CPU, else bf16")});
    ranks_add_timeout_row(table, &o->ranks);
}

static bool check_output(text_job *job)
{
    const text_job_options *o = job->o;
    output_init(&job->out, job->ctx, o->overwrite);
    inputs_add_list(&job->out.inputs, "--data", &o->files);
    inputs_add_model_options(&job->out.inputs, job->ctx, &o->from);
    return output_check_file(&job->out, "--output", o->output);
}

int text_job_start(text_job *job, bool (*work)(text_job *job, void *user), void *user)
{
    const text_job_options *o = job->o;
    job->ctx = ranks_start(&o->ranks, 0, train_device_of(o->device).name, &job->log);
    run_log_options options = {.silent = ranks_silent(job->ctx),
                               .result = output_is_stdout(o->output) ? stderr : NULL};
    run_log_init(&job->log, &options);
    interrupt_init();
    int code = check_output(job) && work(job, user) ? EXIT_OK : EXIT_RUN_FAILED;
    output_release(&job->out);
    if (run_log_release(&job->log) != MC_OK) code = EXIT_RUN_FAILED;
    if (mc_print_error(job->ctx, stderr))
        code = EXIT_RUN_FAILED;
    else if (interrupt_requested())
        code = EXIT_INTERRUPTED;
    interrupt_release();
    return ranks_leave(job->ctx, code);
}

/* This rank's part of a chunk: consecutive rows. */
static text_part part_of(const mc_context *ctx, const text_chunk *c)
{
    size_t rank = (size_t)mc_data_rank(ctx), ranks = (size_t)mc_data_size(ctx);
    size_t from = c->count * rank / ranks, to = c->count * (rank + 1) / ranks;
    return (text_part){.first = c->first + (int64_t)from,
                       .count = to - from,
                       .chats = c->chats,
                       .texts = c->texts + from,
                       .pairs = c->pairs ? c->pairs + from : NULL,
                       .cells = c->cells ? c->cells + from : NULL,
                       .chunk_first = c->first,
                       .chunk_count = c->count};
}

bool text_job_run(text_job *job, bool (*take)(text_job *job, const text_part *part, void *user),
                  void *user)
{
    const text_job_options *o = job->o;
    bool gpu = o->device != TRAIN_CPU;
    int ranks = mc_world_size(job->ctx);
    if (o->data && strcmp(o->data, "-") == 0 && ranks > 1)
        mc_set_error(job->ctx, MC_ERR_ARGUMENT,
                     "--data -: only the first of several ranks has a stdin; give a file");
    double start = progress_bar_now();
    text_source *s = text_source_new(
        job->ctx, &(text_source_options){.path = o->data,
                                         .paths = o->files.items,
                                         .path_count = o->files.count,
                                         .given = o->texts.items,
                                         .given_pairs = o->pairs.count ? o->pairs.items : NULL,
                                         .count = o->texts.count,
                                         .asked = o->column_given,
                                         .text = o->text,
                                         .usual = o->usual,
                                         .pair = o->pair,
                                         .messages = o->messages,
                                         .chat_format = o->chat_format,
                                         .tok = o->tok,
                                         .first_rows = ranks * (gpu ? GPU_FIRST_ROWS : CPU_ROWS),
                                         .rows = ranks * (gpu ? GPU_ROWS : CPU_ROWS),
                                         .cells = job->cells});
    if (s && job->begin) job->begin(job, s, user);
    while (!ranks_stop(job->ctx, 0, gpu)) {
        const text_chunk *c = text_source_next(s);
        if (!c) break;
        text_part part = part_of(job->ctx, c);
        if (!take(job, &part, user)) break;
        job->rows = c->first + (int64_t)c->count;
        run_log_progress(&job->log, job->name, "row", job->rows, 0);
    }
    text_source_free(s);
    job->seconds = progress_bar_now() - start;
    return !mc_failed(job->ctx) && !interrupt_requested();
}
