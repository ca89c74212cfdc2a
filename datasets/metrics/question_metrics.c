#include "datasets/question_metrics.h"

#include <math.h>
#include "core/dist/ranks_internal.h"

mc_status mc_merge_results(mc_context *ctx, float *values, int64_t count)
{
    if (mc_failed(ctx) || count <= 0 || !mc_given(ctx, values)) return mc_error_status(ctx);
    return mc_ranks_reduce(ctx, &ctx->mesh.data, values, count, MC_F32, MC_REDUCE_SUM);
}

/* The first row of the question after that of row i. */
static int64_t next_question(const int64_t *question, int64_t i, int64_t rows)
{
    int64_t end = i + 1;
    while (end < rows && question[end] == question[i]) end++;
    return end;
}

mc_question_score mc_score_questions(const int64_t *question, const int32_t *labels,
                                     const float *predictions, int64_t rows)
{
    mc_question_score score = {0};
    int64_t labelled = 0, predicted = 0, right = 0, whole = 0;
    if (!question || !labels || !predictions) rows = 0;
    for (int64_t i = 0, end; i < rows; i = end) {
        int64_t counted = 0, correct = 0;
        end = next_question(question, i, rows);
        for (int64_t k = i; k < end; k++) {
            if (labels[k] < 0) continue;
            bool label = labels[k] == 1, prediction = predictions[k] > 0.5F;
            counted++;
            correct += label == prediction;
            labelled += label;
            predicted += prediction;
            right += label && prediction;
        }
        score.rows += counted;
        score.questions += counted > 0;
        whole += counted > 0 && correct == counted;
    }
    bool any = labelled + predicted > 0;
    score.f1a = any ? 2 * (double)right / (double)(labelled + predicted) : 0;
    score.em = score.questions ? (double)whole / (double)score.questions : NAN;
    if (!score.rows) score.f1a = NAN;
    return score;
}

int64_t mc_best_rows(const int64_t *question, const float *score, int64_t rows, int64_t *best)
{
    int64_t questions = 0;
    if (!question || !score || !best) return 0;
    for (int64_t i = 0, end; i < rows; i = end) {
        int64_t winner = i;
        end = next_question(question, i, rows);
        for (int64_t k = i + 1; k < end; k++)
            if (score[k] > score[winner] || (isnan(score[winner]) && !isnan(score[k]))) winner = k;
        best[questions++] = winner;
    }
    return questions;
}
