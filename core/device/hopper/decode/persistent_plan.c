/* Plans where each step of a list finds its inputs. Blocks don't run in step, so a right result
 * depends on the plan:
 *
 * - the result of a linear or an attention is published if a later step reads it, and that step
 * polls for it; - the result of a norm or a gate is in every block's shared memory, for the next
 * steps; - where neither is possible, the grid waits for all preceding steps (barrier).
 *
 * A slot of the exchange is reused MC_PERSISTENT_SLOTS results later. By then no block may wait for
 * the old words. A block that has read a whole result to which every block contributed knows that
 * all blocks have reached that step, and have read all that earlier steps read: see `known`. */
#include "core/device/hopper/decode/persistent_plan_internal.h"

#include <string.h>

typedef struct plan {
    mc_persistent_list *list;
    int blocks;
    bool together;
    const void *x, *s;               /* in shared memory: rows for linears, the residual sum */
    int barrier;                     /* the last step that waited for all blocks; 0: none */
    int known;                       /* all blocks have reached this step; -1: unknown */
    int split;                       /* the last attention with parts; -1: none */
    int results;                     /* published so far */
    int reader[MC_PERSISTENT_SLOTS]; /* the last step that reads the slot's result */
} plan;

/* ---- who writes what ------------------------------------------------------------------------- */

typedef struct range {
    const char *data;
    int64_t bytes;
} range;

static bool has(range r, const void *p)
{
    return r.data && (const char *)p >= r.data && (const char *)p < r.data + r.bytes;
}

static range rows_of(const void *data, int rows, int64_t stride, int64_t columns)
{
    return (range){data, 2 * ((rows - 1) * stride + columns)};
}

/* What a step writes for other steps; *second: a norm's residual sum. */
static range result_of(const mc_persistent_list *list, const mc_persistent_step *s, range *second)
{
    *second = (range){0};
    switch ((mc_persistent_kind)s->kind) {
    case MC_PERSISTENT_LINEAR:
        return rows_of(s->linear.y, s->rows, s->linear.y_stride, s->linear.out);
    case MC_PERSISTENT_NORM:
        *second = rows_of(s->norm.s, s->rows, s->norm.columns, s->norm.columns);
        return rows_of(s->norm.y, s->rows, s->norm.columns, s->norm.columns);
    case MC_PERSISTENT_GATED: return rows_of(s->gated.y, s->rows, s->gated.y_stride, s->gated.n);
    case MC_PERSISTENT_ROTARY:
        return rows_of(s->rotary.x, s->rows, s->rotary.x_stride,
                       (int64_t)s->rotary.heads * s->rotary.head_dim);
    case MC_PERSISTENT_ATTENTION: {
        const mc_persistent_shape *h = &list->shape[s->attention.shape];
        return rows_of(s->attention.out, s->rows, h->out_stride, (int64_t)h->heads * h->head_dim);
    }
    }
    return (range){0};
}

/* The last step before k that writes to p; -1: no step does. */
static int writer_of(const mc_persistent_list *list, int k, const void *p)
{
    for (int i = k - 1; i >= 0 && p; i--) {
        range second, first = result_of(list, &list->step[i], &second);
        if (!list->step[i].skip && (has(first, p) || has(second, p))) return i;
    }
    return -1;
}

/* Columns and stride of a result that can be published; 0: it cannot. */
static int columns_of(const mc_persistent_list *list, const mc_persistent_step *s, int *stride)
{
    if (s->kind == MC_PERSISTENT_LINEAR) {
        *stride = s->linear.y_stride;
        return s->linear.out;
    }
    if (s->kind != MC_PERSISTENT_ATTENTION) return 0;
    const mc_persistent_shape *h = &list->shape[s->attention.shape];
    *stride = h->out_stride;
    return h->heads * h->head_dim;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

typedef struct input {
    const void *data; /* NULL: no such input */
    int columns, stride;
} input;

static void inputs_of(const mc_persistent_list *list, const mc_persistent_step *s, input in[3])
{
    in[0] = in[1] = in[2] = (input){0};
    switch ((mc_persistent_kind)s->kind) {
    case MC_PERSISTENT_LINEAR:
        in[0] = (input){s->linear.x, s->linear.in, s->linear.x_stride};
        break;
    case MC_PERSISTENT_NORM:
        in[0] = (input){s->norm.x, s->norm.columns, s->norm.columns};
        in[1] = (input){s->norm.f, s->norm.columns, s->norm.columns};
        break;
    case MC_PERSISTENT_GATED: in[0] = (input){s->gated.x, 2 * s->gated.n, s->gated.x_stride}; break;
    case MC_PERSISTENT_ROTARY: /* too wide to publish: from memory only */
        in[0] = (input){s->rotary.x, MC_PERSISTENT_WIDEST + 1, s->rotary.x_stride};
        break;
    case MC_PERSISTENT_ATTENTION: {
        const mc_persistent_attention *a = &s->attention;
        const mc_persistent_shape *h = &list->shape[a->shape];
        in[0] = (input){a->q, h->heads * h->head_dim, h->q_stride};
        in[1] = (input){a->new_k, h->heads / h->sharing * h->head_dim, h->new_k_stride};
        in[2] = (input){a->new_v, h->heads / h->sharing * h->head_dim, h->new_v_stride};
    }
    }
}

/* Whether input i of a step is in the blocks' shared memory. */
static bool is_resident(const plan *p, const mc_persistent_step *s, int i, const void *data)
{
    return data && i == 0 &&
           ((s->kind == MC_PERSISTENT_LINEAR && data == p->x) ||
            (s->kind == MC_PERSISTENT_NORM && data == p->s));
}

static void keep_resident(plan *p, const mc_persistent_step *s)
{
    if (s->kind == MC_PERSISTENT_LINEAR) p->x = s->linear.x;
    if (s->kind == MC_PERSISTENT_GATED) p->x = s->gated.y;
    if (s->kind != MC_PERSISTENT_NORM) return;
    p->s = s->norm.f ? s->norm.s : s->norm.x;
    if (s->norm.weight) p->x = s->norm.y;
}

/* Number of results between steps `from` and k that could be published. */
static int results_between(const mc_persistent_list *list, int from, int k)
{
    int count = 0, stride;
    for (int i = from + 1; i < k; i++) count += columns_of(list, &list->step[i], &stride) > 0;
    return count;
}

/* Whether step k can read an input from the published result of step `from`. */
static bool is_published(const mc_persistent_list *list, int from, int k, input in)
{
    const mc_persistent_step *s = &list->step[from];
    range second, result = result_of(list, s, &second);
    int stride, all = columns_of(list, s, &stride);
    int64_t at = ((const char *)in.data - result.data) / 2;
    return all && all <= MC_PERSISTENT_WIDEST && at % 4 == 0 && at + in.columns <= all &&
           s->rows == list->step[k].rows && (s->rows == 1 || stride == in.stride) &&
           results_between(list, from, k) < MC_PERSISTENT_SLOTS;
}

static void wait_for_all(plan *p, int k)
{
    p->list->step[k].barrier = 1;
    p->barrier = k;
    if (!p->together) p->x = p->s = NULL; /* a new launch begins with empty shared memory */
}

/* Whether step k has to wait for all preceding steps. Without `together`: whether it reads a result
 * of the same launch. */
static bool has_to_wait(const plan *p, int k)
{
    const mc_persistent_step *s = &p->list->step[k];
    input in[3];
    inputs_of(p->list, s, in);
    for (int i = 0; i < 3; i++) {
        int from = is_resident(p, s, i, in[i].data) ? -1 : writer_of(p->list, k, in[i].data);
        if (from >= p->barrier && !(p->together && is_published(p->list, from, k, in[i])))
            return true;
    }
    return false;
}

static void find_inputs(plan *p, int k)
{
    mc_persistent_step *s = &p->list->step[k];
    input in[3];
    inputs_of(p->list, s, in);
    if (has_to_wait(p, k)) wait_for_all(p, k);
    for (int i = 0; i < 3; i++) {
        int from = writer_of(p->list, k, in[i].data);
        s->from[i] = MC_PERSISTENT_IN_MEMORY;
        if (is_resident(p, s, i, in[i].data)) {
            s->from[i] = MC_PERSISTENT_RESIDENT;
        } else if (from >= 0 && is_published(p->list, from, k, in[i])) {
            s->from[i] = (int16_t)from;
            p->list->step[from].publish = 0; /* give_slot chooses its slot */
        }
    }
    keep_resident(p, s);
}

/* ---- attention ------------------------------------------------------------------------------- */

static bool same_turns(const mc_persistent_rotary *a, const mc_persistent_rotary *b)
{
    return a->positions == b->positions && a->log2_base == b->log2_base && a->sign == b->sign &&
           a->pairs == b->pairs && a->halves == b->halves && a->magnitude == b->magnitude &&
           a->factor == b->factor && memcmp(a->keep, b->keep, sizeof a->keep) == 0;
}

/* Whether a rotation covers all heads of an attention's rows at `data`. */
static bool turns(const mc_persistent_step *s, const mc_persistent_shape *h, int heads,
                  const void *data, int stride)
{
    const mc_persistent_rotary *r = &s->rotary;
    int64_t at = ((const char *)data - (const char *)r->x) / 2, size = (int64_t)r->head_dim;
    return data && r->head_dim == h->head_dim && at >= 0 && at % size == 0 &&
           at / size + heads <= r->heads && (s->rows == 1 || r->x_stride == stride) &&
           r->pairs <= MC_PERSISTENT_THREADS;
}

/* Whether attention k may rotate the new token's key. It does so in place, so other heads that
 * share the key must not read it from memory. */
static bool may_turn_key(const plan *p, int k, int rotary)
{
    const mc_persistent_list *list = p->list;
    const mc_persistent_shape *h = &list->shape[list->step[k].attention.shape];
    if (h->sharing == 1) return true;
    input in[3];
    inputs_of(list, &list->step[k], in);
    int from = writer_of(list, rotary, in[1].data);
    return p->together && from >= 0 && is_published(list, from, k, in[1]);
}

/* Makes the rotations directly before attention k part of it. */
static void take_rotations(const plan *p, int k)
{
    mc_persistent_list *list = p->list;
    mc_persistent_attention *a = &list->step[k].attention;
    const mc_persistent_shape *h = &list->shape[a->shape];
    const int shared = h->heads / h->sharing;
    a->rotary[0] = a->rotary[1] = -1;
    for (int i = k - 1; i >= 0 && list->step[i].kind == MC_PERSISTENT_ROTARY; i--) {
        mc_persistent_step *s = &list->step[i];
        bool q = a->rotary[0] < 0 && turns(s, h, h->heads, a->q, h->q_stride),
             key = a->rotary[1] < 0 && turns(s, h, shared, a->new_k, h->new_k_stride) &&
                   may_turn_key(p, k, i);
        int heads = q * h->heads + key * shared,
            other = a->rotary[0] >= 0 ? a->rotary[0] : a->rotary[1];
        if (heads != s->rotary.heads || s->rows != list->step[k].rows ||
            (other >= 0 && !same_turns(&s->rotary, &list->step[other].rotary)))
            return;
        if (q) a->rotary[0] = (int16_t)i;
        if (key) a->rotary[1] = (int16_t)i;
        s->skip = 1;
    }
}

/* 1, 2 or 4 parts, each with enough keys to be worth it. The first part's block waits for the
 * others, so all must run at the same time. The next attention with parts reuses their words, which
 * needs all blocks to have passed this one. */
static int parts_of(plan *p, int k)
{
    const mc_persistent_list *list = p->list;
    const mc_persistent_step *s = &list->step[k];
    const mc_persistent_attention *a = &s->attention;
    const mc_persistent_shape *h = &list->shape[a->shape];
    int tasks = s->rows * h->heads, lanes = 1, parts = MC_PERSISTENT_PARTS;
    while (lanes * 8 < h->head_dim) lanes *= 2;
    int each = MC_PERSISTENT_THREADS / lanes * MC_PERSISTENT_KEYS;
    bool turned_in_place =
        (a->rotary[0] >= 0 && s->from[0] < 0) || (a->rotary[1] >= 0 && s->from[1] < 0);
    if (!p->together || turned_in_place || p->known < p->split) return 1;
    while (parts > 1 &&
           (parts / 2 * each >= h->longest || parts * tasks > p->blocks ||
            parts * tasks * mc_persistent_part_words(h->head_dim) > MC_PERSISTENT_SLOT_WORDS))
        parts /= 2;
    if (parts > 1) p->split = k;
    return parts;
}

/* ---- slots of the exchange ------------------------------------------------------------------- */

/* Updates `known`: if step k reads a whole result of all blocks, they have reached that step. */
static void learn(plan *p, int k)
{
    const mc_persistent_list *list = p->list;
    const mc_persistent_step *s = &list->step[k];
    input in[3];
    inputs_of(list, s, in);
    if (s->barrier && p->known < k - 1) p->known = k - 1;
    if (s->kind == MC_PERSISTENT_ATTENTION) return; /* blocks read only parts of results */
    for (int i = 0; i < 2; i++) {
        int from = s->from[i];
        if (from <= p->known || list->step[from].kind != MC_PERSISTENT_LINEAR) continue;
        int out = list->step[from].linear.out;
        if (in[i].columns == out && out >= p->blocks) p->known = from;
    }
}

static void give_slot(plan *p, int k)
{
    mc_persistent_step *s = &p->list->step[k];
    if (s->publish < 0) return;
    int slot = p->results++ % MC_PERSISTENT_SLOTS;
    if (p->results > MC_PERSISTENT_SLOTS && p->reader[slot] > p->known && p->together) {
        s->barrier = 1;
        p->known = k - 1;
    }
    s->publish = (int8_t)slot;
    p->reader[slot] = k;
    for (int i = k + 1; i < p->list->count; i++)
        for (int j = 0; j < 3; j++)
            if (p->list->step[i].from[j] == k) p->reader[slot] = i;
}

/* Where in the exchange a step finds its inputs. */
static void find_words(mc_persistent_list *list, mc_persistent_step *s)
{
    input in[3];
    inputs_of(list, s, in);
    for (int i = 0; i < 3; i++) {
        if (s->from[i] < 0) continue;
        const mc_persistent_step *from = &list->step[s->from[i]];
        range second, result = result_of(list, from, &second);
        int64_t column = ((const char *)in[i].data - result.data) / 2;
        s->words[i] = (uint16_t)(from->publish * (MC_PERSISTENT_WIDEST / 4) + column / 4);
    }
}

/* Segments begin at multiples of 16 bytes, with 8-bit weights too. */
static void divide_row(mc_persistent_step *s, int segment)
{
    const int in = s->linear.in;
    s->split = 0;
    while (s->split < 2 && segment << s->split < in && in % (32 << s->split) == 0) s->split++;
    const int most = segment << s->split, unit = 16 << s->split;
    s->chunks = (uint8_t)((in + most - 1) / most);
    for (int n = s->chunks; n < 2 * s->chunks; n++) /* prefer equal chunks */
        if (in % (n * unit) == 0) {
            s->chunks = (uint8_t)n;
            break;
        }
    s->linear.chunk = (uint16_t)((in + s->chunks * unit - 1) / (s->chunks * unit) * unit);
}

/* Blocks with one row more of a weight come after those of the preceding weight. */
static void turn_rows(mc_persistent_list *list, int blocks)
{
    for (int k = 0, behind = 0; k < list->count; k++) {
        mc_persistent_step *s = &list->step[k];
        if (s->kind != MC_PERSISTENT_LINEAR) continue;
        s->turn = (uint8_t)((behind * 8 + blocks / 2) / blocks % 8);
        behind = (behind + s->linear.more) % blocks;
    }
}

int mc_persistent_divide(mc_persistent_list *list, int blocks, int terms)
{
    int largest = 0, next = list->count;
    for (int k = list->count - 1; k >= 0; k--) {
        mc_persistent_step *s = &list->step[k];
        s->next = (uint16_t)next;
        if (s->kind != MC_PERSISTENT_LINEAR) continue;
        next = k;
        s->linear.each = (uint16_t)(s->linear.out / blocks);
        s->linear.more = (uint16_t)(s->linear.out % blocks);
        divide_row(s, terms);
        const int bytes = (s->linear.chunk >> s->split) * 16;
        if (bytes > largest) largest = bytes;
    }
    turn_rows(list, blocks);
    return largest;
}

void mc_persistent_plan(mc_persistent_list *list, int blocks, bool together)
{
    plan p = {.list = list, .blocks = blocks, .together = together, .known = -1, .split = -1};
    for (int k = 0; k < list->count; k++) {
        mc_persistent_step *s = &list->step[k];
        s->barrier = s->skip = 0;
        s->publish = -1;
    }
    for (int k = 0; k < list->count; k++)
        if (list->step[k].kind == MC_PERSISTENT_ATTENTION) take_rotations(&p, k);
    for (int k = 0; k < list->count; k++)
        if (!list->step[k].skip) find_inputs(&p, k);
    for (int k = 0; k < list->count; k++) {
        if (list->step[k].skip) continue;
        learn(&p, k);
        if (list->step[k].kind == MC_PERSISTENT_ATTENTION)
            list->step[k].attention.parts = (int16_t)parts_of(&p, k);
        give_slot(&p, k);
        find_words(list, &list->step[k]);
    }
}

int mc_persistent_range(const mc_persistent_list *list, int first, bool together)
{
    int end = first + 1;
    while (end < list->count && (together || !list->step[end].barrier)) end++;
    return end;
}
