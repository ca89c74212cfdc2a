#include "core/formats/tensor_check_internal.h"

#include <stdlib.h>
#include "core/base/context_internal.h"
#include "core/base/memory_internal.h"

enum { CHUNK = 4 << 20, READ = 64 << 10, NAME_SHOWN = 200 }; /* bytes */

static mc_status compare(mc_error *err, const mc_stored_part *part, uint32_t crc)
{
    if (crc == part->crc) return MC_OK;
    int shown = (int)(part->name_length < NAME_SHOWN ? part->name_length : NAME_SHOWN);
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: entry \"%.*s\": the CRC of its %zu bytes is %08x, expected %08x: the "
                        "file is damaged",
                        part->file, shown, part->name, part->size, crc, part->crc);
}

static int compare_runs(const void *a, const void *b)
{
    const mc_checked_run *x = a, *y = b;
    return (x->data > y->data) - (x->data < y->data);
}

/* Whether the sorted runs cover the whole part exactly once; computes its CRC. */
static bool join_runs(const mc_stored_part *part, const mc_checked_run *runs, size_t count,
                      uint32_t *crc)
{
    size_t low = 0, high = count, have = 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (runs[middle].data < part->data)
            low = middle + 1;
        else
            high = middle;
    }
    *crc = 0;
    for (; low < count && have < part->size && runs[low].data == part->data + have; low++) {
        *crc = mc_crc32_join(*crc, runs[low].crc, runs[low].size);
        have += runs[low].size;
    }
    return have == part->size;
}

/* The CRC of a range of a part. Reading the file is faster than mapping its pages. */
static mc_status read_chunk(const mc_crc32_table *table, const mc_stored_part *part,
                            mc_bytes_place from, size_t first, mc_error *err, uint32_t *crc)
{
    uint8_t bytes[READ];
    size_t end = part->size - first < CHUNK ? part->size : first + CHUNK;
    *crc = 0;
    for (size_t at = first, n; at < end; at += n) {
        n = end - at < READ ? end - at : READ;
        if (mc_file_read_at(err, from.fd, part->file, from.offset + at, bytes, n)) break;
        *crc = mc_crc32(table, *crc, bytes, n);
    }
    return err->status;
}

/* The CRC of a part, computed by all threads. */
static uint32_t read_part(mc_error *err, const mc_crc32_table *table, const mc_stored_part *part,
                          mc_bytes_place from, uint32_t *chunks)
{
    int64_t count = (int64_t)((part->size + CHUNK - 1) / CHUNK);
    uint32_t crc = 0;
    mc_error first = {0}; /* the first error of any thread */
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < count; i++) {
        mc_error own = {0};
        if (!read_chunk(table, part, from, (size_t)i * CHUNK, &own, &chunks[i])) continue;
#pragma omp critical(mc_tensor_check)
        mc_error_move(&first, &own);
    }
    mc_error_move(err, &first);
    for (int64_t i = 0; i < count; i++) {
        size_t left = part->size - (size_t)i * CHUNK;
        crc = mc_crc32_join(crc, chunks[i], left < CHUNK ? left : CHUNK);
    }
    return crc;
}

/* Room for the CRCs of the largest part's chunks. */
static uint32_t *make_chunks(const mc_tensor_file *file)
{
    size_t most = 0;
    for (size_t i = 0; i < mc_tensor_file_part_count(file); i++)
        if (mc_tensor_file_part(file, i)->size > most) most = mc_tensor_file_part(file, i)->size;
    return mc_calloc(most / CHUNK + 1, sizeof(uint32_t));
}

mc_status mc_tensor_parts_check(mc_tensor_file *file, mc_checked_run *runs, size_t count, int rank,
                                int ranks)
{
    mc_context *ctx = mc_tensor_file_context(file);
    mc_crc32_table table;
    size_t parts = mc_tensor_file_part_count(file);
    if (!parts || mc_failed(ctx)) return mc_error_status(ctx);
    uint32_t *chunks = make_chunks(file), crc;
    if (!chunks) return mc_fail_nomem(ctx, "checking a file");
    mc_crc32_table_init(&table);
    if (count) qsort(runs, count, sizeof *runs, compare_runs);
    for (size_t i = 0; i < parts && !mc_failed(ctx); i++) {
        const mc_stored_part *part = mc_tensor_file_part(file, i);
        if (!join_runs(part, runs, count, &crc)) {
            if ((int)(i % (size_t)ranks) != rank) continue;
            crc = read_part(&ctx->error, &table, part, mc_tensor_file_place(file, part->data),
                            chunks);
        }
        if (!mc_failed(ctx)) compare(&ctx->error, part, crc);
    }
    mc_free(chunks);
    return mc_tensor_file_check(file);
}

/* Reads a tensor whose elements are not contiguous. */
static mc_status read_scattered(const mc_crc32_table *table, mc_tensor_file *file,
                                const mc_tensor_entry *entry, uint32_t *crc)
{
    enum { PIECE = 1 << 16 };
    uint8_t bytes[PIECE];
    size_t element = entry->count ? entry->size / (size_t)entry->count : 1;
    int64_t most = PIECE / (int64_t)(element ? element : 1);
    mc_status status = MC_OK;
    for (int64_t at = 0; at < entry->count && !status; at += most) {
        int64_t n = entry->count - at < most ? entry->count - at : most;
        status = mc_tensor_file_read_bytes(file, entry, at, n, bytes);
        if (!status) *crc = mc_crc32(table, *crc, bytes, (size_t)n * element);
    }
    return status;
}

mc_status mc_tensor_file_crc32(mc_tensor_file *file, const mc_tensor_entry *entry, uint32_t *own,
                               uint32_t *all)
{
    if (!file) return MC_ERR_ARGUMENT;
    mc_context *ctx = mc_tensor_file_context(file);
    if (mc_failed(ctx) || !mc_given(ctx, entry) || !mc_given(ctx, own) || !mc_given(ctx, all))
        return mc_error_status(ctx);
    mc_crc32_table table;
    mc_status status = MC_OK;
    *own = 0;
    mc_crc32_table_init(&table);
    if (entry->dense)
        *own = mc_crc32(&table, 0, entry->data, entry->size);
    else
        status = read_scattered(&table, file, entry, own);
    if (!status) *all = mc_crc32_join(*all, *own, entry->size);
    return status;
}

mc_status mc_tensor_file_checksums(mc_tensor_file *file, mc_tensor_checksums *found)
{
    if (!file) return MC_ERR_ARGUMENT;
    mc_context *ctx = mc_tensor_file_context(file);
    if (mc_failed(ctx) || !mc_given(ctx, found)) return mc_error_status(ctx);
    *found = (mc_tensor_checksums){.checked = mc_tensor_file_part_count(file),
                                   .absent = mc_tensor_file_unchecked(file)};
    return MC_OK;
}

mc_status mc_tensor_file_verify(mc_tensor_file *file, mc_tensor_checksums *found)
{
    mc_tensor_checksums sums = {0};
    if (found) *found = sums;
    if (!file) return MC_ERR_ARGUMENT;
    mc_status status = mc_tensor_parts_check(file, NULL, 0, 0, 1);
    return status || !found ? status : mc_tensor_file_checksums(file, found);
}
