#include "tools/text_job.h"

#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/train_options.h"
#include "tools/weights_option.h"

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
    args_table_add(
        table, (args_option[]){
                   {ARGS_PATH("data", &o->data, "the rows: a .csv, .tsv or .jsonl file, or .gz"),
                    .required = true, .known_as = "input,file,dataset"},
                   {ARGS_TEXT("text", &o->text, "the column of the texts"),
                    .default_text = "text, or the only column",
                    .known_as = "text-column,column,sentence1-key"},
                   {ARGS_PATH("output", &o->output, "the file to write"), .required = true,
                    .known_as = "output-file,out"},
                   OUTPUT_OVERWRITE_ROW(&o->overwrite),
                   {ARGS_INT("max-length", &o->max_length, 0, 1 << 20, "tokens at most of a text"),
                    .default_text = "the model's",
                    .known_as = "max-seq-length,max-encoder-length,seq-length"},
                   {0},
               });
}

void text_job_add_machine_rows(args_table *table, text_job_options *o)
{
    args_table_add(
        table, (args_option[]){
                   {ARGS_HEADING("Machine")},
                   {ARGS_CHOICE("device", &o->device, train_device_names, "where to run"),
                    .numbered = true},
                   {ARGS_CHOICE("dtype", &o->dtype, run_dtype_names,
                                "of weights and activations; auto is f32 on the CPU, else bf16")},
                   {0},
               });
    ranks_add_timeout_row(table, &o->ranks);
}

int text_job_start(text_job *job, bool (*work)(text_job *job, void *user), void *user)
{
    const text_job_options *o = job->o;
    job->ctx = ranks_start(&o->ranks, 0, train_device_of(o->device).name, &job->log);
    run_log_options options = {.silent = ranks_silent(job->ctx)};
    run_log_init(&job->log, &options);
    interrupt_init();
    int code = !mc_failed(job->ctx) && work(job, user) ? EXIT_OK : EXIT_RUN_FAILED;
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
    size_t rank = (size_t)mc_rank(ctx), ranks = (size_t)mc_world_size(ctx);
    size_t from = c->count * rank / ranks, to = c->count * (rank + 1) / ranks;
    return (text_part){.first = c->first + (int64_t)from,
                       .count = to - from,
                       .texts = c->texts + from,
                       .pairs = c->pairs ? c->pairs + from : NULL,
                       .chunk_first = c->first,
                       .chunk_count = c->count};
}

bool text_job_run(text_job *job, bool (*take)(text_job *job, const text_part *part, void *user),
                  void *user)
{
    const text_job_options *o = job->o;
    bool gpu = o->device != TRAIN_CPU;
    int ranks = mc_world_size(job->ctx);
    double start = progress_bar_now();
    text_source *s = text_source_new(
        job->ctx, &(text_source_options){.path = o->data,
                                         .text = o->text,
                                         .pair = o->pair,
                                         .messages = o->messages,
                                         .first_rows = ranks * (gpu ? GPU_FIRST_ROWS : CPU_ROWS),
                                         .rows = ranks * (gpu ? GPU_ROWS : CPU_ROWS)});
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
