/* Attention over packed sequences. One task is one head of one sequence (in backward the heads that
 * share keys), on any thread, so results do not depend on the schedule. If the gradient of a bias
 * is summed over sequences, one thread processes all of a head, in order. Queries are processed in
 * blocks whose scores stay in the cache, against all keys that at least one of them attends to.
 * Forward keeps only each row's log-sum-exp; backward recomputes the probabilities. */
#include "core/device/cpu/isa/math_internal.h"
#include "core/device/cpu/isa/panel_internal.h"

enum { QUERIES = 48 }; /* per block: a multiple of every MC_TILE_ROWS */

/* One call: the matrices, and sizes rounded up to whole panels. */
typedef struct attention_call {
    const mc_attention_shape *shape;
    const mc_lengths *key_lengths;
    mc_matrix q, k, v, out, dout, dq, dk, dv;
    mc_score_bias bias;
    float *log_sum_exp;
    int64_t value_dim, group;    /* query heads that share keys */
    int64_t wide_dim, wide_keys; /* the larger head size and the longest sequence of keys */
    int64_t row_words;           /* dropout words of one query */
} attention_call;

/* One head of one sequence. */
typedef struct attention_task {
    int64_t first, length;   /* rows of the sequence's queries */
    int64_t first_key, keys; /* and of its keys */
    int64_t place;           /* place of its first query */
    int64_t head, column, out_column;
    int64_t key_column, value_column;
    const uint8_t *mask;    /* of the first key; NULL: none */
    const int32_t *marks;   /* of the sequence's first token; NULL: none */
    const int32_t *globals; /* the same */
    mc_key_range global;    /* from the first global token to the last; empty: none */
} attention_task;

/* A query of the sequence, and the columns of its block's scores for the keys that it attends to;
 * column 0 is for key `from`. */
typedef struct score_row {
    int64_t query, from, first, end;
} score_row;

/* A thread's scratch memory; (rows, columns) of f32. */
typedef struct workspace {
    float *k_panels, *v_panels; /* transposed: (wide_dim, wide_keys) in panels */
    float *k, *v, *dk, *dv;     /* (wide_keys, wide_dim) */
    float *q, *dout, *result;   /* (QUERIES, wide_dim) */
    float *scores, *dscores;    /* (QUERIES, wide_keys) */
    float *factors, *bias;      /* (wide_keys) of dropout, of one query */
} workspace;

static float *carve(float *base, int64_t *used, int64_t count)
{
    float *at = base ? base + *used : NULL;
    *used += mc_round_up(count, 16);
    return at;
}

/* Divides the memory at `base` into a workspace; returns its size. */
static int64_t workspace_init(workspace *w, const attention_call *c, bool backward, float *base)
{
    int64_t used = 0, keys = c->wide_keys * c->wide_dim, queries = QUERIES * c->wide_dim;
    *w = (workspace){0};
    w->k_panels = carve(base, &used, keys);
    w->k = carve(base, &used, keys);
    w->v = carve(base, &used, keys);
    w->q = carve(base, &used, queries);
    w->result = carve(base, &used, queries);
    w->scores = carve(base, &used, QUERIES * c->wide_keys);
    w->factors = carve(base, &used, c->wide_keys);
    w->bias = carve(base, &used, c->bias.values.data ? c->wide_keys : 0);
    if (!backward) return used;
    w->v_panels = carve(base, &used, keys);
    w->dk = carve(base, &used, keys);
    w->dv = carve(base, &used, keys);
    w->dout = carve(base, &used, queries);
    w->dscores = carve(base, &used, QUERIES * c->wide_keys);
    return used;
}

/* to (rows, wide) = factor * x[row ..][column .. column + n], zeros after. */
static void load_rows(mc_matrix x, int64_t row, int64_t rows, int64_t column, int64_t n,
                      float factor, float *to, int64_t wide)
{
    for (int64_t i = 0; i < rows; i++, to += wide) {
        const float *from = mc_read(x, (row + i) * x.stride + column, n, to);
#pragma omp simd
        for (int64_t j = 0; j < n; j++) to[j] = factor * from[j];
        for (int64_t j = n; j < wide; j++) to[j] = 0.0f;
    }
}

static void store_row(const float *from, float factor, mc_matrix y, int64_t row, int64_t column,
                      int64_t n)
{
    for (int64_t at = 0; at < n; at += MC_CHUNK) {
        float buffer[MC_CHUNK];
        int count = (int)mc_min_i64(MC_CHUNK, n - at);
        int64_t y_at = row * y.stride + column + at;
        float *to = mc_write_begin(y, y_at, buffer);
#pragma omp simd
        for (int j = 0; j < count; j++) to[j] = factor * from[at + j];
        mc_write_end(y, y_at, count, to);
    }
}

static void store_rows(const float *from, int64_t wide, float factor, mc_matrix y, int64_t row,
                       int64_t rows, int64_t column, int64_t n)
{
    for (int64_t i = 0; i < rows; i++) store_row(from + i * wide, factor, y, row + i, column, n);
}

static mc_key_range find_globals(const int32_t *globals, int64_t length)
{
    mc_key_range r = {0, globals ? length : 0};
    while (r.first < r.end && globals[r.first]) r.first++;
    while (r.first < r.end && globals[r.end - 1]) r.end--;
    return r;
}

static attention_task task_of(const attention_call *c, int64_t sequence, int64_t head)
{
    const mc_attention_shape *s = c->shape;
    int64_t first_key = c->key_lengths->offset[sequence];
    int64_t length = s->lengths->length[sequence], keys = c->key_lengths->length[sequence];
    const int32_t *globals = s->globals ? s->globals + first_key : NULL;
    return (attention_task){.first = s->lengths->offset[sequence],
                            .length = length,
                            .first_key = first_key,
                            .keys = keys,
                            .place = mc_first_place(s, length, keys),
                            .head = head,
                            .column = head * s->head_dim,
                            .out_column = head * c->value_dim,
                            .key_column = head / c->group * s->head_dim,
                            .value_column = head / c->group * c->value_dim,
                            .mask = s->key_mask ? s->key_mask + first_key : NULL,
                            .marks = s->marks ? s->marks + first_key : NULL,
                            .globals = globals,
                            .global = find_globals(globals, keys)};
}

/* Whether any of `rows` queries from `first` on has keys, by the rule of `globals`. */
static bool has_keys(const attention_call *c, const attention_task *t, int64_t first, int64_t rows)
{
    bool any = !t->globals;
    for (int64_t i = first; i < first + rows && !any; i++)
        any = mc_globals_see(c->shape->global_queries, t->globals[i], 0, true);
    return any;
}

/* The keys that any of `rows` queries from `first` on attends to, masked ones included, extended to
 * start at a whole panel. */
static mc_key_range block_keys(const attention_call *c, const attention_task *t, int64_t first,
                               int64_t rows)
{
    mc_key_range a = mc_keys_seen(c->shape, t->place + first, t->keys);
    mc_key_range b = mc_keys_seen(c->shape, t->place + first + rows - 1, t->keys);
    if (!has_keys(c, t, first, rows)) return (mc_key_range){0, 0};
    if (t->global.first < t->global.end) {
        a.first = mc_min_i64(a.first, t->global.first);
        if (t->global.end > b.end) b.end = t->global.end;
    }
    return (mc_key_range){a.first & -(int64_t)MC_PANEL, b.end};
}

static score_row row_of(const attention_call *c, const attention_task *t, int64_t query,
                        mc_key_range keys)
{
    mc_key_range seen = mc_keys_seen(c->shape, t->place + query, t->keys);
    if (t->globals) return (score_row){query, keys.first, 0, keys.end - keys.first};
    return (score_row){query, keys.first, seen.first - keys.first, seen.end - keys.first};
}

/* Dropout factors for the first n columns of scores. */
static void query_factors(const attention_call *c, const attention_task *t, const score_row *r,
                          int64_t n, float *factors)
{
    int64_t row = t->head * c->shape->lengths->total + t->first + r->query;
    MC_K(dropout_factors)(c->shape->dropout, row * c->row_words + r->from, n, factors);
}

/* The index of the bias of the row's first score. */
static int64_t bias_row(const attention_call *c, const attention_task *t, const score_row *r)
{
    int64_t query = r->query + (c->shape->position_bias ? t->place : 0);
    return c->bias.first + t->head * c->bias.head_step + query * c->bias.query_step + r->from;
}

static void add_bias(const attention_call *c, const attention_task *t, const workspace *w,
                     const score_row *r, float *scores)
{
    if (!c->bias.values.data) return;
    const float *bias = mc_read(c->bias.values, bias_row(c, t, r), r->end, w->bias);
#pragma omp simd
    for (int64_t j = 0; j < r->end; j++) scores[j] += bias[j];
}

/* Scores of keys that the query's mark hides become -inf. */
static void apply_marks(const attention_task *t, const score_row *r, float *scores)
{
    const int32_t *marks = t->marks + r->from, mark = t->marks[r->query];
#pragma omp simd
    for (int64_t j = 0; j < r->end; j++)
        scores[j] = mc_marks_see(mark, marks[j], r->query, r->from + j) ? scores[j] : -INFINITY;
}

/* The same by the rule of `globals`. */
static void apply_globals(const attention_call *c, const attention_task *t, const score_row *r,
                          float *scores)
{
    const int32_t *globals = t->globals + r->from, query = t->globals[r->query];
    const bool wanted = c->shape->global_queries;
    mc_key_range window = mc_keys_seen(c->shape, t->place + r->query, t->keys);
    int64_t first = window.first - r->from, end = window.end - r->from;
#pragma omp simd
    for (int64_t j = 0; j < r->end; j++)
        scores[j] = mc_globals_see(wanted, query, globals[j], j >= first && j < end) ? scores[j]
                                                                                     : -INFINITY;
}

/* Sets scores of hidden keys to -inf, and those after the row's end up to a whole vector; returns
 * that end. The compiler sees that it is a multiple, and generates no remainder loop. */
static int64_t mask_row(const attention_call *c, const attention_task *t, const score_row *r,
                        float *scores)
{
    if (t->marks) apply_marks(t, r, scores);
    if (t->globals) apply_globals(c, t, r, scores);
    if (t->mask) {
        const uint8_t *mask = t->mask + r->from;
#pragma omp simd
        for (int64_t j = 0; j < r->end; j++) scores[j] = mask[j] ? scores[j] : -INFINITY;
    }
    int64_t end = (r->end + MC_LANES - 1) & -(int64_t)MC_LANES;
    for (int64_t j = 0; j < r->first; j++) scores[j] = -INFINITY;
    for (int64_t j = r->end; j < end; j++) scores[j] = -INFINITY;
    return end;
}

/* scores = factor * q k^T for `rows` queries against a range of keys. */
static void block_scores(const attention_call *c, const workspace *w, int64_t rows,
                         mc_key_range keys)
{
    mc_left q = {w->q, c->wide_dim, false};
    mc_right k = {w->k_panels + keys.first * c->wide_dim, MC_PANEL * c->wide_dim, MC_PANEL};
    mc_panel_product(false, rows, keys.end - keys.first, c->shape->head_dim, q, k, w->scores,
                     c->wide_keys);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Replaces a query's scores by e^(score - largest) with dropout; returns 1 / their sum before
 * dropout (0 for a query without keys). `keys`: columns after the query's own, up to here, become
 * 0. */
static float softmax_row(const attention_call *c, const attention_task *t, const workspace *w,
                         const score_row *r, float *scores, int64_t keys)
{
    add_bias(c, t, w, r, scores);
    int64_t end = mask_row(c, t, r, scores) & -(int64_t)MC_LANES;
    float largest = mc_largest(scores, end), sum = 0;
    if (largest == -INFINITY) largest = 0.0f; /* no key: e^-inf is 0, and NaN stays NaN */
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < end; j++) {
        float e = mc_exp_nonpositive(scores[j] - largest);
        scores[j] = e;
        sum += e;
    }
    bool any = sum != 0.0f;
    for (int64_t j = r->end; j < keys; j++) scores[j] = 0.0f;
    if (any && c->shape->dropout.p > 0.0f) {
        query_factors(c, t, r, end, w->factors);
        const float *factors = w->factors;
#pragma omp simd
        for (int64_t j = 0; j < end; j++) scores[j] *= factors[j];
    }
    if (c->log_sum_exp)
        c->log_sum_exp[t->head * c->shape->lengths->total + t->first + r->query] =
            any ? largest + logf(sum) : INFINITY; /* so that e^(score - it) is 0 */
    return any ? 1.0f / sum : 0.0f;
}

static void forward_block(const attention_call *c, const attention_task *t, const workspace *w,
                          int64_t first, int64_t rows)
{
    int64_t dim = c->value_dim;
    mc_key_range seen = block_keys(c, t, first, rows);
    int64_t keys = seen.end - seen.first;
    float inverse[QUERIES];
    load_rows(c->q, t->first + first, rows, t->column, c->shape->head_dim, c->shape->scale, w->q,
              c->wide_dim);
    block_scores(c, w, rows, seen);
    for (int64_t i = 0; i < rows; i++) {
        score_row r = row_of(c, t, first + i, seen);
        inverse[i] = softmax_row(c, t, w, &r, w->scores + i * c->wide_keys, keys);
    }
    mc_left p = {w->scores, c->wide_keys, false};
    mc_right v = {w->v + seen.first * c->wide_dim, MC_PANEL, c->wide_dim};
    mc_panel_product(false, rows, dim, keys, p, v, w->result, c->wide_dim);
    for (int64_t i = 0; i < rows; i++) {
        float *result = w->result + i * c->wide_dim;
        if (inverse[i] == 0.0f) memset(result, 0, (size_t)dim * sizeof *result);
        store_row(result, inverse[i], c->out, t->first + first + i, t->out_column, dim);
    }
}

static void load_keys(const attention_call *c, const attention_task *t, const workspace *w)
{
    load_rows(c->k, t->first_key, t->keys, t->key_column, c->shape->head_dim, 1.0f, w->k,
              c->wide_dim);
    load_rows(c->v, t->first_key, t->keys, t->value_column, c->value_dim, 1.0f, w->v, c->wide_dim);
    mc_pack_transposed(w->k, c->wide_dim, t->keys, c->wide_dim, w->k_panels);
}

static void forward_task(const attention_call *c, const attention_task *t, const workspace *w)
{
    if (t->length == 0) return;
    load_keys(c, t, w);
    for (int64_t i = 0; i < t->length; i += QUERIES)
        forward_block(c, t, w, i, mc_min_i64(QUERIES, t->length - i));
}

/* ---- backward -------------------------------------------------------------------------------- */

/* One query: replaces scores and the gradient of the probabilities by the probabilities with
 * dropout and the gradient of the scores. `mean`: the sum over keys of probability * gradient,
 * which equals the product of the output and its gradient. */
static void softmax_row_backward(const attention_call *c, const attention_task *t,
                                 const workspace *w, const score_row *r, float mean, int64_t keys,
                                 float *scores, float *dscores)
{
    add_bias(c, t, w, r, scores);
    int64_t end = mask_row(c, t, r, scores) & -(int64_t)MC_LANES;
    float log_sum = c->log_sum_exp[t->head * c->shape->lengths->total + t->first + r->query];
    if (c->shape->dropout.p > 0.0f) {
        query_factors(c, t, r, end, w->factors);
        const float *factors = w->factors;
#pragma omp simd
        for (int64_t j = 0; j < end; j++) {
            float p = mc_exp_nonpositive(scores[j] - log_sum);
            scores[j] = p * factors[j];
            dscores[j] = p * (dscores[j] * factors[j] - mean);
        }
    } else {
#pragma omp simd
        for (int64_t j = 0; j < end; j++) {
            float p = mc_exp_nonpositive(scores[j] - log_sum);
            scores[j] = p;
            dscores[j] = p * (dscores[j] - mean);
        }
    }
    for (int64_t j = r->end; j < keys; j++) scores[j] = dscores[j] = 0.0f;
    if (!c->bias.gradient) return;
    float *dbias = c->bias.gradient + bias_row(c, t, r);
#pragma omp simd
    for (int64_t j = r->first; j < r->end; j++) dbias[j] += dscores[j];
}

/* The product of output and its gradient for one query; `buffer` (value_dim). */
static float output_product(const attention_call *c, int64_t row, int64_t column, const float *dout,
                            float *buffer)
{
    const int dim = (int)c->value_dim;
    const float *out = mc_read(c->out, row * c->out.stride + column, dim, buffer);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < dim; j++) sum += out[j] * dout[j];
    return sum;
}

static void backward_block(const attention_call *c, const attention_task *t, const workspace *w,
                           int64_t first, int64_t rows)
{
    int64_t dim = c->shape->head_dim, wide = c->wide_dim;
    mc_key_range seen = block_keys(c, t, first, rows);
    int64_t keys = seen.end - seen.first, at = seen.first * wide;
    load_rows(c->q, t->first + first, rows, t->column, dim, c->shape->scale, w->q, wide);
    load_rows(c->dout, t->first + first, rows, t->out_column, c->value_dim, 1.0f, w->dout, wide);
    block_scores(c, w, rows, seen);
    mc_panel_product(false, rows, keys, c->value_dim, (mc_left){w->dout, wide, false},
                     (mc_right){w->v_panels + at, MC_PANEL * wide, MC_PANEL}, w->dscores,
                     c->wide_keys);
    for (int64_t i = 0; i < rows; i++) {
        score_row r = row_of(c, t, first + i, seen);
        float mean =
            output_product(c, t->first + first + i, t->out_column, w->dout + i * wide, w->result);
        softmax_row_backward(c, t, w, &r, mean, keys, w->scores + i * c->wide_keys,
                             w->dscores + i * c->wide_keys);
    }
    mc_panel_product(true, keys, c->value_dim, rows, (mc_left){w->scores, c->wide_keys, true},
                     (mc_right){w->dout, MC_PANEL, wide}, w->dv + at, wide);
    mc_panel_product(true, keys, dim, rows, (mc_left){w->dscores, c->wide_keys, true},
                     (mc_right){w->q, MC_PANEL, wide}, w->dk + at, wide);
    mc_panel_product(false, rows, dim, keys, (mc_left){w->dscores, c->wide_keys, false},
                     (mc_right){w->k + at, MC_PANEL, wide}, w->result, wide);
    store_rows(w->result, wide, c->shape->scale, c->dq, t->first + first, rows, t->column, dim);
}

/* The heads that share the keys of t->head, the first of these heads, in sequence. */
static void backward_task(const attention_call *c, const attention_task *t, const workspace *w)
{
    int64_t wide = c->wide_dim;
    size_t bytes = (size_t)(t->keys * wide) * sizeof(float);
    load_keys(c, t, w);
    mc_pack_transposed(w->v, wide, t->keys, wide, w->v_panels);
    memset(w->dk, 0, bytes);
    memset(w->dv, 0, bytes);
    for (int64_t head = t->head; head < t->head + c->group; head++) {
        attention_task one = *t;
        one.head = head;
        one.column = head * c->shape->head_dim;
        one.out_column = head * c->value_dim;
        for (int64_t i = 0; i < t->length; i += QUERIES)
            backward_block(c, &one, w, i, mc_min_i64(QUERIES, t->length - i));
    }
    store_rows(w->dk, wide, 1.0f, c->dk, t->first_key, t->keys, t->key_column, c->shape->head_dim);
    store_rows(w->dv, wide, 1.0f, c->dv, t->first_key, t->keys, t->value_column, c->value_dim);
}

/* ---- both ------------------------------------------------------------------------------------ */

typedef void (*task_fn)(const attention_call *c, const attention_task *t, const workspace *w);

/* Rows after the last token. */
static void zero_tail(const mc_lengths *lengths, int64_t columns, mc_matrix y)
{
    size_t size = mc_dtype_size(y.dtype), bytes = (size_t)columns * size;
    int64_t first = lengths->fixed ? lengths->offset[lengths->count] : lengths->total;
    for (int64_t row = first; row < lengths->capacity; row++)
        memset((char *)y.data + (size_t)(row * y.stride) * size, 0, bytes);
}

typedef struct tasks_call {
    const attention_call *c;
    bool backward;
    task_fn run;
    int64_t each; /* sequences per task */
    int64_t size; /* floats of a thread's workspace */
    float *scratch;
} tasks_call;

static void run_item(void *call, int64_t item, int thread)
{
    const tasks_call *k = call;
    int64_t group = k->backward ? k->c->group : 1; /* heads per task */
    int64_t each = k->c->shape->heads / group, first = item / each * k->each;
    workspace w;
    workspace_init(&w, k->c, k->backward, k->scratch + k->size * thread);
    for (int64_t sequence = first; sequence < first + k->each; sequence++) {
        attention_task t = task_of(k->c, sequence, item % each * group);
        k->run(k->c, &t, &w);
    }
}

static mc_status run_tasks(mc_device *d, attention_call *c, bool backward, task_fn run)
{
    const mc_attention_shape *shape = c->shape;
    const mc_lengths *queries = shape->lengths, *keys = c->key_lengths;
    int64_t each = backward && c->bias.gradient ? queries->count : 1; /* sequences per task */
    c->group = shape->heads / mc_key_heads(shape);
    int64_t heads = backward ? mc_key_heads(shape) : shape->heads;
    int64_t tasks = each > 0 ? queries->count / each * heads : 0;
    if (tasks == 0 || (queries->total == 0 && keys->total == 0)) return MC_OK;
    int64_t dim = shape->head_dim > c->value_dim ? shape->head_dim : c->value_dim;
    c->wide_dim = mc_round_up(dim, MC_PANEL);
    c->wide_keys = mc_round_up(keys->longest, MC_PANEL);
    c->row_words = mc_round_up(keys->longest, 4);
    workspace w;
    int64_t operations = queries->total * keys->longest * shape->heads * shape->head_dim;
    int64_t threads = mc_min_i64(mc_threads_for(operations), tasks);
    tasks_call k = {c, backward, run, each, .size = workspace_init(&w, c, backward, NULL)};
    k.scratch = mc_scratch_new(d, k.size * threads);
    if (!k.scratch) return MC_ERR_NOMEM;
    mc_run(d, backward ? INT64_MAX : queries->total, (int)threads, tasks, run_item, &k);
    mc_scratch_free(d, k.scratch, k.size * threads);
    return MC_OK;
}

mc_status MC_K(attention)(mc_device *d, mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                          mc_matrix v, mc_matrix out, float *log_sum_exp)
{
    attention_call c = {.shape = shape,
                        .key_lengths = mc_key_lengths(shape),
                        .q = q,
                        .k = k,
                        .v = v,
                        .out = out,
                        .bias = mc_score_bias_of(shape),
                        .value_dim = mc_value_dim(shape),
                        .log_sum_exp = log_sum_exp};
    zero_tail(shape->lengths, shape->heads * c.value_dim, out);
    return run_tasks(d, &c, false, forward_task);
}

mc_status MC_K(attention_backward)(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                   mc_matrix k, mc_matrix v, mc_matrix out,
                                   const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                   mc_matrix dk, mc_matrix dv)
{
    attention_call c = {.shape = shape,
                        .key_lengths = mc_key_lengths(shape),
                        .q = q,
                        .k = k,
                        .v = v,
                        .out = out,
                        .dout = dout,
                        .dq = dq,
                        .dk = dk,
                        .dv = dv,
                        .bias = mc_score_bias_of(shape),
                        .value_dim = mc_value_dim(shape),
                        .log_sum_exp = (float *)log_sum_exp};
    zero_tail(shape->lengths, (int64_t)shape->heads * shape->head_dim, dq);
    zero_tail(c.key_lengths, (int64_t)mc_key_heads(shape) * shape->head_dim, dk);
    zero_tail(c.key_lengths, mc_key_heads(shape) * c.value_dim, dv);
    return run_tasks(d, &c, true, backward_task);
}

/* ---- one token a sequence against a cache ---------------------------------------------------- */

/* The row of key i of sequence s. */
static int64_t cached_row(const mc_cached_attention *c, int64_t s, int64_t i)
{
    if (c->pages) return mc_page_row(c->pages, c->page_shift, c->first[s], i);
    return (c->first ? c->first[s] : s * c->capacity) + i;
}

/* Scores of a query (head_dim) against keys first .. n - 1 of sequence s, plus `bias` (n; NULL:
 * none); returns the largest. */
static float cached_scores(const mc_cached_attention *c, int64_t s, const float *q, mc_matrix k,
                           int64_t first, int64_t n, int64_t column, const float *bias,
                           float *buffer, float *scores)
{
    int dim = c->head_dim;
    float largest = -INFINITY;
    for (int64_t i = first; i < n; i++) {
        const float *key = mc_read(k, cached_row(c, s, i) * k.stride + column, dim, buffer);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < dim; j++) sum += q[j] * key[j];
        scores[i] = bias ? sum + bias[i] : sum;
        if (scores[i] > largest) largest = scores[i];
    }
    return largest;
}

/* result (value_dim) = softmax(scores) v. */
static void cached_result(const mc_cached_attention *c, int64_t s, float *scores, float largest,
                          mc_matrix v, int64_t first, int64_t n, int64_t column, float *buffer,
                          float *result)
{
    int dim = mc_cached_value_dim(c);
    float sum = 0;
    memset(result, 0, (size_t)dim * sizeof *result);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < n; i++) {
        scores[i] = mc_exp_nonpositive(scores[i] - largest);
        sum += scores[i];
    }
    for (int64_t i = first; i < n; i++) {
        const float *value = mc_read(v, cached_row(c, s, i) * v.stride + column, dim, buffer);
        float p = scores[i];
#pragma omp simd
        for (int j = 0; j < dim; j++) result[j] += p * value[j];
    }
    for (int j = 0; n && j < dim; j++) result[j] /= sum;
}

/* Stores one head of the new token's row of k or v in the cache. */
static void keep_new(mc_matrix x, int64_t s, mc_matrix cache, int64_t row, int64_t column, int dim)
{
    size_t size = mc_dtype_size(cache.dtype);
    if (x.data)
        memcpy((char *)cache.data + (size_t)(row * cache.stride + column) * size,
               (const char *)x.data + (size_t)(s * x.stride + column) * size, (size_t)dim * size);
}

enum { Q, K, V, OUT };

/* One head of one sequence; `query` is scratch memory for three rows of `wide` and the scores. */
static void cached_head(const mc_cached_attention *c, int64_t s, int64_t head, int64_t key_head,
                        int64_t wide, const mc_matrix *x, float *query)
{
    int dim = c->head_dim, value_dim = mc_cached_value_dim(c);
    int64_t n = c->lengths[s],
            first = c->window_left && n > c->window_left ? n - c->window_left : 0;
    float *buffer = query + wide, *result = buffer + wide, *scores = result + wide;
    const float *bias = c->position_bias; /* of the last key's position: L - 1 + j - (n - 1) */
    if (bias) bias += head * (2 * c->position_limit - 1) + c->position_limit - n;
    load_rows(x[Q], s, 1, head * dim, dim, c->scale, query, wide);
    float largest =
        cached_scores(c, s, query, x[K], first, n, key_head * dim, bias, buffer, scores);
    cached_result(c, s, scores, largest, x[V], first, n, key_head * value_dim, buffer, result);
    store_row(result, 1.0f, x[OUT], s, head * value_dim, value_dim);
}

/* The heads of one sequence that share a head of the keys. */
static void cached_task(const mc_cached_attention *c, int64_t s, int64_t key_head, int64_t wide,
                        const mc_matrix *x, float *scratch)
{
    int64_t n = c->lengths[s], group = c->heads / mc_cached_key_heads(c);
    if (n > 0) {
        int64_t row = cached_row(c, s, n - 1);
        keep_new(c->new_k, s, x[K], row, key_head * c->head_dim, c->head_dim);
        keep_new(c->new_v, s, x[V], row, key_head * mc_cached_value_dim(c), mc_cached_value_dim(c));
    }
    for (int64_t head = key_head * group; head < (key_head + 1) * group; head++)
        cached_head(c, s, head, key_head, wide, x, scratch);
}

typedef struct cached_call {
    const mc_cached_attention *shape;
    int64_t wide, each; /* larger head size rounded up; floats of a thread's scratch memory */
    mc_matrix x[4];
    float *scratch;
} cached_call;

static void cached_item(void *call, int64_t task, int thread)
{
    const cached_call *k = call;
    int64_t heads = mc_cached_key_heads(k->shape);
    cached_task(k->shape, task / heads, task % heads, k->wide, k->x, k->scratch + k->each * thread);
}

mc_status MC_K(attention_cached)(mc_device *d, const mc_cached_attention *c, mc_matrix q,
                                 mc_matrix k, mc_matrix v, mc_matrix out)
{
    int64_t tasks = c->sequences * mc_cached_key_heads(c), work = c->longest * c->head_dim;
    int64_t wide = mc_round_up(c->head_dim, 16),
            wide_value = mc_round_up(mc_cached_value_dim(c), 16);
    if (tasks == 0) return MC_OK;
    if (wide_value > wide) wide = wide_value;
    int64_t threads = mc_min_i64(mc_threads_for(c->sequences * c->heads * work), tasks);
    cached_call call = {
        c, wide, 3 * wide + mc_round_up(c->longest, 16), {q, k, v, out}, .scratch = NULL};
    call.scratch = mc_scratch_new(d, call.each * threads);
    if (!call.scratch) return MC_ERR_NOMEM;
    mc_run(d, c->sequences, (int)threads, tasks, cached_item, &call);
    mc_scratch_free(d, call.scratch, call.each * threads);
    return MC_OK;
}
