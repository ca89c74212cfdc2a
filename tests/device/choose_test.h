/* What the tests of choose_tokens share: calls with their state, and what they have to give, by
 * plain loops in double. */
#ifndef MC_TESTS_CHOOSE_TEST_H
#define MC_TESTS_CHOOSE_TEST_H

#include "tests/device/kernel_test.h"

enum { CHOOSE_ROWS = 4, CHOOSE_EXTRA = 2, CHOOSE_KEPT = 3, CHOOSE_MOST = 6 };
enum { CHOOSE_STRIDE = CHOOSE_ROWS + CHOOSE_EXTRA, CHOOSE_ANSWERS = 7 };

typedef struct choose_case {
    int vocab;
    mc_sampling how;
} choose_case;

static const choose_case choose_cases[] = {
    {1, {false, 1, 1, 0, 1, 0}},         {50, {false, 1, 1, 0, 1, 0}},
    {5003, {false, 1, 1, 0, 1.7f, 0}},   {5003, {true, 1, 1, 0, 1, 3}},
    {5003, {true, 0.7f, 1, 0, 0.6f, 4}}, {333, {true, 1.3f, 1, 5, 1, 5}},
    {333, {true, 1, 0.6f, 0, 1, 6}},     {2000, {true, 0.9f, 0.8f, 40, 1.2f, 7}},
    {333, {true, 1, 1e-6f, 0, 1, 8}},    {333, {true, 1, 0.9f, 1000, 1, 9}},
};
enum { CHOOSE_CASES = sizeof choose_cases / sizeof *choose_cases };

/* A call's memory on the host. */
typedef struct choose_memory {
    int32_t state[MC_ROW_FIELDS][CHOOSE_STRIDE];
    mc_chosen chosen[CHOOSE_KEPT][CHOOSE_ANSWERS];
    int32_t eos[CHOOSE_ANSWERS][2];
    mc_answer_rules rules[CHOOSE_ANSWERS];
    uint32_t *seen;
    size_t seen_bytes;
} choose_memory;

static const int32_t choose_answer[CHOOSE_STRIDE] = {5, 0, 3, 2, 1, 4};
static const int32_t choose_step[CHOOSE_ROWS] = {0, 4, 5, 2};

/* Row 3 has ended; the step of row 2 is its last. Of some tokens there is no doubt. */
static inline choose_memory choose_begin(const choose_case *c)
{
    choose_memory m = {.seen = NULL};
    for (int i = 0; i < CHOOSE_ANSWERS; i++) {
        m.eos[i][0] = c->vocab / 2;
        m.eos[i][1] = -7;
        m.rules[i] =
            (mc_answer_rules){.how = c->how, .place = 100 + i, .eos_count = 2, .most = CHOOSE_MOST};
    }
    m.seen_bytes = (size_t)(CHOOSE_ANSWERS * mc_seen_words(c->vocab)) * sizeof *m.seen;
    m.seen = calloc(1, m.seen_bytes);
    assert_non_null(m.seen);
    for (int i = 0; i < CHOOSE_ANSWERS * c->vocab / 3; i++) {
        int32_t answer = (int32_t)(random_bits() % CHOOSE_ANSWERS),
                token = (int32_t)(random_bits() % (uint32_t)c->vocab);
        mc_see(m.seen + answer * mc_seen_words(c->vocab), token);
    }
    for (int f = 0; f < MC_ROW_FIELDS; f++)
        for (int r = 0; r < CHOOSE_STRIDE; r++) m.state[f][r] = 1000 * f + r;
    for (int r = 0; r < CHOOSE_ROWS; r++) {
        m.state[MC_ROW_ANSWER][r] = choose_answer[r];
        m.state[MC_ROW_STEP][r] = choose_step[r];
        m.state[MC_ROW_TICK][r] = choose_step[r] + 30;
        m.state[MC_ROW_ENDED][r] = r == 3;
    }
    for (int i = 0; i < CHOOSE_KEPT * CHOOSE_ANSWERS; i++)
        m.chosen[i / CHOOSE_ANSWERS][i % CHOOSE_ANSWERS] = (mc_chosen){-99, 99};
    return m;
}

static inline mc_choose_call choose_call_of(const choose_case *c, choose_memory *m)
{
    return (mc_choose_call){.rows = CHOOSE_ROWS,
                            .vocab = c->vocab,
                            .state = m->state[0],
                            .stride = CHOOSE_STRIDE,
                            .seen = c->how.repetition_penalty != 1 ? m->seen : NULL,
                            .rules = m->rules,
                            .eos = m->eos[0],
                            .eos_stride = 2,
                            .chosen = m->chosen[0],
                            .kept = CHOOSE_KEPT,
                            .answers = CHOOSE_ANSWERS};
}

/* ---- what has to come of it ------------------------------------------------------------------ */

/* Probabilities (vocab) of the tokens of a row; 0: filtered out. */
static inline void choose_probabilities(const choose_case *c, const choose_memory *m,
                                        const matrix *logits, int row, double *p)
{
    int n = c->vocab;
    const mc_sampling *how = &c->how;
    const uint32_t *seen = m->seen + choose_answer[row] * mc_seen_words(n);
    double *x = doubles(n), largest = -INFINITY, total = 0, all = 0;
    for (int i = 0; i < n; i++) {
        /* in f32, for tokens must stay equal that are */
        float v = (float)logits->v[(int64_t)row * n + i];
        if (how->repetition_penalty != 1 && seen[i / 32] >> i % 32 & 1)
            v = v < 0 ? v * how->repetition_penalty : v / how->repetition_penalty;
        x[i] = (double)(how->sample ? v / how->temperature : v);
        largest = fmax(largest, x[i]);
    }
    for (int i = 0; i < n; i++) {
        int larger = 0;
        for (int j = 0; j < n && how->sample && how->top_k; j++) larger += x[j] > x[i];
        p[i] = how->sample && how->top_k && larger >= how->top_k ? 0 : exp(x[i] - largest);
        total += p[i];
    }
    double *kept = doubles(n);
    for (int i = 0; i < n; i++) {
        double below = 0; /* what is less probable, and i itself */
        bool top = true;
        for (int j = 0; j < n && how->sample && how->top_p < 1; j++) {
            bool less = x[j] < x[i] || (x[j] == x[i] && j >= i);
            below += less ? p[j] : 0;
            top = top && less;
        }
        bool goes =
            how->sample && how->top_p < 1 && !top && below <= (1 - (double)how->top_p) * total;
        all += kept[i] = goes ? 0 : p[i];
    }
    for (int i = 0; i < n; i++) p[i] = kept[i] / all;
    free(kept);
    free(x);
}

/* A token that is right, or within `slack` of cumulative probability of it. */
static inline void choose_check_token(const choose_case *c, int row, const double *p, mc_chosen got,
                                      double slack, const char *what)
{
    double before = 0, most = 0,
           u = mc_uniform(c->how.seed, (uint64_t)(100 + choose_answer[row]),
                          (uint64_t)choose_step[row]);
    if (got.token < 0 || got.token >= c->vocab || !(p[got.token] > 0))
        fail_msg("%s: row %d got token %d", what, row, got.token);
    for (int i = 0; i < got.token; i++) before += p[i];
    for (int i = 0; i < c->vocab; i++) most = fmax(most, p[i]);
    bool right = c->how.sample ? u > before - slack && u < before + p[got.token] + slack
                               : p[got.token] == most;
    for (int i = 0; i < got.token && !c->how.sample; i++) right = right && p[i] < most;
    if (!right || fabs((double)got.log_probability - log(p[got.token])) > 2e-5)
        fail_msg("%s, vocabulary %d: row %d got token %d of %g, log-probability %g", what, c->vocab,
                 row, got.token, p[got.token], (double)got.log_probability);
}

/* All that a call has left, against what was there before. */
static inline void choose_check(const choose_case *c, const choose_memory *before,
                                const choose_memory *after, const matrix *logits, double slack,
                                const char *what)
{
    double *p = doubles(c->vocab);
    mc_chosen expected[CHOOSE_KEPT][CHOOSE_ANSWERS];
    int32_t state[MC_ROW_FIELDS][CHOOSE_STRIDE];
    uint32_t *seen = malloc(before->seen_bytes);
    assert_non_null(seen);
    memcpy(expected, before->chosen, sizeof expected);
    memcpy(state, before->state, sizeof state);
    memcpy(seen, before->seen, before->seen_bytes);
    for (int r = 0; r < CHOOSE_ROWS; r++) {
        int slot = (choose_step[r] + 30) % CHOOSE_KEPT, answer = choose_answer[r];
        mc_chosen got = after->chosen[slot][answer];
        state[MC_ROW_TICK][r]++;
        state[MC_ROW_STEP][r] += r < 3;
        if (r < 3) {
            choose_probabilities(c, before, logits, r, p);
            choose_check_token(c, r, p, got, slack, what);
        } else {
            assert_int_equal(got.token, MC_CHOSEN_NOTHING);
        }
        expected[slot][answer] = got;
        if (r == 3) continue;
        if (c->how.repetition_penalty != 1)
            mc_see(seen + answer * mc_seen_words(c->vocab), got.token);
        state[MC_ROW_ENDED][r] = r == 2 || got.token == before->eos[answer][0];
        if (state[MC_ROW_ENDED][r]) {
            state[MC_ROW_LENGTH][r] = state[MC_ROW_MEMORY_LENGTH][r] = 0;
            continue;
        }
        state[MC_ROW_TOKEN][r] = got.token;
        state[MC_ROW_POSITION][r]++;
        state[MC_ROW_LENGTH][r]++;
    }
    assert_memory_equal(after->chosen, expected, sizeof expected);
    assert_memory_equal(after->state, state, sizeof state);
    assert_memory_equal(after->seen, seen, before->seen_bytes);
    free(seen);
    free(p);
}

/* ---- the best of each row -------------------------------------------------------------------- */

static const int best_counts[] = {1, 8, 60};

/* With a penalty the second row is not looked at. NULL: without. */
static inline const float *best_penalties(const choose_case *c, bool penalised, float *penalty)
{
    for (int i = 0; i < CHOOSE_ROWS; i++)
        penalty[i] = penalised && i == 1 ? 0 : c->how.repetition_penalty;
    return penalised ? penalty : NULL;
}

static inline void best_blank(mc_chosen *best)
{
    for (int i = 0; i < CHOOSE_ROWS * 60; i++) best[i] = (mc_chosen){-9, 0};
}

/* The candidates of a call, by sorting in double; log-probabilities within `slack`. */
static inline void best_check(const mc_best_call *c, const float *penalty, const uint32_t *seen,
                              const mc_chosen *best, const matrix *logits, double slack,
                              const char *what)
{
    int n = (int)c->vocab;
    double *x = doubles(n);
    for (int64_t row = 0; row < c->rows; row++) {
        const double *v = logits->v + row * n;
        double largest = -INFINITY, sum = 0;
        for (int i = 0; i < n; i++) largest = fmax(largest, v[i]);
        for (int i = 0; i < n; i++) sum += exp(v[i] - largest);
        for (int i = 0; i < n; i++) {
            x[i] = v[i] - largest - log(sum);
            if (seen && seen[row * mc_seen_words(n) + i / 32] >> i % 32 & 1)
                x[i] *= (double)penalty[row]; /* none is above 0 */
        }
        for (int k = 0; k < c->count; k++) {
            mc_chosen got = best[row * c->count + k];
            if (c->penalty && penalty[row] == 0) {
                assert_int_equal(got.token, -9);
                continue;
            }
            if (k >= n) {
                assert_int_equal(got.token, MC_CHOSEN_NOTHING);
                continue;
            }
            double most = -INFINITY;
            for (int i = 0; i < n; i++) most = fmax(most, x[i]);
            if (got.token < 0 || got.token >= n || x[got.token] < most - slack ||
                fabs((double)got.log_probability - x[got.token]) > slack)
                fail_msg("%s, vocabulary %d: candidate %d of row %d is %d, %g: expected %g", what,
                         n, k, (int)row, got.token, (double)got.log_probability, most);
            for (int i = 0; i < got.token; i++) /* of logits that are the same, the first */
                if (x[i] == x[got.token] && v[i] == v[got.token])
                    fail_msg("%s: candidate %d of row %d is %d before %d", what, k, (int)row,
                             got.token, i);
            x[got.token] = -INFINITY;
        }
    }
    free(x);
}

/* Logits with equals among them, also at the borders, and one that the second row ends with. */
static inline matrix choose_logits(const choose_case *c, mc_dtype dtype)
{
    matrix x = matrix_new(dtype, CHOOSE_ROWS, c->vocab, 3, -6, 6);
    for (int64_t i = 0; i < CHOOSE_ROWS * c->vocab; i++)
        if (dtype == MC_F32 && i % 2) x.v[i] = round(x.v[i]);
    x.v[c->vocab + c->vocab / 2] = 60;
    matrix_reset(&x);
    return x;
}

#endif
