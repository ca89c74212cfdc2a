/* A file that all ranks of a job write together, which gets its name once it is whole.
 *
 * Until then it is a temporary beside it (core/base/aside.h), and is removed should the work end
 * before. What is no regular file, and "-", stdout, is written directly, by one rank and in order.
 * All functions are collective, but for those that say otherwise; errors are the context's. The
 * ranks' hosts have to see the same file. */
#ifndef MC_TOOLS_RANK_FILE_H
#define MC_TOOLS_RANK_FILE_H

#include <pthread.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* Bytes that a thread writes to a place in a file. */
typedef struct late_write {
    int fd;
    int64_t offset;
    const void *data;
    size_t size;
    int failure; /* an errno, once the thread has ended; 0: none */
    bool running;
    pthread_t thread;
} late_write;

typedef struct rank_file {
    mc_context *ctx;
    const char *path; /* the caller's */
    mc_aside aside;   /* fd -1: none */
    bool replace;     /* a file that has the name by then */
    int64_t size;     /* bytes so far, of all ranks */
    late_write late;
} rank_file;

/* Makes the file. */
mc_status rank_file_init(rank_file *f, mc_context *ctx, const char *path, bool replace);
/* Adds a block to the end that consists of every rank's bytes in the order of ranks. */
mc_status rank_file_append(rank_file *f, const void *data, size_t size);
/* Not collective: writes bytes anywhere. */
mc_status rank_file_write_at(rank_file *f, int64_t offset, const void *data, size_t size);
/* The same beside what the caller does next: the bytes must not change until rank_file_wait, or the
 * next call of this function, which waits for the write before. Its error is then that call's. */
mc_status rank_file_write_later(rank_file *f, int64_t offset, const void *data, size_t size);
/* Not collective: waits for the write that is under way, if any. */
mc_status rank_file_wait(rank_file *f);
/* Syncs and renames it. */
mc_status rank_file_finish(rank_file *f);
/* Removes what has not been finished. Not collective. */
void rank_file_release(rank_file *f);

#endif
