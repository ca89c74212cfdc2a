/* Megatron's indices: the older form, and those that are too large to be checked at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <time.h>
#include "tests/datasets/lm_test.h"
#include "datasets/token_files.h"

static mc_token_file *open_good(fixture *f, const char *name)
{
    mc_token_file *file = mc_token_file_open(f->ctx, temp_path(&f->folder, name));
    expect_ok(f->ctx);
    assert_non_null(file);
    return file;
}

static void refuse(fixture *f, const char *part)
{
    assert_null(mc_token_file_open(f->ctx, temp_path(&f->folder, "m.bin")));
    assert_non_null(strstr(mc_error_message(f->ctx), "m.idx"));
    expect_error(f->ctx, MC_ERR_FORMAT, part);
}

/* ---- TNTIDX ---- */

enum { SEQUENCES = 4, BOUNDS = 4 };

typedef struct legacy_parts {
    uint64_t version, type, width, sequences, sizes, bounds;
    int64_t dims[SEQUENCES + 1], places[SEQUENCES + 1], lengths[SEQUENCES], documents[BOUNDS];
} legacy_parts;

static const legacy_parts legacy = {.version = 1,
                                    .type = 8,
                                    .width = 2,
                                    .sequences = SEQUENCES,
                                    .sizes = SEQUENCES,
                                    .bounds = BOUNDS,
                                    .dims = {0, 1, 2, 3, 4},
                                    .places = {0, 2, 2, 6, 9},
                                    .lengths = {2, 0, 4, 3},
                                    .documents = {0, 3, 3, 4}};

static void write_legacy(fixture *f, const legacy_parts *p, size_t cut)
{
    uint8_t bytes[8 + sizeof *p];
    memcpy(bytes, "TNTIDX\0\0", 8);
    memcpy(bytes + 8, p, sizeof *p); /* numbers of 64 bits, one after the other */
    write_bytes(temp_path(&f->folder, "m.idx"), bytes, sizeof bytes - cut);
}

static void test_legacy(void **state)
{
    fixture *f = *state;
    static const int widths[9] = {[1] = 1, [2] = 1, [3] = 2, [4] = 4, [5] = 8, [8] = 2};
    for (unsigned type = 1; type <= 8; type++) {
        uint8_t bin[72] = {0};
        if (!widths[type]) continue;
        for (int i = 0; i < 9; i++) bin[i * widths[type]] = (uint8_t)(i * 13);
        write_bytes(temp_path(&f->folder, "m.bin"), bin, 9 * (size_t)widths[type]);
        legacy_parts parts = legacy;
        parts.type = type;
        parts.width = (uint64_t)widths[type];
        write_legacy(f, &parts, 0);
        static const char *const names[] = {"m.bin", "m.idx", "m"};
        for (size_t n = 0; n < 3; n++) {
            mc_token_file *file = open_good(f, names[n]);
            int32_t tokens[9];
            assert_int_equal(mc_token_file_format(file, 0), MC_TOKENS_MEGATRON);
            assert_int_equal(mc_token_file_count(file), 9);
            assert_int_equal(mc_token_file_read(file, 0, 9, tokens), MC_OK);
            for (int i = 0; i < 9; i++) assert_int_equal(tokens[i], 13 * i);
            assert_int_equal(mc_token_file_documents(file), 3);
            static const int64_t documents[3][2] = {{0, 6}, {6, 0}, {6, 3}};
            for (int64_t i = 0; i < 3; i++) {
                int64_t first, count;
                assert_true(mc_token_file_document(file, i, &first, &count));
                assert_true(first == documents[i][0] && count == documents[i][1]);
            }
            mc_token_file_free(file);
        }
    }
}

static void test_bad_legacy(void **state)
{
    fixture *f = *state;
    struct {
        legacy_parts parts;
        const char *message;
    } cases[20];
    int n = 0;
    for (int i = 0; i < 20; i++) cases[i].parts = legacy;
    cases[n].parts.version = 2;
    cases[n++].message = "version 2, expected 1";
    cases[n].parts.type = 6;
    cases[n++].message = "numbers of type f64, expected whole ones";
    cases[n].parts.type = 1 << 20;
    cases[n++].message = "type code";
    cases[n].parts.width = 4;
    cases[n++].message = "tokens of 4 bytes, expected 2 of type code 8";
    cases[n].parts.sequences = 5;
    cases[n++].message = "5 sequences and 4 document bounds do not fit its 200 bytes";
    cases[n].parts.sequences = UINT64_MAX / 2;
    cases[n++].message = "do not fit its 200 bytes";
    cases[n].parts.bounds = UINT64_MAX;
    cases[n++].message = "do not fit its 200 bytes";
    cases[n].parts.sizes = 8;
    cases[n].parts.bounds = 0;
    cases[n++].message = "no document bounds";
    cases[n].parts.sizes = 5;
    cases[n].parts.bounds = 3;
    cases[n++].message = "5 sizes of 4 sequences";
    cases[n].parts.dims[2] = 1;
    cases[n++].message = "sequence 1 has not one dimension";
    cases[n].parts.places[2] = 3;
    cases[n++].message = "sequence 2 begins at token 3 of the .bin, expected 2";
    cases[n].parts.places[3] = 7;
    cases[n++].message = "tokens from token 7 on, lies outside the .bin of 9 tokens";
    cases[n].parts.places[0] = -1;
    cases[n++].message = "from token -1 on, lies outside";
    cases[n].parts.lengths[3] = 2;
    cases[n++].message = "its sequences take 16 bytes, the .bin has 18";
    cases[n].parts.lengths[3] = -3;
    cases[n++].message = "sequence 3 has -3 tokens";
    cases[n].parts.lengths[3] = INT64_MAX;
    cases[n++].message = "lies outside the .bin";
    cases[n].parts.places[4] = 8;
    cases[n++].message = "its sequences take 18 bytes, the .bin has 18";
    cases[n].parts.documents[1] = 5;
    cases[n++].message = "document bound 1 is 5, expected 0 to 4";
    cases[n].parts.documents[3] = 3;
    cases[n++].message = "the documents end at sequence 3 of 4";
    write_bytes(temp_path(&f->folder, "m.bin"), "abcdefghijklmnopqr", 18);
    for (int i = 0; i < n; i++) {
        write_legacy(f, &cases[i].parts, 0);
        refuse(f, cases[i].message);
    }
}

static void test_cut_legacy(void **state)
{
    fixture *f = *state;
    static const size_t cuts[] = {8, 4, 150, 190};
    write_bytes(temp_path(&f->folder, "m.bin"), "abcdefghijklmnopqr", 18);
    for (size_t i = 0; i < 4; i++) {
        write_legacy(f, &legacy, cuts[i]);
        refuse(f, i < 2    ? "do not fit"
                  : i == 2 ? "50 bytes, an index has at least 56"
                           : "10 bytes");
    }
    write_legacy(f, &legacy, 0);
    write_bytes(temp_path(&f->folder, "m.bin"), "abcdefghijklmnopqrs", 19);
    refuse(f, "the .bin has 19");
}

/* ---- large ones ---- */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Writes to a file that is sparse elsewhere. */
static bool put(int fd, const void *bytes, size_t size, int64_t at)
{
    return pwrite(fd, bytes, size, at) == (ssize_t)size;
}

/* The index of ten million documents of 1,000 tokens: `ends` entries at either end of each array,
 * and zeros between. */
static bool write_hollow(const char *path, int64_t count, int64_t ends)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint8_t header[34] = "MMIDIDX\0";
    uint64_t version = 1, sequences = (uint64_t)count, bounds = sequences + 1;
    memcpy(header + 9, &version, 8);
    header[17] = 8;
    memcpy(header + 18, &sequences, 8);
    memcpy(header + 26, &bounds, 8);
    int64_t pointers = 34 + 4 * count, documents = pointers + 8 * count;
    bool good = fd >= 0 && ftruncate(fd, documents + 8 * (count + 1)) == 0 &&
                put(fd, header, sizeof header, 0);
    for (int64_t i = 0; good && i <= count; i = i == ends && ends < count ? count - ends : i + 1) {
        const int32_t length = 1000;
        const int64_t place = 2000 * i;
        if (i < count)
            good = put(fd, &length, 4, 34 + 4 * i) && put(fd, &place, 8, pointers + 8 * i);
        good = good && put(fd, &i, 8, documents + 8 * i);
    }
    if (!good) fprintf(stderr, "SKIPPED: %s: %s\n", path, strerror(errno));
    if (fd >= 0) close(fd);
    return good;
}

/* Ten billion tokens open, and are resumed anywhere, within 100 ms. */
static void test_ten_billion(void **state)
{
    const double PROMISE = 0.1, BUSY = 20; /* sanitizers, and a machine that is busy */
    fixture *f = *state;
    const int64_t count = 10000000;
    const char *bin = temp_path(&f->folder, "m.bin");
    int fd = open(bin, O_RDWR | O_CREAT | O_TRUNC, 0600);
    bool good = fd >= 0 && ftruncate(fd, 2000 * count) == 0;
    if (fd >= 0) close(fd);
    if (!good || !write_hollow(temp_path(&f->folder, "m.idx"), count, 1 << 15)) skip();
    double start = seconds_now();
    mc_token_file *file = open_good(f, "m");
    mc_lm_source sources[2] = {{file, 0.7}, {file, 0.3}};
    mc_lm_loader *l = mc_lm_loader_new_blend(
        sources, 2,
        &(mc_lm_loader_options){
            .batch_size = 4, .seq_length = 1024, .shuffle = true, .repeat = true});
    expect_ok(f->ctx);
    double opened = seconds_now();
    mc_lm_position position = mc_lm_loader_position(l);
    position.window = position.windows / 2 + 12345;
    position.epoch = 3;
    assert_int_equal(mc_lm_loader_seek(l, &position), MC_OK);
    assert_non_null(mc_lm_loader_next(l));
    double resumed = seconds_now();
    printf("opened in %.1f ms, resumed in %.1f ms\n", 1e3 * (opened - start),
           1e3 * (resumed - opened));
    assert_true(opened - start < PROMISE * BUSY && resumed - opened < PROMISE * BUSY);
    int64_t first, tokens;
    assert_true(mc_token_file_document(file, 7, &first, &tokens) && first == 7000);
    assert_true(mc_token_file_document(file, count - 1, &first, &tokens));
    assert_true(first == 1000 * (count - 1) && tokens == 1000);
}

/* The middle of a large index is checked when it is used: one number of it is wrong. */
static void test_damaged_middle(void **state)
{
    fixture *f = *state;
    const int64_t count = 200000, at = 100000, wrong = 2000 * at + 2;
    const char *idx = temp_path(&f->folder, "m.idx");
    int fd = open(temp_path(&f->folder, "m.bin"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(ftruncate(fd, 2000 * count), 0);
    close(fd);
    if (!write_hollow(idx, count, count)) skip();
    fd = open(idx, O_RDWR);
    assert_true(put(fd, &wrong, 8, 34 + 4 * count + 8 * at));
    close(fd);
    mc_token_file *file = open_good(f, "m");
    int64_t first, tokens;
    assert_true(mc_token_file_document(file, 7, &first, &tokens) && first == 7000);
    assert_false(mc_token_file_document(file, at + 5, &first, &tokens));
    expect_error(f->ctx, MC_ERR_FORMAT,
                 "m.idx: sequence 100000 begins at byte 200000002 of the .bin, expected 200000000");
    mc_lm_loader *l = mc_lm_loader_new(
        file,
        &(mc_lm_loader_options){.batch_size = 1, .seq_length = 2000, .separate_documents = true});
    expect_ok(f->ctx);
    assert_null(mc_lm_loader_next(l)); /* the search for its documents begins in the middle */
    expect_error(f->ctx, MC_ERR_FORMAT, "m.idx: sequence 100000");
}

/* All of an index that is larger than a stretch, in both directions. */
static void test_stretches(void **state)
{
    fixture *f = *state;
    const int64_t count = 100001;
    int fd = open(temp_path(&f->folder, "m.bin"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(ftruncate(fd, 2000 * count), 0);
    close(fd);
    if (!write_hollow(temp_path(&f->folder, "m.idx"), count, count)) skip();
    for (int backwards = 0; backwards < 2; backwards++) {
        mc_token_file *file = open_good(f, "m");
        for (int64_t i = 0; i < count; i++) {
            int64_t document = backwards ? count - 1 - i : i, first, tokens;
            assert_true(mc_token_file_document(file, document, &first, &tokens));
            assert_true(first == 1000 * document && tokens == 1000);
        }
        mc_token_file_free(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_legacy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_legacy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cut_legacy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ten_billion, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damaged_middle, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stretches, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
