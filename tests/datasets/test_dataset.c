/* Datasets: what rows become, where files are found, and what is said about bad ones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/base/file_internal.h"
#include "tests/datasets/fixture.h"

#define BOOLQ(label) "{\"question\": \"is it\", \"passage\": \"It is\", \"label\": " label "}\n"
#define CB(hypothesis, label) \
    "{\"premise\": \"p\", \"hypothesis\": \"" hypothesis "\", \"label\": \"" label "\"}\n"
#define COPA(label)                                                                 \
    "{\"premise\": \"The sun rose.\", \"choice1\": \"one\", \"choice2\": \"two\", " \
    "\"question\": \"cause\", \"label\": " label "}\n"

typedef struct rendering {
    const char *task, *line;
    const char *text[2], *pair[2];
    int label, labels, outputs;
} rendering;

static const rendering renderings[] = {
    {"BoolQ", BOOLQ("true"), {"It is. is it"}, {NULL}, 1, 2, 2},
    {"BoolQ", BOOLQ("false"), {"It is. is it"}, {NULL}, 0, 2, 2},
    {"BoolQ", BOOLQ("1"), {"It is. is it"}, {NULL}, 1, 2, 2},
    {"CB", CB("h", "contradiction"), {"p"}, {"h"}, 0, 3, 3},
    {"CB", CB("h", "entailment"), {"p"}, {"h"}, 1, 3, 3},
    {"CB", CB("h", "neutral"), {"p"}, {"h"}, 2, 3, 3},
    {"COPA",
     COPA("1"),
     {"one", "two"},
     {"The cause of \"The sun rose.\"", "The cause of \"The sun rose.\""},
     1,
     2,
     1},
    {"RTE", CB("h", "not_entailment"), {"p"}, {"h"}, 0, 2, 2},
    {"RTE", CB("h", "entailment"), {"p"}, {"h"}, 1, 2, 2},
    {"WiC",
     "{\"word\": \"w\", \"sentence1\": \"a w\", \"sentence2\": \"the w\", \"label\": true}",
     {"a w"},
     {"the w"},
     1,
     2,
     2},
    {"WSC",
     "{\"text\": \"Mark told Pete.\", \"target\": {\"span2_text\": \"He\", \"span1_text\": "
     "\"Mark\", \"span1_index\": 0, \"span2_index\": 13}, \"label\": false}",
     {"Mark told Pete. Does He refers to Mark?"},
     {NULL},
     0,
     2,
     2},
};

static void same_text(const char *found, const char *expected)
{
    if (expected)
        assert_string_equal(found, expected);
    else
        assert_null(found);
}

static void test_templates(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < sizeof renderings / sizeof *renderings; i++) {
        const rendering *r = &renderings[i];
        mc_dataset *d = parse(f, r->task, "train", r->line);
        expect_ok(f->ctx);
        assert_int_equal(mc_dataset_rows(d), 1);
        assert_int_equal(mc_dataset_choices(d), r->text[1] ? 2 : 1);
        for (int k = 0; k < 2; k++) {
            same_text(mc_dataset_text(d, 0, k), r->text[k]);
            same_text(mc_dataset_pair(d, 0, k), r->pair[k]);
        }
        assert_int_equal(mc_dataset_label(d, 0), r->label);
        assert_int_equal(mc_dataset_labels(d), r->labels);
        assert_int_equal(mc_dataset_outputs(d), r->outputs);
        assert_string_equal(mc_dataset_task(d), r->task);
        mc_dataset_free(d);
    }
}

static void test_accessors(void **state)
{
    fixture *f = *state;
    mc_dataset *d = parse(f, "cb", "val", CB("h", "neutral"));
    assert_string_equal(mc_dataset_label_name(d, 2), "neutral");
    assert_null(mc_dataset_label_name(d, 3));
    assert_null(mc_dataset_label_name(d, -1));
    assert_null(mc_dataset_text(d, 1, 0));
    assert_null(mc_dataset_text(d, -1, 0));
    assert_null(mc_dataset_text(d, 0, 1));
    assert_null(mc_dataset_pair(d, 0, -1));
    assert_int_equal(mc_dataset_label(d, 7), MC_NO_LABEL);
    assert_int_equal(mc_dataset_line(d, 7), 0);
    assert_int_equal(mc_dataset_max_length(d), 512);
    assert_string_equal(mc_dataset_path(d), "rows.jsonl");
    assert_int_equal(mc_dataset_rows(NULL), 0);
    assert_null(mc_dataset_task(NULL));
    assert_int_equal(mc_dataset_outputs(NULL), 0);
    mc_dataset_free(NULL);
    const char *known[] = {"BoolQ",   "CB",     "COPA",  "RTE",   "WiC",      "WSC",
                           "MultiRC", "ReCoRD", "SQuAD", "LCQMC", "HellaSwag"};
    for (int i = 0; i < 11; i++) assert_string_equal(mc_task_name(i), known[i]);
    assert_null(mc_task_name(11));
    assert_null(mc_task_name(-1));
}

/* Classes of 5, 2 and 1 rows: repeated 1, int(5/2) = 2 and 5 times, in training alone. */
static void test_balance(void **state)
{
    fixture *f = *state;
    const char *lines = CB("a", "entailment") CB("b", "neutral") CB("c", "contradiction")
        CB("d", "entailment") CB("e", "entailment") CB("f", "contradiction") CB("g", "entailment")
            CB("h", "entailment");
    const char *expected = "abbbbbccdeffgh";
    mc_dataset *d = parse(f, "CB", "train", lines);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_rows(d), strlen(expected));
    for (int i = 0; expected[i]; i++) {
        assert_int_equal(mc_dataset_pair(d, i, 0)[0], expected[i]);
        assert_int_equal(mc_dataset_line(d, i), expected[i] - 'a' + 1);
    }
    assert_int_equal(mc_dataset_rows(parse(f, "CB", "val", lines)), 8);
    assert_int_equal(mc_dataset_rows(parse(f, "RTE", "train", CB("a", "entailment"))), 1);
}

static void test_file_forms(void **state)
{
    fixture *f = *state;
    mc_dataset *d = parse(f, "BoolQ", "train",
                          "\xEF\xBB\xBF"
                          "{\"label\": true, \"passage\": \"caf\\u00e9 \\ud83d\\ude00\", "
                          "\"question\": \"q\", \"x\": [1, {}]}\r\n"
                          "\r\n  \t\n"
                          "  {\"question\": \"\", \"passage\": \"\", \"label\": false} ");
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_rows(d), 2);
    assert_string_equal(mc_dataset_text(d, 0, 0), "caf\xC3\xA9 \xF0\x9F\x98\x80. q");
    assert_int_equal(mc_dataset_line(d, 0), 1);
    assert_string_equal(mc_dataset_text(d, 1, 0), ". ");
    assert_int_equal(mc_dataset_line(d, 1), 4);
}

static void test_unlabelled(void **state)
{
    fixture *f = *state;
    const char *lines = "{\"question\": \"q\", \"passage\": \"p\"}\n"
                        "{\"question\": \"q\", \"passage\": \"p\", \"label\": null}\n"
                        "{\"question\": \"q\", \"passage\": \"p\", \"label\": -1}\n" BOOLQ("true");
    mc_dataset *d = parse(f, "BoolQ", "test", lines);
    expect_ok(f->ctx);
    for (int i = 0; i < 3; i++) assert_int_equal(mc_dataset_label(d, i), MC_NO_LABEL);
    assert_int_equal(mc_dataset_label(d, 3), 1);
    assert_null(parse(f, "BoolQ", "test", BOOLQ("2")));
    expect_error(f->ctx, MC_ERR_FORMAT, "rows.jsonl:1: key \"label\": expected true or false");
    assert_null(parse(f, "BoolQ", "val", lines));
    expect_error(f->ctx, MC_ERR_FORMAT,
                 "rows.jsonl:1: key \"label\" is missing, expected true or false (task BoolQ)");
}

typedef struct bad_rows {
    const char *task, *lines, *message;
} bad_rows;

static const bad_rows bad[] = {
    {"BoolQ", BOOLQ("true") "\n{\"question\": \"q\"", "rows.jsonl:3: malformed JSON"},
    {"BoolQ", BOOLQ("true") BOOLQ("true") "nonsense", "rows.jsonl:3: malformed JSON"},
    {"BoolQ", "{} {}", "rows.jsonl:1: malformed JSON"},
    {"BoolQ", "[1]", "rows.jsonl:1: expected a JSON object, found a list"},
    {"BoolQ", "7", "rows.jsonl:1: expected a JSON object, found 7"},
    {"BoolQ", BOOLQ("true") "{\"label\": true, \"question\": \"q\"}",
     "rows.jsonl:2: key \"passage\" is missing, expected a string"},
    {"BoolQ", "{\"label\": true, \"passage\": 3}",
     "rows.jsonl:1: key \"passage\": expected a string, found 3"},
    {"BoolQ", "{\"label\": true, \"passage\": null}",
     "rows.jsonl:1: key \"passage\": expected a string, found null"},
    {"BoolQ", "{\"label\": true, \"passage\": {}}",
     "rows.jsonl:1: key \"passage\": expected a string, found an object"},
    {"BoolQ", "{\"label\": true, \"passage\": \"a\", \"passage\": \"b\"}",
     "rows.jsonl:1: key \"passage\" appears twice"},
    {"BoolQ", BOOLQ("true") BOOLQ("2"),
     "rows.jsonl:2: key \"label\": expected true or false (task BoolQ), found 2"},
    {"BoolQ", BOOLQ("\"true\""), "expected true or false (task BoolQ), found \"true\""},
    {"BoolQ", BOOLQ("-1"), "found -1"},
    {"BoolQ", BOOLQ("0.5"), "found 0.5"},
    {"BoolQ", BOOLQ("[]"), "found a list"},
    {"BoolQ", BOOLQ("true, \"label\": false"), "key \"label\" appears twice"},
    {"CB", CB("h", "maybe"),
     "rows.jsonl:1: key \"label\": expected \"contradiction\", \"entailment\" or \"neutral\" (task "
     "CB), found \"maybe\""},
    {"CB", "{\"premise\": \"p\", \"hypothesis\": \"h\", \"label\": 1}", "(task CB), found 1"},
    {"RTE", CB("h", "neutral"),
     "expected \"not_entailment\" or \"entailment\" (task RTE), found \"neutral\""},
    {"RTE", CB("h", "Entailment"), "found \"Entailment\""},
    {"COPA", COPA("0") COPA("2"),
     "rows.jsonl:2: key \"label\": expected a whole number from 0 to 1 (task COPA), found 2"},
    {"COPA", COPA("true"), "(task COPA), found true"},
    {"WSC", "{\"text\": \"t\", \"label\": true}",
     "rows.jsonl:1: key \"target\" is missing, expected an object"},
    {"WSC", "{\"text\": \"t\", \"label\": true, \"target\": \"t\"}",
     "rows.jsonl:1: key \"target\": expected an object, found \"t\""},
    {"WSC", "{\"text\": \"t\", \"label\": true, \"target\": {\"span2_text\": 1}}",
     "rows.jsonl:1: key \"target.span2_text\": expected a string, found 1"},
    {"WSC", "{\"text\": \"t\", \"label\": true, \"target\": {\"span2_text\": \"a\"}}",
     "rows.jsonl:1: key \"target.span1_text\" is missing, expected a string"},
    {"BoolQ", "{\"answer\": 1.5, \"passage\": \"a\", \"question\": \"b\"}",
     "rows.jsonl:1: key \"answer\": expected true or false (task BoolQ), found 1.5"},
    {"BoolQ", "{\"answer\": true, \"answer\": true}", "rows.jsonl:1: key \"answer\" appears twice"},
    {"BoolQ", "", "rows.jsonl: no rows"},
    {"BoolQ", "\n \r\n", "rows.jsonl: no rows"},
    {"BoolQ", "\xEF\xBB\xBF", "rows.jsonl: no rows"},
    {"BoolQ", "{\"label\": true, \"pass\\u0000age\": \"a\"}",
     "rows.jsonl:1: malformed JSON: a NUL"},
    {"BoolQ", "\n{\"label\": true, \"passage\": \"\xFF\"}",
     "rows.jsonl:2: malformed JSON: not UTF-8"},
    {"BoolQ", "{\"label\": true, \"passage\": \"\xED\xA0\x80\"}", "not UTF-8"},
    {"BoolQ", "{\"label\": true, \"passage\": \"a\tb\"}", "a control character"},
    {"BoolQ", "{\"label\": true, \"passage\": \"\\ud800\"}", "rows.jsonl:1: malformed JSON"},
};

static void test_bad_rows(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(parse(f, bad[i].task, "train", bad[i].lines));
        expect_error(f->ctx, MC_ERR_FORMAT, bad[i].message);
    }
}

/* BoolQ as its authors publish it is what SuperGLUE makes of it. */
static void test_published_boolq(void **state)
{
    fixture *f = *state;
    static const char published[] =
        "{\"question\": \"is it\", \"title\": \"Sky\", \"answer\": true, \"passage\": \"the "
        "sky\"}\n"
        "{\"question\": \"is it\", \"answer\": false, \"passage\": \"the sky\"}\n";
    mc_dataset *d = mc_dataset_from_memory(f->ctx, "BoolQ", "dev.jsonl", published,
                                           sizeof published - 1, "val", f->tok, NULL);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_label(d, 0), 1);
    assert_int_equal(mc_dataset_label(d, 1), 0);
    assert_string_equal(mc_dataset_text(d, 0, 0), "Sky -- the sky. is it");
    assert_string_equal(mc_dataset_text(d, 1, 0), "the sky. is it");
}

static void test_nul_bytes(void **state)
{
    fixture *f = *state;
    static const char *const parts[] = {
        "{\"label\": true, \"passage\": \"a", "b\"}", BOOLQ("true"), "", BOOLQ("true") "\n", "\n"};
    for (int i = 0; i < 6; i += 2) {
        char data[256];
        size_t before = strlen(parts[i]), after = strlen(parts[i + 1]);
        memcpy(data, parts[i], before);
        data[before] = '\0';
        memcpy(data + before + 1, parts[i + 1], after);
        assert_null(mc_dataset_from_memory(f->ctx, "BoolQ", "rows.jsonl", data, before + 1 + after,
                                           "train", f->tok, NULL));
        expect_error(f->ctx, MC_ERR_FORMAT, "malformed JSON: a NUL byte");
    }
}

static void test_bad_calls(void **state)
{
    fixture *f = *state;
    const char *row = BOOLQ("true");
    assert_null(parse(f, "BoolX", "train", row));
    expect_error(f->ctx, MC_ERR_ARGUMENT,
                 "unknown task \"BoolX\": expected one of BoolQ, CB, COPA, RTE, WiC, WSC");
    assert_null(parse(f, NULL, "train", row));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "unknown task \"(none)\"");
    assert_null(
        mc_dataset_from_memory(f->ctx, "BoolQ", "x", row, strlen(row), "train", NULL, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "needs a tokenizer");
    assert_null(parse(f, "BoolQ", NULL, row));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "needs a split");
    static const int lengths[] = {-1, 1, 2};
    for (int i = 0; i < 3; i++) {
        mc_dataset_options options = {.max_length = lengths[i]};
        const char *line = CB("h", "entailment");
        assert_null(mc_dataset_from_memory(f->ctx, "RTE", "x", line, strlen(line), "train", f->tok,
                                           &options));
        expect_error(f->ctx, MC_ERR_ARGUMENT, "too few tokens for the special ones of task RTE");
    }
    mc_fail(f->ctx, MC_ERR_STATE, "before");
    assert_null(parse(f, "BoolQ", "train", row));
    assert_null(mc_dataset_open(f->ctx, "BoolX", "nowhere", "train", NULL, NULL));
    expect_error(f->ctx, MC_ERR_STATE, "before");
    assert_null(mc_dataset_open(NULL, "BoolQ", "nowhere", "train", f->tok, NULL));
}

/* A line of 10 MB, as a text and as spaces. */
static void test_long_line(void **state)
{
    fixture *f = *state;
    enum { SIZE = 10 << 20 };
    char *line = malloc(SIZE + 128);
    assert_non_null(line);
    int start = sprintf(line, "{\"label\": true, \"question\": \"q\", \"passage\": \"");
    memset(line + start, 'a', SIZE);
    memcpy(line + start + SIZE, "\"}\n", 4);
    mc_dataset *d = parse(f, "BoolQ", "train", line);
    expect_ok(f->ctx);
    assert_int_equal(strlen(mc_dataset_text(d, 0, 0)), SIZE + 3);
    memset(line, ' ', SIZE);
    memcpy(line + SIZE, "{}", 3);
    assert_null(parse(f, "BoolQ", "train", line));
    expect_error(f->ctx, MC_ERR_FORMAT, "rows.jsonl:1: key \"label\" is missing");
    free(line);
}

static void put(fixture *f, const char *path, const char *text)
{
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", temp_path(&f->folder, path));
    *strrchr(folder, '/') = '\0';
    mc_error err = {0};
    assert_int_equal(mc_make_folders(&err, folder), MC_OK);
    write_text(temp_path(&f->folder, path), text);
}

/* Opens task BoolQ of a folder; the file that is found must be `expected`. */
static void expect_file(fixture *f, const char *folder, const char *split, const char *expected)
{
    mc_dataset *d =
        mc_dataset_open(f->ctx, "BoolQ", temp_path(&f->folder, folder), split, f->tok, NULL);
    expect_ok(f->ctx);
    assert_string_equal(mc_dataset_path(d), temp_path(&f->folder, expected));
    mc_dataset_free(d);
}

static void test_layouts(void **state)
{
    fixture *f = *state;
    put(f, "plain/train.jsonl", BOOLQ("true"));
    put(f, "plain/dev.jsonl", BOOLQ("true"));
    put(f, "plain/train32.jsonl", BOOLQ("true"));
    put(f, "parent/boolQ/train.jsonl", BOOLQ("true"));
    put(f, "parent/boolQ/val.jsonl", BOOLQ("true"));
    put(f, "both/BoolQ/train.jsonl", BOOLQ("true"));
    put(f, "both/boolq/train.jsonl", BOOLQ("true"));
    put(f, "base/down_data/superglue/BoolQ/train.jsonl", BOOLQ("true"));
    put(f, "base/down_data/superglue/BoolQ/validation.jsonl", BOOLQ("true"));
    put(f, "three/val.jsonl", BOOLQ("true"));
    put(f, "three/dev.jsonl", BOOLQ("true"));
    expect_file(f, "plain", "train", "plain/train.jsonl");
    expect_file(f, "plain/", "train", "plain/train.jsonl");
    expect_file(f, "plain", "val", "plain/dev.jsonl");
    expect_file(f, "plain", "dev", "plain/dev.jsonl");
    expect_file(f, "plain", "validation", "plain/dev.jsonl");
    expect_file(f, "plain", "train32", "plain/train32.jsonl");
    expect_file(f, "parent", "train", "parent/boolQ/train.jsonl");
    expect_file(f, "parent", "dev", "parent/boolQ/val.jsonl");
    expect_file(f, "both", "train", "both/BoolQ/train.jsonl");
    expect_file(f, "base", "train", "base/down_data/superglue/BoolQ/train.jsonl");
    expect_file(f, "base", "val", "base/down_data/superglue/BoolQ/validation.jsonl");
    expect_file(f, "three", "dev", "three/dev.jsonl");
    expect_file(f, "three", "val", "three/val.jsonl");
}

/* Opening must fail with NOT_FOUND and a message that holds both parts. */
static void expect_missing(fixture *f, const char *folder, const char *split, const char *part,
                           const char *other)
{
    assert_null(
        mc_dataset_open(f->ctx, "BoolQ", temp_path(&f->folder, folder), split, f->tok, NULL));
    if (!strstr(mc_error_message(f->ctx), other))
        print_error("expected \"%s\", got \"%s\"\n", other, mc_error_message(f->ctx));
    assert_non_null(strstr(mc_error_message(f->ctx), other));
    expect_error(f->ctx, MC_ERR_NOT_FOUND, part);
}

static void test_missing_files(void **state)
{
    fixture *f = *state;
    put(f, "data/train.jsonl", BOOLQ("true"));
    put(f, "data/test.jsonl", BOOLQ("true"));
    put(f, "parent/boolq/val.jsonl", BOOLQ("true"));
    expect_missing(f, "data", "trian", "no such split (task BoolQ, split \"trian\")",
                   "data holds test.jsonl, train.jsonl");
    expect_missing(f, "data", "val", "data/val.jsonl, ", "data/BoolQ/validation.jsonl");
    expect_missing(f, "data", "val", "data/dev.jsonl", "data/down_data/superglue/BoolQ/val.jsonl");
    expect_missing(f, "parent", "train", "parent/train.jsonl, ", "parent/boolq holds val.jsonl");
    expect_missing(f, "dataa", "train", "the data folder doesn't exist", "dataa/train.jsonl");
    expect_missing(f, "data/train.jsonl", "train", "the data path is a file, not a folder", "data");
    static const char *const splits[] = {"", "../train", ".", "a/b", NULL};
    for (int i = 0; i < 5; i++) {
        assert_null(mc_dataset_open(f->ctx, "BoolQ", temp_path(&f->folder, "data"), splits[i],
                                    f->tok, NULL));
        expect_error(f->ctx, MC_ERR_ARGUMENT, "is no name of a split");
    }
    assert_null(mc_dataset_open(f->ctx, "BoolQ", NULL, "train", f->tok, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "BoolQ: no data folder given");
    assert_null(
        mc_dataset_open(f->ctx, "BoolQ", temp_path(&f->folder, "data"), "train", NULL, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "needs a tokenizer");
}

static void test_file_errors(void **state)
{
    fixture *f = *state;
    put(f, "data/train.jsonl", "");
    put(f, "data/val.jsonl", BOOLQ("true") BOOLQ("7"));
    assert_null(
        mc_dataset_open(f->ctx, "BoolQ", temp_path(&f->folder, "data"), "train", f->tok, NULL));
    expect_error(f->ctx, MC_ERR_FORMAT, "data/train.jsonl: no rows");
    assert_null(
        mc_dataset_open(f->ctx, "BoolQ", temp_path(&f->folder, "data"), "dev", f->tok, NULL));
    expect_error(f->ctx, MC_ERR_FORMAT, "data/val.jsonl:2: key \"label\"");
    char deep[5000];
    memset(deep, 'a', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    assert_null(mc_dataset_open(f->ctx, "BoolQ", deep, "train", f->tok, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "path too long");
}

typedef struct real_file {
    const char *task, *folder, *split;
    int64_t rows;
    int count[3]; /* of each label */
} real_file;

/* Counted with another JSON reader. */
static const real_file real_files[] = {
    {"BoolQ", "boolq", "train", 4251, {1545, 2706}},
    {"BoolQ", "boolq", "val", 3270, {1237, 2033}},
    {"CB", "superglue", "train", 346, {119, 115, 112}},
    {"CB", "superglue", "val", 56, {28, 23, 5}},
    {"CB", "superglue/CB", "test", 250, {0}},
    {"COPA", "superglue", "dev", 100, {55, 45}},
    {"RTE", "superglue", "train", 2490, {1241, 1249}},
    {"RTE", "superglue", "val", 277, {131, 146}},
    {"RTE", "superglue", "test", 3000, {0}},
    {"WSC", "superglue", "train", 554, {295, 259}},
    {"WSC", "superglue", "val", 104, {66, 38}},
    {"WiC", "superglue", "val", 638, {319, 319}},
    {"WiC", "superglue", "unlabeled", 5428, {0}},
};

static void test_real_files(void **state)
{
    fixture *f = *state;
    const char *shared = shared_folder();
    if (!shared) skip();
    for (size_t i = 0; i < sizeof real_files / sizeof *real_files; i++) {
        const real_file *r = &real_files[i];
        char folder[1024];
        snprintf(folder, sizeof folder, "%s/data/%s", shared, r->folder);
        mc_dataset *d = mc_dataset_open(f->ctx, r->task, folder, r->split, f->tok, NULL);
        expect_ok(f->ctx);
        assert_int_equal(mc_dataset_rows(d), r->rows);
        int count[3] = {0};
        for (int64_t row = 0; row < r->rows; row++)
            if (mc_dataset_label(d, row) >= 0) count[mc_dataset_label(d, row)]++;
        for (int k = 0; k < 3 && r->count[0]; k++) assert_int_equal(count[k], r->count[k]);
        mc_dataset_free(d);
    }
}

#ifdef MC_FAULT_INJECTION
/* Fails every allocation of opening in turn; each must end in a clean error. */
static void test_faults(void **state)
{
    fixture *f = *state;
    put(f, "data/train.jsonl", CB("a", "entailment") CB("b", "neutral") CB("c", "neutral"));
    for (int missing = 0; missing < 2; missing++) {
        for (long nth = 1, failed = 1; failed; nth++) {
            mc_fault_fail_at(nth, false);
            mc_dataset *d = mc_dataset_open(f->ctx, "CB", temp_path(&f->folder, "data"),
                                            missing ? "dev" : "train", f->tok, NULL);
            failed = mc_fault_count() >= nth;
            mc_fault_fail_at(0, false);
            assert_true((d != NULL) != mc_failed(f->ctx));
            /* a missing file may be found missing without that memory: a shorter list is enough */
            if (failed && !missing) expect_error(f->ctx, MC_ERR_NOMEM, "memory");
            mc_clear_error(f->ctx);
            mc_dataset_free(d);
        }
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_templates, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_accessors, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_balance, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_forms, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_unlabelled, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_published_boolq, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nul_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_calls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_layouts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_missing_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_errors, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_real_files, set_up, tear_down),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
