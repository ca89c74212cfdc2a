/* Generation on a GPU, whose steps are recorded and whose tokens it chooses itself: the tokens of
 * the CPU, for every family that decodes; and without the host's waiting or taking memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/generate/generate_internal.h"
#include "tests/device_choice.h"
#include "tests/models/family_test.h"
#include "tests/models/prompts_test.h"

static mc_generation *generate(mc_model *model, int count, const mc_generate_options *o)
{
    mc_generation *out = mc_model_generate(model, prompts, prompt_lengths, count, o);
    assert_good(mc_model_module(model)->ctx);
    return out;
}

/* Options of every kind; answers that end at different times among them. */
static mc_generate_options options_of(int kind, const int32_t *eos, int eos_count)
{
    mc_generate_options o = {.max_new_tokens = 12, .ignore_eos = kind == 0, .seed = 7};
    if (kind > 0) {
        o.eos = eos;
        o.eos_count = eos_count;
    }
    if (kind == 2) o.repetition_penalty = 1.4f;
    if (kind == 3) o.sample = true;
    if (kind == 4) {
        o.sample = true;
        o.temperature = 1.2f;
        o.top_k = 20;
        o.top_p = 0.9f;
    }
    if (kind == 5) o.num_beams = 3;
    return o;
}

static void compare(const char *name, int kind, int count, const mc_generation *cpu,
                    const mc_generation *gpu)
{
    for (int i = 0; i < count; i++) {
        bool same = cpu->lengths[i] == gpu->lengths[i];
        for (int k = 0; same && k < cpu->lengths[i]; k++) same = cpu->ids[i][k] == gpu->ids[i][k];
        if (!same) fail_msg("%s, options %d: other tokens after prompt %d", name, kind, i);
        assert_near(gpu->scores[i], cpu->scores[i], 1e-3);
    }
}

static void test_tokens_of_the_cpu(void **state)
{
    (void)state;
    int32_t eos[VOCABULARY / 7];
    int early = 0;
    for (int i = 0; i < VOCABULARY / 7; i++) eos[i] = 7 * i;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_context *both[] = {context_on("cpu", 3), context_on("cuda", 3)};
        if (!both[1]) {
            mc_context_free(both[0]);
            skip();
        }
        mc_model *cpu = tiny_model(both[0], &tiny_families[f], NULL),
                 *gpu = tiny_model(both[1], &tiny_families[f], NULL);
        for (int kind = 0; kind < 6 && !is_kind(cpu, MC_MODEL_ENCODER); kind++) {
            int count = PROMPTS - (kind + f) % PROMPTS; /* up to 4 rows run by other kernels */
            mc_generate_options o = options_of(kind, eos, VOCABULARY / 7);
            mc_generation *expected = generate(cpu, count, &o);
            compare(tiny_families[f].name, kind, count, expected, generate(gpu, count, &o));
            for (int i = 0; i < count; i++) early += expected->lengths[i] < o.max_new_tokens;
        }
        mc_context_free(both[0]);
        mc_context_free(both[1]);
    }
    assert_true(early > 20);
}

/* The same with weights in 8 bits: bytes and scales are the same on both. */
static void test_quantized(void **state)
{
    (void)state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_context *both[] = {context_on("cpu", 3), context_on("cuda", 3)};
        if (!both[1]) {
            mc_context_free(both[0]);
            skip();
        }
        mc_model *cpu = tiny_model(both[0], &tiny_families[f], NULL),
                 *gpu = tiny_model(both[1], &tiny_families[f], NULL);
        mc_weight_format format = f % 2 ? MC_WEIGHTS_INT8 : MC_WEIGHTS_FP8;
        assert_int_equal(mc_model_quantize(cpu, format), MC_OK);
        assert_int_equal(mc_model_quantize(gpu, format), MC_OK);
        mc_generate_options o = options_of(0, NULL, 0);
        for (int count = PROMPTS; count > 0 && !is_kind(cpu, MC_MODEL_ENCODER); count -= 3)
            compare(tiny_families[f].name, 0, count, generate(cpu, count, &o),
                    generate(gpu, count, &o));
        mc_context_free(both[0]);
        mc_context_free(both[1]);
    }
}

/* ---- steps that run as one kernel ------------------------------------------------------------ */

/* Of every kind, in bf16 and wide enough for it. */
#define WIDE_CPM(layers)                                                          \
    "{\"vocab_size\": 50, \"dim_model\": 64, \"dim_ff\": 136, \"num_heads\": 4, " \
    "\"dim_head\": 16, " layers ", \"position_bias_num_buckets\": 8, "            \
    "\"position_bias_max_distance\": 20, \"half\": false}"
static const tiny_family wide_families[] = {
    {"gpt2", "{\"model_type\": \"gpt2\", \"vocab_size\": 50, \"n_embd\": 64, \"n_inner\": 136, "
             "\"n_layer\": 2, \"n_head\": 4, \"n_positions\": 24, \"initializer_range\": 0.2}"},
    {"gptj", "{\"model_type\": \"gptj\", \"vocab_size\": 50, \"n_embd\": 64, \"n_inner\": 136, "
             "\"n_layer\": 2, \"n_head\": 4, \"n_positions\": 24, \"rotary_dim\": 8, "
             "\"initializer_range\": 0.2}"},
    {"t5", "{\"model_type\": \"t5\", \"vocab_size\": 50, \"d_model\": 64, \"d_ff\": 136, "
           "\"d_kv\": 8, \"num_heads\": 4, \"num_layers\": 2, "
           "\"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 20}"},
    {"t5", "{\"model_type\": \"t5\", \"vocab_size\": 50, \"d_model\": 64, \"d_ff\": 72, "
           "\"d_kv\": 16, \"num_heads\": 4, \"num_layers\": 2, "
           "\"relative_attention_num_buckets\": 8, \"feed_forward_proj\": \"gated-gelu\", "
           "\"tie_word_embeddings\": false}"},
    {"cpm1", WIDE_CPM("\"num_layers\": 2")},
    {"cpm2", WIDE_CPM("\"num_encoder_layers\": 2, \"num_decoder_layers\": 2")},
};
enum { WIDE_FAMILIES = sizeof wide_families / sizeof *wide_families, MOST_ROWS = 4, STEPS = 12 };

/* Answers to so many prompts, of 1 + STEPS / prompts tokens; the first of them is no step's. */
typedef struct answers {
    int32_t ids[MOST_ROWS][STEPS + 1];
    double log_probs[MOST_ROWS][STEPS + 1];
} answers;

/* By the model of a folder; frees the context. */
static answers answers_of(mc_context *ctx, const char *folder, mc_dtype dtype,
                          mc_weight_format format, int rows)
{
    answers a = {0};
    mc_model *model = mc_model_from_pretrained(ctx, folder, &(mc_load_options){.dtype = dtype});
    assert_good(ctx);
    if (format) assert_int_equal(mc_model_quantize(model, format), MC_OK);
    mc_generate_options o = {.max_new_tokens = 1 + STEPS / rows, .ignore_eos = true};
    mc_generation *out = generate(model, rows, &o);
    for (int i = 0; i < rows; i++)
        for (int k = 0; k <= STEPS / rows; k++) {
            a.ids[i][k] = out->ids[i][k];
            a.log_probs[i][k] = out->log_probs[i][k];
        }
    mc_context_free(ctx);
    return a;
}

static answers answers_of_gpu(const char *route, const char *folder, mc_weight_format format,
                              int rows)
{
    setenv("MC_ROUTE", route, 1);
    mc_context *ctx = context_on("cuda", 3);
    unsetenv("MC_ROUTE");
    if (!ctx) skip();
    return answers_of(ctx, folder, MC_BF16, format, rows);
}

/* Of log-probabilities: the root of the squares' mean, 0 if there are few; the largest, and which
 * that is. */
typedef struct errors {
    double mean, largest;
    int row, token;
} errors;

/* Each step's, as long as the tokens in front of it are those of the truth: which of two is the
 * best may change where they are as likely, its probability does not. */
static errors errors_of(const answers *a, const answers *truth, int rows)
{
    errors e = {0};
    double squares = 0;
    int count = 0;
    for (int i = 0; i < rows; i++)
        for (int k = 1; k <= STEPS / rows && a->ids[i][k - 1] == truth->ids[i][k - 1]; k++) {
            double error = fabs(a->log_probs[i][k] - truth->log_probs[i][k]);
            squares += error * error;
            count++;
            if (error > e.largest) e.largest = error, e.row = i, e.token = k;
        }
    e.mean = count < STEPS / 4 ? 0 : sqrt(squares / count);
    return e;
}

/* Whether there were answers enough to compare. */
static bool compare_answers(const char *name, int number, mc_weight_format format, int rows)
{
    static const char *const formats[] = {"bf16", "int8", "fp8"};
    temp_folder folder = temp_folder_new();
    mc_context *cpu = context_on("cpu", 3);
    mc_model *model = tiny_model(cpu, &wide_families[number], &(mc_load_options){.dtype = MC_BF16});
    assert_int_equal(mc_model_save(model, folder.path), MC_OK);
    const answers truth = answers_of(cpu, folder.path, MC_F32, format, rows),
                  one = answers_of_gpu("decode:persistent?", folder.path, format, rows),
                  many = answers_of_gpu("decode:separate", folder.path, format, rows);
    temp_folder_free(&folder);
    const errors e = errors_of(&one, &truth, rows), usual = errors_of(&many, &truth, rows);
    if (e.mean == 0 || usual.mean == 0) return false;
    if (e.mean > 3 * usual.mean || usual.mean > 3 * e.mean)
        fail_msg("%s (wide model %d), %s, %d rows: log-probabilities of steps as one kernel are "
                 "%.2e off, at most %.2e (row %d, token %d); one by one %.2e, at most %.2e (row "
                 "%d, token %d)",
                 name, number, formats[format], rows, e.mean, e.largest, e.row, e.token, usual.mean,
                 usual.largest, usual.row, usual.token);
    return true;
}

/* A step as one kernel rounds to bf16 where kernels one by one do, and adds in another order: it
 * comes as near to what the same weights give in f32. */
static void test_one_kernel(void **state)
{
    (void)state;
#ifndef MC_HAVE_HOPPER /* built with MC_HOPPER=OFF, or for other GPUs */
    skip();
#endif
    int compared = 0;
    for (int i = 0; i < 2 * WIDE_FAMILIES; i++) {
        mc_weight_format eight = i / 2 % 2 ? MC_WEIGHTS_INT8 : MC_WEIGHTS_FP8;
        compared += compare_answers(wide_families[i / 2].name, i / 2,
                                    i % 2 ? eight : MC_WEIGHTS_FLOAT, i % MOST_ROWS + 1);
    }
    assert_true(compared > WIDE_FAMILIES);
}

/* Once two steps have been made, further ones wait for nothing but their tokens, and take nothing
 * from the system. */
static void test_steps_are_free(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cuda", 3);
    if (!ctx) skip();
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    mc_generate_options o = {.max_new_tokens = 14, .ignore_eos = true};
    mc_generator *g = mc_model_generator_new(model, prompts, prompt_lengths, PROMPTS, &o);
    int32_t tokens[PROMPTS];
    for (int i = 0; i < 2; i++) assert_true(mc_generator_next(g, tokens));
    uint64_t waits = ctx->device->waits, calls = ctx->device->memory.system_calls;
    int steps = 2;
    while (mc_generator_next(g, tokens)) steps++;
    assert_good(ctx);
    assert_int_equal(steps, 14);
    assert_int_equal(ctx->device->waits, waits);
    assert_int_equal(ctx->device->memory.system_calls, calls);
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_of_the_cpu),
        cmocka_unit_test(test_quantized),
        cmocka_unit_test(test_one_kernel),
        cmocka_unit_test(test_steps_are_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
