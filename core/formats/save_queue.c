#include "core/formats/save_queue_internal.h"

#include <string.h>
#include "core/base/memory_internal.h"

enum { BLOCK = 1 << 22, ALIGN = 8 };

/* A block of aligned records, each a write's place and its bytes. */
typedef struct mc_save_block {
    struct mc_save_block *next;
    size_t used;
    _Alignas(ALIGN) uint8_t data[BLOCK];
} mc_save_block;

typedef struct record {
    uint64_t offset, size;
} record;

static size_t record_bytes(size_t size)
{
    return sizeof(record) + (size + ALIGN - 1) / ALIGN * ALIGN;
}

/* A block with room for a record and at least one byte of its data. */
static mc_save_block *block_with_room(mc_save_blocks *blocks)
{
    if (blocks->last && BLOCK - blocks->last->used >= record_bytes(1)) return blocks->last;
    mc_save_block *block = mc_malloc(sizeof *block);
    if (!block) return NULL;
    block->next = NULL;
    block->used = 0;
    if (blocks->last)
        blocks->last->next = block;
    else
        blocks->first = block;
    return blocks->last = block;
}

bool mc_save_blocks_add(mc_save_blocks *blocks, uint64_t offset, const void *data, size_t size)
{
    for (size_t done = 0, n; done < size; done += n) {
        mc_save_block *block = block_with_room(blocks);
        if (!block) return false;
        size_t room = BLOCK - block->used - sizeof(record);
        n = size - done < room ? size - done : room;
        record r = {offset + done, n};
        memcpy(block->data + block->used, &r, sizeof r);
        memcpy(block->data + block->used + sizeof r, (const char *)data + done, n);
        block->used += record_bytes(n);
    }
    return true;
}

static void drop_first(mc_save_blocks *blocks)
{
    mc_save_block *block = blocks->first;
    blocks->first = block->next;
    if (!blocks->first) blocks->last = NULL;
    mc_free(block);
}

void mc_save_blocks_release(mc_save_blocks *blocks)
{
    while (blocks->first) drop_first(blocks);
}

mc_status mc_save_queue_add(mc_error *err, mc_save_queue *queue, mc_file_writer *file,
                            mc_save_blocks *blocks)
{
    if (!mc_grow(&queue->files, &queue->capacity, queue->count, sizeof *queue->files))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for writing it", file->path);
    queue->files[queue->count++] = (mc_queued_file){*file, *blocks};
    *file = (mc_file_writer){.aside = {.fd = -1}};
    *blocks = (mc_save_blocks){0};
    return MC_OK;
}

static mc_status write_block(mc_file_writer *file, const mc_save_block *block)
{
    mc_status status = MC_OK;
    record r;
    for (size_t at = 0; at < block->used && !status; at += record_bytes(r.size)) {
        memcpy(&r, block->data + at, sizeof r);
        status = mc_file_write_at(file, r.offset, block->data + at + sizeof r, r.size);
    }
    return status;
}

mc_status mc_save_queue_write(mc_error *err, mc_save_queue *queue, mc_tick_fn tick, void *user)
{
    mc_status status = MC_OK;
    for (size_t i = 0; i < queue->count && !status; i++) {
        mc_queued_file *f = &queue->files[i];
        f->file.err = err;
        for (; f->blocks.first && !status; drop_first(&f->blocks)) {
            status = tick(user);
            if (!status) status = write_block(&f->file, f->blocks.first);
        }
        if (!status) status = mc_file_sync(&f->file);
    }
    return status;
}

mc_status mc_save_queue_rename(mc_save_queue *queue)
{
    mc_status status = MC_OK;
    for (size_t i = 0; i < queue->count && !status; i++)
        if (queue->files[i].file.aside.pending) status = mc_file_rename(&queue->files[i].file);
    return status;
}

void mc_save_queue_release(mc_save_queue *queue)
{
    for (size_t i = 0; i < queue->count; i++) {
        mc_file_writer_release(&queue->files[i].file);
        mc_save_blocks_release(&queue->files[i].blocks);
    }
    mc_free(queue->files);
    *queue = (mc_save_queue){0};
}
