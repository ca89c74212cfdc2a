#include "core/device/cpu/threads_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "core/base/memory_internal.h"
#include "core/base/signals_internal.h"

/* How often a thread polls before it sleeps: some 5 to 10 microseconds, about the cost of waking
 * one. */
enum { LOOKS = 200 };

typedef struct worker {
    mc_threads *threads;
    pthread_t thread;
    int number; /* from 1: the caller is 0 */
    struct worker *next;
} worker;

struct mc_threads {
    atomic_flag running; /* a call is running */
    worker *workers;
    int count;            /* number of workers */
    pthread_mutex_t lock; /* for the following fields, but atomic ones may be read without it */
    pthread_cond_t begun, left;
    _Atomic uint64_t round;  /* calls that workers have received */
    bool is_open, is_ending; /* workers may join the round; threads must end */
    int limit;               /* threads that may join */
    atomic_int joined;       /* workers in the round */
    _Atomic int64_t next;    /* item */
    int64_t items;
    mc_item_work work;
    void *call;
};

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

mc_threads *mc_threads_new(void)
{
    mc_threads *t = mc_calloc(1, sizeof *t);
    if (!t) return NULL;
    atomic_flag_clear(&t->running);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->begun, NULL);
    pthread_cond_init(&t->left, NULL);
    return t;
}

static void take_items(mc_threads *t, int thread)
{
    for (int64_t i; (i = atomic_fetch_add(&t->next, 1)) < t->items;) t->work(t->call, i, thread);
}

/* Waits until the round is newer than `seen`, or for the end. Returns with the lock held. */
static void await_round(mc_threads *t, uint64_t seen)
{
    for (int i = 0; i < LOOKS && atomic_load(&t->round) == seen; i++) pause_briefly();
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&t->round) == seen && !t->is_ending) pthread_cond_wait(&t->begun, &t->lock);
}

static void *live(void *argument)
{
    worker *w = argument;
    mc_threads *t = w->threads;
    for (uint64_t seen = 0;;) {
        await_round(t, seen);
        seen = atomic_load(&t->round);
        bool joins = t->is_open && w->number < t->limit, ends = t->is_ending;
        if (joins) atomic_fetch_add(&t->joined, 1);
        pthread_mutex_unlock(&t->lock);
        if (ends) return NULL;
        if (!joins) continue;
        take_items(t, w->number);
        pthread_mutex_lock(&t->lock);
        if (atomic_fetch_sub(&t->joined, 1) == 1) pthread_cond_signal(&t->left);
        pthread_mutex_unlock(&t->lock);
    }
}

/* Starts one more worker, with signals blocked: handlers belong to the program's threads. */
static bool add_worker(mc_threads *t)
{
    worker *w = mc_malloc(sizeof *w);
    if (!w) return false;
    *w = (worker){.threads = t, .number = t->count + 1, .next = t->workers};
    sigset_t before;
    mc_signals_block(&before);
    int failure = pthread_create(&w->thread, NULL, live, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure) {
        mc_free(w);
        return false;
    }
    t->workers = w;
    t->count++;
    return true;
}

static void begin_round(mc_threads *t, int threads, int64_t count, mc_item_work work, void *call)
{
    pthread_mutex_lock(&t->lock);
    t->limit = threads;
    t->items = count;
    t->work = work;
    t->call = call;
    atomic_store(&t->next, 0);
    t->is_open = true;
    atomic_fetch_add(&t->round, 1);
    pthread_mutex_unlock(&t->lock);
    pthread_cond_broadcast(&t->begun);
}

/* Closes the round to other workers, and waits for those in it. */
static void end_round(mc_threads *t)
{
    pthread_mutex_lock(&t->lock);
    t->is_open = false;
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < LOOKS && atomic_load(&t->joined); i++) pause_briefly();
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&t->joined)) pthread_cond_wait(&t->left, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void mc_threads_run(mc_threads *t, int threads, int64_t count, mc_item_work work, void *call)
{
    if (threads > count) threads = (int)count;
    if (threads < 2 || atomic_flag_test_and_set(&t->running)) {
        for (int64_t i = 0; i < count; i++) work(call, i, 0);
        return;
    }
    while (t->count < threads - 1 && add_worker(t)) continue;
    begin_round(t, threads, count, work, call);
    take_items(t, 0);
    end_round(t);
    atomic_flag_clear(&t->running);
}

void mc_threads_free(mc_threads *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->is_ending = true;
    pthread_mutex_unlock(&t->lock);
    pthread_cond_broadcast(&t->begun);
    for (worker *w = t->workers, *next; w; w = next) {
        next = w->next;
        pthread_join(w->thread, NULL);
        mc_free(w);
    }
    pthread_cond_destroy(&t->left);
    pthread_cond_destroy(&t->begun);
    pthread_mutex_destroy(&t->lock);
    mc_free(t);
}
