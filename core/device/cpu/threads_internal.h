/* Threads for a device's kernels that sleep between two calls.
 *
 * OpenMP's threads spin for milliseconds after each parallel loop. The loops of a decoder's step
 * are shorter than that, so a process that generates token after token would keep all of its
 * processors busy, mostly with waiting, and on a loaded machine each loop would wait for threads
 * that have no processor. Threads here sleep after a few microseconds without work. Work is divided
 * into items that threads take one by one. The caller takes items too: it waits for items that
 * others have begun, but never for a thread that has not woken up yet. */
#ifndef MC_DEVICE_CPU_THREADS_INTERNAL_H
#define MC_DEVICE_CPU_THREADS_INTERNAL_H

#include <stdint.h>

typedef struct mc_threads mc_threads;

/* One item of a call's work. `thread` is below the requested number of threads, and differs between
 * items that run at the same time, so each may have its own scratch memory. */
typedef void (*mc_item_work)(void *call, int64_t item, int thread);

mc_threads *mc_threads_new(void); /* starts none; NULL: out of memory */
void mc_threads_free(mc_threads *t);

/* Processes items 0 .. count, in any order, on up to `threads` threads including the caller, and
 * returns when all are done. Threads are started at their first use; if the system starts no more,
 * the existing ones do the work. If another call is running, the caller works alone: calls may come
 * from several threads, and from within an item. */
void mc_threads_run(mc_threads *t, int threads, int64_t count, mc_item_work work, void *call);

#endif
