/* Token files: both formats, shards and patterns, the real file of Megatron's, files of more than
 * 4 GiB, and bad ones of every kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>
#include "tests/datasets/lm_test.h"
#include "tests/shared_data.h"
#include "datasets/token_files.h"

static mc_token_file *open_good(fixture *f, const char *path)
{
    mc_token_file *file = mc_token_file_open(f->ctx, path);
    expect_ok(f->ctx);
    assert_non_null(file);
    return file;
}

static void expect_tokens(fixture *f, const mc_token_file *file, int64_t first,
                          const int32_t *expected, int count)
{
    int32_t tokens[64];
    assert_int_equal(mc_token_file_read(file, first, count, tokens), MC_OK);
    expect_ok(f->ctx);
    assert_memory_equal(tokens, expected, (size_t)count * sizeof *tokens);
}

/* ---- good files ---- */

static void test_llmc(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "a.bin");
    write_u16_shard(path, 1000, 65);
    mc_token_file *file = open_good(f, path);
    assert_int_equal(mc_token_file_count(file), 1000);
    assert_int_equal(mc_token_file_shards(file), 1);
    assert_int_equal(mc_token_file_format(file, 0), MC_TOKENS_LLMC);
    assert_int_equal(mc_token_file_documents(file), -1);
    assert_string_equal(mc_token_file_path(file, 0), path);
    assert_int_equal(mc_token_file_largest(file), 999 * 65);
    expect_tokens(f, file, 0, (int32_t[]){0, 65, 130}, 3);
    expect_tokens(f, file, 997, (int32_t[]){997 * 65, 998 * 65, 999 * 65}, 3);
    write_llmc(path = temp_path(&f->folder, "b.bin"), 20240801, 7, 100, 100, 1283);
    file = open_good(f, path);
    assert_int_equal(mc_token_file_largest(file), 99 * 1283);
    expect_tokens(f, file, 98, (int32_t[]){98 * 1283, 99 * 1283}, 2);
}

static void test_ranges(void **state)
{
    fixture *f = *state;
    int32_t tokens[4];
    const char *path = temp_path(&f->folder, "a.bin");
    write_u16_shard(path, 10, 1);
    mc_token_file *file = open_good(f, path);
    expect_tokens(f, file, 10, NULL, 0);
    const int64_t bad[][2] = {{-1, 1}, {0, -1}, {11, 0}, {10, 1}, {9, 2}, {INT64_MAX, INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mc_status status = mc_token_file_read(file, bad[i][0], bad[i][1], tokens);
        assert_int_equal(status, MC_ERR_ARGUMENT);
        expect_error(f->ctx, MC_ERR_ARGUMENT, "there are 10");
    }
    assert_int_equal(mc_token_file_read(file, 1, 3, tokens), MC_OK);
    assert_int_equal(mc_token_file_read_within(file, 1, 3, tokens[2] + 1, tokens), MC_OK);
    assert_int_equal(mc_token_file_read_within(file, 1, 3, tokens[2], tokens), MC_ERR_FORMAT);
    expect_error(f->ctx, MC_ERR_FORMAT, "a.bin: token");
    assert_null(mc_token_file_path(file, 1));
    assert_null(mc_token_file_path(file, -1));
    assert_int_equal(mc_token_file_shard_count(file, 1), 0);
    int64_t first, count;
    assert_false(mc_token_file_document(file, 0, &first, &count));
    assert_int_equal(mc_token_file_count(NULL), 0);
    assert_int_equal(mc_token_file_largest(NULL), -1);
    mc_token_file_free(NULL);
}

/* Every type of Megatron's, with documents of several sequences and an empty one. */
static void test_megatron_types(void **state)
{
    fixture *f = *state;
    static const struct {
        int type, width;
    } types[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        int64_t width = types[t].width;
        uint8_t bin[80] = {0};
        for (int i = 0; i < 9; i++) bin[i * width] = (uint8_t)(i * 13);
        write_bytes(temp_path(&f->folder, "m.bin"), bin, (size_t)(9 * width));
        write_index(temp_path(&f->folder, "m.idx"),
                    &(index_parts){.type = (uint8_t)types[t].type,
                                   .sequences = 4,
                                   .bounds = 4,
                                   .lengths = (int32_t[]){2, 0, 4, 3},
                                   .pointers = (int64_t[]){0, 2 * width, 2 * width, 6 * width},
                                   .documents = (int64_t[]){0, 3, 3, 4},
                                   .extra = t % 2 ? 4 : 0}, /* modes of multimodal data */
                    4, 4);
        static const char *const names[] = {"m.bin", "m.idx", "m", "m.*", "?.idx"};
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            mc_token_file *file = open_good(f, temp_path(&f->folder, names[n]));
            assert_int_equal(mc_token_file_shards(file), 1);
            assert_int_equal(mc_token_file_format(file, 0), MC_TOKENS_MEGATRON);
            assert_int_equal(mc_token_file_count(file), 9);
            assert_int_equal(mc_token_file_largest(file), 104);
            expect_tokens(f, file, 0, (int32_t[]){0, 13, 26, 39, 52, 65, 78, 91, 104}, 9);
            assert_int_equal(mc_token_file_documents(file), 3);
            static const int64_t documents[3][2] = {{0, 6}, {6, 0}, {6, 3}};
            for (int64_t i = 0; i < 3; i++) {
                int64_t first, count;
                assert_true(mc_token_file_document(file, i, &first, &count));
                assert_int_equal(first, documents[i][0]);
                assert_int_equal(count, documents[i][1]);
            }
            int64_t first, count;
            assert_false(mc_token_file_document(file, 3, &first, &count));
            assert_false(mc_token_file_document(file, -1, &first, &count));
            mc_token_file_free(file);
        }
        /* a pattern that a shell has expanded; and a file that is to count twice */
        const char *bin_path = temp_path(&f->folder, "m.bin");
        const char *listed[] = {temp_path(&f->folder, "m.idx"), bin_path, bin_path};
        for (int count = 2; count <= 3; count++) {
            mc_token_file *file = mc_token_file_open_list(f->ctx, listed, count);
            assert_int_equal(mc_token_file_shards(file), count - 1);
            assert_int_equal(mc_token_file_count(file), 9 * (count - 1));
            mc_token_file_free(file);
        }
    }
}

/* Shards come in the order of their names, lists in their own. */
static void test_shards(void **state)
{
    fixture *f = *state;
    write_u16_shard(temp_path(&f->folder, "s_10.bin"), 3, 100);
    write_u16_shard(temp_path(&f->folder, "s_09.bin"), 2, 10);
    write_llmc(temp_path(&f->folder, "s_11.bin"), 20240801, 7, 2, 2, 100000);
    write_u16_shard(temp_path(&f->folder, "other.bin"), 1, 1);
    mc_token_file *file = open_good(f, temp_path(&f->folder, "s_*.bin"));
    assert_int_equal(mc_token_file_shards(file), 3);
    assert_int_equal(mc_token_file_count(file), 7);
    assert_int_equal(mc_token_file_shard_count(file, 1), 3);
    expect_tokens(f, file, 0, (int32_t[]){0, 10, 0, 100, 200, 0, 100000}, 7);
    expect_tokens(f, file, 4, (int32_t[]){200, 0}, 2);
    const char *list[] = {temp_path(&f->folder, "s_1[01].bin"), temp_path(&f->folder, "s_09.bin")};
    file = mc_token_file_open_list(f->ctx, list, 2);
    expect_ok(f->ctx);
    expect_tokens(f, file, 0, (int32_t[]){0, 100, 200, 0, 100000, 0, 10}, 7);
    assert_int_equal(mc_token_file_largest(file), 100000);
    /* a name that looks like a pattern */
    write_u16_shard(temp_path(&f->folder, "s_[9].bin"), 4, 7);
    file = open_good(f, temp_path(&f->folder, "s_[9].bin"));
    assert_int_equal(mc_token_file_count(file), 4);
}

/* llm.c's header counts more than an .idx that was left beside it. */
static void test_stale_index(void **state)
{
    fixture *f = *state;
    write_u16_shard(temp_path(&f->folder, "a.bin"), 5, 1);
    write_text(temp_path(&f->folder, "a.idx"), "old");
    mc_token_file *file = open_good(f, temp_path(&f->folder, "a.bin"));
    assert_int_equal(mc_token_file_format(file, 0), MC_TOKENS_LLMC);
}

static void test_real_megatron(void **state)
{
    fixture *f = *state;
    const char *path = shared_path("data/indexed/meg-gpt2-openwebtext_text_document.bin");
    if (!path) skip();
    mc_token_file *file = open_good(f, path);
    assert_int_equal(mc_token_file_count(file), 1361845);
    assert_int_equal(mc_token_file_documents(file), 1000);
    assert_int_equal(mc_token_file_largest(file), 4999);
    size_t size;
    char *bytes = read_whole(path, &size);
    int64_t at = 0;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t first, count;
        static int32_t tokens[1 << 16];
        assert_true(mc_token_file_document(file, i, &first, &count));
        assert_int_equal(first, at);
        assert_true(count > 0 && count < 1 << 16);
        assert_int_equal(mc_token_file_read(file, first, count, tokens), MC_OK);
        for (int64_t k = 0; k < count; k++) {
            uint16_t token;
            memcpy(&token, bytes + 2 * (first + k), sizeof token);
            assert_int_equal(tokens[k], token);
        }
        assert_int_equal(tokens[count - 1], 4999); /* each ends in its end-of-text token */
        at += count;
    }
    assert_int_equal(at, 1361845);
    free(bytes);
}

/* ---- files of more than 4 GiB ---- */

/* A sparse file whose last bytes are `tail`; false where that cannot be made. */
static bool write_sparse(const char *path, const void *head, size_t head_size, int64_t size,
                         const void *tail, size_t tail_size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    bool good = ftruncate(fd, size) == 0 && pwrite(fd, head, head_size, 0) == (ssize_t)head_size &&
                pwrite(fd, tail, tail_size, size - (int64_t)tail_size) == (ssize_t)tail_size;
    if (!good)
        fprintf(stderr, "SKIPPED: a sparse file of %lld bytes: %s\n", (long long)size,
                strerror(errno));
    close(fd);
    return good;
}

/* u32 shards may be larger than 4 GiB, and u16 shards a little. */
static void test_large_llmc(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "large.bin");
    int32_t header[256] = {20240801, 7, (1 << 30) + 5};
    const uint32_t tail[2] = {70000, 128001};
    if (!write_sparse(path, header, sizeof header, 1024 + 4 * ((1LL << 30) + 5), tail, sizeof tail))
        skip();
    mc_token_file *file = open_good(f, path);
    assert_int_equal(mc_token_file_count(file), (1 << 30) + 5);
    expect_tokens(f, file, (1 << 30) + 2, (int32_t[]){0, 70000, 128001}, 3);
    mc_token_file_free(file);
    int32_t narrow[256] = {20240520, 1, INT32_MAX};
    const uint16_t end[2] = {7, 50256};
    if (!write_sparse(path, narrow, sizeof narrow, 1024 + 2LL * INT32_MAX, end, sizeof end)) skip();
    file = open_good(f, path);
    assert_int_equal(mc_token_file_count(file), INT32_MAX);
    expect_tokens(f, file, INT32_MAX - 3LL, (int32_t[]){0, 7, 50256}, 3);
}

/* A shard that its header cannot count. */
static void test_too_large_llmc(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "large.bin");
    int64_t size = 1024 + 2 * (3LL << 30);
    int32_t header[256] = {20240520, 1, 1 << 30};
    const uint16_t tail = 1;
    if (!write_sparse(path, header, sizeof header, size, &tail, sizeof tail)) skip();
    assert_null(mc_token_file_open(f->ctx, path));
    assert_non_null(strstr(mc_error_message(f->ctx), "6442451968"));
    assert_non_null(strstr(mc_error_message(f->ctx), "2147484672 bytes"));
    expect_error(f->ctx, MC_ERR_FORMAT, "2^31 - 1 tokens of a shard");
    header[2] = (int32_t)(3u << 30); /* what a careless writer leaves there */
    if (!write_sparse(path, header, sizeof header, size, &tail, sizeof tail)) skip();
    assert_null(mc_token_file_open(f->ctx, path));
    expect_error(f->ctx, MC_ERR_FORMAT,
                 "says 3221225472 tokens; a shard holds at most 2147483647: split it");
}

static void test_large_megatron(void **state)
{
    fixture *f = *state;
    const int64_t most = INT32_MAX;
    const uint16_t tail[2] = {11, 12};
    if (!write_sparse(temp_path(&f->folder, "m.bin"), "", 0, 2 * (3 * most + 2), tail, sizeof tail))
        skip();
    write_index(temp_path(&f->folder, "m.idx"),
                &(index_parts){.type = 8,
                               .sequences = 4,
                               .bounds = 3,
                               .lengths = (int32_t[]){INT32_MAX, INT32_MAX, INT32_MAX, 2},
                               .pointers = (int64_t[]){0, 2 * most, 4 * most, 6 * most},
                               .documents = (int64_t[]){0, 3, 4}},
                4, 3);
    mc_token_file *file = open_good(f, temp_path(&f->folder, "m.bin"));
    int64_t first, count;
    assert_true(mc_token_file_document(file, 1, &first, &count));
    assert_true(first == 3 * most && count == 2);
    expect_tokens(f, file, first - 1, (int32_t[]){0, 11, 12}, 3);
}

/* ---- bad files ---- */

static void refuse(fixture *f, const char *name, mc_status status, const char *part)
{
    const char *path = temp_path(&f->folder, name);
    assert_null(mc_token_file_open(f->ctx, path));
    if (!strstr(mc_error_message(f->ctx), name))
        fail_msg("\"%s\" does not name %s", mc_error_message(f->ctx), name);
    expect_error(f->ctx, status, part);
}

static void test_bad_llmc(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "x.bin");
    refuse(f, "x.bin", MC_ERR_NOT_FOUND, "cannot open");
    refuse(f, "x*.bin", MC_ERR_NOT_FOUND, "no file matches");
    write_text(path, "");
    refuse(f, "x.bin", MC_ERR_FORMAT, "empty file");
    write_text(path, "ab");
    refuse(f, "x.bin", MC_ERR_FORMAT, "wrong magic");
    write_llmc(path, 12345, 1, 4, 4, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "wrong magic 12345, expected 20240520");
    write_llmc(path, 20240522, 1, 4, 4, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "an evaluation set of llm.c");
    write_llmc(path, 20240326, 3, 4, 4, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "a model of llm.c");
    write_llmc(path, 20240520, 2, 4, 4, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "version 2, expected 1");
    write_llmc(path, 20240801, 1, 4, 4, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "version 1, expected 7");
    write_llmc(path, 20240520, 1, 5, 4, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "5 tokens, which is 1034 bytes in all; the file has 1032");
    write_llmc(path, 20240520, 1, 3, 4, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "3 tokens, which is 1030 bytes in all; the file has 1032");
    write_llmc(path, 20240520, 1, -3, 4, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "says 4294967293 tokens");
    write_u16_shard(path, 0, 1);
    refuse(f, "x.bin", MC_ERR_FORMAT, "an empty shard");
    write_u16_shard(path, 5, 1);
    assert_int_equal(truncate(path, 1000), 0);
    refuse(f, "x.bin", MC_ERR_FORMAT, "1000 bytes, the header alone has 1024");
    write_u16_shard(path, 5, 1);
    assert_int_equal(truncate(path, 1033), 0);
    refuse(f, "x.bin", MC_ERR_FORMAT, "1034 bytes in all; the file has 1033");
    assert_int_equal(mkdir(temp_path(&f->folder, "d"), 0777), 0);
    refuse(f, "d", MC_ERR_IO, "not a regular file");
    assert_null(mc_token_file_open(f->ctx, ""));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "needs a path");
    assert_null(mc_token_file_open(f->ctx, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "needs a path");
}

/* One bad shard of several is named. */
static void test_bad_shard(void **state)
{
    fixture *f = *state;
    write_u16_shard(temp_path(&f->folder, "s1.bin"), 3, 100);
    write_llmc(temp_path(&f->folder, "s2.bin"), 20240520, 1, 9, 3, 1);
    assert_null(mc_token_file_open(f->ctx, temp_path(&f->folder, "s*.bin")));
    expect_error(f->ctx, MC_ERR_FORMAT, "s2.bin: the header says 9 tokens");
}

/* The index of two sequences of u16, of 10 bytes together. */
static const index_parts good_index = {.type = 8,
                                       .sequences = 2,
                                       .bounds = 3,
                                       .lengths = (const int32_t[]){2, 3},
                                       .pointers = (const int64_t[]){0, 4},
                                       .documents = (const int64_t[]){0, 1, 2}};

static void test_bad_megatron(void **state)
{
    fixture *f = *state;
    struct {
        index_parts parts;
        const char *message;
    } cases[24];
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) cases[i].parts = good_index;
    cases[n].parts.magic = "MMIDIDY\0";
    cases[n++].message = "wrong magic";
    cases[n].parts.version = 2;
    cases[n++].message = "version 2, expected 1";
    cases[n].parts.type = 6;
    cases[n++].message = "type f64";
    cases[n].parts.type = 100; /* u32, which is llm.c's only */
    cases[n++].message = "type code 100";
    cases[n].parts.type = 0;
    cases[n++].message = "type code 0";
    cases[n].parts.sequences = 3;
    cases[n++].message = "3 sequences and 3 document bounds do not fit";
    cases[n].parts.sequences = UINT64_MAX / 12 + 2;
    cases[n++].message = "do not fit its 82 bytes";
    cases[n].parts.bounds = UINT64_MAX;
    cases[n++].message = "do not fit its 82 bytes";
    cases[n].parts.cut = 1;
    cases[n++].message = "do not fit its 81 bytes";
    cases[n].parts.cut = 60;
    cases[n++].message = "22 bytes, an index has at least 34";
    cases[n].parts.extra = 1;
    cases[n++].message = "do not fit its 83 bytes";
    cases[n].parts.pointers = (int64_t[]){0, 400};
    cases[n++].message = "sequence 1, 6 bytes from byte 400 on, lies outside the .bin of 10 bytes";
    cases[n].parts.pointers = (int64_t[]){0, -4};
    cases[n++].message = "from byte -4 on, lies outside the .bin";
    cases[n].parts.pointers = (int64_t[]){0, INT64_MAX};
    cases[n++].message = "lies outside the .bin";
    cases[n].parts.pointers = (int64_t[]){0, 2};
    cases[n++].message = "sequence 1 begins at byte 2 of the .bin, expected 4";
    cases[n].parts.lengths = (int32_t[]){2, 4};
    cases[n++].message = "lies outside the .bin of 10 bytes";
    cases[n].parts.lengths = (int32_t[]){2, -1};
    cases[n++].message = "sequence 1 has -1 tokens";
    cases[n].parts.lengths = (int32_t[]){2, 2};
    cases[n++].message = "its sequences take 8 bytes, the .bin has 10";
    cases[n].parts.documents = (int64_t[]){1, 1, 2};
    cases[n++].message = "document bound 0 is 1, expected 0 to 0";
    cases[n].parts.documents = (int64_t[]){0, 3, 2};
    cases[n++].message = "document bound 1 is 3, expected 0 to 2";
    cases[n].parts.documents = (int64_t[]){0, 2, 1};
    cases[n++].message = "document bound 2 is 1, expected 2 to 2";
    cases[n].parts.documents = (int64_t[]){0, 1, 1};
    cases[n++].message = "the documents end at sequence 1 of 2";
    write_bytes(temp_path(&f->folder, "m.bin"), "abcdefghij", 10);
    for (int i = 0; i < n; i++) {
        write_index(temp_path(&f->folder, "m.idx"), &cases[i].parts, 2, 3);
        assert_null(mc_token_file_open(f->ctx, temp_path(&f->folder, "m.bin")));
        assert_non_null(strstr(mc_error_message(f->ctx), "m.idx"));
        expect_error(f->ctx, MC_ERR_FORMAT, cases[i].message);
    }
}

/* An index and its .bin: both are needed, by these names, and with tokens. */
static void test_megatron_pairs(void **state)
{
    fixture *f = *state;
    write_bytes(temp_path(&f->folder, "m.bin"), "abcdefghij", 10);
    write_index(temp_path(&f->folder, "m.idx"), &good_index, 2, 3);
    mc_token_file_free(open_good(f, temp_path(&f->folder, "m.bin")));
    unlink(temp_path(&f->folder, "m.bin"));
    assert_null(mc_token_file_open(f->ctx, temp_path(&f->folder, "m.idx")));
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "m.bin: cannot open");
    index_parts empty = good_index;
    empty.sequences = 0;
    empty.bounds = 1;
    write_index(temp_path(&f->folder, "m.idx"), &empty, 0, 1);
    write_text(temp_path(&f->folder, "m.bin"), "");
    refuse(f, "m.bin", MC_ERR_FORMAT, "an empty shard");
    assert_int_equal(rename(temp_path(&f->folder, "m.idx"), temp_path(&f->folder, "m.index")), 0);
    refuse(f, "m.index", MC_ERR_FORMAT, "whose name should end in .idx");
}

/* Tokens that no vocabulary can hold are found when they are read. */
static void test_bad_tokens(void **state)
{
    fixture *f = *state;
    int32_t tokens[4];
    const struct {
        int64_t value;
        const char *message;
    } cases[] = {{-1, "token -1 at position 2 is negative"},
                 {1LL << 31, "token 2147483648 at position 2 is past the vocabulary"},
                 {(1LL << 32) + 5, "token 4294967301 at position 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bytes(temp_path(&f->folder, "m.bin"), (int64_t[]){0, 5, cases[i].value}, 24);
        write_index(temp_path(&f->folder, "m.idx"),
                    &(index_parts){.type = 5,
                                   .sequences = 1,
                                   .bounds = 2,
                                   .lengths = (int32_t[]){3},
                                   .pointers = (int64_t[]){0},
                                   .documents = (int64_t[]){0, 1}},
                    1, 2);
        mc_token_file *file = open_good(f, temp_path(&f->folder, "m"));
        expect_tokens(f, file, 0, (int32_t[]){0, 5}, 2);
        assert_int_equal(mc_token_file_read(file, 1, 2, tokens), MC_ERR_FORMAT);
        expect_error(f->ctx, MC_ERR_FORMAT, cases[i].message);
        assert_int_equal(mc_token_file_largest(file), -1);
        expect_error(f->ctx, MC_ERR_FORMAT, "m.bin: token");
    }
    write_llmc(temp_path(&f->folder, "u.bin"), 20240801, 7, 3, 3, 0x7FFFFFFF);
    mc_token_file *file = open_good(f, temp_path(&f->folder, "u.bin"));
    assert_int_equal(mc_token_file_read(file, 0, 3, tokens), MC_ERR_FORMAT);
    expect_error(f->ctx, MC_ERR_FORMAT, "token 4294967294 at position 2");
}

#ifdef MC_FAULT_INJECTION
static void test_faults(void **state)
{
    fixture *f = *state;
    write_u16_shard(temp_path(&f->folder, "s1.bin"), 3, 100);
    write_u16_shard(temp_path(&f->folder, "s2.bin"), 3, 100);
    const char *pattern = temp_path(&f->folder, "s?.bin");
    long nth = 0, count = 0;
    do {
        mc_fault_fail_at(++nth, false);
        mc_token_file *file = mc_token_file_open(f->ctx, pattern);
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        if (nth > count) break;
        assert_null(file);
        expect_error(f->ctx, MC_ERR_NOMEM, "out of memory");
    } while (nth <= count);
    assert_true(count >= 4);
    expect_ok(f->ctx);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_llmc, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ranges, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_megatron_types, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shards, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stale_index, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_real_megatron, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_large_llmc, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_too_large_llmc, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_large_megatron, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_llmc, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_shard, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_megatron, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_megatron_pairs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_tokens, set_up, tear_down),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
