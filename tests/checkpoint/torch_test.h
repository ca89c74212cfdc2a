/* Zip files and pickles made by hand, good and bad, for the tests of PyTorch's files, and opening
 * them. Include after
 * cmocka.h. */
#ifndef MC_TESTS_TORCH_TEST_H
#define MC_TESTS_TORCH_TEST_H

#include <stdint.h>
#include <string.h>
#include "core/base/context_internal.h"
#include "core/base/crc32_internal.h"
#include "core/formats/tensor_file.h"
#include "tests/temp_folder.h"

enum { ZIP_ENTRIES = 8 };

/* A zip file as it grows: local entries, then on zip_end the directory. */
typedef struct zip_bytes {
    uint8_t data[8192];
    size_t used;
    struct {
        const char *name;
        uint64_t begin, size;
        uint32_t crc;
    } entries[ZIP_ENTRIES];
    int count;
    bool wide;     /* sizes and offsets stand in zip64 fields */
    uint64_t base; /* what is in the file before data */
} zip_bytes;

static inline void zip_put(zip_bytes *z, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) z->data[z->used++] = (uint8_t)(value >> 8 * i);
}

static inline void zip_put_bytes(zip_bytes *z, const void *data, size_t size)
{
    assert_true(z->used + size < sizeof z->data);
    memcpy(z->data + z->used, data, size);
    z->used += size;
}

static inline void zip_put_common(zip_bytes *z, int i, size_t extra)
{
    zip_put(z, 20, 2);
    zip_put(z, 0, 2 + 2 + 4); /* flags, method, time */
    zip_put(z, z->entries[i].crc, 4);
    zip_put(z, z->wide ? UINT32_MAX : z->entries[i].size, 4);
    zip_put(z, z->wide ? UINT32_MAX : z->entries[i].size, 4);
    zip_put(z, strlen(z->entries[i].name), 2);
    zip_put(z, extra, 2);
}

static inline void zip_add(zip_bytes *z, const char *name, const void *data, size_t size)
{
    mc_crc32_table table;
    mc_crc32_table_init(&table);
    int i = z->count++;
    z->entries[i].name = name;
    z->entries[i].begin = z->base + z->used;
    z->entries[i].size = size;
    z->entries[i].crc = mc_crc32(&table, 0, data, size);
    zip_put(z, 0x04034b50, 4);
    zip_put_common(z, i, z->wide ? 20 : 0);
    zip_put_bytes(z, name, strlen(name));
    if (z->wide) {
        zip_put(z, 1, 2);
        zip_put(z, 16, 2);
        zip_put(z, size, 8);
        zip_put(z, size, 8);
    }
    zip_put_bytes(z, data, size);
}

/* Writes the directory and the end; gives the directory's first byte. */
static inline size_t zip_end(zip_bytes *z)
{
    uint64_t begin = z->base + z->used, count = (size_t)z->count;
    for (int i = 0; i < z->count; i++) {
        zip_put(z, 0x02014b50, 4);
        zip_put(z, 20, 2);
        zip_put_common(z, i, z->wide ? 28 : 0);
        zip_put(z, 0, 6);
        zip_put(z, 0, 4);
        zip_put(z, z->wide ? UINT32_MAX : z->entries[i].begin, 4);
        zip_put_bytes(z, z->entries[i].name, strlen(z->entries[i].name));
        if (!z->wide) continue;
        zip_put(z, 1, 2);
        zip_put(z, 24, 2);
        zip_put(z, z->entries[i].size, 8);
        zip_put(z, z->entries[i].size, 8);
        zip_put(z, z->entries[i].begin, 8);
    }
    uint64_t end = z->base + z->used;
    if (z->wide) {
        zip_put(z, 0x06064b50, 4);
        zip_put(z, 44, 8);
        zip_put(z, 45, 4);
        zip_put(z, 0, 8);
        zip_put(z, count, 8);
        zip_put(z, count, 8);
        zip_put(z, end - begin, 8);
        zip_put(z, begin, 8);
        zip_put(z, 0x07064b50, 4);
        zip_put(z, 0, 4);
        zip_put(z, end, 8);
        zip_put(z, 1, 4);
    }
    zip_put(z, 0x06054b50, 4);
    zip_put(z, 0, 4);
    zip_put(z, count, 2);
    zip_put(z, count, 2);
    zip_put(z, z->wide ? UINT32_MAX : end - begin, 4);
    zip_put(z, z->wide ? UINT32_MAX : begin, 4);
    zip_put(z, 0, 2);
    return (size_t)(begin - z->base);
}

/* Pieces of pickles. A storage and a tensor as torch.save writes them, without a memo. */
#define PICKLE_BEGIN "\x80\x02}("
#define PICKLE_END "u."
#define TEXT(n, text) "X" n "\0\0\0" text
#define STORAGE(type, key, size)                                                                 \
    "(" TEXT("\7", "storage") "ctorch\n" type "Storage\n" TEXT("\1", key) TEXT("\3", "cpu") size \
        "tQ"
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n("
#define TENSOR(storage, offset, shape, strides) \
    REBUILD storage offset "(" shape "t(" strides "t\x89}tR"
#define SIX STORAGE("Float", "0", "K\6") /* six floats under the key 0 */

/* The pickles in front of a legacy file's: the magic number, the version, what system wrote it. */
#define LEGACY_HEAD \
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}."

typedef struct fixture {
    temp_folder folder;
    mc_context *ctx;
    char log[1024]; /* the last line */
} fixture;

static const float six[6] = {1, 2, 3, 4, 5, 6};

static inline void keep_log(void *user, mc_log_level level, const char *line)
{
    fixture *f = user;
    (void)level;
    snprintf(f->log, sizeof f->log, "%s", line);
}

static inline int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->folder = temp_folder_new();
    f->ctx = mc_init_distributed(&(mc_init_options){.log = keep_log, .log_user = f});
    *state = f;
    return mc_failed(f->ctx) ? mc_print_error(f->ctx, stderr) : 0;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;
    mc_context_free(f->ctx);
    temp_folder_free(&f->folder);
    free(f);
    return 0;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static inline void expect_refused(fixture *f, const char *path, const char *message)
{
    assert_null(mc_tensor_file_open(f->ctx, path, NULL));
    if (!strstr(mc_error_message(f->ctx), message))
        fail_msg("\"%s\" not in: %s", message, mc_error_message(f->ctx));
    assert_non_null(strstr(mc_error_message(f->ctx), path));
    mc_clear_error(f->ctx);
}

static inline mc_tensor_file *open_good(fixture *f, const char *path)
{
    mc_tensor_file *file = mc_tensor_file_open(f->ctx, path, NULL);
    if (!file) fail_msg("%s", mc_error_message(f->ctx));
    return file;
}

/* A file of torch.save with this pickle and six floats. */
static inline const char *write_torch(fixture *f, const char *pickle, size_t size)
{
    zip_bytes z = {0};
    const char *path = temp_path(&f->folder, "model.bin");
    zip_add(&z, "m/data.pkl", pickle, size);
    zip_add(&z, "m/data/0", six, sizeof six);
    zip_end(&z);
    write_bytes(path, z.data, z.used);
    return path;
}
#define WRITE_TORCH(f, pickle) write_torch(f, pickle, sizeof(pickle) - 1)

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
