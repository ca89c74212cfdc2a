/* Any bytes as a safetensors file: refused with a message, or all of it readable. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "core/formats/tensor_file_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads a tensor to its last byte, a few elements at a time. */
static void read_all(const mc_tensor_entry *entry)
{
    float narrow[64];
    double wide[64];
    uint8_t sum = 0;
    mc_error err = {0};
    for (size_t i = 0; i < entry->size; i++) sum ^= ((const uint8_t *)entry->data)[i];
    for (int64_t first = 0; first < entry->count && !mc_error_is_set(&err); first += 64) {
        int64_t count = entry->count - first < 64 ? entry->count - first : 64;
        mc_tensor_copy_f32(&err, entry, first, count, narrow);
        mc_tensor_copy_f64(&err, entry, first, count, wide);
    }
    volatile uint8_t keep = sum;
    (void)keep;
    mc_error_clear(&err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mc_error err = {0};
    mc_tensor_table header;
    mc_status status = mc_safetensors_parse(&err, &header, data, size, "fuzz");
    assert(status == err.status);
    if (status == MC_OK) {
        size_t covered = 0;
        for (size_t i = 0; i < header.count; i++) {
            const mc_tensor_entry *entry = &header.entries[i];
            assert(mc_tensor_search(header.entries, header.count, entry->name) == entry);
            covered += entry->size;
            read_all(entry);
        }
        assert(covered < size); /* the header takes some */
        for (size_t i = 0; i < header.string_count; i++)
            assert(strlen(header.strings[i].key) + strlen(header.strings[i].value) < size);
    } else {
        assert(header.count == 0 && !header.entries && strstr(err.message, "fuzz"));
    }
    mc_tensor_table_release(&header);
    mc_error_clear(&err);
    return 0;
}
