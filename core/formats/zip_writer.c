#include "core/formats/zip_writer_internal.h"

#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"

enum { LOCAL = 30, CENTRAL = 46, END = 22, END64 = 56, LOCATOR = 20, CRC_AT = 14 };
enum { VERSION = 20, VERSION64 = 45, UTF8 = 0x0800, EXTRA64 = 1, PADDING = 0x4246 /* "FB" */ };

#define FULL16 0xffffu
#define FULL32 0xffffffffu

static uint8_t *put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *at++ = (uint8_t)(value >> 8 * i);
    return at;
}

static uint32_t narrow(uint64_t value) { return value < FULL32 ? (uint32_t)value : FULL32; }

void mc_zip_writer_init(mc_zip_writer *zip, mc_file_writer *file)
{
    *zip = (mc_zip_writer){.file = file};
    mc_crc32_table_init(&zip->crc);
}

void mc_zip_writer_release(mc_zip_writer *zip)
{
    mc_free(zip->entries);
    zip->entries = NULL;
}

/* Writes the fields that local headers and the directory share: flags to the lengths of name and
 * extra fields. */
static uint8_t *put_common(uint8_t *at, const mc_zip_written *e, size_t extra)
{
    at = put(at, e->size < FULL32 && e->begin < FULL32 ? VERSION : VERSION64, 2);
    at = put(at, UTF8, 2);
    at = put(at, 0, 2);           /* stored */
    at = put(at, 0x21u << 16, 4); /* 1980-01-01: equal tensors give equal files */
    at = put(at, e->crc, 4);
    at = put(at, narrow(e->size), 4);
    at = put(at, narrow(e->size), 4);
    at = put(at, strlen(e->name), 2);
    return put(at, extra, 2);
}

mc_status mc_zip_begin(mc_zip_writer *zip, const char *name, uint64_t size)
{
    uint8_t header[LOCAL + MC_ZIP_NAME_MAX + 20 + 4 + MC_ZIP_ALIGN], *at = header;
    if (!mc_grow(&zip->entries, &zip->capacity, zip->count, sizeof *zip->entries))
        return mc_error_set(zip->file->err, MC_ERR_NOMEM, "%s: out of memory for its directory",
                            zip->file->path);
    mc_zip_written *e = &zip->entries[zip->count++];
    *e = (mc_zip_written){.begin = zip->file->written, .size = size};
    snprintf(e->name, sizeof e->name, "%s", name);
    size_t wide = size < FULL32 ? 0 : 20, length = strlen(e->name);
    uint64_t data = e->begin + LOCAL + length + wide + 4;
    size_t padding = (size_t)(-data & (MC_ZIP_ALIGN - 1));
    at = put(at, 0x04034b50, 4);
    at = put_common(at, e, wide + 4 + padding);
    at = (uint8_t *)memcpy(at, e->name, length) + length;
    if (wide) {
        at = put(at, EXTRA64, 2);
        at = put(at, 16, 2);
        at = put(put(at, size, 8), size, 8);
    }
    at = put(at, PADDING, 2);
    at = put(at, padding, 2);
    memset(at, 0, padding);
    return mc_file_write(zip->file, header, (size_t)(at - header) + padding);
}

mc_status mc_zip_add(mc_zip_writer *zip, const void *data, size_t size)
{
    mc_zip_written *e = &zip->entries[zip->count - 1];
    e->crc = mc_crc32(&zip->crc, e->crc, data, size);
    return mc_file_write(zip->file, data, size);
}

mc_status mc_zip_end(mc_zip_writer *zip)
{
    uint8_t crc[4];
    const mc_zip_written *e = &zip->entries[zip->count - 1];
    put(crc, e->crc, 4);
    return mc_file_patch(zip->file, e->begin + CRC_AT, crc, sizeof crc);
}

static mc_status write_central(mc_zip_writer *zip, const mc_zip_written *e)
{
    uint8_t record[CENTRAL + MC_ZIP_NAME_MAX + 28], *at = record;
    size_t length = strlen(e->name);
    size_t wide = (e->size < FULL32 ? 0 : 16) + (e->begin < FULL32 ? 0 : 8u);
    at = put(at, 0x02014b50, 4);
    at = put(at, wide ? VERSION64 : VERSION, 2);
    at = put_common(at, e, wide ? wide + 4 : 0);
    at = put(at, 0, 2 + 2 + 2); /* comment, disk, attributes */
    at = put(at, 0, 4);
    at = put(at, narrow(e->begin), 4);
    at = (uint8_t *)memcpy(at, e->name, length) + length;
    if (wide) at = put(put(at, EXTRA64, 2), wide, 2);
    if (e->size >= FULL32) at = put(put(at, e->size, 8), e->size, 8);
    if (e->begin >= FULL32) at = put(at, e->begin, 8);
    return mc_file_write(zip->file, record, (size_t)(at - record));
}

mc_status mc_zip_finish(mc_zip_writer *zip)
{
    uint8_t record[END64 + LOCATOR + END], *at = record;
    uint64_t begin = zip->file->written, count = zip->count;
    for (size_t i = 0; i < zip->count; i++)
        if (write_central(zip, &zip->entries[i])) return zip->file->err->status;
    uint64_t end = zip->file->written, size = end - begin;
    if (count >= FULL16 || begin >= FULL32 || size >= FULL32) {
        at = put(put(at, 0x06064b50, 4), END64 - 12, 8);
        at = put(put(at, VERSION64, 2), VERSION64, 2);
        at = put(put(at, 0, 4), 0, 4); /* disks */
        at = put(put(at, count, 8), count, 8);
        at = put(put(at, size, 8), begin, 8);
        at = put(put(at, 0x07064b50, 4), 0, 4);
        at = put(put(at, end, 8), 1, 4);
    }
    uint64_t few = count < FULL16 ? count : FULL16;
    at = put(put(at, 0x06054b50, 4), 0, 4);
    at = put(put(at, few, 2), few, 2);
    at = put(put(at, narrow(size), 4), narrow(begin), 4);
    at = put(at, 0, 2);
    return mc_file_write(zip->file, record, (size_t)(at - record));
}
