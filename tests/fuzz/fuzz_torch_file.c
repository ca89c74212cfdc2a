/* Any bytes as a file of tensors of any format (zip archives, the legacy stream, llm.c's): refused
 * with a message, or all of it readable. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "core/formats/tensor_file_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads a tensor to its last byte, a few elements at a time. */
static void read_all(const mc_tensor_entry *entry)
{
    uint8_t bytes[64 * 16];
    float values[64];
    mc_error err = {0};
    for (int64_t first = 0; first < entry->count && !mc_error_is_set(&err); first += 64) {
        int64_t count = entry->count - first < 64 ? entry->count - first : 64;
        mc_tensor_copy_bytes(&err, entry, first, count, bytes);
        mc_tensor_copy_f32(&err, entry, first, count, values);
    }
    mc_error_clear(&err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mc_error err = {0};
    mc_tensor_table table = {0};
    const mc_tensor_format *format = mc_tensor_format_of(data, size);
    mc_status status = format->parse(&err, &table, data, size, "fuzz");
    assert(status == err.status);
    if (status) assert(!table.entries && strstr(err.message, "fuzz"));
    for (size_t i = 0; i < table.count && i < 64; i++) {
        const mc_tensor_entry *entry = &table.entries[i];
        assert(mc_tensor_search(table.entries, table.count, entry->name) == entry);
        assert(entry->size <= size);
        read_all(entry);
    }
    mc_tensor_table_release(&table);
    mc_error_clear(&err);
    return 0;
}
