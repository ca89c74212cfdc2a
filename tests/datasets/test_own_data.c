/* Data of one's own: rows of files, arrays and functions; the labels found in them; splits; and how
 * each kind of row is packed for each family. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "core/base/memory_internal.h"
#include "core/tensor/tensor_internal.h"
#include "datasets/correlation.h"
#include "datasets/loader.h"
#include "datasets/scorer.h"
#include "datasets/conversation.h"
#include "tests/comma_locale.h"
#include "tests/datasets/fixture.h"
#include "tests/datasets/prompt_tokenizers.h"
#include "datasets/labels.h"

static mc_dataset *read_rows(fixture *f, const char *name, const char *text,
                             const mc_data_columns *columns)
{
    const char *path = temp_path(&f->folder, name);
    write_text(path, text);
    return mc_dataset_from_file(f->ctx, path, columns, f->tok, NULL);
}

/* ---- labels ---------------------------------------------------------------------------------- */

static void expect_labels(const mc_dataset *d, int count, const char *const *names)
{
    assert_int_equal(mc_dataset_labels(d), count);
    for (int k = 0; k < count; k++) assert_string_equal(mc_dataset_label_name(d, k), names[k]);
    assert_null(mc_dataset_label_name(d, count));
}

static void test_classes(void **state)
{
    fixture *f = *state;
    mc_dataset *d = read_rows(f, "a.csv", "id,review,stars\n1,good,yes\n2,bad,no\n3,\"so\nso\",b\n",
                              &(mc_data_columns){.text = "review", .label = "stars"});
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_kind(d), MC_TASK_CLASSIFY);
    expect_labels(d, 3, (const char *[]){"b", "no", "yes"});
    assert_int_equal(mc_dataset_outputs(d), 3);
    assert_int_equal(mc_dataset_label(d, 0), 2);
    assert_int_equal(mc_dataset_label(d, 1), 1);
    assert_int_equal(mc_dataset_label(d, 2), 0);
    assert_int_equal(mc_dataset_line(d, 2), 4);
    assert_string_equal(mc_dataset_text(d, 2, 0), "so\nso");
    assert_null(mc_dataset_task(d));
    mc_dataset *numbers =
        read_rows(f, "b.jsonl",
                  "{\"t\": \"x\", \"l\": 10}\n{\"t\": \"y\", \"l\": 9.5}\n{\"t\": \"z\", \"l\": "
                  "\"-1\"}\n{\"t\": \"z\", \"l\": 10}\n",
                  &(mc_data_columns){.text = "t", .pair = "l", .label = "l"});
    expect_ok(f->ctx);
    expect_labels(numbers, 3, (const char *[]){"-1", "9.5", "10"});
    assert_int_equal(mc_dataset_label(numbers, 0), 2);
    assert_int_equal(mc_dataset_label(numbers, 3), 2);
    assert_string_equal(mc_dataset_pair(numbers, 1, 0), "9.5");
}

/* Labels that are one double but two numbers; texts with a NUL character, which WordPiece drops. */
static void test_exact_json(void **state)
{
    fixture *f = *state;
    mc_dataset *d = read_rows(f, "a.jsonl",
                              "{\"t\": \"a\\u0000 b\", \"l\": 9007199254740993}\n"
                              "{\"t\": \"y\", \"l\": 9007199254740992}\n"
                              "{\"t\": \"z\", \"l\": -9007199254740993}\n"
                              "{\"t\": \"z\", \"l\": -9007199254740992}\n",
                              &(mc_data_columns){.text = "t", .label = "l"});
    expect_ok(f->ctx);
    expect_labels(d, 4,
                  (const char *[]){"-9007199254740993", "-9007199254740992", "9007199254740992",
                                   "9007199254740993"});
    assert_int_equal(mc_dataset_label(d, 0), 3);
    assert_memory_equal(mc_dataset_text(d, 0, 0), "a\0 b", 5);
    assert_null(read_rows(f, "b.jsonl", "{\"t\": \"x\", \"l\": \"a\\u0000\"}\n",
                          &(mc_data_columns){.text = "t", .label = "l"}));
    expect_error(f->ctx, MC_ERR_FORMAT, "b.jsonl:1: key \"l\": a NUL character");
}

static const struct {
    const char *text;
    mc_data_columns columns;
    mc_status status;
    const char *error;
} bad[] = {
    {"t,l\nx,1\n", {.text = "t", .label = "l"}, MC_ERR_FORMAT, "all rows have the same label"},
    {"t,l\n", {.text = "t", .label = "l"}, MC_ERR_FORMAT, "rows.csv: no rows"},
    {"t,l\nx,1\ny,\n",
     {.text = "t", .label = "l"},
     MC_ERR_FORMAT,
     "rows.csv:3:3: the row has no label"},
    {"t,l\nx,1\n",
     {.text = "text", .label = "l"},
     MC_ERR_FORMAT,
     "rows.csv: no column \"text\": expected one of \"t\", \"l\""},
    {"t,l\nx,1\n", {.label = "l"}, MC_ERR_FORMAT, "no column \"(none)\""},
    {"t,l\nx,1.5\ny,1.5x\n",
     {.text = "t", .label = "l", .kind = MC_TASK_REGRESS},
     MC_ERR_FORMAT,
     "rows.csv:3:3: expected a number, found \"1.5x\""},
    {"t,l\nx,1e999\n",
     {.text = "t", .label = "l", .kind = MC_TASK_REGRESS},
     MC_ERR_FORMAT,
     "rows.csv:2:3: expected a number, found \"1e999\""},
    {"t,l\nx,0x10\n",
     {.text = "t", .label = "l", .kind = MC_TASK_REGRESS},
     MC_ERR_FORMAT,
     "rows.csv:2:3: expected a number, found \"0x10\""},
    {"t,a,b\nx,1,0\ny,0,2\n",
     {.text = "t", .label = "a,b", .kind = MC_TASK_MULTI_LABEL},
     MC_ERR_FORMAT,
     "rows.csv:3:5: expected 1 or 0, found \"2\""},
    {"t,a,ab\nx,1,0\ny,0,1\n",
     {.text = "t", .label = "a,ab,a", .kind = MC_TASK_MULTI_LABEL},
     MC_ERR_FORMAT,
     "rows.csv: column \"a\" is named twice among the labels"},
    {"t,l\nx,a\ny,b\nz,c\n",
     {.text = "t", .label = "l", .label_names = (const char *[]){"a", "b"}, .labels = 2},
     MC_ERR_FORMAT,
     "rows.csv:4:3: label \"c\": expected one of \"a\", \"b\""},
    {"t,l\nx,a\ny,b\n",
     {.text = "t", .label = "l", .label_names = (const char *[]){"b", "a", "c", "a"}, .labels = 4},
     MC_ERR_ARGUMENT,
     "rows.csv: label 3 is named \"a\", expected a name of its own"},
    {"t,l\nx,a\ny,b\n",
     {.text = "t", .label = "l", .label_names = (const char *[]){"b", NULL}, .labels = 2},
     MC_ERR_ARGUMENT,
     "rows.csv: label 1 is named \"(none)\", expected a name of its own"},
    {"t,l\nx,a\n",
     {.text = "t", .target = "l"},
     MC_ERR_UNSUPPORTED,
     "the model's family is an encoder, which generates no text"},
    {"t,l\nx,a\n",
     {.text = "t", .pair = "t", .target = "l"},
     MC_ERR_ARGUMENT,
     "a text is generated from one text, not from a pair"},
    {"t,l\nx,a\n",
     {.text = "t", .label = "l", .kind = MC_TASK_CHOOSE},
     MC_ERR_UNSUPPORTED,
     "with several inputs"},
    {"t,l\nx,a\n",
     {.text = "t", .label = "l", .kind = (mc_task_kind)99},
     MC_ERR_ARGUMENT,
     "columns.kind is no mc_task_kind"},
};

static void test_bad_rows(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(read_rows(f, "rows.csv", bad[i].text, &bad[i].columns));
        expect_error(f->ctx, bad[i].status, bad[i].error);
    }
    assert_null(read_rows(f, "rows.jsonl", "{\"t\": \"x\", \"l\": 1}\n{\"t\": \"y\"}\n",
                          &(mc_data_columns){.text = "t", .label = "l"}));
    expect_error(f->ctx, MC_ERR_FORMAT, "rows.jsonl:2: key \"l\" is missing");
}

static void test_many_labels(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "many.csv");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("t,l\n", file);
    for (int i = 0; i < 1025; i++) fprintf(file, "x,label %d\n", i * 7919 % 1025);
    assert_int_equal(fclose(file), 0);
    mc_data_columns columns = {.text = "t", .label = "l"};
    assert_null(mc_dataset_from_file(f->ctx, path, &columns, f->tok, NULL));
    expect_error(f->ctx, MC_ERR_FORMAT, "many.csv: more than 1024 different labels");
}

static void expect_values(const mc_dataset *d, int64_t row, int count, const float *values)
{
    const float *found = mc_dataset_values(d, row);
    assert_non_null(found);
    for (int i = 0; i < count; i++) assert_true(found[i] == values[i]);
}

/* A program's locale changes nothing. */
static void test_values_in_a_locale(void **state)
{
    fixture *f = *state;
    begin_comma_locale();
    mc_dataset *d =
        read_rows(f, "a.csv", "t,score\nx,1.5\ny,-2\n",
                  &(mc_data_columns){.text = "t", .label = "score", .kind = MC_TASK_REGRESS});
    end_comma_locale();
    expect_ok(f->ctx);
    expect_values(d, 0, 1, (float[]){1.5f});
    expect_values(d, 1, 1, (float[]){-2});
}

static void test_values(void **state)
{
    fixture *f = *state;
    mc_dataset *d =
        read_rows(f, "a.tsv", "t\tscore\nx\t1.5\ny\t-2\n",
                  &(mc_data_columns){.text = "t", .label = "score", .kind = MC_TASK_REGRESS});
    expect_ok(f->ctx);
    expect_values(d, 0, 1, (float[]){1.5});
    expect_values(d, 1, 1, (float[]){-2});
    assert_int_equal(mc_dataset_outputs(d), 1);
    assert_int_equal(mc_dataset_labels(d), 0);
    mc_data_columns several = {.text = "t", .label = "l", .kind = MC_TASK_MULTI_LABEL};
    d = read_rows(f, "b.csv", "t,l\nx,b| a\ny,\nz,c\n", &several);
    expect_ok(f->ctx);
    expect_labels(d, 3, (const char *[]){"a", "b", "c"});
    expect_values(d, 0, 3, (float[]){1, 1, 0});
    expect_values(d, 1, 3, (float[]){0, 0, 0});
    expect_values(d, 2, 3, (float[]){0, 0, 1});
    d = read_rows(f, "b.jsonl", "{\"t\": \"x\", \"l\": [\"b\", 3]}\n{\"t\": \"y\", \"l\": []}\n",
                  &several);
    expect_ok(f->ctx);
    expect_labels(d, 2, (const char *[]){"3", "b"});
    expect_values(d, 0, 2, (float[]){1, 1});
    several.label = "toxic,mean";
    d = read_rows(f, "c.csv", "t,mean,toxic\nx,1,0\ny,true,1\nz,0,false\n", &several);
    expect_ok(f->ctx);
    expect_labels(d, 2, (const char *[]){"toxic", "mean"});
    expect_values(d, 0, 2, (float[]){0, 1});
    expect_values(d, 1, 2, (float[]){1, 1});
    expect_values(d, 2, 2, (float[]){0, 0});
    several.label_names = (const char *[]){"mean", "other", "toxic"};
    several.labels = 3;
    d = read_rows(f, "c.csv", "t,mean,toxic\nx,1,0\ny,0,1\n", &several);
    expect_ok(f->ctx);
    expect_values(d, 1, 3, (float[]){0, 0, 1});
}

/* More classes than mc_accuracy counts: the mean over those that occur. */
static void test_many_classes(void **state)
{
    fixture *f = *state;
    mc_data_row rows[40];
    char label[40][8];
    for (int i = 0; i < 40; i++) {
        snprintf(label[i], sizeof label[i], "%d", i % 20);
        rows[i] = (mc_data_row){.text = "x", .label = label[i]};
    }
    mc_dataset *d = mc_dataset_from_rows(
        f->ctx, "rows", rows, 40, &(mc_data_columns){.kind = MC_TASK_CLASSIFY}, f->tok, NULL);
    expect_ok(f->ctx);
    mc_scorer *scorer = mc_scorer_new(d);
    for (int i = 0; i < 40; i++) /* one of class 0's two rows is called 1 */
        mc_scorer_add_class(scorer, i, i == 20 ? 1 : mc_dataset_label(d, i));
    mc_score score;
    assert_int_equal(mc_scorer_finish(scorer, &score), MC_OK);
    double f1 = (2.0 / 3 + 4.0 / 5 + 18) / 20;
    assert_true(fabs(mc_score_value(&score, "f1") - f1) < 1e-12);
    assert_true(fabs(mc_score_value(&score, "accuracy") - 39.0 / 40) < 1e-12);
}

/* scipy.stats.pearsonr and spearmanr of the same numbers. */
static void test_correlations(void **state)
{
    fixture *f = *state;
    const float pairs[] = {1, 2, 2, 1, 3, 4, 4, 4, 5, 7, 2, 0.5f};
    assert_true(fabs(mc_pearson(pairs, 2, pairs + 1, 2, 6) - 0.8760439994622102) < 1e-12);
    assert_true(fabs(mc_spearman(f->ctx, pairs, 2, pairs + 1, 2, 6) - 0.7941176470588236) < 1e-12);
    assert_true(isnan(mc_pearson(pairs, 2, pairs + 1, 2, 1)));
    assert_true(isnan(mc_pearson(pairs, 0, pairs + 1, 2, 6)));
    assert_true(isnan(mc_spearman(f->ctx, pairs, 0, pairs + 1, 2, 6)));
}

/* ---- other sources --------------------------------------------------------------------------- */

/* What a label means, see datasets/labels.h. */
static void test_labels_by_name(void **state)
{
    (void)state;
    const char *names[] = {"Neg", "pos", "POS", "2"},
               *numbers[] = {"LABEL_0", "LABEL_1", "LABEL_2"};
    const struct {
        const char *label;
        int named, numbered;
    } cases[] = {{"Neg", 0, -1},  {"neg", 0, -1}, {"pos", 1, -1},     {"POS", 2, -1},
                 {"Pos", -1, -1}, {"2", 3, 2},    {"2.0", -1, 2},     {"0", -1, 0},
                 {"3", -1, -1},   {"-0", -1, -1}, {"label_1", -1, 1}, {"1.5", -1, -1},
                 {"", -1, -1},    {"1x", -1, -1}, {"LABEL_2", -1, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mc_label_find(names, 4, cases[i].label), cases[i].named);
        assert_int_equal(mc_label_find(numbers, 3, cases[i].label), cases[i].numbered);
    }
    int place[3];
    const char *whole[] = {"2", "0", "1"}, *twice[] = {"pos", "Neg", "neg"};
    assert_true(mc_labels_fit(numbers, 3, whole, 3, place));
    assert_int_equal(place[0], 2);
    assert_int_equal(place[1], 0);
    assert_false(mc_labels_fit(numbers, 3, whole + 1, 2, place)); /* 0 and 1 of two classes */
    assert_true(mc_labels_fit(names, 4, twice, 2, place));
    assert_false(mc_labels_fit(names, 4, twice, 3, place)); /* two mean one */
    assert_false(mc_labels_fit(names, 1, twice, 2, place));
}

/* The labels of a model that is trained further are those of the rows, if they mean them. */
static void test_proposed_labels(void **state)
{
    fixture *f = *state;
    mc_data_columns columns = {.text = "t", .label = "l", .labels_proposed = true, .labels = 3};
    columns.label_names = (const char *[]){"gamma", "alpha", "beta"};
    const char text[] = "t,l\nx,beta\ny,alpha\nz,gamma\n";
    mc_dataset *d = read_rows(f, "p.csv", text, &columns);
    expect_ok(f->ctx);
    expect_labels(d, 3, columns.label_names);
    for (int i = 0; i < 3; i++) assert_int_equal(mc_dataset_label(d, i), 2 - i);
    d = read_rows(f, "q.csv", "t,l\nx,Beta\ny,gamma\n", &columns); /* a name has no row */
    expect_ok(f->ctx);
    expect_labels(d, 3, columns.label_names);
    d = read_rows(f, "r.csv", "t,l\nx,beta\ny,alpha\nz,delta\n", &columns);
    expect_ok(f->ctx);
    expect_labels(d, 3, (const char *[]){"alpha", "beta", "delta"});
    columns.label_names = (const char *[]){"LABEL_0", "LABEL_1", "LABEL_2"};
    d = read_rows(f, "s.csv", "t,l\nx,2\ny,0\nz,1\n", &columns);
    expect_ok(f->ctx);
    expect_labels(d, 3, columns.label_names);
    assert_int_equal(mc_dataset_label(d, 0), 2);
    columns.kind = MC_TASK_MULTI_LABEL;
    columns.label = "b,c,a";
    columns.label_names = (const char *[]){"a", "b", "c"};
    d = read_rows(f, "m.csv", "t,a,b,c\nx,0,1,0\ny,1,0,1\n", &columns);
    expect_ok(f->ctx);
    expect_labels(d, 3, columns.label_names);
    const float expected[] = {0, 1, 0, 1, 0, 1};
    for (int i = 0; i < 6; i++)
        assert_float_equal(mc_dataset_values(d, i / 3)[i % 3], expected[i], 0);
    columns.labels_proposed = false;
    columns.labels = 2;
    assert_null(read_rows(f, "n.csv", "t,a,b,c\nx,0,1,0\n", &columns));
    expect_error(f->ctx, MC_ERR_FORMAT, "label \"c\" of a column: expected one of \"a\", \"b\"");
}

static void test_array(void **state)
{
    fixture *f = *state;
    const mc_data_row rows[] = {{.text = "x", .pair = "p", .label = "no"},
                                {.text = "y", .pair = "q", .label = "yes"},
                                {.text = "z", .pair = "r", .label = "no"}};
    mc_data_columns columns = {.kind = MC_TASK_CLASSIFY, .pair = "yes"};
    mc_dataset *d = mc_dataset_from_rows(f->ctx, "rows", rows, 3, &columns, f->tok, NULL);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_rows(d), 3);
    assert_string_equal(mc_dataset_pair(d, 1, 0), "q");
    assert_int_equal(mc_dataset_label(d, 1), 1);
    assert_int_equal(mc_dataset_line(d, 2), 3);
    columns.label_names = (const char *[]){"no", "maybe"};
    columns.labels = 2;
    assert_null(mc_dataset_from_rows(f->ctx, "rows", rows, 3, &columns, f->tok, NULL));
    expect_error(f->ctx, MC_ERR_FORMAT, "rows: row 2: label \"yes\": expected one of \"no\"");
    d = mc_dataset_from_rows(f->ctx, "texts", rows, 3, NULL, f->tok, NULL);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_kind(d), MC_TASK_TEXT);
    assert_null(mc_dataset_pair(d, 0, 0));
    assert_null(mc_dataset_from_rows(f->ctx, "texts", (const mc_data_row[]){{.text = "\xFF"}}, 1,
                                     NULL, f->tok, NULL));
    expect_error(f->ctx, MC_ERR_FORMAT, "texts: row 1: not UTF-8 in its text");
    assert_null(
        mc_dataset_from_rows(f->ctx, "texts", (const mc_data_row[]){{0}}, 1, NULL, f->tok, NULL));
    expect_error(f->ctx, MC_ERR_FORMAT, "texts: row 1: has no text");
}

typedef struct counter {
    mc_context *ctx;
    int64_t rows, fail_at;
    char text[32];
} counter;

static bool count_up(void *user, int64_t i, mc_data_row *row)
{
    counter *c = user;
    snprintf(c->text, sizeof c->text, "%d", (int)i);
    row->text = c->text;
    row->value = (double)i / 2;
    if (i == c->fail_at) mc_set_error(c->ctx, MC_ERR_IO, "the source broke off");
    return i < c->rows;
}

static void test_function(void **state)
{
    fixture *f = *state;
    counter c = {.ctx = f->ctx, .rows = 7, .fail_at = -1};
    mc_data_columns columns = {.kind = MC_TASK_REGRESS};
    mc_dataset *d = mc_dataset_from_source(f->ctx, "source", count_up, &c, &columns, f->tok, NULL);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_rows(d), 7);
    expect_values(d, 6, 1, (float[]){3});
    assert_string_equal(mc_dataset_text(d, 6, 0), "6");
    c.fail_at = 3;
    assert_null(mc_dataset_from_source(f->ctx, "source", count_up, &c, &columns, f->tok, NULL));
    expect_error(f->ctx, MC_ERR_IO, "the source broke off");
}

/* ---- splits ---------------------------------------------------------------------------------- */

static mc_dataset *numbered(fixture *f, int rows)
{
    counter c = {.ctx = f->ctx, .rows = rows, .fail_at = -1};
    return mc_dataset_from_source(f->ctx, "source", count_up, &c,
                                  &(mc_data_columns){.kind = MC_TASK_REGRESS}, f->tok, NULL);
}

/* Which rows are split off, as bits. */
static uint64_t split_bits(fixture *f, int rows, double fraction, uint64_t seed)
{
    uint64_t bits = 0, rest = 0;
    mc_dataset *train = numbered(f, rows), *val = mc_dataset_split(train, fraction, seed);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_rows(train) + mc_dataset_rows(val), rows);
    int64_t before = 0;
    for (int64_t i = 0; i < mc_dataset_rows(val); i++) {
        int64_t line = mc_dataset_line(val, i);
        assert_true(line > before); /* the file's order */
        before = line;
        assert_int_equal(atoi(mc_dataset_text(val, i, 0)), line - 1);
        expect_values(val, i, 1, (float[]){(float)(line - 1) / 2});
        bits |= UINT64_C(1) << (line - 1);
    }
    for (int64_t i = 0; i < mc_dataset_rows(train); i++)
        rest |= UINT64_C(1) << (mc_dataset_line(train, i) - 1);
    assert_true((bits & rest) == 0 && (bits | rest) == (UINT64_C(1) << rows) - 1);
    mc_dataset_free(train); /* the other has the texts still */
    assert_string_equal(mc_dataset_text(val, 0, 0), mc_dataset_text(val, 0, 0));
    mc_dataset_free(val);
    return bits;
}

static void test_split(void **state)
{
    fixture *f = *state;
    uint64_t bits = split_bits(f, 60, 0.1, 1);
    assert_int_equal(__builtin_popcountll(bits), 6);
    assert_true(bits == split_bits(f, 60, 0.1, 1));
    assert_true(bits == UINT64_C(0x12300C00)); /* on every machine: computed apart */
    assert_true(bits != split_bits(f, 60, 0.1, 2));
    assert_int_equal(__builtin_popcountll(split_bits(f, 60, 0.001, 1)), 1);
    assert_int_equal(__builtin_popcountll(split_bits(f, 3, 0.99, 1)), 2);
    mc_dataset *d = numbered(f, 4);
    assert_null(mc_dataset_split(d, 1, 0));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "expected a fraction between 0 and 1");
    mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 2});
    assert_null(mc_dataset_split(d, 0.5, 0));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "expected a dataset that no loader has");
    assert_null(mc_dataset_split(numbered(f, 1), 0.5, 0));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "expected at least two rows");
}

/* ---- how rows are put ------------------------------------------------------------------------ */

static mc_tokenizer *open_tokenizer(fixture *f, mc_prompt_style style)
{
    static int number;
    char name[64];
    temp_folder folder;
    snprintf(name, sizeof name, "tok%d", ++number);
    snprintf(folder.path, sizeof folder.path, "%s", temp_path(&f->folder, name));
    assert_int_equal(mkdir(folder.path, 0777), 0);
    write_prompt_tokenizer(&folder, style);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(f->ctx, folder.path);
    expect_ok(f->ctx);
    return tok;
}

/* "1 2 3|4 5": a packed tensor, by sequence; "-" is no target. */
static const char *show(mc_tensor *tensor, const mc_lengths *lengths)
{
    static char texts[8][512];
    static int turn;
    char *text = texts[turn = (turn + 1) % 8];
    size_t used = 0;
    text[0] = '\0';
    if (!tensor) return "none";
    const int32_t *data = mc_tensor_data(tensor);
    for (int s = 0; s < lengths->count; s++)
        for (int i = 0; i < lengths->length[s]; i++) {
            int32_t x = data[lengths->offset[s] + i];
            used += (size_t)snprintf(text + used, 512 - used, x == MC_NO_LABEL ? "%s-" : "%s%d",
                                     i   ? " "
                                     : s ? "|"
                                         : "",
                                     (int)x);
        }
    return text;
}

typedef struct putting {
    mc_prompt_style style;
    int start, max_length, max_target;
    mc_data_row rows[2];
    const char *ids, *marks, *decoder_ids, *targets;
} putting;

static const putting generating[] = {
    /* a decoder: GPT-2's a = 0, b = 1, ..., end of text 5; hand-written as transformers' ids of
     * prompt + completion + eos, labels -100 on the prompt and shifted by one */
    {MC_PROMPT_DECODER,
     0,
     0,
     0,
     {{.text = "ab", .target = " cd"}, {.text = "d", .target = "a"}},
     "0 1 4 2 3|3 0",
     "none",
     "none",
     "- 4 2 3 5|0 5"},
    /* the prompt is cut from the left */
    {MC_PROMPT_DECODER,
     0,
     4,
     0,
     {{.text = "abcd", .target = "ab"}, {.text = "", .target = "ab"}},
     "2 3 0 1|0 1",
     "none",
     "none",
     "- 0 1 5|1 5"},
    /* and the answer at its end, where it leaves nothing of the prompt */
    {MC_PROMPT_DECODER,
     0,
     3,
     0,
     {{.text = "abcd", .target = "abcd"}, {.text = "c", .target = ""}},
     "3 0 1|2",
     "none",
     "none",
     "0 1 2|5"},
    {MC_PROMPT_DECODER,
     0,
     8,
     2,
     {{.text = "a", .target = "bcd"}, {.text = "a", .target = "b"}},
     "0 1|0 1",
     "none",
     "none",
     "1 2|1 5"},
    /* T5: a = 3, b = 4, ..., </s> 1; transformers' labels and shifted decoder_input_ids */
    {MC_PROMPT_T5,
     0,
     0,
     0,
     {{.text = "ab", .target = "cd"}, {.text = "d", .target = ""}},
     "3 4 1|6 1",
     "none",
     "0 5 6|0",
     "5 6 1|1"},
    {MC_PROMPT_T5,
     0,
     3,
     2,
     {{.text = "abcd", .target = "cdab"}, {.text = "a", .target = "b"}},
     "3 4 1|3 1",
     "none",
     "0 5|0 4",
     "5 1|4 1"},
    /* CPM-1: a = 9, ..., <s> 1, <eod> 4; the prompt is context */
    {MC_PROMPT_CPM1,
     0,
     0,
     0,
     {{.text = "a", .target = "c"}, {.text = "d", .target = ""}},
     "1 9 11|1 12",
     "1 1 0|1 1",
     "none",
     "- 11 4|- 4"},
    {MC_PROMPT_CPM1,
     0,
     3,
     0,
     {{.text = "a b", .target = "c"}, {.text = "", .target = "c"}},
     "1 10 11|1 11",
     "1 1 0|1 0",
     "none",
     "- 11 4|11 4"},
    /* CPM-2: a = 9, ..., <s_0> 13, <eod> 7 */
    {MC_PROMPT_CPM2,
     13,
     0,
     0,
     {{.text = "a", .target = "c"}, {.text = "", .target = ""}},
     "9 13|13",
     "none",
     "13 11|13",
     "11 7|7"},
    {MC_PROMPT_CPM2,
     13,
     2,
     1,
     {{.text = "a b", .target = "c"}, {.text = "a", .target = ""}},
     "10 13|9 13",
     "none",
     "13|13",
     "11|7"},
    /* GLM: [CLS] 5, [S] 6, [E] 7, [MASK] 8, which stands at the end where a text has none */
    {MC_PROMPT_GLM,
     0,
     0,
     0,
     {{.text = "a[MASK]b", .target = "cd"}, {.text = "d", .target = ""}},
     "5 1 8 2 6 3 4|5 4 8 6",
     "none",
     "none",
     "- - - - 3 4 7|- - - 7"},
    /* a text loses its beginning, but not its mask */
    {MC_PROMPT_GLM,
     0,
     7,
     0,
     {{.text = "abcd", .target = "ab"}, {.text = "ab[MASK]c", .target = "cdab"}},
     "5 3 4 8 6 1 2|5 2 8 3 6 3 4",
     "none",
     "none",
     "- - - - 1 2 7|- - - - 3 4 1"},
};

/* Prompts of GLM that it cannot be asked with. */
static void test_bad_blanks(void **state)
{
    fixture *f = *state;
    mc_tokenizer *tok = open_tokenizer(f, MC_PROMPT_GLM);
    static const struct {
        const char *text, *word;
        int max_length;
    } blanks[] = {{"a[MASK]b[MASK]", "2 [MASK], expected one at most", 0},
                  {"a[gMASK]", "[gMASK] is not supported: expected [MASK]", 0},
                  {"[MASK]abcdabcd", "[MASK] would be cut off at 6 tokens", 8}};
    for (size_t i = 0; i < sizeof blanks / sizeof *blanks; i++) {
        mc_data_row rows[] = {{.text = "a", .target = "b"},
                              {.text = blanks[i].text, .target = "ab"}};
        mc_dataset_options options = {.max_length = blanks[i].max_length,
                                      .prompt = {MC_PROMPT_GLM}};
        mc_dataset *d = mc_dataset_from_rows(
            f->ctx, "rows", rows, 2, &(mc_data_columns){.kind = MC_TASK_GENERATE}, tok, &options);
        expect_ok(f->ctx);
        mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 2});
        assert_null(mc_dataloader_next(l));
        if (!strstr(mc_error_message(f->ctx), blanks[i].word) ||
            !strstr(mc_error_message(f->ctx), "rows:2: "))
            fail_msg("%s: %s", blanks[i].text, mc_error_message(f->ctx));
        mc_clear_error(f->ctx);
        mc_dataloader_free(l);
        mc_dataset_free(d);
    }
}

static void test_generating(void **state)
{
    fixture *f = *state;
    mc_tokenizer *tok[MC_PROMPT_STYLES];
    for (int i = MC_PROMPT_DECODER; i < MC_PROMPT_STYLES; i++)
        tok[i] = open_tokenizer(f, (mc_prompt_style)i);
    for (size_t i = 0; i < sizeof generating / sizeof *generating; i++) {
        const putting *p = &generating[i];
        mc_dataset_options options = {.max_length = p->max_length,
                                      .max_target_length = p->max_target,
                                      .vocabulary = mc_tokenizer_vocab_size(tok[p->style]),
                                      .prompt = {p->style, p->start}};
        mc_dataset *d = mc_dataset_from_rows(f->ctx, "rows", p->rows, 2,
                                             &(mc_data_columns){.kind = MC_TASK_GENERATE},
                                             tok[p->style], &options);
        expect_ok(f->ctx);
        assert_string_equal(mc_dataset_target(d, 0), p->rows[0].target);
        mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 2});
        mc_batch *b = mc_dataloader_next(l);
        expect_ok(f->ctx);
        const mc_lengths *written = b->decoder_lengths ? b->decoder_lengths : b->lengths;
        assert_string_equal(show(b->ids, b->lengths), p->ids);
        assert_string_equal(show(b->marks, b->lengths), p->marks);
        assert_string_equal(show(b->decoder_ids, b->decoder_lengths), p->decoder_ids);
        assert_string_equal(show(b->targets, written), p->targets);
        /* dealt out to two ranks, targets carry the rows of the one that has more */
        int64_t most = 0, carried[2];
        for (int rank = 0; rank < 2; rank++) {
            const mc_dataloader_options halves = {.batch_size = 1, .world = 2, .rank = rank};
            mc_batch *half = mc_dataloader_next(mc_dataloader_new(d, &halves));
            carried[rank] = half->targets->nominal_rows;
            if (mc_tensor_count(half->targets) > most) most = mc_tensor_count(half->targets);
        }
        assert_true(carried[0] == most && carried[1] == most);
        assert_int_equal(b->targets->nominal_rows, 0); /* of one rank */
        assert_true(!b->labels && !b->values && !b->answer_rows && !b->type_ids);
        mc_dataloader_free(l);
    }
}

/* ---- conversations --------------------------------------------------------------------------- */

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"

static const char chats[] =
    "{\"m\": [" SAYS("system", "Be brief.") ", " SAYS("user", "Hello") ", " SAYS(
        "assistant",
        "Hi") ", " SAYS("user",
                        "Bye") ", " SAYS("assistant",
                                         "Ciao") "]}\n"
                                                 "{\"m\": [{\"role\": \"user\", \"content\": \"2 + "
                                                 "2?\", \"name\": null}, " SAYS(
                                                     "assistant",
                                                     "4") "]}\n"
                                                          "{\"m\": [" SAYS(
                                                              "assistant",
                                                              "Yes?") ", " SAYS("user",
                                                                                "No.") "]}\n";

static mc_dataset *read_chats(fixture *f, mc_tokenizer *tok, const char *text)
{
    const char *path = temp_path(&f->folder, "chats.jsonl");
    write_text(path, text);
    return mc_dataset_from_file(f->ctx, path, &(mc_data_columns){.messages = "m"}, tok,
                                &(mc_dataset_options){.prompt.style = MC_PROMPT_DECODER});
}

static void test_conversations(void **state)
{
    fixture *f = *state;
    static const struct {
        int64_t line;
        const char *prompt, *response;
    } rows[] = {
        {1, "System: Be brief.\nUser: Hello\nAssistant:", " Hi"},
        {1, "System: Be brief.\nUser: Hello\nAssistant: Hi\nUser: Bye\nAssistant:", " Ciao"},
        {2, "User: 2 + 2?\nAssistant:", " 4"},
        {3, "Assistant:", " Yes?"},
    };
    mc_dataset *d = read_chats(f, open_tokenizer(f, MC_PROMPT_DECODER), chats);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_kind(d), MC_TASK_GENERATE);
    assert_int_equal(mc_dataset_rows(d), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(mc_dataset_line(d, i), rows[i].line);
        assert_string_equal(mc_dataset_text(d, i, 0), rows[i].prompt);
        assert_string_equal(mc_dataset_target(d, i), rows[i].response);
    }
}

/* In a chat format: a row for each answer, with the markers in its prompt. */
static void test_answers_in_format(void **state)
{
    fixture *f = *state;
    mc_tokenizer *tok = open_tokenizer(f, MC_PROMPT_DECODER);
    const char *end = mc_chat_format_end(MC_CHAT_ZEPHYR, tok);
    char first[128], second[512];
    snprintf(first, sizeof first, "<|user|>\nHello%s\n<|assistant|>\n", end);
    snprintf(second, sizeof second, "%sHi%s\n<|user|>\nBye%s\n<|assistant|>\n", first, end, end);
    const char *const prompts[] = {first, second};
    const char *path = temp_path(&f->folder, "chats.jsonl");
    const mc_dataset_options options = {.prompt.style = MC_PROMPT_DECODER};
    const mc_data_columns texts = {
        .text = "q", .target = "r", .chat_format = MC_CHAT_ZEPHYR, .answers = true};
    const mc_data_columns columns = {
        .messages = "m", .chat_format = MC_CHAT_ZEPHYR, .answers = true};
    write_text(path,
               "{\"m\": [" SAYS("user", "Hello") ", " SAYS("assistant", "Hi") ", " SAYS(
                   "user", "Bye") ", " SAYS("assistant", "Ciao") ", " SAYS("user", "?") "]}\n");
    mc_dataset *d = mc_dataset_from_file(f->ctx, path, &columns, tok, &options);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_rows(d), 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(mc_dataset_text(d, i, 0), prompts[i]);
        assert_string_equal(mc_dataset_target(d, i), i ? "Ciao" : "Hi");
    }
    write_text(path, "{\"q\": \"Hello\", \"r\": \"Hi\"}\n");
    d = mc_dataset_from_file(f->ctx, path, &texts, tok, &options);
    expect_ok(f->ctx);
    assert_string_equal(mc_dataset_text(d, 0, 0), prompts[0]);
    assert_string_equal(mc_dataset_target(d, 0), "Hi");
    write_text(path, "{\"m\": [" SAYS("assistant", "Hi") "]}\n");
    assert_null(mc_dataset_from_file(f->ctx, path, &columns, tok, &options));
    expect_error(f->ctx, MC_ERR_FORMAT, "a conversation without messages to answer");
}

/* A conversation is held back as a whole, or not at all. */
static void test_conversations_split(void **state)
{
    fixture *f = *state;
    char text[4096] = "";
    for (int i = 0; i < 9; i++)
        strcat(text, "{\"m\": [" SAYS("assistant", "a") ", " SAYS("assistant", "b") ", " SAYS(
                         "assistant", "c") "]}\n");
    mc_tokenizer *tok = open_tokenizer(f, MC_PROMPT_DECODER);
    for (uint64_t seed = 0; seed < 5; seed++) {
        mc_dataset *d = read_chats(f, tok, text), *val = mc_dataset_split(d, 0.3, seed);
        expect_ok(f->ctx);
        assert_int_equal(mc_dataset_rows(val), 9); /* of 3 conversations */
        assert_int_equal(mc_dataset_rows(d), 18);
        for (int64_t i = 0; i < 9; i++)
            assert_int_equal(mc_dataset_line(val, i), mc_dataset_line(val, i / 3 * 3));
    }
    mc_dataset *one =
        read_chats(f, tok, "{\"m\": [" SAYS("assistant", "a") ", " SAYS("assistant", "b") "]}\n");
    assert_null(mc_dataset_split(one, 0.5, 1));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "at least two conversations");
}

static void test_bad_conversations(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"{\"m\": \"hello\"}\n", "chats.jsonl:1: key \"m\": expected a list of messages"},
        {"{\"m\": [3]}\n", "message 0: expected an object, found 3"},
        {"{\"m\": [" SAYS("tool", "x") "]}\n", "message 0: role \"tool\", expected \"system\""},
        {"{\"m\": [{\"role\": \"user\"}]}\n", "message 0: content nothing, expected text"},
        {"{\"m\": [{\"content\": \"x\"}]}\n", "message 0: role nothing, expected"},
        {"{\"m\": [" SAYS("user", "x") ", {\"role\": \"assistant\", \"content\": null}]}\n",
         "message 1: content"},
        {"{\"m\": [{\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": []}]}\n",
         "message 0: key \"tool_calls\" is not understood"},
        {"{\"m\": [" SAYS("user", "x") "]}\n", "no message of the assistant"},
        {"{\"m\": []}\n", "key \"m\": expected a list of messages, found an empty one"},
        {"{\"m\": [" SAYS("assistant", "x") "]}\n{\"n\": 1}\n",
         "chats.jsonl:2: key \"m\": expected a list of messages, found nothing"},
        {"{\"n\": 1}\n", "no column \"m\""},
    };
    mc_tokenizer *tok = open_tokenizer(f, MC_PROMPT_DECODER);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(read_chats(f, tok, cases[i].text));
        expect_error(f->ctx, MC_ERR_FORMAT, cases[i].error);
    }
    mc_data_columns both = {.messages = "m", .target = "t"};
    assert_null(
        mc_dataset_from_file(f->ctx, temp_path(&f->folder, "chats.jsonl"), &both, tok, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "expected no other columns");
    write_text(temp_path(&f->folder, "chats.csv"), "m,t\n[],1\n");
    assert_null(mc_dataset_from_file(f->ctx, temp_path(&f->folder, "chats.csv"),
                                     &(mc_data_columns){.messages = "m"}, tok,
                                     &(mc_dataset_options){.prompt.style = MC_PROMPT_DECODER}));
    expect_error(f->ctx, MC_ERR_UNSUPPORTED, "JSON Lines alone");
}

static void test_values_packed(void **state)
{
    fixture *f = *state;
    mc_dataset *d = numbered(f, 5);
    mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 3});
    mc_batch *b = mc_dataloader_next(l);
    expect_ok(f->ctx);
    assert_true(b->type_ids && !b->labels && !b->targets && !b->decoder_ids && !b->marks);
    assert_true(mc_shape_equal(mc_tensor_shape(b->values), MC_SHAPE(3)));
    assert_memory_equal(mc_tensor_data(b->values), ((float[]){0, 0.5, 1}), 12);
    b = mc_dataloader_next(l);
    assert_true(mc_shape_equal(mc_tensor_shape(b->values), MC_SHAPE(2)));
    assert_memory_equal(mc_tensor_data(b->values), ((float[]){1.5, 2}), 8);
    mc_data_columns several = {.text = "t", .label = "l", .kind = MC_TASK_MULTI_LABEL};
    d = read_rows(f, "b.csv", "t,l\nx,b|a\ny,\nz,c\n", &several);
    l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 4, .sizes = 4});
    b = mc_dataloader_next(l);
    expect_ok(f->ctx);
    assert_true(mc_shape_equal(mc_tensor_shape(b->values), MC_SHAPE(3, 3)));
    assert_memory_equal(mc_tensor_data(b->values), ((float[]){1, 1, 0, 0, 0, 0, 0, 0, 1}), 36);
}

/* ---- ranks and sizes ------------------------------------------------------------------------- */

enum { ROWS = 41 };

static mc_dataset *written_rows(fixture *f, mc_tokenizer *tok)
{
    static char text[ROWS][2][64];
    mc_data_row rows[ROWS];
    for (int i = 0; i < ROWS; i++) {
        memset(text[i], 0, sizeof text[i]);
        memset(text[i][0], 'a' + i % 4, (size_t)(1 + i * 7 % 31));
        memset(text[i][1], 'a' + i % 3, (size_t)(i * 5 % 17));
        rows[i] = (mc_data_row){.text = text[i][0], .target = text[i][1]};
    }
    mc_dataset_options options = {.prompt.style = MC_PROMPT_T5};
    mc_dataset *d = mc_dataset_from_rows(
        f->ctx, "rows", rows, ROWS, &(mc_data_columns){.kind = MC_TASK_GENERATE}, tok, &options);
    expect_ok(f->ctx);
    return d;
}

/* The rows of the first step of an epoch, as bits; each batch's shape is checked. */
static uint64_t step_rows(fixture *f, mc_dataset *d, int world, int sizes, int64_t *tokens)
{
    uint64_t bits = 0;
    int64_t sum = 0;
    for (int rank = 0; rank < world; rank++) {
        mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 8 / world,
                                                                         .shuffle = true,
                                                                         .sizes = sizes,
                                                                         .world = world,
                                                                         .rank = rank});
        mc_batch *b = mc_dataloader_next(l);
        expect_ok(f->ctx);
        for (int i = 0; i < b->rows; i++) bits |= UINT64_C(1) << b->row_index[i];
        sum += b->tokens;
        *tokens = b->all_tokens;
        assert_true(!b->key == !sizes);
        assert_int_equal(b->decoder_lengths->count, b->lengths->count);
        assert_true(
            mc_shape_equal(mc_tensor_shape(b->targets), MC_SHAPE(b->decoder_lengths->capacity)));
        const int32_t *targets = mc_tensor_data(b->targets);
        for (int64_t i = b->decoder_lengths->offset[b->decoder_lengths->count];
             i < b->decoder_lengths->capacity; i++)
            assert_int_equal(targets[i], MC_NO_LABEL);
        mc_dataloader_free(l);
    }
    assert_int_equal(sum, *tokens);
    return bits;
}

static void test_ranks(void **state)
{
    fixture *f = *state;
    mc_dataset *d = written_rows(f, open_tokenizer(f, MC_PROMPT_T5));
    int64_t tokens, others;
    uint64_t bits = step_rows(f, d, 1, 0, &tokens);
    assert_int_equal(__builtin_popcountll(bits), 8);
    assert_true(bits == step_rows(f, d, 2, 0, &others) && tokens == others);
    assert_true(bits == step_rows(f, d, 4, 16, &others) && tokens == others);
}

/* At most 16 shapes of both stacks together, each with its key. */
static void test_sizes(void **state)
{
    fixture *f = *state;
    mc_dataset *d = written_rows(f, open_tokenizer(f, MC_PROMPT_T5));
    mc_dataloader *l = mc_dataloader_new(
        d, &(mc_dataloader_options){.batch_size = 2, .shuffle = true, .sizes = 16});
    uint64_t keys[64];
    int64_t shapes[64][2];
    int count = 0;
    for (int epoch = 0; epoch < 5; epoch++)
        for (mc_batch *b; (b = mc_dataloader_next(l));) {
            int i = 0;
            int64_t reader = b->lengths->capacity, writer = b->decoder_lengths->capacity;
            while (i < count && keys[i] != b->key) i++;
            if (i == count) {
                keys[count] = b->key;
                shapes[count][0] = reader;
                shapes[count++][1] = writer;
            }
            assert_true(shapes[i][0] == reader && shapes[i][1] == writer);
            assert_int_equal(b->lengths->count, 2);
            assert_true(count <= 16);
        }
    expect_ok(f->ctx);
    assert_true(count >= 1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

#ifdef MC_FAULT_INJECTION
static bool read_and_split(fixture *f, const char *path, mc_data_columns *columns)
{
    mc_dataset_options options = {.prompt.style = columns->chat_format ? MC_PROMPT_DECODER
                                                  : columns->messages  ? MC_PROMPT_T5
                                                                       : MC_PROMPT_ENCODER};
    mc_dataset *train = mc_dataset_from_file(f->ctx, path, columns, f->tok, &options);
    mc_dataset *val = mc_dataset_split(train, 0.4, 1);
    mc_dataset_free(train);
    mc_dataset_free(val);
    return !mc_failed(f->ctx);
}

static void fail_each(fixture *f, const char *path, mc_data_columns columns)
{
    bool done = false;
    for (long nth = 1; !done; nth++) {
        mc_fault_fail_at(nth, false);
        done = read_and_split(f, path, &columns);
        mc_fault_fail_at(0, false);
        if (!done) expect_error(f->ctx, MC_ERR_NOMEM, "out of memory");
    }
}

static void test_faults(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "a.csv");
    write_text(path, "t,l,n\nx,b|a,1\ny,\"c\"\"\",2\nz,c,3\n");
    fail_each(f, path, (mc_data_columns){.text = "t", .label = "l"});
    fail_each(f, path, (mc_data_columns){.text = "t", .label = "l", .kind = MC_TASK_MULTI_LABEL});
    fail_each(f, path, (mc_data_columns){.text = "t", .label = "n", .kind = MC_TASK_REGRESS});
    path = temp_path(&f->folder, "chats.jsonl");
    write_text(path, chats);
    fail_each(f, path, (mc_data_columns){.messages = "m"});
    /* in a format: whole, by answers, and texts as what a user says */
    mc_tokenizer *plain = f->tok;
    f->tok = open_tokenizer(f, MC_PROMPT_DECODER);
    mc_data_columns columns = {.messages = "m", .chat_format = MC_CHAT_ZEPHYR};
    write_text(path, "{\"m\": [" SAYS("user", "a") ", " SAYS("assistant", "b") "]}\n{\"m\": [" SAYS(
                         "user", "b") ", " SAYS("assistant", "a") "]}\n");
    fail_each(f, path, columns);
    columns.answers = true;
    fail_each(f, path, columns);
    write_text(path, "{\"q\": \"a\", \"r\": \"b\"}\n{\"q\": \"b\", \"r\": \"c\"}\n");
    columns.messages = NULL;
    columns.text = "q";
    columns.target = "r";
    fail_each(f, path, columns);
    f->tok = plain;
}
#else
static void test_faults(void **state) { (void)state; }
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_classes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_exact_json, set_up, tear_down),
        cmocka_unit_test(test_labels_by_name),
        cmocka_unit_test_setup_teardown(test_proposed_labels, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_labels, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_values, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_values_in_a_locale, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_classes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_correlations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_array, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_function, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_split, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_generating, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_blanks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_conversations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_answers_in_format, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_conversations_split, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_conversations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_values_packed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ranks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sizes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("own data", tests, NULL, NULL);
}
