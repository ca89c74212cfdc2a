/* Which allocations fail where all in turn would take minutes: of those that the same calls lead
 * to, the first two, and then each sixteenth. So every place that allocates fails from everywhere
 * that it is called from, and once with something of its kind made before. */
#ifndef MC_TESTS_FAULT_PATHS_H
#define MC_TESTS_FAULT_PATHS_H

#include <execinfo.h>
#include <stdbool.h>
#include <stdint.h>

enum { PATH_CALLS = 32, MOST_PATHS = 1 << 14, FIRST_OF_PATH = 2, EACH_OF_PATH = 16 };

static struct fault_path {
    uint64_t calls; /* a hash of their addresses; 0: none yet */
    long reached;
} fault_paths[MOST_PATHS];

static inline void forget_paths(void) { memset(fault_paths, 0, sizeof fault_paths); }

/* Of the calls that lead here; asked once about each allocation. */
static inline bool path_has_turn(void)
{
    void *calls[PATH_CALLS];
    uint64_t hash = 14695981039346656037u;
    int count = backtrace(calls, PATH_CALLS);
    for (int i = 0; i < count; i++) hash = (hash ^ (uintptr_t)calls[i]) * 1099511628211u;
    struct fault_path *path = NULL;
    for (int i = 0; i < MOST_PATHS; i++) {
        path = &fault_paths[(hash + (uint64_t)i) % MOST_PATHS];
        if (path->calls == hash) break;
        if (path->calls) continue;
        path->calls = hash;
        break;
    }
    assert_true(path->calls == hash); /* else there are too few */
    long n = path->reached++;
    return n < FIRST_OF_PATH || n % EACH_OF_PATH == 0;
}

#endif
