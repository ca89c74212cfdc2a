/* Any bytes as the pickle of a PyTorch file: refused with a message that names the file, or tensors
 * that lie in their storages, all of it readable, in memory that keeps to its budget. Storages are
 * given bytes where they are small. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/formats/torch_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROOM = 4096 };
static const uint8_t zeros[ROOM];

static int compare_blocks(const void *a, const void *b)
{
    const mc_torch_storage *x = ((const mc_torch_block *)a)->storage;
    const mc_torch_storage *y = ((const mc_torch_block *)b)->storage;
    uint32_t less = x->key_length < y->key_length ? x->key_length : y->key_length;
    int order = memcmp(x->key, y->key, less);
    return order ? order : (x->key_length > y->key_length) - (x->key_length < y->key_length);
}

/* Each storage once by its key; those that are named with two sizes get the smaller one's bytes, so
 * they are given none. */
static mc_torch_block *give_bytes(const mc_pickle *p, size_t *count)
{
    size_t n = 0, kept = 0;
    mc_torch_block *blocks = calloc(p->storage_count + 1, sizeof *blocks);
    assert(blocks);
    for (const mc_torch_storage *s = p->storages; s; s = s->next) {
        bool small = s->whole <= ROOM / 16 && s->dtype->bits <= 128;
        blocks[n++] = (mc_torch_block){s, small ? zeros : NULL};
    }
    qsort(blocks, n, sizeof *blocks, compare_blocks);
    for (size_t i = 0; i < n; i++) {
        bool same = kept && compare_blocks(&blocks[kept - 1], &blocks[i]) == 0;
        if (!same)
            blocks[kept++] = blocks[i];
        else if (!blocks[i].data)
            blocks[kept - 1].data = NULL;
    }
    *count = kept;
    return blocks;
}

static void read_all(const mc_tensor_entry *entry)
{
    uint8_t bytes[64 * 16];
    double values[64];
    mc_error err = {0};
    for (int64_t first = 0; first < entry->count && !mc_error_is_set(&err); first += 64) {
        int64_t count = entry->count - first < 64 ? entry->count - first : 64;
        mc_tensor_copy_bytes(&err, entry, first, count, bytes);
        mc_tensor_copy_f64(&err, entry, first, count, values);
    }
    mc_error_clear(&err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mc_error err = {0};
    mc_pickle pickle;
    mc_pickle_value root;
    mc_tensor_table table = {0};
    mc_pickle_init(&pickle, &err, "fuzz", data, size);
    mc_status status = mc_pickle_run(&pickle, &root);
    assert(status == err.status);
    if (status == MC_OK) {
        mc_torch_bytes bytes = {.path = "fuzz", .size = size};
        mc_torch_block *blocks = give_bytes(&pickle, &bytes.block_count);
        bytes.blocks = blocks;
        status = mc_torch_table(&err, &table, &root, &bytes, size);
        assert(status == err.status);
        free(blocks);
    }
    assert(pickle.memory <= pickle.budget || status != MC_OK);
    for (size_t i = 0; status == MC_OK && i < table.count; i++) read_all(&table.entries[i]);
    assert(status == MC_OK || strstr(err.message, "fuzz"));
    mc_tensor_table_release(&table);
    mc_pickle_release(&pickle);
    mc_error_clear(&err);
    return 0;
}
