/* The command itself, run as a user runs it: dispatch, exit codes, what goes to which stream. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <ctype.h>
#include <stdbool.h>
#include "core/base/version.h"
#include "tests/tools/command_test.h"
#include "tools/commands.h"

#define COMMAND_NAME(name, summary) #name,
static const char *const names[] = {MC_COMMANDS(COMMAND_NAME)};

/* Runs a shell line in the folder with $MC as the command. */
static void test_version_and_help(void **state)
{
    (void)state;
    assert_int_equal(run("$MC --version"), 0);
    char commit[64], date[64], lines[200];
    assert_int_equal(sscanf(out, "%*s %*s commit %63s of %63s", commit, date), 2);
    snprintf(lines, sizeof lines, "modelcenter " MC_VERSION "\ncommit %s of %s\nbuilt in: ", commit,
             date);
    assert_memory_equal(out, lines, strlen(lines));
    bool known = strcmp(commit, "unknown") != 0;
    assert_int_equal(strspn(commit, "0123456789abcdef"), known ? 12 : 0);
    assert_int_equal(strlen(date), strlen(known ? "YYYY-MM-DD" : "unknown"));
    const char *end = strchr(out + strlen(lines), '\n');
    assert_true(end && end[1] == '\0'); /* three lines */
    assert_string_equal(err, "");
    assert_int_equal(run("$MC --help"), 0);
    assert_memory_equal(out, "usage: modelcenter <command>", 28);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char row[64];
        snprintf(row, sizeof row, "\n  %s ", names[i]);
        assert_non_null(strstr(out, row));
    }
    assert_int_equal(run("$MC"), 2);
    assert_string_equal(out, "");
    assert_memory_equal(err, "usage: modelcenter <command>", 28);
}

static void test_every_command_has_help(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char line[200], usage[200];
        static char first[sizeof out];
        snprintf(usage, sizeof usage, "usage: modelcenter %s ", names[i]);
        snprintf(line, sizeof line, "$MC %s --help", names[i]);
        assert_int_equal(run(line), 0);
        assert_memory_equal(out, usage, strlen(usage));
        assert_string_equal(err, "");
        memcpy(first, out, sizeof out);
        snprintf(line, sizeof line, "$MC help %s", names[i]);
        assert_int_equal(run(line), 0);
        assert_string_equal(out, first);
        snprintf(line, sizeof line, "$MC %s --no-such-option", names[i]);
        assert_int_equal(run(line), 2);
        assert_non_null(strstr(err, "unknown option \"--no-such-option\""));
        assert_string_equal(out, "");
    }
}

/* Whatever runs on several ranks has their options, and whatever trains those of training. */
static void test_common_options(void **state)
{
    (void)state;
    static const char *const commands[] = {"finetune", "pretrain", "eval",
                                           "ask",      "generate", "inspect"};
    static const char *const wanted[] = {"--zero-level", "--comm-timeout", "--device", "--offload",
                                         "--grad-dtype"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char line[100];
        snprintf(line, sizeof line, "$MC %s --help", commands[i]);
        assert_int_equal(run(line), 0);
        for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
            if (!strstr(out, wanted[k]) != (i >= 2 && k >= 3))
                fail_msg("%s %s", commands[i], wanted[k]);
        snprintf(line, sizeof line, "$MC %s --zero-level 4", commands[i]);
        assert_int_equal(run(line), 2);
        snprintf(line, sizeof line, "$MC %s --comm-timeout soon", commands[i]);
        assert_int_equal(run(line), 2);
        assert_non_null(strstr(err, "--comm-timeout \"soon\": expected a number from 0"));
    }
}

/* A GPU by its number, for every command that takes a device; and numbers that are none. */
static void test_gpu_numbers(void **state)
{
    (void)state;
    static const char *const lines[] = {"finetune bert --task BoolQ --config . --data . --output o",
                                        "pretrain gpt2 --config . --data x --output o",
                                        "eval bert --task BoolQ --model . --data .",
                                        "ask --model . --question x --passage y",
                                        "generate gpt2 --pretrained . --prompt x",
                                        "inspect .",
                                        "embed . --data x.csv --text text --output v.npy",
                                        "predict . --data x.csv --text text --output p.jsonl",
                                        "plan gpt2 --config gpt2-base",
                                        "bench comm"};
    static const char *const wrong[] = {"cuda:",   "cuda:x", "cuda:-1",
                                        "cuda:+1", "cpu:0",  "cuda:99999999999"};
    char line[200];
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        snprintf(line, sizeof line, "$MC %s --device cuda:1000", lines[i]);
        int code = run(line);
        /* the GPUs that there are, that there is none, or a build without CUDA */
        if (code != 1 || !strstr(err, "device \"cuda")) fail_msg("%s: %d: %s", line, code, err);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(line, sizeof line, "$MC bench comm --device %s", wrong[i]);
        assert_int_equal(run(line), 2);
        assert_non_null(strstr(err, "expected one of cpu, cuda, cuda:N"));
    }
}

/* Lines that were wrapped become one. */
static void join_lines(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++)
        if (!isspace((unsigned char)*from) || (to > text && to[-1] != ' '))
            *to++ = (char)(isspace((unsigned char)*from) ? ' ' : *from);
    *to = '\0';
}

/* Families that a command refuses are no choices of it. */
static void test_families_in_help(void **state)
{
    (void)state;
    static const struct {
        const char *command, *families;
    } rows[] = {
        {"pretrain",
         "bert, gpt2, t5, gptj, cpm1, cpm2, roberta, llama, distilbert, electra, mpnet, opt, "
         "modernbert, longformer"},
        {"generate", "gpt2, t5, gptj, cpm1, cpm2, llama, opt, glm"},
        {"finetune",
         "bert, gpt2, t5, gptj, cpm1, cpm2, roberta, llama, distilbert, electra, mpnet, opt, "
         "modernbert, longformer, glm, vit"},
        {"eval",
         "bert, gpt2, t5, gptj, cpm1, cpm2, roberta, llama, distilbert, electra, mpnet, opt, "
         "modernbert, longformer, glm, vit"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[100], expected[240];
        snprintf(line, sizeof line, "$MC %s --help", rows[i].command);
        assert_int_equal(run(line), 0);
        join_lines(out);
        snprintf(expected, sizeof expected,
                 "its config does not say it (one of auto, %s; default auto)", rows[i].families);
        if (!strstr(out, expected)) fail_msg("%s: %s", line, out);
        snprintf(line, sizeof line, "$MC %s lstm", rows[i].command);
        snprintf(expected, sizeof expected,
                 "\"lstm\": expected one of %s (an older form; now --model ", rows[i].families);
        assert_int_equal(run(line), 2);
        assert_non_null(strstr(err, expected));
    }
}

static void test_unknown_commands(void **state)
{
    (void)state;
    assert_int_equal(run("$MC tokenise"), 2);
    assert_string_equal(err, "modelcenter: unknown command \"tokenise\" (did you mean tokenize?)\n"
                             "(see: modelcenter --help)\n");
    assert_int_equal(run("$MC train"), 2);
    assert_non_null(strstr(err, "\"train\" (did you mean finetune or pretrain?)"));
    assert_int_equal(run("$MC --verbose"), 2);
    assert_non_null(strstr(err, "unknown option \"--verbose\""));
    assert_int_equal(run("$MC help nothing"), 2);
    assert_int_equal(run("$MC ''"), 2);
}

static void test_full_stdout(void **state)
{
    (void)state;
    assert_int_equal(run("$MC --help >/dev/full"), 1);
    assert_non_null(strstr(err, "cannot write to stdout"));
}

static void test_tokenize(void **state)
{
    (void)state;
    static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\n##s\n!\n";
    write_text(temp_path(&folder, "vocab.txt"), vocabulary);
    static const char hello[] = "tokens: [CLS] hello world ##s ! [SEP]\nids: 2 5 6 7 8 3\n";
    assert_int_equal(run("$MC tokenize --model . --text 'Hello worlds!'"), 0);
    assert_string_equal(out, hello);
    assert_int_equal(run("$MC tokenize --model=. --text hello --pair=world --max-length 5"), 0);
    assert_string_equal(out, "tokens: [CLS] hello [SEP] world [SEP]\nids: 2 5 3 6 3\n");
    assert_int_equal(run("printf 'Hello worlds!\\r\\n\\nxyzzy' | $MC tokenize --model . --file -"),
                     0);
    assert_memory_equal(out, hello, strlen(hello));
    assert_string_equal(out + strlen(hello), "tokens: [CLS] [SEP]\nids: 2 3\n"
                                             "tokens: [CLS] [UNK] [SEP]\nids: 2 1 3\n");
    assert_int_equal(run("$MC tokenize --model . --lowercase no --text Hello"), 0);
    assert_string_equal(out, "tokens: [CLS] [UNK] [SEP]\nids: 2 1 3\n");
}

static void test_tokenize_errors(void **state)
{
    (void)state;
    assert_int_equal(run("$MC tokenize --text x"), 2);
    assert_non_null(strstr(err, "required and missing: --model"));
    assert_int_equal(run("$MC tokenize --model ."), 2);
    assert_non_null(strstr(err, "expected one of --text and --file"));
    assert_int_equal(run("$MC tokenize --model . --text a --file b"), 2);
    assert_int_equal(run("$MC tokenize --model ./nowhere --text x"), 1);
    assert_non_null(strstr(err, "nowhere"));
    assert_string_equal(out, "");
    assert_int_equal(run("$MC tokenize --model . --file ./missing.txt"), 1);
    assert_non_null(strstr(err, "error: ./missing.txt: cannot open: No such file"));
    assert_int_equal(run("$MC tokenize --model . --file ."), 1);
    assert_non_null(strstr(err, "error: .: cannot open: Is a directory"));
    assert_int_equal(run("$MC tokenize --model . --text x --max-length 1"), 1);
    assert_non_null(strstr(err, "--max-length 1"));
    assert_int_equal(run("$MC tokenize --model . --text x --max-length 1.5"), 2);
    assert_non_null(strstr(err, "--max-length \"1.5\": expected a whole number from 0"));
}

/* A folder with a tiny BERT's config and the words of its vocabulary after the special ones. */
static void write_config(const char *name, const char *words, int vocab_size, int positions)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "mkdir %s", name);
    assert_int_equal(run(path), 0);
    snprintf(path, sizeof path, "%s/vocab.txt", name);
    snprintf(text, sizeof text, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n%s", words);
    write_text(temp_path(&folder, path), text);
    snprintf(path, sizeof path, "%s/config.json", name);
    snprintf(text, sizeof text,
             "{\"vocab_size\": %d, \"hidden_size\": 8, \"num_hidden_layers\": 1,"
             " \"num_attention_heads\": 2, \"intermediate_size\": 8,"
             " \"max_position_embeddings\": %d}",
             vocab_size, positions);
    write_text(temp_path(&folder, path), text);
}

/* A model that is saved is one that eval judges as the last validation did; other splits are named,
 * and one without labels is no result. */
static void test_eval(void **state)
{
    (void)state;
    static const char rows[] =
        "{\"question\": \"hello\", \"passage\": \"world\", \"label\": true}\n"
        "{\"question\": \"world\", \"passage\": \"hello\", \"label\": false}\n"
        "{\"question\": \"worlds\", \"passage\": \"hello !\", \"label\": true}\n";
    static char result[sizeof out];
    char data[1024];
    assert_int_equal(run("mkdir data"), 0);
    write_config("new", "hello\nworld\n##s\n!\n", 9, 16);
    write_text(temp_path(&folder, "data/val.jsonl"), rows);
    snprintf(data, sizeof data, "%s%s", rows, rows);
    write_text(temp_path(&folder, "data/train.jsonl"), data);
    write_text(temp_path(&folder, "data/test.jsonl"),
               "{\"question\": \"hello\", \"passage\": \"world\"}\n");
    assert_int_equal(run("$MC finetune bert --task BoolQ --config new --data data --output saved "
                         "--epochs 2 --lr 0.01"),
                     0);
    assert_non_null(strstr(err, "| epoch 2 | val accuracy"));
    memcpy(result, out, sizeof out);
    *strstr(result, "train_seconds") = '\0';
    assert_int_equal(run("$MC eval bert --task BoolQ --model saved --data data"), 0);
    assert_memory_equal(out, result, strlen(result));
    assert_non_null(strstr(err, "eval val accuracy"));
    assert_int_equal(run("$MC eval bert --task BoolQ --model saved --data data --split train "
                         "--log-jsonl log.jsonl && cat log.jsonl"),
                     0);
    assert_non_null(strstr(err, "eval train accuracy"));
    assert_non_null(strstr(out, "\"split\":\"train\",\"n\":6,"));
    assert_int_equal(run("$MC eval bert --task BoolQ --model saved --data data --split test"), 1);
    assert_string_equal(out, "");
    assert_non_null(strstr(err, "data/test.jsonl: no row has a label"));
    assert_int_equal(run("$MC eval bert --task WiC --model saved --data data"), 1);
    assert_non_null(strstr(err, "saved was fine-tuned on BoolQ, not on WiC"));
}

/* The loss of the only step of a fine-tune. */
static double first_loss(const char *max_length)
{
    char line[256];
    snprintf(line, sizeof line,
             "rm -f log.jsonl; $MC finetune bert --task BoolQ --config long --data texts --lr 0 "
             "--max-steps 1 --max-length %s --log-jsonl log.jsonl && cat log.jsonl",
             max_length);
    assert_int_equal(run(line), 0);
    const char *loss = strstr(out, "\"loss\":");
    assert_non_null(loss);
    return strtod(loss + strlen("\"loss\":"), NULL);
}

/* Texts are cut at the model's positions where more is asked for, be they more than 512. */
static void test_max_length(void **state)
{
    (void)state;
    static char row[8192];
    strcpy(row, "{\"question\": \"world\", \"label\": true, \"passage\": \"");
    for (int i = 0; i < 900; i++) strcat(row, i < 500 ? "hello " : "world ");
    strcat(row, "\"}\n");
    assert_int_equal(run("mkdir texts"), 0);
    write_config("long", "hello\nworld\n", 7, 800);
    write_text(temp_path(&folder, "texts/train.jsonl"), row);
    write_text(temp_path(&folder, "texts/val.jsonl"), row);
    double cut = first_loss("512"), whole = first_loss("800");
    assert_null(strstr(err, "texts are cut there"));
    assert_true(cut != whole);
    assert_true(first_loss("5000") == whole);
    assert_non_null(strstr(err, "the model has 800 positions: texts are cut there, not at 5000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_and_help), cmocka_unit_test(test_every_command_has_help),
        cmocka_unit_test(test_gpu_numbers),      cmocka_unit_test(test_families_in_help),
        cmocka_unit_test(test_unknown_commands), cmocka_unit_test(test_full_stdout),
        cmocka_unit_test(test_common_options),   cmocka_unit_test(test_tokenize),
        cmocka_unit_test(test_tokenize_errors),  cmocka_unit_test(test_eval),
        cmocka_unit_test(test_max_length),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
