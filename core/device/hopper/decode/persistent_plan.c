/* Plans where each step of a list finds its inputs, which it names (mc_persistent_step.from).
 * Blocks don't run in step, so a right result depends on the plan. The result of a linear or an
 * attention is published if a later step reads it, and that step polls for it. The result of a norm
 * or a gate is in every block's shared memory, for the next steps. Where neither is possible, the
 * grid waits for all preceding steps (barrier).
 *
 * A slot of the exchange is reused MC_PERSISTENT_SLOTS results later. By then no block may wait for
 * the old words. A block that has read a whole result to which every block contributed knows that
 * all blocks have reached that step, and have read all that earlier steps read: see `known`. */
#include "core/device/hopper/decode/persistent_plan_internal.h"

#include <string.h>

/* Rows that a step reads or computes: `from` and `at` as in mc_persistent_step. */
typedef struct value {
    int from, at, rows, columns;
} value;

typedef struct plan {
    mc_persistent_list *list;
    int blocks;
    bool together;
    value x, s;                      /* in shared memory: rows for linears, the residual sum */
    int barrier;                     /* the last step that waited for all blocks; 0: none */
    int known;                       /* all blocks have reached this step; -1: unknown */
    int split;                       /* the last attention with parts; -1: none */
    int results;                     /* published so far */
    int reader[MC_PERSISTENT_SLOTS]; /* the last step that reads the slot's result */
} plan;

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Columns of a result that can be published; 0: it cannot. */
static int result_columns(const mc_persistent_list *list, int k)
{
    const mc_persistent_step *s = &list->step[k];
    if (s->kind == MC_PERSISTENT_LINEAR) return s->linear.out;
    if (s->kind != MC_PERSISTENT_ATTENTION) return 0;
    const mc_persistent_shape *h = &list->shape[s->attention.shape];
    return h->heads * h->head_dim;
}

/* Columns of the first input, and of a norm's second. */
static int input_columns(const mc_persistent_step *s)
{
    if (s->kind == MC_PERSISTENT_LINEAR) return s->linear.in;
    if (s->kind == MC_PERSISTENT_NORM) return s->norm.columns;
    return s->kind == MC_PERSISTENT_GATED ? 2 * s->gated.n : 0;
}

static value first_input(const mc_persistent_step *s)
{
    return (value){s->from[0], s->at[0], s->rows, input_columns(s)};
}

/* Whether a step's first input is in the blocks' shared memory. */
static bool is_resident(const plan *p, const mc_persistent_step *s)
{
    const value in = first_input(s), *kept = s->kind == MC_PERSISTENT_LINEAR ? &p->x : &p->s;
    return (s->kind == MC_PERSISTENT_LINEAR || s->kind == MC_PERSISTENT_NORM) &&
           in.at != MC_PERSISTENT_NOWHERE && memcmp(&in, kept, sizeof in) == 0;
}

/* Updates what is in shared memory after step k, which read `in`. */
static void keep_resident(plan *p, int k, value in)
{
    const mc_persistent_step *s = &p->list->step[k];
    const int columns = s->norm.columns;
    if (s->kind == MC_PERSISTENT_LINEAR) p->x = in;
    if (s->kind == MC_PERSISTENT_GATED) p->x = (value){k, 0, s->rows, s->gated.n};
    if (s->kind != MC_PERSISTENT_NORM) return;
    p->s = s->norm.f ? (value){k, s->norm.y ? columns : 0, s->rows, columns} : in;
    if (s->norm.weight) p->x = (value){k, 0, s->rows, columns};
}

/* Whether step k can read columns from `at` on from the published result of step `from`. */
static bool is_published(const mc_persistent_list *list, int from, int at, int k)
{
    const int all = from < 0 ? 0 : result_columns(list, from);
    if (list->step[k].kind == MC_PERSISTENT_ROTARY || all > MC_PERSISTENT_WIDEST || at >= all ||
        at % 4 != 0 || list->step[from].rows != list->step[k].rows)
        return false;
    int results = 0; /* between the two steps that could be published */
    for (int i = from + 1; i < k; i++) results += result_columns(list, i) > 0;
    return results < MC_PERSISTENT_SLOTS;
}

static void wait_for_all(plan *p, int k)
{
    p->list->step[k].barrier = 1;
    p->barrier = k;
    if (!p->together) p->x = p->s = (value){0}; /* a new launch begins with empty shared memory */
}

/* Whether step k has to wait for all preceding steps. Without `together`: whether it reads a result
 * of the same launch. */
static bool has_to_wait(const plan *p, int k)
{
    const mc_persistent_step *s = &p->list->step[k];
    for (int i = is_resident(p, s); i < 3; i++)
        if (s->from[i] >= p->barrier &&
            !(p->together && is_published(p->list, s->from[i], s->at[i], k)))
            return true;
    return false;
}

static void find_inputs(plan *p, int k)
{
    mc_persistent_step *s = &p->list->step[k];
    const value in = first_input(s);
    if (has_to_wait(p, k)) wait_for_all(p, k);
    const bool resident = is_resident(p, s);
    for (int i = resident; i < 3; i++)
        if (is_published(p->list, s->from[i], s->at[i], k))
            p->list->step[s->from[i]].publish = 0; /* give_slot chooses its slot */
        else
            s->from[i] = MC_PERSISTENT_IN_MEMORY;
    if (resident) s->from[0] = MC_PERSISTENT_RESIDENT;
    keep_resident(p, k, in);
}

/* ---- attention ------------------------------------------------------------------------------- */

static bool same_turns(const mc_persistent_rotary *a, const mc_persistent_rotary *b)
{
    return a->positions == b->positions && a->log2_base == b->log2_base && a->sign == b->sign &&
           a->pairs == b->pairs && a->halves == b->halves && a->magnitude == b->magnitude &&
           a->factor == b->factor && memcmp(a->keep, b->keep, sizeof a->keep) == 0;
}

/* Whether rotation r computes input i of attention k: all heads of it. */
static bool turns(const mc_persistent_list *list, int r, int k, int i, int heads)
{
    const mc_persistent_step *s = &list->step[k];
    const mc_persistent_rotary *turn = &list->step[r].rotary;
    const int size = list->shape[s->attention.shape].head_dim;
    return s->from[i] == r && turn->head_dim == size && s->at[i] % size == 0 &&
           s->at[i] / size + heads <= turn->heads && turn->pairs <= MC_PERSISTENT_THREADS;
}

/* The column of what rotation r turned into columns from `at` on. */
static uint16_t column_before(const mc_persistent_step *r, uint16_t at)
{
    const int column = r->at[0] + at;
    return column < MC_PERSISTENT_NOWHERE ? (uint16_t)column : MC_PERSISTENT_NOWHERE;
}

/* Whether attention k may rotate the new token's key as rotation r does. It does so in place, so
 * other heads that share the key must not read it from memory. */
static bool may_turn_key(const plan *p, int r, int k)
{
    const mc_persistent_step *s = &p->list->step[r], *a = &p->list->step[k];
    return p->list->shape[a->attention.shape].sharing == 1 ||
           (p->together && is_published(p->list, s->from[0], column_before(s, a->at[1]), k));
}

/* Makes the rotations directly before attention k part of it, which then has their inputs. */
static void take_rotations(const plan *p, int k)
{
    mc_persistent_list *list = p->list;
    mc_persistent_step *s = &list->step[k];
    int16_t *rotary = s->attention.rotary;
    const mc_persistent_shape *h = &list->shape[s->attention.shape];
    const int heads[2] = {h->heads, h->heads / h->sharing};
    rotary[0] = rotary[1] = -1;
    for (int r = k - 1; r >= 0 && list->step[r].kind == MC_PERSISTENT_ROTARY; r--) {
        mc_persistent_step *turn = &list->step[r];
        const bool takes[2] = {rotary[0] < 0 && turns(list, r, k, 0, heads[0]),
                               rotary[1] < 0 && turns(list, r, k, 1, heads[1]) &&
                                   may_turn_key(p, r, k)};
        const int other = rotary[0] >= 0 ? rotary[0] : rotary[1];
        if (takes[0] * heads[0] + takes[1] * heads[1] != turn->rotary.heads ||
            turn->rows != s->rows ||
            (other >= 0 && !same_turns(&turn->rotary, &list->step[other].rotary)))
            return;
        for (int i = 0; i < 2; i++) {
            if (!takes[i]) continue;
            rotary[i] = (int16_t)r;
            s->at[i] = column_before(turn, s->at[i]);
            s->from[i] = turn->from[0];
        }
        turn->skip = 1;
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
    if (s->barrier && p->known < k - 1) p->known = k - 1;
    if (s->kind == MC_PERSISTENT_ATTENTION) return; /* blocks read only parts of results */
    for (int i = 0; i < 2; i++) {
        int from = s->from[i];
        if (from <= p->known || list->step[from].kind != MC_PERSISTENT_LINEAR) continue;
        int out = list->step[from].linear.out;
        if (input_columns(s) == out && out >= p->blocks) p->known = from;
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
static void find_words(const mc_persistent_list *list, mc_persistent_step *s)
{
    for (int i = 0; i < 3; i++)
        if (s->from[i] >= 0)
            s->at[i] = (uint16_t)(list->step[s->from[i]].publish * (MC_PERSISTENT_WIDEST / 4) +
                                  s->at[i] / 4);
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
