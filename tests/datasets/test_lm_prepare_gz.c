/* Preparing compressed inputs: the same tokens as of what they hold, whatever the pieces and the
 * threads; what is wrong is said with the line in the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/base/memory_internal.h"
#include "datasets/lm/prepare_internal.h"
#include "tests/datasets/lm_test.h"
#include "tests/fault_paths.h"

#ifndef MC_HAVE_ZLIB

static void test_without_zlib(void **state)
{
    fixture *f = *state;
    const char *input = temp_path(&f->folder, "a.txt.gz");
    write_text(input, "text");
    mc_prepare_tokens(f->ctx, f->tok, &input, 1, temp_path(&f->folder, "out.bin"), NULL, NULL);
    expect_error(f->ctx, MC_ERR_UNSUPPORTED, "a.txt.gz");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_without_zlib, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else
#include <zlib.h>

enum { SIZE = 3 << 20 };

/* Adds a member. */
static void append_gzip(const char *path, const char *bytes, size_t size)
{
    gzFile file = gzopen(path, "ab1");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)size), size);
    assert_int_equal(gzclose(file), Z_OK);
}

/* Words of changing length, in lines; every second one in quotes of JSON where `rows`. */
static char *make_text(bool rows)
{
    char *text = malloc(SIZE + 200);
    assert_non_null(text);
    uint32_t x = 1;
    size_t at = 0;
    while (at < SIZE) {
        if (rows) at += (size_t)sprintf(text + at, "{\"text\": \"");
        for (int i = 0, words = (int)(x >> 8 & 15); i <= words; i++) {
            x = x * 1664525 + 1013904223;
            text[at++] = (char)('a' + (x >> 16) % 26);
            if (x >> 24 < 60) text[at++] = ' ';
        }
        if (rows) at += (size_t)sprintf(text + at, "\"}");
        text[at++] = '\n';
    }
    text[at] = '\0';
    return text;
}

static mc_prepare_result prepare(fixture *f, const char *input, const char *output, int threads)
{
    mc_prepare_result result;
    const mc_prepare_options options = {.threads = threads, .format = MC_TOKENS_MEGATRON};
    mc_prepare_tokens(f->ctx, f->tok, &input, 1, output, &options, &result);
    return result;
}

static void expect_same_files(fixture *f, const char *a, const char *b)
{
    size_t size, other;
    char *x = read_whole(temp_path(&f->folder, a), &size);
    char *y = read_whole(temp_path(&f->folder, b), &other);
    assert_int_equal(size, other);
    assert_memory_equal(x, y, size);
    free(x);
    free(y);
}

/* What a text gives plain and as a .gz of members of `member` bytes, with one thread and several.
 */
static void compare(fixture *f, const char *name, const char *text, size_t size, size_t member)
{
    char packed[80];
    snprintf(packed, sizeof packed, "%s.gz", name);
    write_bytes(temp_path(&f->folder, name), text, size);
    unlink(temp_path(&f->folder, packed));
    for (size_t at = 0; at < size || !at; at += member)
        append_gzip(temp_path(&f->folder, packed), text + at,
                    size - at < member ? size - at : member);
    mc_prepare_result plain =
        prepare(f, temp_path(&f->folder, name), temp_path(&f->folder, "plain"), 2);
    expect_ok(f->ctx);
    for (int threads = 1; threads <= 5; threads += 2) {
        mc_prepare_result r =
            prepare(f, temp_path(&f->folder, packed), temp_path(&f->folder, "packed"), threads);
        expect_ok(f->ctx);
        assert_int_equal(r.documents, plain.documents);
        assert_int_equal(r.bytes, size);
        assert_int_equal(r.file_bytes, r.total_bytes);
        assert_true(r.total_bytes < plain.total_bytes || size < 1000);
        expect_same_files(f, "plain.bin", "packed.bin");
        expect_same_files(f, "plain.idx", "packed.idx");
    }
}

static void test_same_tokens(void **state)
{
    fixture *f = *state;
    for (int rows = 0; rows < 2; rows++) {
        char *text = make_text(rows);
        const char *name = rows ? "a.jsonl" : "a.txt";
        compare(f, name, text, strlen(text), SIZE + 200);
        compare(f, name, text, strlen(text), 700001);
        if (!rows) { /* just a piece, and some more, or as much as is inflated at once */
            static const size_t sizes[] = {1 << 19, (1 << 19) + 1, (9 << 16) - 1, 9 << 16};
            for (int i = 0; i < 4; i++) compare(f, name, text, sizes[i], SIZE);
        }
        free(text);
        if (rows) compare(f, name, "{\"text\": \"one\"}\n{\"text\": \"two\"}", 31, 7);
    }
}

/* Lines of JSON as a list of objects. */
static char *make_list(const char *rows)
{
    char *list = malloc(2 * strlen(rows) + 4), *to = list;
    assert_non_null(list);
    *to++ = '[';
    for (const char *c = rows; *c; c++) {
        if (*c == '\n' && c[1]) *to++ = ',';
        if (*c != '\n' || (c - rows) % 3 == 0) *to++ = *c;
    }
    memcpy(to, "]\n", 3);
    return list;
}

/* A list has the tokens of its objects on lines of their own; a flaw is found at its line. */
static void test_list(void **state)
{
    fixture *f = *state;
    char *rows = make_text(true), *list = make_list(rows);
    compare(f, "a.json", list, strlen(list), SIZE / 3);
    write_bytes(temp_path(&f->folder, "a.jsonl"), rows, strlen(rows));
    prepare(f, temp_path(&f->folder, "a.jsonl"), temp_path(&f->folder, "lines"), 3);
    expect_ok(f->ctx);
    expect_same_files(f, "plain.bin", "lines.bin");
    expect_same_files(f, "plain.idx", "lines.idx");
    char *comma = strstr(list + 2 * (SIZE / 3), "},"), expected[64];
    int line = 1;
    comma[1] = ';';
    for (const char *c = list; c < comma + 1; c++) line += *c == '\n';
    snprintf(expected, sizeof expected, "b.json:%d: expected a comma", line);
    write_bytes(temp_path(&f->folder, "b.json"), list, strlen(list));
    prepare(f, temp_path(&f->folder, "b.json"), temp_path(&f->folder, "no"), 3);
    expect_error(f->ctx, MC_ERR_FORMAT, expected);
    free(rows);
    free(list);
}

/* A line, or a text without a space, is one piece however long; a byte order mark is none of it. */
static void test_long_lines(void **state)
{
    fixture *f = *state;
    char *text = malloc(SIZE);
    assert_non_null(text);
    memset(text, 'a', SIZE);
    memcpy(text, "\xEF\xBB\xBF", 3);
    memset(text + 1000000, ' ', 1);
    compare(f, "a.txt", text, SIZE, SIZE);
    memcpy(text + 3, "{\"text\": \"", 10);
    memcpy(text + SIZE - 40, "\"}\n{\"text\": \"", 13);
    memcpy(text + SIZE - 2, "\"}", 2);
    compare(f, "a.jsonl", text, SIZE, SIZE);
    free(text);
}

static void refuse(fixture *f, const char *input, const char *part)
{
    for (int threads = 1; threads <= 5; threads += 4) {
        prepare(f, temp_path(&f->folder, input), temp_path(&f->folder, "none"), threads);
        expect_error(f->ctx, MC_ERR_FORMAT, part);
        assert_int_equal(access(temp_path(&f->folder, "none.bin"), F_OK), -1);
    }
}

/* Lines and offsets are those of the text. */
static void test_places(void **state)
{
    fixture *f = *state;
    char *text = make_text(false), message[128];
    size_t size = strlen(text), at = size * 3 / 4;
    int line = 1;
    for (size_t i = 0; i < at; i++) line += text[i] == '\n';
    text[at] = '\x80';
    append_gzip(temp_path(&f->folder, "bad.txt.gz"), text, size);
    snprintf(message, sizeof message, "bad.txt.gz:%d: not UTF-8: byte 0x80 at offset %zu", line,
             at);
    refuse(f, "bad.txt.gz", message);
    free(text);
    text = make_text(true);
    size = strlen(text);
    char *row = strstr(text + size / 2, "{\"text");
    line = 1;
    for (char *p = text; p < row; p++) line += *p == '\n';
    row[2] = 'T';
    append_gzip(temp_path(&f->folder, "bad.jsonl.gz"), text, size);
    snprintf(message, sizeof message, "bad.jsonl.gz:%d: key \"text\" is missing", line);
    refuse(f, "bad.jsonl.gz", message);
    free(text);
}

static void test_damaged(void **state)
{
    fixture *f = *state;
    char *text = make_text(false);
    const char *path = temp_path(&f->folder, "a.txt.gz");
    append_gzip(path, text, strlen(text));
    size_t size;
    char *bytes = read_whole(path, &size), message[128];
    int lines = 1;
    for (char *p = text; *p; p++) lines += *p == '\n';
    free(text);
    write_bytes(temp_path(&f->folder, "cut.txt.gz"), bytes, size - 6); /* all of the text */
    snprintf(message, sizeof message,
             "cut.txt.gz:%d: cut off at byte %zu: its gzip data has no end", lines, size - 6);
    refuse(f, "cut.txt.gz", message);
    write_bytes(temp_path(&f->folder, "half.txt.gz"), bytes, size / 2);
    snprintf(message, sizeof message, ": cut off at byte %zu: its gzip data has no end", size / 2);
    refuse(f, "half.txt.gz", message);
    bytes[size - 6] ^= 1;
    write_bytes(temp_path(&f->folder, "wrong.txt.gz"), bytes, size);
    refuse(f, "wrong.txt.gz", ": not valid gzip data at byte");
    free(bytes);
    write_text(temp_path(&f->folder, "plain.txt.gz"), "no gzip");
    refuse(f, "plain.txt.gz", "plain.txt.gz:1: not valid gzip data");
    write_text(temp_path(&f->folder, "empty.txt.gz"), "");
    refuse(f, "empty.txt.gz", "empty.txt.gz: empty, expected gzip data");
}

#ifdef MC_FAULT_INJECTION
/* Whatever allocation fails (fault_paths.h): a clean error, no leak. With one thread their order is
 * the same. */
static void test_faults(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "a.txt.gz");
    char *text = make_text(false);
    append_gzip(path, text, 1 << 20);
    free(text);
    mc_fault_choose(path_has_turn);
    for (long nth = 1, count = 1; nth <= count; nth++) {
        mc_fault_fail_at(nth, false);
        prepare(f, path, temp_path(&f->folder, "out"), 1);
        nth = mc_fault_place();
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        if (nth <= count)
            expect_error(f->ctx, MC_ERR_NOMEM, "");
        else
            expect_ok(f->ctx);
    }
    mc_fault_choose(NULL);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_tokens, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_list, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_lines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_places, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damaged, set_up, tear_down),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
