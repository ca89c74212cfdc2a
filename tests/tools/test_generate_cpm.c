/* `modelcenter generate` and `tokenize` with CPM-1 and CPM-2, on small models of random weights and
 * a small dictionary: which ids a prompt is, and that the answer comes as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/tokenizers/jieba_test.h"
#include "tests/tools/command_test.h"

static void save_model(const char *family, const char *sizes, const char *vocabulary)
{
    char config[600], path[64];
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5});
    snprintf(config, sizeof config,
             "{\"vocab_size\": 14, \"dim_model\": 8, \"num_heads\": 2, \"dim_head\": 4, "
             "\"dim_ff\": 16, %s, \"position_bias_num_buckets\": 8, "
             "\"position_bias_max_distance\": 16, \"init_std\": 0.5}",
             sizes);
    write_text(temp_path(&folder, "config.json"), config);
    mc_model *model = mc_model_new(ctx, family, temp_path(&folder, "config.json"), NULL, NULL);
    mc_model_save(model, temp_path(&folder, family));
    assert_false(mc_print_error(ctx, stderr));
    mc_context_free(ctx);
    snprintf(path, sizeof path, "%s/vocab.txt", family);
    write_text(temp_path(&folder, path), vocabulary);
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    write_jieba(&folder, "jieba");
    save_model("cpm1", "\"num_layers\": 1",
               "<pad>\n<s>\n</s>\n<sep>\n<eod>\n<unk>\n<mask>\n</n>\n</_>\n"
               "我\n来到\n北京\n大学\n的\n");
    save_model("cpm2", "\"num_encoder_layers\": 1, \"num_decoder_layers\": 1",
               "<unk>\n<s_0>\n</s>\n▃\n<sep>\n<pad>\n<mask>\n<eod>\n<s_1>\n▂\n"
               "我\n来到\n北京\n的\n");
    return 0;
}

/* The answer to a text is that to its ids. */
static void expect_same(const char *family, const char *prompt, const char *ids)
{
    char line[400], expected[400];
    snprintf(line, sizeof line,
             "$MC generate %s --pretrained %s --max-new-tokens 6 --json --ids --prompt '%s'",
             family, family, ids);
    assert_int_equal(run_in(&folder, "", line), 0);
    const char *at = strstr(out, "\"ids\":");
    assert_non_null(at);
    snprintf(expected, sizeof expected, "%s", at);
    snprintf(line, sizeof line,
             "$MC generate %s --pretrained %s --max-new-tokens 6 --json --prompt '%s'", family,
             family, prompt);
    if (run_in(&folder, "", line) != 0) fail_msg("%s", err);
    at = strstr(out, "\"ids\":");
    assert_non_null(at);
    assert_string_equal(at, expected);
    assert_non_null(strstr(out, "\"text\":\""));
}

static void test_cpm1(void **state)
{
    (void)state;
    expect_same("cpm1", "我来到 北京", "1 9 10 8 11");
    expect_same("cpm1", "", "1");
}

static void test_cpm2(void **state)
{
    (void)state;
    expect_same("cpm2", "我来到", "10 11 1"); /* a blank at the end */
    expect_same("cpm2", "我<s_0>北京<s_1>", "10 1 12 8");
    expect_same("cpm2", "<s_1>", "8");
    expect_same("cpm2", "<s_x><s_12>", "0 0 0 0 0 0 0 0 0 0 0 1"); /* no blanks of its vocabulary */
    expect_same("cpm2", "", "1");
}

/* The ids of drawn answers hold what ends them at their end alone: <eod>, and with CPM-2 the
 * sentinel after the last blank's. */
static void expect_ends(const char *family, const char *prompt, int32_t end, int32_t other)
{
    char line[400];
    snprintf(line, sizeof line,
             "$MC generate %s --pretrained %s --max-new-tokens 40 --sample --temperature 3 "
             "--num-return-sequences 40 --prompt '%s'",
             family, family, prompt);
    assert_int_equal(run_in(&folder, "", line), 0);
    int ended[2] = {0}, answers = 0;
    for (const char *at = out; (at = strstr(at, "\"ids\":[")); answers++) {
        for (at += 7; *at != ']';) {
            int32_t id = (int32_t)strtol(at + 1, (char **)(uintptr_t)&at, 10);
            if (id != end && id != other) continue;
            assert_int_equal(*at, ']');
            ended[id == other]++;
        }
    }
    assert_int_equal(answers, 40);
    assert_true(ended[0] > 5 && (other < 0 || ended[1] > 5));
}

static void test_ends(void **state)
{
    (void)state;
    expect_ends("cpm1", "我来到", 4, -1);
    expect_ends("cpm2", "我来到", 7, 8);     /* a blank: <eod>, <s_1> */
    expect_ends("cpm2", "我<s_1>来", 7, -1); /* there is no <s_2> */
}

static void test_tokenize(void **state)
{
    (void)state;
    assert_int_equal(run_in(&folder, "", "$MC tokenize --model cpm1 --text '我来到 北京'"), 0);
    assert_non_null(strstr(out, "</_>"));
    assert_int_equal(run_in(&folder, "MC_JIEBA_DIR=/nowhere && export MC_JIEBA_DIR && ",
                            "$MC tokenize --model cpm1 --text 我"),
                     1);
    assert_non_null(strstr(err, "/nowhere: cannot open"));
    assert_non_null(strstr(err, "MC_JIEBA_DIR"));
    assert_non_null(strstr(err, "CPM-1's vocabulary"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpm1),
        cmocka_unit_test(test_cpm2),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_tokenize),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
