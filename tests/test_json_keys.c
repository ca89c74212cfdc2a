/* Tables of keys: which values are refused, warned about, or pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include "core/base/json_keys_internal.h"

static char lines[2048];

static void keep_line(void *user, mc_log_level level, const char *line)
{
    (void)user;
    if (level != MC_LOG_WARNING) return;
    strncat(lines, line, sizeof lines - strlen(lines) - 1);
    strncat(lines, "\n", sizeof lines - strlen(lines) - 1);
}

static const mc_key_row rows[] = {
    {"followed", MC_KEY_FOLLOWED},
    {"quiet", MC_KEY_NO_EFFECT},
    {"one", MC_KEY_ONLY, "[true]", "it always is"},
    {"two", MC_KEY_ONLY, "[0, [\"a\"]]"},
    {"not_here", MC_KEY_WARNED, "[{}]", "code is never run"},
    {"*_token", MC_KEY_FOLLOWED},
    {"bad_token", MC_KEY_ONLY},
    {NULL},
};
static const mc_key_table table = {"x.json", rows};

/* Whether the text passes; with the error's or the warnings' text in `lines`. */
static bool check(const char *text)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = keep_line});
    cJSON *json = cJSON_Parse(text);
    assert_non_null(ctx);
    assert_non_null(json);
    lines[0] = '\0';
    bool good = mc_keys_check(ctx, &ctx->error, "folder/x.json", json, &table);
    assert_int_equal(good, !mc_failed(ctx));
    if (!good) {
        assert_int_equal(mc_error_status(ctx), MC_ERR_UNSUPPORTED);
        snprintf(lines, sizeof lines, "%s", mc_error_message(ctx));
    }
    cJSON_Delete(json);
    mc_context_free(ctx);
    return good;
}

static void expect(const char *text, bool good, const char *part)
{
    if (check(text) != good) fail_msg("%s: %s", text, lines);
    if (!strstr(lines, part)) fail_msg("%s: \"%s\" not in: %s", text, part, lines);
}

static void test_values(void **state)
{
    (void)state;
    assert_true(
        check("{\"followed\": [1], \"quiet\": 7, \"one\": true, \"two\": 0, \"a_token\": 3}"));
    assert_string_equal(lines, "");
    assert_true(check("{\"one\": null, \"two\": [\"a\"], \"not_here\": {}, \"new\": null}"));
    assert_string_equal(lines, "");
    expect("{\"one\": false}", false,
           "folder/x.json: key \"one\": false is not supported, expected true: it always is");
    expect("{\"two\": [\"b\"]}", false, "[\"b\"] is not supported, expected 0 or [\"a\"]");
    expect("{\"bad_token\": \"x\"}", false, "\"x\" is not supported, expected null");
}

static void test_warnings(void **state)
{
    (void)state;
    expect("{\"new\": 1}", true, "folder/x.json: key \"new\" is not known and has no effect\n");
    expect("{\"not_here\": {\"a\": 1}}", true,
           "key \"not_here\": {\"a\":1} has no effect here: code is never run\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_warnings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
