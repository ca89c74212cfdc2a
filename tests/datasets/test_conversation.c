/* Conversations in the forms of public models: what their templates give for the same messages. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "datasets/conversation.h"
#include "tests/tokenizers/tokenizer_test.h"

static const mc_chat_message talk[] = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", " Bye \n"}};

static mc_tokenizer *open_with(const char *config)
{
    write_text(temp_path(&folder, "vocab.txt"), "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n");
    write_text(temp_path(&folder, "tokenizer_config.json"), config);
    return open_folder();
}

#define NAMES "\"bos_token\": \"<s>\", \"eos_token\": \"</s>\""

static void test_formats(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *learnt;
    } cases[] = {
        {"chatml",
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
         "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n Bye \n<|im_end|>\n"
         "<|im_start|>assistant\n",
         "Hello!<|im_end|>"},
        {"llama2",
         "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]",
         " Hello! </s>"},
        {"llama3",
         "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n",
         "Hello!<|eot_id|>"},
        {"mistral-v1", "<s> [INST] Be brief.\n\nHi [/INST] Hello!</s> [INST]  Bye \n [/INST]",
         " Hello!</s>"},
        {"mistral-v3", "<s>[INST] Hi[/INST] Hello!</s>[INST] Be brief.\n\n Bye \n[/INST]",
         " Hello!</s>"},
        {"zephyr",
         "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n"
         "<|user|>\n Bye \n</s>\n<|assistant|>\n",
         "Hello!</s>"},
    };
    mc_tokenizer *tok = open_with("{" NAMES "}");
    mc_chat_text chat = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mc_chat_format format;
        assert_int_equal(mc_chat_format_choose(ctx, tok, cases[i].name, &format), MC_OK);
        assert_string_equal(mc_chat_format_name(format), cases[i].name);
        assert_int_equal(mc_chat_render(ctx, tok, format, talk, 4, true, &chat), MC_OK);
        assert_string_equal(chat.text, cases[i].text);
        assert_int_equal(chat.size, strlen(cases[i].text));
        assert_int_equal(chat.span_count, 1);
        size_t size = chat.spans[0].end - chat.spans[0].start;
        assert_int_equal(size, strlen(cases[i].learnt));
        assert_memory_equal(chat.text + chat.spans[0].start, cases[i].learnt, size);
        const char *end = mc_chat_format_end(format, tok);
        assert_memory_equal(chat.text + chat.spans[0].end - strlen(end), end, strlen(end));
    }
    /* Llama 2's system and user are trimmed as one text */
    const mc_chat_message spaces[] = {{"system", " Be brief. "}, {"user", " Hi \n"}};
    assert_int_equal(mc_chat_render(ctx, tok, MC_CHAT_LLAMA2, spaces, 2, true, &chat), MC_OK);
    assert_string_equal(chat.text, "<s>[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\n Hi [/INST]");
    mc_chat_text_release(&chat);
    assert_null(chat.text);
    assert_null(mc_chat_format_name((mc_chat_format)99));
    assert_null(mc_chat_format_end(MC_CHAT_ZEPHYR, NULL));
}

static void expect_choice(const char *template, mc_chat_format expected)
{
    char config[512];
    mc_chat_format format;
    snprintf(config, sizeof config, "{\"chat_template\": %s, " NAMES "}", template);
    assert_int_equal(mc_chat_format_choose(ctx, open_with(config), NULL, &format), MC_OK);
    assert_int_equal(format, expected);
}

static void test_markers(void **state)
{
    (void)state;
    expect_choice("\"{{'<|im_start|>' + role}}\"", MC_CHAT_CHATML);
    expect_choice("\"<|start_header_id|>\"", MC_CHAT_LLAMA3);
    expect_choice("\"[INST] <<SYS>>\"", MC_CHAT_LLAMA2);
    expect_choice("\"[INST]\"", MC_CHAT_MISTRAL_V1);
    expect_choice("\"[INST]\", \"additional_special_tokens\": [\"[INST]\"]", MC_CHAT_MISTRAL_V3);
    expect_choice("\"<|user|>\"", MC_CHAT_ZEPHYR);
    expect_choice("[{\"name\": \"tools\", \"template\": \"[INST]\"}, {\"name\": \"default\", "
                  "\"template\": \"<|user|>\"}]",
                  MC_CHAT_ZEPHYR);
    /* a file of its own counts first */
    write_text(temp_path(&folder, "chat_template.jinja"), "<|im_start|>");
    expect_choice("\"<|user|>\"", MC_CHAT_CHATML);
}

static void expect_error(mc_status status, const char *part)
{
    assert_int_equal(mc_error_status(ctx), status);
    if (!strstr(mc_error_message(ctx), part))
        fail_msg("\"%s\" not in: %s", part, mc_error_message(ctx));
    mc_clear_error(ctx);
}

static void test_errors(void **state)
{
    (void)state;
    mc_chat_format format;
    mc_chat_text chat = {0};
    mc_tokenizer *tok = open_with("{}");
    mc_chat_format_choose(ctx, tok, NULL, &format);
    expect_error(MC_ERR_NOT_FOUND, "expected a chat format, chatml, llama2");
    mc_chat_format_choose(ctx, tok, "vicuna", &format);
    expect_error(MC_ERR_ARGUMENT, "\"vicuna\": expected chatml");
    mc_chat_format_choose(ctx, open_with("{\"chat_template\": \"User: \"}"), NULL, &format);
    expect_error(MC_ERR_UNSUPPORTED, "none of the known markers");
    static const struct {
        mc_chat_format format;
        mc_chat_message messages[2];
        const char *part;
    } cases[] = {
        {MC_CHAT_CHATML, {{"user", "a"}, {"tool", "b"}}, "message 1: role \"tool\""},
        {MC_CHAT_CHATML, {{"user", "a"}, {"system", "b"}}, "message 1: role system"},
        {MC_CHAT_MISTRAL_V1, {{"user", "a"}, {"user", "b"}}, "message 1: role user, expected ass"},
        {MC_CHAT_LLAMA2, {{"assistant", "a"}, {"user", "b"}}, "message 0: role assistant"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mc_chat_render(ctx, tok, cases[i].format, cases[i].messages, 2, false, &chat);
        expect_error(MC_ERR_FORMAT, cases[i].part);
        assert_null(chat.text);
    }
    mc_chat_render(ctx, tok, MC_CHAT_LLAMA2, talk, 1, false, &chat);
    expect_error(MC_ERR_FORMAT, "without a message of a user");
    mc_chat_render(ctx, tok, MC_CHAT_CHATML, talk, 0, false, &chat);
    expect_error(MC_ERR_ARGUMENT, "without messages");
    mc_chat_render(ctx, tok, (mc_chat_format)0, talk, 1, false, &chat);
    expect_error(MC_ERR_ARGUMENT, "chat format 0");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_formats), TEST(test_markers), TEST(test_errors)};
    return cmocka_run_group_tests_name("conversation", tests, NULL, NULL);
}
