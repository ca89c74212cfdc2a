/* `modelcenter eval`: accuracy of a fine-tuned model on a task's validation rows. */
#include <stdio.h>
#include <string.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/options/data_options.h"
#include "tools/options/family_tasks.h"
#include "tools/train/interrupt.h"
#include "tools/options/model_options.h"
#include "tools/files/output.h"
#include "tools/train/perplexity.h"
#include "tools/ranks.h"
#include "tools/tasks/task_labels.h"
#include "tools/options/train_options.h"
#include "tools/options/weights_option.h"

typedef struct eval_options {
    int device, dtype, weights, batch_size;
    data_options data;
    model_options from;
    const char *log_jsonl, *log_csv;
    bool overwrite;
    ranks_options ranks;
    perplexity_options perplexity;
} eval_options;

/* Whether the rows are text and nothing else, of which a decoder has a perplexity. */
static bool is_text(const eval_options *o)
{
    const data_options *d = &o->data;
    bool decoder = mc_family_kind(o->from.family) == MC_MODEL_DECODER;
    return decoder && d->task < 0 && !d->label && !d->target;
}

/* The same of a model that says nothing about a task. */
static bool has_no_task(const eval_options *o, mc_context *ctx, const mc_model *model,
                        const char *folder)
{
    task_file saved;
    if (!is_text(o) || mc_model_get_heads(model).labels) return false;
    bool none = task_file_read(ctx, folder, &saved) == MC_OK && !saved.kind;
    task_file_release(&saved);
    return none;
}

static bool evaluate_text(eval_options *o, mc_context *ctx, mc_model *model,
                          const mc_tokenizer *tokenizer, run_log *log)
{
    o->perplexity.files = &o->data.files;
    o->perplexity.text = o->data.text;
    o->perplexity.batch_size = o->batch_size;
    o->perplexity.gpu = o->device != TRAIN_CPU;
    return perplexity_evaluate(ctx, model, tokenizer, &o->perplexity, log);
}

static bool evaluate(eval_options *o, mc_context *ctx, run_log *log)
{
    char folder[4096];
    const char *family = model_find_family(ctx, &o->from);
    if (!family || !model_find_folder(ctx, &o->from, folder, sizeof folder) ||
        !data_fits_family(ctx, &o->data, family, false))
        return false;
    bool tokens = is_text(o) && perplexity_has_tokens(&o->data.files);
    mc_load_options load = {.revision = o->from.revision, .base = o->from.base};
    mc_tokenizer_options words = {.revision = o->from.revision, .base = o->from.base};
    bool reads = !tokens && !mc_family_reads_images(family);
    mc_tokenizer *tokenizer = reads ? mc_tokenizer_open(ctx, o->from.model, &words) : NULL;
    saved_dtype_apply(&load, o->dtype);
    mc_model *model = mc_model_from_pretrained_of(ctx, family, o->from.model, &load);
    weights_apply(model, o->weights);
    if (mc_failed(ctx)) return false;
    if (tokens || (is_text(o) && perplexity_has_text(&o->data.files)) ||
        has_no_task(o, ctx, model, folder))
        return evaluate_text(o, ctx, model, tokenizer, log);
    const char *task = data_task(&o->data), *trained = mc_model_task(model);
    if (task && trained && strcmp(trained, task) != 0)
        run_log_line(log, "%s was fine-tuned on %s, not on %s", o->from.model, trained, task);
    mc_dataset *rows = data_open_eval(ctx, &o->data, folder, model, tokenizer, log);
    if (!rows || !task_order_labels(ctx, model, o->from.model, rows)) return false;
    int labels = mc_model_get_heads(model).labels, outputs = mc_dataset_outputs(rows);
    if (outputs && labels != outputs) {
        mc_set_error(ctx, MC_ERR_ARGUMENT, "%s: its classifier has %d labels, %s needs %d",
                     o->from.model, labels, task ? task : o->data.data, outputs);
        return false;
    }
    mc_dataloader *loader = mc_dataloader_new(
        rows, &(mc_dataloader_options){.batch_size = o->batch_size,
                                       .batching = MC_BATCHING_BY_LENGTH,
                                       .sizes = task_sizes(o->device, model, rows)});
    task_exam exam = {.model = model,
                      .loader = loader,
                      .gpu = o->device != TRAIN_CPU,
                      .tokenizer = data_generates(&o->data, rows, tokenizer)};
    task_score score;
    if (!task_evaluate(ctx, &exam, log, &score)) return false;
    if (score.n == 0) { /* all ranks know it, and leave in peace */
        if (!ranks_silent(ctx))
            fprintf(stderr, "error: %s: no row has a label to compare the answers with\n",
                    mc_dataset_path(rows));
        return false;
    }
    task_report(log, rows, o->data.split ? o->data.split : "val", &score, 0, 0);
    return task_result(log, rows, &score, 0, NULL) == MC_OK;
}

static void open_log(const eval_options *o, mc_context *ctx, run_log *log)
{
    run_log_options options = {
        .jsonl = o->log_jsonl, .csv = o->log_csv, .silent = ranks_silent(ctx)};
    output out;
    output_init(&out, ctx, o->overwrite);
    inputs_add_list(&out.inputs, "--data", &o->data.files);
    inputs_add_model_options(&out.inputs, ctx, &o->from);
    if (output_check_logs(&out, o->log_jsonl, o->log_csv, NULL) &&
        run_log_init(log, &options) != MC_OK)
        mc_set_error(ctx, MC_ERR_IO, "%s", log->message);
    output_release(&out);
}

static int run(eval_options *o)
{
    run_log log = {0};
    mc_context *ctx = ranks_start(&o->ranks, 0, train_device_of(o->device).name, &log);
    open_log(o, ctx, &log);
    interrupt_init();
    int code = evaluate(o, ctx, &log) ? EXIT_OK : EXIT_RUN_FAILED;
    if (run_log_release(&log) != MC_OK) code = EXIT_RUN_FAILED;
    if (mc_print_error(ctx, stderr))
        code = EXIT_RUN_FAILED;
    else if (interrupt_requested())
        code = EXIT_INTERRUPTED;
    interrupt_release();
    return ranks_leave(ctx, code);
}

static const char details[] =
    "With --task the rows are a benchmark's; without it --data is your own file, whose\n"
    "columns are those the model was trained on, unless --text, --label, --target name others.\n"
    "A decoder without a task has a perplexity: on a .txt, token files (.bin), or the texts of a\n"
    "table. The last line on stdout is\n"
    "`result task=... accuracy=... f1=... val_loss=... n=... train_seconds=0.0`, or\n"
    "`result model=... perplexity=... loss=... tokens=...`.\n\n"
    "  modelcenter eval --model boolq-bert --task BoolQ --data data/boolq\n"
    "  modelcenter eval --model stars-bert --data test.csv\n"
    "  modelcenter eval --model gpt2 --data book.txt --stride 512\n";

static int parse_and_run(eval_options *o, int argc, char **argv)
{
    args_table table = {.count = 0};
    const int ways = MODEL_WAY_ADAPTER | MODEL_WAY_OLD_FAMILY;
    model_add_rows(&table, &o->from, ways, "folder or identifier of the fine-tuned model");
    ARGS_ADD(
        &table, {ARGS_INT("batch-size", &o->batch_size, 1, 1 << 20, "rows at a time, per rank")},
        {ARGS_CHOICE("device", &o->device, train_device_names, "where to run"), .numbered = true},
        SAVED_DTYPE_ROW(&o->dtype), WEIGHTS_ROW(&o->weights),
        {ARGS_PATH("log-jsonl", &o->log_jsonl, "write the result as an object to this file")},
        {ARGS_PATH("log-csv", &o->log_csv, "write it as a row of a table to this file")},
        OUTPUT_OVERWRITE_ROW(&o->overwrite));
    data_add_rows(&table, &o->data);
    data_add_eval_rows(&table, &o->data);
    perplexity_add_rows(&table, &o->perplexity);
    ranks_add_rows(&table, &o->ranks);
    const args_spec spec = {.command = "eval",
                            .summary = "Evaluates a fine-tuned model on a task.",
                            .details = family_tasks_after(details),
                            .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    code = model_check(&spec, &o->from, ways, false);
    if (code != EXIT_OK) return code;
    if (!data_check(&spec, &o->data, o->from.family, false)) return EXIT_USAGE;
    return run(o);
}

int cmd_eval(int argc, char **argv)
{
    eval_options o = {.batch_size = 32, .data = DATA_DEFAULTS, .ranks = RANKS_DEFAULTS};
    data_options_init(&o.data, argc);
    int code = parse_and_run(&o, argc, argv);
    data_options_release(&o.data);
    return code;
}
