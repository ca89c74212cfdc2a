/* `modelcenter prepare`, run as a user runs it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "datasets/lm.h"
#include "tests/datasets/fixture.h"
#include "tests/tools/command_test.h"
#include "datasets/token_files.h"

/* Runs a shell line in the folder with $P as the command and its tokenizer; its exit code. */
static int run_prepare(fixture *f, const char *line)
{
    return run_in(&f->folder, "P=\"$MC prepare --tokenizer tok\" && ", line);
}

static void expect_tokens(fixture *f, const char *name, const int32_t *expected, int count)
{
    int32_t tokens[64];
    mc_token_file *file = mc_token_file_open(f->ctx, temp_path(&f->folder, name));
    expect_ok(f->ctx);
    assert_int_equal(mc_token_file_count(file), count);
    assert_int_equal(mc_token_file_read(file, 0, count, tokens), MC_OK);
    assert_memory_equal(tokens, expected, (size_t)count * sizeof *tokens);
}

static void expect_result(const char *counts)
{
    double seconds, rate;
    assert_memory_equal(out, counts, strlen(counts));
    assert_int_equal(sscanf(out + strlen(counts), "seconds=%lf mb_per_s=%lf\n", &seconds, &rate),
                     2);
    assert_true(seconds >= 0 && rate >= 0);
    assert_string_equal(strchr(out, '\n'), "\n"); /* one line */
}

static void test_tables(void **state)
{
    fixture *f = *state;
    write_text(temp_path(&f->folder, "a.csv"), "text,n\n!,1\n");
    assert_int_equal(run_prepare(f, "$P --input a.csv --output x.bin"), 0);
    assert_non_null(strstr(err, "warning: a.csv: a table is read as one text, with its header"));
}

static void test_formats(void **state)
{
    fixture *f = *state;
    write_text(temp_path(&f->folder, "a.txt"), "!\n\"");
    write_text(temp_path(&f->folder, "b.jsonl"), "{\"text\": \"\\\"!\", \"other\": \"#\"}\n");
    assert_int_equal(run_prepare(f, "$P --input a.txt b.jsonl --output x.bin"), 0);
    assert_string_equal(err, "");
    expect_result("result documents=2 tokens=6 ");
    expect_tokens(f, "x.bin", (int32_t[]){3, 5, 6, 3, 6, 5}, 6);
    assert_int_equal(
        run_prepare(f, "$P --input=b.jsonl --input a.txt --output y.bin --format megatron "
                       "--threads 3 --end-token '[CLS]'"),
        0);
    expect_result("result documents=2 tokens=6 ");
    expect_tokens(f, "y.bin", (int32_t[]){6, 5, 2, 5, 6, 2}, 6);
    assert_int_equal(
        run_prepare(
            f, "$P --input b.jsonl --json-key other --overwrite --output x.bin --end-of-text none"),
        0);
    expect_result("result documents=1 tokens=1 ");
    expect_tokens(f, "x.bin", (int32_t[]){7}, 1);
}

/* A list of objects is as good as an object a line. */
static void test_list(void **state)
{
    fixture *f = *state;
    write_text(temp_path(&f->folder, "a.json"),
               "\xEF\xBB\xBF [\n {\"text\": \"\\\"!]\"},\r\n{\"x\": [1, {}], \"text\": \"#\"} ]\n");
    write_text(temp_path(&f->folder, "a.jsonl"), "{\"text\": \"\\\"!]\"}\n{\"text\": \"#\"}\n");
    assert_int_equal(run_prepare(f, "$P --input a.json --output x.bin && $P --input a.jsonl "
                                    "--output y.bin && cmp x.bin y.bin"),
                     0);
    assert_memory_equal(out, "result documents=2 tokens=", 26);
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"[]", "no tokens in it"},
        {"[\n{\"text\": \"!\"}\n{\"text\": \"!\"}]",
         "b.json:3: expected a comma or ] after the object before"},
        {"[{\"text\": \"!\"},\n\n", "b.json:3: the list of objects does not end, expected ]"},
        {"[{\"text\": \"!\"}\n", "b.json:2: the list of objects does not end, expected ]"},
        {"[", "b.json:1: the list of objects does not end, expected ]"},
        {"[{\"text\": \"!\"}]\n\n{}", "b.json:3: text after the end of the list of objects"},
        {"[{\"text\": \"!\"},\n]", "b.json:2: "},
        {"[{\"text\": \"!\"},\n\"!\"]", "b.json:2: expected a JSON object, found \"!\""},
        {"[{\"text\": \"!\"},\n[{}]]", "b.json:2: expected a JSON object, found a list"},
        {"[{\"text\": \"!\"},\n{\"a\": 1}]", "b.json:2: key \"text\" is missing"},
        {"[{\"text\": \"!", "b.json:1: "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(temp_path(&f->folder, "b.json"), bad[i].text);
        assert_int_equal(run_prepare(f, "$P --input b.json --output z.bin"), 1);
        if (!strstr(err, bad[i].error)) fail_msg("%s: %s", bad[i].text, err);
    }
}

static void test_errors(void **state)
{
    fixture *f = *state;
    write_text(temp_path(&f->folder, "a.txt"), "!\n\xFF");
    assert_int_equal(run_prepare(f, "$P"), 2);
    assert_non_null(strstr(err, "required and missing: --input, --output"));
    assert_int_equal(run_prepare(f, "$P --input a.txt --output x.bin --format nanogpt"), 2);
    assert_non_null(strstr(err, "--format \"nanogpt\": expected one of llmc, megatron"));
    assert_int_equal(run_prepare(f, "$P --input a.txt --output x.bin --threads 1025"), 2);
    assert_int_equal(run_prepare(f, "$P --input a.txt --output x.bin"), 1);
    assert_non_null(strstr(err, "error: a.txt:2: not UTF-8: byte 0xFF at offset 2"));
    assert_int_equal(run_prepare(f, "$P --input - --output x.bin"), 2);
    assert_non_null(strstr(err, "--input -: expected files"));
    assert_int_equal(run_prepare(f, "$P --input nothing.txt --output x.bin"), 1);
    assert_non_null(strstr(err, "error: nothing.txt: cannot open: No such file"));
    assert_int_equal(run_prepare(f, "$P --tokenizer nowhere --input a.txt --output x.bin"), 1);
    assert_non_null(strstr(err, "nowhere"));
    assert_string_equal(out, "");
    assert_int_equal(count_files(f->folder.path), 4); /* a.txt, tok, out, err */
}

/* Whatever a kill leaves beside the output goes with the next run of the same command, and nothing
 * else does. */
static void test_kill(void **state)
{
    fixture *f = *state;
    FILE *many = fopen(temp_path(&f->folder, "many.txt"), "w");
    assert_non_null(many);
    for (int i = 0; i < 300000; i++) fputs("!\"#!\"#!\"#!\"#\n", many);
    fclose(many);
    write_text(temp_path(&f->folder, "a.txt"), "!\n\"");
    write_text(temp_path(&f->folder, "other.bin.tmp-0123456789abcdef"), "another's");
    for (int i = 0; i < 3; i++)
        run_prepare(f, "$P --input many.txt --output x.bin & p=$!; "
                       "while kill -0 $p 2>&- && ! ls | grep -q x.bin.tmp-; do sleep 0.01; done; "
                       "kill -9 $p; wait $p");
    assert_int_equal(run_prepare(f, "ls | grep -q x.bin.tmp-"), 0);
    assert_int_equal(run_prepare(f, "$P --input a.txt --output x.bin --overwrite"), 0);
    assert_int_not_equal(run_prepare(f, "ls | grep x.bin.tmp-"), 0);
    assert_int_equal(access(temp_path(&f->folder, "other.bin.tmp-0123456789abcdef"), F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_formats, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tables, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_list, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_errors, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_kill, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
