/* Texts for predict, embed and generate from the command line and from standard input: by form, as
 * they come, and what is wrong with them; and how the columns of --data are named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/tools/command_test.h"

static int make_inputs(void **state)
{
    make_folder(state);
    must("printf 'text,other,label\\n' > rows.csv && for i in 1 2 3 4; do "
         "printf 'the good film,bad,yes\\n\"the bad, film\",good,no\\n' >> rows.csv; done");
    must(
        "mkdir tiny && printf '%s\\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' the good bad film , "
        "> tiny/vocab.txt && printf '{\"model_type\":\"bert\",\"vocab_size\":10,"
        "\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
        "\"intermediate_size\":16,\"max_position_embeddings\":16}' > tiny/config.json");
    must("$MC finetune --config tiny --data rows.csv --text text --label label --output bert "
         "--batch-size 4");
    must("$MC finetune --config tiny --data rows.csv --text-column text --text-pair-column other "
         "--label label --output pairs --batch-size 4");
    must("cp -r bert tiny-encoder && rm tiny-encoder/task.json");
    return 0;
}

/* All of these give the same three answers. */
static void test_ways(void **state)
{
    (void)state;
    static char expected[TEXT_ROOM];
    static const char *const lines[] = {
        "$MC predict --model bert --text 'the good film' --text 'the bad, film' --text film",
        "printf 'the good film\\nthe bad, film\\nfilm\\n' | $MC predict --model bert",
        "printf 'the good film\\r\\nthe bad, film\\r\\nfilm' | $MC predict --model bert --data -",
        "printf 'label,text\\n1,the good film\\n2,\"the bad, film\"\\n3,film\\n' | "
        "$MC predict --model bert",
        "printf 'label\\ttext\\n1\\tthe good film\\n2\\tthe bad, film\\n3\\tfilm\\n' | "
        "$MC predict --model bert",
        "printf '{\"text\":\"the good film\"}\\n{\"text\":\"the bad, "
        "film\"}\\n{\"text\":\"film\"}\\n'"
        " | $MC predict --model bert",
        "printf 'q\\nthe good film\\n\"the bad, film\"\\nfilm\\n' | "
        "$MC predict --model bert --text-column q",
        "printf 'q\\nthe good film\\n\"the bad, film\"\\nfilm\\n' > q.csv && "
        "$MC predict --model bert --data q.csv --text q",
        "$MC predict --model bert --data q.csv --text-column q --output - < rows.csv",
        "printf 'text\\nthe good film\\n\"the bad, film\"\\nfilm\\n' | $MC predict --model bert",
        "printf '\\357\\273\\277\"text\"\\r\\nthe good film\\r\\n\"the bad, film\"\\r\\nfilm' | "
        "$MC predict --model bert",
        "printf '[{\"text\":\"the good film\"}, {\"text\":\"the bad, film\"},{\"text\":\"film\"}]' "
        "| $MC predict --model bert",
        "printf '[\\n {\"text\":\"the good film\"},\\n{\"text\":\"the bad, "
        "film\"},{\"text\":\"film\"}\\n]\\n' | $MC predict --model bert --data -",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        must(lines[i]);
        if (i == 0) snprintf(expected, sizeof expected, "%s", out);
        if (strcmp(out, expected) != 0) fail_msg("%s:\n%s\nexpected:\n%s", lines[i], out, expected);
        must_hold(err, "result rows=3 "); /* stdout has the answers alone */
    }
    must_hold(expected, "{\"label\":");
}

/* A name that was not asked for and not trained on is a text, and so is a line with a bracket. */
static void test_lines_that_look_like_more(void **state)
{
    (void)state;
    must("printf 'good\\nfilm\\n' | $MC predict --model bert");
    must_hold(err, "result rows=2 ");
    must("printf 'text\\ngood\\n' | $MC embed --model tiny-encoder --output e.npy");
    must_hold(out, "result rows=2 ");
    must("printf '[good] film\\n' | $MC predict --model bert");
    must_hold(err, "result rows=1 ");
    must("printf 'good\\nfilm\\n' | $MC predict --model bert --data /dev/stdin");
    must_hold(err, "result rows=2 ");
    must_refuse(2, "--data -: expected files, which are read more than once; `predict`",
                "$MC finetune --config tiny --data - --text text --label label --no-save");
    must("$MC finetune --config tiny/config.json --data rows.csv --text text --label label "
         "--no-save --max-steps 1");
    must_refuse(2, "--val -: expected files",
                "$MC finetune --config tiny --data rows.csv --val - --text text --label label");
}

static void test_pairs(void **state)
{
    (void)state;
    static char expected[TEXT_ROOM];
    must("$MC predict --model pairs --text 'the good film' --text-pair bad");
    snprintf(expected, sizeof expected, "%s", out);
    must("printf 'text,other\\nthe good film,bad\\n' | $MC predict --model pairs");
    assert_string_equal(out, expected);
    must("printf 'a,b\\nthe good film,bad\\n' > ab.csv && "
         "$MC predict --model pairs --data ab.csv --text a --text-pair b");
    assert_string_equal(out, expected);
    must("$MC predict --model pairs --data ab.csv --text-column a --text-pair-column b");
    assert_string_equal(out, expected);
    must_refuse(1, "was trained on pairs of texts: expected --text-pair too",
                "$MC predict --model pairs --text 'the good film'");
    must_refuse(1, "lines have no second text (column other): expected a table",
                "echo good | $MC predict --model pairs");
    must_refuse(2, "--text-pair: 1 for 2 of --text, expected as many",
                "$MC predict --model pairs --text a --text b --text-pair c");
}

/* Lines of a pipe are answered before it ends: the second is written when the first has its
 * answer. */
static void test_as_they_come(void **state)
{
    (void)state;
    must("mkfifo in && { $MC predict --model bert --data - < in > answers 2> said & } && "
         "exec 3> in && echo good >&3 && until test -s answers; do sleep 0.01; done && "
         "test $(wc -l < answers) = 1 && echo bad >&3 && exec 3>&- && wait && "
         "test $(wc -l < answers) = 2 && grep -q 'rows=2' said");
}

static void test_embed(void **state)
{
    (void)state;
    must("$MC embed --model bert --text good --text 'the film' --output a.npy");
    must_hold(out, "result rows=2 dim=8");
    must("printf 'good\\nthe film\\n' | $MC embed --model bert --output b.npy && cmp a.npy b.npy");
    must("printf 'good\\nthe film\\n' | $MC embed --model bert > c.jsonl && "
         "test $(grep -c '^{\"embedding\":' c.jsonl) = 2");
    /* the column that a model was trained with is the usual one, but not the only one */
    must("sed 's/^text,/review,/' rows.csv > reviews.csv && $MC finetune --config tiny --data "
         "reviews.csv --text review --label label --output of-reviews --batch-size 4");
    must("$MC embed --model of-reviews --data reviews.csv --output a.npy --overwrite && $MC embed "
         "--model of-reviews --data reviews.csv --text-column review --output b.npy --overwrite && "
         "cmp a.npy b.npy && $MC embed --model of-reviews --output b.npy --overwrite < reviews.csv "
         "&& cmp a.npy b.npy");
    must(
        "$MC embed --model of-reviews --data rows.csv --output b.npy --overwrite && cmp a.npy "
        "b.npy "
        "&& $MC embed --model of-reviews --output b.npy --overwrite < rows.csv && cmp a.npy b.npy");
    must("printf 'review\ngood\nfilm\n' | $MC embed --model of-reviews --output b.npy "
         "--overwrite");
    must_hold(out, "result rows=2 ");
    must_refuse(1, "reviews.csv: no column \"text\"",
                "$MC embed --model tiny-encoder --data reviews.csv --output b.npy --overwrite");
}

/* What it was trained on says whether a model answers questions about passages. */
static void test_ask(void **state)
{
    (void)state;
    must("$MC ask --model pairs --question good --passage 'the film'");
    must_refuse(1, "found one that was trained on the column \"text\"",
                "$MC ask --model bert --question good --passage 'the film'");
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const commands[] = {"predict", "embed"};
    char line[256];
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "$MC %s --model bert", commands[i]); /* from /dev/null */
        must_refuse(2, "required and missing: --data FILE, --text TEXT, or texts on stdin", line);
        snprintf(line, sizeof line, "printf '' | $MC %s --model bert", commands[i]);
        must_refuse(1, "standard input: it is empty, expected texts", line);
        snprintf(line, sizeof line, "printf 'good\\nb\\377d\\n' | $MC %s --model bert",
                 commands[i]);
        must_refuse(1, "standard input:2: not UTF-8", line);
        snprintf(line, sizeof line, "$MC %s --model bert --text \"$(printf 'b\\377d')\"",
                 commands[i]);
        must_refuse(2, "expected a text in UTF-8", line);
        snprintf(line, sizeof line, "printf 'good\\nb\\000d\\n' | $MC %s --model bert",
                 commands[i]);
        must_refuse(1, "standard input:2: a NUL byte", line);
        snprintf(line, sizeof line, "$MC %s --model bert --text a --text-column b", commands[i]);
        must_refuse(2, "expected --data with them", line);
        snprintf(line, sizeof line, "$MC %s --model bert --data rows.csv --text a --text-column b",
                 commands[i]);
        must_refuse(2, "--text \"a\": expected no text besides --data", line);
        snprintf(line, sizeof line, "$MC %s --model bert --text-column b < rows.csv", commands[i]);
        must_refuse(1, "standard input: no column \"b\"", line);
    }
}

/* An encoder is refused after the prompts were found: what it takes is what counts here. */
static void test_generate(void **state)
{
    (void)state;
    must_refuse(2, "expected --prompt, --prompts, or prompts on stdin",
                "$MC generate --model bert");
    must_refuse(1, "bert does not generate text", "echo x | $MC generate --model bert");
    must_refuse(1, "bert does not generate text", "$MC generate --model bert --text x");
    must_refuse(2, "--json-key q: --prompts names no file of JSON Lines",
                "$MC generate --model bert --prompt x --json-key q");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_lines_that_look_like_more),
        cmocka_unit_test(test_as_they_come),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_ask),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_generate),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_folder);
}
