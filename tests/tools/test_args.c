/* The command line parser: every type, every way to get it wrong, and the help. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tools/options/args.h"
#include "tools/files/text.h"

static const char *const schedulers[] = {"constant", "noam",        "linear",
                                         "cosine",   "exponential", NULL};
static const char *const models[] = {"bert", "gpt2", NULL};

/* A subcommand as the real ones are, with its targets, and what its parse printed. */
typedef struct subject {
    int model, scheduler, epochs;
    int64_t warmup;
    uint64_t seed;
    double lr;
    float dropout;
    const char *output, *name;
    bool shuffle, verbose, epochs_given;
    int code;
    char *out, *err;
} subject;

static bool parse(subject *s, int argc, char **argv)
{
    *s = (subject){
        .model = -1, .epochs = 3, .seed = 42, .lr = 5e-5, .dropout = 0.1f, .shuffle = true};
    const args_option options[] = {
        {ARGS_CHOICE("model", &s->model, models, "family"), .positional = true, .required = true},
        {ARGS_HEADING("training")},
        {ARGS_PATH("output", &s->output, "folder to save to"), .required = true},
        {ARGS_INT("epochs", &s->epochs, 0, INT64_MAX, "passes"), .given = &s->epochs_given},
        {ARGS_INT("warmup", &s->warmup, 0, INT64_MAX, "steps"), .known_as = "warmup-steps,ramp"},
        {ARGS_INT("seed", &s->seed, INT64_MIN, 1000, "of it all")},
        {ARGS_REAL("lr", &s->lr, 0, 1, "peak rate"), .above_low = true,
         .known_as = "learning-rate"},
        {ARGS_REAL("dropout", &s->dropout, 0, 1, "probability"), .below_high = true},
        {ARGS_CHOICE("scheduler", &s->scheduler, schedulers, "how the rate moves")},
        {ARGS_TEXT("name", &s->name, "of the run")},
        {ARGS_FLAG_OFF("no-shuffle", &s->shuffle, "file order")},
        {ARGS_FLAG("verbose", &s->verbose, "say more")},
        {0},
    };
    const args_spec spec = {.command = "train", .summary = "Trains.", .options = options};
    size_t out_size, err_size;
    FILE *out = open_memstream(&s->out, &out_size), *err = open_memstream(&s->err, &err_size);
    bool run = args_parse_to(&spec, argc, argv, &s->code, out, err);
    fclose(out);
    fclose(err);
    return run;
}

static void forget(subject *s)
{
    free(s->out);
    free(s->err);
}

#define ARGV(...) ((char *[]){(char *)"train", __VA_ARGS__, NULL})
#define COUNT(...) ((int)(sizeof ARGV(__VA_ARGS__) / sizeof(char *)) - 1)
#define PARSE(s, ...) parse((s), COUNT(__VA_ARGS__), ARGV(__VA_ARGS__))
#define GOOD "bert", "--output", "o"

/* The arguments are an error whose text is `expected` and nothing else. */
#define EXPECT_ERROR(expected, ...)                                                                \
    do {                                                                                           \
        subject s;                                                                                 \
        assert_false(PARSE(&s, __VA_ARGS__));                                                      \
        assert_int_equal(s.code, EXIT_USAGE);                                                      \
        assert_string_equal(s.err,                                                                 \
                            "modelcenter train: " expected "\n(see: modelcenter train --help)\n"); \
        assert_string_equal(s.out, "");                                                            \
        forget(&s);                                                                                \
    } while (0)

static void test_defaults_stay(void **state)
{
    (void)state;
    subject s;
    assert_true(PARSE(&s, GOOD));
    assert_int_equal(s.code, EXIT_OK);
    assert_int_equal(s.model, 0);
    assert_string_equal(s.output, "o");
    assert_int_equal(s.epochs, 3);
    assert_false(s.epochs_given);
    assert_true(s.shuffle);
    assert_false(s.verbose);
    assert_string_equal(s.err, "");
    forget(&s);
}

static void test_every_type(void **state)
{
    (void)state;
    subject s;
    assert_true(PARSE(&s, "--lr=3e-4", "gpt2", "--epochs", "12", "--warmup=100", "--no-shuffle",
                      "--verbose", "--scheduler", "cosine", "--dropout", "0.25", "--seed", "7",
                      "--output=/tmp/a=b", "--name", "-x -- y", "--local_rank", "3"));
    assert_int_equal(s.model, 1);
    assert_true(s.lr == 3e-4);
    assert_int_equal(s.epochs, 12);
    assert_true(s.epochs_given);
    assert_int_equal(s.warmup, 100);
    assert_false(s.shuffle);
    assert_true(s.verbose);
    assert_int_equal(s.scheduler, 3);
    assert_true(s.dropout == 0.25f);
    assert_int_equal(s.seed, 7);
    assert_string_equal(s.output, "/tmp/a=b");
    assert_string_equal(s.name, "-x -- y");
    forget(&s);
}

static void test_ways_to_write(void **state)
{
    (void)state;
    subject s;
    assert_true(PARSE(&s, GOOD, "--no_shuffle", "--epochs", "1", "--epochs=2",
                      "--name=", "--local-rank=0"));
    assert_false(s.shuffle);
    assert_int_equal(s.epochs, 2);
    assert_string_equal(s.name, "");
    forget(&s);
    assert_true(PARSE(&s, "--output", "o", "--name=--help", "--", "bert"));
    assert_string_equal(s.name, "--help");
    assert_int_equal(s.model, 0);
    forget(&s);
    assert_true(PARSE(&s, GOOD, "--name", "--- three dashes"));
    assert_string_equal(s.name, "--- three dashes");
    forget(&s);
    assert_true(PARSE(&s, GOOD, "--epochs", "+2147483647"));
    assert_int_equal(s.epochs, INT32_MAX);
    forget(&s);
}

static void test_unknown_options(void **state)
{
    (void)state;
    EXPECT_ERROR("unknown option \"--epoch\" (did you mean --epochs?)", GOOD, "--epoch", "3");
    EXPECT_ERROR("unknown option \"--epoch=3\" (did you mean --epochs?)", GOOD, "--epoch=3");
    EXPECT_ERROR("unknown option \"--out\" (did you mean --output?)", GOOD, "--out", "x");
    EXPECT_ERROR("unknown option \"--learning_rate\" (did you mean --lr?)", GOOD, "--learning_rate",
                 "1");
    EXPECT_ERROR("unknown option \"--ramp\" (did you mean --warmup?)", GOOD, "--ramp");
    EXPECT_ERROR("unknown option \"--shuffle\" (did you mean --no-shuffle?)", GOOD, "--no-shuffle",
                 "--shuffle");
    EXPECT_ERROR("unknown option \"--frobnicate\"", GOOD, "--frobnicate");
    EXPECT_ERROR("unknown option \"-e\"", GOOD, "-e", "3");
    EXPECT_ERROR("unknown option \"--model\"", GOOD, "--model", "bert");
    EXPECT_ERROR("unknown option \"--=\"", GOOD, "--=");
}

/* Options that have two names, values that have, and names that only others use. */
static void test_names_elsewhere(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};
    static const char *const kept[] = {"last", "best", NULL};
    const char *pretrained = NULL;
    int dtype = 0, keep = 0, epochs = 0;
    int64_t limit = 0, length = 0;
    const args_option options[] = {
        {ARGS_PATH("pretrained", &pretrained, "weights"), .required = true},
        {ARGS_CHOICE("dtype", &dtype, dtypes, "of weights")},
        {ARGS_INT("max-length", &length, 0, 99, "tokens")},
        {ARGS_INT("epochs", &epochs, 0, 9, "passes")},
        {0},
    };
    const args_option others[] = {{ARGS_CHOICE("keep", &keep, kept, "which")},
                                  {ARGS_PATH("model", &pretrained, "weights")},
                                  {ARGS_INT("steps", &limit, 0, 9, "steps")},
                                  {0}};
    const args_spec spec = {.command = "train", .options = options, .summary = "Trains."};
    const args_spec other = {.command = "train", .options = others, .summary = "Trains."};
    char shown[4096];
    int code;
    FILE *said = fmemopen(shown, sizeof shown, "w");
#define TRY(spec, ...) args_parse_to(spec, COUNT(__VA_ARGS__), ARGV(__VA_ARGS__), &code, said, said)
    assert_true(TRY(&spec, "--model", "x", "--dtype", "bfloat16", "--max_encoder_length=7"));
    assert_string_equal(pretrained, "x");
    assert_true(dtype == 2 && length == 7);
    assert_true(TRY(&spec, "--pretrained", "y", "--dtype=float16") && dtype == 1);
    assert_true(TRY(&spec, "--pretrained", "y", "--dtype=fp32") && dtype == 0);
    assert_true(TRY(&other, "--pretrained", "z", "--keep", "best") && keep == 1);
    assert_string_equal(pretrained, "z");
    assert_false(TRY(&other, "--max_iters", "3"));
    assert_false(TRY(&other, "--epochs", "3"));
    assert_false(TRY(&spec, "--num_train_epochs", "3"));
    assert_false(TRY(&spec, "--dtype", "float8", "--model", "x"));
    assert_false(TRY(&spec, "--help"));
    fclose(said);
    static const char *const expected[] = {
        "unknown option \"--max_iters\" (did you mean --steps?)",
        "unknown option \"--epochs\" (did you mean --steps?)",
        "unknown option \"--num_train_epochs\" (did you mean --epochs?)",
        "--dtype \"float8\": expected one of f32, f16, bf16\n", "(also --model; a path; required)"};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (!strstr(shown, expected[i])) fail_msg("\"%s\" is not in:\n%s", expected[i], shown);
}

static void test_bad_whole_numbers(void **state)
{
    (void)state;
    static char *const bad[] = {"",    " 1",         "1 ", "1x", "1.0",
                                "1e3", "0x10",       "--", "-1", "nan",
                                "२",   "2147483648", "-",  "+",  "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char argument[64], expected[200];
        snprintf(argument, sizeof argument, "--epochs=%s", bad[i]);
        snprintf(
            expected, sizeof expected,
            "modelcenter train: --epochs \"%s\": expected a whole number from 0 to 2147483647\n",
            bad[i]);
        subject s;
        assert_false(PARSE(&s, GOOD, argument));
        assert_int_equal(s.code, EXIT_USAGE);
        assert_memory_equal(s.err, expected, strlen(expected));
        assert_int_equal(s.epochs, 3);
        forget(&s);
    }
    EXPECT_ERROR("--epochs \"-1\": expected a whole number from 0 to 2147483647", GOOD, "--epochs",
                 "-1");
    EXPECT_ERROR("--warmup \"-1\": expected a whole number of at least 0", GOOD, "--warmup=-1");
    EXPECT_ERROR("--warmup \"9223372036854775808\": expected a whole number of at least 0, up to "
                 "9223372036854775807",
                 GOOD, "--warmup=9223372036854775808");
    EXPECT_ERROR("--seed \"-1\": expected a whole number from 0 to 1000", GOOD, "--seed=-1");
    EXPECT_ERROR("--local-rank \"x\": expected a whole number", GOOD, "--local_rank", "x");
}

static void test_bad_real_numbers(void **state)
{
    (void)state;
    static char *const bad[] = {"",     " 0.5",   "0.5 ",  "half",   "0.5f", "nan",
                                "inf",  "-inf",   "NAN",   "0x1p-4", "1.1",  "0",
                                "-0.1", "1e-400", "1e999", ".",      "0,5",  "e"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char argument[64], expected[200];
        snprintf(argument, sizeof argument, "--lr=%s", bad[i]);
        snprintf(expected, sizeof expected,
                 "modelcenter train: --lr \"%s\": expected a number above 0 and up to 1\n", bad[i]);
        subject s;
        assert_false(PARSE(&s, GOOD, argument));
        assert_memory_equal(s.err, expected, strlen(expected));
        assert_true(s.lr == 5e-5);
        forget(&s);
    }
    EXPECT_ERROR("--dropout \"1\": expected a number from 0 and below 1", GOOD, "--dropout", "1");
    /* in f32 that is 1 */
    EXPECT_ERROR("--dropout \"0.999999999\": expected a number from 0 and below 1", GOOD,
                 "--dropout", "0.999999999");
    subject s;
    assert_true(PARSE(&s, GOOD, "--dropout", "1e-50"));
    assert_true(s.dropout == 0);
    forget(&s);
}

static void test_bad_texts_and_flags(void **state)
{
    (void)state;
    EXPECT_ERROR("--name \"a\xff\": expected a text in UTF-8", GOOD, "--name", "a\xff");
    EXPECT_ERROR("--scheduler \"cosin\": expected one of constant, noam, linear, cosine, "
                 "exponential (did you mean cosine?)",
                 GOOD, "--scheduler", "cosin");
    EXPECT_ERROR(
        "--scheduler \"COSINE\": expected one of constant, noam, linear, cosine, exponential "
        "(did you mean cosine?)",
        GOOD, "--scheduler=COSINE");
    EXPECT_ERROR("--output \"\": expected a path", "bert", "--output", "");
    EXPECT_ERROR("--no-shuffle \"true\": a flag, expected no value", GOOD, "--no-shuffle=true");
    EXPECT_ERROR("<model> \"brt\": expected one of bert, gpt2 (did you mean bert?)", "brt",
                 "--output", "o");
    EXPECT_ERROR("unexpected argument \"extra\"", GOOD, "extra");
    EXPECT_ERROR("unexpected argument \"true\"", GOOD, "--no-shuffle", "true");
}

static void test_missing(void **state)
{
    (void)state;
    EXPECT_ERROR("--lr: the value is missing: expected a number above 0 and up to 1", GOOD, "--lr");
    EXPECT_ERROR("--output: the value is missing: expected a path, found \"--lr=1\" (write "
                 "--output=--lr=1 if that is the value)",
                 "bert", "--output", "--lr=1");
    EXPECT_ERROR("required and missing: <model>, --output", "--epochs", "1");
    EXPECT_ERROR("required and missing: --output", "bert");
    subject s;
    assert_false(parse(&s, 1, ARGV("unused")));
    assert_non_null(strstr(s.err, "required and missing: <model>, --output"));
    forget(&s);
}

static void test_help(void **state)
{
    (void)state;
    static const char expected[] =
        "usage: modelcenter train <model> --output PATH [options]\n\nTrains.\n\n"
        "  <model>                 family (one of bert, gpt2; required)\n"
        "\ntraining:\n"
        "  --output PATH           folder to save to (a path; required)\n"
        "  --epochs N              passes (a whole number from 0 to 2147483647; default\n"
        "                          3)\n"
        "  --warmup N              steps (a whole number of at least 0; default 0)\n"
        "  --seed N                of it all (a whole number from 0 to 1000; default 42)\n"
        "  --lr X                  peak rate (a number above 0 and up to 1; default\n"
        "                          5e-05)\n"
        "  --dropout X             probability (a number from 0 and below 1; default 0.1)\n"
        "  --scheduler constant|noam|linear|cosine|exponential\n"
        "                          how the rate moves (one of constant, noam, linear,\n"
        "                          cosine, exponential; default constant)\n"
        "  --name TEXT             of the run (a text)\n"
        "  --no-shuffle            file order (a flag; default off)\n"
        "  --verbose               say more (a flag; default off)\n";
    subject s;
    /* wherever it stands, whatever else is wrong, and with the defaults as they were */
    assert_false(PARSE(&s, "--epochs", "9", "--nonsense", "--lr", "--help"));
    assert_int_equal(s.code, EXIT_OK);
    assert_string_equal(s.err, "");
    assert_memory_equal(s.out, expected, strlen(expected));
    assert_non_null(strstr(s.out, "--local-rank N"));
    for (char *line = strtok(s.out, "\n"); line; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 80);
    forget(&s);
    assert_false(PARSE(&s, "-h"));
    assert_int_equal(s.code, EXIT_OK);
    forget(&s);
}

/* The same table as a manual page, and for the completion of shells. */
static void test_help_forms(void **state)
{
    (void)state;
    static const struct {
        const char *form, *holds[4];
    } forms[] = {
        {"--help=man",
         {".SH NAME\nmodelcenter\\-train \\- trains\n", ".SS \"training\"\n",
          ".TP\n\\fB\\-\\-output\\fR \\fIPATH\\fR\nfolder to save to (a path; required)\n",
          ".TP\n\\fB<model>\\fR\n"}},
        {"--help=bash",
         {"train) cat <<'END' ;;\n1 choice bert gpt2\n", "--output file\n", "--lr value\n",
          "--verbose flag\n"}},
        {"--help=zsh",
         {"'1:model:(bert gpt2)'", "'--output=[folder to save to]:output:_files'",
          "'--no-shuffle[file order]'", "(constant noam linear cosine exponential)'"}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        subject s;
        assert_false(PARSE(&s, "bert", (char *)forms[i].form));
        assert_int_equal(s.code, EXIT_OK);
        assert_string_equal(s.err, "");
        for (int k = 0; k < 4; k++)
            if (!strstr(s.out, forms[i].holds[k]))
                fail_msg("%s lacks \"%s\":\n%s", forms[i].form, forms[i].holds[k], s.out);
        forget(&s);
    }
    EXPECT_ERROR("unknown option \"--help=pdf\" (did you mean --help?)", "--help=pdf");
}

static void test_long_arguments(void **state)
{
    (void)state;
    char *huge = malloc(100001);
    memset(huge, 'x', 100000);
    memcpy(huge, "--", 2);
    huge[100000] = '\0';
    subject s;
    assert_false(PARSE(&s, GOOD, huge));
    assert_int_equal(s.code, EXIT_USAGE);
    forget(&s);
    assert_false(PARSE(&s, GOOD, "--lr", huge + 2));
    assert_true(strlen(s.err) < 1000);
    forget(&s);
    assert_true(PARSE(&s, "bert", "--output", huge + 2));
    assert_ptr_equal(s.output, huge + 2);
    forget(&s);
    free(huge);
}

static void check_number(double value, const char *expected)
{
    char data[64];
    text t = text_into(data, sizeof data);
    text_add_number(&t, value);
    assert_string_equal(data, expected);
}

static void test_numbers(void **state)
{
    (void)state;
    check_number(5e-5, "5e-05");
    check_number((double)5e-5f, "5e-05");
    check_number(0.1, "0.1");
    check_number(1.0 / 3, "0.3333333333333333");
    check_number((double)(1.0f / 3), "0.33333334");
    check_number(1e300, "1e+300");
    check_number(10, "10"); /* a step of a log, which is read again */
    check_number(-30000, "-30000");
    check_number(-0.0, "-0");
    check_number(-0.0, "-0");
    check_number(NAN, "nan");
    check_number(-NAN, "nan");
    check_number(-INFINITY, "-inf");
    check_number(1024, "1024");
}

static void test_bounded_text(void **state)
{
    (void)state;
    char data[8];
    text t = text_into(data, sizeof data);
    text_add(&t, "1234567");
    assert_false(t.cut);
    text_add(&t, "%s", "");
    assert_false(t.cut);
    text_add(&t, "8");
    assert_true(t.cut);
    assert_string_equal(data, "1234567");
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("same", "same"), 0);
}

static void test_named_twice(void **state)
{
    (void)state;
    static const struct {
        const char *list, *twice;
    } cases[] = {{"", NULL},     {"a", NULL},          {"a,b", NULL},       {"a,ab,b", NULL},
                 {"ab,a", NULL}, {"a,a", "a"},         {"a,bc,d,bc", "bc"}, {"a,b,a,b", "a"},
                 {"a,b,", NULL}, {"a,\xc3\xa4,a", "a"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length = 0;
        const char *found = text_named_twice(cases[i].list, &length), *twice = cases[i].twice;
        if (!twice) {
            assert_null(found);
            continue;
        }
        assert_non_null(found);
        assert_int_equal(length, strlen(twice));
        assert_memory_equal(found, twice, length);
    }
}

/* An option that takes several values: those after it, up to the next option. */
static void test_lists(void **state)
{
    (void)state;
    const char *items[8], *name = NULL;
    args_list list = {.items = items, .room = 8};
    const args_option options[] = {{ARGS_PATHS("input", &list, "what is read"), .required = true},
                                   {ARGS_TEXT("name", &name, "of the run")},
                                   {0}};
    const args_spec spec = {.command = "train", .summary = "Trains.", .options = options};
    char *printed;
    size_t size;
    int code;
    FILE *out = open_memstream(&printed, &size);
    assert_true(args_parse_to(&spec, COUNT("--input", "a", "b", "--name", "n", "--input=c", "d"),
                              ARGV("--input", "a", "b", "--name", "n", "--input=c", "d"), &code,
                              out, out));
    assert_int_equal(list.count, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(items[i], ((const char *[]){"a", "b", "c", "d"})[i]);
    assert_string_equal(name, "n");
    const char *model = NULL;
    const args_option placed[] = {
        {ARGS_PATH("model", &model, "the model"), .required = true, .positional = true},
        options[0],
        {0}};
    const args_spec with_place = {.command = "train", .summary = "Trains.", .options = placed};
    list.count = 0; /* the list's last value is what has no name and is missing */
    assert_true(args_parse_to(&with_place, COUNT("--input", "a", "b", "m"),
                              ARGV("--input", "a", "b", "m"), &code, out, out));
    assert_true(list.count == 2 && strcmp(model, "m") == 0);
    list.count = 0;
    assert_true(args_parse_to(&with_place, COUNT("m", "--input", "a", "b"),
                              ARGV("m", "--input", "a", "b"), &code, out, out));
    assert_int_equal(list.count, 2);
    list.count = 0;
    assert_false(
        args_parse_to(&with_place, COUNT("--input", "a"), ARGV("--input", "a"), &code, out, out));
    assert_false(args_parse_to(&spec, COUNT("--input", "a", "--name", "n", "b"),
                               ARGV("--input", "a", "--name", "n", "b"), &code, out, out));
    assert_false(
        args_parse_to(&spec, COUNT("--input", "a", ""), ARGV("--input", "a", ""), &code, out, out));
    assert_false(args_parse_to(&spec, COUNT("--input"), ARGV("--input"), &code, out, out));
    assert_false(args_parse_to(&spec, COUNT("--help"), ARGV("--help"), &code, out, out));
    fclose(out);
    assert_non_null(strstr(printed, "unexpected argument \"b\""));
    assert_non_null(strstr(printed, "--input \"\": expected one path or more"));
    assert_non_null(strstr(printed, "--input: the value is missing: expected one path or more"));
    assert_non_null(strstr(printed, "--input PATH..."));
    free(printed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_stay),    cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_ways_to_write),    cmocka_unit_test(test_unknown_options),
        cmocka_unit_test(test_names_elsewhere),  cmocka_unit_test(test_bad_whole_numbers),
        cmocka_unit_test(test_bad_real_numbers), cmocka_unit_test(test_bad_texts_and_flags),
        cmocka_unit_test(test_missing),          cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_forms),       cmocka_unit_test(test_long_arguments),
        cmocka_unit_test(test_named_twice),      cmocka_unit_test(test_lists),
        cmocka_unit_test(test_numbers),          cmocka_unit_test(test_bounded_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
