/* `modelcenter pretrain --data`: blends by weight, and documents kept apart; runs that are stopped
 * go on to the byte; errors name what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#define COMMAND_VARIABLES                                                      \
    "P=\"$MC pretrain gpt2 --config gpt2.json --batch-size 4 --seq-length 24 " \
    "--dropout 0 --seed 5\" && "
#include "tests/tools/command_test.h"

enum { END = 4, TOKENS = 4002 };

/* The letter `letter` over and over, and END where documents begin: after 3 to 34 tokens. */
static void write_letters(const char *name, int letter, uint32_t seed)
{
    static struct {
        int32_t header[256];
        uint16_t tokens[TOKENS];
    } file;
    file.header[0] = 20240520;
    file.header[1] = 1;
    file.header[2] = TOKENS;
    for (int i = 0, left = 0; i < TOKENS; i++, left--) {
        seed = seed * 1664525 + 1013904223;
        file.tokens[i] = (uint16_t)(left > 0 ? letter : END);
        if (left <= 0) left = 3 + (int)(seed >> 27);
    }
    write_bytes(temp_path(&folder, name), &file, sizeof file);
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    setenv("OMP_NUM_THREADS", "1", 1);
    write_letters("a.bin", 10, 1);
    write_letters("b.bin", 20, 2);
    write_letters("odd:0.5", 30, 3);
    write_text(temp_path(&folder, "gpt2.json"),
               "{\"model_type\": \"gpt2\", \"vocab_size\": 40, \"n_embd\": 32, \"n_layer\": 2, "
               "\"n_head\": 2, \"n_positions\": 64, \"bos_token_id\": 4, \"eos_token_id\": 4}");
    write_text(temp_path(&folder, "endless.json"),
               "{\"model_type\": \"gpt2\", \"vocab_size\": 40, \"n_embd\": 32, \"n_layer\": 1, "
               "\"n_head\": 2, \"n_positions\": 64, \"eos_token_id\": null, "
               "\"bos_token_id\": null}");
    return 0;
}

/* One source in nine of ten windows: its letter is learned first. */
static void test_blend(void **state)
{
    (void)state;
    must("$P --data a.bin:0.9 b.bin:0.1 --val a.bin --steps 12 --lr 0.01");
    assert_non_null(strstr(err, "data: 8004 tokens"));
    double a = number_after(out, "val_loss=");
    must("$P --data a.bin:0.9 b.bin:0.1 --val b.bin --steps 12 --lr 0.01");
    assert_true(number_after(out, "val_loss=") > a + 0.3);
    /* a path that exists is a path; patterns and weights go together */
    must("$P --data odd:0.5 --steps 1");
    assert_non_null(strstr(err, "data: 4002 tokens"));
    must("$P --data odd:0.5:2 [ab].bin:1 --val a.bin:1 b.bin:1 --steps 1");
    assert_non_null(strstr(err, "data: 12006 tokens"));
}

static void check_resume(const char *given)
{
    char line[1200];
    snprintf(line, sizeof line,
             "rm -rf whole parts && R=\"$P --data a.bin:0.7 b.bin:0.3 --shuffle --val b.bin "
             "--val-every 4 --tokens-per-step 192 --steps 9 %s\" && "
             "$R --output whole && $R --output parts --stop-after 4 && $R --output parts --resume "
             "&& cmp whole/model.safetensors parts/model.safetensors",
             given);
    must(line);
    assert_non_null(strstr(err, "resumed after step 4 from parts/checkpoint-4\n"));
}

static void test_resume(void **state)
{
    (void)state;
    check_resume("");
    must_refuse(1, "--separate-documents is begin 4, but the run in parts was begun with none",
                "$P --data a.bin:0.7 b.bin:0.3 --shuffle --tokens-per-step 192 --steps 12 "
                "--output parts --resume --separate-documents");
    must_refuse(1, "--data is not what the run in parts was begun with",
                "$P --data a.bin:0.6 b.bin:0.4 --shuffle --tokens-per-step 192 --steps 12 "
                "--output parts --resume");
    check_resume("--separate-documents");
    must_refuse(1, "--separate-documents is none, but the run in parts was begun with begin 4",
                "$P --data a.bin:0.7 b.bin:0.3 --shuffle --tokens-per-step 192 --steps 12 "
                "--output parts --resume");
}

/* A document's letter comes after END alone: with documents apart the first letter has nothing to
 * be known by, joined it is that of the document before. */
static void test_separate(void **state)
{
    (void)state;
    must("$P --data a.bin --steps 3 --separate-documents --val a.bin --lr 0 --output apart");
    double apart = number_after(out, "val_loss=");
    must("$P --data a.bin --steps 1 --val a.bin --lr 0");
    assert_true(fabs(number_after(out, "val_loss=") - apart) > 1e-4);
    must("$P --data a.bin --steps 1 --separate-documents --document-token 4 --val a.bin --lr 0");
    assert_true(fabs(number_after(out, "val_loss=") - apart) < 1e-6);
    must("$P --data a.bin --steps 1 --separate-documents --document-token-at end --val a.bin "
         "--lr 0");
    assert_true(fabs(number_after(out, "val_loss=") - apart) > 1e-4);
    double planned = number_after(out, "planned_bytes="), real = number_after(out, "peak_bytes=");
    if (planned < 0.9 * real || planned > 1.02 * real)
        fail_msg("planned %.0f, was %.0f", planned, real);
}

static void test_errors(void **state)
{
    (void)state;
    must_refuse(1, "a.bin: expected a weight after a colon, as another file has one",
                "$P --data a.bin b.bin:1 --steps 1");
    must_refuse(1, "b.bin: expected a weight after a colon, as another file has one",
                "$P --data a.bin:1 b.bin --steps 1");
    must_refuse(1, "a.bin:0: expected a weight above 0 after the colon",
                "$P --data a.bin:0 b.bin:1 --steps 1");
    must_refuse(1, "a.bin:-1: expected a weight above 0", "$P --data a.bin:-1 b.bin:1 --steps 1");
    must_refuse(1, "a.bin:x: expected a weight after a colon",
                "$P --data a.bin:x b.bin:1 --steps 1");
    must_refuse(1, "c.bin: cannot open", "$P --data a.bin:1 c.bin:1 --steps 1");
    must_refuse(1, "--separate-documents: a.bin does not say where documents begin, and neither",
                "$MC pretrain gpt2 --config endless.json --data a.bin --batch-size 2 "
                "--seq-length 8 --steps 1 --separate-documents");
    must_refuse(2, "--separate-documents: t5 is not pretrained in a way that has a use for it",
                "$MC pretrain t5 --config x --data a.bin --separate-documents");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blend), cmocka_unit_test(test_resume),
                                       cmocka_unit_test(test_separate),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
