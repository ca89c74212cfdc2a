/* `modelcenter predict`: what a model says about each row of a table, as JSON Lines. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/answer_options.h"
#include "tools/commands.h"
#include "tools/rank_file.h"
#include "tools/task_file.h"
#include "tools/task_run.h"
#include "tools/text.h"
#include "tools/text_job.h"
#include "tools/weights_option.h"

enum {
    NUMBER_ROOM = 32,
    LINE_ROOM = 128,
    BLOCK_ROWS = 32,
    DEFAULT_NEW_TOKENS = 128,
    USUAL_LENGTH = 512
};

typedef struct predict {
    text_job_options job;
    int64_t max_target_length, batch_size;
    answer_options answer;
    mc_generate_options how;
    int weights;    /* a mc_weight_format */
    task_file task; /* of the model's folder; kind 0: it has none */
    mc_task_kind kind;
    mc_context *ctx;
    mc_model *model;
    mc_tokenizer *tok;
    mc_text_classifier *classifier; /* but of GENERATE */
    int labels;
    float *logits;
    char *lines; /* of a part, as they go to the file */
    size_t logit_room, line_room, used;
    double cut; /* prompts that were */
    rank_file file;
} predict;

static bool out_of_memory(predict *p)
{
    mc_set_error(p->ctx, MC_ERR_NOMEM, "out of memory for the rows of %s", p->job.output);
    return false;
}

/* Room for `size` more bytes of lines. */
static bool reserve_lines(predict *p, size_t size)
{
    if (p->used + size <= p->line_room) return true;
    size_t room = 2 * (p->used + size);
    char *grown = realloc(p->lines, room);
    if (!grown) return out_of_memory(p);
    p->lines = grown;
    p->line_room = room;
    return true;
}

/* ---- classes, labels and values -------------------------------------------------------------- */

static void add_label(text *t, const predict *p, int k)
{
    text_add_json_string(t, mc_model_label_name(p->model, k));
}

static size_t line_room(const predict *p)
{
    size_t room = LINE_ROOM;
    for (int k = 0; k < p->labels; k++)
        room += 2 * (6 * strlen(mc_model_label_name(p->model, k)) + NUMBER_ROOM);
    return room;
}

static void add_class(text *t, const predict *p, const float *probability)
{
    int best = 0;
    for (int k = 1; k < p->labels; k++)
        if (probability[k] > probability[best]) best = k;
    text_add(t, "{\"label\":");
    add_label(t, p, best);
    text_add(t, ",\"probability\":");
    text_add_json_number(t, (double)probability[best]);
}

/* All labels that are more probable than not. */
static void add_labels(text *t, const predict *p, const float *probability)
{
    bool any = false;
    text_add(t, "{\"labels\":[");
    for (int k = 0; k < p->labels; k++) {
        if (!(probability[k] > 0.5f)) continue;
        if (any) text_add(t, ",");
        add_label(t, p, k);
        any = true;
    }
    text_add(t, "]");
}

/* `{NAME: number, ...}` of all labels. */
static void add_numbers(text *t, const predict *p, const float *row)
{
    for (int k = 0; k < p->labels; k++) {
        text_add(t, k ? "," : "{");
        add_label(t, p, k);
        text_add(t, ":");
        text_add_json_number(t, (double)row[k]);
    }
    text_add(t, "}");
}

/* A regression's only value, or several by their names. */
static void add_values(text *t, const predict *p, const float *row)
{
    text_add(t, p->labels == 1 ? "{\"value\":" : "{\"values\":");
    p->labels == 1 ? text_add_json_number(t, (double)row[0]) : add_numbers(t, p, row);
    text_add(t, "}\n");
}

static void add_row(text *t, const predict *p, float *row)
{
    if (p->kind == MC_TASK_REGRESS) {
        add_values(t, p, row);
        return;
    }
    task_probabilities(p->kind, row, p->labels, row);
    p->kind == MC_TASK_MULTI_LABEL ? add_labels(t, p, row) : add_class(t, p, row);
    text_add(t, ",\"probabilities\":");
    add_numbers(t, p, row);
    text_add(t, "}\n");
}

/* The lines of a part, by all threads: each block of rows is written where it has room of its own,
 * and then moved up to the one before. Numbers as text take longer than reading the rows. */
static bool write_rows(predict *p, size_t count)
{
    size_t rows = count < BLOCK_ROWS ? count + 1 : BLOCK_ROWS, room = rows * line_room(p);
    size_t blocks = (count + rows - 1) / rows;
    size_t *used = calloc(blocks + 1, sizeof *used);
    bool good = (used || out_of_memory(p)) && reserve_lines(p, blocks * room);
#pragma omp parallel for if (good && blocks > 1)
    for (size_t b = 0; b < (good ? blocks : 0); b++) {
        text t = text_into(p->lines + b * room, room);
        size_t end = (b + 1) * rows < count ? (b + 1) * rows : count;
        for (size_t i = b * rows; i < end; i++) add_row(&t, p, p->logits + i * (size_t)p->labels);
        used[b] = t.used;
    }
    for (size_t b = 0; good && b < blocks; b++) {
        memmove(p->lines + p->used, p->lines + b * room, used[b]);
        p->used += used[b];
    }
    free(used);
    return good;
}

static bool classify_part(predict *p, const text_part *part)
{
    size_t values = part->count * (size_t)p->labels;
    if (values > p->logit_room || !p->logits) {
        float *grown = realloc(p->logits, (values + 1) * sizeof *grown);
        if (!grown) return out_of_memory(p);
        p->logits = grown;
        p->logit_room = values;
    }
    return mc_classify_texts(p->classifier, part->texts, part->pairs, part->count, p->logits) ==
               MC_OK &&
           write_rows(p, part->count);
}

/* ---- generated texts ------------------------------------------------------------------------- */

/* A prompt of at most the model's length: an encoder keeps its beginning and its end token, a
 * decoder what the answer comes after. */
static int cut_prompt(const predict *p, int32_t *ids, int count)
{
    mc_model_shape shape = mc_model_get_shape(p->model);
    bool two = shape.kind == MC_MODEL_ENCODER_DECODER;
    int64_t most = p->job.max_length ? p->job.max_length : INT_MAX;
    int64_t fits =
        two || !shape.positions ? shape.positions : shape.positions - p->max_target_length;
    if (shape.positions && fits < most) most = fits;
    if (count <= most || most < 1) return count;
    if (two)
        ids[most - 1] = ids[count - 1];
    else
        memmove(ids, ids + count - most, (size_t)most * sizeof *ids);
    return (int)most;
}

static bool encode(predict *p, const mc_text_span *source, mc_text_prompt *prompt)
{
    if (mc_text_prompt_init(prompt, p->model, p->tok, source->data, source->size)) return false;
    int whole = prompt->count;
    prompt->count = cut_prompt(p, prompt->ids, whole);
    p->cut += prompt->count < whole;
    return true;
}

static bool add_answer(predict *p, const mc_stop *stop, int row, const int32_t *ids, int count)
{
    size_t size = 0;
    char *answer = mc_stop_text(stop, row, ids, count, &size);
    bool good = answer && reserve_lines(p, 6 * size + LINE_ROOM);
    if (good) {
        text t = text_into(p->lines + p->used, p->line_room - p->used);
        text_add(&t, "{\"text\":");
        text_add_json_bytes(&t, answer, size);
        text_add(&t, "}\n");
        p->used += t.used;
    }
    mc_string_free(answer);
    return good;
}

/* The prompts of a batch, in the arrays that generation takes. */
typedef struct prompts {
    mc_text_prompt *made;
    const int32_t **ids;
    int *lengths;
    int32_t *ends;
} prompts;

static bool answer_prompts(predict *p, const prompts *b, int count, int64_t first)
{
    mc_stop stop = answer_stop(&p->answer, &p->how, p->tok, b->ends);
    mc_generate_options how = p->how;
    how.stop = mc_stop_reached;
    how.stop_user = &stop;
    how.first_prompt = first;
    mc_generation *out = mc_model_generate(p->model, b->ids, b->lengths, count, &how);
    bool good = out;
    for (int i = 0; good && i < count; i++)
        good = add_answer(p, &stop, i, out->ids[i], out->lengths[i]);
    mc_generation_free(out);
    return good;
}

static bool generate_batch(predict *p, const mc_text_span *texts, int count, int64_t first)
{
    size_t n = (size_t)count;
    prompts b = {calloc(n, sizeof *b.made), calloc(n, sizeof *b.ids), calloc(n, sizeof *b.lengths),
                 calloc(n, sizeof *b.ends)};
    bool good = (b.made && b.ids && b.lengths && b.ends) || out_of_memory(p);
    for (int i = 0; good && i < count; i++) {
        good = encode(p, &texts[i], &b.made[i]);
        b.ids[i] = b.made[i].ids;
        b.lengths[i] = b.made[i].count;
        b.ends[i] = b.made[i].end;
    }
    good = good && answer_prompts(p, &b, count, first);
    for (int i = 0; b.made && i < count; i++) mc_text_prompt_release(&b.made[i]);
    free(b.made);
    free(b.ids);
    free(b.lengths);
    free(b.ends);
    return good;
}

static bool generate_part(predict *p, const text_part *part)
{
    for (size_t at = 0; at < part->count; at += (size_t)p->batch_size) {
        size_t left = part->count - at, most = (size_t)p->batch_size;
        int count = (int)(left < most ? left : most);
        if (!generate_batch(p, part->texts + at, count, part->first + (int64_t)at)) return false;
    }
    return true;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool take(text_job *job, const text_part *part, void *user)
{
    predict *p = user;
    (void)job;
    p->used = 0;
    bool good = p->kind == MC_TASK_GENERATE ? generate_part(p, part) : classify_part(p, part);
    return good && rank_file_append(&p->file, p->lines, p->used) == MC_OK;
}

/* What the model's rows are, as it was trained, or as transformers reads its config. */
static bool choose_kind(predict *p)
{
    const char *type = mc_model_problem_type(p->model), *task = mc_model_task(p->model);
    bool generates = mc_model_get_shape(p->model).kind != MC_MODEL_ENCODER;
    p->labels = mc_model_get_heads(p->model).labels;
    p->kind = p->task.kind;
    if (!p->kind && p->labels)
        p->kind = type && strcmp(type, "multi_label_classification") == 0 ? MC_TASK_MULTI_LABEL
                  : type ? (strcmp(type, "regression") == 0 ? MC_TASK_REGRESS : MC_TASK_CLASSIFY)
                         : (p->labels == 1 ? MC_TASK_REGRESS : MC_TASK_CLASSIFY);
    if (!p->kind) p->kind = MC_TASK_GENERATE;
    if (p->kind == MC_TASK_GENERATE ? !generates : !p->labels)
        mc_set_error(p->ctx, MC_ERR_UNSUPPORTED,
                     "%s: a %s without a classifier: expected a model that classifies texts or "
                     "generates them",
                     p->job.from.model, mc_model_family(p->model));
    else if (task && p->labels && mc_task_kind_for(task, 0) == MC_TASK_CHOOSE)
        mc_set_error(p->ctx, MC_ERR_UNSUPPORTED,
                     "%s: the model chooses between the inputs of %s, which the columns of a table "
                     "do not hold",
                     p->job.from.model, task);
    return !mc_failed(p->ctx);
}

/* At most half of a decoder's positions, so that prompts have room before the answers. */
static int64_t default_new_tokens(const predict *p)
{
    mc_model_shape shape = mc_model_get_shape(p->model);
    int64_t half = shape.kind == MC_MODEL_DECODER ? shape.positions / 2 : 0;
    return half && half < DEFAULT_NEW_TOKENS ? half : DEFAULT_NEW_TOKENS;
}

/* Columns and lengths that are not given are those the model was trained with. */
static bool fill_options(predict *p)
{
    const task_file *f = &p->task;
    if (f->kind && f->pair && !p->job.data && !p->job.pairs.count) {
        mc_set_error(p->ctx, MC_ERR_ARGUMENT,
                     "%s: the model was trained on pairs of texts: expected --text-pair too",
                     p->job.from.model);
        return false;
    }
    if (!p->job.text && f->kind) p->job.text = f->text;
    if (!p->job.pair && f->kind) p->job.pair = f->pair;
    if (f->kind) p->job.messages = f->messages;
    if (!p->job.max_length) p->job.max_length = f->max_length;
    if (!p->max_target_length) p->max_target_length = f->max_target_length;
    if (!p->max_target_length) p->max_target_length = default_new_tokens(p);
    return true;
}

static bool choose_how(predict *p)
{
    if (!answer_options_resolve(&p->answer, p->model, &p->how)) return false;
    p->how.num_return_sequences = 1; /* a row has one answer */
    p->how.max_new_tokens = (int)p->max_target_length;
    return true;
}

static bool open_model(predict *p)
{
    const text_job_options *o = &p->job;
    char folder[4096];
    mc_load_options load = {
        .dtype = text_job_dtype(o), .revision = o->from.revision, .base = o->from.base};
    mc_tokenizer_options words = {.revision = o->from.revision, .base = o->from.base};
    p->tok = mc_tokenizer_open(p->ctx, o->from.model, &words);
    p->model = mc_model_from_pretrained_of(p->ctx, o->from.family, o->from.model, &load);
    weights_apply(p->model, p->weights);
    if (!mc_failed(p->ctx))
        mc_hub_download(p->ctx, o->from.model, &(mc_hub_options){.revision = o->from.revision},
                        folder, sizeof folder);
    if (mc_failed(p->ctx) || task_file_read(p->ctx, folder, &p->task) || !choose_kind(p))
        return false;
    if (!fill_options(p)) return false;
    if (p->kind == MC_TASK_GENERATE) return choose_how(p);
    if (answer_option_given(&p->answer)) {
        mc_set_error(p->ctx, MC_ERR_ARGUMENT, "%s: %s: the model does not generate texts",
                     answer_option_given(&p->answer), o->from.model);
        return false;
    }
    p->classifier = mc_text_classifier_new(
        p->model, p->tok, &(mc_text_classifier_options){.max_length = o->max_length});
    return p->classifier;
}

/* Says where a classifier's texts are cut because the model has few positions. */
static void tell_length(const predict *p, run_log *log)
{
    int64_t positions = mc_model_get_shape(p->model).positions;
    if (p->kind != MC_TASK_GENERATE && !p->job.max_length && positions && positions < USUAL_LENGTH)
        run_log_line(log, "texts are cut at %" PRId64 " tokens, the model's positions", positions);
}

/* Says how many prompts all ranks have cut. */
static bool report_cut(predict *p, run_log *log)
{
    int ranks = mc_world_size(p->ctx);
    double sum = 0, *all = malloc((size_t)ranks * sizeof *all);
    if (!all) return out_of_memory(p);
    bool good = mc_gather_numbers(p->ctx, &p->cut, 1, all) == MC_OK;
    for (int i = 0; good && i < ranks; i++) sum += all[i];
    free(all);
    if (sum > 0)
        run_log_line(log,
                     "%.0f prompt%s cut (--max-length, or the positions that answers of %d tokens "
                     "leave)",
                     sum, sum > 1 ? "s were" : " was", (int)p->max_target_length);
    return good;
}

static bool work(text_job *job, void *user)
{
    predict *p = user;
    p->ctx = job->ctx;
    bool good = open_model(p);
    if (good) tell_length(p, &job->log);
    if (good) rank_file_init(&p->file, job->ctx, p->job.output, p->job.overwrite);
    good = good && text_job_run(job, take, p) && rank_file_finish(&p->file) == MC_OK;
    rank_file_release(&p->file);
    if (!good || !report_cut(p, &job->log)) return false;
    double rate = job->seconds > 0 ? (double)job->rows / job->seconds : 0;
    return run_log_result_line(&job->log, "result rows=%" PRId64 " seconds=%.3f rows_per_s=%.1f",
                               job->rows, job->seconds, rate) == MC_OK;
}

static const char details[] =
    "OUTPUT has an object a row, in their order; it gets its name once it is whole:\n\n"
    "  {\"label\": NAME, \"probability\": P, \"probabilities\": {NAME: P, ...}}\n"
    "  {\"labels\": [NAME, ...], \"probabilities\": {NAME: P, ...}}   those above 0.5 of several\n"
    "  {\"value\": X}                                              of a regression\n"
    "  {\"values\": {NAME: X, ...}}                                of one with several outputs\n"
    "  {\"text\": TEXT}                                            of a generating model\n\n"
    "Texts come from --data, from --text, or through a pipe: JSON Lines where the first line is "
    "an\n"
    "object, a table where it names the column among others, else a text a line. The last line on\n"
    "stdout, or on stderr where OUTPUT is stdout, is `result rows=... seconds=... "
    "rows_per_s=...`.\n\n"
    "  modelcenter predict --model stars-bert --data reviews.csv --output stars.jsonl\n"
    "  modelcenter predict --model stars-bert --text 'What a film!'\n"
    "  cut -f 3 reviews.tsv | modelcenter predict --model stars-bert > stars.jsonl\n";

static int parse_and_run(predict *p, int argc, char **argv)
{
    args_table table = {.count = 0};
    const int ways = MODEL_WAY_ADAPTER | MODEL_WAY_OLD_MODEL;
    text_job_add_rows(&table, &p->job, ways);
    text_job_add_pair_rows(&table, &p->job);
    const args_option options[] = {
        {ARGS_HEADING("Generated texts")},
        {ARGS_INT("max-target-length", &p->max_target_length, 0, 1 << 20,
                  "tokens at most of a text"),
         .default_text =
             "that the model was trained with, else 128, or half of a decoder's positions",
         .known_as = "max-new-tokens"},
        {ARGS_INT("batch-size", &p->batch_size, 1, 1 << 20, "rows at once, per rank")},
        WEIGHTS_ROW(&p->weights),
        {0},
    };
    args_table_add(&table, options);
    answer_add_rows(&table, &p->answer);
    text_job_add_machine_rows(&table, &p->job);
    const args_spec spec = {.command = "predict",
                            .summary =
                                "Writes what a model says about texts, or each row of a table.",
                            .details = details,
                            .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    code = model_check(&spec, &p->job.from, ways, false);
    if (code != EXIT_OK) return code;
    code = text_job_check(&spec, &p->job);
    if (code == EXIT_OK) code = answer_options_check(&spec, &p->answer);
    if (code != EXIT_OK) return code;
    output_form form;
    if (!output_choose_form(&spec, p->job.output, OUTPUT_JSONL, &form, &code)) return code;
    text_job job = {.o = &p->job, .name = "predict"};
    return text_job_start(&job, work, p);
}

int cmd_predict(int argc, char **argv)
{
    predict p = {.batch_size = 32, .file = {.aside = {.fd = -1}}};
    answer_options_init(&p.answer, argc);
    text_job_options_init(&p.job, argc);
    int code = parse_and_run(&p, argc, argv);
    answer_options_release(&p.answer);
    text_job_options_release(&p.job);
    task_file_release(&p.task);
    free(p.logits);
    free(p.lines);
    return code;
}
