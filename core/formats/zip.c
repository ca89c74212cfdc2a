#include "core/formats/zip_internal.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/crc32_internal.h"
#include "core/base/memory_internal.h"

/* Sizes of a zip file's records in bytes, without their variable parts. */
enum { END = 22, LOCATOR = 20, END64 = 56, CENTRAL = 46, LOCAL = 30, COMMENT_MAX = 65535 };
enum { NAME_SHOWN = 200, FLAG_ENCRYPTED = 1, FLAG_DESCRIPTOR = 8, FLAGS_KNOWN = 0x080e };

#define FULL16 0xffffu
#define FULL32 0xffffffffu /* the field's value is in the zip64 one */

static uint32_t get16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static uint32_t get32(const uint8_t *at) { return get16(at) | get16(at + 2) << 16; }
static uint64_t get64(const uint8_t *at) { return get32(at) | (uint64_t)get32(at + 4) << 32; }

static bool is_signed(const uint8_t *at, uint8_t a, uint8_t b)
{
    return at[0] == 'P' && at[1] == 'K' && at[2] == a && at[3] == b;
}

typedef struct reader {
    mc_error *err;
    mc_zip *zip;
    uint64_t size;       /* of the file */
    uint64_t begin, end; /* of the directory, in the file */
    uint64_t count;      /* of its entries */
} reader;

#define file_error(r, ...) (mc_error_set((r)->err, MC_ERR_FORMAT, __VA_ARGS__), false)
#define entry_error(r, e, text, ...)                           \
    file_error(r, "%s: entry \"%.*s\": " text, (r)->zip->path, \
               (int)((e)->length < NAME_SHOWN ? (e)->length : NAME_SHOWN), (e)->name, __VA_ARGS__)

/* ---- The end of the file, which says where the directory is ---------------------------------- */

/* The end record is the last one, followed only by a comment. Returns 0 if there is none. */
static uint64_t find_end(const reader *r)
{
    for (uint64_t comment = 0; comment <= COMMENT_MAX && comment + END <= r->size; comment++) {
        const uint8_t *at = r->zip->data + (r->size - END - comment);
        if (is_signed(at, 5, 6) && get16(at + 20) == comment) return r->size - END - comment;
    }
    return 0;
}

/* Reads the zip64 end record, whose locator is at `locator`. Fields that the plain record has too
 * must match. */
static bool read_end64(reader *r, const uint8_t *end, uint64_t locator)
{
    const char *path = r->zip->path;
    uint64_t at = get64(r->zip->data + locator + 8);
    if (locator < END64 || at > locator - END64)
        return file_error(r, "%s: its zip64 locator points to byte %llu, past itself", path,
                          (unsigned long long)at);
    const uint8_t *end64 = r->zip->data + at;
    if (!is_signed(end64, 6, 6) || get64(end64 + 4) != locator - at - 12)
        return file_error(r, "%s: no zip64 end record at byte %llu", path, (unsigned long long)at);
    uint64_t count = get64(end64 + 32), size = get64(end64 + 40), begin = get64(end64 + 48);
    if (get32(end64 + 16) || get32(end64 + 20) || get64(end64 + 24) != count)
        return file_error(r, "%s: a zip file of several disks", path);
    if ((r->count != FULL16 && r->count != count) ||
        (get32(end + 12) != FULL32 && get32(end + 12) != size) ||
        (get32(end + 16) != FULL32 && get32(end + 16) != begin))
        return file_error(r, "%s: its zip64 end record contradicts the plain one", path);
    if (begin > at || size != at - begin)
        return file_error(r, "%s: its directory is not where its zip64 end record says", path);
    r->count = count;
    r->begin = begin;
    r->end = at;
    return true;
}

static bool read_end(reader *r)
{
    uint64_t at = find_end(r);
    const uint8_t *end = r->zip->data + at;
    if (!at)
        return file_error(r, "%s: a zip file without its end: expected a directory there",
                          r->zip->path);
    r->count = get16(end + 10);
    if (at >= LOCATOR && is_signed(end - LOCATOR, 6, 7)) return read_end64(r, end, at - LOCATOR);
    r->begin = get32(end + 16);
    r->end = at;
    if (get16(end + 4) || get16(end + 6) || get16(end + 8) != r->count)
        return file_error(r, "%s: a zip file of several disks", r->zip->path);
    if (r->begin > at || get32(end + 12) != at - r->begin)
        return file_error(r,
                          "%s: its directory is said to be %u bytes from byte %llu on, but its end "
                          "record is at byte %llu",
                          r->zip->path, get32(end + 12), (unsigned long long)r->begin,
                          (unsigned long long)at);
    return true;
}

/* ---- Entries --------------------------------------------------------------------------------- */

/* The zip64 field among an entry's extra fields. NULL with *length 0 if there is none; false if
 * the fields are damaged or there are two. */
static bool find_extra64(const uint8_t *extra, size_t room, const uint8_t **field, size_t *length)
{
    *field = NULL;
    *length = 0;
    while (room >= 4) {
        size_t size = get16(extra + 2);
        if (size > room - 4) return false;
        if (get16(extra) == 1) {
            if (*field) return false;
            *field = extra + 4;
            *length = size;
        }
        extra += 4 + size;
        room -= 4 + size;
    }
    return true; /* fewer bytes than a field's header are padding */
}

/* Replaces values of 0xffffffff by those of the zip64 field, which are in this order. */
static bool widen(reader *r, const mc_zip_entry *e, uint64_t *values[3], const uint8_t *extra,
                  size_t room)
{
    const uint8_t *field;
    size_t length, used = 0;
    if (!find_extra64(extra, room, &field, &length))
        return entry_error(r, e, "damaged %s fields", "extra");
    for (int i = 0; i < 3; i++) {
        if (*values[i] != FULL32) continue;
        if (length - used < 8) return entry_error(r, e, "its zip64 field is %s", "too short");
        *values[i] = get64(field + used);
        used += 8;
    }
    if (used != length)
        return entry_error(r, e, "its zip64 field has %zu bytes where %zu are expected", length,
                           used);
    return true;
}

/* Checks an entry's sizes in its local header. They may be missing there: then they follow the
 * data. */
static bool check_local_sizes(reader *r, const mc_zip_entry *e, const uint8_t *local,
                              const uint8_t *extra, size_t room)
{
    const uint8_t *field;
    size_t length;
    bool later = get16(local + 6) & FLAG_DESCRIPTOR;
    if (!find_extra64(extra, room, &field, &length))
        return entry_error(r, e, "damaged extra fields in its %s", "local header");
    for (int i = 0; i < 2; i++) {
        uint64_t size = get32(local + 18 + 4 * i);
        if (size == FULL32) size = length >= 16 ? get64(field + 8 * i) : FULL32;
        if (size == e->size || (later && size == 0)) continue;
        return entry_error(r, e, "%llu bytes in its local header, %zu in the directory",
                           (unsigned long long)size, e->size);
    }
    if (!later && get32(local + 14) != e->crc)
        return entry_error(r, e, "another CRC in its local header than in the %s", "directory");
    return true;
}

/* Finds an entry's bytes from its local header. */
static bool find_data(reader *r, mc_zip_entry *e, uint32_t flags)
{
    if (e->begin > r->begin || r->begin - e->begin < LOCAL)
        return entry_error(r, e, "its local header at byte %llu is past the end of the data",
                           (unsigned long long)e->begin);
    const uint8_t *local = r->zip->data + e->begin;
    size_t name = get16(local + 26), extra = get16(local + 28);
    if (!is_signed(local, 3, 4))
        return entry_error(r, e, "no local header at byte %llu", (unsigned long long)e->begin);
    uint64_t data = e->begin + LOCAL + name + extra;
    if (data > r->begin || e->size > r->begin - data)
        return entry_error(r, e, "its %zu bytes from byte %llu on reach past the end of the data",
                           e->size, (unsigned long long)data);
    if (name != e->length || memcmp(local + LOCAL, e->name, name) != 0)
        return entry_error(r, e, "another name in its %s", "local header");
    if (get16(local + 6) != flags || get16(local + 8) != 0)
        return entry_error(r, e, "other flags or another method in its %s", "local header");
    e->data = r->zip->data + data;
    return check_local_sizes(r, e, local, local + LOCAL + name, extra);
}

/* Reads the directory's entry at *at and moves on. */
static bool read_entry(reader *r, mc_zip_entry *e, uint64_t *at)
{
    const uint8_t *from = r->zip->data + *at;
    if (r->end - *at < CENTRAL || !is_signed(from, 1, 2))
        return file_error(r, "%s: no directory entry at byte %llu", r->zip->path,
                          (unsigned long long)*at);
    size_t name = get16(from + 28), extra = get16(from + 30), comment = get16(from + 32);
    if (r->end - *at - CENTRAL < name + extra + comment)
        return file_error(r, "%s: the directory entry at byte %llu reaches past the directory",
                          r->zip->path, (unsigned long long)*at);
    *at += CENTRAL + name + extra + comment;
    e->name = (const char *)from + CENTRAL;
    e->length = name;
    e->crc = get32(from + 16);
    if (!name || memchr(e->name, '\0', name))
        return entry_error(r, e, "a name that is empty or holds a %s", "NUL");
    uint32_t flags = get16(from + 8), method = get16(from + 10);
    if (flags & ~(uint32_t)FLAGS_KNOWN)
        return entry_error(r, e, "flags 0x%x: encrypted, or not known here", flags);
    if (method)
        return entry_error(r, e, "compressed (method %u): expected to be stored as it is", method);
    uint64_t packed = get32(from + 20), size = get32(from + 24);
    e->begin = get32(from + 42);
    uint64_t *values[3] = {&size, &packed, &e->begin};
    if (!widen(r, e, values, from + CENTRAL + name, extra)) return false;
    if (packed != size)
        return entry_error(r, e, "%llu bytes stored as %llu", (unsigned long long)size,
                           (unsigned long long)packed);
    if (size > r->size)
        return entry_error(r, e, "%llu bytes in a file of %llu", (unsigned long long)size,
                           (unsigned long long)r->size);
    e->size = (size_t)size;
    return find_data(r, e, flags);
}

static int compare_places(const void *a, const void *b)
{
    const mc_zip_entry *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int compare_text(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int compare_names(const void *a, const void *b)
{
    const mc_zip_entry *x = a, *y = b;
    return compare_text(x->name, x->length, y->name, y->length);
}

/* Checks that no two entries share bytes or a name; leaves them sorted by name. */
static bool check_entries(reader *r)
{
    mc_zip_entry *entries = r->zip->entries;
    size_t count = r->zip->count;
    qsort(entries, count, sizeof *entries, compare_places);
    for (size_t i = 1; i < count; i++) {
        const mc_zip_entry *before = &entries[i - 1];
        const uint8_t *end = before->data + before->size;
        if (r->zip->data + entries[i].begin < end)
            return entry_error(r, &entries[i], "overlaps entry \"%.*s\"",
                               (int)(before->length < NAME_SHOWN ? before->length : NAME_SHOWN),
                               before->name);
    }
    qsort(entries, count, sizeof *entries, compare_names);
    for (size_t i = 1; i < count; i++)
        if (compare_names(&entries[i - 1], &entries[i]) == 0)
            return entry_error(r, &entries[i], "stands in the directory %s", "twice");
    return true;
}

static bool read_entries(reader *r)
{
    uint64_t at = r->begin;
    if (r->count > (r->end - r->begin) / CENTRAL)
        return file_error(r, "%s: %llu entries in a directory of %llu bytes", r->zip->path,
                          (unsigned long long)r->count, (unsigned long long)(r->end - r->begin));
    r->zip->entries = mc_calloc((size_t)r->count, sizeof *r->zip->entries);
    if (!r->zip->entries) {
        mc_error_set(r->err, MC_ERR_NOMEM, "%s: out of memory for its directory", r->zip->path);
        return false;
    }
    for (; r->zip->count < r->count; r->zip->count++)
        if (!read_entry(r, &r->zip->entries[r->zip->count], &at)) return false;
    if (at != r->end)
        return file_error(r, "%s: %llu bytes after the last entry of its directory", r->zip->path,
                          (unsigned long long)(r->end - at));
    return check_entries(r);
}

mc_status mc_zip_init(mc_error *err, mc_zip *zip, const uint8_t *data, size_t size,
                      const char *path)
{
    *zip = (mc_zip){.path = path, .data = data};
    reader r = {.err = err, .zip = zip, .size = size};
    if (read_end(&r) && read_entries(&r)) return MC_OK;
    mc_zip_release(zip);
    return err->status;
}

void mc_zip_release(mc_zip *zip)
{
    mc_free(zip->entries);
    *zip = (mc_zip){0};
}

const mc_zip_entry *mc_zip_find(const mc_zip *zip, const char *name, size_t length)
{
    size_t low = 0, high = zip->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const mc_zip_entry *e = &zip->entries[middle];
        int order = compare_text(e->name, e->length, name, length);
        if (order == 0) return e;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

mc_status mc_zip_check(mc_error *err, const mc_zip *zip, const mc_zip_entry *entry)
{
    mc_crc32_table table;
    if (!entry->crc) return MC_OK;
    mc_crc32_table_init(&table);
    uint32_t crc = mc_crc32(&table, 0, entry->data, entry->size);
    if (crc == entry->crc) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: entry \"%.*s\": its CRC is %08x, expected %08x",
                        zip->path, (int)(entry->length < NAME_SHOWN ? entry->length : NAME_SHOWN),
                        entry->name, crc, entry->crc);
}
