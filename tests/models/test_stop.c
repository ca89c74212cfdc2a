/* Texts that end answers, and the text of an answer as its tokens come: over the borders of tokens
 * and of characters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/base/memory_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/temp_folder.h"

/* Byte-level: \u00c3\u00a9 are the bytes of an e with an acute accent. */
static const char vocabulary[] =
    "{\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"\\u00c3\": 4, \"\\u00a9\": 5, \"bc\": 6, "
    "\"<|endoftext|>\": 7}";
enum { A, B, C, AB, FIRST, SECOND, BC, END };

static temp_folder folder;
static mc_context *ctx;
static mc_tokenizer *tok;

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    write_text(temp_path(&folder, "vocab.json"), vocabulary);
    write_text(temp_path(&folder, "merges.txt"), "#version: 0.2\na b\nb c\n");
    ctx = mc_init_distributed(NULL);
    tok = mc_tokenizer_from_pretrained(ctx, folder.path);
    return mc_print_error(ctx, stderr);
}

static int tear_down(void **state)
{
    (void)state;
    mc_context_free(ctx);
    temp_folder_free(&folder);
    return 0;
}

/* The answer's text by mc_stop_text and by the stream; the pieces of the stream between '|'. */
static void expect(const mc_stop *stop, const int32_t *ids, int count, int ends_at,
                   const char *pieces)
{
    char whole[100] = "", got[200] = "";
    int end = 1;
    while (end <= count && !mc_stop_reached((void *)(uintptr_t)stop, 0, ids, end)) end++;
    assert_int_equal(end > count ? 0 : end, ends_at);
    if (ends_at) count = ends_at;
    size_t size;
    mc_text_stream *s = mc_text_stream_new(stop, 0);
    for (int i = 0; i <= count; i++) {
        const char *piece =
            i < count ? mc_text_stream_add(s, ids[i], &size) : mc_text_stream_end(s, &size);
        assert_non_null(piece);
        snprintf(whole + strlen(whole), 50, "%.*s", (int)size, piece);
        snprintf(got + strlen(got), 50, "%.*s|", (int)size, piece);
    }
    mc_text_stream_free(s);
    assert_string_equal(got, pieces);
    char *text = mc_stop_text(stop, 0, ids, count, &size);
    assert_string_equal(text, whole);
    assert_int_equal(size, strlen(whole));
    mc_string_free(text);
    assert_false(mc_print_error(ctx, stderr));
}

#define EXPECT(stop, ends_at, pieces, ...)       \
    expect(stop, (const int32_t[]){__VA_ARGS__}, \
           sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), ends_at, pieces)

static void test_texts(void **state)
{
    (void)state;
    const mc_stop none = {.tokenizer = tok};
    EXPECT(&none, 0, "a|b|ab|||", A, B, AB, END);
    const mc_stop bca = {.tokenizer = tok, .texts = (const char *[]){"bca"}, .text_count = 1};
    EXPECT(&bca, 3, "a||||", AB, C, A, A); /* over three tokens */
    EXPECT(&bca, 0, "a||bc|bcc||", AB, C, BC, C);
    EXPECT(&bca, 0, "a|||bc|", A, B, C); /* the rest at the end */
    EXPECT(&bca, 2, "|||", BC, AB);
    const mc_stop two = {.tokenizer = tok, .texts = (const char *[]){"cab", "bc"}, .text_count = 2};
    EXPECT(&two, 2, "|||", B, C);
    EXPECT(&two, 2, "|||", C, AB);
    EXPECT(&two, 3, "a||||", A, B, C);
    /* the earliest in the text counts, whichever of the texts it is */
    const mc_stop inside = {
        .tokenizer = tok, .texts = (const char *[]){"b", "abc"}, .text_count = 2};
    EXPECT(&inside, 1, "|a|", AB);
}

static void test_characters(void **state)
{
    (void)state;
    const mc_stop none = {.tokenizer = tok};
    EXPECT(&none, 0, "a||\xc3\xa9|b||", A, FIRST, SECOND, B);
    EXPECT(&none, 0,
           "||\xef\xbf\xbd"
           "b||",
           FIRST, END, B);
    EXPECT(&none, 0, "||\xef\xbf\xbd|", FIRST, END);
    const mc_stop accent = {.tokenizer = tok,
                            .texts = (const char *[]){"\xc3\xa9"
                                                      "b"},
                            .text_count = 1};
    EXPECT(&accent, 4, "a|||||", A, FIRST, SECOND, B);
}

static void test_tokens(void **state)
{
    (void)state;
    const int32_t tokens[] = {B};
    const mc_stop stop = {.tokenizer = tok, .tokens = tokens};
    EXPECT(&stop, 3, "a|c|||", A, C, B, A);
    EXPECT(&stop, 0, "ab|c||", AB, C);
}

/* ---- prompts, and memory that runs out ------------------------------------------------------- */

static mc_model *new_model(const char *family)
{
    char config[300];
    snprintf(config, sizeof config,
             strcmp(family, "gpt2") == 0
                 ? "{\"model_type\": \"gpt2\", \"vocab_size\": 8, \"n_embd\": 8, \"n_layer\": 1, "
                   "\"n_head\": 1, \"n_positions\": 16, \"bos_token_id\": 7, \"eos_token_id\": 7}"
                 : "{\"model_type\": \"t5\", \"vocab_size\": 8, \"d_model\": 8, \"d_kv\": 8, "
                   "\"d_ff\": 8, \"num_layers\": 1, \"num_heads\": 1}");
    write_text(temp_path(&folder, "config.json"), config);
    mc_model *m = mc_model_new(ctx, family, temp_path(&folder, "config.json"), NULL, NULL);
    assert_false(mc_print_error(ctx, stderr));
    return m;
}

static void test_prompts(void **state)
{
    (void)state;
    mc_model *gpt2 = new_model("gpt2"), *t5 = new_model("t5");
    mc_text_prompt p;
    assert_int_equal(mc_text_prompt_init(&p, gpt2, tok, "abc", 3), MC_OK);
    assert_int_equal(p.count, 2);
    assert_true(p.ids[0] == AB && p.ids[1] == C && p.end == -1);
    mc_text_prompt_release(&p);
    assert_int_equal(mc_text_prompt_init(&p, gpt2, tok, "", 0), MC_OK);
    assert_true(p.count == 1 && p.ids[0] == END);
    mc_text_prompt_release(&p);
    assert_int_equal(mc_text_prompt_init(&p, t5, tok, "", 0), MC_ERR_ARGUMENT);
    assert_non_null(strstr(mc_error_message(ctx), "an empty prompt"));
    assert_true(p.count == 0 && !p.ids);
    mc_clear_error(ctx);
    mc_model_free(gpt2);
    mc_model_free(t5);
}

#ifdef MC_FAULT_INJECTION
/* All of it once, as far as memory goes; false where it has run out, which the context says. */
static bool use_all(mc_model *gpt2)
{
    const mc_stop stop = {.tokenizer = tok, .texts = (const char *[]){"bb"}, .text_count = 1};
    const int32_t ids[] = {A, B, C, AB};
    mc_text_prompt p;
    size_t size;
    mc_text_stream *s = mc_text_stream_new(&stop, 0);
    bool good = s;
    for (int i = 0; i < 4 && good; i++) good = mc_text_stream_add(s, ids[i], &size);
    good = good && mc_text_stream_end(s, &size);
    mc_text_stream_free(s);
    char *text = good ? mc_stop_text(&stop, 0, ids, 4, &size) : NULL;
    mc_string_free(text);
    bool reached = text && mc_stop_reached((void *)(uintptr_t)&stop, 0, ids, 4);
    good = text && reached == mc_failed(ctx) && !reached; /* an error ends the answer */
    if (good) good = mc_text_prompt_init(&p, gpt2, tok, "abcab", 5) == MC_OK;
    if (good) mc_text_prompt_release(&p);
    return good;
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    mc_model *gpt2 = new_model("gpt2");
    long nth = 0, count;
    do {
        mc_fault_fail_at(++nth, false);
        bool good = use_all(gpt2);
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        assert_true(good == !mc_failed(ctx));
        assert_true(good == (nth > count));
        mc_clear_error(ctx);
    } while (nth <= count);
    assert_true(nth > 10);
    mc_model_free(gpt2);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test(test_memory_runs_out),
#endif
        cmocka_unit_test(test_texts),           cmocka_unit_test(test_characters),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
