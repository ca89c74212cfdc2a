/* The probabilities of attention, for inspection: plain loops, one query at a time. */
#include "core/device/cpu/isa/math_internal.h"

typedef struct probabilities_call {
    const mc_attention_shape *shape;
    const mc_lengths *queries, *keys;
    mc_score_bias bias;
    mc_matrix q, k;
    float *out;
} probabilities_call;

/* A task: one head of one sequence. */
typedef struct place {
    int64_t head, first, first_key, keys;
    int64_t stands; /* place of its first query */
} place;

static bool is_seen(const mc_attention_shape *s, const place *p, int64_t i, int64_t j)
{
    mc_key_range seen = mc_keys_seen(s, p->stands + i, p->keys);
    bool near = j >= seen.first && j < seen.end;
    const int32_t *globals = s->globals ? s->globals + p->first : NULL;
    if (globals ? !mc_globals_see(s->global_queries, globals[i], globals[j], near) : !near)
        return false;
    if (s->key_mask && !s->key_mask[p->first_key + j]) return false;
    return !s->marks || mc_marks_see(s->marks[p->first + i], s->marks[p->first_key + j], i, j);
}

/* p (keys) = the scores of query i, -inf for hidden keys; `buffer` has two rows. */
static void find_scores(const probabilities_call *c, const place *p, int64_t i, float *buffer,
                        float *scores)
{
    int dim = c->shape->head_dim, group = c->shape->heads / mc_key_heads(c->shape);
    const float *q = mc_read(c->q, (p->first + i) * c->q.stride + p->head * dim, dim, buffer);
    int64_t bias_query = c->shape->position_bias ? p->stands + i : i;
    for (int64_t j = 0; j < p->keys; j++) {
        int64_t at = (p->first_key + j) * c->k.stride + p->head / group * dim;
        int64_t bias_at =
            c->bias.first + p->head * c->bias.head_step + bias_query * c->bias.query_step + j;
        const float *k = mc_read(c->k, at, dim, buffer + dim);
        float sum = 0, bias = 0;
#pragma omp simd reduction(+ : sum)
        for (int n = 0; n < dim; n++) sum += q[n] * k[n];
        if (c->bias.values.data)
            mc_convert_in(c->bias.values.data, c->bias.values.dtype, bias_at, 1, &bias);
        scores[j] = is_seen(c->shape, p, i, j) ? sum * c->shape->scale + bias : -INFINITY;
    }
}

static void softmax(float *p, int64_t n)
{
    float largest = mc_largest(p, n), sum = 0;
    if (largest == -INFINITY) largest = 0.0f; /* no key: all become 0 */
    for (int64_t j = 0; j < n; j++) sum += p[j] = mc_exp_nonpositive(p[j] - largest);
    for (int64_t j = 0; j < n && sum != 0.0f; j++) p[j] /= sum;
}

static void run_task(const probabilities_call *c, int64_t sequence, int64_t head, float *buffer)
{
    int64_t longest = c->queries->longest, columns = c->keys->longest;
    int32_t queries = c->queries->length[sequence], keys = c->keys->length[sequence];
    place p = {head, c->queries->offset[sequence], c->keys->offset[sequence], keys,
               mc_first_place(c->shape, queries, keys)};
    for (int64_t i = 0; i < longest; i++) {
        float *to = c->out + ((sequence * c->shape->heads + head) * longest + i) * columns;
        int64_t n = i < queries ? p.keys : 0;
        if (n) find_scores(c, &p, i, buffer, to);
        softmax(to, n);
        for (int64_t j = n; j < columns; j++) to[j] = 0.0f;
    }
}

mc_status MC_K(attention_probabilities)(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                        mc_matrix k, float *out)
{
    probabilities_call c = {
        shape, shape->lengths, mc_key_lengths(shape), mc_score_bias_of(shape), q, k, out};
    int64_t tasks = (int64_t)c.queries->count * shape->heads, each = 2 * (int64_t)shape->head_dim;
    if (tasks == 0) return MC_OK;
    int64_t threads = mc_min_i64(omp_get_max_threads(), tasks);
    float *scratch = mc_scratch_new(d, each * threads);
    if (!scratch) return MC_ERR_NOMEM;
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
    for (int64_t i = 0; i < tasks; i++)
        run_task(&c, i / shape->heads, i % shape->heads, scratch + each * omp_get_thread_num());
    mc_scratch_free(d, scratch, each * threads);
    return MC_OK;
}
