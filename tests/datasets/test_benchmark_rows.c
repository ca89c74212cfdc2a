/* Benchmarks' files as flat rows: all keys of small files, and what is wrong with others. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include "datasets/tasks/rows_internal.h"

typedef struct rows {
    char text[4096]; /* "question {JSON}" a row, closed with a line end */
} rows;

static bool add(void *user, mc_jsonl *row, int64_t question)
{
    rows *r = user;
    size_t used = strlen(r->text);
    char *json = cJSON_PrintUnformatted(row->row);
    snprintf(r->text + used, sizeof r->text - used, "%lld:%lld %s\n", (long long)row->line,
             (long long)question, json);
    cJSON_free(json);
    return true;
}

/* What comes out of a file: its rows, or the error. */
static rows read_rows(mc_context *ctx, mc_row_form form, const char *data, bool train,
                      bool unlabelled)
{
    rows r = {0};
    mc_row_sink sink = {.add = add, .user = &r, .train = train, .unlabelled = unlabelled};
    if (!mc_rows_read(ctx, form, "F", data, strlen(data), &sink))
        snprintf(r.text, sizeof r.text, "%s", mc_error_message(ctx));
    mc_clear_error(ctx);
    return r;
}

static int set_up(void **state)
{
    *state = mc_init_distributed(NULL);
    return *state && !mc_failed(*state) ? 0 : -1;
}

static int tear_down(void **state)
{
    mc_context_free(*state);
    return 0;
}

#define GIVES(form, data, ...) \
    assert_string_equal(read_rows(ctx, (form), (data), __VA_ARGS__).text, expected)

static const char multirc[] =
    "{\"idx\":0,\"passage\":{\"text\":\"P\",\"questions\":["
    "{\"question\":\"Q?\",\"answers\":[{\"text\":\"a\",\"label\":0},{\"text\":\"b\",\"label\":1}]},"
    "{\"question\":\"R?\",\"answers\":[{\"text\":\"c\",\"label\":1}]}]}}\n"
    "{\"passage\":{\"text\":\"O\",\"questions\":[{\"question\":\"S\",\"answers\":["
    "{\"text\":\"d\",\"label\":0}]}]}}\n";

static void test_multirc(void **state)
{
    mc_context *ctx = *state;
    const char *expected =
        "1:0 {\"passage\":\"P\",\"question\":\"Q?\",\"answer\":\"a\",\"label\":0}\n"
        "1:0 {\"passage\":\"P\",\"question\":\"Q?\",\"answer\":\"b\",\"label\":1}\n"
        "1:1 {\"passage\":\"P\",\"question\":\"R?\",\"answer\":\"c\",\"label\":1}\n"
        "2:2 {\"passage\":\"O\",\"question\":\"S\",\"answer\":\"d\",\"label\":0}\n";
    GIVES(MC_ROWS_MULTIRC, multirc, true, false);
    const char bare[] = "{\"passage\":{\"text\":\"P\",\"questions\":[{\"question\":\"Q\","
                        "\"answers\":[{\"text\":\"a\"}]}]}}";
    expected = "1:0 {\"passage\":\"P\",\"question\":\"Q\",\"answer\":\"a\"}\n";
    GIVES(MC_ROWS_MULTIRC, bare, false, true);
    expected = "F:1: key \"passage.questions[0].answers[0].label\" is missing, expected a whole "
               "number from 0 to 1";
    GIVES(MC_ROWS_MULTIRC, bare, false, false);
    expected = "F:2: key \"passage.questions[1].question\": expected a string, found 5";
    GIVES(MC_ROWS_MULTIRC,
          "\n{\"passage\":{\"text\":\"P\",\"questions\":[{\"question\":\"Q\",\"answers\":[]},"
          "{\"question\":5}]}}",
          false, false);
    expected = "F:1: key \"passage\" is missing, expected an object";
    GIVES(MC_ROWS_MULTIRC, "{}", false, false);
    expected = "F:1: key \"passage.text\" appears twice";
    GIVES(MC_ROWS_MULTIRC, "{\"passage\":{\"text\":\"P\",\"text\":\"P\"}}", false, false);
    expected = "F:1: key \"passage.questions[0]\": expected an object, found 1";
    GIVES(MC_ROWS_MULTIRC, "{\"passage\":{\"text\":\"P\",\"questions\":[1]}}", false, false);
}

/* Characters, not bytes, count in the marks of entities: é is one. */
static const char record[] =
    "{\"passage\":{\"text\":\"Zo\\u00e9 saw Ann.\\n@highlight\\nAnn left\",\"entities\":["
    "{\"start\":0,\"end\":2},{\"start\":8,\"end\":10},{\"start\":24,\"end\":26}]},\"qas\":["
    "{\"query\":\"@placeholder went\",\"answers\":[{\"start\":8,\"end\":10,\"text\":\"Ann\"},"
    "{\"start\":24,\"end\":26,\"text\":\"Ann\"}],\"idx\":0},"
    "{\"query\":\"@placeholder saw\",\"answers\":[{\"text\":\"Zo\\u00e9\"}]}]}\n";

#define RECORD_ROW(n, query, entity, label, answer)                                         \
    "1:" #n " {\"text\":\"Zo\u00e9 saw Ann.\\n- Ann left\",\"query\":\"@placeholder " query \
    "\",\"entities\":\"Zo\u00e9, Ann\",\"entity\":\"" entity "\",\"label\":" #label         \
    ",\"references\":[\"" answer "\"]}\n"

static void test_record(void **state)
{
    mc_context *ctx = *state;
    const char *expected = RECORD_ROW(0, "went", "Zo\u00e9", 0, "Ann")
        RECORD_ROW(0, "went", "Ann", 1, "Ann") RECORD_ROW(1, "saw", "Zo\u00e9", 1, "Zo\u00e9")
            RECORD_ROW(1, "saw", "Ann", 0, "Zo\u00e9");
    GIVES(MC_ROWS_RECORD, record, false, false);
    expected =
        RECORD_ROW(0, "went", "Ann", 1, "Ann") RECORD_ROW(1, "saw", "Zo\u00e9", 1, "Zo\u00e9");
    GIVES(MC_ROWS_RECORD, record, true, false);
    expected = "F:1: key \"passage.entities[0]\": expected the first and last character of a part "
               "of the text, found an object";
    GIVES(MC_ROWS_RECORD,
          "{\"passage\":{\"text\":\"ab\",\"entities\":[{\"start\":1,\"end\":2}]},\"qas\":[]}",
          false, false);
    GIVES(MC_ROWS_RECORD,
          "{\"passage\":{\"text\":\"ab\",\"entities\":[{\"start\":1,\"end\":0}]},\"qas\":[]}",
          false, false);
    expected = "F:1: key \"passage.entities[0].start\": expected a whole number from 0 to "
               "2147483647, found -1";
    GIVES(MC_ROWS_RECORD,
          "{\"passage\":{\"text\":\"ab\",\"entities\":[{\"start\":-1,\"end\":0}]},\"qas\":[]}",
          false, false);
    const char bare[] = "{\"passage\":{\"text\":\"ab\",\"entities\":[{\"start\":1,\"end\":1}]},"
                        "\"qas\":[{\"query\":\"Q\"}]}";
    expected = "F:1: key \"qas[0].answers\" is missing, expected a list";
    GIVES(MC_ROWS_RECORD, bare, false, false);
    expected = "1:0 {\"text\":\"ab\",\"query\":\"Q\",\"entities\":\"b\",\"entity\":\"b\"}\n";
    GIVES(MC_ROWS_RECORD, bare, false, true);
}

static void test_squad(void **state)
{
    mc_context *ctx = *state;
    const char *expected =
        "0:0 {\"answer\":\"x\",\"references\":[\"x\",\"y\"],\"context\":\"C\",\"question\":\"Q\","
        "\"id\":\"1\"}\n"
        "0:1 {\"answer\":\"z\",\"references\":[\"z\"],\"context\":\"D\",\"question\":\"R\","
        "\"id\":\"2\"}\n";
    GIVES(MC_ROWS_SQUAD,
          "{\"version\":\"1.1\",\n \"data\":[{\"title\":\"T\",\"paragraphs\":[{\"context\":\"C\","
          "\"qas\":[{\"id\":\"1\",\"question\":\"Q\",\"answers\":[{\"text\":\"x\","
          "\"answer_start\":0},{\"text\":\"y\"}]}]},\n{\"context\":\"D\",\"qas\":[{\"id\":\"2\","
          "\"question\":\"R\",\"answers\":[{\"text\":\"z\"}]}]}]}]}",
          true, false);
    expected = "F: key \"data[0].paragraphs[0].qas[0].answers\": expected at least one answer "
               "(SQuAD v1.1), found a list";
    GIVES(MC_ROWS_SQUAD,
          "{\"data\":[{\"paragraphs\":[{\"context\":\"C\",\"qas\":[{\"id\":\"1\","
          "\"question\":\"Q\",\"answers\":[]}]}]}]}",
          true, false);
    expected = "F: key \"data[0].paragraphs[0].qas[0].answers[1].text\" is missing, expected a "
               "string";
    GIVES(MC_ROWS_SQUAD,
          "{\"data\":[{\"paragraphs\":[{\"context\":\"C\",\"qas\":[{\"id\":\"1\","
          "\"question\":\"Q\",\"answers\":[{\"text\":\"x\"},{}]}]}]}]}",
          true, false);
    expected = "F: expected a JSON object, found a list";
    GIVES(MC_ROWS_SQUAD, "[]", true, false);
}

static const char hellaswag[] =
    "{\"ind\":1,\"ctx_a\":\"A.\",\"ctx_b\":\"b\",\"ctx\":\"A. b\",\"endings\":[\"p\",\"q\"],"
    "\"label\":1}\n"
    "{\"ctx\":\"C\",\"endings\":[\"r\",\"s\"],\"label\":\"0\"}\n";

static void test_hellaswag(void **state)
{
    mc_context *ctx = *state;
    const char *expected = "1:0 {\"ctx\":\"A. b\",\"ending\":\"p\",\"label\":0}\n"
                           "1:0 {\"ctx\":\"A. b\",\"ending\":\"q\",\"label\":1}\n"
                           "2:1 {\"ctx\":\"C\",\"ending\":\"r\",\"label\":1}\n"
                           "2:1 {\"ctx\":\"C\",\"ending\":\"s\",\"label\":0}\n";
    GIVES(MC_ROWS_HELLASWAG, hellaswag, false, false);
    expected = "1:0 {\"ctx\":\"A. b\",\"ending\":\"q\",\"label\":1}\n"
               "2:1 {\"ctx\":\"C\",\"ending\":\"r\",\"label\":1}\n";
    GIVES(MC_ROWS_HELLASWAG, hellaswag, true, false);
    expected = "1:0 {\"ctx\":\"C\",\"ending\":\"r\"}\n1:0 {\"ctx\":\"C\",\"ending\":\"s\"}\n";
    GIVES(MC_ROWS_HELLASWAG, "{\"ctx\":\"C\",\"endings\":[\"r\",\"s\"],\"label\":\"\"}", false,
          true);
    expected = "F:1: key \"label\": expected a whole number from 0 to 1, found \"2\"";
    GIVES(MC_ROWS_HELLASWAG, "{\"ctx\":\"C\",\"endings\":[\"r\",\"s\"],\"label\":\"2\"}", false,
          false);
    expected = "F:1: key \"endings[1]\": expected a string, found null";
    GIVES(MC_ROWS_HELLASWAG, "{\"ctx\":\"C\",\"endings\":[\"r\",null],\"label\":1}", false, false);
    expected = "F:1: key \"endings\": expected at least two endings, found a list";
    GIVES(MC_ROWS_HELLASWAG, "{\"ctx\":\"C\",\"endings\":[\"r\"],\"label\":0}", false, false);
}

static void test_lcqmc(void **state)
{
    mc_context *ctx = *state;
    const char *expected = "2:0 {\"text_a\":\"\u4f60\u597d\",\"text_b\":\"\u55e8\",\"label\":1}\n"
                           "3:1 {\"text_a\":\"a \\\"b\\\"\",\"text_b\":\"c\",\"label\":0}\n";
    GIVES(MC_ROWS_LCQMC, "text_a\ttext_b\tlabel\n\u4f60\u597d\t\u55e8\t1\na \"b\"\tc\t0\n", false,
          false);
    expected = "2:0 {\"text_a\":\"a\",\"text_b\":\"b\",\"label\":1}\n";
    GIVES(MC_ROWS_LCQMC, "label\tfirst\tsecond\r\n1\ta\tb\r\n", false, false);
    GIVES(MC_ROWS_LCQMC, "x\ty\tz\na\tb\t1\n", false, false);
    expected = "2:0 {\"text_a\":\"a\",\"text_b\":\"b\"}\n";
    GIVES(MC_ROWS_LCQMC, "text_a\ttext_b\na\tb\n", false, true);
    expected = "F:1: 2 columns, expected three: two texts and a label";
    GIVES(MC_ROWS_LCQMC, "text_a\ttext_b\na\tb\n", false, false);
    expected = "2:0 {\"text_a\":\"a\",\"text_b\":\"b\",\"label\":\"yes\"}\n";
    GIVES(MC_ROWS_LCQMC, "text_a\ttext_b\tlabel\na\tb\tyes\n", false, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_multirc), cmocka_unit_test(test_record),
        cmocka_unit_test(test_squad),   cmocka_unit_test(test_hellaswag),
        cmocka_unit_test(test_lcqmc),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
