/* Datasets are built row by row, whatever the rows come from. */
#include <string.h>
#include "datasets/dataset_internal.h"
#include "tokenizers/details.h"
#include "datasets/rows.h"

enum { DEFAULT_MAX_LENGTH = 512, DEFAULT_TARGET_LENGTH = 128 };

static bool nomem(mc_dataset *d, const char *what)
{
    mc_fail(d->ctx, MC_ERR_NOMEM, "%s: out of memory for %s", d->path, what);
    return false;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Whether the tokenizer can put its special tokens into max_length. */
static bool check_length(mc_dataset *d)
{
    mc_encoding encoding = {0};
    int least = d->kind == MC_TASK_GENERATE ? 2 : 1;
    mc_status status = MC_ERR_ARGUMENT;
    if (d->options.max_length >= least)
        status = mc_tokenizer_encode(d->tok, "", 0, d->paired ? "" : NULL, 0,
                                     (size_t)d->options.max_length, &encoding);
    mc_encoding_release(&encoding);
    if (status == MC_ERR_NOMEM)
        mc_fail(d->ctx, status, "out of memory for the tokenizer");
    else if (status)
        mc_fail(d->ctx, status, "max_length %d: too few tokens for the special ones of %s%s",
                d->options.max_length, d->task ? "task " : "", d->task ? d->task : d->path);
    return status == MC_OK;
}

/* The id of a token that the prompt needs. */
static bool need_token(mc_dataset *d, const char *token, int32_t *id)
{
    *id = mc_tokenizer_token_to_id(d->tok, token);
    if (*id < 0)
        mc_fail(d->ctx, MC_ERR_UNSUPPORTED,
                "%s: the tokenizer has no token %s, with which this family is asked", d->path,
                token);
    return *id >= 0;
}

static bool check_prompt(mc_dataset *d)
{
    mc_prompt_style style = d->options.prompt.style;
    bool generates = d->kind == MC_TASK_GENERATE;
    if ((generates || d->kind == MC_TASK_ANSWER) && style == MC_PROMPT_ENCODER) {
        mc_fail(d->ctx, MC_ERR_UNSUPPORTED, "%s: the model's family is an encoder, which %s",
                d->path, generates ? "generates no text" : "answers no prompts");
        return false;
    }
    if (style == MC_PROMPT_GLM && d->kind == MC_TASK_ANSWER) {
        mc_fail(d->ctx, MC_ERR_UNSUPPORTED, "%s: GLM answers no prompts of benchmarks", d->path);
        return false;
    }
    if (style == MC_PROMPT_GLM && generates && d->options.max_length < 6) {
        mc_fail(d->ctx, MC_ERR_ARGUMENT, "max_length %d: too few tokens for a prompt and an answer",
                d->options.max_length);
        return false;
    }
    if (style == MC_PROMPT_GLM && generates) return need_token(d, "[E]", &d->end_of_piece);
    d->end_of_text = mc_tokenizer_end_of_text_id(d->tok);
    if (generates && style != MC_PROMPT_T5 && d->end_of_text < 0) {
        mc_fail(d->ctx, MC_ERR_UNSUPPORTED, "%s: the tokenizer has no token that ends a text",
                d->path);
        return false;
    }
    if (!generates && d->kind != MC_TASK_ANSWER) return true;
    if (style == MC_PROMPT_CPM1) return need_token(d, "<s>", &d->begin);
    if (style == MC_PROMPT_CPM2) return need_token(d, "<s_0>", &d->sentinel);
    return style != MC_PROMPT_T5 || generates || need_token(d, "<extra_id_0>", &d->sentinel);
}

static bool set_options(mc_dataset *d, const mc_dataset_options *options)
{
    if (options) d->options = *options;
    if (!d->options.max_length) d->options.max_length = DEFAULT_MAX_LENGTH;
    if (!d->options.max_target_length) d->options.max_target_length = DEFAULT_TARGET_LENGTH;
    if (d->images) return true;
    if (d->options.max_target_length > 0) return check_length(d) && check_prompt(d);
    mc_fail(d->ctx, MC_ERR_ARGUMENT, "max_target_length %d: expected at least 1",
            d->options.max_target_length);
    return false;
}

mc_status mc_dataset_set_options(mc_dataset *d, const mc_dataset_options *options)
{
    if (!d) return MC_ERR_ARGUMENT;
    if (mc_failed(d->ctx)) return mc_error_status(d->ctx);
    if (d->references > 1)
        return mc_fail(d->ctx, MC_ERR_STATE, "%s: a loader reads it with the options it has",
                       d->path);
    set_options(d, options);
    return mc_error_status(d->ctx);
}

static bool has_labels(mc_task_kind kind)
{
    return kind != MC_TASK_REGRESS && kind != MC_TASK_GENERATE && kind != MC_TASK_TEXT;
}

static mc_scoring scoring_of(mc_task_kind kind)
{
    if (kind == MC_TASK_GENERATE) return MC_SCORING_TEXTS;
    bool classes = kind == MC_TASK_CLASSIFY || kind == MC_TASK_CHOOSE || kind == MC_TASK_ANSWER;
    return classes ? MC_SCORING_CLASSES : MC_SCORING_NONE;
}

static void release_owner(void *object) { mc_dataset_unref(object); }

mc_dataset *mc_dataset_new(mc_context *ctx, const mc_dataset_plan *plan, const mc_tokenizer *tok,
                           const mc_dataset_options *options)
{
    if (mc_failed(ctx)) return NULL;
    bool read = tok || plan->images;
    if (!read || !plan->name) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: a dataset needs %s",
                plan->name ? plan->name : "(unnamed)", read ? "a name" : "a tokenizer");
        return NULL;
    }
    mc_dataset *d = mc_new_owned(ctx, sizeof *d, "a dataset", release_owner);
    if (!d) return NULL;
    d->ctx = ctx;
    d->references = 1;
    d->tok = tok;
    d->task = plan->task;
    d->kind = plan->kind;
    d->choices = plan->choices ? plan->choices : 1;
    d->images = plan->images;
    d->paired = plan->paired;
    d->balance = plan->balance;
    d->targeted = plan->kind == MC_TASK_GENERATE;
    d->values = plan->kind == MC_TASK_REGRESS;
    d->keep_end = plan->keep_end;
    d->open_end = plan->open_end;
    d->scoring = plan->scoring ? plan->scoring : scoring_of(plan->kind);
    d->path = mc_strdup(plan->name);
    d->store = mc_calloc(1, sizeof *d->store);
    if (d->store) d->store->references = 1;
    if (has_labels(d->kind)) d->labels = mc_calloc(1, sizeof *d->labels);
    bool ok = d->path && d->store && (d->labels || !has_labels(d->kind));
    if (!ok) mc_fail_nomem(ctx, "a dataset");
    if (ok && set_options(d, options)) return d;
    mc_dataset_free(d);
    return NULL;
}

/* ---- labels ---------------------------------------------------------------------------------- */

bool mc_dataset_add_label(mc_dataset *d, const char *name)
{
    mc_label_names *l = d->labels;
    if (l->count == MC_DATASET_MAX_LABELS) {
        mc_fail(d->ctx, MC_ERR_FORMAT,
                "%s: more than %d different labels: is it a number (regression), or a text?",
                d->path, MC_DATASET_MAX_LABELS);
        return false;
    }
    if (!(l->name[l->count] = mc_strdup(name))) return nomem(d, "its labels");
    l->count++;
    return true;
}

static bool set_answer(mc_dataset *d, int k, const char *text, mc_encoding *encoding)
{
    encoding->count = 0;
    mc_status status = mc_tokenizer_append(d->tok, text, strlen(text), encoding);
    if (status == MC_ERR_NOMEM) return nomem(d, "its answers");
    if (status || !encoding->count) {
        mc_fail(d->ctx, MC_ERR_FORMAT, "%s: answer \"%s\" has no tokens", d->path, text);
        return false;
    }
    d->answer[k] = encoding->ids[0];
    for (int i = 0; i < k; i++) {
        if (d->answer[i] != d->answer[k]) continue;
        mc_fail(d->ctx, MC_ERR_FORMAT, "%s: the answers for \"%s\" and \"%s\" begin with one token",
                d->path, d->labels->name[i], d->labels->name[k]);
        return false;
    }
    return true;
}

bool mc_dataset_set_answers(mc_dataset *d, const char *const *texts)
{
    mc_encoding encoding = {0};
    int count = d->labels->count;
    d->answer = mc_calloc((size_t)count, sizeof *d->answer);
    bool ok = d->answer || nomem(d, "its answers");
    for (int k = 0; ok && k < count; k++) ok = set_answer(d, k, texts[k], &encoding);
    ok = ok && (!d->options.vocabulary || mc_tokenizer_check_ids(d->tok, d->answer, (size_t)count,
                                                                 d->options.vocabulary) == MC_OK);
    mc_encoding_release(&encoding);
    return ok;
}

/* ---- rows ------------------------------------------------------------------------------------ */

mc_text *mc_dataset_begin_text(mc_dataset *d)
{
    mc_row_store *s = d->store;
    if (!mc_grow(&s->bound, &s->bound_capacity, s->bounds + 1, sizeof *s->bound)) {
        nomem(d, "its text");
        return NULL;
    }
    s->bound[s->bounds++] = s->text.size;
    return &s->text;
}

bool mc_dataset_end_text(mc_dataset *d)
{
    return mc_text_append(&d->store->text, "", 1) || nomem(d, "its text");
}

bool mc_dataset_add_text(mc_dataset *d, const char *text, size_t size)
{
    mc_text *out = mc_dataset_begin_text(d);
    if (!out) return false;
    return (mc_text_append(out, text, size) || nomem(d, "its text")) && mc_dataset_end_text(d);
}

static bool add_values(mc_dataset *d, const float *values)
{
    mc_row_store *s = d->store;
    for (int i = 0; i < d->values; i++) {
        if (!mc_grow(&s->value, &s->value_capacity, s->values, sizeof *s->value))
            return nomem(d, "its values");
        s->value[s->values++] = values[i];
    }
    return true;
}

bool mc_dataset_end_row(mc_dataset *d, int64_t line, int32_t label, const float *values)
{
    if (d->rows == INT32_MAX) {
        mc_fail(d->ctx, MC_ERR_FORMAT, "%s: more than %d rows", d->path, INT32_MAX);
        return false;
    }
    if (!mc_grow(&d->row, &d->row_capacity, d->rows, sizeof *d->row)) return nomem(d, "its rows");
    if (values && !add_values(d, values)) return false;
    d->store->bound[d->store->bounds] = d->store->text.size;
    int32_t number = (int32_t)d->rows;
    d->row[d->rows++] = (mc_row){.line = line, .source = number, .label = label, .group = number};
    return true;
}

void mc_dataset_set_group(mc_dataset *d, int32_t group) { d->row[d->rows - 1].group = group; }

bool mc_dataset_set_references(mc_dataset *d, const cJSON *texts)
{
    mc_row_store *s = d->store;
    size_t group = (size_t)d->row[d->rows - 1].group;
    if (group < s->rights) return true;
    while (s->rights <= group) {
        if (!mc_grow(&s->right_at, &s->right_capacity, s->rights, sizeof *s->right_at))
            return nomem(d, "its answers");
        s->right_at[s->rights++] = s->right.size;
    }
    for (const cJSON *text = texts->child; text; text = text->next)
        if (!mc_text_append(&s->right, text->valuestring, strlen(text->valuestring) + 1))
            return nomem(d, "its answers");
    return true;
}

/* Repeats the rows of rare classes: each int(largest class / its class) times, in place. */
static bool balance_rows(mc_dataset *d)
{
    size_t count[MC_TASK_LABELS] = {0}, largest = 0, total = 0;
    for (size_t i = 0; i < d->rows; i++) count[d->row[i].label]++;
    for (int k = 0; k < d->labels->count; k++)
        if (count[k] > largest) largest = count[k];
    for (int k = 0; k < d->labels->count; k++)
        total += count[k] ? largest / count[k] * count[k] : 0;
    mc_row *row = total <= INT32_MAX ? mc_malloc(total * sizeof *row) : NULL;
    if (!row) return nomem(d, "its repeated rows");
    size_t n = 0;
    for (size_t i = 0; i < d->rows; i++)
        for (size_t k = largest / count[d->row[i].label]; k > 0; k--) row[n++] = d->row[i];
    mc_free(d->row);
    d->row = row;
    d->rows = d->row_capacity = total;
    return true;
}

bool mc_dataset_finish(mc_dataset *d)
{
    if (mc_failed(d->ctx)) return false;
    if (d->rows) return !d->balance || balance_rows(d);
    mc_fail(d->ctx, MC_ERR_FORMAT, "%s: no rows%s", d->path,
            d->task ? ": expected one JSON object a line" : "");
    return false;
}
