#include "core/device/hopper/decode/deferred_internal.h"

#include <string.h>
#include "core/base/memory_internal.h"
#include "core/device/cuda/runtime/routes_internal.h"
#include "core/device/hopper/decode/persistent_internal.h"

/* Steps of more than ALWAYS_ROWS rows are deferred if their norms have such a width. For narrower
 * models separate kernels are as fast; wider rows leave too little shared memory for weights. */
enum { ALWAYS_ROWS = 2, LEAST_WIDTH = 1024, MOST_WIDTH = 2048 };
/* Nor does a list pay if the gates of 16-bit weights are wider than this, as each block computes
 * all of them for itself. Llama 3 8B takes 4.60 ms as a list, 4.09 ms by separate kernels; with
 * 8-bit weights 2.73 and 3.88 ms (one row, an H200). */
enum { MOST_GATES = 8192 };

enum { INPUTS = 3, READS = 5, WRITES = 3, PARAMETERS = 3, FREES = 4 * MC_PERSISTENT_MOST };

/* Rows of `width` bytes, `pitch` bytes apart (0: one row); all zeros for no memory. */
typedef struct area {
    uintptr_t begin, end;
    size_t width, pitch;
} area;

/* What a call reads (of what other calls may have computed; the step's inputs first), writes (the
 * step's result first, of a norm y and then s), and uses as parameters, which a launch may read
 * before the preceding calls have run. */
typedef struct touched {
    area reads[READS], writes[WRITES], parameters[PARAMETERS];
} touched;

/* A call's arguments, in case it is launched by itself after all. */
typedef union arguments {
    mc_linear_call linear;
    struct {
        int64_t rows;
        float alpha;
        mc_matrix x;
        mc_matrix8 q;
        mc_matrix bias;
        mc_activation activation;
        mc_matrix y;
    } quantized;
    mc_residual_norm_call norm;
    struct {
        int64_t rows, columns;
        mc_matrix x, f;
        mc_dropout_mask dropout;
        mc_matrix s;
    } sum;
    struct {
        int64_t rows, n;
        mc_activation activation;
        mc_matrix x, y;
    } gated;
    struct {
        int64_t rows;
        mc_rotation rotation;
        const int32_t *positions;
        mc_matrix x;
    } rotary;
    struct {
        mc_cached_attention shape;
        mc_matrix q, k, v, out;
    } attention;
} arguments;

typedef struct late_call {
    mc_persistent_step step;
    arguments call;
    touched memory;
    int level; /* calls of a level do not depend on each other, except those without a phase */
} late_call;

typedef struct late_free {
    void *data;
    size_t bytes;
} late_free;

struct mc_cuda_defer {
    int count, frees, levels;
    bool asked;       /* MC_ROUTE names the persistent kernel */
    bool one_by_one;  /* the list's calls are being launched separately */
    mc_status failed; /* status of a launch whose caller could not return it */
    char why[sizeof((mc_device *)0)->failure];
    late_call call[MC_PERSISTENT_MOST];
    late_free free[FREES];
    mc_persistent_list list; /* shapes are added with each call, steps at the launch */
};

static struct mc_cuda_defer *list_of(mc_device *d) { return mc_cuda_of(d)->deferred; }

/* ---- opening and closing --------------------------------------------------------------------- */

static bool is_possible(mc_device *d)
{
    return !mc_cuda_of(d)->several_ranks && mc_persistent_usable(d);
}

bool mc_cuda_defer_begin(mc_device *d)
{
    mc_cuda_device *c = mc_cuda_of(d);
    const mc_route *route;
    if (mc_route_choose(d, MC_ROUTE_DECODE, &(mc_decode_call){.rows = 1}, &route)) return false;
    if (!is_possible(d)) return true;
    if (!(c->deferred = mc_calloc(1, sizeof *c->deferred)))
        return mc_cuda_fail(d, MC_ERR_NOMEM, "out of memory for a list of calls") == MC_OK;
    cudaError_t error = cudaMalloc(&c->persistent, MC_PERSISTENT_MEMORY);
    if (!error) error = cudaMemsetAsync(c->persistent, 0, MC_PERSISTENT_MEMORY, c->stream);
    return mc_cuda_check(d, error, "memory for a list of calls") == MC_OK;
}

void mc_cuda_defer_end(mc_device *d)
{
    mc_cuda_device *c = mc_cuda_of(d);
    if (c->persistent) cudaFree(c->persistent);
    mc_free(c->deferred);
    c->persistent = NULL;
    c->deferred = NULL;
}

/* ---- memory that calls touch ----------------------------------------------------------------- */

static area bytes_of(const void *data, size_t bytes)
{
    uintptr_t at = (uintptr_t)data;
    return data ? (area){at, at + bytes, bytes, 0} : (area){0};
}

static area rows_of(mc_matrix m, int64_t rows, int64_t columns)
{
    const size_t size = mc_dtype_size(m.dtype);
    area a = bytes_of(m.data, (size_t)((rows - 1) * m.stride + columns) * size);
    if (!m.data || rows == 1) return a;
    a.width = (size_t)columns * size;
    a.pitch = (size_t)m.stride * size;
    return a;
}

static bool overlap(const area *a, const area *b)
{
    if (a->begin >= b->end || b->begin >= a->end) return false;
    if (a->begin > b->begin) return overlap(b, a);
    if (a->pitch != b->pitch || !a->pitch) return true;
    size_t column = (b->begin - a->begin) % a->pitch;
    return column < a->width || column + b->width > a->pitch;
}

static bool meet(const area *a, int a_count, const area *b, int b_count)
{
    for (int i = 0; i < a_count; i++)
        for (int k = 0; k < b_count; k++)
            if (overlap(&a[i], &b[k])) return true;
    return false;
}

/* A rotation changes its rows in place: it writes again what an earlier call wrote. */
static bool in_place(const late_call *c) { return c->step.kind == MC_PERSISTENT_ROTARY; }

/* Whether a later call uses an earlier one's memory for something else. */
static bool reuses(const late_call *later, const late_call *earlier)
{
    const touched *a = &later->memory, *b = &earlier->memory;
    return meet(a->parameters, PARAMETERS, b->writes, WRITES) ||
           meet(a->writes, WRITES, b->reads, READS) ||
           (!in_place(later) && meet(a->writes, WRITES, b->writes, WRITES));
}

/* ---- the list -------------------------------------------------------------------------------- */

/* The first call of a list of more than ALWAYS_ROWS rows is a norm, which has the width. */
mc_status mc_cuda_defer_takes(mc_device *d, const void *call, bool asked)
{
    const mc_decode_call *c = call;
    if (list_of(d)) list_of(d)->asked = asked;
    if (!is_possible(d))
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "several ranks, or %s, which is not a Hopper",
                            mc_cuda_of(d)->gpu);
    if (c->rows < 1 || c->rows > MC_PERSISTENT_ROWS)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "other than 1 to %d rows", MC_PERSISTENT_ROWS);
    bool pays = c->begun || c->rows <= ALWAYS_ROWS ||
                (c->norm_width >= LEAST_WIDTH && c->norm_width <= MOST_WIDTH);
    return asked || pays ? MC_OK : MC_ERR_UNSUPPORTED;
}

/* Keeps d->failure for the next call that can return it. */
static void fail_later(mc_device *d, mc_status status)
{
    struct mc_cuda_defer *p = list_of(d);
    if ((p->failed = status)) memcpy(p->why, d->failure, sizeof p->why);
}

/* The next call's place, or NULL if it is not to be deferred. norm_width: 0 except for norms. */
static late_call *next_call(mc_device *d, int64_t rows, int64_t norm_width)
{
    struct mc_cuda_defer *p = list_of(d);
    const mc_route *route = NULL;
    if (!p || !mc_cuda_of(d)->listing || p->one_by_one || mc_cuda_is_planning(d)) return NULL;
    const mc_decode_call call = {rows, norm_width, p->count > 0};
    if (!p->failed) fail_later(d, mc_route_choose(d, MC_ROUTE_DECODE, &call, &route));
    if (!route || route->takes != mc_cuda_defer_takes) return NULL;
    if (p->count == MC_PERSISTENT_MOST) mc_cuda_catch_up_later(d);
    if (p->failed) return NULL;
    late_call *c = &p->call[p->count];
    memset(c, 0, sizeof *c);
    return c;
}

/* For a call whose dtypes, sizes or addresses no step supports: returns false (not deferred); an
 * error if the persistent kernel is forced. c: the result of next_call. */
static bool leave(mc_device *d, const late_call *c, int64_t rows)
{
    if (c)
        fail_later(d, mc_route_refuse(d, MC_ROUTE_DECODE, &(mc_decode_call){.rows = rows},
                                      "a dtype other than f16 and bf16, or such a size"));
    return false;
}

/* What every block computes for itself needs no phase. */
static bool has_phase(const late_call *c)
{
    return c->step.kind == MC_PERSISTENT_LINEAR || c->step.kind == MC_PERSISTENT_ATTENTION;
}

/* The column of an input in a call's results, which are side by side; MC_PERSISTENT_NOWHERE if the
 * input is not some columns of one result. */
static uint16_t column_of(const area *input, const touched *call)
{
    size_t before = 0;
    for (const area *w = call->writes; w < call->writes + WRITES; before += w++->width) {
        size_t first = input->begin - w->begin, column = (before + first) / 2;
        if (input->begin >= w->begin && first + input->width <= w->width &&
            input->pitch == w->pitch && column < MC_PERSISTENT_NOWHERE)
            return (uint16_t)column;
    }
    return MC_PERSISTENT_NOWHERE;
}

/* The number of the list's first input that begins there; the newest call is after the list. */
static uint16_t number_of(const struct mc_cuda_defer *p, uintptr_t begin)
{
    int n = 0;
    while (p->call[n / INPUTS].memory.reads[n % INPUTS].begin != begin) n++;
    return (uint16_t)n;
}

/* Finds the steps that compute the call's inputs: of all that write to one, the last to run. The
 * call's level is the first one after those of all calls whose results it reads. */
static void find_sources(const struct mc_cuda_defer *p, late_call *c)
{
    c->level = 0;
    for (int r = 0; r < READS; r++) {
        const area *input = &c->memory.reads[r];
        const late_call *from = NULL;
        for (int i = p->count - 1; i >= 0; i--) {
            const late_call *e = &p->call[i];
            if (!meet(input, 1, e->memory.writes, WRITES)) continue;
            if (c->level < e->level + has_phase(e)) c->level = e->level + has_phase(e);
            if (!from || e->level > from->level) from = e;
        }
        if (r >= INPUTS) continue;
        c->step.from[r] = (int16_t)(from ? from - p->call : MC_PERSISTENT_IN_MEMORY);
        c->step.at[r] = from ? column_of(input, &from->memory) : number_of(p, input->begin);
    }
}

/* Launches the list, and begins a new one with the call that was at its end. */
static bool begin_anew(mc_device *d, const late_call *c)
{
    struct mc_cuda_defer *p = list_of(d);
    late_call own = *c;
    bool attends = own.step.kind == MC_PERSISTENT_ATTENTION;
    mc_persistent_shape shape = p->list.shape[attends ? own.step.attention.shape : 0];
    mc_cuda_catch_up_later(d);
    if (p->failed) return false;
    if (attends) {
        own.step.attention.shape = 0;
        p->list.shape[p->list.shapes++] = shape;
    }
    p->call[0] = own;
    return true;
}

/* Adds the call, which next_call placed at the list's end. */
static bool put(mc_device *d, const late_call *c)
{
    struct mc_cuda_defer *p = list_of(d);
    bool fits = !p->count || c->step.dtype == p->call[0].step.dtype;
    for (int i = 0; i < p->count && fits; i++) fits = !reuses(c, &p->call[i]);
    if (!fits && !begin_anew(d, c)) return false;
    late_call *last = &p->call[p->count];
    find_sources(p, last);
    if (last->level >= p->levels) p->levels = last->level + 1;
    p->count++;
    return true;
}

/* Sorts steps by level; those of a level keep their order. So a step's inputs are before it. */
static void sort(struct mc_cuda_defer *p)
{
    int16_t place[MC_PERSISTENT_MOST];
    p->list.count = 0;
    for (int level = 0; level < p->levels; level++)
        for (int i = 0; i < p->count; i++) {
            if (p->call[i].level != level) continue;
            mc_persistent_step *s = &p->list.step[p->list.count];
            *s = p->call[i].step;
            for (int k = 0; k < INPUTS; k++)
                if (s->from[k] >= 0) s->from[k] = place[s->from[k]];
            place[i] = (int16_t)p->list.count++;
        }
}

static void free_late(mc_device *d)
{
    struct mc_cuda_defer *p = list_of(d);
    for (int i = 0; i < p->frees; i++) d->free(d, p->free[i].data, p->free[i].bytes);
    p->frees = 0;
}

/* Whether the list is faster as one kernel: see MOST_GATES. */
static bool pays(const struct mc_cuda_defer *p)
{
    int64_t gates = 0, widest = 0; /* widest: the longest result of a linear with 16-bit weights */
    for (int i = 0; i < p->count; i++) {
        const mc_persistent_step *s = &p->call[i].step;
        if (s->kind == MC_PERSISTENT_GATED && s->gated.n > gates) gates = s->gated.n;
        if (s->kind == MC_PERSISTENT_LINEAR && !s->linear.scale && s->linear.out > widest)
            widest = s->linear.out;
    }
    return gates <= MOST_GATES || widest < 2 * gates;
}

static mc_status call_now(mc_device *d, const late_call *c)
{
    const mc_kernels *k = d->kernels;
    const arguments *a = &c->call;
    switch ((mc_persistent_kind)c->step.kind) {
    case MC_PERSISTENT_LINEAR:
        if (!c->step.linear.scale) return k->linear(d, &a->linear);
        return k->linear_quantized(d, a->quantized.rows, a->quantized.alpha, a->quantized.x,
                                   a->quantized.q, a->quantized.bias, a->quantized.activation,
                                   a->quantized.y);
    case MC_PERSISTENT_NORM:
        if (c->step.norm.weight) return k->residual_norm(d, &a->norm);
        return k->residual_sum(d, a->sum.rows, a->sum.columns, a->sum.x, a->sum.f, a->sum.dropout,
                               a->sum.s);
    case MC_PERSISTENT_GATED:
        return k->gated(d, a->gated.rows, a->gated.n, a->gated.activation, a->gated.x, a->gated.y);
    case MC_PERSISTENT_ROTARY:
        return k->rotary(d, a->rotary.rows, a->rotary.rotation, a->rotary.positions, a->rotary.x);
    case MC_PERSISTENT_ATTENTION:
        return k->attention_cached(d, &a->attention.shape, a->attention.q, a->attention.k,
                                   a->attention.v, a->attention.out);
    }
    return MC_ERR_UNSUPPORTED;
}

/* Launches the calls in their original order, each by its own kernel. */
static mc_status launch_one_by_one(mc_device *d)
{
    struct mc_cuda_defer *p = list_of(d);
    const int count = p->count;
    mc_status status = MC_OK;
    p->one_by_one = true;
    p->count = 0; /* empties the list: these launches need not flush it */
    for (int i = 0; i < count && !status; i++) status = call_now(d, &p->call[i]);
    p->one_by_one = false;
    return status;
}

static mc_status launch_together(mc_device *d)
{
    struct mc_cuda_defer *p = list_of(d);
    sort(p);
    return mc_persistent_run(d, &p->list);
}

static mc_status launch(mc_device *d)
{
    struct mc_cuda_defer *p = list_of(d);
    mc_status status = p->asked || pays(p) ? launch_together(d) : launch_one_by_one(d);
    p->count = p->levels = p->list.count = p->list.shapes = 0;
    free_late(d); /* later work on the stream may reuse the memory */
    return status;
}

mc_status mc_cuda_catch_up(mc_device *d)
{
    struct mc_cuda_defer *p = list_of(d);
    if (!p) return MC_OK;
    if (p->failed) {
        mc_status status = mc_cuda_fail(d, p->failed, "%s", p->why);
        p->failed = MC_OK;
        return status;
    }
    return p->count ? launch(d) : MC_OK;
}

void mc_cuda_catch_up_later(mc_device *d)
{
    struct mc_cuda_defer *p = list_of(d);
    if (!p || !p->count || p->failed) return;
    fail_later(d, launch(d));
}

bool mc_cuda_defer_free(mc_device *d, void *data, size_t bytes)
{
    struct mc_cuda_defer *p = list_of(d);
    if (!p || !p->count) return false;
    if (p->frees == FREES) mc_cuda_catch_up_later(d);
    if (!p->count) return false;
    p->free[p->frees++] = (late_free){data, bytes};
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

bool mc_cuda_defer_linear(mc_device *d, const mc_linear_call *l)
{
    late_call *c = next_call(d, l->rows, 0);
    if (!c || !mc_persistent_take_linear(d, l, &c->step)) return leave(d, c, l->rows);
    c->call.linear = *l;
    c->memory =
        (touched){.reads = {rows_of(l->x, l->rows, l->in)},
                  .writes = {rows_of(l->y, l->rows, l->out)},
                  .parameters = {rows_of(l->weight, l->out, l->in), rows_of(l->bias, 1, l->out)}};
    return put(d, c);
}

bool mc_cuda_defer_linear_quantized(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                    mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                    mc_matrix y)
{
    late_call *c = next_call(d, rows, 0);
    if (!c || !mc_persistent_take_quantized(d, rows, alpha, x, q, bias, activation, y, &c->step))
        return leave(d, c, rows);
    c->call = (arguments){.quantized = {rows, alpha, x, q, bias, activation, y}};
    c->memory = (touched){.reads = {rows_of(x, rows, q.columns)},
                          .writes = {rows_of(y, rows, q.rows)},
                          .parameters = {bytes_of(q.data, (size_t)(q.rows * q.columns)),
                                         bytes_of(q.scale, (size_t)q.rows * sizeof *q.scale),
                                         rows_of(bias, 1, q.rows)}};
    return put(d, c);
}

bool mc_cuda_defer_residual_norm(mc_device *d, const mc_residual_norm_call *call)
{
    mc_residual_norm_call n = *call;
    late_call *c = next_call(d, n.rows, n.columns);
    if (!n.f.data && n.s.data == n.x.data) n.s.data = NULL;
    if (!c || n.bytes || !mc_persistent_take_norm(&n, &c->step)) return leave(d, c, n.rows);
    c->call.norm = *call;
    c->memory =
        (touched){.reads = {rows_of(n.x, n.rows, n.columns), rows_of(n.f, n.rows, n.columns)},
                  .writes = {rows_of(n.y, n.rows, n.columns), rows_of(n.s, n.rows, n.columns)},
                  .parameters = {rows_of(n.weight, 1, n.columns), rows_of(n.bias, 1, n.columns)}};
    return put(d, c);
}

bool mc_cuda_defer_residual_sum(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                mc_matrix f, mc_dropout_mask dropout, mc_matrix s)
{
    late_call *c = next_call(d, rows, 0);
    if (!c || !mc_persistent_take_sum(d, rows, columns, x, f, dropout, s, &c->step))
        return leave(d, c, rows);
    c->call = (arguments){.sum = {rows, columns, x, f, dropout, s}};
    c->memory = (touched){.reads = {rows_of(x, rows, columns), rows_of(f, rows, columns)},
                          .writes = {{0}, rows_of(s, rows, columns)}};
    return put(d, c);
}

bool mc_cuda_defer_gated(mc_device *d, int64_t rows, int64_t n, mc_activation activation,
                         mc_matrix x, mc_matrix y)
{
    late_call *c = next_call(d, rows, 0);
    if (!c || !mc_persistent_take_gated(d, rows, n, activation, x, y, &c->step))
        return leave(d, c, rows);
    c->call = (arguments){.gated = {rows, n, activation, x, y}};
    c->memory = (touched){.reads = {rows_of(x, rows, 2 * n)}, .writes = {rows_of(y, rows, n)}};
    return put(d, c);
}

bool mc_cuda_defer_rotary(mc_device *d, int64_t rows, mc_rotation rotation,
                          const int32_t *positions, mc_matrix x)
{
    late_call *c = next_call(d, rows, 0);
    if (!c || !mc_persistent_take_rotary(d, rows, rotation, positions, x, &c->step))
        return leave(d, c, rows);
    c->call = (arguments){.rotary = {rows, rotation, positions, x}};
    area turned = rows_of(x, rows, (int64_t)rotation.heads * rotation.head_dim);
    c->memory = (touched){.reads = {turned}, .writes = {turned}};
    return put(d, c);
}

/* Keys and values in pages, or of sequences with any first row, may be in any of the cache's rows:
 * the first row stands for all of them. */
bool mc_cuda_defer_attention_cached(mc_device *d, const mc_cached_attention *shape, mc_matrix q,
                                    mc_matrix k, mc_matrix v, mc_matrix out)
{
    int64_t rows = shape->sequences, width = (int64_t)shape->heads * shape->head_dim,
            kept_width = (int64_t)mc_cached_key_heads(shape) * shape->head_dim;
    int64_t kept = shape->first || shape->pages ? 1 : rows * shape->capacity;
    late_call *c = next_call(d, rows, 0);
    if (!c || !mc_persistent_take_attention(d, &list_of(d)->list, shape, q, k, v, out, &c->step))
        return leave(d, c, rows);
    c->call = (arguments){.attention = {*shape, q, k, v, out}};
    area keys = rows_of(k, kept, kept_width), values = rows_of(v, kept, kept_width), none = {0};
    bool grows = shape->new_k.data;
    c->memory = (touched){
        .reads = {rows_of(q, rows, width), rows_of(shape->new_k, rows, kept_width),
                  rows_of(shape->new_v, rows, kept_width), keys, values},
        .writes = {rows_of(out, rows, width), grows ? keys : none, grows ? values : none}};
    return put(d, c);
}
