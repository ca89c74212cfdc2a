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

static struct {
    int from, at;
} residual; /* the last sum of a norm: mc_persistent_step.from and .at */

/* Number 0 is memory from before the list, number n the result of step n - 1. */
static void reads(mc_persistent_step *s, int input, int number, int column)
{
    s->from[input] = (int16_t)(number - 1);
    s->at[input] = (uint16_t)column;
}

static mc_persistent_step *add(mc_persistent_list *list, mc_persistent_kind kind)
{
    mc_persistent_step *s = &list->step[list->count++];
    s->kind = kind, s->rows = 1;
    for (int i = 0; i < 3; i++) reads(s, i, 0, 0);
    return s;
}

/* Each returns its result's number. */
static int linear(mc_persistent_list *list, int x, int in, int out)
{
    mc_persistent_step *s = add(list, MC_PERSISTENT_LINEAR);
    reads(s, 0, x, 0);
    s->linear.in = (uint16_t)in, s->linear.out = out;
    return list->count;
}

/* Of the residual sum and f, where f is not 0. */
static int norm(mc_persistent_list *list, int f, int columns)
{
    static char somewhere; /* in memory, which the plan does not look at */
    mc_persistent_step *s = add(list, MC_PERSISTENT_NORM);
    mc_persistent_norm *n = &s->norm;
    n->weight = n->y = &somewhere, n->columns = columns;
    reads(s, 0, residual.from, residual.at);
    if (!f) return list->count;
    n->f = &somewhere;
    reads(s, 1, f, 0);
    residual.from = list->count, residual.at = columns;
    return list->count;
}

static int attention(mc_persistent_list *list, int qkv)
{
    mc_persistent_step *s = add(list, MC_PERSISTENT_ATTENTION);
    for (int i = 0; i < 3; i++) reads(s, i, qkv, i * HEADS * HEAD);
    return list->count;
}

static mc_persistent_list *list_new(void)
{
    mc_persistent_list *list = calloc(1, sizeof *list);
    assert_non_null(list);
    residual.from = 0, residual.at = 1;
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
    const int *at = w->place[s->at[i] / (MC_PERSISTENT_WIDEST / 4)] +
                    s->at[i] % (MC_PERSISTENT_WIDEST / 4) * 4 + first;
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

enum { MEMORY = MC_PERSISTENT_IN_MEMORY, RESIDENT = MC_PERSISTENT_RESIDENT };

static void assert_input(const mc_persistent_list *list, int step, int input, int from, int column)
{
    const mc_persistent_step *s = &list->step[step];
    assert_int_equal(s->from[input], from);
    if (from < 0) return;
    const int slot = list->step[from].publish;
    assert_true(slot >= 0);
    assert_int_equal(s->at[input], slot * (MC_PERSISTENT_WIDEST / 4) + column / 4);
}

/* Where the steps of two branches find their inputs. */
static void test_inputs(void **state)
{
    (void)state;
    mc_persistent_list *list = list_new();
    const int y = norm(list, 0, WIDE), qkv = linear(list, y, WIDE, 3 * WIDE);
    const int up = linear(list, y, WIDE, 4 * WIDE);
    const int out = linear(list, attention(list, qkv), WIDE, WIDE);
    norm(list, out, WIDE);
    norm(list, linear(list, up, 4 * WIDE, WIDE), WIDE);
    linear(list, y, WIDE, WIDE);
    mc_persistent_plan(list, BLOCKS, true);
    assert_input(list, 0, 0, MEMORY, 0);
    assert_input(list, 1, 0, RESIDENT, 0);
    assert_input(list, 2, 0, RESIDENT, 0);
    for (int i = 0; i < 3; i++) assert_input(list, 3, i, 1, i * HEADS * HEAD);
    assert_input(list, 4, 0, 3, 0);
    assert_input(list, 5, 0, RESIDENT, 0); /* the sum is x still */
    assert_input(list, 5, 1, 4, 0);
    assert_input(list, 6, 0, 2, 0);
    assert_input(list, 7, 0, RESIDENT, 0);
    assert_input(list, 7, 1, 6, 0);
    assert_input(list, 8, 0, MEMORY, 0); /* another norm's rows have taken the place of y */
    assert_int_equal(barriers_of(list), 1);
    assert_true(list->step[8].barrier);
    free(list);
}

static mc_persistent_step *rotation(mc_persistent_list *list, int x, int column, int heads)
{
    mc_persistent_step *s = add(list, MC_PERSISTENT_ROTARY);
    reads(s, 0, x, column);
    s->rotary.heads = (int16_t)heads, s->rotary.head_dim = HEAD;
    return s;
}

/* An attention does the rotations before it, of some heads each, and has their inputs then; not
 * those of heads that it does not read. */
static void test_rotations(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        mc_persistent_list *list = list_new();
        const int qkv = linear(list, 0, WIDE, 4 * WIDE);
        rotation(list, qkv, WIDE, HEADS + more);
        rotation(list, qkv, 0, HEADS);
        mc_persistent_step *s = &list->step[attention(list, qkv) - 1];
        reads(s, 0, 3, 0);
        reads(s, 1, 2, 0);
        mc_persistent_plan(list, BLOCKS, true);
        assert_true(list->step[2].skip);
        assert_int_equal(list->step[1].skip, !more);
        assert_int_equal(s->attention.rotary[0], 2);
        assert_int_equal(s->attention.rotary[1], more ? -1 : 1);
        assert_input(list, 3, 0, 0, 0);
        assert_input(list, 3, 1, more ? MEMORY : 0, WIDE);
        assert_input(list, 3, 2, 0, 2 * WIDE);
        assert_int_equal(s->barrier, more);
        free(list);
    }
}

/* Rows of several results, or of none's columns, come from memory when all steps have ended. */
static void test_nowhere(void **state)
{
    (void)state;
    mc_persistent_list *list = list_new();
    const int x = linear(list, 0, WIDE, WIDE);
    for (int i = 0; i < 2; i++) {
        mc_persistent_step *s = &list->step[linear(list, x, 2 * WIDE, WIDE) - 1];
        s->at[0] = MC_PERSISTENT_NOWHERE;
    }
    mc_persistent_plan(list, BLOCKS, true);
    for (int k = 1; k < 3; k++) assert_input(list, k, 0, MEMORY, 0);
    assert_true(list->step[1].barrier);
    free(list);
}

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
        cmocka_unit_test(test_inputs),   cmocka_unit_test(test_rotations),
        cmocka_unit_test(test_nowhere),  cmocka_unit_test(test_serial),
        cmocka_unit_test(test_parallel), cmocka_unit_test(test_cross),
        cmocka_unit_test(test_few),      cmocka_unit_test(test_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
