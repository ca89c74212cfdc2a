#include "datasets/scorer.h"

#include <math.h>
#include <string.h>
#include "core/base/context_internal.h"
#include "datasets/dataset_internal.h"
#include "datasets/metrics.h"
#include "datasets/question_metrics.h"
#include "datasets/text_metrics.h"
#include "datasets/rows.h"

enum { COLUMNS = 3 }; /* numbers of a row, at most */

struct mc_scorer {
    mc_owned owned;
    mc_dataset *dataset;
    mc_scoring scoring;
    int64_t rows;
    float *value; /* (COLUMNS, rows): results of this rank, 0 elsewhere */
};

static void release(void *object)
{
    mc_scorer *s = object;
    mc_dataset_unref(s->dataset);
    mc_free(s->value);
    mc_free(s);
}

mc_scorer *mc_scorer_new(mc_dataset *dataset)
{
    if (!dataset || mc_failed(dataset->ctx)) return NULL;
    mc_scorer *s = mc_new_owned(dataset->ctx, sizeof *s, "a scorer", release);
    if (!s) return NULL;
    mc_dataset_ref(dataset);
    s->dataset = dataset;
    s->scoring = mc_dataset_scoring(dataset);
    s->rows = mc_dataset_rows(dataset);
    if (s->scoring == MC_SCORING_NONE)
        mc_fail(dataset->ctx, MC_ERR_UNSUPPORTED, "%s: no scorer for rows of this kind",
                dataset->path);
    s->value = mc_calloc((size_t)s->rows * COLUMNS, sizeof *s->value);
    if (!s->value) mc_fail_nomem(dataset->ctx, "the results of rows");
    if (!mc_failed(dataset->ctx)) return s;
    mc_scorer_free(s);
    return NULL;
}

void mc_scorer_free(mc_scorer *s)
{
    if (!s) return;
    mc_disown(&s->owned);
    release(s);
}

/* ---- results of rows ------------------------------------------------------------------------- */

static float *column(mc_scorer *s, int i) { return s->value + i * s->rows; }

/* Whether a result of `what` may be added to the row. */
static bool check(mc_scorer *s, int64_t row, bool fits, const char *what)
{
    if (!s || mc_failed(s->dataset->ctx)) return false;
    if (!fits)
        mc_fail(s->dataset->ctx, MC_ERR_ARGUMENT, "%s: its rows are not scored by %s",
                s->dataset->path, what);
    else if (row < 0 || row >= s->rows)
        mc_fail(s->dataset->ctx, MC_ERR_ARGUMENT, "%s: result of row %lld, expected 0 to %lld",
                s->dataset->path, (long long)row, (long long)s->rows - 1);
    else
        return true;
    return false;
}

/* What an adding function returns after `check`. */
static mc_status status_of(const mc_scorer *s)
{
    return s ? mc_error_status(s->dataset->ctx) : MC_ERR_ARGUMENT;
}

static bool is_class(const mc_scorer *s)
{
    return s && (s->scoring == MC_SCORING_CLASSES || s->scoring == MC_SCORING_QUESTIONS);
}

static bool is_candidate(const mc_scorer *s)
{
    return s && (s->scoring == MC_SCORING_ENTITIES || s->scoring == MC_SCORING_ENDINGS);
}

mc_status mc_scorer_add_class(mc_scorer *s, int64_t row, int32_t prediction)
{
    if (!check(s, row, is_class(s), "classes")) return status_of(s);
    column(s, 0)[row] = (float)prediction;
    return MC_OK;
}

mc_status mc_scorer_add_candidate(mc_scorer *s, int64_t row, double log_probability, int64_t tokens)
{
    if (!check(s, row, is_candidate(s) && tokens > 0, "candidates")) return status_of(s);
    column(s, 0)[row] = (float)log_probability;
    column(s, 1)[row] = (float)(log_probability / (double)tokens);
    return MC_OK;
}

/* What T5 writes into its blank: the text after <extra_id_0> and in front of <extra_id_1>. */
static mc_text_span inside_blank(const char *text, size_t size)
{
    static const char begin[] = "<extra_id_0>", end[] = "<extra_id_1>";
    const char *start = memmem(text, size, begin, sizeof begin - 1);
    if (start) start += sizeof begin - 1;
    if (!start) start = text;
    const char *stop = memmem(start, size - (size_t)(start - text), end, sizeof end - 1);
    return (mc_text_span){start, stop ? (size_t)(stop - start) : size - (size_t)(start - text)};
}

/* The best of all references. */
static mc_status score_text(const mc_dataset *d, int64_t row, const char *data, size_t length,
                            mc_text_score *answer, double *rouge)
{
    const char *reference;
    mc_text_span text = inside_blank(data, length);
    *answer = (mc_text_score){0};
    *rouge = 0;
    for (int i = 0; (reference = mc_dataset_reference(d, row, i)); i++) {
        mc_text_span span = {reference, strlen(reference)};
        mc_text_score one;
        mc_rouge_score words;
        mc_status status = mc_answer_score(text.data, text.size, &span, 1, &one);
        if (!status) status = mc_rouge_l(text.data, text.size, span.data, span.size, &words);
        if (status) return status;
        answer->exact = fmax(answer->exact, one.exact);
        answer->f1 = fmax(answer->f1, one.f1);
        *rouge = fmax(*rouge, words.f1);
    }
    return MC_OK;
}

mc_status mc_scorer_add_text(mc_scorer *s, int64_t row, const char *text, size_t size)
{
    mc_text_score answer;
    double rouge;
    if (!check(s, row, s && s->scoring == MC_SCORING_TEXTS, "texts")) return status_of(s);
    if (score_text(s->dataset, row, text, size, &answer, &rouge))
        return mc_fail_nomem(s->dataset->ctx, "the scores of a text");
    column(s, 0)[row] = (float)answer.f1;
    column(s, 1)[row] = (float)answer.exact;
    column(s, 2)[row] = (float)rouge;
    return MC_OK;
}

/* ---- scores ---------------------------------------------------------------------------------- */

static void add_metric(mc_score *score, const char *name, double value)
{
    score->metric[score->metrics++] = (mc_metric){name, score->n ? value : NAN};
}

/* The mean of F1 over the classes that occur, of more classes than mc_accuracy counts. */
static double mean_f1(mc_scorer *s, int classes)
{
    enum { LABELLED, PREDICTED, BOTH, NUMBERS };
    int64_t *n = mc_calloc((size_t)classes * NUMBERS, sizeof *n);
    double total = 0;
    int found = 0;
    if (!n) mc_fail_nomem(s->dataset->ctx, "a score");
    for (int64_t i = 0; n && i < s->rows; i++) {
        int32_t label = mc_dataset_label(s->dataset, i), prediction = (int32_t)column(s, 0)[i];
        if (label < 0) continue;
        n[label * NUMBERS + LABELLED]++;
        if (prediction >= 0 && prediction < classes) n[prediction * NUMBERS + PREDICTED]++;
        n[label * NUMBERS + BOTH] += label == prediction;
    }
    for (int k = 0; n && k < classes; k++) {
        const int64_t *of = n + k * NUMBERS;
        if (of[LABELLED] + of[PREDICTED] == 0) continue;
        total += 2.0 * (double)of[BOTH] / (double)(of[LABELLED] + of[PREDICTED]);
        found++;
    }
    mc_free(n);
    return found ? total / found : (double)NAN;
}

static void finish_classes(mc_scorer *s, mc_score *out)
{
    mc_accuracy acc = {.classes = mc_dataset_labels(s->dataset)};
    for (int64_t i = 0; i < s->rows; i++)
        mc_accuracy_count(&acc, (int64_t)column(s, 0)[i], mc_dataset_label(s->dataset, i));
    out->n = acc.count;
    add_metric(out, "accuracy", mc_accuracy_share(&acc));
    bool many = acc.classes > MC_ACCURACY_CLASSES;
    add_metric(out, "f1", many ? mean_f1(s, acc.classes) : mc_accuracy_f1(&acc));
}

static void finish_texts(mc_scorer *s, mc_score *out)
{
    static const char *const names[COLUMNS] = {"f1", "em", "rougeL"};
    double sum[COLUMNS] = {0};
    for (int64_t i = 0; i < s->rows; i++) {
        if (!mc_dataset_reference(s->dataset, i, 0)) continue;
        out->n++;
        for (int k = 0; k < COLUMNS; k++) sum[k] += column(s, k)[i];
    }
    for (int k = 0; k < COLUMNS; k++) add_metric(out, names[k], sum[k] / (double)out->n);
}

/* What questions are, and room for the best row of each. */
typedef struct questions {
    int64_t *question, *best; /* (rows) */
    int32_t *label;           /* (rows) */
    int64_t count;            /* of `best` */
} questions;

static bool list_questions(mc_scorer *s, questions *q)
{
    q->question = mc_malloc((size_t)s->rows * sizeof *q->question);
    q->best = mc_malloc((size_t)s->rows * sizeof *q->best);
    q->label = mc_malloc((size_t)s->rows * sizeof *q->label);
    if (!q->question || !q->best || !q->label) {
        mc_fail_nomem(s->dataset->ctx, "the questions of a score");
        return false;
    }
    for (int64_t i = 0; i < s->rows; i++) {
        q->question[i] = mc_dataset_group(s->dataset, i);
        q->label[i] = mc_dataset_label(s->dataset, i);
    }
    return true;
}

static void finish_questions(mc_scorer *s, questions *q, mc_score *out)
{
    mc_question_score score = mc_score_questions(q->question, q->label, column(s, 0), s->rows);
    int64_t right = 0;
    for (int64_t i = 0; i < s->rows; i++)
        right += q->label[i] >= 0 && (int32_t)column(s, 0)[i] == q->label[i];
    out->n = score.questions;
    add_metric(out, "f1a", score.f1a);
    add_metric(out, "em", score.em);
    add_metric(out, "accuracy", (double)right / (double)score.rows);
}

/* The chosen entity's text is the row's target. */
static void finish_entities(mc_scorer *s, questions *q, mc_score *out)
{
    double f1 = 0, exact = 0, rouge;
    q->count = mc_best_rows(q->question, column(s, 0), s->rows, q->best);
    for (int64_t i = 0; i < q->count; i++) {
        mc_text_score one;
        const char *entity = mc_dataset_target(s->dataset, q->best[i]);
        if (!mc_dataset_reference(s->dataset, q->best[i], 0)) continue;
        if (score_text(s->dataset, q->best[i], entity, strlen(entity), &one, &rouge)) {
            mc_fail_nomem(s->dataset->ctx, "the scores of a text");
            return;
        }
        out->n++;
        f1 += one.f1;
        exact += one.exact;
    }
    add_metric(out, "f1", f1 / (double)out->n);
    add_metric(out, "em", exact / (double)out->n);
}

/* The share of questions whose best row by a column is labelled 1. */
static double right_share(mc_scorer *s, questions *q, int by, int64_t *n)
{
    int64_t right = 0;
    *n = 0;
    q->count = mc_best_rows(q->question, column(s, by), s->rows, q->best);
    for (int64_t i = 0; i < q->count; i++) {
        *n += q->label[q->best[i]] >= 0;
        right += q->label[q->best[i]] == 1;
    }
    return (double)right / (double)*n;
}

static void finish_endings(mc_scorer *s, questions *q, mc_score *out)
{
    double share = right_share(s, q, 0, &out->n);
    add_metric(out, "accuracy", share);
    add_metric(out, "accuracy_norm", right_share(s, q, 1, &out->n));
}

mc_status mc_scorer_finish(mc_scorer *s, mc_score *out)
{
    if (!s || !mc_given_as(s->dataset->ctx, out, "score")) return MC_ERR_ARGUMENT;
    mc_context *ctx = s->dataset->ctx;
    mc_score score = {0};
    questions q = {0};
    if (mc_merge_results(ctx, s->value, s->rows * COLUMNS)) return mc_error_status(ctx);
    switch (s->scoring) {
    case MC_SCORING_NONE: break;
    case MC_SCORING_CLASSES: finish_classes(s, &score); break;
    case MC_SCORING_TEXTS: finish_texts(s, &score); break;
    case MC_SCORING_QUESTIONS:
        if (list_questions(s, &q)) finish_questions(s, &q, &score);
        break;
    case MC_SCORING_ENTITIES:
        if (list_questions(s, &q)) finish_entities(s, &q, &score);
        break;
    case MC_SCORING_ENDINGS:
        if (list_questions(s, &q)) finish_endings(s, &q, &score);
        break;
    }
    mc_free(q.question);
    mc_free(q.best);
    mc_free(q.label);
    if (!mc_failed(ctx)) *out = score;
    return mc_error_status(ctx);
}

double mc_score_value(const mc_score *score, const char *name)
{
    for (int i = 0; score && name && i < score->metrics; i++)
        if (strcmp(score->metric[i].name, name) == 0) return score->metric[i].value;
    return NAN;
}
