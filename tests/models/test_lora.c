/* LoRA: factors beside frozen weights, in every family: what they compute and what their gradients
 * are, against the same model with the factors' products in its weights; what is not computed and
 * not kept; files; names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/nn/adapter_internal.h"
#include "tests/models/family_test.h"

/* What contexts of test_head have said. */
static char said[1 << 14];

static void keep_said(void *user, mc_log_level level, const char *line)
{
    (void)user, (void)level;
    size_t used = strlen(said);
    snprintf(said + used, sizeof said - used, "%s\n", line);
}

static const mc_lora_options everywhere = {.rank = 3, .alpha = 6, .target_pattern = "all-linear"};

/* Values that depend on the name, in -0.3 .. 0.3. */
static void disturb_factors(mc_model *model)
{
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(model), &it));) {
        if (!mc_parameter_is_factor(p)) continue;
        int64_t count = mc_shape_count(p->shape);
        uint32_t seed = 1;
        for (const char *c = p->name; *c; c++) seed = seed * 31 + (uint32_t)*c;
        float *values = malloc((size_t)count * sizeof *values);
        for (int64_t i = 0; i < count; i++) {
            seed = seed * 1664525u + 1013904223u;
            values[i] = 0.6f * ((float)(seed >> 8) / 16777216.0f - 0.5f);
        }
        assert_int_equal(mc_parameter_write(p, values), MC_OK);
        free(values);
    }
}

static mc_model *adapted_model(mc_context *ctx, const tiny_family *f, const mc_lora_options *lora)
{
    mc_model *model = tiny_model(ctx, f, &(mc_load_options){.lora = lora});
    mc_model_set_dropout(model, 0);
    return model;
}

static float largest_of(const float *x, int64_t count)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* B is zero at first, so that nothing changes, to the bit; then it does, and the merged model
 * computes the same. */
static void test_values(void **state)
{
    mc_context *ctx = *state;
    static float plain[MOST_LOGITS], adapted[MOST_LOGITS], merged[MOST_LOGITS];
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *base = tiny_model(ctx, &tiny_families[f], NULL);
        int64_t count = family_logits(base, (part){PACKED, -1}, plain);
        int64_t parameters = mc_module_parameter_count(mc_model_module(base));
        assert_int_equal(mc_lora_add(base, &everywhere), MC_OK);
        assert_true(mc_model_trainable_count(base) > 0);
        assert_true(mc_model_trainable_count(base) < parameters);
        family_logits(base, (part){PACKED, -1}, adapted);
        /* an activation of its own rather than one fused into the product rounds otherwise */
        float limit = 1e-6f * largest_of(plain, count);
        for (int64_t i = 0; i < count; i++) assert_near(adapted[i], plain[i], limit);
        disturb_factors(base);
        family_logits(base, (part){PACKED, -1}, adapted);
        float change = 0;
        for (int64_t i = 0; i < count; i++) change = fmaxf(change, fabsf(adapted[i] - plain[i]));
        assert_true(change > 1e-2f * largest_of(plain, count));
        assert_int_equal(mc_lora_merge(base), MC_OK);
        assert_null(mc_model_lora(base));
        assert_int_equal(mc_module_parameter_count(mc_model_module(base)), parameters);
        assert_int_equal(mc_model_trainable_count(base), parameters);
        family_logits(base, (part){PACKED, -1}, merged);
        limit = 2e-5f * largest_of(adapted, count); /* the sums of products in another order */
        for (int64_t i = 0; i < count; i++) assert_near(merged[i], adapted[i], limit);
        mc_model_free(base);
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* A copy of a parameter's gradient or values, to be freed. */
static float *copy_of(mc_parameter *p, bool gradient)
{
    float *out = malloc((size_t)mc_shape_count(p->shape) * sizeof *out);
    assert_non_null(out);
    assert_int_equal(gradient ? mc_parameter_read_gradient(p, out) : mc_parameter_read(p, out),
                     MC_OK);
    return out;
}

/* dW of the parts of a site, one after the other, of the model in which all is trained. */
static float *dense_gradient(mc_model *dense, const mc_stored *weight, const mc_adapter_site *site)
{
    float *out = malloc((size_t)weight->count * sizeof *out), *to = out;
    for (int i = 0; i < site->parts; i++) {
        const char *name = weight->parts[site->first_part + i]->name;
        mc_parameter *p = mc_module_find_parameter(mc_model_module(dense), name);
        assert_non_null(p);
        assert_int_equal(mc_parameter_read_gradient(p, to), MC_OK);
        to += mc_shape_count(p->shape);
    }
    return out;
}

/* With W = W0 + f B A: dB = f dW A^T and dA = f B^T dW; f is what W has of the output's. */
static void check_site(mc_model *dense, const mc_stored *weight, const mc_adapter_site *site)
{
    const mc_adapter *adapter = weight->adapter;
    int64_t in = weight->shape.dim[1], out = site->b->shape.dim[0], rank = adapter->rank;
    float f = adapter->scale / weight->product_scale;
    float *dw = dense_gradient(dense, weight, site), *a = copy_of(site->a, false),
          *b = copy_of(site->b, false), *da = copy_of(site->a, true), *db = copy_of(site->b, true);
    float limit = 1e-4f * fmaxf(largest_of(db, out * rank), largest_of(da, rank * in)) + 1e-7f;
    for (int64_t o = 0; o < out; o++)
        for (int64_t r = 0; r < rank; r++) {
            double sum = 0;
            for (int64_t k = 0; k < in; k++) sum += (double)dw[o * in + k] * a[r * in + k];
            assert_near(db[o * rank + r], f * sum, limit);
        }
    for (int64_t r = 0; r < rank; r++)
        for (int64_t k = 0; k < in; k++) {
            double sum = 0;
            for (int64_t o = 0; o < out; o++) sum += (double)b[o * rank + r] * dw[o * in + k];
            assert_near(da[r * in + k], f * sum, limit);
        }
    free(dw);
    free(a);
    free(b);
    free(da);
    free(db);
}

static double run_backward(mc_context *ctx, mc_model *model, mc_recompute recompute)
{
    mc_module_zero_grad(mc_model_module(model));
    mc_model_set_recompute(model, recompute);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *loss = family_loss(t, model, (part){PACKED_WIDE, -1});
    mc_tape_backward(t, loss, NULL);
    double mean = mc_mean_loss(ctx, loss);
    assert_good(ctx);
    mc_tape_end(t);
    return mean;
}

/* What is not trained has no gradient. */
static void check_frozen(mc_model *model)
{
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(model), &it));) {
        assert_int_equal(mc_parameter_trainable(p), p->in_adapter);
        if (!p->in_adapter) assert_null(p->stored->bucket->gradient.data);
    }
}

static void check_gradients(const tiny_family *family, const mc_lora_options *lora)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 11});
    mc_model *model = adapted_model(ctx, family, lora), *dense = adapted_model(ctx, family, lora);
    disturb_factors(model);
    disturb_factors(dense);
    assert_int_equal(mc_lora_merge(dense), MC_OK);
    double expected = run_backward(ctx, dense, MC_RECOMPUTE_NONE);
    for (mc_recompute how = MC_RECOMPUTE_NONE; how <= MC_RECOMPUTE_FULL; how++) {
        int sites = 0;
        assert_near(run_backward(ctx, model, how), expected, 1e-5 * expected);
        for (size_t i = 0; i < model->module.root->stored_count; i++) {
            const mc_stored *weight = model->module.root->stored[i];
            for (int k = 0; weight->adapter && k < weight->adapter->count; k++, sites++)
                check_site(dense, weight, &weight->adapter->site[k]);
        }
        assert_true(sites >= 2);
        check_frozen(model);
    }
    mc_context_free(ctx);
}

static void test_gradients(void **state)
{
    (void)state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        check_gradients(&tiny_families[f], &everywhere);
        check_gradients(&tiny_families[f], &(mc_lora_options){.rank = 2}); /* of each family */
    }
}

/* ---- training -------------------------------------------------------------------------------- */

/* Factors change, and nothing else, in 16 bits too. */
static void test_training(void **state)
{
    mc_context *ctx = *state;
    static const mc_dtype dtypes[] = {MC_F32, MC_BF16};
    for (int f = 0; f < TINY_FAMILIES; f++)
        for (int d = 0; d < 2; d++) {
            mc_lora_options lora = everywhere;
            lora.dropout = 0.1f;
            mc_load_options load = {.lora = &lora, .dtype = dtypes[d]};
            mc_model *model = tiny_model(ctx, &tiny_families[f], &load);
            int64_t count, at = 0;
            float *before = parameter_values(mc_model_module(model), &count);
            train_steps(ctx, model, &(mc_adam_options){.lr = 0.01f, .weight_decay = 0.1f}, 3);
            float *after = parameter_values(mc_model_module(model), &count);
            mc_parameter_iterator it = {0};
            for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(model), &it));) {
                size_t size = (size_t)mc_shape_count(p->shape);
                bool same = memcmp(before + at, after + at, size * sizeof *after) == 0;
                bool used = !strstr(p->name, "pooler"); /* not by the language model */
                if (used && same == p->is_factor)
                    fail_msg("%s has %schanged", p->name, same ? "not " : "");
                at += (int64_t)size;
            }
            free(before);
            free(after);
            mc_model_free(model);
        }
}

typedef struct planned {
    mc_model *model;
    mc_optim_manager *optim;
} planned;

static void plan_step(mc_context *ctx, void *user)
{
    planned *w = user;
    mc_optim_manager_zero_grad(w->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_optim_manager_backward(w->optim, t, family_loss(t, w->model, (part){PACKED, -1}));
    mc_tape_end(t);
    mc_optim_manager_step(w->optim);
}

static mc_memory_plan plan_of(mc_context *ctx, const tiny_family *f, const mc_lora_options *lora,
                              int64_t *trainable)
{
    mc_context *dry = mc_plan_context_new(ctx);
    planned w = {.model = tiny_model(dry, f, &(mc_load_options){.lora = lora, .dtype = MC_BF16})};
    mc_memory_plan plan;
    mc_model_set_dropout(w.model, 0);
    mc_optimizer *adam = mc_adam_new(dry, NULL);
    mc_optimizer_add(adam, mc_model_module(w.model));
    w.optim = mc_optim_manager_new(dry, NULL);
    mc_optim_manager_add(w.optim, adam, NULL);
    mc_plan_run(dry, mc_model_module(w.model), plan_step, &w, &plan);
    assert_good(dry);
    *trainable = mc_model_trainable_count(w.model);
    mc_context_free(dry);
    return plan;
}

/* Gradients and optimizer state of the factors alone (but for what buckets are rounded up by), and
 * fewer activations than where all is trained. */
static void test_memory(void **state)
{
    mc_context *ctx = *state;
    enum { BUCKETS = 16, ROUNDING = 16 * MC_BUCKET_ALIGN, STATE = 12 /* bytes: m, v, master */ };
    for (int f = 0; f < TINY_FAMILIES; f++) {
        int64_t all, factors, limit;
        mc_lora_options lora = {.rank = 2};
        mc_memory_plan full = plan_of(ctx, &tiny_families[f], NULL, &all);
        mc_memory_plan little = plan_of(ctx, &tiny_families[f], &lora, &factors);
        limit = factors + (int64_t)BUCKETS * ROUNDING;
        assert_true(factors < all / 4);
        assert_in_range(little.optimizer, STATE * factors, STATE * limit);
        assert_in_range(little.gradients, 4 * factors, 4 * limit);
        assert_true(full.optimizer >= (uint64_t)(STATE * all));
        assert_true(little.activations < full.activations);
    }
}

/* A model that is loaded already is not copied for its factors: frozen weights stay where they
 * are. */
static void test_added_later(void **state)
{
    mc_context *ctx = *state;
    static float before[MOST_LOGITS], after[MOST_LOGITS];
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        int64_t count = family_logits(model, (part){PACKED, -1}, before);
        size_t weights = sizeof(float) * (size_t)mc_module_parameter_count(&model->module);
        size_t least = ctx->device->memory.in_use;
        ctx->device->memory.peak = least;
        assert_int_equal(mc_lora_add(model, &(mc_lora_options){.rank = 1}), MC_OK);
        assert_int_equal(mc_module_layout(model->module.root), MC_OK);
        assert_in_range(ctx->device->memory.peak - least, 1, weights / 2);
        family_logits(model, (part){PACKED, -1}, after);
        assert_memory_equal(after, before, (size_t)count * sizeof *after);
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

static bool has_file(const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return mc_path_is_file(path);
}

/* The names of a safetensors file's tensors begin as PEFT's, and there is nothing but factors. */
static void check_adapter_file(mc_context *ctx, const char *folder)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    assert_good(ctx);
    assert_true(mc_tensor_file_count(file) > 0);
    for (size_t i = 0; i < mc_tensor_file_count(file); i++) {
        const char *name = mc_tensor_file_at(file, i)->name;
        assert_memory_equal(name, "base_model.model.", 17);
        if (!strstr(name, ".lora_A.weight") && !strstr(name, ".lora_B.weight"))
            fail_msg("%s is no factor", name);
    }
    mc_tensor_file_free(file);
}

/* A base, an adapter of it, the adapter loaded, trained on, saved again; and merged. */
static void test_files(void **state)
{
    mc_context *ctx = *state;
    static float expected[MOST_LOGITS], found[MOST_LOGITS];
    for (int f = 0; f < TINY_FAMILIES; f++) {
        temp_folder folder = temp_folder_new();
        char base[512], adapter[512], merged[512];
        snprintf(base, sizeof base, "%s", temp_path(&folder, "base"));
        snprintf(adapter, sizeof adapter, "%s", temp_path(&folder, "adapter"));
        snprintf(merged, sizeof merged, "%s", temp_path(&folder, "merged"));
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        assert_int_equal(mc_model_save(model, base), MC_OK);
        mc_model_free(model);
        mc_lora_options lora = everywhere;
        lora.rslora = f % 2;
        model = load(ctx, base, &(mc_load_options){.lora = &lora});
        disturb_factors(model);
        int64_t count = family_logits(model, (part){PACKED, -1}, expected);
        mc_model_save(model, adapter);
        assert_good(ctx);
        mc_model_free(model);
        assert_false(has_file(adapter, "model.safetensors"));
        check_adapter_file(ctx, adapter);
        model = load(ctx, adapter, NULL);
        assert_int_equal(mc_model_lora(model)->rank, lora.rank);
        assert_int_equal(mc_model_lora(model)->rslora, lora.rslora);
        family_logits(model, (part){PACKED, -1}, found);
        assert_memory_equal(found, expected, (size_t)count * sizeof *found);
        check_frozen(model);
        mc_model_free(model);
        mc_model_convert(ctx, adapter, merged, &(mc_convert_options){.merge = true});
        model = load(ctx, merged, NULL);
        assert_null(mc_model_lora(model));
        family_logits(model, (part){PACKED, -1}, found);
        float limit = 2e-5f * largest_of(expected, count);
        for (int64_t i = 0; i < count; i++) assert_near(found[i], expected[i], limit);
        mc_model_free(model);
        temp_folder_free(&folder);
    }
}

/* A head is trained and saved with the factors, and task and labels come along. */
static void test_head(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = keep_said});
    static const char *const names[] = {"bad", "so-so", "good"};
    static const char *const heads[][2] = {{"bert", "classifier.weight"},
                                           {"gpt2", "score.weight"},
                                           {"t5", "classification_head.out_proj.weight"}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        temp_folder folder = temp_folder_new();
        char base[512], adapter[512];
        snprintf(base, sizeof base, "%s", temp_path(&folder, "base"));
        snprintf(adapter, sizeof adapter, "%s", temp_path(&folder, "adapter"));
        mc_model *model = tiny_model(ctx, tiny(heads[i][0]), NULL);
        assert_int_equal(mc_model_save(model, base), MC_OK);
        mc_model_free(model);
        mc_lora_options lora = {.rank = 2};
        *said = '\0';
        model = load(ctx, base, &(mc_load_options){.lora = &lora, .num_labels = 3});
        assert_non_null(strstr(said, "newly initialised"));
        mc_parameter *head = mc_module_find_parameter(mc_model_module(model), heads[i][1]);
        assert_true(mc_parameter_trainable(head));
        mc_model_set_task(model, "mine", names);
        float *expected = copy_of(head, false);
        assert_int_equal(mc_model_save(model, adapter), MC_OK);
        int64_t count = mc_shape_count(head->shape);
        mc_model_free(model);
        *said = '\0';
        model = load(ctx, adapter, NULL);
        assert_null(strstr(said, "newly initialised")); /* all comes from the adapter's file */
        assert_int_equal(mc_model_get_heads(model).labels, 3);
        assert_string_equal(mc_model_task(model), "mine");
        assert_string_equal(mc_model_label_name(model, 1), "so-so");
        head = mc_module_find_parameter(mc_model_module(model), heads[i][1]);
        float *found = copy_of(head, false);
        assert_memory_equal(found, expected, (size_t)count * sizeof *found);
        assert_true(mc_parameter_trainable(head));
        mc_model_free(model);
        model = load(ctx, adapter, &(mc_load_options){.num_labels = 2, .new_head = true});
        assert_string_equal(mc_model_label_name(model, 1), "LABEL_1");
        assert_int_equal(mc_model_get_heads(model).labels, 2);
        free(expected);
        free(found);
        mc_model_free(model);
        temp_folder_free(&folder);
    }
    mc_context_free(ctx);
}

/* The task_type decides what a model the adapter's is: a base's classifier is left out of a
 * language model's. */
static void test_task_types(void **state)
{
    mc_context *ctx = *state;
    static const struct {
        const char *keys, *word;
        int labels;
    } cases[] = {{"", NULL, 3},
                 {"\"task_type\": null, ", NULL, 3},
                 {"\"task_type\": \"SEQ_CLS\", ", NULL, 3},
                 {"\"task_type\": \"FEATURE_EXTRACTION\", ", NULL, 0},
                 {"\"task_type\": \"TOKEN_CLS\", ", "\"TOKEN_CLS\" is not supported", 0},
                 {"\"task_type\": \"CAUSAL_LM\", ", "expected a decoder", 0}};
    temp_folder folder = temp_folder_new();
    char base[512], adapter[512], path[1024], text[2048];
    snprintf(base, sizeof base, "%s", temp_path(&folder, "base"));
    snprintf(adapter, sizeof adapter, "%s", temp_path(&folder, "adapter"));
    const mc_model_heads three = {.labels = 3};
    mc_model *model = model_of(ctx, "roberta", tiny("roberta")->config, &three, NULL);
    mc_lora_options lora = {.rank = 2, .modules_to_save = (const char *const[]){NULL}};
    mc_model_save(model, base);
    mc_model_save(load(ctx, base, &(mc_load_options){.lora = &lora}), adapter);
    snprintf(path, sizeof path, "%s/adapter_config.json", adapter);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text,
                 "{%s\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"query\", "
                 "\"value\"], \"base_model_name_or_path\": \"%s\"}",
                 cases[i].keys, base);
        write_text(path, text);
        model = mc_model_from_pretrained(ctx, adapter, NULL);
        if (cases[i].word) {
            assert_null(model);
            assert_error(ctx, MC_ERR_UNSUPPORTED, "\"task_type\"", cases[i].word);
            continue;
        }
        assert_good(ctx);
        assert_int_equal(mc_model_get_heads(model).labels, cases[i].labels);
    }
    temp_folder_free(&folder);
}

/* ---- tables of the base ---------------------------------------------------------------------- */

enum { MORE_WORDS = 3 };

/* Where a base and its adapter are. */
typedef struct places {
    temp_folder folder;
    char base[512], adapter[512];
} places;

static places make_places(mc_context *ctx, const char *family)
{
    places at = {.folder = temp_folder_new()};
    snprintf(at.base, sizeof at.base, "%s", temp_path(&at.folder, "base"));
    snprintf(at.adapter, sizeof at.adapter, "%s", temp_path(&at.folder, "adapter"));
    mc_model *model = tiny_model(ctx, tiny(family), NULL);
    assert_int_equal(mc_model_save(model, at.base), MC_OK);
    mc_model_free(model);
    return at;
}

static void expect_values(mc_parameter *p, const float *expected, bool same)
{
    float *found = copy_of(p, false);
    bool is_same = memcmp(found, expected, (size_t)mc_shape_count(p->shape) * sizeof *found) == 0;
    assert_true(is_same == same);
    free(found);
}

/* Adds 1 to all values. */
static float *shift_values(mc_parameter *p)
{
    float *values = copy_of(p, false);
    for (int64_t i = 0; i < mc_shape_count(p->shape); i++) values[i] += 1;
    assert_int_equal(mc_parameter_write(p, values), MC_OK);
    return values;
}

/* Words that are trained whole are the input's alone, as in PEFT: the head keeps the base's. */
static void test_words_saved(void **state)
{
    mc_context *ctx = *state;
    static const char *const families[] = {"gpt2", "gptj"}, *const wte[] = {"wte", NULL};
    for (int f = 0; f < 2; f++) {
        places at = make_places(ctx, families[f]);
        mc_lora_options lora = {.rank = 2, .modules_to_save = wte};
        mc_model *base = load(ctx, at.base, NULL);
        mc_parameter *head =
            base->head_weight ? base->head_weight : mc_embedding_weight(base->words);
        float *of_head = copy_of(head, false);
        mc_model *model = load(ctx, at.base, &(mc_load_options){.lora = &lora});
        expect_values(model->head_weight, of_head, true);
        assert_false(mc_parameter_trainable(model->head_weight));
        assert_true(mc_parameter_trainable(mc_embedding_weight(model->words)));
        float *words = shift_values(mc_embedding_weight(model->words));
        assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
        mc_model_free(model);
        model = load(ctx, at.adapter, NULL);
        expect_values(mc_embedding_weight(model->words), words, true);
        expect_values(model->head_weight, of_head, true);
        free(words);
        free(of_head);
        mc_model_free(model);
        mc_model_free(base);
        temp_folder_free(&at.folder);
    }
}

/* A table that an adapter's file holds beside the factors takes the base's place, of a tied model
 * as head, too, and may have more words. It stays a part of the adapter. */
static void test_tables_in_files(void **state)
{
    mc_context *ctx = *state;
    places at = make_places(ctx, "gpt2");
    mc_lora_options lora = {.rank = 2};
    mc_gpt2_config config = mc_gpt2_get_config(load(ctx, at.base, NULL));
    config.vocab_size += MORE_WORDS;
    mc_model *model =
        mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.lora = &lora, .base = at.base});
    mc_parameter *table = mc_embedding_weight(model->words);
    float *words = copy_of(table, false);
    table->in_adapter = true;
    assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
    mc_model_free(model);
    for (int again = 0; again < 2; again++) {
        model = load(ctx, at.adapter, NULL);
        assert_int_equal(mc_model_get_shape(model).vocab_size, config.vocab_size);
        expect_values(mc_embedding_weight(model->words), words, true);
        assert_null(model->head_weight);
        assert_false(mc_parameter_trainable(mc_embedding_weight(model->words)));
        assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
        mc_model_free(model);
    }
    free(words);
    temp_folder_free(&at.folder);
}

/* What an adapter's file holds and no parameter takes is an error, as are words that PEFT would
 * read elsewhere. */
static void test_tables_without_place(void **state)
{
    mc_context *ctx = *state;
    static const char *const wte[] = {"wte", NULL}, *const shared[] = {"shared", NULL};
    static const char *const bert_words[] = {"word_embeddings", NULL};
    places at = make_places(ctx, "gpt2");
    mc_lora_options lora = {.rank = 2};
    mc_model *model = load(ctx, at.base, &(mc_load_options){.lora = &lora});
    mc_module_find_parameter(mc_model_module(model), "position_embedding.weight")->in_adapter =
        true;
    assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
    assert_null(mc_model_from_pretrained(ctx, at.adapter, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "1 tensor has no place in the model",
                 "\"base_model.model.transformer.wpe.weight\"");
    lora.modules_to_save = wte;
    model = load(ctx, at.base, NULL);
    assert_true(mc_lora_add(model, &lora) == MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "the head's table too", "when the model is loaded");
    lora.modules_to_save = shared;
    assert_null(model_of(ctx, "t5", tiny("t5")->config, NULL, &(mc_load_options){.lora = &lora}));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "T5", "neither stack");
    lora.modules_to_save = bert_words;
    mc_model_heads masked = {.lm = true};
    assert_null(
        model_of(ctx, "bert", tiny("bert")->config, &masked, &(mc_load_options){.lora = &lora}));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "BERT", "the head's table too");
    temp_folder_free(&at.folder);
}

/* A base that has a classifier of other classes: the adapter's is read in its place. */
static void test_head_of_other_classes(void **state)
{
    mc_context *ctx = *state;
    static const char *const heads[][2] = {{"bert", "classifier.weight"},
                                           {"gpt2", "score.weight"},
                                           {"distilbert", "classifier.out_proj.weight"}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        temp_folder folder = temp_folder_new();
        char base[512], adapter[512];
        snprintf(base, sizeof base, "%s", temp_path(&folder, "base"));
        snprintf(adapter, sizeof adapter, "%s", temp_path(&folder, "adapter"));
        const mc_model_heads five = {.pooler = i == 0, .labels = 5};
        mc_model *model = model_of(ctx, heads[i][0], tiny(heads[i][0])->config, &five, NULL);
        assert_int_equal(mc_model_save(model, base), MC_OK);
        mc_model_free(model);
        const mc_lora_options lora = {.rank = 2};
        model =
            load(ctx, base, &(mc_load_options){.lora = &lora, .num_labels = 3, .new_head = true});
        mc_parameter *head = mc_module_find_parameter(mc_model_module(model), heads[i][1]);
        float *expected = copy_of(head, false);
        assert_int_equal(mc_model_save(model, adapter), MC_OK);
        mc_model_free(model);
        model = load(ctx, adapter, NULL);
        assert_int_equal(mc_model_get_heads(model).labels, 3);
        head = mc_module_find_parameter(mc_model_module(model), heads[i][1]);
        float *found = copy_of(head, false);
        assert_memory_equal(found, expected, (size_t)mc_shape_count(head->shape) * sizeof *found);
        free(expected);
        free(found);
        mc_model_free(model);
        temp_folder_free(&folder);
    }
}

/* What the base lacks is trained and saved, or its random values would be lost. */
static void test_new_modules(void **state)
{
    mc_context *ctx = *state;
    static const struct {
        const char *family;
        bool words;             /* the base has a language model's head */
        const char *modules[3]; /* as `transformers` calls them */
        const char *parameter;  /* of the last of them */
    } cases[] = {{"bert", true, {"classifier", "pooler"}, "pooler.dense.weight"},
                 {"distilbert", true, {"classifier", "pre_classifier"}, "classifier.dense.weight"},
                 {"modernbert", false, {"classifier", "head"}, "head.dense.weight"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        temp_folder folder = temp_folder_new();
        char base[512], adapter[512];
        snprintf(base, sizeof base, "%s", temp_path(&folder, "base"));
        snprintf(adapter, sizeof adapter, "%s", temp_path(&folder, "adapter"));
        const mc_model_heads bare = {.lm = cases[i].words};
        mc_model *model =
            model_of(ctx, cases[i].family, tiny(cases[i].family)->config, &bare, NULL);
        assert_int_equal(mc_model_save(model, base), MC_OK);
        mc_model_free(model);
        /* what is trained whole gets no factors */
        const mc_lora_options lora = everywhere;
        model = load(ctx, base, &(mc_load_options){.lora = &lora, .num_labels = 2});
        const char *const *modules = mc_model_lora(model)->modules_to_save;
        for (int k = 0; cases[i].modules[k] || modules[k]; k++)
            assert_string_equal(modules[k], cases[i].modules[k]);
        mc_parameter *p = mc_module_find_parameter(mc_model_module(model), cases[i].parameter);
        assert_true(mc_parameter_trainable(p));
        float *expected = copy_of(p, false);
        assert_int_equal(mc_model_save(model, adapter), MC_OK);
        mc_model_free(model);
        mc_context *other =
            mc_init_distributed(&(mc_init_options){.seed = 99}); /* other random values */
        model = load(other, adapter, NULL);
        p = mc_module_find_parameter(mc_model_module(model), cases[i].parameter);
        float *found = copy_of(p, false);
        assert_memory_equal(found, expected, (size_t)mc_shape_count(p->shape) * sizeof *found);
        free(expected);
        free(found);
        mc_context_free(other);
        temp_folder_free(&folder);
    }
}

/* ---- heads of pretraining -------------------------------------------------------------------- */

/* The same names, in whatever order. */
static void expect_names(const char *const *found, const char *const *expected)
{
    int count = 0, left = 0;
    for (; found[left]; left++) count++;
    for (; *expected; expected++, left--) {
        bool listed = false;
        for (int i = 0; i < count; i++) listed = listed || strcmp(found[i], *expected) == 0;
        if (!listed) fail_msg("\"%s\" is not listed", *expected);
    }
    assert_int_equal(left, 0);
}

/* PEFT requires all tensors of a module to save, those that were tied included. */
static void check_whole_cls(mc_context *ctx, const char *adapter)
{
    static const char *const names[] = {"decoder.weight", "decoder.bias", "bias",
                                        "transform.dense.weight", "transform.LayerNorm.bias"};
    char path[1024], name[128];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter);
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "base_model.model.cls.predictions.%s", names[i]);
        if (!mc_tensor_file_find(file, name)) fail_msg("%s is missing", name);
    }
    mc_tensor_file_free(file);
}

/* Trains an adapter with the heads that its base lacks, whose logits are those of the model that is
 * read from its file, to the bit, and of the merged one. */
static void check_new_heads(const char *family, const mc_model_heads *had,
                            const mc_model_heads *asked, const char *const *modules)
{
    static float trained[MOST_LOGITS], found[MOST_LOGITS];
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5, .log = keep_said});
    mc_context *other = mc_init_distributed(&(mc_init_options){.seed = 6});
    places at = {.folder = temp_folder_new()};
    snprintf(at.base, sizeof at.base, "%s", temp_path(&at.folder, "base"));
    snprintf(at.adapter, sizeof at.adapter, "%s", temp_path(&at.folder, "adapter"));
    mc_model *model = model_of(ctx, family, tiny(family)->config, had, NULL);
    assert_int_equal(mc_model_save(model, at.base), MC_OK);
    mc_model_free(model);
    *said = '\0';
    model = load(ctx, at.base, &(mc_load_options){.lora = &everywhere, .heads = asked});
    assert_non_null(strstr(said, "a new one is made"));
    expect_names(mc_model_lora(model)->modules_to_save, modules);
    mc_model_set_dropout(model, 0);
    train_steps(ctx, model, &(mc_adam_options){.lr = 0.01f}, 3);
    int64_t count = family_logits(model, (part){PACKED, -1}, trained);
    assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
    if (strcmp(family, "bert") == 0 && !had->lm) check_whole_cls(ctx, at.adapter);
    mc_model *again = load(other, at.adapter, NULL);
    mc_model_heads heads = mc_model_get_heads(again);
    assert_true(heads.lm && heads.nsp == asked->nsp);
    family_logits(again, (part){PACKED, -1}, found);
    assert_memory_equal(found, trained, (size_t)count * sizeof *found);
    assert_int_equal(mc_lora_merge(again), MC_OK);
    family_logits(again, (part){PACKED, -1}, found);
    float limit = 2e-5f * largest_of(trained, count); /* the sums of products in another order */
    for (int64_t i = 0; i < count; i++) assert_near(found[i], trained[i], limit);
    mc_context_free(other);
    mc_context_free(ctx);
    temp_folder_free(&at.folder);
}

/* Under the names that `transformers` has for what is new, and nothing else. */
static void test_new_language_heads(void **state)
{
    (void)state;
    static const mc_model_heads bare = {.lm = false}, words = {.lm = true},
                                both = {.lm = true, .pooler = true, .nsp = true};
    static const struct {
        const char *family, *modules[4];
    } cases[] = {{"bert", {"cls"}},
                 {"roberta", {"lm_head"}},
                 {"distilbert", {"vocab_projector", "vocab_transform", "vocab_layer_norm"}},
                 {"electra", {"generator_lm_head", "generator_predictions"}},
                 {"mpnet", {"lm_head"}},
                 {"modernbert", {"decoder", "head"}},
                 {"longformer", {"lm_head"}},
                 {"gptj", {"lm_head"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_new_heads(cases[i].family, &bare, &words, cases[i].modules);
    /* of the pooler none has a use without next sentences */
    check_new_heads("bert", &bare, &both, (const char *const[]){"pooler", "cls", NULL});
    check_new_heads("bert", &words, &both,
                    (const char *const[]){"pooler", "cls.seq_relationship", NULL});
}

/* Factors that are added later: what was new when the base was loaded is saved, too; but for a head
 * that shares the words' table. */
static void test_new_head_added_later(void **state)
{
    mc_context *ctx = *state;
    static const mc_model_heads bare = {.lm = false}, words = {.lm = true};
    places at = {.folder = temp_folder_new()};
    snprintf(at.base, sizeof at.base, "%s", temp_path(&at.folder, "base"));
    snprintf(at.adapter, sizeof at.adapter, "%s", temp_path(&at.folder, "adapter"));
    mc_model *model = model_of(ctx, "distilbert", tiny("distilbert")->config, &bare, NULL);
    assert_int_equal(mc_model_save(model, at.base), MC_OK);
    model = load(ctx, at.base, &(mc_load_options){.num_labels = 2});
    assert_int_equal(mc_lora_add(model, &everywhere), MC_OK);
    expect_names(mc_model_lora(model)->modules_to_save,
                 (const char *const[]){"classifier", "pre_classifier", NULL});
    mc_parameter *p = mc_module_find_parameter(mc_model_module(model), "classifier.dense.weight");
    float *expected = copy_of(p, false);
    assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
    model = load(ctx, at.adapter, NULL);
    p = mc_module_find_parameter(mc_model_module(model), "classifier.dense.weight");
    expect_values(p, expected, true);
    model = load(ctx, at.base, &(mc_load_options){.heads = &words});
    assert_int_equal(mc_lora_add(model, &everywhere), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "DistilBERT has the words' table", "mc_load_options");
    free(expected);
    temp_folder_free(&at.folder);
}

/* Reads what a base has of a model's parameters. */
static void copy_base(mc_context *ctx, mc_model *model, const char *folder)
{
    mc_model *base = load(ctx, folder, NULL);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(base), &it));) {
        mc_parameter *to = mc_module_find_parameter(mc_model_module(model), p->name);
        float *values = copy_of(p, false);
        if (to) assert_int_equal(mc_parameter_write(to, values), MC_OK); /* it has no pooler */
        free(values);
    }
    mc_model_free(base);
}

/* PEFT's copy of a module to save has a table of words of its own, which is trained: the head is no
 * longer the base's words. */
static void test_own_table_of_masked_head(void **state)
{
    mc_context *ctx = *state;
    static float expected[MOST_LOGITS], found[MOST_LOGITS];
    static const char *const cls[] = {"cls", NULL};
    static const mc_model_heads words = {.lm = true};
    places at = {.folder = temp_folder_new()};
    snprintf(at.base, sizeof at.base, "%s", temp_path(&at.folder, "base"));
    snprintf(at.adapter, sizeof at.adapter, "%s", temp_path(&at.folder, "adapter"));
    const mc_lora_options lora = {.rank = 2, .modules_to_save = cls, .base = at.base};
    mc_model *model = model_of(ctx, "bert", tiny("bert")->config, &words, NULL);
    assert_int_equal(mc_model_save(model, at.base), MC_OK);
    char untied[1024];
    snprintf(untied, sizeof untied, "%.900s, \"tie_word_embeddings\": false}",
             tiny("bert")->config);
    *strstr(untied, "}, ") = ' ';
    model = model_of(ctx, "bert", untied, &words, NULL);
    copy_base(ctx, model, at.base);
    assert_int_equal(mc_lora_add(model, &lora), MC_OK);
    assert_true(mc_parameter_trainable(model->head_weight));
    free(shift_values(model->head_weight));
    int64_t count = family_logits(model, (part){PACKED, -1}, expected);
    assert_int_equal(mc_model_save(model, at.adapter), MC_OK);
    model = load(ctx, at.adapter, NULL);
    family_logits(model, (part){PACKED, -1}, found);
    assert_memory_equal(found, expected, (size_t)count * sizeof *found);
    temp_folder_free(&at.folder);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *const no_names[] = {"q_proj", "queries", NULL}, *const none[] = {NULL},
                         *const norm[] = {"ln_1", NULL};

static void test_option_errors(void **state)
{
    mc_context *ctx = *state;
    static const struct {
        mc_lora_options o;
        mc_status status;
        const char *words[3];
    } cases[] = {
        {{.rank = -1}, MC_ERR_ARGUMENT, {"rank -1", "1 to"}},
        {{.dropout = 1}, MC_ERR_ARGUMENT, {"dropout 1", "less than 1"}},
        {{.alpha = INFINITY}, MC_ERR_ARGUMENT, {"alpha inf", "finite"}},
        {{.targets = no_names}, MC_ERR_NOT_FOUND, {"\"queries\"", "GPT-J", "\"fc_in\""}},
        {{.targets = norm}, MC_ERR_NOT_FOUND, {"\"ln_1\"", "no linear layer", "\"out_proj\""}},
        {{.targets = none}, MC_ERR_NOT_FOUND, {"target \"(none given)\"", "\"v_proj\""}},
        {{.target_pattern = "nothing.*"}, MC_ERR_NOT_FOUND, {"\"the pattern\"", "\"v_proj\""}},
        {{.target_pattern = "(?:q|v)_proj"}, MC_ERR_UNSUPPORTED, {"(?:q", "POSIX"}},
        {{.target_pattern = "(q"}, MC_ERR_UNSUPPORTED, {"\"(q\"", "POSIX"}},
        {{.targets = norm, .target_pattern = "x"}, MC_ERR_ARGUMENT, {"both"}},
        {{.modules_to_save = no_names}, MC_ERR_NOT_FOUND, {"module to save", "\"queries\""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mc_model *model = tiny_model(ctx, tiny("gptj"), NULL);
        mc_lora_options o = cases[i].o;
        if (o.modules_to_save) o.modules_to_save = no_names + 1;
        assert_int_equal(mc_lora_add(model, &o), cases[i].status);
        for (int w = 0; w < 3 && cases[i].words[w]; w++)
            if (!strstr(mc_error_message(ctx), cases[i].words[w]))
                fail_msg("no \"%s\" in: %s", cases[i].words[w], mc_error_message(ctx));
        mc_clear_error(ctx);
        mc_model_free(model);
    }
}

/* Adapters that say what is not read here, or whose files do not fit. */
static void test_bad_files(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    char base[512], adapter[512], path[1024], text[2048];
    snprintf(base, sizeof base, "%s", temp_path(&folder, "base"));
    snprintf(adapter, sizeof adapter, "%s", temp_path(&folder, "adapter"));
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    mc_model_save(model, base);
    mc_model_free(model);
    mc_lora_options lora = {.rank = 2};
    model = load(ctx, base, &(mc_load_options){.lora = &lora});
    mc_model_save(model, adapter);
    mc_model_free(model);
    static const struct {
        const char *keys;
        mc_status status;
        const char *words[2];
    } cases[] = {
        {"\"use_dora\": true", MC_ERR_UNSUPPORTED, {"\"use_dora\"", "true"}},
        {"\"rank_pattern\": {\"c_attn\": 4}", MC_ERR_UNSUPPORTED, {"\"rank_pattern\""}},
        {"\"layers_to_transform\": [0]", MC_ERR_UNSUPPORTED, {"\"layers_to_transform\"", "[0]"}},
        {"\"bias\": \"all\"", MC_ERR_UNSUPPORTED, {"\"bias\"", "\"none\""}},
        {"\"peft_type\": \"IA3\"", MC_ERR_UNSUPPORTED, {"\"peft_type\"", "IA3"}},
        {"\"init_lora_weights\": \"pissa\"", MC_ERR_UNSUPPORTED, {"\"pissa\"", "gaussian"}},
        {"\"task_type\": \"TOKEN_CLS\"", MC_ERR_UNSUPPORTED, {"\"task_type\"", "\"SEQ_CLS\""}},
        {"\"task_type\": \"QUESTION_ANS\"", MC_ERR_UNSUPPORTED, {"\"QUESTION_ANS\"", "null"}},
        {"\"task_type\": \"SEQ_2_SEQ_LM\"",
         MC_ERR_UNSUPPORTED,
         {"the base is a GPT-2", "an encoder-decoder"}},
        {"\"task_type\": \"SEQ_CLS\"", MC_ERR_UNSUPPORTED, {"\"task_type\"", "a classifier"}},
        {"\"task_type\": 3", MC_ERR_FORMAT, {"\"task_type\""}},
        {"\"r\": 0", MC_ERR_FORMAT, {"\"r\"", "1 to"}},
        {"\"r\": 3", MC_ERR_SHAPE, {"lora_A.weight", "(3, 16)"}},
        {"\"target_modules\": [\"c_attn\", \"c_fc\"]",
         MC_ERR_NOT_FOUND,
         {"missing", "c_fc.lora_A"}},
        {"\"target_modules\": 3", MC_ERR_FORMAT, {"\"target_modules\""}},
        {"\"target_modules\": [3]", MC_ERR_FORMAT, {"\"target_modules\"", "names"}},
        {"\"base_model_name_or_path\": null", MC_ERR_NOT_FOUND, {"names no base", "--base"}},
        {"\"base_model_name_or_path\": \"ADAPTER\"", MC_ERR_UNSUPPORTED, {"an adapter itself"}},
    };
    snprintf(path, sizeof path, "%s/adapter_config.json", adapter);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *keys = cases[i].keys, *own = strstr(keys, "ADAPTER");
        snprintf(text, sizeof text,
                 "{%.*s%s%s, \"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": "
                 "[\"c_attn\"], \"base_model_name_or_path\": \"%s\"}",
                 own ? (int)(own - keys) : (int)strlen(keys), keys, own ? adapter : "",
                 own ? "\"" : "", base);
        write_text(path, text);
        assert_null(mc_model_from_pretrained(ctx, adapter, NULL));
        if (mc_error_status(ctx) != cases[i].status)
            fail_msg("%s: status %d: %s", keys, mc_error_status(ctx), mc_error_message(ctx));
        for (int w = 0; w < 2 && cases[i].words[w]; w++)
            if (!strstr(mc_error_message(ctx), cases[i].words[w]))
                fail_msg("no \"%s\" in: %s", cases[i].words[w], mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    snprintf(text, sizeof text, "%s/adapter_model.safetensors", adapter);
    assert_int_equal(remove(text), 0);
    assert_null(mc_model_from_pretrained(ctx, adapter, NULL));
    assert_true(mc_failed(ctx));
    mc_clear_error(ctx);
    temp_folder_free(&folder);
}

static void test_state_errors(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    assert_int_equal(mc_lora_merge(model), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "no factors");
    assert_int_equal(mc_lora_add(NULL, NULL), MC_ERR_ARGUMENT);
    assert_null(mc_model_lora(NULL));
    assert_int_equal(mc_lora_add(model, NULL), MC_OK);
    assert_int_equal(mc_model_lora(model)->rank, 8);
    assert_true(mc_model_lora(model)->alpha == 16);
    assert_string_equal(mc_model_lora(model)->targets[0], "c_attn");
    mc_lora_add(model, NULL);
    assert_error(ctx, MC_ERR_STATE, "already");
    mc_model_save(model, folder.path);
    assert_error(ctx, MC_ERR_STATE, "base");
    mc_parameter_new(mc_model_module(model), "own", MC_SHAPE(2), mc_init_zeros());
    mc_lora_merge(model);
    assert_error(ctx, MC_ERR_STATE, "\"own\"", "after");
    mc_model_free(model);
    temp_folder_free(&folder);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up_context, tear_down_context)
    const struct CMUnitTest tests[] = {TEST(test_values),
                                       TEST(test_gradients),
                                       TEST(test_training),
                                       TEST(test_memory),
                                       TEST(test_added_later),
                                       TEST(test_files),
                                       TEST(test_head),
                                       TEST(test_head_of_other_classes),
                                       TEST(test_new_modules),
                                       TEST(test_task_types),
                                       TEST(test_new_language_heads),
                                       TEST(test_new_head_added_later),
                                       TEST(test_own_table_of_masked_head),
                                       TEST(test_words_saved),
                                       TEST(test_tables_in_files),
                                       TEST(test_tables_without_place),
                                       TEST(test_option_errors),
                                       TEST(test_bad_files),
                                       TEST(test_state_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
