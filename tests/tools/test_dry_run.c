/* A look before training: what finetune --dry-run shows, that it writes nothing, and what a run's
 * head has of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_folder);
}
