/* `modelcenter ask`: answers a yes-or-no question about a passage with a model fine-tuned on
 * BoolQ. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tools/options/args.h"
#include "tools/tasks/task_labels.h"
#include "tools/tasks/task_run.h"
#include "tools/commands.h"
#include "tools/options/model_options.h"
#include "tools/ranks.h"
#include "tools/options/train_options.h"
#include "tools/options/weights_option.h"

typedef struct ask_options {
    model_options from;
    const char *question, *passage;
    int device, dtype;
    ranks_options ranks;
} ask_options;

/* The question as an unlabelled row of BoolQ, which a dataset turns into the model's input. */
static mc_dataset *make_row(mc_context *ctx, const ask_options *o, const task_file *saved,
                            const mc_tokenizer *tokenizer, const mc_model *model)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "question", o->question);
    cJSON_AddStringToObject(row, "passage", o->passage);
    char *line = cJSON_PrintUnformatted(row);
    cJSON_Delete(row);
    if (!line) return NULL;
    mc_dataset_options options =
        task_rows(model, tokenizer, saved->max_length, saved->max_target_length);
    if (mc_model_get_heads(model).labels) options.prompt = (mc_prompt){0}; /* as a classifier */
    mc_dataset *dataset = mc_dataset_from_memory(ctx, "BoolQ", "--question and --passage", line,
                                                 strlen(line), "test", tokenizer, &options);
    cJSON_free(line);
    return dataset;
}

/* Reads the two logits of the only row, which the first rank has; false after an error. */
static bool answer(mc_context *ctx, mc_model *model, mc_dataset *dataset, float logits[2])
{
    mc_dataloader *loader = mc_dataloader_new(dataset, &(mc_dataloader_options){.batch_size = 1});
    mc_batch *batch = mc_dataloader_next(loader);
    if (!batch) return false;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *out = task_outputs(t, model, dataset, batch);
    if (out && !ranks_silent(ctx)) mc_tensor_read_f32(ctx, out, logits, 2);
    mc_tape_end(t);
    return out && !mc_failed(ctx);
}

/* A classifier of two labels, or a language model that answers in a prompt. */
static bool can_answer(const mc_model *model)
{
    const char *task = mc_model_task(model);
    int labels = mc_model_get_heads(model).labels;
    bool prompted = mc_task_kind_for("BoolQ", mc_model_prompt(model).style) == MC_TASK_ANSWER;
    if (task && strcmp(task, "BoolQ") != 0) return false;
    return labels == 2 || (task && !labels && prompted);
}

/* The word for a class: that of BoolQ's, where the model names it; else the model's own name. */
static const char *word_for(const mc_model *model, int k)
{
    static const char *const no[] = {"false", "no"}, *const yes[] = {"true", "yes"};
    const char *name = mc_model_label_name(model, k);
    if (!name) return k ? "yes" : "no"; /* a prompt's answer */
    if (mc_label_find(no, 2, name) >= 0) return "no";
    return mc_label_find(yes, 2, name) >= 0 ? "yes" : name;
}

/* A model of the user's rows answers about a passage if it was trained on pairs of texts. */
static bool takes_pairs(const ask_options *o, const task_file *saved)
{
    if (!saved->kind || (saved->kind == MC_TASK_CLASSIFY && saved->pair)) return true;
    fprintf(stderr,
            "error: %s: expected a model fine-tuned on BoolQ or on pairs of texts, found one that "
            "was trained on the column \"%s\": see `modelcenter predict`\n",
            o->from.model, saved->text ? saved->text : saved->messages);
    return false;
}

static bool ask(const ask_options *o, const char *folder, const task_file *saved, mc_context *ctx,
                run_log *log)
{
    if (!takes_pairs(o, saved)) return false;
    mc_load_options load = {.revision = o->from.revision, .base = o->from.base};
    mc_tokenizer *tokenizer = mc_tokenizer_open(
        ctx, o->from.model,
        &(mc_tokenizer_options){.revision = o->from.revision, .base = o->from.base});
    saved_dtype_apply(&load, o->dtype);
    mc_model *model = mc_model_from_pretrained_of(ctx, o->from.family, o->from.model, &load);
    if (mc_failed(ctx) || !task_settle_names(model, folder, saved, log)) return false;
    if (!can_answer(model)) {
        const char *task = mc_model_task(model);
        fprintf(
            stderr, "error: %s: expected a model fine-tuned on BoolQ, found %s with %d labels\n",
            o->from.model, task ? task : "one without a task", mc_model_get_heads(model).labels);
        return false;
    }
    float logits[2] = {0};
    mc_dataset *dataset = make_row(ctx, o, saved, tokenizer, model);
    if (!answer(ctx, model, dataset, logits)) return false;
    if (!isfinite(logits[0]) || !isfinite(logits[1])) {
        mc_set_error(ctx, MC_ERR_STATE, "%s: the logits of the answer are not finite%s",
                     o->from.model, mc_model_finite_hint(model));
        return false;
    }
    double yes = 1 / (1 + exp((double)logits[0] - (double)logits[1]));
    mc_print_rank(ctx, 0, "%s %.4f\n", word_for(model, yes >= 0.5), yes >= 0.5 ? yes : 1 - yes);
    return true;
}

static const char details[] =
    "Prints the answer, yes or no, and the model's probability for it. If a classifier's labels\n"
    "are not true and false, or yes and no, its own name of the answer is printed: LABEL_1.\n\n"
    "  modelcenter ask --model boolq-bert --question 'is the sky blue' \\\n"
    "      --passage 'On a clear day the sky looks blue.'\n";

int cmd_ask(int argc, char **argv)
{
    ask_options o = {.ranks = RANKS_DEFAULTS};
    args_table table = {.count = 0};
    model_add_rows(&table, &o.from, MODEL_WAY_ADAPTER,
                   "folder or identifier of a model fine-tuned on BoolQ");
    ARGS_ADD(
        &table, {ARGS_TEXT("question", &o.question, "a yes-or-no question"), .required = true},
        {ARGS_TEXT("passage", &o.passage, "the text with the answer"), .required = true},
        {ARGS_CHOICE("device", &o.device, train_device_names, "where to run"), .numbered = true},
        SAVED_DTYPE_ROW(&o.dtype));
    ranks_add_rows(&table, &o.ranks);
    const args_spec spec = {.command = "ask",
                            .summary = "Answers a yes-or-no question about a passage.",
                            .details = details,
                            .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    code = model_check(&spec, &o.from, MODEL_WAY_ADAPTER, false);
    if (code != EXIT_OK) return code;
    run_log log = {0};
    mc_context *ctx = ranks_start(&o.ranks, 0, train_device_of(o.device).name, &log);
    task_file saved = {.kind = 0};
    char folder[MODEL_FOLDER];
    bool good = model_find_folder(ctx, &o.from, folder, sizeof folder) &&
                task_file_read(ctx, folder, &saved) == MC_OK;
    code = good && ask(&o, folder, &saved, ctx, &log) ? EXIT_OK : EXIT_RUN_FAILED;
    task_file_release(&saved);
    if (mc_print_error(ctx, stderr)) code = EXIT_RUN_FAILED;
    if (code != EXIT_OK) ranks_refuse(ctx, "ask cannot go on");
    return ranks_leave(ctx, code);
}
