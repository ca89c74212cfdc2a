/* A look before training: what finetune --dry-run shows, that it writes nothing, and what a run's
 * head has of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mount.h>
#include <cmocka.h>
#define COMMAND_VARIABLES                                                                     \
    "F=\"$MC finetune --config tiny --text text --label label --batch-size 2 --val-fraction " \
    "0.25\" && "
#include "tests/tools/command_test.h"

static int make_inputs(void **state)
{
    make_folder(state);
    must("printf 'text,label\\n' > rows.csv && for i in 1 2 3 4; do "
         "printf 'the good film,yes\\nthe bad,no\\n' >> rows.csv; done");
    must("mkdir tiny && printf '%s\\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' the good bad film "
         "> tiny/vocab.txt && printf '{\"model_type\":\"bert\",\"vocab_size\":9,"
         "\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
         "\"intermediate_size\":16,\"max_position_embeddings\":16}' > tiny/config.json");
    return 0;
}

static void test_classes(void **state)
{
    (void)state;
    must("$F --data rows.csv --dry-run --output run --log-jsonl log --epochs 2 --max-length 4 && "
         "test ! -e run && test ! -e log");
    must_hold(err, "labels: ");
    must_hold(err, "texts: 4 to 5 tokens, median ");
    must_hold(err, " are cut at 4\n");
    must_hold(err, "first row: 4 tokens: [CLS] the ");
    must_hold(err, "memory of a step, planned: ");
    must_hold(err, "steps: 6 of 2 rows; about ");
    must_hold(out, "result dry_run=true rows=6 steps=6 cut=");
    assert_true(number_after(out, "peak_bytes=") > 1000);
    assert_null(strstr(err, "warning"));
}

/* What the run would refuse, the look refuses, and writes nothing. */
static void test_output(void **state)
{
    (void)state;
    must("$F --data rows.csv --output done --epochs 1 --log-csv l.csv --tensorboard board && "
         "cp -r done kept && cp -r board events");
    static const char *const refused[][2] = {
        {"--output done holds a model, or part of one (config.json)", "--output done"},
        {"--output tiny is or contains --config tiny", "--output tiny --overwrite"},
        {"--log-csv l.csv exists", "--output run --log-csv l.csv"},
        {"--log-csv rows.csv is, or belongs to, --data rows.csv", "--log-csv rows.csv --overwrite"},
        {"--tensorboard board holds the events of another run", "--tensorboard board"},
        {"--output rows.csv/run: cannot write there: Not a directory", "--output rows.csv/run"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char line[400];
        snprintf(line, sizeof line, "$F --data rows.csv --dry-run %s", refused[i][1]);
        must_refuse(1, refused[i][0], line);
    }
    must("$F --data rows.csv --dry-run --output done --overwrite --log-csv l.csv --log-jsonl a/b/l "
         "--tensorboard board && diff -r done kept && diff -r board events && "
         "$F --data rows.csv --dry-run --output x/y && test ! -e x && test ! -e a && "
         "test ! -e runs && rm -r done kept board events l.csv");
}

/* A disk without room, and a folder that may not be written. */
static void test_room(void **state)
{
    (void)state;
    must("mkdir small");
    if (mount("tmpfs", temp_path(&folder, "small"), "tmpfs", 0, "size=4k") != 0) {
        printf("SKIPPED: a full disk: no file system may be mounted here\n");
        skip();
    }
    int full = run("$F --data rows.csv --dry-run --output small/run --save-every 1");
    bool said = strstr(err, "small/run: saving needs ");
    int again = mount("tmpfs", temp_path(&folder, "small"), "tmpfs", MS_REMOUNT | MS_RDONLY, "");
    int code = again ? 1 : run("$F --data rows.csv --dry-run --output small/run");
    assert_int_equal(umount(temp_path(&folder, "small")), 0);
    assert_true(full == 1 && said);
    assert_int_equal(code, 1);
    if (!again) must_hold(err, "--output small/run: cannot write there: Read-only file system");
}

/* The same lines, but for those that take time, before a run. */
static void test_head(void **state)
{
    (void)state;
    must("$F --data rows.csv --epochs 1");
    must_hold(err, "labels: ");
    must_hold(err, "texts: 4 to 5 tokens");
    assert_null(strstr(err, "first row"));
    assert_null(strstr(err, "planned"));
}

static void test_warnings(void **state)
{
    (void)state;
    must("printf 'text,label\\nthe good,Yes\\nfilm,yes \\nbad,yes.\\nbad film,no\\n"
         "the bad,no\\ngood,Yes\\nthe,yes\\nfilm,no\\n' > near.csv");
    must("$MC finetune --config tiny --text text --label label --data near.csv --val near.csv "
         "--dry-run");
    must_hold(err, "are nearly equal: one label?");
    must_hold(err, "\"Yes\"");
    must_hold(err, "\"yes.\"");
    must("printf 'text,label\\nthe,1\\nbad,2.5\\ngood,3\\nfilm,4\\n' > numbers.csv && "
         "$MC finetune --config tiny --text text --label label --data numbers.csv "
         "--val numbers.csv --dry-run");
    must_hold(err, "warning: 4 labels of 4 rows: is --label the right column?");
    must_hold(err, "warning: all 4 labels are numbers: --regression predicts them as numbers");
    must("$MC finetune --config tiny --text text --label label --data numbers.csv "
         "--val numbers.csv --dry-run --regression");
    must_hold(err, "values: 1 to 4, mean 2.625");
    assert_null(strstr(err, "warning"));
}

static void test_errors(void **state)
{
    (void)state;
    must_refuse(2, "expected --dry-run or --resume, not both",
                "$F --data rows.csv --dry-run --resume --output x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),  cmocka_unit_test(test_output),
        cmocka_unit_test(test_room),     cmocka_unit_test(test_head),
        cmocka_unit_test(test_warnings), cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_folder);
}
