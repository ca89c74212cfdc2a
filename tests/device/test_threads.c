/* The CPU kernels' threads: every item is done once, by threads that no two items share at a time,
 * from several callers and from within items. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include "core/device/cpu/threads_internal.h"

enum { THREADS = 5, ITEMS = 1000 };

typedef struct count {
    mc_threads *threads;
    atomic_int items[ITEMS], busy[THREADS];
    atomic_int shared; /* items that began while their thread's number was taken */
    int limit;
} count;

static void count_item(void *call, int64_t item, int thread)
{
    count *c = call;
    if (thread >= c->limit || atomic_fetch_add(&c->busy[thread], 1))
        atomic_fetch_add(&c->shared, 1);
    atomic_fetch_add(&c->items[item], 1);
    atomic_fetch_sub(&c->busy[thread], 1);
}

static void assert_counted(count *c, int items, int times)
{
    assert_int_equal(c->shared, 0);
    for (int i = 0; i < ITEMS; i++) assert_int_equal(c->items[i], i < items ? times : 0);
}

static void test_items(void **state)
{
    (void)state;
    mc_threads *t = mc_threads_new();
    assert_non_null(t);
    for (int limit = 1; limit <= THREADS; limit++)
        for (int items = 0; items <= ITEMS; items = 3 * items + 1) {
            count c = {.limit = limit};
            for (int round = 0; round < 50; round++)
                mc_threads_run(t, limit, items, count_item, &c);
            assert_counted(&c, items, 50);
        }
    mc_threads_free(t);
}

static void run_within(void *call, int64_t item, int thread)
{
    count *c = call;
    count *inner = c + 1 + item;
    (void)thread;
    mc_threads_run(c->threads, THREADS, ITEMS, count_item, inner);
}

static void test_within_items(void **state)
{
    (void)state;
    static count c[4];
    c[0].threads = mc_threads_new();
    for (int i = 1; i < 4; i++) c[i].limit = THREADS;
    mc_threads_run(c[0].threads, THREADS, 3, run_within, c);
    for (int i = 1; i < 4; i++) assert_counted(&c[i], ITEMS, 1);
    mc_threads_free(c[0].threads);
}

static void *call_often(void *argument)
{
    count *c = argument;
    for (int round = 0; round < 200; round++)
        mc_threads_run(c->threads, c->limit, 20, count_item, c);
    return NULL;
}

static void test_callers(void **state)
{
    (void)state;
    static count c[3];
    pthread_t callers[3];
    mc_threads *t = mc_threads_new();
    for (int i = 0; i < 3; i++) {
        c[i].threads = t;
        c[i].limit = 3;
        assert_int_equal(pthread_create(&callers[i], NULL, call_often, &c[i]), 0);
    }
    for (int i = 0; i < 3; i++) pthread_join(callers[i], NULL);
    for (int i = 0; i < 3; i++) assert_counted(&c[i], 20, 200);
    mc_threads_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_within_items),
        cmocka_unit_test(test_callers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
