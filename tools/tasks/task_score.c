#include "tools/tasks/task_score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sums: of several labels, of a language model's loss, and of the loss of rows with labels. */
enum { ROWS, ALL_RIGHT, BOTH, LABELLED, ANSWERED };
enum { LOSS, TARGETS };
enum { ROW_LOSS = 5, ROW_LOSSES, NOT_FINITE };

task_results task_results_of(const task_exam *e)
{
    const mc_dataset *dataset = mc_dataloader_dataset(e->loader);
    mc_scoring scoring = mc_dataset_scoring(dataset);
    if (mc_dataset_kind(dataset) != MC_TASK_GENERATE) return TASK_RESULTS_OUTPUTS;
    if (scoring != MC_SCORING_TEXTS) return TASK_RESULTS_CANDIDATES;
    return e->tokenizer ? TASK_RESULTS_TEXTS : TASK_RESULTS_LOSS;
}

const char *task_metrics(const task_exam *e)
{
    mc_dataset *dataset = mc_dataloader_dataset(e->loader);
    mc_task_kind kind = mc_dataset_kind(dataset);
    if (task_results_of(e) == TASK_RESULTS_LOSS) return "loss, perplexity";
    switch (mc_dataset_scoring(dataset)) {
    case MC_SCORING_CLASSES: return "accuracy, f1, val_loss";
    case MC_SCORING_QUESTIONS: return "f1a, em, accuracy, val_loss";
    case MC_SCORING_TEXTS: return "f1, em, rougeL";
    case MC_SCORING_ENTITIES: return "f1, em";
    case MC_SCORING_ENDINGS: return "accuracy, accuracy_norm";
    case MC_SCORING_NONE: break;
    }
    return kind == MC_TASK_REGRESS ? "pearson, spearman, mse" : "f1, em, val_loss";
}

bool task_counts_init(mc_context *ctx, task_counts *c, const task_exam *e)
{
    mc_dataset *dataset = mc_dataloader_dataset(e->loader);
    *c = (task_counts){.ctx = ctx, .dataset = dataset, .results = task_results_of(e)};
    c->accuracy.classes = mc_dataset_labels(dataset);
    if (mc_dataset_scoring(dataset) != MC_SCORING_NONE && c->results != TASK_RESULTS_LOSS)
        c->scorer = mc_scorer_new(dataset);
    return !mc_failed(ctx);
}

void task_counts_release(task_counts *c)
{
    mc_scorer_free(c->scorer);
    free(c->pair);
    *c = (task_counts){0};
}

/* ---- counting -------------------------------------------------------------------------------- */

bool task_counts_check(task_counts *c, const task_exam *e, int64_t row, const char *what,
                       const float *values, int64_t count)
{
    if (mc_all_finite(values, (size_t)count)) return true;
    long long line = mc_dataset_line(c->dataset, row);
    char said[sizeof c->not_finite];
    snprintf(said, sizeof said, "%s%s%lld: the %s are not finite%s",
             mc_dataset_file(c->dataset, row), line ? ":" : ", row ",
             line ? line : (long long)row + 1, what, mc_model_finite_hint(e->model));
    if (!e->during) return !mc_set_error(c->ctx, MC_ERR_STATE, "%s", said);
    if (!c->sum[NOT_FINITE]++) memcpy(c->not_finite, said, sizeof said);
    return true;
}

static void add_class(task_counts *c, int64_t row, const float *outputs)
{
    int labels = mc_dataset_labels(c->dataset), best = 0;
    for (int k = 1; k < labels; k++)
        if (outputs[k] > outputs[best]) best = k;
    mc_scorer_add_class(c->scorer, row, best);
    mc_accuracy_count(&c->accuracy, best, mc_dataset_label(c->dataset, row));
}

static void add_labels(task_counts *c, int64_t row, const float *outputs)
{
    const float *values = mc_dataset_values(c->dataset, row);
    bool all = true;
    for (int k = 0; k < mc_dataset_labels(c->dataset); k++) {
        bool is = values[k] > 0.5f, said = outputs[k] > 0;
        c->sum[LABELLED] += is;
        c->sum[ANSWERED] += said;
        c->sum[BOTH] += is && said;
        all = all && is == said;
    }
    c->sum[ROWS]++;
    c->sum[ALL_RIGHT] += all;
}

/* The loss that training minimises, of one row: minus the log-probability of its class, or the mean
 * binary cross-entropy of its labels. */
static void add_row_loss(task_counts *c, int64_t row, const float *outputs)
{
    int labels = mc_dataset_labels(c->dataset);
    int32_t label = mc_dataset_label(c->dataset, row);
    const float *values = mc_dataset_values(c->dataset, row);
    double most = 0, sum = 0, loss = 0;
    if (mc_dataset_kind(c->dataset) == MC_TASK_MULTI_LABEL) {
        for (int k = 0; k < labels; k++) { /* log(1 + exp(-x)) of labels that are set, else of -x */
            double x = values[k] > 0.5f ? outputs[k] : -outputs[k];
            loss += (fmax(-x, 0) + log1p(exp(-fabs(x)))) / labels;
        }
    } else {
        if (label < 0) return;
        most = outputs[0];
        for (int k = 1; k < labels; k++) most = fmax(most, outputs[k]);
        for (int k = 0; k < labels; k++) sum += exp(outputs[k] - most);
        loss = most + log(sum) - outputs[label];
    }
    c->sum[ROW_LOSS] += loss;
    c->sum[ROW_LOSSES]++;
}

static void add_value(task_counts *c, int64_t row, float output)
{
    if (2 * c->pairs + 2 > c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 256;
        float *grown = realloc(c->pair, capacity * sizeof *grown);
        if (!grown) {
            mc_set_error(c->ctx, MC_ERR_NOMEM, "out of memory for a score");
            return;
        }
        c->pair = grown;
        c->capacity = capacity;
    }
    c->pair[2 * c->pairs] = output;
    c->pair[2 * c->pairs++ + 1] = *mc_dataset_values(c->dataset, row);
}

void task_counts_add_row(task_counts *c, int64_t row, const float *outputs)
{
    mc_task_kind kind = mc_dataset_kind(c->dataset);
    if (kind != MC_TASK_REGRESS) add_row_loss(c, row, outputs);
    switch (kind) {
    case MC_TASK_MULTI_LABEL: add_labels(c, row, outputs); break;
    case MC_TASK_REGRESS: add_value(c, row, outputs[0]); break;
    default:
        if (c->scorer) add_class(c, row, outputs);
    }
}

void task_counts_add_loss(task_counts *c, const float loss[2])
{
    c->sum[LOSS] += loss[0];
    c->sum[TARGETS] += loss[1];
}

/* ---- scoring --------------------------------------------------------------------------------- */

static void add_metric(task_score *score, const char *name, double value)
{
    score->metric[score->metrics++] = (run_metric){name, value};
}

static double share(double part, double whole) { return whole > 0 ? part / whole : (double)NAN; }

static void score_rows(task_counts *c, task_score *score)
{
    mc_score found = {0};
    mc_scorer_finish(c->scorer, &found);
    score->n = found.n;
    for (int i = 0; i < found.metrics; i++)
        add_metric(score, found.metric[i].name, found.metric[i].value);
    if (c->results != TASK_RESULTS_OUTPUTS) return;
    mc_accuracy_gather(c->ctx, &c->accuracy);
    for (int k = 0; k < RUN_EVAL_CLASSES; k++)
        score->recall[k] = mc_accuracy_recall(&c->accuracy, k);
}

static void score_labels(const task_counts *c, task_score *score)
{
    score->n = (int64_t)c->sum[ROWS];
    add_metric(score, "f1", share(2 * c->sum[BOTH], c->sum[LABELLED] + c->sum[ANSWERED]));
    add_metric(score, "em", share(c->sum[ALL_RIGHT], c->sum[ROWS]));
}

static void score_loss(const task_counts *c, task_score *score)
{
    double loss = share(c->sum[LOSS], c->sum[TARGETS]);
    score->n = (int64_t)c->sum[TARGETS];
    add_metric(score, "loss", loss);
    add_metric(score, "perplexity", exp(loss));
}

/* The pairs of all ranks, of which there are *count: 2 floats each, for free(). */
static float *gather_pairs(task_counts *c, int64_t *count)
{
    const float none[2] = {0};
    mc_tensor *mine =
        mc_tensor_from(c->ctx, MC_F32, MC_SHAPE((int64_t)c->pairs, 2), c->pair ? c->pair : none);
    mc_tensor *all = mc_gather_result(c->ctx, mine);
    float *pair = NULL;
    *count = all ? mc_tensor_size(all, 0) : 0;
    if (all && !(pair = malloc(((size_t)*count + 1) * 2 * sizeof *pair)))
        mc_set_error(c->ctx, MC_ERR_NOMEM, "out of memory for a score");
    if (pair) mc_tensor_read_f32(c->ctx, all, pair, 2 * *count);
    mc_tensor_free(all);
    mc_tensor_free(mine);
    return pair;
}

static void score_values(task_counts *c, task_score *score)
{
    int64_t count = 0;
    float *pair = gather_pairs(c, &count);
    if (!pair) return;
    double squares = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = (double)pair[2 * i] - pair[2 * i + 1];
        squares += difference * difference;
    }
    score->n = count;
    add_metric(score, "pearson", mc_pearson(pair, 2, pair + 1, 2, count));
    add_metric(score, "spearman", mc_spearman(c->ctx, pair, 2, pair + 1, 2, count));
    add_metric(score, "mse", share(squares, (double)count));
    free(pair);
}

/* A metric as the higher the better. */
static double goodness_of(const run_metric *metric)
{
    static const char *const errors[] = {"loss", "perplexity", "mse", "val_loss"};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(metric->name, errors[i]) == 0) return -metric->value;
    return metric->value;
}

bool task_score_by(task_score *score, const char *metric)
{
    for (int i = 0; i < score->metrics; i++) {
        if (strcmp(score->metric[i].name, metric) != 0) continue;
        score->goodness = goodness_of(&score->metric[i]);
        return true;
    }
    return false;
}

/* What rows with NaN add to metrics means nothing. */
static void void_metrics(task_score *score)
{
    for (int i = 0; i < score->metrics; i++) score->metric[i].value = NAN;
    for (int i = 0; i < RUN_EVAL_CLASSES; i++) score->recall[i] = NAN;
}

bool task_counts_score(task_counts *c, task_score *score)
{
    mc_task_kind kind = mc_dataset_kind(c->dataset);
    *score = (task_score){0};
    mc_sum_numbers(c->ctx, c->sum, TASK_SUMS);
    if (c->scorer)
        score_rows(c, score);
    else if (kind == MC_TASK_MULTI_LABEL)
        score_labels(c, score);
    else if (kind == MC_TASK_REGRESS)
        score_values(c, score);
    else if (c->results == TASK_RESULTS_LOSS)
        score_loss(c, score);
    if (c->sum[ROW_LOSSES] > 0)
        add_metric(score, "val_loss", c->sum[ROW_LOSS] / c->sum[ROW_LOSSES]);
    score->not_finite = c->sum[NOT_FINITE];
    if (score->not_finite > 0) void_metrics(score);
    int deciding = kind == MC_TASK_REGRESS ? 2 : 0; /* the error of numbers, else the first */
    if (score->metrics && !mc_failed(c->ctx)) task_score_by(score, score->metric[deciding].name);
    return !mc_failed(c->ctx);
}
