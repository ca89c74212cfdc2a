/* The plan of a list of steps (core/device/hopper/decode/persistent_plan.c): however fast each
 * block runs, it gets the results that it is to read, and none is lost where a place is used again.
 * The kernel's blocks run one after another in the simulator, and on a GPU nearly in step; here
 * chance says which goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "core/device/hopper/decode/persistent_plan_internal.h"

enum { BLOCKS = 5, WIDE = 40, FEW = 4, HEADS = 5, HEAD = 8, ROUNDS = 20 };

/* ---- lists ----------------------------------------------------------------------------------- */

/* What steps read and write: addresses that nobody looks at, far enough from each other. */
typedef char result[2 * MC_PERSISTENT_WIDEST];
static result memory[MC_PERSISTENT_MOST], sums[MC_PERSISTENT_MOST];
static void *residual; /* the last sum of a norm */

static mc_persistent_step *add(mc_persistent_list *list, mc_persistent_kind kind)
{
    mc_persistent_step *s = &list->step[list->count++];
    s->kind = kind, s->rows = 1;
    return s;
}

/* Each returns its result's number. */
static int linear(mc_persistent_list *list, int x, int in, int out)
{
    mc_persistent_linear *l = &add(list, MC_PERSISTENT_LINEAR)->linear;
    l->x = memory[x], l->y = memory[list->count];
    l->in = (uint16_t)in, l->out = out;
    return list->count;
}

/* Of the residual sum and f, where f is not 0. */
static int norm(mc_persistent_list *list, int f, int columns)
{
    mc_persistent_norm *n = &add(list, MC_PERSISTENT_NORM)->norm;
    n->x = residual, n->weight = memory[0];
    n->y = memory[list->count], n->columns = columns;
    if (f) n->f = memory[f], n->s = residual = sums[list->count];
    return list->count;
}

static int attention(mc_persistent_list *list, int qkv)
{
    mc_persistent_attention *a = &add(list, MC_PERSISTENT_ATTENTION)->attention;
    a->q = memory[qkv], a->out = memory[list->count];
    a->new_k = memory[qkv] + 2 * HEADS * HEAD, a->new_v = memory[qkv] + 4 * HEADS * HEAD;
    a->rotary[0] = a->rotary[1] = -1;
    return list->count;
}

static mc_persistent_list *list_new(void)
{
    mc_persistent_list *list = calloc(1, sizeof *list);
    assert_non_null(list);
    residual = sums[0];
    list->shapes = 1;
    list->shape[0] = (mc_persistent_shape){
        .heads = HEADS, .sharing = 1, .head_dim = HEAD, .longest = 64, .capacity = 64};
    return list;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct block {
    int step;
    bool waits; /* it has come to the barrier of its step */
} block;

typedef struct world {
    const mc_persistent_list *list;
    int place[MC_PERSISTENT_SLOTS][MC_PERSISTENT_WIDEST]; /* 1 + the step that wrote it; 0: none */
    int barriers[BLOCKS];                                 /* that each block has come to, in all */
    block blocks[BLOCKS];
} world;

/* Whether all of a step's input that a block reads is there. What another step has overwritten
 * never is: the block waits for ever. */
static bool is_there(const world *w, const mc_persistent_step *s, int i, int first, int columns)
{
    const int *at = w->place[s->words[i] / (MC_PERSISTENT_WIDEST / 4)] +
                    s->words[i] % (MC_PERSISTENT_WIDEST / 4) * 4 + first;
    for (int c = 0; c < columns; c++)
        if (at[c] != s->from[i] + 1) return false;
    return true;
}

static bool has_inputs(const world *w, const mc_persistent_step *s, int b)
{
    if (s->kind == MC_PERSISTENT_ATTENTION) { /* the heads of items b, b + BLOCKS, ... */
        const int parts = s->attention.parts;
        for (int item = b; item < HEADS * parts; item += BLOCKS)
            for (int i = 0; i < 3; i++)
                if (s->from[i] >= 0 && !is_there(w, s, i, item / parts * HEAD, HEAD)) return false;
        return true;
    }
    const int columns = s->kind == MC_PERSISTENT_LINEAR ? s->linear.in : s->norm.columns;
    for (int i = 0; i < 2; i++)
        if (s->from[i] >= 0 && !is_there(w, s, i, 0, columns)) return false;
    return true;
}

static void publish(world *w, int k, int first, int columns)
{
    const mc_persistent_step *s = &w->list->step[k];
    for (int c = first; c < first + columns && s->publish >= 0; c++)
        w->place[s->publish][c] = k + 1;
}

static void publish_result(world *w, int k, int b)
{
    const mc_persistent_step *s = &w->list->step[k];
    const mc_persistent_linear *l = &s->linear;
    const int parts = s->attention.parts;
    if (s->kind == MC_PERSISTENT_LINEAR) {
        const int own = (b - s->turn * BLOCKS / 8 + BLOCKS) % BLOCKS;
        publish(w, k, own * l->each + (own < l->more ? own : l->more), l->each + (own < l->more));
    }
    for (int item = b; s->kind == MC_PERSISTENT_ATTENTION && item < HEADS * parts; item += BLOCKS)
        if (item % parts == 0) publish(w, k, item / parts * HEAD, HEAD);
}

/* Whether all blocks have come to the barrier that this one waits at. */
static bool is_over(world *w, int b)
{
    block *own = &w->blocks[b];
    if (!own->waits) w->barriers[b]++;
    own->waits = true;
    for (int other = 0; other < BLOCKS; other++)
        if (w->barriers[other] < w->barriers[b]) return false;
    return true;
}

/* Runs a block's next step, as in run_steps of persistent.cu. Returns whether it could. */
static bool goes_on(world *w, int b)
{
    block *own = &w->blocks[b];
    if (own->step == w->list->count) return false;
    const mc_persistent_step *s = &w->list->step[own->step];
    if (s->barrier && !is_over(w, b)) return false;
    if (!has_inputs(w, s, b)) return false;
    publish_result(w, own->step, b);
    *own = (block){.step = own->step + 1};
    return true;
}

/* Some blocks are slow for a while, then others. */
static void run(const mc_persistent_list *list)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->list = list;
    bool ended = false;
    for (int idle = 0; !ended; idle++) {
        const int slow = rand() % (1 << BLOCKS);
        bool any = false, went = true;
        for (int turns = rand() % 200; went && turns > 0; turns--) {
            went = false;
            for (int b = 0; b < BLOCKS; b++)
                if (!(slow >> b & 1) && rand() % 2 && goes_on(w, b)) went = any = true;
        }
        if (any) idle = 0;
        if (idle > 1000) fail_msg("all blocks wait, block 0 at step %d", w->blocks[0].step);
        ended = true;
        for (int b = 0; b < BLOCKS; b++) ended &= w->blocks[b].step == list->count;
    }
    free(w);
}

static int barriers_of(const mc_persistent_list *list)
{
    int count = 0;
    for (int k = 0; k < list->count; k++) count += list->step[k].barrier;
    return count;
}

/* Plans and runs the list, which is freed. Returns its barriers. */
static int check(mc_persistent_list *list)
{
    mc_persistent_plan(list, BLOCKS, true);
    mc_persistent_divide(list, BLOCKS, 1024);
    for (int i = 0; i < ROUNDS; i++) run(list);
    const int barriers = barriers_of(list);
    free(list);
    return barriers;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Layers of GPT-2 never make all blocks wait. */
static void test_serial(void **state)
{
    (void)state;
    mc_persistent_list *list = list_new();
    for (int layer = 0, f = 0; layer < 12; layer++) {
        const int qkv = linear(list, norm(list, f, WIDE), WIDE, 3 * WIDE);
        const int out = linear(list, attention(list, qkv), WIDE, WIDE);
        const int up = linear(list, norm(list, out, WIDE), WIDE, 4 * WIDE);
        f = linear(list, up, 4 * WIDE, WIDE);
    }
    assert_int_equal(check(list), 0);
}

/* Those of GPT-J do once, for the norm's rows, which the second branch reads from memory. */
static void test_parallel(void **state)
{
    (void)state;
    mc_persistent_list *list = list_new();
    for (int layer = 0, f = 0; layer < 12; layer++) {
        const int y = norm(list, f, WIDE), qkv = linear(list, y, WIDE, 3 * WIDE);
        const int out = linear(list, attention(list, qkv), WIDE, WIDE);
        f = linear(list, linear(list, y, WIDE, 4 * WIDE), 4 * WIDE, WIDE);
        norm(list, out, WIDE);
    }
    assert_int_equal(check(list), 12);
}

/* Those of a T5 decoder do not. */
static void test_cross(void **state)
{
    (void)state;
    mc_persistent_list *list = list_new();
    for (int layer = 0, f = 0; layer < 12; layer++) {
        for (int i = 0; i < 2; i++) {
            const int qkv = linear(list, norm(list, f, WIDE), WIDE, 3 * WIDE);
            f = linear(list, attention(list, qkv), WIDE, WIDE);
        }
        f = linear(list, norm(list, f, WIDE), WIDE, 2 * WIDE);
        f = linear(list, f, 2 * WIDE, WIDE);
    }
    assert_int_equal(check(list), 0);
}

/* Results to which not every block gives something say nothing about the others. */
static void test_few(void **state)
{
    (void)state;
    mc_persistent_list *list = list_new();
    for (int x = 0; x < 40;) x = linear(list, x, x ? FEW : WIDE, FEW);
    assert_true(check(list) > 0);
}

/* Each step reads what any of the last ones wrote, so far back that all slots may be in use. */
static void test_any(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        mc_persistent_list *list = list_new();
        while (list->count < 60) {
            const int back = 1 + rand() % 12, x = back < list->count ? list->count - back : 0;
            const int out = rand() % 4 ? WIDE : FEW;
            const mc_persistent_step *from = &list->step[x ? x - 1 : 0];
            const bool wide = !x || from->kind == MC_PERSISTENT_NORM ||
                              (from->kind == MC_PERSISTENT_LINEAR && from->linear.out >= WIDE);
            if (wide && rand() % 4 == 0)
                norm(list, x, WIDE);
            else if (x && from->kind == MC_PERSISTENT_LINEAR && from->linear.out == 3 * WIDE)
                attention(list, x);
            else
                linear(list, x, wide || from->kind == MC_PERSISTENT_ATTENTION ? WIDE : FEW,
                       rand() % 4 ? out : 3 * WIDE);
        }
        check(list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serial), cmocka_unit_test(test_parallel),
        cmocka_unit_test(test_cross),  cmocka_unit_test(test_few),
        cmocka_unit_test(test_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
