/* Perplexity by `modelcenter eval`: against logits of each window and sums by hand, on token files
 * and texts; refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/tools/command_test.h"

enum { TOKENS = 123, POSITIONS = 16, VOCABULARY = 310, FEW = 20 };

static const char quickstart[] = MC_SOURCE_DIR "/datasets/quickstart";
static const char words[] =
    "the a is the in the is a of the and is a the of the in a is the is and "
    "the of a in the is a the and of is the a in of the is a and the is";
static int32_t tokens[TOKENS];
static mc_context *ctx;
static mc_model *model;
static mc_tokenizer *tok;

static void write_tokens(void)
{
    static struct {
        int32_t header[256];
        uint16_t tokens[TOKENS];
    } file = {.header = {20240520, 1, TOKENS}};
    for (int i = 0; i < TOKENS; i++)
        file.tokens[i] = (uint16_t)(tokens[i] = (i * i * 7 + i * 3) % VOCABULARY);
    write_bytes(temp_path(&folder, "val.bin"), &file, sizeof file.header + 2 * TOKENS);
}

/* A model of the quickstart's tokenizer, which has VOCABULARY tokens. */
static mc_model *save_model(const char *path, int vocabulary)
{
    mc_gpt2_config config = mc_gpt2_config_default();
    config.vocab_size = vocabulary;
    config.dim = 16;
    config.dim_ff = 32;
    config.heads = 2;
    config.layers = 1;
    config.positions = POSITIONS;
    config.embedding_std = 0.5f;
    mc_model *m = mc_gpt2_new(ctx, &config, NULL, NULL);
    mc_model_save(m, path);
    mc_tokenizer_save(tok, path);
    return m;
}

static int set_up(void **state)
{
    make_folder(state);
    write_tokens();
    write_text(temp_path(&folder, "words.txt"), words);
    write_text(temp_path(&folder, "two.jsonl"),
               "{\"text\": \"the is a\"}\n{\"text\": \"of the in\"}\n");
    ctx = mc_init_distributed(&(mc_init_options){.seed = 3});
    tok = mc_tokenizer_from_pretrained(ctx, quickstart);
    model = save_model(temp_path(&folder, "gpt2"), VOCABULARY);
    save_model(temp_path(&folder, "few"), FEW);
    assert_int_equal(mc_print_error(ctx, stderr), 0);
    return 0;
}

static int tear_down(void **state)
{
    mc_context_free(ctx);
    return remove_folder(state);
}

/* -log p of tokens [first, end) of a window, from its logits. */
static double cost(const int32_t *ids, int length, int first)
{
    static float logits[POSITIONS * 384];
    double sum = 0;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = mc_tape_input(t, MC_I32, MC_SHAPE(1, length), ids, false);
    mc_model_output y = mc_model_forward(t, model, &(mc_model_input){.ids = x});
    mc_tensor *l = mc_model_logits(t, model, y.last_hidden);
    int64_t columns = mc_tensor_size(l, -1);
    mc_tensor_read_f32(ctx, l, logits, length * columns);
    for (int i = first; i < length; i++) {
        const float *row = logits + (i - 1) * columns;
        double all = 0;
        for (int c = 0; c < VOCABULARY; c++) all += exp((double)row[c]);
        sum += log(all) - (double)row[ids[i]];
    }
    mc_tape_end(t);
    return sum;
}

/* The mean over all tokens that a window predicts, in the windows of Hugging Face's page. */
static double expect(const int32_t *ids, int count, int length, int stride, int *predicted)
{
    double sum = 0;
    *predicted = 0;
    for (int begin = 0, done = 0; done < count; begin += stride) {
        int end = begin + length < count ? begin + length : count;
        int first = done > begin ? done - begin : 1; /* nothing predicts a window's first */
        sum += cost(ids + begin, end - begin, first);
        *predicted += end - begin - first;
        done = end;
    }
    return sum / *predicted;
}

static double result(const char *key)
{
    const char *at = strstr(out, key);
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

static void check(const char *line, const int32_t *ids, int count, int length, int stride)
{
    if (run(line)) fail_msg("%s: %s", line, err);
    int predicted;
    double loss = expect(ids, count, length, stride, &predicted);
    assert_memory_equal(out, "result model=gpt2 perplexity=", 29);
    assert_int_equal(result(" tokens="), predicted);
    assert_true(stride == length || predicted == count - 1);
    /* printed with six digits; sums of f32 */
    if (!(fabs(result(" loss=") - loss) < 2e-6 * fabs(loss) + 1e-6) ||
        !(fabs(log(result("perplexity=")) - loss) < 1e-5))
        fail_msg("%s: %s, expected %.6f", line, out, loss);
}

static void test_tokens(void **state)
{
    (void)state;
    check("$MC eval gpt2 --model gpt2 --data val.bin", tokens, TOKENS, 16, 8);
    check("$MC eval gpt2 --model gpt2 --data val.bin --stride 16 --batch-size 3", tokens, TOKENS,
          16, 16);
    check("$MC eval gpt2 --pretrained gpt2 --data val.bin --stride 1 --seq-length 5", tokens,
          TOKENS, 5, 1);
    check("$MC eval gpt2 --model gpt2 --data val.bin --seq-length 11 --stride 7 --batch-size 100",
          tokens, TOKENS, 11, 7);
}

static void test_texts(void **state)
{
    (void)state;
    mc_encoding e = {0};
    mc_tokenizer_append(tok, words, strlen(words), &e);
    check("$MC eval gpt2 --model gpt2 --data words.txt", e.ids, (int)e.count, 16, 8);
    mc_tokenizer_append(tok, words, strlen(words), &e);
    check("$MC eval --model gpt2 --data words.txt 'wor*.txt'", e.ids, (int)e.count, 16, 8);
    e.count = 0;
    mc_tokenizer_append(tok, "the is a", 8, &e); /* this tokenizer has no end of text */
    mc_tokenizer_append(tok, "of the in", 9, &e);
    check("$MC eval gpt2 --model gpt2 --data two.jsonl", e.ids, (int)e.count, 16, 8);
    size_t half = e.count;
    mc_tokenizer_append(tok, "the is a", 8, &e);
    mc_tokenizer_append(tok, "of the in", 9, &e);
    assert_int_equal(e.count, 2 * half);
    check("$MC eval --model gpt2 --data two.jsonl 'tw*.jsonl'", e.ids, (int)e.count, 16, 8);
    mc_encoding_release(&e);
}

static void must_fail(const char *line, int code, const char *message)
{
    int got = run(line);
    if (got != code || !strstr(err, message))
        fail_msg("%s: %d, \"%s\", expected \"%s\"", line, got, err, message);
}

static void test_refusals(void **state)
{
    (void)state;
    must_fail("$MC eval gpt2 --model gpt2 --data val.bin --seq-length 17", 1,
              "windows of 17 tokens, 9 from one to the next: expected 2 to the model's 16");
    must_fail("$MC eval gpt2 --model gpt2 --data val.bin --seq-length 4 --stride 5", 1,
              "a stride of that many at most");
    must_fail("$MC eval gpt2 --model gpt2 --data absent.txt", 1, "absent.txt: No such file");
    write_text(temp_path(&folder, "one.txt"), "the");
    must_fail("$MC eval gpt2 --model gpt2 --data one.txt", 1, "one.txt: expected two tokens");
    /* a model with fewer tokens than the data have */
    must_fail("$MC eval --model few --data val.bin", 1,
              "val.bin: token 34 at position 2 is past the vocabulary: expected 0 to 19");
    must_fail("$MC eval --model few --data words.txt", 1, "few/vocab.txt: token \"the\" has id ");
    must_fail("$MC eval --model few --data two.jsonl", 1,
              "but the model has 20 tokens where the tokenizer has 310");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
