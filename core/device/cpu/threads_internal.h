/* Threads for a device's kernels that sleep between two calls.
 *
 * OpenMP's threads spin for milliseconds after each parallel loop. The loops of a decoder's step
 * are shorter than that, so a process that generates token after token would keep all of its
 * processors busy, mostly with waiting, and on a loaded machine each loop would wait for threads
 * that have no processor. Here a thread that finds no work sleeps after a few microseconds. Work is
 * divided into items that threads take one by one, and the caller takes part: it waits for items
 * that others have begun, never for a thread that has not woken up yet. */
#ifndef MC_DEVICE_CPU_THREADS_INTERNAL_H
#define MC_DEVICE_CPU_THREADS_INTERNAL_H

#include <stdint.h>

typedef struct mc_threads mc_threads;

/* One item of a call's work. `thread` is below the number that the call asked for, and no two items
 * run with the same one at a time: each may have scratch memory of its own. */
typedef void (*mc_item_work)(void *call, int64_t item, int thread);

mc_threads *mc_threads_new(void); /* starts none; NULL: out of memory */
void mc_threads_free(mc_threads *t);

/* Does items 0 .. count, in any order, on up to `threads` threads, the caller's included, and
 * returns when all are done. Threads are started when they are first asked for; where the system
 * starts no more, those there are do the work. So does the caller alone if another call is running:
 * calls may come from several threads, and from within an item. */
void mc_threads_run(mc_threads *t, int threads, int64_t count, mc_item_work work, void *call);

#endif
