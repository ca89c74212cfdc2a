/* Files that become shorter while a run reads them. With a token file the command reports file and
 * byte, and which checkpoint is whole; --resume goes on from it. That file is cut when the run has
 * reported a checkpoint, and the run has more steps than it can take with what is left, so nothing
 * depends on time. Weights and optimizer state are cut when they have just been mapped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#define COMMAND_VARIABLES                                                                         \
    "export OMP_NUM_THREADS=1 && P=\"$MC pretrain --family gpt2 --config shape.json --data "      \
    "tokens.bin --seq-length 16 --batch-size 2 --steps 1000000 --save-every 5 --output run\" && " \
    "cut() { export MC_TEST_CUT=\"$1\" LD_PRELOAD='" MC_CUT_MAPPED "' && "                        \
    "export ASAN_OPTIONS=\"$ASAN_OPTIONS:verify_asan_link_order=0\" && shift && exec \"$@\"; } "  \
    "&& "
#include "tests/tools/command_test.h"

enum { TOKENS = 200000, HEADER = 256 };

static int make_files(void **state)
{
    static uint16_t tokens[TOKENS];
    int32_t header[HEADER] = {20240520, 1, TOKENS};
    make_folder(state);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint16_t)(1 + i * 7919 % 60);
    FILE *file = fopen(temp_path(&folder, "tokens.bin"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(header, sizeof header, 1, file), 1);
    assert_int_equal(fwrite(tokens, sizeof tokens, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    write_text(temp_path(&folder, "shape.json"),
               "{\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_positions\": 16, "
               "\"n_embd\": 16, \"n_layer\": 1, \"n_head\": 2}");
    return 0;
}

static void test_tokens(void **state)
{
    (void)state;
    must("cp tokens.bin whole.bin; mkfifo lines; $P 2>lines & "
         "while read -r line; do echo \"$line\" >&2; "
         "case \"$line\" in 'saved step '*) : >tokens.bin;; esac; done <lines; "
         "wait $! && exit 1; [ $? = 1 ]");
    must_hold(err, "tokens.bin: cannot read byte ");
    must_hold(err, "the file is 0 bytes, expected 401024");
    must_hold(err, "the newest checkpoint is of step ");
    long step = strtol(strstr(err, "the newest checkpoint is of step ") + 33, NULL, 10);
    assert_true(step >= 5 && step % 5 == 0);
    char line[256];
    snprintf(line, sizeof line, "cp whole.bin tokens.bin && $P --resume --stop-after %ld",
             step + 3);
    must(line);
    snprintf(line, sizeof line, "resumed after step %ld", step);
    must_hold(err, line);
}

/* Long runs of bytes are read and short ones copied from the mapped file: both are an error. */
static void test_weights(void **state)
{
    (void)state;
    static const char *const widths[] = {"16", "512"}; /* 4 KB and 128 KB of a word table */
    for (int i = 0; i < 2; i++) {
        char line[512];
        snprintf(line, sizeof line,
                 "rm -rf model && sed 's/\"n_embd\": 16/\"n_embd\": %s/' shape.json >wide.json && "
                 "$MC pretrain --family gpt2 --config wide.json --data tokens.bin --seq-length 16 "
                 "--batch-size 2 --steps 1 --output model",
                 widths[i]);
        must(line);
        must_refuse(1, "model.safetensors: cannot read byte ",
                    "(cut model.safetensors $MC pretrain --model model --data tokens.bin "
                    "--seq-length 16 --batch-size 2 --steps 1 --no-save)");
        must_hold(err, "become shorter while it was in use");
    }
}

static void test_optimizer_state(void **state)
{
    (void)state;
    must("rm -rf run && $P --stop-after 5");
    must_refuse(1, "optimizer.safetensors: cannot read byte ",
                "(cut optimizer.safetensors $P --resume)");
    must_hold(err, "become shorter while it was in use");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tokens),
                                       cmocka_unit_test(test_weights),
                                       cmocka_unit_test(test_optimizer_state)};
    return cmocka_run_group_tests(tests, make_files, remove_folder);
}
