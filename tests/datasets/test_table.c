/* Tables: rows of CSV, TSV and JSON Lines, plain and compressed, and the errors of bad ones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#ifdef MC_HAVE_ZLIB
#include <zlib.h>
#endif
#include "datasets/table/table_internal.h"
#include "tests/datasets/fixture.h"

static mc_table *read_text(fixture *f, const char *name, const char *text)
{
    return mc_table_from_memory(f->ctx, name, text, strlen(text), NULL);
}

/* All rows as "field|field/line;". */
static const char *all_rows(mc_table *t)
{
    static char text[4096];
    size_t used = 0;
    text[0] = '\0';
    while (mc_table_next(t)) {
        for (int i = 0; i < mc_table_columns(t); i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? "|" : "",
                                     mc_table_text(t, i, NULL));
        used += (size_t)snprintf(text + used, sizeof text - used, "/%d;", (int)mc_table_line(t));
    }
    return text;
}

static const struct {
    const char *name, *text, *rows;
} good[] = {
    {"a.csv", "a,b\n1,2\n3,4\n", "1|2/2;3|4/3;"},
    {"a.csv", "a,b\r\n1,2\r\n3,4", "1|2/2;3|4/3;"},
    {"a.csv",
     "\xEF\xBB\xBF"
     "a,b\n1,2\n",
     "1|2/2;"},
    {"a.csv", "a,b\n\n1,2\n\r\n\n3,4\n\n", "1|2/3;3|4/6;"},
    {"a.csv", "a,b\n\"x, y\",\"say \"\"hi\"\"\"\n", "x, y|say \"hi\"/2;"},
    {"a.csv", "a,b\n\"two\nlines\r\n\",2\n3,4\n", "two\nlines\r\n|2/2;3|4/5;"},
    {"a.csv", "a,b\n\"\",\n\"\"\"\",\"\"\"\"\"\"\n", "|/2;\"|\"\"/3;"},
    {"a.csv", "a\n\"\"\nx\n", "/2;x/3;"},
    {"a.csv", "a,b\n1,2\r", "1|2/2;"},
    {"a.csv", "a,b\n1,\"2\"", "1|2/2;"},
    {"A.CSV", "\"a\",\"b\"\n \xC3\xA4 ,\xE6\x98\xAF\n", " \xC3\xA4 |\xE6\x98\xAF/2;"},
    {"a.csv", "a,b\n", ""},
    {"a.csv", "a,b", ""},
    {"a.csv.gz", ",b\n1,2\n", "1|2/2;"}, /* in memory .gz is a name like any other */
    {"a.tsv", "a\tb\n\"1\t2,\"\r\n\t\n", "\"1|2,\"/2;|/3;"},
    {"a.tab", "a\n1\n\n2", "1/2;2/4;"},
    {"a.jsonl", "{\"a\": \"x\", \"b\": 1}\n\n{\"b\": 0.1, \"a\": true}\n", "x|1/1;true|0.1/3;"},
    {"a.json", "\xEF\xBB\xBF{\"a\": -1e300, \"b\": 16777217}", "-1e+300|16777217/1;"},
    {"a.csv", "a;b\n1,5;\"x;y\"\n", "1,5|x;y/2;"},
    {"a.csv", "\xEF\xBB\xBF\"a\";\"b, c\"\r\n1;2\r\n", "1|2/2;"},
    {"a.csv", "a, b;c\n1;2\n", "1|2/2;"}, /* with commas the rows are of other lengths */
    {"a.csv", "a,b;c\n1,2\n", "1|2/2;"},
    {"a.csv", "sep=;\r\na\r\n\"1;2\"\r\n", "1;2/3;"},
    {"a.csv", "a\tb\n\"1\t2\"\t3\n", "1\t2|3/2;"},
    {"a.csv", "a|b\n1|2\n", "1|2/2;"},
    {"a.csv", "a\nx;y\n", "x;y/2;"},
    {"a.tsv", "\"a\"\t\"b\"\n\"x\"\t1\n", "x|1/2;"},
    {"a.tsv", "a\tb\n\"say \"\"hi\"\"\"\t1\n", "say \"hi\"|1/2;"},
    {"a.tsv", "a\tb\n\"two\nlines\"\t1\n\"x\ty\"\t2\n", "two\nlines|1/2;x\ty|2/4;"},
    {"a.tsv", "a\tb\n\"x\"\t1\n", "\"x\"|1/2;"}, /* nothing shows that they are not text */
    {"a.tsv", "a\tb\n\"x\"\"y\tz\"\n\"\t1\n", "\"x\"\"y|z\"/2;\"|1/3;"}, /* no sound quotes */
    {"a.json",
     "[\n  {\n    \"a\": \"x\",\n    \"b\": 1\n  },\n  {\"b\": [2], \"a\": \"]\\\"}\"}\n]\n", NULL},
    {"a.json", " \n[{\"a\": \"]\\\"}\"},{\"a\": 2}\n,\n\n{\"a\":\ntrue}]", "]\"}/2;2/2;true/5;"},
    {"a.jsonl", "\xEF\xBB\xBF[{\"a\": {\"b\": [{}]}, \"c\": 1}]", NULL},
    {"a.ndjson", "{\"a\": \"\\u00e4\\n\", \"b\": \"\", \"c\": []}\n", NULL},
};

static void test_rows(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        mc_table *t = read_text(f, good[i].name, good[i].text);
        expect_ok(f->ctx);
        if (good[i].rows) assert_string_equal(all_rows(t), good[i].rows);
        if (good[i].rows) expect_ok(f->ctx);
        mc_table_free(t);
    }
}

/* What is wrong with a file is said before what its name lacks. */
static void test_names_without_a_form(void **state)
{
    fixture *f = *state;
    char expected[600];
    const char *none = temp_path(&f->folder, "none");
    snprintf(expected, sizeof expected, "%s: cannot open: No such file or directory", none);
    mc_table_open(f->ctx, none, NULL);
    expect_error(f->ctx, MC_ERR_NOT_FOUND, expected);

    mc_table_open(f->ctx, "", NULL);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "no file given: expected a name that ends in .csv");

    mc_table_open(f->ctx, f->folder.path, NULL);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "is a folder: expected a file whose name ends in .csv");
}

static const struct {
    const char *name, *text, *error;
} bad[] = {
    {"a.csv", "", "a.csv: empty: expected a row with the names of the columns"},
    {"a.csv", "\n\n", "a.csv: empty: expected a row with the names of the columns"},
    {"a.jsonl", "\n", "a.jsonl: empty: expected one JSON object a line, or a list of objects"},
    {"a.txt", "a", "a.txt: unknown format: expected a name that ends in .csv, .tsv"},
    {"a.csv", "a,b,a\n", "a.csv:1:5: column \"a\" is named twice"},
    {"a.csv", "a,b\n1,2\n3,\"x\n4,5\n", "a.csv:3:3: this quote is never closed"},
    {"a.csv", "a,b\n\"1\n2\",\"x\n4,5\n", "a.csv:3:4: this quote is never closed"},
    {"a.csv", "a,\"b\n", "a.csv:1:3: this quote is never closed"},
    {"a.csv", "a,b\n1\n", "a.csv:2:2: the row ends after 1 field, expected 2"},
    {"a.csv", "a,b,c\n\"\n1\",2\n", "a.csv:3:5: the row ends after 2 fields, expected 3"},
    {"a.csv", "a,b\n1,2,3,4\n", "a.csv:2:5: a row of 4 fields, expected 2"},
    {"a.csv", "a,b\n1,x\"y\n", "a.csv:2:4: a quote in a field without quotes"},
    {"a.csv", "a,b\n1, \"y\"\n", "a.csv:2:4: a quote in a field without quotes"},
    {"a.csv", "a,b\n1,x\ry\n", "a.csv:2:4: a carriage return in a field without quotes"},
    {"a.csv", "a,b\n\"1\"2,3\n", "a.csv:2:4: expected a comma or the line's end after"},
    {"a.csv", "a,b\n\xC3\xA4\xC3\xA4,\xFF\n", "a.csv:2:4: byte 0xFF is no UTF-8"},
    {"a.csv", "a,b\n\"\xC3\xA4\n\xC3\xA4\",\xC3\n", "a.csv:3:4: byte 0xC3 is no UTF-8"},
    {"a.tsv", "a\tb\n1\t2\t3\n", "a.tsv:2:5: a row of 3 fields, expected 2"},
    {"a.tsv", "a\tb\n1", "a.tsv:2:2: the row ends after 1 field, expected 2"},
    {"a.jsonl", "{\"a\": 1}\n{\"b\": 1}\n", "a.jsonl:2: key \"a\" is missing, expected text"},
    {"a.jsonl", "{\"a\": 1}\n{\"a\": null}\n",
     "a.jsonl:2: key \"a\": expected text or a number, found null"},
    {"a.jsonl", "{\"a\": 1}\n{\"a\": [1]}\n",
     "a.jsonl:2: key \"a\": expected text or a number, found a list"},
    {"a.jsonl", "{\"a\": 1}\n{\"a\": 1, \"a\": 2}\n", "a.jsonl:2: key \"a\" appears twice"},
    {"a.jsonl", "{\"a\": 1}\n{\"a\": }\n", "a.jsonl:2: malformed JSON"},
    {"a.csv", "a;b\n\"1\"2;3\n", "a.csv:2:4: expected the separator or the line's end after"},
    {"a.tsv", "a\tb\n\"x\ty\"\t\"z\n",
     "a.tsv:2:7: a row of 3 fields, expected 2 (quotes are text in"},
    {"a.json", "[]", "a.json: empty: expected one JSON object a line, or a list of objects"},
    {"a.json", "[{\"a\": 1}\n\n{\"a\": 2}]", "a.json:3: expected a comma or ]"},
    {"a.json", "[{\"a\": 1},\n]", "a.json:2: malformed JSON at \"]\""},
    {"a.json", "[{\"a\": 1}\n", "a.json:2: malformed JSON: the list of objects has no end"},
    {"a.json", "[{\"a\": 1},\n{\"a\": 2\n", "a.json:3: malformed JSON: it ends too early"},
    {"a.json", "[{\"a\": 1}]\n{}", "a.json:2: text after the end of the list of objects"},
    {"a.json", "[{\"a\": 1},\n\n7]", "a.json:3: expected a JSON object, found 7"},
    {"a.json", "[{\"a\": 1},\n{\"a\":\n\noops}]", "a.json:4: malformed JSON at \"oops}\""},
    {"a.json", "[{\"a\": 1},\n\n{\"b\": 1}]", "a.json:3: key \"a\" is missing"},
    {"a.json", "{\n  \"a\": 1\n}\n", "a.json:1: malformed JSON: an object over several lines"},
    {"a.csv", "PAR1\x15", "a.csv: Parquet, which is not read here"},
    {"a.csv", "PK\3\4....", "a.csv: a spreadsheet, which is not read here"},
    {"a.csv", "\x1F\x8B\x08", "a.csv: gzip data: expected a name that ends in .gz"},
    {"a.jsonl", "[1]\n", "a.jsonl:1: expected a JSON object, found 1"},
};

static void test_bad_rows(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mc_table *t = read_text(f, bad[i].name, bad[i].text);
        if (t) all_rows(t);
        mc_status status = i == 3                                     ? MC_ERR_ARGUMENT
                           : strstr(bad[i].error, "is not read here") ? MC_ERR_UNSUPPORTED
                                                                      : MC_ERR_FORMAT;
        expect_error(f->ctx, status, bad[i].error);
        mc_table_free(t);
    }
    mc_table *t = mc_table_from_memory(f->ctx, "a.csv", "a\nx\0y\n", 6, NULL);
    all_rows(t);
    expect_error(f->ctx, MC_ERR_FORMAT, "a.csv:2:2: a NUL character");
    mc_table_free(t);
}

/* The text as UTF-16, the high byte at `high` of each two. */
static size_t to_utf16(const char *text, int high, char *out)
{
    static const char marks[2][2] = {{'\xFE', '\xFF'}, {'\xFF', '\xFE'}};
    size_t size = 2;
    memcpy(out, marks[high], 2);
    for (const char *c = text; *c; c++, size += 2) {
        bool ascii = (unsigned char)*c < 0x80; /* others: U+4E2D, and a pair for U+1F600 */
        uint16_t units[2] = {(uint16_t)*c}, n = 1;
        if (!ascii && *c == '\xE4') units[0] = 0x4E2D;
        if (!ascii && *c == '\xF0') units[0] = 0xD83D, units[1] = 0xDE00, n = 2;
        for (int i = 0; i < n; i++) {
            out[size + (size_t)(2 * i + high)] = (char)(units[i] >> 8);
            out[size + (size_t)(2 * i + 1 - high)] = (char)units[i];
        }
        size += 2 * (size_t)(n - 1);
    }
    return size;
}

static void test_utf16(void **state)
{
    fixture *f = *state;
    char bytes[256];
    for (int high = 0; high < 2; high++) {
        size_t size = to_utf16("a\tb\r\n\xE4\t\xF0!\r\n", high, bytes);
        mc_table *t = mc_table_from_memory(f->ctx, "a.tsv", bytes, size, NULL);
        assert_string_equal(all_rows(t), "\xE4\xB8\xAD|\xF0\x9F\x98\x80!/2;");
        expect_ok(f->ctx);
        mc_table_free(t);
        size = to_utf16("[{\"a\": \"\xF0\"}]", high, bytes);
        t = mc_table_from_memory(f->ctx, "a.json", bytes, size, NULL);
        assert_string_equal(all_rows(t), "\xF0\x9F\x98\x80/1;");
        mc_table_free(t);
        size = to_utf16("a\nx\n", high, bytes);
        t = mc_table_from_memory(f->ctx, "a.csv", bytes, size - 1, NULL);
        all_rows(t);
        expect_error(f->ctx, MC_ERR_FORMAT, "a.csv:2:2: half of a character of UTF-16");
        mc_table_free(t);
    }
}

/* Several files, of several forms and orders of columns, are one table. */
static void test_several(void **state)
{
    fixture *f = *state;
    char pattern[1024];
    write_text(temp_path(&f->folder, "part-1.csv"), "a,b\n1,2\n3,4");
    write_text(temp_path(&f->folder, "part-2.csv"), "b;a\n6;5\n");
    write_text(temp_path(&f->folder, "part-3.json"), "[\n{\"b\": 8, \"c\": 0, \"a\": 7}]");
    write_text(temp_path(&f->folder, "part-4.tsv"), "a\tb\n9\t10\n");
    snprintf(pattern, sizeof pattern, "%s", temp_path(&f->folder, "part-*"));
    mc_table *t = mc_table_open(f->ctx, pattern, NULL);
    assert_string_equal(all_rows(t), "1|2/2;3|4/3;5|6/2;7|8/2;9|10/2;");
    expect_ok(f->ctx);
    assert_int_equal(mc_table_row(t), 4);
    assert_non_null(strstr(mc_table_path(t), "part-4.tsv"));
    mc_table_free(t);
    write_text(temp_path(&f->folder, "part-5.csv"), "a,c\n1,2\n");
    assert_null(mc_table_open(f->ctx, pattern, NULL));
    expect_error(f->ctx, MC_ERR_FORMAT, "part-5.csv: no column \"b\", which ");
    write_text(temp_path(&f->folder, "part-5.csv"), "a,b,c\n1,2,3\n");
    assert_null(mc_table_open(f->ctx, pattern, NULL));
    expect_error(f->ctx, MC_ERR_FORMAT, "part-5.csv: column \"c\", which ");
    write_text(temp_path(&f->folder, "part-5.csv"), "b,a\n1,2\n3\n");
    t = mc_table_open(f->ctx, pattern, NULL);
    all_rows(t);
    expect_error(f->ctx, MC_ERR_FORMAT, "part-5.csv:3:2: the row ends after 1 field");
    mc_table_free(t);
    char first[1024], none[1024];
    snprintf(first, sizeof first, "%s", temp_path(&f->folder, "part-1.csv"));
    snprintf(none, sizeof none, "%s", temp_path(&f->folder, "none.csv"));
    assert_null(mc_table_open_list(f->ctx, (const char *[]){first, none}, 2, NULL));
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "none.csv: cannot open");
    snprintf(none, sizeof none, "%s", temp_path(&f->folder, "*.parquet"));
    assert_null(mc_table_open(f->ctx, none, NULL));
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "*.parquet: no file matches");
    assert_null(mc_table_open(f->ctx, "rows.parquet", NULL));
    expect_error(f->ctx, MC_ERR_UNSUPPORTED, "pandas.read_parquet('rows.parquet').to_json(");
}

static void test_columns(void **state)
{
    fixture *f = *state;
    mc_table *t = read_text(f, "a.csv", "text,,label\nx,1,2\n,,\n");
    assert_int_equal(mc_table_columns(t), 3);
    assert_string_equal(mc_table_column_name(t, 2), "label");
    assert_string_equal(mc_table_column_name(t, 1), "");
    assert_null(mc_table_column_name(t, 3));
    assert_int_equal(mc_table_column(t, "label"), 2);
    assert_int_equal(mc_table_column(t, "labels"), -1);
    expect_error(f->ctx, MC_ERR_FORMAT,
                 "a.csv: no column \"labels\": expected one of \"text\", \"label\"");
    assert_int_equal(mc_table_column(t, ""), -1);
    mc_clear_error(f->ctx);
    assert_null(mc_table_text(t, 0, NULL)); /* no row yet */
    assert_true(mc_table_next(t) && mc_table_has(t, 2));
    assert_int_equal(mc_table_row(t), 0);
    mc_table_fail(t, 2, "expected a number, found \"%s\"", "2");
    expect_error(f->ctx, MC_ERR_FORMAT, "a.csv:2:5: expected a number, found \"2\"");
    assert_null(mc_table_text(t, 3, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "no column number 3: it has 3");
    assert_true(mc_table_next(t) && !mc_table_has(t, 2));
    assert_int_equal(mc_table_row(t), 1);
    assert_false(mc_table_next(t));
    mc_table_free(t);
}

static void test_paths(void **state)
{
    fixture *f = *state;
    mc_table *t = read_text(f, "a.jsonl",
                            "{\"a\": {\"b\": \"x\"}, \"a.c\": 1}\n{\"a\": {\"b\": 2}, \"a.c\": 3}\n"
                            "{\"a\": 1, \"a.c\": null}\n");
    int ab = mc_table_column(t, "a.b"), ac = mc_table_column(t, "a.c");
    assert_int_equal(mc_table_column(t, "a.d"), -1);
    expect_error(f->ctx, MC_ERR_FORMAT, "no column \"a.d\": expected one of \"a\", \"a.c\"");
    assert_true(mc_table_next(t));
    assert_string_equal(mc_table_text(t, ab, NULL), "x");
    assert_true(mc_table_next(t));
    assert_string_equal(mc_table_text(t, ab, NULL), "2");
    assert_string_equal(mc_table_text(t, ac, NULL), "3");
    assert_true(mc_table_next(t) && !mc_table_has(t, ab) && !mc_table_has(t, ac));
    mc_table_fail(t, ab, "bad");
    expect_error(f->ctx, MC_ERR_FORMAT, "a.jsonl:3: key \"a.b\": bad");
    mc_table_free(t);
}

/* Strings hold NUL characters, and whole numbers keep all their digits. */
static void test_json_values(void **state)
{
    fixture *f = *state;
    size_t length;
    mc_table *t = read_text(f, "a.jsonl",
                            "{\"t\": \"a\\u0000b\", \"id\": 9007199254740993, \"x\": 1.0}\n"
                            "{\"t\": \"\\u0000\", \"id\": -9223372036854775809, \"x\": 1e400}\n");
    assert_true(mc_table_next(t));
    assert_memory_equal(mc_table_text(t, 0, &length), "a\0b", 4);
    assert_int_equal(length, 3);
    assert_string_equal(mc_table_text(t, 1, NULL), "9007199254740993");
    assert_string_equal(mc_table_text(t, 2, NULL), "1");
    assert_true(mc_table_next(t));
    assert_non_null(mc_table_text(t, 0, &length));
    assert_int_equal(length, 1);
    assert_string_equal(mc_table_text(t, 1, NULL), "-9223372036854775809");
    assert_false(mc_table_next(t));
    expect_ok(f->ctx);
    mc_table_free(t);
}

/* What a copy as CSV holds: lists and objects as they stand in the file, nothing for what is not
 * there. */
static void test_cells(void **state)
{
    fixture *f = *state;
    size_t length = 9;
    mc_table *t =
        read_text(f, "a.json",
                  "[ {\"a\\\":{\": \"x\", \"b\": {\"k\" : [\"}]\\\"\", 1.50]} , \"c\":null}\n"
                  ", {\"c\": [],\"b\":2.50 , \"d\": 1}]");
    assert_true(mc_table_next(t));
    assert_string_equal(mc_table_cell(t, 0, NULL), "x");
    assert_string_equal(mc_table_cell(t, 1, &length), "{\"k\" : [\"}]\\\"\", 1.50]}");
    assert_int_equal(length, 22);
    assert_string_equal(mc_table_cell(t, 2, &length), "");
    assert_int_equal(length, 0);
    assert_null(mc_table_other_key(t));
    assert_true(mc_table_next(t));
    assert_string_equal(mc_table_cell(t, 0, NULL), "");
    assert_string_equal(mc_table_cell(t, 1, NULL), "2.5");
    assert_string_equal(mc_table_cell(t, 2, NULL), "[]");
    assert_string_equal(mc_table_other_key(t), "d");
    expect_ok(f->ctx);
    mc_table_free(t);
    t = read_text(f, "b.csv", "a,b\n\"x \"\"y\"\"\",\n");
    assert_true(mc_table_next(t));
    assert_string_equal(mc_table_cell(t, 0, NULL), "x \"y\"");
    assert_string_equal(mc_table_cell(t, 1, NULL), "");
    assert_null(mc_table_other_key(t));
    assert_null(mc_table_cell(t, 2, NULL));
    assert_int_equal(mc_error_status(f->ctx), MC_ERR_ARGUMENT);
}

/* Rows that are longer than the window, and begin and end anywhere in it. */
static void write_long_rows(FILE *file, int rows)
{
    fprintf(file, "number,text\n");
    for (int i = 0; i < rows; i++) {
        fprintf(file, "%d,\"", i);
        for (int k = 0; k < i * 997 % 300007; k++) fputs(k % 1000 ? "y" : "\"\"\n", file);
        fprintf(file, "\"\n");
    }
}

static void check_long_rows(fixture *f, const char *path, int rows)
{
    mc_table *t = mc_table_open(f->ctx, path, NULL);
    int number = mc_table_column(t, "number"), text = mc_table_column(t, "text");
    for (int i = 0; i < rows; i++) {
        size_t length, expected = (size_t)(i * 997 % 300007);
        assert_true(mc_table_next(t));
        const char *found = mc_table_text(t, text, &length);
        assert_int_equal(atoi(mc_table_text(t, number, NULL)), i);
        assert_int_equal(length, expected + (expected + 999) / 1000); /* each 1000th is two bytes */
        assert_true(!expected || found[0] == '"');
        assert_ptr_equal(found, mc_table_text(t, text, NULL));
    }
    assert_false(mc_table_next(t));
    expect_ok(f->ctx);
    mc_table_free(t);
}

static void test_long_rows(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "long.csv");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    write_long_rows(file, 400);
    assert_int_equal(fclose(file), 0);
    check_long_rows(f, path, 400);
}

static void test_row_limit(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "open.csv");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fprintf(file, "a,b\n1,2\n3,\"");
    for (int i = 0; i < 1 << 20; i++) fputs("x\n", file);
    assert_int_equal(fclose(file), 0);
    mc_table *t = mc_table_open(f->ctx, path, NULL);
    t->row_max = 1 << 19;
    assert_true(mc_table_next(t));
    assert_false(mc_table_next(t));
    expect_error(f->ctx, MC_ERR_FORMAT,
                 "open.csv:3:3: a quote opens here, and the row then has over 524288 bytes");
    mc_table_free(t);
}

/* Writes "c0,c1,..." (of JSON `{"c0":0,"c1":0,...}`) of a number of columns; mc_free it. */
static char *many_columns(int columns, const char *separator, bool json)
{
    char *text = mc_malloc((size_t)columns * 12 + 3), *at = text;
    assert_non_null(text);
    for (int i = 0; i < columns; i++)
        at += sprintf(at, json ? "%s\"c%d\":0" : "%sc%d", i ? separator : json ? "{" : "", i);
    strcpy(at, json ? "}" : "");
    return text;
}

static void test_most_columns(void **state)
{
    enum { MOST = 65536 };
    fixture *f = *state;
    static const char *const names[] = {"a.csv", "a.tsv", "a.jsonl"};
    for (int i = 0; i < 3; i++) {
        const char *separator = i == 1 ? "\t" : ",";
        char *text = many_columns(MOST, separator, i == 2);
        char *more = many_columns(MOST + 1, separator, i == 2);
        mc_table *t = read_text(f, names[i], text);
        expect_ok(f->ctx);
        assert_int_equal(mc_table_columns(t), MOST);
        assert_int_equal(mc_table_column(t, "c65535"), MOST - 1);
        assert_int_equal(mc_table_next(t), i == 2);
        assert_null(mc_table_other_key(t));
        mc_table_free(t);
        assert_null(read_text(f, names[i], more));
        expect_error(f->ctx, MC_ERR_FORMAT, "a row of over 65536 columns");
        mc_free(more);
        mc_free(text);
    }
}

/* A list is a row's as well: 2 bytes of it become a value of many. */
static void test_most_values(void **state)
{
    enum { MOST = 1 << 20 };
    fixture *f = *state;
    char *text = mc_malloc(2 * MOST + 16);
    assert_non_null(text);
    for (int more = 0; more < 2; more++) {
        int values = MOST - 2 + more; /* the object and the list are two */
        strcpy(text, "{\"a\":[");
        for (int i = 0; i < values; i++) memcpy(text + 6 + 2 * i, "0,", 2);
        strcpy(text + 5 + 2 * values, "]}");
        mc_table *t = read_text(f, "a.jsonl", text);
        if (more)
            expect_error(f->ctx, MC_ERR_FORMAT,
                         "a.jsonl:1: malformed JSON: over 1048576 values in a row");
        expect_ok(f->ctx);
        assert_int_equal(t != NULL, !more);
        mc_table_free(t);
    }
    mc_free(text);
}

static void test_files(void **state)
{
    fixture *f = *state;
    assert_null(mc_table_open(f->ctx, temp_path(&f->folder, "none.csv"), NULL));
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "none.csv: cannot open: No such file");
    const char *folder = temp_path(&f->folder, "folder.csv");
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_null(mc_table_open(f->ctx, folder, NULL));
    expect_error(f->ctx, MC_ERR_IO, "folder.csv: is a folder, expected a file");
    const char *plain = temp_path(&f->folder, "rows.dat");
    write_text(plain, "a\n1\n");
    mc_table *t = mc_table_open(f->ctx, plain, &(mc_table_options){.format = MC_TABLE_CSV});
    assert_string_equal(all_rows(t), "1/2;");
    mc_table_free(t);
    assert_null(mc_table_open(f->ctx, NULL, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "a table needs a name");
}

#ifdef MC_HAVE_ZLIB
/* Appends a member. */
static void append_gzip(const char *path, const char *text)
{
    gzFile file = gzopen(path, "ab");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(file), Z_OK);
}

static void append_bytes(const char *path, const char *bytes, size_t size)
{
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void expect_gzip_error(fixture *f, const char *path, const char *error)
{
    mc_table *t = mc_table_open(f->ctx, path, NULL);
    while (mc_table_next(t)) {
    }
    expect_error(f->ctx, MC_ERR_FORMAT, error);
    mc_table_free(t);
}

static void test_gzip(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "rows.csv.gz");
    append_gzip(path, "a,b\n1,\"x");
    append_gzip(path, "y\"\n");
    append_bytes(path, "\0\0\0", 3);
    mc_table *t = mc_table_open(f->ctx, path, NULL);
    assert_string_equal(all_rows(t), "1|xy/2;");
    expect_ok(f->ctx);
    mc_table_free(t);

    struct stat info;
    char message[128];
    append_gzip(path, "3,4\n");
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 9), 0);
    snprintf(message, sizeof message,
             "rows.csv.gz:4: cut off at byte %lld: its gzip data has no end",
             (long long)info.st_size - 9);
    expect_gzip_error(f, path, message);
    assert_int_equal(truncate(path, info.st_size - 8), 0);
    append_bytes(path, "\1\2\3\4\4\0\0\0", 8); /* a checksum that is not theirs */
    snprintf(message, sizeof message,
             "rows.csv.gz:4: not valid gzip data at byte %lld: incorrect data check",
             (long long)info.st_size - 4);
    expect_gzip_error(f, path, message);
    const char *plain = temp_path(&f->folder, "plain.csv.gz");
    write_text(plain, "a,b\n");
    expect_gzip_error(f, plain,
                      "plain.csv.gz:1: not valid gzip data at byte 2: incorrect header check");
    write_text(plain, "");
    expect_gzip_error(f, plain, "plain.csv.gz: empty, expected gzip data");
}

static void test_long_gzip(void **state)
{
    fixture *f = *state;
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    write_long_rows(file, 150);
    fclose(file);
    const char *path = temp_path(&f->folder, "long.csv.gz");
    append_gzip(path, text);
    free(text);
    check_long_rows(f, path, 150);
}
#else
static void test_gzip(void **state)
{
    fixture *f = *state;
    write_text(temp_path(&f->folder, "rows.csv.gz"), "");
    assert_null(mc_table_open(f->ctx, temp_path(&f->folder, "rows.csv.gz"), NULL));
    expect_error(f->ctx, MC_ERR_UNSUPPORTED, "built without zlib, which .gz files need");
}

static void test_long_gzip(void **state) { (void)state; }
#endif

#ifdef MC_FAULT_INJECTION
static bool read_whole(fixture *f, const char *name, const char *text)
{
    mc_table *t = read_text(f, name, text);
    mc_table_column(t, "c.d");
    while (mc_table_next(t)) mc_table_text(t, 0, NULL);
    mc_table_free(t);
    return !mc_failed(f->ctx);
}

static void fail_each(fixture *f, const char *name, const char *text)
{
    bool done = false;
    for (long nth = 1; !done; nth++) {
        mc_fault_fail_at(nth, false);
        done = read_whole(f, name, text);
        mc_fault_fail_at(0, false);
        if (!done) expect_error(f->ctx, MC_ERR_NOMEM, "out of memory");
    }
}

static void test_faults(void **state)
{
    fixture *f = *state;
    cJSON_InitHooks(&(cJSON_Hooks){mc_malloc, mc_free});
    fail_each(f, "a.csv", "c.d,b\n\"x\"\"\",2\n");
    fail_each(f, "a.json", "[{\"n\": 1.5, \"c\": {\"d\": \"x\"}}]\n");
    fail_each(f, "a.jsonl", "{\"n\": 1.5, \"c\": {\"d\": \"x\"}}\n");
    cJSON_InitHooks(NULL);
}
#else
static void test_faults(void **state) { (void)state; }
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_names_without_a_form, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_utf16, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_several, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_columns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_paths, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_json_values, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cells, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_row_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_most_columns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_most_values, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_gzip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_gzip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
