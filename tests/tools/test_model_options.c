/* Which model: --model, --config and --family in every command, and the older forms of each, which
 * give the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#define COMMAND_VARIABLES                                                                          \
    "F=\"finetune --data rows.csv --text text --label label --batch-size 4 --val-fraction 0.25\" " \
    "&& "
#include "tests/tools/command_test.h"

/* A line in the new form and in an older one: the same on stdout, stderr and as exit code, but for
 * times. */
typedef struct pair {
    const char *now, *before;
} pair;

/* "seconds=1.234" and the like, and all after " | " of progress, go. */
static void drop_times(char *text)
{
    static const char *const names[] = {"seconds=", "rows_per_s=", "per_s=", "_ms="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (char *at = text; (at = strstr(at, names[i]));) {
            at += strlen(names[i]);
            size_t digits = strspn(at, "0123456789.e+-");
            memmove(at, at + digits, strlen(at + digits) + 1);
        }
}

static void same(pair p)
{
    static char out_now[TEXT_ROOM];
    char line[1024];
    snprintf(line, sizeof line, "$MC %s", p.now);
    int code = run(line);
    drop_times(out);
    snprintf(out_now, sizeof out_now, "%s", out);
    snprintf(line, sizeof line, "$MC %s", p.before);
    if (run(line) != code) fail_msg("not exit %d: %s\n%.2000s", code, line, err);
    drop_times(out);
    assert_string_equal(out, out_now);
    if (code) fail_msg("exit %d of: %s\n%.2000s", code, p.now, err);
    assert_null(strstr(err, "older form")); /* no terminal */
}

/* Models of a bert with a classifier and of a gpt2, and rows. */
static int make_inputs(void **state)
{
    make_folder(state);
    must("printf 'text,label\\n' > rows.csv && for i in 1 2 3 4; do "
         "printf 'the good film,yes\\nthe bad film,no\\n' >> rows.csv; done");
    must("mkdir words && printf '%s\\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' the good bad film "
         "> words/vocab.txt");
    must("mkdir tiny && printf '{\"model_type\":\"bert\",\"vocab_size\":9,\"hidden_size\":8,"
         "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"intermediate_size\":16,"
         "\"max_position_embeddings\":16}' > tiny/config.json && cp words/vocab.txt tiny");
    must("mkdir gpt && printf '{\"model_type\":\"gpt2\",\"vocab_size\":11,\"n_positions\":16,"
         "\"n_embd\":8,\"n_layer\":1,\"n_head\":2}' > gpt/config.json");
    must("$MC $F --config tiny --output bert --epochs 1");
    return 0;
}

static void test_finetune(void **state)
{
    (void)state;
    must("$MC finetune bert --config tiny --data rows.csv --text text --label label "
         "--batch-size 4 --val-fraction 0.25 --output old --epochs 1");
    must("cmp old/model.safetensors bert/model.safetensors");
    same((pair){"$F --model bert --epochs 1", "$F --pretrained bert --epochs 1"});
    same(
        (pair){"$F --model bert --family bert --epochs 1", "$F bert --pretrained bert --epochs 1"});
    must_refuse(1, "the model is a BERT, expected a GPT-2", "$MC $F gpt2 --pretrained bert");
    must_refuse(1, "the model is a BERT, expected a GPT-2", "$MC $F --family gpt2 --model bert");
}

/* The run knows its family when it goes on. */
static void test_resume_without_model(void **state)
{
    (void)state;
    must("$MC $F --config tiny --output run --epochs 3 --stop-after 2");
    must("$MC $F --resume --output run --epochs 3 --config tiny && "
         "$MC $F --resume --output run --epochs 3");
}

/* A run keeps its options; started from them it gives the same model, but not in its own folder. */
static void test_run_file(void **state)
{
    (void)state;
    must("$MC $F --config tiny --epochs 2 --lr 1e-3 --seed 3 --output kept --log-csv kept.csv");
    must("grep -q '\"lr\":.0.001' kept/run.json && grep -q '\"command\":.\"finetune\"' "
         "kept/run.json && ! grep -q resume kept/run.json");
    must("$MC finetune --run-file kept/run.json --output again --log-csv again.csv && "
         "cmp kept/model.safetensors again/model.safetensors");
    must("cut -d, -f1-7 kept.csv > a && cut -d, -f1-7 again.csv > b && cmp a b && "
         "test $(wc -l < kept.csv) = 7");
    must_refuse(2, "give another --output, or --resume to go on with that run",
                "$MC finetune --run-file kept/run.json");
    must_refuse(2, "give another --output", "$MC finetune --run-file ./kept/../kept/run.json");
    must("$MC finetune --run-file kept/run.json --resume --log-csv kept.csv");
    must_hold(err, "nothing is left to train");
    must_refuse(2, "key \"command\": found \"finetune\", expected \"pretrain\"",
                "$MC pretrain --run-file kept/run.json");
    must("printf '{\"epochs\": 1, \"no_such\": 2}' > bad.json");
    must_refuse(2, "--run-file bad.json: key \"no_such\": no option of finetune",
                "$MC $F --run-file bad.json");
}

static void test_commands(void **state)
{
    (void)state;
    static const pair pairs[] = {
        {"eval --model bert --data rows.csv", "eval bert --model bert --data rows.csv"},
        {"eval --model bert --data rows.csv", "eval bert --pretrained bert --data rows.csv"},
        {"inspect --model bert --pattern '*norm*'", "inspect bert --pattern '*norm*'"},
        {"inspect --model bert --text 'the film' --json",
         "inspect bert --family auto --text 'the film' --json"},
        {"predict --model bert --data rows.csv --output p.jsonl",
         "predict bert --data rows.csv --output q.jsonl"},
        {"embed --model bert --data rows.csv --text text --output p.npy",
         "embed bert --data rows.csv --text text --output q.npy"},
        {"convert --model bert --output c --to hf --dtype bf16",
         "convert bert d --to hf --dtype bf16"},
        {"plan --config tiny --batch 2 --rates h200",
         "plan bert --config tiny --batch 2 --rates h200"},
        {"plan --model tiny --batch 2 --rates h200",
         "plan bert --config tiny --batch 2 --rates h200"},
        {"plan --config bert-base --rates h200", "plan bert --config bert-base --rates h200"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) same(pairs[i]);
    must("cmp p.jsonl q.jsonl && cmp p.npy q.npy && cmp c/model.safetensors d/model.safetensors");
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const commands[] = {"eval --data x",
                                           "ask --question x --passage y",
                                           "generate --prompt x",
                                           "inspect",
                                           "convert --output x",
                                           "download",
                                           "predict --data x --output y.jsonl",
                                           "embed --data x --output y.jsonl"};
    char line[256];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(line, sizeof line, "$MC %s", commands[i]);
        must_refuse(2, "required and missing: --model FOLDER_OR_IDENTIFIER\n", line);
    }
    must_refuse(2, "required and missing: --config SHAPE, or --model FOLDER_OR_IDENTIFIER\n",
                "$MC plan");
    must_refuse(2, "or --config SHAPE for a new model; a family alone names no model: bert",
                "$MC $F bert");
    must_refuse(2, "<model> \"tiny\": expected one of bert, gpt2", "$MC $F tiny");
    must_refuse(2, "(an older form; now --model FOLDER_OR_IDENTIFIER)", "$MC $F tiny");
    must_refuse(2, "two models, bert and --model tiny: expected one",
                "$MC inspect bert --model tiny");
    must_refuse(2, "expected one of --model and --config, not both",
                "$MC $F --model bert --config tiny");
    must_refuse(1, "no shape is called \"gpt9\"", "$MC $F --config gpt9");
    must_refuse(1, "bert does not generate text: expected one of gpt2",
                "$MC generate --model bert --prompt x --ids");
    must_refuse(2, "bert does not generate text: expected one of gpt2",
                "$MC generate bert --pretrained bert --prompt x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finetune), cmocka_unit_test(test_resume_without_model),
        cmocka_unit_test(test_run_file), cmocka_unit_test(test_commands),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_folder);
}
