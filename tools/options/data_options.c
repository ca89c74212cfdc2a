#include "tools/options/data_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/files/text.h"
#include "tools/tasks/task_labels.h"

enum { MOST_TASKS = 64 };

static const double default_fraction = 0.1;

void data_options_init(data_options *o, int argc)
{
    o->files = args_list_new(argc);
    o->val_files = args_list_new(argc);
}

void data_options_release(data_options *o)
{
    free(o->files.items);
    free(o->val_files.items);
}

const char *const *data_task_names(void)
{
    static const char *names[MOST_TASKS + 1];
    for (int i = 0; i < MOST_TASKS && (names[i] = mc_task_name(i)); i++) continue;
    return names;
}

const char *data_task(const data_options *o) { return o->task < 0 ? NULL : mc_task_name(o->task); }

const char *data_title(const data_options *o)
{
    const char *name = strrchr(o->data, '/');
    return o->task >= 0 ? data_task(o) : name && name[1] ? name + 1 : o->data;
}

/* ---- the command line ------------------------------------------------------------------------ */

void data_add_rows(args_table *table, data_options *o)
{
    ARGS_ADD(
        table,
        {ARGS_CHOICE("task", &o->task, data_task_names(),
                     "a benchmark; without it, --data is a file of your own"),
         .default_text = ""},
        {ARGS_FLAG("classifier", &o->classifier,
                   "with --task: use a classification head, even if the model could answer in "
                   "a prompt")},
        {ARGS_PATHS("data", &o->files,
                    "folder with the task's rows, or .csv, .tsv or .json files, .gz too, or "
                    "patterns of them"),
         .required = true},
        {ARGS_HEADING("Rows of a file")},
        {ARGS_TEXT("text", &o->text, "the column with the text"), .known_as = "sentence1"},
        {ARGS_TEXT("text-column", &o->text, "the same"), .default_text = ""},
        {ARGS_TEXT("image", &o->image,
                   "for models of images: the column with paths of PNG or JPEG files, relative "
                   "to the folder of --data"),
         .known_as = "image-column"},
        {ARGS_TEXT("text-pair", &o->pair, "the column with the second text of a pair"),
         .known_as = "sentence2"},
        {ARGS_TEXT("text-pair-column", &o->pair, "the same"), .default_text = ""},
        {ARGS_TEXT("label", &o->label,
                   "the column with the class; with --multi-label also several columns of 1 "
                   "and 0, separated by commas"),
         .known_as = "label-column,label_column"},
        {ARGS_FLAG("regression", &o->regression, "the label is a number to predict")},
        {ARGS_FLAG("multi-label", &o->multi_label, "a row has any number of the labels")},
        {ARGS_TEXT("label-separator", &o->separator, "separator of several labels in one column"),
         .default_text = "|"},
        {ARGS_TEXT("target", &o->target, "the column with the text to generate"),
         .known_as = "summary-column,completion"},
        {ARGS_TEXT("prompt", &o->prompt, "with --response: names for --text and --target")},
        {ARGS_TEXT("response", &o->response, "the column with the answer to --prompt")},
        {ARGS_TEXT("messages", &o->messages,
                   "the column of JSON Lines with a conversation; the model learns the "
                   "assistant's messages")},
        {ARGS_TEXT("chat-format", &o->chat_format,
                   "with --messages: chatml, llama2, llama3, mistral-v1, mistral-v3 or zephyr"),
         .default_text = "that of the model's chat template, else plain"},
        {ARGS_FLAG("generate", &o->generate,
                   "with --target: generate the texts, and score exact match, F1 and ROUGE-L")},
        {ARGS_INT("max-length", &o->max_length, 0, 1 << 20, "longest input, in tokens"),
         .default_text = "what the model's folder says, else 512",
         .known_as = "max-encoder-length,max-seq-length,max_source_length"},
        {ARGS_INT("max-target-length", &o->max_target_length, 0, 1 << 20,
                  "longest generated text, in tokens"),
         .default_text = "128", .known_as = "max-decoder-length"});
}

void data_add_training_rows(args_table *table, data_options *o)
{
    ARGS_ADD(table,
             {ARGS_PATHS("val", &o->val_files, "files with rows for validation"),
              .known_as = "validation-file,eval-data"},
             {ARGS_REAL("val-fraction", &o->val_fraction, 0, 1,
                        "without --val: share of the rows that are held out for validation"),
              .above_low = true, .below_high = true, .default_text = "0.1"});
}

void data_add_eval_rows(args_table *table, data_options *o)
{
    ARGS_ADD(table, {ARGS_TEXT("split", &o->split,
                               "with --task: which rows: val, train, or another file's name"),
                     .default_text = "val"});
}

static bool names_columns(const data_options *o)
{
    return o->text || o->image || o->pair || o->label || o->target || o->regression ||
           o->multi_label || o->separator || o->messages || o->val || o->val_fraction > 0;
}

/* Rows are read more than once, and by all ranks. */
static const char *misplaced_input(const data_options *o)
{
    const args_list *lists[] = {&o->files, &o->val_files};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lists[k]->count; i++)
            if (strcmp(lists[k]->items[i], "-") == 0)
                return k ? "--val -: expected files, which are read more than once"
                         : "--data -: expected files, which are read more than once; `predict` and "
                           "`embed` read standard input";
    return NULL;
}

/* Why the options do not fit one another; NULL: they do. */
static const char *misfit(const data_options *o, bool training)
{
    if (o->classifier && o->task < 0) return "expected --task with --classifier";
    if (o->task >= 0 && o->files.count > 1) return "--data: expected one folder with --task";
    if (o->task >= 0)
        return names_columns(o) ? "expected either --task or the columns of a file" : NULL;
    if (o->split) return "expected --task with --split";
    if (o->messages &&
        (o->text || o->pair || o->label || o->target || o->regression || o->multi_label))
        return "--messages: a conversation has its prompts and answers, expected no other columns";
    if (o->image && (o->text || o->pair || o->target || o->messages))
        return "--image: a row is an image, expected no columns of texts";
    if (o->chat_format && !o->messages && (training || !o->target || !o->generate))
        return training ? "--chat-format: expected --messages with it"
                        : "--chat-format: expected --messages with it, or --target and --generate";
    if (o->regression && o->multi_label) return "expected one of --regression and --multi-label";
    if (o->target && (o->label || o->regression || o->multi_label))
        return "expected either --target or --label";
    if (o->target && o->pair) return "--text-pair: a text is generated from one text";
    if (o->val && o->val_fraction > 0) return "expected one of --val and --val-fraction";
    if (training && !o->text && !o->messages && !o->image)
        return "expected --task, or --text with a column of the file";
    if (training && !o->label && !o->target && !o->messages)
        return "expected --label with a column of the file, or --target";
    return NULL;
}

/* How texts are put; with a classifier as an encoder gets them. */
static mc_prompt_style style_of(const data_options *o, const char *family)
{
    return o->classifier ? MC_PROMPT_ENCODER : mc_family_prompt_style(family);
}

mc_task_kind data_kind(const data_options *o, const char *family)
{
    if (o->task >= 0) return mc_task_kind_for(data_task(o), style_of(o, family));
    if (o->target || o->messages) return MC_TASK_GENERATE;
    if (o->regression) return MC_TASK_REGRESS;
    return o->multi_label ? MC_TASK_MULTI_LABEL : MC_TASK_CLASSIFY;
}

/* "--prompt C --response C" is "--text C --target C". */
static const char *take_aliases(data_options *o)
{
    if (o->prompt && o->text) return "expected one of --prompt and --text";
    if (o->response && o->target) return "expected one of --response and --target";
    if (o->prompt) o->text = o->prompt;
    if (o->response) o->target = o->response;
    o->prompt = o->response = NULL;
    return NULL;
}

/* Writes what is wrong with the options for a family; false if nothing is. */
static bool misfits_family(const data_options *o, const char *family, bool training, char *message,
                           size_t room)
{
    mc_task_kind kind = data_kind(o, family);
    bool head = kind != MC_TASK_GENERATE && kind != MC_TASK_ANSWER;
    bool images = family && mc_family_reads_images(family), named = o->text || o->messages;
    *message = '\0';
    if (images && (o->task >= 0 || named || (training && !o->image)))
        snprintf(message, room, "%s reads images: expected --image with a column of their paths",
                 family);
    else if (!images && o->image)
        snprintf(message, room, "--image: %s reads texts, expected --text", family);
    else if (!kind)
        snprintf(message, room, "--task %s: it has no form for %s", data_task(o), family);
    else if (!training && o->task < 0 && !o->label && !o->target && !o->messages)
        return false; /* the model's folder says it */
    else if (head && !mc_family_has_classifier(family))
        snprintf(message, room,
                 "%s has no classification head: expected --target, for a text to be generated",
                 family);
    else if (!head && mc_family_kind(family) == MC_MODEL_ENCODER)
        snprintf(message, room, "%s is an encoder, which does not generate text", family);
    return *message;
}

/* Writes which column --label names twice, as one of several; false if it names none twice. */
static bool repeats_label(const data_options *o, char *message, size_t room)
{
    size_t length = 0;
    const char *name = o->multi_label && o->label ? text_named_twice(o->label, &length) : NULL;
    if (!name) return false;
    snprintf(message, room, "--label: \"%.*s\" is named twice", (int)length, name);
    return true;
}

bool data_check(const args_spec *spec, data_options *o, const char *family, bool training)
{
    o->data = o->files.items[0];
    o->val = o->val_files.count ? o->val_files.items[0] : NULL;
    char message[256];
    const char *why = misplaced_input(o);
    if (!why) why = take_aliases(o);
    if (!why) why = misfit(o, training);
    if (!why && repeats_label(o, message, sizeof message)) why = message;
    if (!why && family && misfits_family(o, family, training, message, sizeof message))
        why = message;
    if (why) args_error(spec, "%s", why);
    return !why;
}

bool data_fits_family(mc_context *ctx, const data_options *o, const char *family, bool training)
{
    char message[256];
    if (mc_failed(ctx)) return false;
    if (misfits_family(o, family, training, message, sizeof message))
        mc_set_error(ctx, MC_ERR_ARGUMENT, "%s", message);
    return !mc_failed(ctx);
}

/* ---- opening --------------------------------------------------------------------------------- */

static mc_data_columns columns_of(const data_options *o, const char *family)
{
    return (mc_data_columns){.text = o->text,
                             .image = o->image,
                             .pair = o->pair,
                             .label = o->label,
                             .target = o->target,
                             .messages = o->messages,
                             .separator = o->separator,
                             .kind = data_kind(o, family)};
}

/* The form of conversations: by name, else by the chat template, else (0) without markers. */
static mc_chat_format choose_chat_format(mc_context *ctx, const data_options *o,
                                         const mc_tokenizer *tok)
{
    mc_chat_format format = 0;
    if ((!o->messages && !o->chat_format) || mc_failed(ctx)) return 0;
    bool none = mc_chat_format_choose(ctx, tok, o->chat_format, &format) == MC_ERR_NOT_FOUND;
    if (none) mc_clear_error(ctx);
    return format;
}

static void open_files(mc_context *ctx, const data_options *o, const char *family, uint64_t seed,
                       const mc_tokenizer *tok, const mc_dataset_options *options,
                       const mc_model_labels *had, mc_dataset **train, mc_dataset **val)
{
    const char *names[MC_DATASET_MAX_LABELS];
    mc_data_columns columns = columns_of(o, family);
    columns.chat_format = choose_chat_format(ctx, o, tok);
    if (columns.chat_format && o->generate)
        mc_set_error(ctx, MC_ERR_UNSUPPORTED,
                     "--generate: while it is trained, answers of conversations in chat format %s "
                     "are not scored: expected `eval --generate` afterwards",
                     mc_chat_format_name(columns.chat_format));
    columns.labels = had->count;
    columns.label_names = had->name;
    columns.labels_proposed = had->count > 0;
    *train = mc_dataset_from_files(ctx, o->files.items, o->files.count, &columns, tok, options);
    if (!o->val) {
        double fraction = o->val_fraction > 0 ? o->val_fraction : default_fraction;
        *val = mc_dataset_split(*train, fraction, seed);
        return;
    }
    columns.labels = task_names_of(*train, names);
    columns.label_names = names;
    columns.labels_proposed = false;
    if (!mc_failed(ctx))
        *val = mc_dataset_from_files(ctx, o->val_files.items, o->val_files.count, &columns, tok,
                                     options);
}

bool data_open_training(mc_context *ctx, const data_options *o, const char *family, uint64_t seed,
                        const mc_tokenizer *tok, const mc_model_labels *had, mc_dataset **train,
                        mc_dataset **val)
{
    mc_dataset_options options = {.max_length = (int)o->max_length,
                                  .max_target_length = (int)o->max_target_length,
                                  .prompt.style = style_of(o, family)};
    *train = *val = NULL;
    if (o->task < 0) {
        open_files(ctx, o, family, seed, tok, &options, had, train, val);
    } else {
        *train = mc_dataset_open(ctx, data_task(o), o->data, "train", tok, &options);
        *val = mc_dataset_open(ctx, data_task(o), o->data, "val", tok, &options);
    }
    return !mc_failed(ctx);
}

static mc_dataset_options options_for(const data_options *o, const mc_model *model,
                                      const mc_tokenizer *tok)
{
    mc_dataset_options options = task_rows(model, tok, o->max_length, o->max_target_length);
    if (o->classifier) options.prompt = (mc_prompt){0};
    return options;
}

bool data_fit(const data_options *o, const mc_model *model, const mc_tokenizer *tok,
              mc_dataset *train, mc_dataset *val)
{
    mc_dataset_options options = options_for(o, model, tok);
    return mc_dataset_set_options(train, &options) == MC_OK &&
           mc_dataset_set_options(val, &options) == MC_OK;
}

/* The lengths that the options leave open, from the file. */
static void fill_in_lengths(data_options *o, const task_file *f)
{
    if (!o->max_length) o->max_length = f->max_length;
    if (!o->max_target_length) o->max_target_length = f->max_target_length;
}

/* The columns that the options leave open, from the file. */
static void fill_in_columns(data_options *o, const task_file *f)
{
    if (o->messages) return;
    if (!o->text && !o->label && !o->target) o->messages = f->messages;
    bool asks = o->text && o->target && o->generate; /* what a user says, and the answers */
    if ((o->messages || asks) && !o->chat_format) o->chat_format = f->chat_format;
    if (!o->text) o->text = f->text;
    if (!o->image) o->image = f->image;
    if (!o->pair) o->pair = f->pair;
    if (!o->separator) o->separator = f->separator;
    if (o->label || o->target) return;
    o->label = f->label;
    o->target = f->target;
    o->regression = f->kind == MC_TASK_REGRESS;
    o->multi_label = f->kind == MC_TASK_MULTI_LABEL;
}

/* Of a model without task.json, as transformers' config says it. */
static void fill_in_kind(data_options *o, const mc_model *model)
{
    const char *type = mc_model_problem_type(model);
    if (o->regression || o->multi_label || o->target) return;
    o->regression = type ? strcmp(type, "regression") == 0 : mc_model_get_heads(model).labels == 1;
    if (!type) return;
    o->multi_label = strcmp(type, "multi_label_classification") == 0;
}

static bool check_columns(mc_context *ctx, const data_options *o, const char *folder)
{
    if (o->messages || (o->text && (o->label || o->target)) || (o->image && o->label)) return true;
    mc_set_error(
        ctx, MC_ERR_ARGUMENT,
        "%s: no task.json says which columns it was trained on: expected --text or --image, "
        "and --label or --target, or --messages",
        folder);
    return false;
}

static mc_dataset *open_eval_task(mc_context *ctx, data_options *o, const mc_model *model,
                                  const mc_tokenizer *tok)
{
    o->classifier = mc_model_get_heads(model).labels > 0;
    mc_dataset_options options = options_for(o, model, tok);
    return mc_dataset_open(ctx, data_task(o), o->data, o->split ? o->split : "val", tok, &options);
}

static mc_dataset *open_eval_file(mc_context *ctx, data_options *o, const char *folder,
                                  const task_file *saved, const mc_model *model,
                                  const mc_tokenizer *tok)
{
    const char *names[MC_DATASET_MAX_LABELS];
    fill_in_columns(o, saved);
    if (!saved->kind) fill_in_kind(o, model);
    if (!check_columns(ctx, o, folder)) return NULL;
    mc_dataset_options options = options_for(o, model, tok);
    mc_data_columns columns = columns_of(o, mc_model_family(model));
    columns.labels = task_names_of_model(model, names);
    columns.label_names = names;
    /* one that was fine-tuned without a format has its conversations without markers */
    if (o->chat_format || !saved->kind) columns.chat_format = choose_chat_format(ctx, o, tok);
    columns.answers = columns.chat_format && o->generate;
    return mc_dataset_from_files(ctx, o->files.items, o->files.count, &columns, tok, &options);
}

mc_dataset *data_open_eval(mc_context *ctx, const data_options *o, const char *folder,
                           mc_model *model, const mc_tokenizer *tok, run_log *log)
{
    if (mc_failed(ctx)) return NULL;
    task_file saved;
    data_options filled = *o;
    mc_dataset *dataset = NULL;
    if (task_file_read(ctx, folder, &saved) == MC_OK &&
        task_settle_names(model, folder, &saved, log)) {
        fill_in_lengths(&filled, &saved);
        dataset = o->task >= 0 ? open_eval_task(ctx, &filled, model, tok)
                               : open_eval_file(ctx, &filled, folder, &saved, model, tok);
    }
    task_file_release(&saved);
    return dataset;
}

const mc_tokenizer *data_generates(const data_options *o, const mc_dataset *dataset,
                                   const mc_tokenizer *tok)
{
    bool texts = mc_dataset_scoring(dataset) == MC_SCORING_TEXTS;
    return texts && (o->generate || mc_dataset_task(dataset)) ? tok : NULL;
}

/* ---- what is kept with a run ----------------------------------------------------------------- */

void data_add_settings(settings *list, const data_options *o)
{
    settings_add_given(list, "task", data_task(o));
    settings_add_given(list, "text", o->text);
    settings_add_given(list, "image", o->image);
    settings_add_given(list, "text-pair", o->pair);
    settings_add_given(list, "label", o->label);
    settings_add_given(list, "label-separator", o->separator);
    settings_add_given(list, "target", o->target);
    settings_add_given(list, "messages", o->messages);
    settings_add_given(list, "chat-format", o->chat_format);
    settings_add_flag(list, "regression", o->regression);
    settings_add_flag(list, "multi-label", o->multi_label);
    settings_add_flag(list, "classifier", o->classifier);
    settings_add_flag(list, "generate", o->generate);
    settings_add_real(list, "val-fraction", o->val_fraction);
    settings_add_whole(list, "max-length", o->max_length);
    settings_add_whole(list, "max-target-length", o->max_target_length);
}

/* ---- what is saved --------------------------------------------------------------------------- */

void data_name(mc_model *model, const mc_dataset *dataset)
{
    const char *names[MC_DATASET_MAX_LABELS];
    mc_task_kind kind = mc_dataset_kind(dataset);
    int labels = task_names_of(dataset, names);
    bool one_each = labels && labels == mc_dataset_outputs(dataset);
    mc_model_set_task(model, mc_dataset_task(dataset), one_each ? names : NULL);
    const char *type = kind == MC_TASK_REGRESS       ? "regression"
                       : kind == MC_TASK_MULTI_LABEL ? "multi_label_classification"
                       : kind == MC_TASK_CLASSIFY    ? "single_label_classification"
                                                     : NULL;
    mc_model_set_problem_type(model, type);
}

void data_save(mc_context *ctx, const data_options *o, const mc_dataset *dataset,
               const char *folder)
{
    if (mc_failed(ctx) || mc_rank(ctx) != 0) return;
    task_file file = {.task = data_task(o),
                      .kind = o->task < 0 ? mc_dataset_kind(dataset) : 0,
                      .text = o->text,
                      .image = o->image,
                      .pair = o->pair,
                      .label = o->label,
                      .target = o->target,
                      .messages = o->messages,
                      .chat_format = mc_chat_format_name(mc_dataset_chat_format(dataset)),
                      .separator = o->separator,
                      .max_length = mc_dataset_max_length(dataset),
                      .max_target_length = mc_dataset_max_target_length(dataset)};
    if (o->task < 0) file.labels = task_names_of(dataset, file.label_names);
    task_file_write(ctx, folder, &file);
}
