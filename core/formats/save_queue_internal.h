/* Files that are written later, by another thread: what is to be written lies in memory until then.
 * While a context has a queue, shared safetensors writers give it their files instead of
 * writing. */
#ifndef MC_FORMATS_SAVE_QUEUE_INTERNAL_H
#define MC_FORMATS_SAVE_QUEUE_INTERNAL_H

#include "core/base/file_internal.h"

/* Writes to one file: offsets, sizes and bytes, in blocks that are never moved. */
typedef struct mc_save_blocks {
    struct mc_save_block *first, *last;
} mc_save_blocks;

/* Copies what is to be written; false when memory is out. */
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

/* Takes a file and its writes over, and leaves both empty; on an error they stay. */
mc_status mc_save_queue_add(mc_error *err, mc_save_queue *queue, mc_file_writer *file,
                            mc_save_blocks *blocks);
/* On the thread: writes and syncs all files; then gives them their names, if this process has made
 * them. Errors go to `err`, which must not be the context's. `tick` is called between blocks, and
 * its first status but MC_OK returned. */
typedef mc_status (*mc_tick_fn)(void *user);
mc_status mc_save_queue_write(mc_error *err, mc_save_queue *queue, mc_tick_fn tick, void *user);
mc_status mc_save_queue_rename(mc_save_queue *queue);
/* Files that have no name yet are removed. */
void mc_save_queue_release(mc_save_queue *queue);

#endif
