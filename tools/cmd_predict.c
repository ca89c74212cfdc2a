/* `modelcenter predict`: what a model says about each row of a table, as JSON Lines or CSV. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/options/answer_options.h"
#include "tools/commands.h"
#include "tools/tasks/predict_rows.h"
#include "tools/files/rank_file.h"
#include "tools/tasks/task_labels.h"
#include "tools/files/text.h"
#include "tools/tasks/text_job.h"
#include "tools/options/weights_option.h"

enum { BLOCK_ROWS = 32, DEFAULT_NEW_TOKENS = 128, USUAL_LENGTH = 512 };

typedef struct predict {
    text_job_options job;
    args_list images; /* --image: files, or with --data a column */
    bool of_images;   /* the model's rows are images */
    int64_t max_target_length, batch_size;
    answer_options answer;
    mc_generate_options how;
    int weights;    /* a mc_weight_format */
    task_file task; /* of the model's folder; kind 0: it has none */
    mc_context *ctx;
    mc_model *model;
    mc_tokenizer *tok;
    mc_text_classifier *classifier; /* but of GENERATE */
    predict_rows rows;
    float *logits;
    char *lines; /* of a part, as they go to the file */
    size_t logit_room, line_room, used;
    double cut;         /* prompts that were */
    const char **stops; /* how.stop_texts with the chat format's end; NULL: as they are */
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

/* The lines of rows, and where they are until they are moved up. */
typedef struct block {
    size_t begin, end; /* rows of the part */
    size_t start, used;
} block;

/* Divides the part, and reserves room for the lines of all; NULL after an error. */
static block *divide(predict *p, const text_part *part, size_t *count)
{
    size_t row = predict_rows_room(&p->rows), room = 0, n = 0;
    block *blocks = calloc(part->count / BLOCK_ROWS + 1, sizeof *blocks);
    if (!blocks) out_of_memory(p);
    for (size_t i = 0; blocks && i < part->count; n++) {
        block *b = &blocks[n];
        b->begin = i;
        b->start = room;
        for (; i < part->count && i < b->begin + BLOCK_ROWS; i++)
            room += row + (part->cells ? part->cells[i].size : 0);
        b->end = i;
        room++; /* a NUL */
    }
    *count = n;
    if (blocks && reserve_lines(p, room)) return blocks;
    free(blocks);
    return NULL;
}

/* The lines of a part, by all threads: each block of rows is written where it has room of its own,
 * and then moved up to the one before. Numbers as text take longer than reading the rows. */
static bool write_rows(predict *p, const text_part *part)
{
    size_t count = 0;
    block *blocks = divide(p, part, &count);
#pragma omp parallel for if (count > 1)
    for (size_t n = 0; n < (blocks ? count : 0); n++) {
        block *b = &blocks[n];
        size_t end = n + 1 < count ? b[1].start : p->line_room;
        text t = text_into(p->lines + b->start, end - b->start);
        for (size_t i = b->begin; i < b->end; i++)
            predict_rows_add(&t, &p->rows, part->cells ? &part->cells[i] : NULL,
                             p->logits + i * (size_t)p->rows.labels);
        b->used = t.used;
    }
    for (size_t n = 0; blocks && n < count; n++) {
        memmove(p->lines + p->used, p->lines + blocks[n].start, blocks[n].used);
        p->used += blocks[n].used;
    }
    free(blocks);
    return blocks;
}

static bool classify_part(predict *p, const text_part *part)
{
    size_t values = part->count * (size_t)p->rows.labels;
    if (values > p->logit_room || !p->logits) {
        float *grown = realloc(p->logits, (values + 1) * sizeof *grown);
        if (!grown) return out_of_memory(p);
        p->logits = grown;
        p->logit_room = values;
    }
    mc_status status =
        p->of_images
            ? mc_classify_images(p->model, part->texts, part->count, p->logits)
            : mc_classify_texts(p->classifier, part->texts, part->pairs, part->count, p->logits);
    return status == MC_OK && write_rows(p, part);
}

/* ---- generated texts ------------------------------------------------------------------------- */

/* The tokens of a prompt at most: of --max-length or what stands for it, and of the positions. */
static int64_t prompt_limit(const predict *p)
{
    mc_model_shape shape = mc_model_get_shape(p->model);
    bool two = shape.kind == MC_MODEL_ENCODER_DECODER;
    int64_t most = p->job.max_length ? p->job.max_length : mc_tokenizer_max_length(p->tok);
    int64_t fits =
        two || !shape.positions ? shape.positions : shape.positions - p->max_target_length;
    if (!most || most > INT_MAX) most = INT_MAX;
    return shape.positions && fits < most ? fits : most;
}

/* Cuts a prompt at `most` tokens: an encoder keeps its beginning, or its end where the tokenizer
 * says so, and the end token; a decoder keeps what the answer comes after. */
static int cut_prompt(const predict *p, int32_t *ids, int count, int64_t most)
{
    bool two = mc_model_get_shape(p->model).kind == MC_MODEL_ENCODER_DECODER;
    if (count <= most || most < 1) return count;
    if (two && !mc_tokenizer_cuts_start(p->tok))
        ids[most - 1] = ids[count - 1];
    else
        memmove(ids, ids + count - most, (size_t)most * sizeof *ids);
    return (int)most;
}

/* A text of a model that was trained on conversations in a format: one that has been rendered, or
 * what a user says. */
static bool encode_chat(predict *p, const mc_text_span *source, bool rendered,
                        mc_text_prompt *prompt)
{
    mc_chat_format format = p->job.chat_format;
    const mc_chat_message message = {"user", source->data};
    if (rendered)
        return mc_rendered_prompt_init(prompt, p->model, p->tok, format, source->data,
                                       source->size) == MC_OK;
    if (strlen(source->data) < source->size) {
        mc_set_error(p->ctx, MC_ERR_FORMAT, "%s:%" PRId64 ": a NUL character in a user's message",
                     source->file ? source->file : "--text", source->line);
        return false;
    }
    return mc_chat_prompt_init(prompt, p->model, p->tok, format, &message, 1) == MC_OK;
}

static bool encode(predict *p, const mc_text_span *source, bool rendered, mc_text_prompt *prompt)
{
    if (p->job.chat_format
            ? !encode_chat(p, source, rendered, prompt)
            : mc_text_prompt_init(prompt, p->model, p->tok, source->data, source->size) != MC_OK)
        return false;
    int whole = prompt->count;
    prompt->count = cut_prompt(p, prompt->ids, whole, prompt_limit(p));
    p->cut += prompt->count < whole;
    return true;
}

static bool add_answer(predict *p, const mc_stop *stop, int row, const mc_text_span *cells,
                       const int32_t *ids, int count)
{
    size_t size = 0;
    char *answer = mc_stop_text(stop, row, ids, count, &size);
    size_t room = 6 * size + PREDICT_ROWS_TEXT + (cells ? cells->size : 0);
    bool good = answer && reserve_lines(p, room);
    if (good) {
        text t = text_into(p->lines + p->used, p->line_room - p->used);
        predict_rows_add_text(&t, &p->rows, cells, answer, size);
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

static bool answer_prompts(predict *p, const prompts *b, int count, const mc_text_span *cells,
                           int64_t first)
{
    mc_stop stop = answer_stop(&p->how, p->tok, b->ends);
    mc_generate_options how = p->how;
    how.stop = mc_stop_reached;
    how.stop_user = &stop;
    how.first_prompt = first;
    mc_generation *out = mc_model_generate(p->model, b->ids, b->lengths, count, &how);
    bool good = out;
    for (int i = 0; good && i < count; i++)
        good = add_answer(p, &stop, i, cells ? &cells[i] : NULL, out->ids[i], out->lengths[i]);
    mc_generation_free(out);
    return good;
}

/* `count` rows of the part, from `at` on. */
static bool generate_batch(predict *p, const text_part *part, size_t at, int count)
{
    size_t n = (size_t)count;
    prompts b = {calloc(n, sizeof *b.made), calloc(n, sizeof *b.ids), calloc(n, sizeof *b.lengths),
                 calloc(n, sizeof *b.ends)};
    bool good = (b.made && b.ids && b.lengths && b.ends) || out_of_memory(p);
    for (int i = 0; good && i < count; i++) {
        good = encode(p, &part->texts[at + (size_t)i], part->chats, &b.made[i]);
        b.ids[i] = b.made[i].ids;
        b.lengths[i] = b.made[i].count;
        b.ends[i] = b.made[i].end;
    }
    good = good && answer_prompts(p, &b, count, part->cells ? part->cells + at : NULL,
                                  part->first + (int64_t)at);
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
        if (!generate_batch(p, part, at, count)) return false;
    }
    return true;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* The columns' names, of CSV. */
static void begin(text_job *job, const text_source *columns, void *user)
{
    predict *p = user;
    char *line = mc_rank(job->ctx) == 0 ? predict_rows_header(&p->rows, columns) : NULL;
    if (!line && mc_rank(job->ctx) == 0) out_of_memory(p);
    rank_file_append(&p->file, line, line ? strlen(line) : 0);
    free(line);
}

static bool take(text_job *job, const text_part *part, void *user)
{
    predict *p = user;
    (void)job;
    p->used = 0;
    bool good = p->rows.kind == MC_TASK_GENERATE ? generate_part(p, part) : classify_part(p, part);
    return good && rank_file_append(&p->file, p->lines, p->used) == MC_OK;
}

/* What the model's rows are, as it was trained, or as transformers reads its config. */
static bool choose_kind(predict *p)
{
    const char *type = mc_model_problem_type(p->model), *task = mc_model_task(p->model);
    bool generates = mc_model_get_shape(p->model).kind != MC_MODEL_ENCODER;
    p->rows.model = p->model;
    p->rows.labels = mc_model_get_heads(p->model).labels;
    p->rows.kind = p->task.kind;
    if (!p->rows.kind && p->rows.labels)
        p->rows.kind = type && strcmp(type, "multi_label_classification") == 0 ? MC_TASK_MULTI_LABEL
                       : type
                           ? (strcmp(type, "regression") == 0 ? MC_TASK_REGRESS : MC_TASK_CLASSIFY)
                           : (p->rows.labels == 1 ? MC_TASK_REGRESS : MC_TASK_CLASSIFY);
    if (!p->rows.kind) p->rows.kind = MC_TASK_GENERATE;
    if (p->rows.kind == MC_TASK_GENERATE ? !generates : !p->rows.labels)
        mc_set_error(p->ctx, MC_ERR_UNSUPPORTED,
                     "%s: a %s without a classifier: expected a model that classifies texts or "
                     "generates them",
                     p->job.from.model, mc_model_family(p->model));
    else if (task && p->rows.labels && mc_task_kind_for(task, 0) == MC_TASK_CHOOSE)
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

/* Whether answers of that length leave positions for a prompt: training cuts rows, and its length
 * may be longer than the model. */
static bool leaves_room(const predict *p, int64_t length)
{
    mc_model_shape shape = mc_model_get_shape(p->model);
    return shape.kind != MC_MODEL_DECODER || !shape.positions || length < shape.positions;
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
    if (!p->job.text && f->kind) p->job.text = p->of_images ? f->image : f->text;
    if (!p->job.pair && f->kind) p->job.pair = f->pair;
    if (f->kind) p->job.messages = f->messages;
    /* of a column that is named the texts are prompts as they are */
    if (f->kind && f->chat_format && !p->job.text &&
        mc_chat_format_choose(p->ctx, p->tok, f->chat_format, &p->job.chat_format))
        return false;
    p->job.tok = p->tok;
    if (!p->job.max_length) p->job.max_length = f->max_length;
    if (!p->max_target_length && leaves_room(p, f->max_target_length))
        p->max_target_length = f->max_target_length;
    if (!p->max_target_length) p->max_target_length = default_new_tokens(p);
    return true;
}

static bool choose_how(predict *p)
{
    if (!answer_options_resolve(&p->answer, p->model, &p->how)) return false;
    p->how.num_return_sequences = 1; /* a row has one answer */
    p->how.max_new_tokens = (int)p->max_target_length;
    if (!p->job.chat_format) return true;
    const char *end = mc_chat_format_end(p->job.chat_format, p->tok);
    return mc_tokenizer_token_to_id(p->tok, end) >= 0 || answer_add_stop(&p->how, end, &p->stops) ||
           out_of_memory(p);
}

/* Whether the rows are what the model reads, images or texts. */
static bool check_input(predict *p)
{
    const char *family = model_find_family(p->ctx, &p->job.from);
    p->of_images = family && mc_family_reads_images(family);
    bool given = p->images.count, texts = p->job.texts.count && !given;
    if (family && p->of_images ? texts : given)
        mc_set_error(p->ctx, MC_ERR_ARGUMENT, "%s: a %s reads %s: expected %s", p->job.from.model,
                     family, p->of_images ? "images" : "texts",
                     p->of_images ? "--image, and not --text" : "--text, and not --image");
    return !mc_failed(p->ctx);
}

static bool open_model(predict *p, run_log *log)
{
    const text_job_options *o = &p->job;
    char folder[4096];
    mc_load_options load = {
        .dtype = text_job_dtype(o), .revision = o->from.revision, .base = o->from.base};
    if (!check_input(p)) return false;
    if (!p->of_images) p->tok = model_open_tokenizer(p->ctx, &o->from);
    p->model = mc_model_from_pretrained_of(p->ctx, o->from.family, o->from.model, &load);
    weights_apply(p->model, p->weights);
    if (!model_find_folder(p->ctx, &o->from, folder, sizeof folder) ||
        task_file_read(p->ctx, folder, &p->task) ||
        !task_settle_names(p->model, folder, &p->task, log) || !choose_kind(p))
        return false;
    if (!fill_options(p)) return false;
    if (p->rows.kind == MC_TASK_GENERATE) return choose_how(p);
    if (answer_option_given(&p->answer)) {
        mc_set_error(p->ctx, MC_ERR_ARGUMENT, "%s: %s: the model does not generate texts",
                     answer_option_given(&p->answer), o->from.model);
        return false;
    }
    if (!predict_rows_name(&p->rows, log)) return out_of_memory(p);
    if (p->of_images) return true;
    p->classifier = mc_text_classifier_new(
        p->model, p->tok, &(mc_text_classifier_options){.max_length = o->max_length});
    return p->classifier;
}

/* Says where a classifier's texts are cut because the model has few positions. */
static void tell_length(const predict *p, run_log *log)
{
    int64_t positions = mc_model_get_shape(p->model).positions;
    if (p->rows.kind != MC_TASK_GENERATE && !p->of_images && !p->job.max_length && positions &&
        positions < USUAL_LENGTH)
        run_log_line(log, "texts are cut at %" PRId64 " tokens, the model's positions", positions);
}

/* Says how many prompts all ranks have cut. */
static bool report_cut(predict *p, run_log *log)
{
    double sum = ranks_sum(p->ctx, p->cut);
    if (sum > 0)
        run_log_line(log,
                     "%.0f prompt%s cut at %" PRId64
                     " tokens (--max-length, without it what the model was trained with or its "
                     "tokenizer's model_max_length; or the positions that answers of %d tokens "
                     "leave)",
                     sum, sum > 1 ? "s were" : " was", prompt_limit(p), (int)p->max_target_length);
    return !mc_failed(p->ctx);
}

static bool work(text_job *job, void *user)
{
    predict *p = user;
    p->ctx = job->ctx;
    bool good = open_model(p, &job->log);
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
    "OUTPUT.jsonl has an object for each row, in order; it appears when it is complete:\n\n"
    "  {\"label\": NAME, \"probability\": P, \"probabilities\": {NAME: P, ...}}\n"
    "  {\"labels\": [NAME, ...], \"probabilities\": {NAME: P, ...}}   those above 0.5 of several\n"
    "  {\"value\": X}                                              of a regression\n"
    "  {\"values\": {NAME: X, ...}}                                of one with several outputs\n"
    "  {\"text\": TEXT}                                            of a generating model\n\n"
    "OUTPUT.csv has the input's columns, followed by the answer's: label, probability and\n"
    "probabilities.NAME; labels, separated by |; value or values.NAME; text. If the input has a\n"
    "column of that name, the new one begins with predicted_. If two labels have the same name,\n"
    "the second is NAME#2.\n\n"
    "Texts come from --data, from --text, or from a pipe. A pipe is read as JSON if its first\n"
    "line is an object or begins a list of objects, as a table if it names the text column, else\n"
    "as one text per line. The last line on stdout (on stderr if OUTPUT is stdout) is\n"
    "`result rows=... seconds=... rows_per_s=...`.\n\n"
    "  modelcenter predict --model stars-bert --data reviews.csv --output stars.jsonl\n"
    "  modelcenter predict --model stars-bert --text 'What a film!'\n"
    "  modelcenter predict --model names-vit --image cat.jpg\n"
    "  tail -n +2 reviews.tsv | cut -f 3 | modelcenter predict --model stars-bert > stars.jsonl\n";

/* --image stands for --text: files, or the column of a table. */
static int take_images(const args_spec *spec, predict *p)
{
    text_job_options *o = &p->job;
    if (!p->images.count) return EXIT_OK;
    if (o->texts.count || o->text || o->pairs.count || o->pair)
        return args_error(spec, "--image: expected no texts beside it");
    if (o->files.count && p->images.count > 1)
        return args_error(spec, "--image: expected one column of --data");
    if (o->files.count) {
        o->text = p->images.items[0];
        o->column_given = true;
    } else {
        for (int i = 0; i < p->images.count; i++) o->texts.items[i] = p->images.items[i];
        o->texts.count = p->images.count;
    }
    return EXIT_OK;
}

static int parse_and_run(predict *p, int argc, char **argv)
{
    args_table table = {.count = 0};
    const int ways = MODEL_WAY_ADAPTER | MODEL_WAY_OLD_MODEL | MODEL_WAY_TOKENIZER;
    text_job_add_rows(&table, &p->job, ways);
    text_job_add_pair_rows(&table, &p->job);
    ARGS_ADD(
        &table,
        {ARGS_PATHS("image", &p->images,
                    "for models of images, in place of --text: a PNG or JPEG file, which may be "
                    "repeated; with --data the column of their paths, relative to its folder"),
         .default_text = ""},
        {ARGS_HEADING("Generated texts")},
        {ARGS_INT("max-target-length", &p->max_target_length, 0, 1 << 20,
                  "longest text, in tokens"),
         .default_text =
             "that the model was trained with, else 128, or half of a decoder's positions",
         .known_as = "max-new-tokens"},
        {ARGS_INT("batch-size", &p->batch_size, 1, 1 << 20, "rows at once, per rank")},
        WEIGHTS_ROW(&p->weights));
    answer_add_rows(&table, &p->answer);
    text_job_add_machine_rows(&table, &p->job);
    const args_spec spec = {
        .command = "predict",
        .summary = "Writes classes, numbers or texts for texts, images or rows of a table.",
        .details = details,
        .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    code = model_check(&spec, &p->job.from, ways, false);
    if (code == EXIT_OK) code = take_images(&spec, p);
    if (code != EXIT_OK) return code;
    code = text_job_check(&spec, &p->job);
    if (code == EXIT_OK) code = answer_options_check(&spec, &p->answer);
    if (code != EXIT_OK) return code;
    output_form form;
    if (!output_choose_form(&spec, p->job.output, OUTPUT_JSONL | OUTPUT_CSV, &form, &code))
        return code;
    bool csv = p->rows.csv = form == OUTPUT_CSV;
    text_job job = {.o = &p->job, .name = "predict", .cells = csv, .begin = csv ? begin : NULL};
    return text_job_start(&job, work, p);
}

int cmd_predict(int argc, char **argv)
{
    predict p = {.batch_size = 32, .file = {.aside = {.fd = -1}}};
    answer_options_init(&p.answer, argc);
    text_job_options_init(&p.job, argc);
    p.images = args_list_new(argc);
    int code = parse_and_run(&p, argc, argv);
    answer_options_release(&p.answer);
    text_job_options_release(&p.job);
    free(p.images.items);
    task_file_release(&p.task);
    predict_rows_release(&p.rows);
    free(p.logits);
    free(p.lines);
    free(p.stops);
    return code;
}
