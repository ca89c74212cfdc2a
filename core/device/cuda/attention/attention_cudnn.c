/* Attention by cuDNN's fused kernels: which graph serves a case, its plan, and running it.
 *
 * Sequences of one length are a dense (batch, length) grid. Others are ragged: `batch` and `length`
 * of the graph are rounded up, so that a few plans serve all batches; where each sequence lies is
 * data. log_sum_exp is (batch, heads, length) in the one case and (tokens, heads) in the other. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/hash_internal.h"
#include "core/device/cuda/attention/attention_internal.h"
#include "core/device/cuda/runtime/cudnn_internal.h"

typedef struct sdpa_plan {
    mc_sdpa_key key;
    mc_cudnn_descriptor plan; /* NULL: there is none, see why */
    bool timed;               /* it is the fastest that was found, not the first proposed */
    int64_t workspace;
    char why[384];
} sdpa_plan;

struct mc_cuda_cudnn {
    mc_cudnn library;
    char why[384]; /* "": it works */
    sdpa_plan **plans;
    size_t count, capacity;
};

/* ---- the library's handle -------------------------------------------------------------------- */

static void start(struct mc_cuda_cudnn *c, mc_cuda_device *cuda)
{
    if (!mc_cudnn_load(&c->library, c->why, sizeof c->why)) return;
    int status = c->library.cudnnCreate(&c->library.handle);
    const char *what = "cudnnCreate";
    if (!status) {
        what = "cudnnSetStream";
        status = c->library.cudnnSetStream(c->library.handle, cuda->stream);
    }
    if (!status) return;
    mc_cudnn_explain(&c->library, what, status, c->why, sizeof c->why);
    mc_cudnn_unload(&c->library);
}

/* NULL when host memory is out. */
static struct mc_cuda_cudnn *cudnn_of(mc_device *d)
{
    mc_cuda_device *cuda = mc_cuda_of(d);
    if (!cuda->cudnn && (cuda->cudnn = mc_calloc(1, sizeof *cuda->cudnn))) start(cuda->cudnn, cuda);
    return cuda->cudnn;
}

void mc_cudnn_free(struct mc_cuda_cudnn *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->count; i++) {
        mc_cudnn_plan_free(&c->library, c->plans[i]->plan);
        mc_free(c->plans[i]);
    }
    mc_free(c->plans);
    mc_cudnn_unload(&c->library);
    mc_free(c);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Deterministic backward keeps all scores; past this it is our kernels' case. */
static const int64_t LARGEST_WORKSPACE = (int64_t)4 << 30;

static void describe(const mc_cuda_device *cuda, const mc_sdpa_key *k, bool timed, char *text,
                     size_t size)
{
    snprintf(text, size,
             "modelcenter plan 4: %scuDNN %zu, %s, attention backward %d causal %d left %d "
             "right %d bottom right %d ragged %d bias %d apart %d deterministic %d packed %d "
             "dtype %d shape %d %d %d %d %d %d strides %lld %lld %lld dropout %a",
             timed ? "timed, " : "", cuda->cudnn->library.version, cuda->gpu, k->backward,
             k->causal, k->left, k->right, k->bottom_right, k->ragged, k->bias, k->apart,
             k->deterministic, k->packed_sum, k->dtype, k->batch, k->heads, k->key_heads, k->length,
             k->key_length, k->head_dim, (long long)k->q_stride, (long long)k->kv_stride,
             (long long)k->out_stride, (double)k->dropout);
}

/* What a plan is kept for from one start to the next, and the file; false: there is no place. */
typedef struct plan_file {
    char title[768], path[MC_PATH_MAX];
} plan_file;

static bool plan_file_init(mc_device *d, const mc_sdpa_key *k, bool timed, plan_file *f)
{
    char name[96];
    describe(mc_cuda_of(d), k, timed, f->title, sizeof f->title);
    snprintf(name, sizeof name, "cudnn-%s-%016llx.plan", k->backward ? "backward" : "forward",
             (unsigned long long)mc_hash_text(MC_HASH_START, f->title));
    return mc_cuda_cache_path(d, name, f->path, sizeof f->path);
}

static bool load(mc_device *d, const mc_cudnn *library, bool timed, sdpa_plan *p)
{
    plan_file f;
    if (plan_file_init(d, &p->key, timed, &f))
        p->plan = mc_cudnn_plan_load(library, f.path, f.title);
    p->timed = timed && p->plan;
    return p->plan;
}

static void store(mc_device *d, const mc_cudnn *library, const sdpa_plan *p)
{
    plan_file f;
    if (plan_file_init(d, &p->key, p->timed, &f))
        mc_cudnn_plan_store(library, p->plan, f.path, f.title);
}

static void build(const mc_cudnn *library, sdpa_plan *p)
{
    mc_cudnn_graph graph;
    mc_cudnn_graph_init(&graph, library);
    mc_sdpa_graph(&graph, &p->key);
    p->plan = mc_cudnn_plan_new(&graph);
    if (!p->plan) snprintf(p->why, sizeof p->why, "%s", graph.error);
    mc_cudnn_graph_release(&graph);
}

static void prepare(mc_device *d, struct mc_cuda_cudnn *c, sdpa_plan *p)
{
    bool may_be_timed = !mc_cuda_of(d)->deterministic;
    bool kept = (may_be_timed && load(d, &c->library, true, p)) || load(d, &c->library, false, p);
    if (!kept) build(&c->library, p);
    if (!p->plan) return;
    if (!kept) store(d, &c->library, p);
    p->workspace = mc_cudnn_plan_workspace(&c->library, p->plan);
    if (p->workspace <= LARGEST_WORKSPACE) return;
    snprintf(p->why, sizeof p->why, "a plan that wants %lld bytes of workspace",
             (long long)p->workspace);
    mc_cudnn_plan_free(&c->library, p->plan);
    p->plan = NULL;
}

/* NULL when host memory is out. A case without a plan is remembered like one with. */
static sdpa_plan *plan_for(mc_device *d, struct mc_cuda_cudnn *c, const mc_sdpa_key *key)
{
    for (size_t i = 0; i < c->count; i++)
        if (!memcmp(&c->plans[i]->key, key, sizeof *key)) return c->plans[i];
    if (!mc_grow(&c->plans, &c->capacity, c->count, sizeof *c->plans)) return NULL;
    sdpa_plan *p = mc_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->key = *key;
    prepare(d, c, p);
    c->plans[c->count++] = p;
    return p;
}

/* ---- which case ------------------------------------------------------------------------------ */

static int32_t power_of_two(int32_t n, int32_t least)
{
    int32_t power = least;
    while (power < n && power <= INT32_MAX / 2) power *= 2;
    return power;
}

static bool is_aligned(mc_matrix m) { return (uintptr_t)m.data % 16 == 0 && m.stride % 8 == 0; }

/* Sequences that have queries and no keys, or the other way round. */
static bool is_one_sided(const mc_attention_shape *s)
{
    const mc_lengths *queries = s->lengths, *keys = mc_key_lengths(s);
    if (queries->fixed || keys->fixed) return true; /* some batch may have them */
    for (int i = 0; i < queries->count; i++)
        if ((queries->length[i] == 0) != (keys->length[i] == 0)) return true;
    return false;
}

static bool has_windows(const mc_attention_shape *s) { return s->window_left || s->window_right; }

static bool has_more_queries_than_keys(const mc_attention_shape *s)
{
    const mc_lengths *queries = s->lengths, *keys = mc_key_lengths(s);
    for (int i = 0; i < queries->count; i++)
        if (queries->length[i] > keys->length[i]) return true;
    return false;
}

/* Cases for which cuDNN has plans, but which its frontend rejects. They include queries that see no
 * key: their results must be zeros, and cuDNN's may be NaN. And windows with dropout: of packed
 * sequences 9.14 computed them wrongly. */
static const char *place_refusal(const mc_attention_shape *s)
{
    if (!has_windows(s) && !s->bottom_right) return NULL;
    if (s->dropout.p > 0) return "windows, or queries that end where the keys end, with dropout";
    if (!s->key_lengths) return NULL;
    if (has_more_queries_than_keys(s)) return "windows or bottom right of more queries than keys";
    if (s->bottom_right && s->bias.data) return "queries that end where the keys end, with a bias";
    return NULL;
}

static const char *bias_refusal(const mc_attention_shape *s, mc_dtype dtype)
{
    if (!s->bias.data) return NULL;
    if (s->bias.dtype != dtype) return "a bias of another dtype";
    if ((uintptr_t)s->bias.data % 16) return "a bias that is not aligned to 16 bytes";
    if (s->heads * s->bias_rows > INT32_MAX / s->bias.stride)
        return "a bias of 2^31 elements or more";
    return NULL;
}

/* Why cuDNN does not take the case, whatever its plans; NULL if it may. */
static const char *refusal(const mc_attention_call *c)
{
    const mc_attention_shape *s = c->shape;
    const mc_matrix q = c->q, k = c->k, v = c->v, out = c->out;
    if (q.dtype != MC_F16 && q.dtype != MC_BF16) return "a dtype that is neither f16 nor bf16";
    if (k.dtype != q.dtype || v.dtype != q.dtype || out.dtype != q.dtype) return "mixed dtypes";
    const bool grouped = mc_key_heads(s) != s->heads;
    mc_attention_shape rest = *s; /* without what is taken; grouped heads are, in a grid */
    rest.key_heads = rest.window_left = rest.window_right = 0;
    rest.bottom_right = false;
    if (mc_attention_needs(&rest)) return mc_attention_needs(&rest);
    if (grouped && (mc_sdpa_is_ragged(s) || s->bias.data)) return mc_attention_needs(s);
    if (s->key_mask) return "a key mask";
    if (s->position_bias) return "a bias by distance";
    if (s->marks) return "marks of tokens";
    if (s->head_dim % 8 || s->head_dim > 256)
        return "a head size that is no multiple of 8 up to 256";
    if (k.stride != v.stride) return "k and v of different strides";
    if (!is_aligned(q) || !is_aligned(k) || !is_aligned(v) || !is_aligned(out))
        return "a matrix that is not aligned to 16 bytes";
    int64_t stride = q.stride > out.stride ? q.stride : out.stride;
    if (s->lengths->total > INT32_MAX / stride || mc_key_lengths(s)->total > INT32_MAX / k.stride)
        return "a matrix of 2^31 elements or more";
    if (s->key_lengths && is_one_sided(s)) return "queries without keys or keys without queries";
    if (place_refusal(s)) return place_refusal(s);
    return bias_refusal(s, q.dtype);
}

static bool is_grid(const mc_lengths *l)
{
    return !l->fixed && (int64_t)l->longest * l->count == l->total && l->longest % 64 == 0;
}

bool mc_sdpa_is_ragged(const mc_attention_shape *s)
{
    const mc_lengths *queries = s->lengths, *keys = mc_key_lengths(s);
    if (!is_grid(queries) || !is_grid(keys)) return true;
    return s->bias.data && (s->bias_rows != queries->longest || s->bias.stride != keys->longest);
}

/* A window as long as the keys has no effect. In a grid, MC_SDPA_LEFT includes the place of the
 * first query. */
static void set_places(mc_sdpa_key *key, const mc_attention_shape *s)
{
    const bool moved = s->bottom_right && s->key_lengths;
    key->causal = s->causal;
    key->left = s->window_left > 0 && s->window_left < key->key_length;
    key->right = !s->causal && s->window_right > 0 && s->window_right < key->key_length;
    if (key->ragged)
        key->bottom_right = moved && (key->causal || key->right || key->left);
    else
        key->bottom_right = moved && (key->causal || key->right) && key->length != key->key_length;
}

/* The form that serves forward and backward of the case. */
static mc_sdpa_key key_of(const mc_attention_call *c)
{
    const mc_attention_shape *s = c->shape;
    const mc_matrix q = c->q, k = c->k, out = c->out;
    const mc_lengths *l = s->lengths, *keys = mc_key_lengths(s);
    mc_sdpa_key key;
    memset(&key, 0, sizeof key); /* keys are compared as bytes */
    key.dtype = q.dtype == MC_F16 ? MC_CUDNN_DATA_HALF : MC_CUDNN_DATA_BFLOAT16;
    key.ragged = mc_sdpa_is_ragged(s);
    key.apart = key.ragged && (keys != l || k.stride != q.stride);
    key.bias = s->bias.data != NULL;
    key.batch = key.ragged ? power_of_two(l->count, 8) : l->count;
    key.length = key.ragged ? power_of_two(l->longest, 128) : l->longest;
    key.key_length = key.ragged ? power_of_two(keys->longest, 128) : keys->longest;
    if (key.bias) { /* whose sizes are what the graph sees */
        key.length = (int32_t)s->bias_rows;
        key.key_length = (int32_t)s->bias.stride;
    }
    key.heads = s->heads;
    key.key_heads = mc_key_heads(s);
    key.head_dim = s->head_dim;
    key.q_stride = q.stride;
    key.kv_stride = k.stride;
    key.out_stride = out.stride;
    key.dropout = s->dropout.p > 0 ? s->dropout.p : 0;
    set_places(&key, s);
    return key;
}

/* The sum of dq in f32 lies densely, which is faster, unless that takes much memory for nothing
 * (and the head size is one for which cuDNN's own frontend lets it). */
static mc_sdpa_key backward_key_of(mc_sdpa_key key, int64_t total, bool deterministic)
{
    int64_t dense = (int64_t)key.batch * key.length;
    int64_t bytes = dense * key.heads * key.head_dim * (int64_t)sizeof(float);
    key.backward = 1;
    key.deterministic = deterministic || key.bias;
    key.packed_sum = key.ragged && !key.deterministic && dense > 8 * total &&
                     bytes > (int64_t)256 << 20 && key.head_dim % 16 == 0;
    return key;
}

/* What this version of cuDNN computes wrongly, or NULL. */
static const char *fault_of(const mc_sdpa_key *key, size_t version)
{
    /* 9.14.0 on an H200: dv of packed sequences is wrong from here on, 9.19.0's is right */
    if (key->ragged && key->head_dim > 128 && version < 91900)
        return "packed sequences with heads of more than 128 in cuDNN before 9.19";
    /* cuDNN's frontend rejects this case too */
    const bool left_alone = key->left && !key->right && !key->causal;
    if (left_alone && key->key_length > 1024 && version == 91400)
        return "a window to the left alone over more than 1,024 keys in cuDNN 9.14.0";
    return NULL;
}

/* The plans of a call; `backward` is NULL where that pass is not cuDNN's. MC_ERR_UNSUPPORTED with
 * the reason as the failure. */
static mc_status find_plans(mc_device *d, const mc_attention_call *call, sdpa_plan **forward,
                            sdpa_plan **backward)
{
    const mc_attention_shape *s = call->shape;
    const char *why = refusal(call);
    if (why) return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "%s", why);
    struct mc_cuda_cudnn *c = cudnn_of(d);
    if (!c) return MC_ERR_NOMEM;
    if (*c->why) return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "anything: %s", c->why);
    mc_sdpa_key key = key_of(call);
    why = fault_of(&key, c->library.version);
    if (why) return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "%s", why);
    if ((int64_t)key.batch * key.heads > UINT16_MAX)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "%d sequences of %d heads", key.batch,
                            key.heads);
    mc_sdpa_key backward_key =
        backward_key_of(key, s->lengths->total, mc_cuda_of(d)->deterministic);
    sdpa_plan *plans[2] = {plan_for(d, c, &key)};
    if (plans[0] && plans[0]->plan && backward) plans[1] = plan_for(d, c, &backward_key);
    for (int i = 0; i < 1 + (backward != NULL); i++) {
        if (!plans[i]) return MC_ERR_NOMEM;
        if (!plans[i]->plan) return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "it: %s", plans[i]->why);
    }
    *forward = plans[0];
    if (backward) *backward = plans[1];
    return MC_OK;
}

mc_status mc_cudnn_forward_takes(mc_device *d, const mc_attention_call *c)
{
    sdpa_plan *forward;
    return find_plans(d, c, &forward, NULL);
}

/* Forward is taken only if there is a backward plan too, since that reads its log-sum-exp. */
static mc_status takes(mc_device *d, const mc_attention_call *c)
{
    sdpa_plan *forward, *backward;
    return find_plans(d, c, &forward, c->log_sum_exp ? &backward : NULL);
}

/* Hopper's kernels are faster for the windows that are refused unless asked, as far as they take
 * them. Packed sequences with a bias or other keys were not compared with them. */
mc_status mc_cudnn_attention_takes(mc_device *d, const void *call, bool asked)
{
    const mc_attention_call *c = call;
    const mc_attention_shape *s = c->shape;
    bool ragged = mc_sdpa_is_ragged(s);
    if (!asked && ragged && (s->bias.data || s->key_lengths))
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "packed sequences with a bias or other keys");
    if (!asked && has_windows(s) && (ragged || !s->causal))
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "windows of packed sequences or on both sides");
    return takes(d, c);
}

/* What Hopper's kernels do not take. Backward with windows on both sides computes all keys: in
 * sequences of more than 8,192 tokens the portable kernels, which skip those outside, are faster.
 * (Without a backward pass cuDNN is, but the bits of a forward pass do not depend on that.) */
mc_status mc_cudnn_attention_takes_rest(mc_device *d, const void *call, bool asked)
{
    enum { MOST = 8192 };
    const mc_attention_call *c = call;
    const mc_attention_shape *s = c->shape;
    if (!asked && has_windows(s) && !s->causal && s->lengths->longest > MOST)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "windows on both sides of over 8,192 tokens");
    return takes(d, c);
}

/* ---- running --------------------------------------------------------------------------------- */

/* One run: memory for every id, and scratch memory carved out of one block. */
typedef struct sdpa_run {
    sdpa_plan *plan;
    void *pointers[MC_SDPA_IDS];
    void *workspace;
    float scale, masked, delta_factor, keep_factor, left;
    int32_t whole_left, right, queries, keys;
    mc_sdpa_inputs inputs;
    char *block;
    size_t used;
} sdpa_run;

static void *carve(sdpa_run *r, int64_t bytes)
{
    size_t at = r->used;
    r->used += ((size_t)bytes + 255) & ~(size_t)255;
    return r->block ? r->block + at : NULL;
}

static int64_t bias_size(const mc_sdpa_key *k)
{
    return (int64_t)k->heads * k->length * k->key_length;
}

/* Scratch memory of the graph; called once to measure, and once to hand out. */
static void carve_all(sdpa_run *r, int64_t total, bool stats)
{
    const mc_sdpa_key *k = &r->plan->key;
    int64_t starts = 8 * ((int64_t)k->batch + 1);
    int64_t per_query = 4 * k->heads * (k->ragged ? total : (int64_t)k->batch * k->length);
    r->used = 0;
    r->workspace = carve(r, r->plan->workspace);
    if (k->ragged) {
        r->inputs.lengths = carve(r, 4 * (int64_t)k->batch);
        r->inputs.q_starts = carve(r, starts);
        r->inputs.out_starts = carve(r, starts);
        r->inputs.stats_starts = carve(r, starts);
    }
    if (k->apart) {
        r->inputs.key_lengths = carve(r, 4 * (int64_t)k->batch);
        r->inputs.kv_starts = carve(r, starts);
    }
    if (k->dropout > 0) r->inputs.random = carve(r, 16);
    if (stats) r->pointers[MC_SDPA_STATS] = carve(r, per_query);
    if (!k->backward) return;
    r->pointers[MC_SDPA_DELTA] = carve(r, per_query);
    if (k->bias) r->pointers[MC_SDPA_DBIAS] = carve(r, 2 * bias_size(k));
    if (k->packed_sum)
        r->pointers[MC_SDPA_DQ_SUM] = carve(r, 4 * total * k->q_stride);
    else if (!k->deterministic)
        r->pointers[MC_SDPA_DQ_SUM] =
            carve(r, 4 * (int64_t)k->batch * k->length * k->heads * k->head_dim);
    if (k->key_heads == k->heads) return;
    int64_t heads = 2 * (int64_t)k->batch * k->key_length * k->heads * k->head_dim;
    r->pointers[MC_SDPA_DK_HEADS] = carve(r, heads);
    r->pointers[MC_SDPA_DV_HEADS] = carve(r, heads);
}

static void set_scalars(sdpa_run *r, const mc_attention_shape *s)
{
    float p = r->plan->key.dropout;
    r->scale = s->scale;
    r->masked = -INFINITY;
    r->delta_factor = 1.0f - p;
    r->keep_factor = 1.0f / (1.0f - p);
    r->pointers[MC_SDPA_SCALE] = &r->scale;
    r->pointers[MC_SDPA_PADDING] = r->pointers[MC_SDPA_FUTURE] = &r->masked;
    r->pointers[MC_SDPA_PAST] = &r->masked;
    r->pointers[MC_SDPA_DELTA_FACTOR] = &r->delta_factor;
    r->pointers[MC_SDPA_KEEP_FACTOR] = &r->keep_factor;
}

/* The sizes of the windows and, in a grid, of a sequence. */
static void set_places_of_run(sdpa_run *r, const mc_attention_shape *s)
{
    const mc_sdpa_key *k = &r->plan->key;
    const int64_t place = k->ragged ? 0 : mc_first_place(s, k->length, k->key_length);
    const bool whole = k->ragged && k->bottom_right;
    r->left = (float)(s->window_left - place);
    r->whole_left = s->window_left;
    r->right = s->window_right - 1;
    r->queries = k->length;
    r->keys = k->key_length;
    r->pointers[MC_SDPA_LEFT] = whole ? (void *)&r->whole_left : &r->left;
    r->pointers[MC_SDPA_RIGHT] = &r->right;
    r->pointers[MC_SDPA_QUERIES] = &r->queries;
    r->pointers[MC_SDPA_KEYS] = &r->keys;
}

/* Sequence lengths, starts and random numbers. */
static mc_status write_inputs(mc_device *d, sdpa_run *r, const mc_attention_shape *s)
{
    mc_sdpa_inputs *in = &r->inputs;
    const mc_sdpa_key *k = &r->plan->key;
    in->device_lengths = s->device_lengths;
    in->device_key_lengths = s->key_lengths ? s->device_key_lengths : s->device_lengths;
    in->count = s->lengths->count;
    in->batch = k->batch;
    in->heads = k->heads;
    in->q_stride = k->q_stride;
    in->kv_stride = k->kv_stride;
    in->out_stride = k->out_stride;
    in->seed = s->dropout.seed;
    in->offset = s->dropout.offset;
    in->base = s->dropout.base;
    r->pointers[MC_SDPA_QUERY_LENGTHS] = in->lengths;
    r->pointers[MC_SDPA_KEY_LENGTHS] = in->key_lengths ? in->key_lengths : in->lengths;
    r->pointers[MC_SDPA_Q_STARTS] = in->q_starts;
    r->pointers[MC_SDPA_KV_STARTS] = in->kv_starts;
    r->pointers[MC_SDPA_OUT_STARTS] = in->out_starts;
    r->pointers[MC_SDPA_STATS_STARTS] = in->stats_starts;
    r->pointers[MC_SDPA_SEED] = in->random;
    r->pointers[MC_SDPA_OFFSET] = in->random ? in->random + 1 : NULL;
    return in->lengths || in->random ? mc_sdpa_write_inputs(d, in) : MC_OK;
}

/* ---- which plan is the fastest --------------------------------------------------------------- */

/* What a run is given, by the graph's ids. */
typedef struct sdpa_memory {
    int count;
    int64_t ids[MC_SDPA_IDS];
    void *pointers[MC_SDPA_IDS], *workspace;
} sdpa_memory;

/* Milliseconds of a run, the least of some after one that loads the kernel; infinite: it fails. */
static float time_plan(mc_device *d, const mc_cudnn *library, mc_cudnn_descriptor plan,
                       const sdpa_memory *m, cudaEvent_t events[2])
{
    enum { RUNS = 4 };
    cudaStream_t stream = mc_cuda_of(d)->stream;
    float least = INFINITY;
    for (int i = 0; i <= RUNS; i++) {
        float ms = INFINITY;
        cudaEventRecord(events[0], stream);
        if (mc_cudnn_plan_run(library, plan, m->count, m->ids, m->pointers, m->workspace))
            return INFINITY;
        cudaEventRecord(events[1], stream);
        if (cudaEventSynchronize(events[1]) || cudaEventElapsedTime(&ms, events[0], events[1]))
            return INFINITY;
        if (i && ms < least) least = ms;
    }
    return least;
}

/* The heuristic's first plan is not always the fastest: of GPT-2 124M's forward pass its second one
 * is 8 % faster. Those of the same engine that need no more memory are tried on the operands at
 * hand, once, where a run takes long enough to be worth the making of them. */
static void try_others(mc_device *d, const mc_cudnn *library, sdpa_plan *p, const sdpa_memory *m,
                       cudaEvent_t events[2])
{
    enum { MOST = 4 };
    const float long_ones = 0.03f; /* milliseconds: BERT's 256 x 128 tokens take 0.09 at first */
    float best = time_plan(d, library, p->plan, m, events);
    if (best < long_ones || isinf(best)) return;
    mc_cudnn_graph graph;
    mc_cudnn_descriptor others[MOST];
    mc_cudnn_graph_init(&graph, library);
    mc_sdpa_graph(&graph, &p->key);
    int count = mc_cudnn_other_plans(&graph, MOST, others);
    for (int i = 0; i < count; i++) {
        bool fits = mc_cudnn_plan_workspace(library, others[i]) <= p->workspace;
        float ms = fits ? time_plan(d, library, others[i], m, events) : INFINITY;
        mc_cudnn_descriptor slower = ms < best ? p->plan : others[i];
        if (ms < best) p->plan = others[i], best = ms;
        mc_cudnn_plan_free(library, slower);
    }
    mc_cudnn_graph_release(&graph);
}

static void find_fastest(mc_device *d, const mc_cudnn *library, sdpa_plan *p, const sdpa_memory *m)
{
    cudaEvent_t events[2] = {NULL, NULL};
    bool good = !cudaEventCreate(&events[0]) && !cudaEventCreate(&events[1]);
    if (good) try_others(d, library, p, m, events);
    for (int i = 0; i < 2; i++)
        if (events[i]) cudaEventDestroy(events[i]);
    cudaGetLastError(); /* the plan there was will do */
    d->waits++;
    p->timed = true;
    store(d, library, p);
}

static mc_status execute(mc_device *d, sdpa_run *r, const mc_attention_shape *s)
{
    mc_cuda_device *cuda = mc_cuda_of(d);
    const mc_cudnn *library = &cuda->cudnn->library;
    sdpa_memory m = {.workspace = r->workspace};
    set_scalars(r, s);
    set_places_of_run(r, s);
    mc_status status = write_inputs(d, r, s);
    if (status) return status;
    m.count = mc_sdpa_ids(&r->plan->key, m.ids);
    for (int i = 0; i < m.count; i++) m.pointers[i] = r->pointers[m.ids[i]];
    const bool adds = r->plan->key.bias && r->plan->key.backward; /* to the bias's gradient */
    if (!r->plan->timed && !adds && !d->recording && !cuda->deterministic)
        find_fastest(d, library, r->plan, &m);
    int failure =
        mc_cudnn_plan_run(library, r->plan->plan, m.count, m.ids, m.pointers, r->workspace);
    if (!failure) return MC_OK;
    char text[384];
    mc_cudnn_explain(library, "cudnnBackendExecute", failure, text, sizeof text);
    return mc_cuda_fail(d, MC_ERR_DEVICE, "%s", text);
}

/* The gradient of the bias comes in the type of the inputs: it joins that in f32. */
static mc_status execute_with_bias(mc_device *d, sdpa_run *r, const mc_attention_shape *s)
{
    int64_t size = bias_size(&r->plan->key);
    void *dbias = r->pointers[MC_SDPA_DBIAS];
    mc_status status = d->kernels->zero(d, dbias, 2 * (size_t)size);
    if (!status) status = execute(d, r, s);
    if (status || !s->dbias) return status;
    return d->kernels->scale(d, size, (mc_matrix){dbias, s->bias.dtype, size}, 1.0f,
                             (mc_matrix){s->dbias, MC_F32, size}, true);
}

/* Takes scratch memory, runs, and gives it back: what comes later on the stream may have it. */
static mc_status run(mc_device *d, sdpa_run *r, const mc_attention_shape *s, bool stats)
{
    bool with_bias = r->plan->key.bias && r->plan->key.backward;
    carve_all(r, s->lengths->total, stats);
    size_t bytes = r->used + 256;
    char *block = d->alloc(d, bytes);
    if (!block) return MC_ERR_NOMEM;
    r->block = block + (256 - (uintptr_t)block % 256) % 256;
    carve_all(r, s->lengths->total, stats);
    r->pointers[MC_SDPA_BIAS] = s->bias.data;
    mc_status status = MC_OK;
    if (!mc_cuda_is_planning(d)) status = with_bias ? execute_with_bias(d, r, s) : execute(d, r, s);
    d->free(d, block, bytes);
    return status;
}

/* The plan's inputs and results that both directions have. */
static sdpa_run run_of(sdpa_plan *plan, const mc_attention_call *c)
{
    sdpa_run r = {.plan = plan};
    r.pointers[MC_SDPA_Q] = c->q.data;
    r.pointers[MC_SDPA_K] = c->k.data;
    r.pointers[MC_SDPA_V] = c->v.data;
    r.pointers[MC_SDPA_OUT] = c->out.data;
    r.pointers[MC_SDPA_STATS] = (void *)(uintptr_t)c->log_sum_exp;
    return r;
}

mc_status mc_cudnn_attention(mc_device *d, const void *call)
{
    const mc_attention_call *c = call;
    sdpa_plan *forward;
    mc_status status = find_plans(d, c, &forward, NULL);
    if (status) return status;
    sdpa_run r = run_of(forward, c);
    return run(d, &r, c->shape, !c->log_sum_exp);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The plan expects dout to lie like out, dq like q, and dk and dv like k. What lies otherwise goes
 * through a copy, for the plan was fixed when forward ran. */
typedef struct staged {
    mc_matrix real, used;
    int64_t rows;
    size_t bytes; /* of `used`; 0: it is `real` itself */
} staged;

static mc_status stage(mc_device *d, staged *x, mc_matrix m, mc_matrix like, int64_t rows)
{
    *x = (staged){.real = m, .used = m, .rows = rows};
    if (m.dtype == like.dtype && m.stride == like.stride && is_aligned(m)) return MC_OK;
    size_t bytes = (size_t)(rows * like.stride) * mc_dtype_size(like.dtype);
    x->used = (mc_matrix){d->alloc(d, bytes), like.dtype, like.stride};
    if (!x->used.data) return MC_ERR_NOMEM;
    x->bytes = bytes;
    return MC_OK;
}

static mc_status run_staged(mc_device *d, const mc_attention_call *c, const staged x[4],
                            mc_status (*run_call)(mc_device *, const mc_attention_call *))
{
    int64_t columns = (int64_t)c->shape->heads * c->shape->head_dim,
            key_columns = (int64_t)mc_key_heads(c->shape) * c->shape->head_dim;
    mc_attention_call used = *c;
    used.dout = x[0].used, used.dq = x[1].used, used.dk = x[2].used, used.dv = x[3].used;
    mc_status status = MC_OK;
    if (x[0].bytes) status = mc_sdpa_copy_rows(d, x[0].rows, columns, x[0].real, x[0].used);
    if (!status) status = run_call(d, &used);
    for (int i = 1; i < 4 && !status; i++)
        if (x[i].bytes)
            status = mc_sdpa_copy_rows(d, x[i].rows, i == 1 ? columns : key_columns, x[i].used,
                                       x[i].real);
    return status;
}

mc_status mc_attention_staged(mc_device *d, const mc_attention_call *c,
                              mc_status (*run_call)(mc_device *, const mc_attention_call *))
{
    staged x[4] = {0};
    const mc_matrix matrices[] = {c->dout, c->dq, c->dk, c->dv},
                    like[] = {c->out, c->q, c->k, c->k};
    mc_status status = MC_OK;
    for (int i = 0; i < 4 && !status; i++) {
        const mc_lengths *rows = i < 2 ? c->shape->lengths : mc_key_lengths(c->shape);
        status = stage(d, &x[i], matrices[i], like[i], rows->total);
    }
    if (!status) status = run_staged(d, c, x, run_call);
    for (int i = 0; i < 4; i++)
        if (x[i].bytes) d->free(d, x[i].used.data, x[i].bytes);
    return status;
}

static mc_status run_backward(mc_device *d, const mc_attention_call *c)
{
    sdpa_plan *forward, *backward;
    mc_status status = find_plans(d, c, &forward, &backward);
    if (status) return status;
    sdpa_run r = run_of(backward, c);
    r.pointers[MC_SDPA_DOUT] = c->dout.data;
    r.pointers[MC_SDPA_DQ] = c->dq.data;
    r.pointers[MC_SDPA_DK] = c->dk.data;
    r.pointers[MC_SDPA_DV] = c->dv.data;
    return run(d, &r, c->shape, false);
}

mc_status mc_cudnn_attention_backward(mc_device *d, const void *call)
{
    return mc_attention_staged(d, call, run_backward);
}
