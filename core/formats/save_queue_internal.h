/* Files that another thread writes later; their data is kept in memory until then. While a context
 * has a queue, shared safetensors writers pass their files to it instead of writing. */
#ifndef MC_FORMATS_SAVE_QUEUE_INTERNAL_H
#define MC_FORMATS_SAVE_QUEUE_INTERNAL_H

#include "core/base/file_internal.h"

/* Writes to one file: offsets, sizes and bytes, in blocks that are never moved. */
typedef struct mc_save_blocks {
    struct mc_save_block *first, *last;
} mc_save_blocks;

/* Copies the data of a write; false if memory is out. */
bool mc_save_blocks_add(mc_save_blocks *blocks, uint64_t offset, const void *data, size_t size);
void mc_save_blocks_release(mc_save_blocks *blocks);

typedef struct mc_queued_file {
    mc_file_writer file;
    mc_save_blocks blocks;
} mc_queued_file;

typedef struct mc_save_queue {
    mc_queued_file *files;
    size_t count, capacity;
} mc_save_queue;

/* Takes over a file and its writes, and leaves both empty; after an error they are unchanged. */
mc_status mc_save_queue_add(mc_error *err, mc_save_queue *queue, mc_file_writer *file,
                            mc_save_blocks *blocks);
/* Runs on the thread: writes and syncs all files, then renames those that this process created.
 * Errors go to `err`, which must not be the context's. Calls `tick` between blocks and returns its
 * first status that is not MC_OK. */
typedef mc_status (*mc_tick_fn)(void *user);
mc_status mc_save_queue_write(mc_error *err, mc_save_queue *queue, mc_tick_fn tick, void *user);
mc_status mc_save_queue_rename(mc_save_queue *queue);
/* Removes files that were not renamed. */
void mc_save_queue_release(mc_save_queue *queue);

#endif
