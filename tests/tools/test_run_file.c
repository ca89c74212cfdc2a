/* Options from a file, run.json: what it may hold, who wins, what is written, and older forms of
 * the command line, which get a notice on a terminal only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>
#include <cmocka.h>
#include "tests/temp_folder.h"
#include "core/base/version.h"
#include "tools/options/args_internal.h"
#include "tools/options/run_file.h"

static const char *const kinds[] = {"cpu", "cuda", NULL};

/* A command's options and what its parse printed. */
typedef struct subject {
    const char *model, *output, *name, *run_file;
    int64_t epochs;
    uint64_t seed;
    double lr;
    float share;
    int kind;
    int64_t shard;
    bool shuffle, resume, verbose, overwrite, share_given;
    args_list data, prompts;
    bool seen[ARGS_MOST_ROWS];
    args_table table;
    args_spec spec;
    int code;
    char *out, *err;
} subject;

static void make_table(subject *s)
{
    args_table_add(
        &s->table,
        (args_option[]){
            {ARGS_PATH("model", &s->model, "--model FOLDER"), .positional = true, .old = true},
            {ARGS_PATH("model", &s->model, "which model")},
            {ARGS_PATH("pretrained", &s->model, "--model FOLDER"), .old = true},
            {ARGS_PATH("output", &s->output, "folder")},
            {ARGS_TEXT("run-name", &s->name, "of the run")},
            {ARGS_INT("epochs", &s->epochs, 1, 1000, "passes"), .known_as = "num-epochs"},
            {ARGS_INT("passes", &s->epochs, 1, 1000, "the same")},
            {ARGS_INT("seed", &s->seed, 0, INT64_MAX, "of it all")},
            {ARGS_REAL("lr", &s->lr, 0, 1, "peak")},
            {ARGS_REAL("share", &s->share, 0, 1, "part"), .given = &s->share_given},
            {ARGS_CHOICE("device", &s->kind, kinds, "where"), .numbered = true},
            {ARGS_BYTES("max-shard-size", &s->shard, "of a file")},
            {ARGS_FLAG_OFF("no-shuffle", &s->shuffle, "file order")},
            {ARGS_FLAG("verbose", &s->verbose, "say more")},
            {ARGS_FLAG("resume", &s->resume, "go on"), .once = true},
            {ARGS_PATHS("data", &s->data, "files")},
            {ARGS_TEXTS("prompt", &s->prompts, "texts")},
            {0},
        });
}

static bool parse(subject *s, int argc, char **argv)
{
    *s = (subject){.epochs = 3, .seed = 42, .lr = 5e-5, .shuffle = true};
    s->data.items = calloc((size_t)argc, sizeof *s->data.items);
    s->prompts.items = calloc((size_t)argc, sizeof *s->prompts.items);
    s->data.room = s->prompts.room = argc;
    make_table(s);
    s->spec = (args_spec){.command = "train",
                          .summary = "Trains.",
                          .options = s->table.rows,
                          .seen = s->seen,
                          .run_file = &s->run_file};
    size_t out_size, err_size;
    FILE *out = open_memstream(&s->out, &out_size), *err = open_memstream(&s->err, &err_size);
    bool good = args_parse_to(&s->spec, argc, argv, &s->code, out, err);
    fclose(out);
    fclose(err);
    return good;
}

static void forget(subject *s)
{
    free(s->out);
    free(s->err);
    free(s->data.items);
    free(s->prompts.items);
}

#define ARGV(...) ((char *[]){(char *)"train", __VA_ARGS__, NULL})
#define COUNT(...) ((int)(sizeof ARGV(__VA_ARGS__) / sizeof(char *)) - 1)
#define PARSE(s, ...) parse((s), COUNT(__VA_ARGS__), ARGV(__VA_ARGS__))

static temp_folder folder;
static char file[512]; /* the run file */

static int make_folder(void **state)
{
    (void)state;
    folder = temp_folder_new();
    snprintf(file, sizeof file, "%s", temp_path(&folder, "run.json"));
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    temp_folder_free(&folder);
    return 0;
}

static void write_options(subject *s, const char *path)
{
    char *content = run_file_text(&s->spec, s->seen);
    assert_non_null(content);
    write_text(path, content);
    run_file_free(content);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void test_every_type(void **state)
{
    (void)state;
    subject s;
    write_text(file,
               "{\"command\": \"train\", \"version\": \"9\", \"model\": \"m\", \"output\": null,"
               "\"run_name\": \"a b\", \"epochs\": 12, \"seed\": \"9223372036854775807\","
               "\"lr\": 0.0003, \"share\": 0.25, \"device\": \"cuda:3\","
               "\"max-shard-size\": \"5GB\", \"no-shuffle\": true, \"verbose\": false,"
               "\"data\": [\"a\", \"b\", \"c\", \"d\", \"e\"], \"prompt\": \"one\"}");
    assert_true(PARSE(&s, "--run-file", file));
    assert_string_equal(s.err, "");
    assert_string_equal(s.run_file, file);
    assert_string_equal(s.model, "m");
    assert_null(s.output);
    assert_string_equal(s.name, "a b");
    assert_int_equal(s.epochs, 12);
    assert_true(s.seed == INT64_MAX);
    assert_true(s.lr == 3e-4);
    assert_true(s.share == 0.25f && s.share_given);
    assert_int_equal(s.kind, 5);
    assert_true(s.shard == 5000000000);
    assert_false(s.shuffle);
    assert_false(s.verbose);
    assert_int_equal(s.data.count, 5);
    assert_string_equal(s.data.items[4], "e");
    assert_int_equal(s.prompts.count, 1);
    forget(&s);
}

/* Also where a list of the file is longer than the command line. */
static void test_command_line_wins(void **state)
{
    (void)state;
    subject s;
    write_text(file,
               "{\"epochs\": 12, \"lr\": 0.5, \"data\": [\"a\", \"b\", \"c\"], \"prompt\": [\"x\"],"
               "\"passes\": null, \"model\": \"m\"}");
    assert_true(PARSE(&s, "--epochs", "7", "--data", "d", "--run-file", file, "--prompt", "y",
                      "--prompt=z"));
    assert_int_equal(s.epochs, 7);
    assert_true(s.lr == 0.5);
    assert_int_equal(s.data.count, 1);
    assert_string_equal(s.data.items[0], "d");
    assert_int_equal(s.prompts.count, 2);
    assert_string_equal(s.prompts.items[0], "y");
    forget(&s);
}

static void must_refuse(const char *content, const char *what)
{
    subject s;
    write_text(file, content);
    assert_false(PARSE(&s, "--run-file", file));
    assert_int_equal(s.code, EXIT_USAGE);
    if (!strstr(s.err, what) || !strstr(s.err, file)) fail_msg("no \"%s\" in: %s", what, s.err);
    forget(&s);
}

static void test_errors_name_file_and_key(void **state)
{
    (void)state;
    subject s;
    must_refuse("{\"epohcs\": 3}", "key \"epohcs\": no option of train (did you mean --epochs?)");
    must_refuse("{\"num_epochs\": 3}",
                "key \"num_epochs\": no option of train (did you mean --epochs?)");
    must_refuse("{\"hf-token\": \"x\"}", "key \"hf-token\": no option of train");
    must_refuse("{\"epochs\": 0}",
                "key \"epochs\": found 0, expected a whole number from 1 to 1000");
    must_refuse("{\"epochs\": 1.5}", "key \"epochs\": found 1.5");
    must_refuse("{\"epochs\": [1]}", "key \"epochs\": found [1]");
    must_refuse("{\"verbose\": 1}", "key \"verbose\": found 1, expected true or false");
    must_refuse("{\"model\": true}", "key \"model\": found true, expected a path");
    must_refuse("{\"device\": \"cude\"}", "expected one of cpu, cuda, cuda:N (did you mean cuda?)");
    must_refuse("{\"data\": [\"a\", 0, {}]}", "key \"data\": found ");
    must_refuse("{\"epochs\": 3, \"epochs\": 4}", "key \"epochs\" is there twice");
    must_refuse("{\"command\": \"eval\"}", "key \"command\": found \"eval\", expected \"train\"");
    must_refuse("[]", "expected a JSON object");
    must_refuse("{\"epochs\": ", "line 1: malformed JSON at \"\"");
    must_refuse("", "line 1: malformed JSON at \"\"");
    must_refuse("{\n\"epochs\": 2,\n\"lr\" 1}\n", "line 3: malformed JSON at \"1}\"");
    must_refuse("{\"epochs\": 2}\n{}\n", "line 2: malformed JSON at \"{}\"");
    assert_false(PARSE(&s, "--run-file", (char *)"/nowhere/run.json"));
    assert_non_null(strstr(s.err, "--run-file /nowhere/run.json: No such file"));
    forget(&s);
    assert_false(PARSE(&s, "--run-file"));
    assert_non_null(strstr(s.err, "--run-file: the value is missing"));
    forget(&s);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* What is written reads back as the same options. */
/* An error about options that do not go together says which of them were not typed. */
static void test_errors_name_sources(void **state)
{
    (void)state;
    subject s;
    char message[ARGS_TEXT_ROOM] = "--shares and --share need --lr, --lr-x, and no --epochs",
         expected[2 * ARGS_TEXT_ROOM];
    write_text(file, "{\"share\": 0.5, \"epochs\": 2, \"lr\": 0.5, \"seed\": 3}");
    assert_true(PARSE(&s, "--run-file", file, "--epochs", "3"));
    snprintf(expected, sizeof expected, "%s (in %s: --lr, --share)", message, file);
    args_add_sources(&s.spec, message);
    assert_string_equal(message, expected);
    forget(&s);
    assert_true(PARSE(&s, "--share", "0.5"));
    strcpy(message, "--share needs --lr");
    args_add_sources(&s.spec, message);
    assert_string_equal(message, "--share needs --lr");
    forget(&s);
}

static void test_round_trip(void **state)
{
    (void)state;
    subject s, again;
    char other[512];
    snprintf(other, sizeof other, "%s", temp_path(&folder, "other.json"));
    assert_true(PARSE(&s, "--model", "m\"\\\n", "--seed", "9007199254740993", "--lr", "3e-4",
                      "--data", "a", "b", "--device", "cuda:2", "--max-shard-size", "1.5GB",
                      "--no-shuffle", "--resume", "--output", "o"));
    write_options(&s, other);
    assert_true(PARSE(&again, "--run-file", other));
    assert_string_equal(again.err, "");
    assert_string_equal(again.model, "m\"\\\n");
    assert_true(again.seed == 9007199254740993u);
    assert_true(again.lr == 3e-4);
    assert_int_equal(again.epochs, 3);
    assert_int_equal(again.data.count, 2);
    assert_int_equal(again.kind, 4);
    assert_true(again.shard == 1500000000);
    assert_false(again.shuffle);
    assert_false(again.resume);      /* of one call */
    assert_false(again.share_given); /* a default that says something when given */
    assert_null(again.name);
    forget(&again);
    forget(&s);
}

static void test_written_text(void **state)
{
    (void)state;
    subject s;
    char content[4096];
    assert_true(PARSE(&s, "--model=m", "--epochs=2"));
    write_options(&s, file);
    FILE *from = fopen(file, "r");
    assert_non_null(from);
    content[fread(content, 1, sizeof content - 1, from)] = '\0';
    fclose(from);
    assert_string_equal(content,
                        "{\n\t\"command\":\t\"train\",\n\t\"version\":\t\"" MC_VERSION "\",\n"
                        "\t\"model\":\t\"m\",\n\t\"epochs\":\t2,\n\t\"seed\":\t42,\n"
                        "\t\"lr\":\t5e-05,\n\t\"device\":\t\"cpu\",\n"
                        "\t\"no-shuffle\":\tfalse,\n\t\"verbose\":\tfalse\n}");
    forget(&s);
}

/* ---- a run's own file ------------------------------------------------------------------------ */

static void test_not_over_its_own_run(void **state)
{
    (void)state;
    subject s;
    char content[1024];
    snprintf(content, sizeof content, "{\"output\": \"%s/.\", \"epochs\": 2}", folder.path);
    write_text(file, content);
    assert_false(PARSE(&s, "--run-file", file));
    assert_int_equal(s.code, EXIT_USAGE);
    assert_non_null(strstr(s.err, "give another --output, or --resume to go on with that run"));
    forget(&s);
    assert_true(PARSE(&s, "--run-file", file, "--resume"));
    forget(&s);
    assert_true(PARSE(&s, "--run-file", file, "--output", "elsewhere"));
    assert_string_equal(s.output, "elsewhere");
    forget(&s);
    write_text(file, "{\"output\": \"elsewhere\", \"epochs\": 2}");
    assert_true(PARSE(&s, "--run-file", file));
    forget(&s);
}

/* ---- older forms ----------------------------------------------------------------------------- */

/* Runs the parse with its errors on a terminal; returns what is seen there. */
static const char *on_terminal(int argc, char **argv)
{
    static char shown[1024];
    subject s = {.epochs = 3};
    int outer = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(outer >= 0 && grantpt(outer) == 0 && unlockpt(outer) == 0);
    FILE *err = fopen(ptsname(outer), "w");
    assert_non_null(err);
    make_table(&s);
    s.spec = (args_spec){.command = "train", .summary = "Trains.", .options = s.table.rows};
    assert_true(args_parse_to(&s.spec, argc, argv, &s.code, stdout, err));
    fputs("end\n", err);
    fflush(err);
    size_t used = 0;
    do {
        ssize_t n = read(outer, shown + used, sizeof shown - used - 1);
        assert_true(n > 0);
        shown[used += (size_t)n] = '\0';
    } while (!strstr(shown, "end\r\n"));
    fclose(err);
    close(outer);
    return shown;
}

#define ON_TERMINAL(...) on_terminal(COUNT(__VA_ARGS__), ARGV(__VA_ARGS__))

static void test_older_forms(void **state)
{
    (void)state;
    subject s;
    assert_true(PARSE(&s, "m", "--pretrained", "n"));
    assert_string_equal(s.err, ""); /* no terminal */
    assert_string_equal(s.model, "n");
    forget(&s);
    assert_string_equal(ON_TERMINAL("m", "--pretrained", "n"),
                        "modelcenter train: note: a model by its place is an older form, which "
                        "works through 0.x; now --model FOLDER\r\nend\r\n");
    assert_string_equal(ON_TERMINAL("--pretrained", "n"),
                        "modelcenter train: note: --pretrained is an older form, which works "
                        "through 0.x; now --model FOLDER\r\nend\r\n");
    assert_string_equal(ON_TERMINAL("--model", "n"), "end\r\n");
    assert_false(PARSE(&s, "--help"));
    assert_null(strstr(s.out, "pretrained"));
    assert_non_null(strstr(s.out, "usage: modelcenter train [options]\n"));
    assert_non_null(strstr(s.out, "--run-file PATH"));
    forget(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_command_line_wins),
        cmocka_unit_test(test_errors_name_file_and_key),
        cmocka_unit_test(test_errors_name_sources),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_written_text),
        cmocka_unit_test(test_not_over_its_own_run),
        cmocka_unit_test(test_older_forms),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
