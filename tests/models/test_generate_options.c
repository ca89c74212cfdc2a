/* What can be asked of answers beside how tokens are chosen: several to a prompt, lengths of prompt
 * and answer together, functions that end answers, log-probabilities, and the
 * generation_config.json of a model's folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/base/json_internal.h"
#include "tests/models/gpt2_test.h"
#include "tests/temp_folder.h"

enum { PROMPTS = 3, NEW = 10 };

static const int32_t prompt_ids[PROMPTS][6] = {{3, 14, 15, 9, 26}, {5}, {35, 8, 9}};
static const int prompt_lengths[PROMPTS] = {5, 1, 3};
static const int32_t *const prompts[PROMPTS] = {prompt_ids[0], prompt_ids[1], prompt_ids[2]};

static mc_generation *answer(mc_model *gpt2, const mc_generate_options *o)
{
    mc_generation *out = mc_model_generate(gpt2, prompts, prompt_lengths, PROMPTS, o);
    assert_good(gpt2->module.ctx);
    return out;
}

static void expect_same(const mc_generation *a, int i, const mc_generation *b, int k)
{
    assert_int_equal(a->lengths[i], b->lengths[k]);
    assert_memory_equal(a->ids[i], b->ids[k], (size_t)a->lengths[i] * sizeof(int32_t));
    assert_near(a->scores[i], b->scores[k], 1e-4); /* products of other batches round otherwise */
}

/* The log-probabilities of an answer add up to its score. */
static void expect_sum(const mc_generation *g, int i, double power)
{
    double sum = 0;
    for (int k = 0; k < g->lengths[i]; k++) {
        assert_true(g->log_probs[i][k] <= 0);
        sum += (double)g->log_probs[i][k];
    }
    assert_near(sum / pow(g->lengths[i], power), g->scores[i], 1e-4);
}

/* Draws differ, and depend on the prompt's place alone. */
static void test_several_draws(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_generate_options o = {
        .max_new_tokens = NEW, .sample = true, .num_return_sequences = 4, .seed = 7};
    mc_generation *all = answer(gpt2, &o);
    assert_int_equal(all->count, 4 * PROMPTS);
    for (int i = 0; i < PROMPTS; i++) {
        o.first_prompt = i;
        mc_generation *one = mc_model_generate(gpt2, prompts + i, prompt_lengths + i, 1, &o);
        assert_good(ctx);
        assert_int_equal(one->count, 4);
        for (int k = 0; k < 4; k++) {
            expect_same(one, k, all, 4 * i + k);
            expect_sum(one, k, 0);
        }
        assert_memory_not_equal(one->ids[0], one->ids[1], 2 * sizeof(int32_t));
    }
    o.first_prompt = 0;
    mc_generator *g = mc_model_generator_new(gpt2, prompts, prompt_lengths, PROMPTS, &o);
    int32_t tokens[4 * PROMPTS];
    float log_probs[4 * PROMPTS];
    for (int step = 0; mc_generator_next(g, tokens); step++) {
        mc_generator_log_probs(g, log_probs);
        for (int i = 0; i < all->count; i++) {
            bool there = step < all->lengths[i];
            assert_int_equal(tokens[i], there ? all->ids[i][step] : -1);
            assert_near(log_probs[i], there ? all->log_probs[i][step] : 0, 1e-5);
        }
    }
    assert_good(ctx);
}

/* The best of a search, the best first, whatever their number. */
static void test_several_beams(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_generate_options o = {.max_new_tokens = NEW, .num_beams = 4, .num_return_sequences = 4};
    mc_generation *four = answer(gpt2, &o);
    o.num_return_sequences = 0;
    mc_generation *best = answer(gpt2, &o);
    assert_int_equal(four->count, 4 * PROMPTS);
    for (int i = 0; i < PROMPTS; i++) {
        expect_same(best, i, four, 4 * i);
        for (int k = 0; k < 4; k++) {
            expect_sum(four, 4 * i + k, 1);
            if (k) assert_true(four->scores[4 * i + k] <= four->scores[4 * i + k - 1]);
        }
    }
    o = (mc_generate_options){.max_new_tokens = 1, .num_beams = VOCABULARY + 3};
    o.num_return_sequences = VOCABULARY + 1; /* more than there are answers */
    mc_generation *few = answer(gpt2, &o);
    assert_int_equal(few->lengths[VOCABULARY - 1], 1);
    assert_int_equal(few->lengths[VOCABULARY], 0);
    assert_true(few->scores[VOCABULARY] == -INFINITY);
}

/* Each prompt by itself, whatever the others are. */
static void test_max_length(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    for (int beams = 1; beams <= 3; beams += 2) {
        mc_generate_options o = {.max_length = 9, .ignore_eos = true, .num_beams = beams};
        mc_generation *together = answer(gpt2, &o);
        for (int i = 0; i < PROMPTS; i++) {
            assert_int_equal(together->lengths[i], 9 - prompt_lengths[i]);
            mc_generation *alone = mc_model_generate(gpt2, prompts + i, prompt_lengths + i, 1, &o);
            expect_same(alone, 0, together, i);
        }
        o.max_new_tokens = 2; /* counts first */
        assert_int_equal(answer(gpt2, &o)->lengths[1], 2);
    }
    mc_generate_options short_one = {.max_length = 5};
    assert_null(mc_model_generate(gpt2, prompts, prompt_lengths, PROMPTS, &short_one));
    assert_error(ctx, MC_ERR_ARGUMENT, "prompt 0 of 5 tokens", "max_length is 5");
}

static bool at_two_odd_tokens(void *user, int prompt, const int32_t *ids, int count)
{
    int *asked = user;
    asked[prompt]++;
    return count >= 2 && ids[count - 1] % 2 && ids[count - 2] % 2;
}

static void test_stop(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    for (int kind = 0; kind < 3; kind++) { /* greedy, drawn, beams */
        int asked[PROMPTS] = {0}, stopped = 0;
        mc_generate_options o = {.max_new_tokens = 19, .ignore_eos = true, .seed = 3};
        o.sample = kind == 1;
        o.num_beams = kind == 2 ? 3 : 1;
        o.num_return_sequences = kind ? 2 : 1;
        mc_generation *whole = answer(gpt2, &o);
        o.stop = at_two_odd_tokens;
        o.stop_user = asked;
        mc_generation *got = answer(gpt2, &o);
        for (int i = 0; i < got->count; i++) {
            const int32_t *ids = got->ids[i];
            int n = got->lengths[i], end = 2;
            while (end < n && !(ids[end - 1] % 2 && ids[end - 2] % 2)) end++;
            assert_int_equal(end, n);
            stopped += n < 19;
            if (kind < 2) assert_memory_equal(ids, whole->ids[i], (size_t)n * sizeof *ids);
        }
        assert_true(stopped && asked[0] && asked[PROMPTS - 1]);
    }
}

static void test_refusals(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    static const struct {
        mc_generate_options o;
        const char *words[2];
    } bad[] = {{{.num_return_sequences = 2}, {"num_return_sequences 2", "sample"}},
               {{.num_return_sequences = 4, .num_beams = 3}, {"at most num_beams", "4"}},
               {{.num_return_sequences = -1}, {"num_return_sequences -1", "1 to"}},
               {{.max_length = -1}, {"max_length -1", "at least"}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(mc_model_generate(gpt2, prompts, prompt_lengths, PROMPTS, &bad[i].o));
        assert_error(ctx, MC_ERR_ARGUMENT, bad[i].words[0], bad[i].words[1]);
    }
}

/* ---- generation_config.json ------------------------------------------------------------------ */

static temp_folder folder;

static mc_model *load_with(mc_context *ctx, const char *text)
{
    write_text(temp_path(&folder, "model/generation_config.json"), text);
    return mc_model_from_pretrained(ctx, temp_path(&folder, "model"), NULL);
}

static void test_file(void **state)
{
    mc_context *ctx = *state;
    mc_generate_options o;
    folder = temp_folder_new();
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_model_save(gpt2, temp_path(&folder, "model"));
    assert_good(ctx);
    assert_false(access(temp_path(&folder, "model/generation_config.json"), F_OK) == 0);
    mc_model *m = load_with(
        ctx, "{\"do_sample\": true, \"temperature\": 0.7, \"top_k\": 3, \"top_p\": 0.9,\n"
             "\"repetition_penalty\": 1.3, \"max_new_tokens\": 4, \"num_return_sequences\": 2,\n"
             "\"no_repeat_ngram_size\": 0, \"bad_words_ids\": null, \"typical_p\": 1.0,\n"
             "\"suppress_tokens\": [], \"strange\": 1, \"eos_token_id\": [7, 8]}\n");
    assert_int_equal(mc_model_generate_options(m, &o), MC_OK);
    assert_true(o.sample && o.top_k == 3 && o.max_new_tokens == 4 && o.num_return_sequences == 2);
    assert_true(o.temperature == 0.7f && o.top_p == 0.9f && o.repetition_penalty == 1.3f);
    assert_int_equal(answer(m, NULL)->count, 2 * PROMPTS); /* without options they are these */
    /* what is written with the model is what came with it */
    mc_model_save(m, temp_path(&folder, "again"));
    m = mc_model_from_pretrained(ctx, temp_path(&folder, "again"), NULL);
    mc_generate_options same;
    assert_int_equal(mc_model_generate_options(m, &same), MC_OK);
    assert_memory_equal(&same, &o, sizeof o);
    /* the file's end tokens hold for any options */
    mc_generation *plain = answer(gpt2, &(mc_generate_options){.max_new_tokens = NEW});
    char text[100];
    snprintf(text, sizeof text, "{\"eos_token_id\": %d}", plain->ids[0][2]);
    m = load_with(ctx, text);
    assert_true(answer(m, &(mc_generate_options){.max_new_tokens = NEW})->lengths[0] <= 3);
    m = load_with(ctx, "{\"num_beams\": 3, \"early_stopping\": true, \"length_penalty\": 0.0,"
                       "\"max_length\": 12, \"temperature\": 0, \"do_sample\": true}");
    assert_int_equal(mc_model_generate_options(m, &o), MC_OK);
    assert_true(o.num_beams == 3 && o.early_stopping && !o.sample && o.max_length == 12);
    assert_true(o.length_penalty == 0 && signbit(o.length_penalty)); /* MC_TRUE_ZERO */
    temp_folder_free(&folder);
}

/* Makes a token the one that ends answers by config.json. */
static void write_eos(mc_context *ctx, const char *path, int token)
{
    cJSON *config = mc_json_read_object(&ctx->error, path, 1 << 20);
    assert_non_null(config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "eos_token_id");
    assert_non_null(cJSON_AddNumberToObject(config, "eos_token_id", token));
    char *text = cJSON_Print(config);
    write_text(path, text);
    cJSON_free(text);
    cJSON_Delete(config);
}

/* The file's end tokens are all there are, also where it has none: as in transformers. */
static void test_end_tokens(void **state)
{
    mc_context *ctx = *state;
    static const char *const none[] = {"{\"eos_token_id\": null}",
                                       "{\"transformers_version\": \"5.0\"}",
                                       "{\"eos_token_id\": []}"};
    const mc_generate_options o = {.max_new_tokens = NEW};
    folder = temp_folder_new();
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_generation *plain =
        answer(gpt2, &(mc_generate_options){.max_new_tokens = NEW, .ignore_eos = true});
    mc_model_save(gpt2, temp_path(&folder, "model"));
    write_eos(ctx, temp_path(&folder, "model/config.json"), plain->ids[0][0]);
    mc_model *m = mc_model_from_pretrained(ctx, temp_path(&folder, "model"), NULL);
    assert_int_equal(answer(m, &o)->lengths[0], 1);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        mc_generation *got = answer(load_with(ctx, none[i]), &o);
        assert_int_equal(got->lengths[0], NEW);
        assert_memory_equal(got->ids[0], plain->ids[0], NEW * sizeof(int32_t));
    }
    temp_folder_free(&folder);
}

static void keep_line(void *user, mc_log_level level, const char *line)
{
    if (level == MC_LOG_WARNING) snprintf(user, 256, "%s", line);
}

/* An end token that no answer can have is a warning, as in config.json. */
static void test_foreign_end_token(void **state)
{
    (void)state;
    char said[256] = "";
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = keep_line, .log_user = said});
    folder = temp_folder_new();
    mc_model_save(new_gpt2(ctx, MC_F32, 0), temp_path(&folder, "model"));
    assert_non_null(load_with(ctx, "{\"eos_token_id\": [7]}"));
    assert_string_equal(said, "");
    assert_non_null(load_with(ctx, "{\"eos_token_id\": [7, 99999]}"));
    assert_non_null(
        strstr(said, "generation_config.json: key \"eos_token_id\": 99999 is no token"));
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

static bool at_stop_text(void *user, int prompt, const int32_t *ids, int count)
{
    (void)user, (void)prompt, (void)ids;
    return count == 2;
}

static void test_keys(void **state)
{
    mc_context *ctx = *state;
    mc_generate_options o;
    folder = temp_folder_new();
    mc_model_save(new_gpt2(ctx, MC_F32, 0), temp_path(&folder, "model"));
    mc_model *m = load_with(ctx, "{\"early_stopping\": \"never\", \"do_sample\": true}");
    assert_int_equal(mc_model_generate_options(m, &o), MC_OK);
    assert_int_equal(o.early_stopping, MC_EARLY_STOPPING_NEVER);
    assert_int_equal(o.top_k, 50); /* what transformers draws from */
    m = load_with(ctx, "{\"early_stopping\": false, \"do_sample\": true, \"top_k\": 0}");
    assert_int_equal(mc_model_generate_options(m, &o), MC_OK);
    assert_true(o.early_stopping == MC_EARLY_STOPPING_LIKELY && o.top_k == 0);
    m = load_with(ctx, "{\"stop_strings\": [\"end\", \"\\n\"]}");
    assert_int_equal(mc_model_generate_options(m, &o), MC_OK);
    assert_int_equal(o.stop_text_count, 2);
    assert_string_equal(o.stop_texts[0], "end");
    assert_string_equal(o.stop_texts[1], "\n");
    /* they are looked for by a function, and never passed over */
    assert_null(mc_model_generate(m, prompts, prompt_lengths, PROMPTS, &o));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "stop_texts", "\"end\"");
    assert_null(mc_model_generate(m, prompts, prompt_lengths, PROMPTS, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "stop_texts", "stop_strings");
    o.stop = at_stop_text;
    assert_int_equal(answer(m, &o)->lengths[0], 2);
    m = load_with(ctx, "{\"stop_strings\": \"end\"}");
    assert_int_equal(mc_model_generate_options(m, &o), MC_OK);
    assert_int_equal(o.stop_text_count, 1);
    temp_folder_free(&folder);
}

static void test_wrong_files(void **state)
{
    mc_context *ctx = *state;
    mc_generate_options o;
    static const struct {
        const char *text;
        mc_status status;
        const char *words[2];
    } bad[] = {
        {"{\"no_repeat_ngram_size\": 3}", MC_ERR_UNSUPPORTED, {"\"no_repeat_ngram_size\"", "3"}},
        {"{\"bad_words_ids\": [[4]]}", MC_ERR_UNSUPPORTED, {"\"bad_words_ids\"", "[[4]]"}},
        {"{\"early_stopping\": \"often\"}", MC_ERR_FORMAT, {"\"early_stopping\"", "\"never\""}},
        {"{\"stop_strings\": [\"\"]}", MC_ERR_FORMAT, {"\"stop_strings\"", "none empty"}},
        {"{\"temperature\": \"hot\"}", MC_ERR_FORMAT, {"\"temperature\"", "hot"}},
        {"{\"top_p\": 1.5}", MC_ERR_FORMAT, {"\"top_p\"", "1.5"}},
        {"{\"num_beams\": 0}", MC_ERR_FORMAT, {"\"num_beams\"", "0"}}};
    folder = temp_folder_new();
    mc_model_save(new_gpt2(ctx, MC_F32, 0), temp_path(&folder, "model"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mc_model *m = load_with(ctx, bad[i].text);
        assert_good(ctx); /* it trains and embeds all the same */
        assert_int_equal(mc_model_generate_options(m, &o), bad[i].status);
        assert_error(ctx, bad[i].status, bad[i].words[0], bad[i].words[1]);
        assert_null(mc_model_generate(m, prompts, prompt_lengths, PROMPTS, NULL));
        assert_error(ctx, bad[i].status, "generation_config.json", bad[i].words[0]);
        mc_model_generate(m, prompts, prompt_lengths, PROMPTS, &(mc_generate_options){0});
        assert_good(ctx); /* options of one's own */
    }
    assert_null(load_with(ctx, "{\"eos_token_id\": \"end\"}"));
    assert_error(ctx, MC_ERR_FORMAT, "generation_config.json", "eos_token_id");
    assert_null(load_with(ctx, "{\"eos_token_id\": 1,}"));
    assert_error(ctx, MC_ERR_FORMAT, "generation_config.json");
    temp_folder_free(&folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_several_draws), TEST(test_several_beams),     TEST(test_max_length),
        TEST(test_stop),          TEST(test_refusals),          TEST(test_file),
        TEST(test_end_tokens),    TEST(test_foreign_end_token), TEST(test_keys),
        TEST(test_wrong_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
