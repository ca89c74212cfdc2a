/* Limits of memory: what needs none of it runs under any, --batch-size auto stays within, and one
 * that is too small is an error that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#define COMMAND_VARIABLES                                                                     \
    "export OMP_NUM_THREADS=2 && unset MC_GEMM && P=\"timeout 60 $MC pretrain --family gpt2 " \
    "--config shape.json --data tokens.bin --seq-length 64 --steps 2 --no-save\" && "
#include "tests/tools/command_test.h"

enum { VOCABULARY = 8000, TOKENS = 100000, HEADER = 256 };

static int make_files(void **state)
{
    static uint16_t tokens[TOKENS];
    int32_t header[HEADER] = {20240520, 1, TOKENS};
    make_folder(state);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint16_t)((i * 7919) % VOCABULARY);
    FILE *file = fopen(temp_path(&folder, "tokens.bin"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(header, sizeof header, 1, file), 1);
    assert_int_equal(fwrite(tokens, sizeof tokens, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    must("echo '{\"model_type\": \"gpt2\", \"vocab_size\": 8000, \"n_positions\": 64, \"n_embd\": "
         "32, "
         "\"n_layer\": 2, \"n_head\": 2}' >shape.json");
    return 0;
}

/* AddressSanitizer takes terabytes of address space, and memory beside each allocation. */
static bool limits_hold(void)
{
#if defined(__SANITIZE_ADDRESS__)
    print_message("skipped: no plan counts what AddressSanitizer takes\n");
    return false;
#else
    return true;
#endif
}

/* The least address space in KiB in which the command starts: its libraries take it, more of them
 * where CUDA is built in. */
static int least_space(void)
{
    char line[128];
    for (int space = 20000; space < 1000000; space += 5000) {
        snprintf(line, sizeof line, "ulimit -v %d && timeout 60 $MC --version", space);
        if (run(line) == 0) return space;
    }
    fail_msg("--version does not run in 1 GB of address space");
    return 0;
}

/* A command line in which %d is `more` KiB beside what the command needs to start. */
static const char *within(int more, const char *format)
{
    static char line[512];
    static int least;
    if (!least) least = least_space();
    snprintf(line, sizeof line, format, least + more);
    return line;
}

static void test_small_limits(void **state)
{
    (void)state;
    if (!limits_hold()) skip();
    must(within(30000, "ulimit -v %d && timeout 60 $MC plan --config shape.json --family gpt2 "
                       "--seq-length 64 --rates here"));
    must_hold(out, "step time: not known: ");
    must("timeout 60 $MC plan --config shape.json --family gpt2 --seq-length 64 --rates here");
    must_hold(out, "step time, predicted");
    must_refuse(1, "address space", within(5000, "ulimit -v %d && $P --batch-size 1"));
    must_refuse(1, "address space",
                within(190000, "export MC_GEMM=cblas && ulimit -v %d && $P --batch-size 1"));
}

/* In a limit of address space it takes what fits, too. */
static void test_auto_in_address_space(void **state)
{
    (void)state;
    if (!limits_hold()) skip();
    must(within(340000, "ulimit -v %d && $P --batch-size auto"));
    must_hold(out, "result model=gpt2 steps=2");
}

/* A group of this limit, of version 1 or 2, for the rest of the line; exit code 77 without. */
#define IN_GROUP                                                                              \
    "G=/sys/fs/cgroup/memory/mc-test-$$; F=memory.limit_in_bytes; "                           \
    "mkdir $G 2>gone || { G=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/mc-test-$$; " \
    "F=memory.max; mkdir $G 2>gone; }; "                                                      \
    "echo %dM 2>gone >$G/$F && (echo 0 >$G/cgroup.procs && exec $P --batch-size %s) || "      \
    "{ C=$?; [ -e $G/$F ] || C=77; rmdir $G; exit $C; }; rmdir $G"

static int run_in_group(int limit, const char *batch)
{
    char line[1024];
    snprintf(line, sizeof line, IN_GROUP, limit, batch);
    return run(line);
}

static void test_auto_in_a_group(void **state)
{
    (void)state;
    if (!limits_hold()) skip();
    static const int limits[] = {80, 120, 200};
    double before = 0;
    for (int i = 0; i < 3; i++) {
        int code = run_in_group(limits[i], "auto");
        if (code == 77) {
            print_message("skipped: no control group of memory can be made here\n");
            skip();
        }
        if (code) fail_msg("exit %d in a group of %d MiB: %.2000s", code, limits[i], err);
        double tokens = number_after(out, "tokens=");
        assert_true(tokens > before);
        assert_null(strstr(err, "warning")); /* it has chosen what fits */
        before = tokens;
    }
}

static void test_warning(void **state)
{
    (void)state;
    if (!limits_hold()) skip();
    int code = run_in_group(80, "1000");
    if (code == 77) skip();
    assert_int_not_equal(code, 0); /* the system has ended it */
    must_hold(err, "warning: a batch of 1000 takes ");
}

/* finetune's batches are as large as its longest texts make them. */
static void test_finetune_warning(void **state)
{
    (void)state;
    if (!limits_hold()) skip();
    must("mkdir tiny && printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' a b >tiny/vocab.txt "
         "&& echo '{\"model_type\":\"bert\",\"vocab_size\":7,\"hidden_size\":64,"
         "\"num_hidden_layers\":4,\"num_attention_heads\":2,\"intermediate_size\":256,"
         "\"max_position_embeddings\":32}' >tiny/config.json && "
         "awk 'BEGIN { print \"text,label\"; for (i = 0; i < 4000; i++) "
         "print \"a b a b a b a b a b a b a b a b a b a b,\" i % 2 }' >rows.csv");
#define FINETUNE                                                                            \
    "ulimit -v %d && timeout 60 $MC finetune --config tiny --data rows.csv --val rows.csv " \
    "--text text --label label --max-steps 1 --no-save --no-group-by-length --batch-size "
    run(within(400000, FINETUNE "4000"));
    must_hold(err, "warning: a batch of 4000 takes ");
    must_hold(err, "a smaller --batch-size ");
    must(within(400000, FINETUNE "2 --dry-run"));
    assert_null(strstr(err, "warning: a batch"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finetune_warning),
        cmocka_unit_test(test_small_limits),
        cmocka_unit_test(test_auto_in_address_space),
        cmocka_unit_test(test_auto_in_a_group),
        cmocka_unit_test(test_warning),
    };
    return cmocka_run_group_tests(tests, make_files, remove_folder);
}
