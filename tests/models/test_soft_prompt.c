/* Soft prompts: virtual tokens that are words compute what those words before the text do, in every
 * family, forward, in generation and in a classifier; gradients against differences; training,
 * files and errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/adapters/adapter_internal.h"
#include "tests/models/family_test.h"

enum { TOKENS = 3 };
static const int32_t words[TOKENS] = {7, 33, 12};
static const mc_soft_prompt_options three = {.tokens = TOKENS};

/* ---- the same as words ----------------------------------------------------------------------- */

static int64_t word_or_id(int row, int column)
{
    return column < TOKENS ? words[column] : id_at(row, column - TOKENS);
}
static int64_t first_or_type(int row, int column)
{
    return column >= TOKENS && type_at(row, column - TOKENS);
}

static int64_t local_or_global(int row, int column)
{
    return column >= TOKENS && context_at(row, column - TOKENS);
}

/* The batch with the words before each text. */
static mc_model_input input_with_words(mc_tape *t, const mc_model *model)
{
    part p = {PACKED, -1};
    int32_t lengths[BATCH];
    for (int i = 0; i < BATCH; i++) lengths[i] = batch_lengths[i] + TOKENS;
    mc_model_input in = input_for(t, model, p);
    in.lengths = part_lengths(t, lengths, p);
    in.ids = tokens_for(t, p, in.lengths, WIDTH + TOKENS, word_or_id);
    if (in.type_ids) in.type_ids = tokens_for(t, p, in.lengths, WIDTH + TOKENS, first_or_type);
    if (in.global_mask)
        in.global_mask = tokens_for(t, p, in.lengths, WIDTH + TOKENS, local_or_global);
    return in;
}

/* Logits of the texts' own tokens one after the other; how many rows. */
static int64_t logits_after_words(mc_model *model, float *out)
{
    static float all[2 * MOST_LOGITS];
    mc_context *ctx = mc_model_module(model)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = input_with_words(t, model);
    mc_tensor *hidden = mc_model_forward(t, model, &in).last_hidden;
    mc_tensor *x = mc_model_logits(t, model, hidden);
    assert_good(ctx);
    int skipped = is_kind(model, MC_MODEL_ENCODER_DECODER) ? 0 : TOKENS;
    mc_tensor_read_f32(ctx, x, all, mc_tensor_count(x));
    int64_t rows = 0;
    for (int i = 0; i < hidden->lengths->count; i++)
        for (int k = skipped; k < hidden->lengths->length[i]; k++)
            memcpy(out + VOCABULARY * rows++,
                   all + VOCABULARY * (size_t)(hidden->lengths->offset[i] + k),
                   VOCABULARY * sizeof *out);
    mc_tape_end(t);
    return rows;
}

/* The same of a model with virtual tokens, in one of the ways to give a batch. */
static int64_t logits_after_prompt(mc_model *model, way how, float *out)
{
    mc_context *ctx = mc_model_module(model)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = input_for(t, model, (part){how == MASK ? LENGTHS : how, -1});
    if (how == MASK) {
        in.lengths = NULL;
        in.mask = batch_for(t, MASK).mask;
    }
    mc_model_output o = mc_model_forward(t, model, &in);
    mc_tensor *x = mc_model_logits(t, model, o.last_hidden);
    assert_good(ctx);
    static float all[2 * MOST_LOGITS];
    mc_tensor_read_f32(ctx, x, all, mc_tensor_count(x));
    const mc_lengths *l = o.last_hidden->lengths;
    bool two = is_kind(model, MC_MODEL_ENCODER_DECODER);
    int64_t rows = 0;
    for (int i = 0; i < l->count; i++)
        for (int k = 0; k < (two ? answer_lengths : batch_lengths)[i]; k++)
            memcpy(out + VOCABULARY * rows++, all + VOCABULARY * (size_t)(l->offset[i] + k),
                   VOCABULARY * sizeof *out);
    if (!two) assert_int_equal(o.with_prompt->lengths->total, l->total + TOKENS * BATCH);
    mc_tape_end(t);
    return rows;
}

static void test_as_words(void **state)
{
    mc_context *ctx = *state;
    static const way ways[] = {LENGTHS, PACKED, PACKED_WIDE, MASK};
    static float expected[MOST_LOGITS], found[MOST_LOGITS];
    for (int f = 0; f < TINY_FAMILIES; f++) {
        if (!has_prompts(&tiny_families[f])) continue;
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        int64_t positions = mc_model_get_shape(model).positions;
        int64_t rows = logits_after_words(model, expected);
        assert_int_equal(mc_soft_prompt_add(model, &three), MC_OK);
        assert_int_equal(mc_model_get_shape(model).positions, positions ? positions - TOKENS : 0);
        assert_int_equal(mc_soft_prompt_set_words(model, words, TOKENS), MC_OK);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            /* a decoder's padding would be seen, and a masked encoder's memory is another test's */
            if (ways[w] == MASK && !is_kind(model, MC_MODEL_ENCODER)) continue;
            assert_int_equal(logits_after_prompt(model, ways[w], found), rows);
            for (int64_t i = 0; i < rows * VOCABULARY; i++)
                assert_near(found[i], expected[i], 1e-5f * fmaxf(1, fabsf(expected[i])));
        }
        mc_model_free(model);
    }
}

/* A classifier looks at the first token, which is virtual, or at the last. */
static void test_classes(void **state)
{
    mc_context *ctx = *state;
    static const char *const names[] = {"bert", "roberta", "gpt2", "gptj"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        mc_model_heads heads = {.labels = 3, .pooler = strcmp(names[f], "bert") == 0};
        mc_model *model = model_of(ctx, names[f], tiny(names[f])->config, &heads, NULL);
        float expected[3 * BATCH], found[3 * BATCH];
        for (int prompted = 0; prompted < 2; prompted++) {
            mc_tape *t = mc_tape_begin_eval(ctx);
            mc_model_input in =
                prompted ? input_for(t, model, (part){PACKED, -1}) : input_with_words(t, model);
            mc_model_output out = mc_model_forward(t, model, &in);
            mc_tensor_read_f32(ctx, mc_model_classify(t, model, &out), prompted ? found : expected,
                               3 * BATCH);
            mc_tape_end(t);
            if (prompted) break;
            mc_soft_prompt_add(model, &three);
            mc_soft_prompt_set_words(model, words, TOKENS);
        }
        assert_good(ctx);
        for (int i = 0; i < 3 * BATCH; i++) assert_near(found[i], expected[i], 1e-5f);
        mc_model_free(model);
    }
}

static void test_generation(void **state)
{
    mc_context *ctx = *state;
    static const char *const names[] = {"gpt2", "gptj", "t5"};
    static const int32_t longer[][TOKENS + 3] = {{7, 33, 12, 3, 14, 15}, {7, 33, 12, 9}};
    static const int lengths[] = {TOKENS + 3, TOKENS + 1}, own[] = {3, 1};
    const int32_t *const with[] = {longer[0], longer[1]};
    const int32_t *const without[] = {longer[0] + TOKENS, longer[1] + TOKENS};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        mc_model *model = tiny_model(ctx, tiny(names[f]), NULL);
        mc_generation *expected[2];
        for (int beams = 1; beams <= 2; beams++) {
            mc_generate_options o = {.max_new_tokens = 6, .num_beams = beams, .ignore_eos = true};
            expected[beams - 1] = mc_model_generate(model, with, lengths, 2, &o);
        }
        mc_soft_prompt_add(model, &three);
        mc_soft_prompt_set_words(model, words, TOKENS);
        for (int beams = 1; beams <= 2; beams++) {
            mc_generate_options o = {.max_new_tokens = 6, .num_beams = beams, .ignore_eos = true};
            mc_generation *found = mc_model_generate(model, without, own, 2, &o);
            assert_good(ctx);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(found->lengths[i], 6);
                assert_memory_equal(found->ids[i], expected[beams - 1]->ids[i], 6 * sizeof(int));
            }
            mc_generation_free(found);
            mc_generation_free(expected[beams - 1]);
        }
        mc_model_free(model);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

static mc_model *prompted_model(mc_context *ctx, const tiny_family *f, mc_dtype dtype)
{
    mc_model *model = tiny_model(ctx, f, &(mc_load_options){.soft_prompt = &three, .dtype = dtype});
    mc_model_set_dropout(model, 0);
    return model;
}

static double loss_of(mc_model *model)
{
    mc_context *ctx = mc_model_module(model)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    double mean = mc_mean_loss(ctx, family_loss(t, model, (part){PACKED_WIDE, -1}));
    assert_good(ctx);
    mc_tape_end(t);
    return mean;
}

enum { MOST_VALUES = TOKENS * DIM };

static void read_gradient(mc_model *model, mc_recompute recompute, float out[MOST_VALUES])
{
    mc_context *ctx = mc_model_module(model)->ctx;
    mc_module_zero_grad(mc_model_module(model));
    mc_model_set_recompute(model, recompute);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tape_backward(t, family_loss(t, model, (part){PACKED_WIDE, -1}), NULL);
    mc_parameter_read_gradient(model->adapter->vectors, out);
    assert_good(ctx);
    mc_tape_end(t);
}

/* Along the gradient the loss changes by its square, times the way. */
static void test_gradients(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        if (!has_prompts(&tiny_families[f])) continue;
        mc_model *model = prompted_model(ctx, &tiny_families[f], MC_F32);
        float values[MOST_VALUES], moved[MOST_VALUES], g[MOST_VALUES], again[MOST_VALUES];
        read_gradient(model, MC_RECOMPUTE_NONE, g);
        for (mc_recompute how = MC_RECOMPUTE_SELECTIVE; how <= MC_RECOMPUTE_FULL; how++) {
            read_gradient(model, how, again);
            for (int i = 0; i < MOST_VALUES; i++) assert_near(again[i], g[i], 1e-6);
        }
        mc_parameter *vectors = model->adapter->vectors;
        assert_int_equal(mc_parameter_read(vectors, values), MC_OK);
        double square = 0, side[2], step = 0.02;
        for (int i = 0; i < MOST_VALUES; i++) square += (double)g[i] * g[i];
        assert_true(square > 1e-8);
        for (int k = 0; k < 2; k++) {
            double far = (k ? step : -step) / sqrt(square);
            for (int i = 0; i < MOST_VALUES; i++) moved[i] = values[i] + (float)(far * g[i]);
            mc_parameter_write(vectors, moved);
            side[k] = loss_of(model);
        }
        double found = (side[1] - side[0]) / (2 * step), expected = sqrt(square);
        /* differences of f32 losses of about 4, and the third order of the step */
        assert_near(found, expected, 0.01 * expected + 2e-4);
        mc_model_free(model);
    }
}

/* The vectors change, and nothing else, and the loss falls; in 16 bits too. */
static void test_training(void **state)
{
    mc_context *ctx = *state;
    static const mc_dtype dtypes[] = {MC_F32, MC_BF16};
    for (int f = 0; f < TINY_FAMILIES; f++)
        for (int d = 0; d < 2 && has_prompts(&tiny_families[f]); d++) {
            mc_model *model = prompted_model(ctx, &tiny_families[f], dtypes[d]);
            mc_module *module = mc_model_module(model);
            assert_int_equal(mc_model_trainable_count(model), TOKENS * mc_model_dim(model));
            int64_t count, at = 0;
            float *before = parameter_values(module, &count);
            double loss = loss_of(model);
            train_steps(ctx, model, &(mc_adam_options){.lr = 0.05f}, 20);
            assert_true(loss_of(model) < loss);
            float *after = parameter_values(module, &count);
            mc_parameter_iterator it = {0};
            for (mc_parameter *p; (p = mc_module_next_parameter(module, &it));) {
                size_t size = (size_t)mc_shape_count(p->shape);
                bool same = memcmp(before + at, after + at, size * sizeof *after) == 0;
                if (same == (p == model->adapter->vectors))
                    fail_msg("%s has %schanged", p->name, same ? "not " : "");
                at += (int64_t)size;
            }
            free(before);
            free(after);
            mc_model_free(model);
        }
}

/* ---- files ----------------------------------------------------------------------------------- */

static mc_model *load(mc_context *ctx, const char *path, const mc_load_options *options)
{
    mc_model *model = mc_model_from_pretrained(ctx, path, options);
    assert_good(ctx);
    return model;
}

/* A folder's base, and its adapter: to be written. */
typedef struct folders {
    temp_folder folder;
    char base[512], adapter[512];
} folders;

static folders make_base(mc_context *ctx, const char *family)
{
    folders f = {.folder = temp_folder_new()};
    snprintf(f.base, sizeof f.base, "%s", temp_path(&f.folder, "base"));
    snprintf(f.adapter, sizeof f.adapter, "%s", temp_path(&f.folder, "adapter"));
    mc_model *model = tiny_model(ctx, tiny(family), NULL);
    assert_int_equal(mc_model_save(model, f.base), MC_OK);
    mc_model_free(model);
    return f;
}

/* What is saved computes the same, alone holds the vectors, and cannot be merged. */
static void test_files(void **state)
{
    mc_context *ctx = *state;
    static const char *const names[] = {"bert", "roberta", "gpt2", "gptj", "t5"};
    static float expected[MOST_LOGITS], found[MOST_LOGITS];
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        folders at = make_base(ctx, names[f]);
        /* PEFT's files of encoder-decoders have vectors for the decoder as well */
        mc_soft_prompt_options o = {.tokens = TOKENS, .stacks = strcmp(names[f], "t5") ? 1 : 2};
        mc_model *model =
            load(ctx, at.base, &(mc_load_options){.soft_prompt = &o, .saved_heads = true});
        int64_t count = family_logits(model, (part){PACKED, -1}, expected);
        assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
        mc_model_free(model);
        mc_tensor_file *file = mc_tensor_file_open(ctx, at.adapter, NULL);
        assert_int_equal(mc_tensor_file_count(file), 1);
        assert_string_equal(mc_tensor_file_at(file, 0)->name, "prompt_embeddings");
        assert_int_equal(mc_tensor_file_at(file, 0)->shape[0], TOKENS * o.stacks);
        mc_tensor_file_free(file);
        model = load(ctx, at.adapter, NULL);
        assert_int_equal(mc_model_soft_prompt(model)->tokens, TOKENS);
        assert_null(mc_model_lora(model));
        family_logits(model, (part){PACKED, -1}, found);
        assert_memory_equal(found, expected, (size_t)count * sizeof *found);
        assert_int_equal(mc_lora_merge(model), MC_ERR_UNSUPPORTED);
        assert_error(ctx, MC_ERR_UNSUPPORTED, "cannot be merged");
        mc_model_free(model);
        temp_folder_free(&at.folder);
    }
}

static void test_head(void **state)
{
    mc_context *ctx = *state;
    static const char *const heads[][2] = {{"bert", "classifier.weight"}, {"gpt2", "score.weight"}};
    for (size_t i = 0; i < 2; i++) {
        folders at = make_base(ctx, heads[i][0]);
        float expected[3 * DIM], found[3 * DIM];
        mc_model *model =
            load(ctx, at.base, &(mc_load_options){.soft_prompt = &three, .num_labels = 3});
        mc_parameter *head = mc_module_find_parameter(mc_model_module(model), heads[i][1]);
        assert_true(mc_parameter_trainable(head));
        mc_parameter_read(head, expected);
        assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
        mc_model_free(model);
        model = load(ctx, at.adapter, NULL);
        assert_int_equal(mc_model_get_heads(model).labels, 3);
        head = mc_module_find_parameter(mc_model_module(model), heads[i][1]);
        mc_parameter_read(head, found);
        assert_memory_equal(found, expected, sizeof found);
        mc_model_free(model);
        temp_folder_free(&at.folder);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void refuses(mc_context *ctx, mc_model *model, mc_soft_prompt_options o, mc_status status,
                    const char *what)
{
    assert_int_equal(mc_soft_prompt_add(model, &o), status);
    assert_error(ctx, status, what);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    refuses(ctx, model, (mc_soft_prompt_options){0}, MC_ERR_ARGUMENT, "0 virtual tokens");
    refuses(ctx, model, (mc_soft_prompt_options){.tokens = 24}, MC_ERR_ARGUMENT, "1 to 23");
    refuses(ctx, model, (mc_soft_prompt_options){.tokens = 2, .stacks = 2}, MC_ERR_UNSUPPORTED,
            "2 stacks");
    mc_soft_prompt_set_words(model, words, 1);
    assert_error(ctx, MC_ERR_ARGUMENT, "no virtual tokens");
    assert_null(mc_model_soft_prompt(model));
    assert_int_equal(mc_soft_prompt_add(model, &three), MC_OK);
    mc_soft_prompt_set_words(model, words, 0);
    assert_error(ctx, MC_ERR_ARGUMENT, "no words");
    mc_soft_prompt_set_words(model, (int32_t[]){VOCABULARY}, 1);
    assert_error(ctx, MC_ERR_ARGUMENT, "id 50");
    refuses(ctx, model, three, MC_ERR_STATE, "virtual tokens already");
    mc_lora_add(model, NULL);
    assert_error(ctx, MC_ERR_STATE, "already");
    mc_lengths *fixed = mc_lengths_new(ctx, 2, 8);
    mc_lengths_write(fixed, (int32_t[]){3, 4}, 2, 8, 5);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(8), NULL, false);
    assert_null(
        mc_model_forward(t, model, &(mc_model_input){.ids = ids, .lengths = fixed}).last_hidden);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "recorded step");
    mc_tape_end(t);
    mc_model_free(model);
    model = tiny_model(ctx, tiny("cpm1"), NULL);
    refuses(ctx, model, three, MC_ERR_UNSUPPORTED, "takes no virtual tokens");
    mc_model_free(model);
    model = tiny_model(ctx, tiny("electra"), NULL);
    refuses(ctx, model, three, MC_ERR_UNSUPPORTED,
            "words of 12 columns, which ELECTRA projects to 16");
    mc_model_free(model);
    model = model_of(ctx, "t5", tiny("t5")->config, &(mc_model_heads){.labels = 2}, NULL);
    refuses(ctx, model, three, MC_ERR_UNSUPPORTED, "classifier of T5");
    mc_model_free(model);
}

static void test_bad_files(void **state)
{
    mc_context *ctx = *state;
    folders at = make_base(ctx, "gpt2");
    mc_model *model = load(ctx, at.base, &(mc_load_options){.soft_prompt = &three});
    mc_model_save(model, at.adapter);
    mc_model_free(model);
    static const struct {
        const char *keys;
        mc_status status;
        const char *what;
    } cases[] = {
        {"", MC_ERR_FORMAT, "\"num_virtual_tokens\" is missing"},
        {"\"num_virtual_tokens\": 0,", MC_ERR_FORMAT, "\"num_virtual_tokens\""},
        {"\"num_virtual_tokens\": 2,", MC_ERR_SHAPE, "prompt_embeddings"},
        {"\"num_virtual_tokens\": 3, \"num_transformer_submodules\": 2,", MC_ERR_UNSUPPORTED,
         "2 stacks"},
        {"\"num_virtual_tokens\": 3, \"token_dim\": 8,", MC_ERR_SHAPE, "\"token_dim\": 8"},
        {"\"num_virtual_tokens\": 3, \"encoder_dropout\": [1],", MC_ERR_UNSUPPORTED,
         "\"encoder_dropout\""},
    };
    char path[1024], text[2048];
    snprintf(path, sizeof path, "%s/adapter_config.json", at.adapter);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text,
                 "{%s \"peft_type\": \"PROMPT_TUNING\", \"base_model_name_or_path\": \"%s\"}",
                 cases[i].keys, at.base);
        write_text(path, text);
        assert_null(mc_model_from_pretrained(ctx, at.adapter, NULL));
        assert_error(ctx, cases[i].status, cases[i].what);
    }
    temp_folder_free(&at.folder);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up_context, tear_down_context)
    const struct CMUnitTest tests[] = {
        TEST(test_as_words),  TEST(test_classes),  TEST(test_generation),
        TEST(test_gradients), TEST(test_training), TEST(test_files),
        TEST(test_head),      TEST(test_errors),   TEST(test_bad_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
