/* What tests of token files share: files of both formats, made by hand. Include after cmocka.h. */
#ifndef MC_TESTS_DATASETS_LM_TEST_H
#define MC_TESTS_DATASETS_LM_TEST_H

#include <fcntl.h>
#include "core/base/context_internal.h"
#include "datasets/lm.h"
#include "tests/datasets/fixture.h"

/* Bytes of a shard of llm.c's: a header that says `count`, and the tokens 0, step, 2 * step, ... */
static inline void write_llmc(const char *path, int magic, int version, int count, int tokens,
                              int step)
{
    int32_t header[256] = {magic, version, count};
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(header, 1, sizeof header, file), sizeof header);
    for (int i = 0; i < tokens; i++) {
        uint32_t token = (uint32_t)i * (uint32_t)step; /* its first two bytes are the u16 */
        assert_int_equal(fwrite(&token, magic == 20240801 ? 4 : 2, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

static inline void write_u16_shard(const char *path, int tokens, int step)
{
    write_llmc(path, 20240520, 1, tokens, tokens, step);
}

/* What an .idx says; arrays end where the counts say. */
typedef struct index_parts {
    const char *magic;
    uint64_t version;
    uint8_t type;
    uint64_t sequences, bounds;
    const int32_t *lengths;
    const int64_t *pointers, *documents;
    size_t cut, extra; /* bytes left out at the end, and added there */
} index_parts;

static inline void write_index(const char *path, const index_parts *p, int sequences, int bounds)
{
    uint8_t bytes[4096] = {0};
    size_t at = 34;
    memcpy(bytes, p->magic ? p->magic : "MMIDIDX\0", 9);
    uint64_t version = p->version ? p->version : 1;
    memcpy(bytes + 9, &version, 8);
    bytes[17] = p->type;
    memcpy(bytes + 18, &p->sequences, 8);
    memcpy(bytes + 26, &p->bounds, 8);
    memcpy(bytes + at, p->lengths, (size_t)sequences * 4);
    at += (size_t)sequences * 4;
    memcpy(bytes + at, p->pointers, (size_t)sequences * 8);
    at += (size_t)sequences * 8;
    memcpy(bytes + at, p->documents, (size_t)bounds * 8);
    at += (size_t)bounds * 8;
    write_bytes(path, bytes, at - p->cut + p->extra);
}

static inline char *read_whole(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    bytes[*size] = '\0';
    fclose(file);
    return bytes;
}

#endif
