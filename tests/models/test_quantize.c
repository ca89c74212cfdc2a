/* Models whose weights are in 8 bits, of every family: what they compute, against the same model
 * with the weights that the bytes stand for; memory; and what they refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>
#include "core/nn/quantized_internal.h"
#include "tests/models/family_test.h"

static const mc_weight_format formats[] = {MC_WEIGHTS_INT8, MC_WEIGHTS_FP8};
enum { FORMATS = 2, ANSWER = 10 };

static const int32_t first_prompt[] = {3, 14, 15, 9, 26}, second_prompt[] = {5};
static const int32_t *const prompts[] = {first_prompt, second_prompt};
static const int prompt_lengths[] = {5, 1};

/* The embedding of a model whose head is tied to it has a copy in 8 bits for products alone. With
 * these values, whole multiples of their row's scale, both are the same. */
static void round_embedding(mc_model *model, mc_weight_format format)
{
    mc_parameter *p = mc_embedding_weight(model->words);
    int64_t columns = p->shape.dim[1], count = mc_shape_count(p->shape);
    float most = format == MC_WEIGHTS_INT8 ? 127 * 0x1p-9f : 448 * 0x1p-11f;
    float *v = malloc((size_t)count * sizeof *v);
    assert_int_equal(mc_parameter_read(p, v), MC_OK);
    for (int64_t i = 0; i < count; i++) {
        float size = fminf(fmaxf(fabsf(v[i]), 0x1p-9f), 0x1p-3f); /* a power of two */
        v[i] = copysignf(i % columns ? ldexpf(1, (int)floorf(log2f(size))) : most, v[i]);
    }
    assert_int_equal(mc_parameter_write(p, v), MC_OK);
    free(v);
}

static void copy_values(mc_model *from, mc_model *to)
{
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(from), &it));) {
        float *v = malloc((size_t)mc_shape_count(p->shape) * sizeof *v);
        assert_int_equal(mc_parameter_read(p, v), MC_OK);
        mc_parameter *other = mc_module_find_parameter(mc_model_module(to), p->name);
        assert_int_equal(mc_parameter_write(other, v), MC_OK);
        free(v);
    }
}

/* A model in 8 bits, and one in f32 with what the bytes stand for. */
static mc_model *quantized(mc_context *ctx, const tiny_family *f, mc_weight_format format,
                           mc_model **plain)
{
    mc_model *model = tiny_model(ctx, f, NULL);
    *plain = tiny_model(ctx, f, NULL);
    assert_int_equal(mc_model_weight_format(model), MC_WEIGHTS_FLOAT);
    assert_int_equal(mc_model_quantize(model, format), MC_OK);
    assert_int_equal(mc_model_weight_format(model), format);
    copy_values(model, *plain);
    return model;
}

/* ---- what they compute ----------------------------------------------------------------------- */

/* The head of the plain model, where it is tied to the embedding, in 8 bits by hand. */
static void quantize_head(mc_model *plain, const mc_model *model)
{
    mc_stored *from = model->head_weight ? NULL : mc_embedding_weight(model->words)->stored;
    if (!from || !from->quantized.data) return;
    mc_stored *to = mc_embedding_weight(plain->words)->stored;
    mc_device *device = plain->module.ctx->device;
    size_t bytes = (size_t)from->count, scales = (size_t)from->quantized.rows * sizeof(float);
    to->quantized = from->quantized;
    to->quantized.data = device->alloc(device, bytes);
    to->quantized.scale = device->alloc(device, scales);
    memcpy(to->quantized.data, from->quantized.data, bytes);
    memcpy(to->quantized.scale, from->quantized.scale, scales);
}

static void compare_answers(const char *name, mc_model *model, mc_model *plain, int beams)
{
    mc_generate_options o = {.max_new_tokens = ANSWER, .ignore_eos = true, .num_beams = beams};
    mc_generation *got = mc_model_generate(model, prompts, prompt_lengths, 2, &o);
    mc_generation *expected = mc_model_generate(plain, prompts, prompt_lengths, 2, &o);
    assert_good(mc_model_module(model)->ctx);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(got->lengths[i], expected->lengths[i]);
        for (int k = 0; k < got->lengths[i]; k++)
            if (got->ids[i][k] != expected->ids[i][k])
                fail_msg("%s, %d beams: token %d after prompt %d", name, beams, k, i);
        assert_near(got->scores[i], expected->scores[i], 1e-4);
    }
    mc_generation_free(got);
    mc_generation_free(expected);
}

/* Sums are those of f32 in another order. */
static void compare_logits(const char *name, mc_model *model, mc_model *plain)
{
    static float got[MOST_LOGITS], expected[MOST_LOGITS];
    int64_t count = family_logits(model, (part){PACKED, -1}, got);
    assert_int_equal(family_logits(plain, (part){PACKED, -1}, expected), count);
    float most = 1;
    for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(expected[i]));
    for (int64_t i = 0; i < count; i++)
        if (fabsf(got[i] - expected[i]) > 2e-5f * most)
            fail_msg("%s: logit %lld: %.9g, expected %.9g", name, (long long)i, (double)got[i],
                     (double)expected[i]);
}

static float mean_loss(mc_model *model)
{
    mc_context *ctx = mc_model_module(model)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    float loss = mc_mean_loss(ctx, family_loss(t, model, (part){PACKED, -1}));
    assert_good(ctx);
    mc_tape_end(t);
    return loss;
}

static void test_values(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++)
        for (int k = 0; k < FORMATS; k++) {
            const char *name = tiny_families[f].name;
            mc_model *plain, *model = quantized(ctx, &tiny_families[f], formats[k], &plain);
            quantize_head(plain, model);
            compare_logits(name, model, plain);
            assert_near(mean_loss(model), mean_loss(plain), 1e-5);
            if (!is_kind(model, MC_MODEL_ENCODER)) {
                compare_answers(name, model, plain, 1);
                compare_answers(name, model, plain, 3);
            }
            mc_model_free(model);
            mc_model_free(plain);
        }
}

/* A tied head takes its copy: the same tokens as an embedding of values that bytes hold. */
static void test_tied_head(void **state)
{
    mc_context *ctx = *state;
    for (int k = 0; k < FORMATS; k++) {
        mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
        mc_model *plain = tiny_model(ctx, tiny("gpt2"), NULL);
        round_embedding(model, formats[k]);
        assert_int_equal(mc_model_quantize(model, formats[k]), MC_OK);
        copy_values(model, plain);
        compare_answers("gpt2", model, plain, 1);
        mc_model_free(model);
        mc_model_free(plain);
    }
}

/* What is read is scale * byte: within half a step of what was there. */
static void test_read(void **state)
{
    mc_context *ctx = *state;
    mc_model *plain = tiny_model(ctx, tiny("gptj"), NULL),
             *model = tiny_model(ctx, tiny("gptj"), NULL);
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_INT8), MC_OK);
    mc_parameter_iterator it = {0};
    int changed = 0;
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(plain), &it));) {
        mc_parameter *q = mc_module_find_parameter(mc_model_module(model), p->name);
        int64_t count = mc_shape_count(p->shape), columns = p->shape.dim[p->shape.ndim - 1];
        float *a = malloc((size_t)count * sizeof *a), *b = malloc((size_t)count * sizeof *b);
        assert_int_equal(mc_parameter_read(p, a), MC_OK);
        assert_int_equal(mc_parameter_read(q, b), MC_OK);
        for (int64_t first = 0; first < count; first += columns) {
            float most = 0;
            for (int64_t i = first; i < first + columns; i++) most = fmaxf(most, fabsf(a[i]));
            for (int64_t i = first; i < first + columns; i++) {
                assert_near(b[i], a[i], q->stored->leaves ? most / 253 : 0);
                changed += b[i] != a[i];
            }
        }
        free(a);
        free(b);
    }
    assert_true(changed > 1000);
    mc_model_free(plain);
    mc_model_free(model);
}

/* Factors stay beside the weights. */
static void test_lora(void **state)
{
    mc_context *ctx = *state;
    const mc_load_options load = {
        .lora = &(mc_lora_options){.rank = 2, .target_pattern = "all-linear"}};
    mc_model *model = tiny_model(ctx, tiny("gpt2"), &load),
             *plain = tiny_model(ctx, tiny("gpt2"), &load);
    for (int i = 0; i < 2; i++) {
        mc_parameter_iterator it = {0};
        for (mc_parameter *p;
             (p = mc_module_next_parameter(mc_model_module(i ? plain : model), &it));) {
            if (!p->is_factor) continue;
            int64_t count = mc_shape_count(p->shape);
            float *v = malloc((size_t)count * sizeof *v);
            for (int64_t j = 0; j < count; j++) v[j] = 0.1f * (float)(j % 7 - 3);
            assert_int_equal(mc_parameter_write(p, v), MC_OK);
            free(v);
        }
    }
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_INT8), MC_OK);
    copy_values(model, plain);
    quantize_head(plain, model);
    compare_logits("gpt2 with LoRA", model, plain);
    assert_int_equal(mc_lora_merge(model), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "merging", "8 bits");
    mc_model_free(model);
    mc_model_free(plain);
}

/* ---- the base of an adapter ------------------------------------------------------------------ */

static const mc_load_options adapted = {
    .lora = &(mc_lora_options){.rank = 2, .target_pattern = "all-linear", .base = "base"}};

enum { ROWS = 5, IN = 24, OUT = 16 };

/* Gradients of input and bias: of the product in 8 bits, or with what the bytes stand for. */
static void gradients(mc_context *ctx, mc_dtype dtype, const mc_matrix8 *w, bool eight,
                      char *dx /* as f32 */, char *dbias)
{
    static float x[ROWS * IN], dy[ROWS * OUT], whole[OUT * IN], bias[OUT];
    static uint16_t narrow[ROWS * IN + ROWS * OUT + OUT * IN + OUT];
    mc_device *device = ctx->device;
    for (int i = 0; i < ROWS * IN; i++) x[i] = 0.25f * (float)(i % 11 - 5);
    for (int i = 0; i < ROWS * OUT; i++) dy[i] = 0.3f * (float)(i % 7 - 3);
    mc_tape *t = mc_tape_begin(ctx);
    bool wide = dtype == MC_F32;
    memset(narrow, 0, sizeof narrow);
    mc_tensor *xs = mc_tape_input(t, dtype, MC_SHAPE(ROWS, IN), wide ? (void *)x : narrow, true);
    mc_tensor *bs = mc_tape_input(t, dtype, MC_SHAPE(OUT), wide ? (void *)bias : narrow, true);
    mc_tensor *ys = mc_tape_input(t, dtype, MC_SHAPE(ROWS, OUT), wide ? (void *)dy : narrow, false);
    mc_tensor *ws =
        mc_tape_input(t, dtype, MC_SHAPE(OUT, IN), wide ? (void *)whole : narrow, false);
    if (!wide)
        device->kernels->scale(device, ROWS * OUT, (mc_matrix){dy, MC_F32, 0}, 1,
                               mc_matrix_flat(ys), false);
    device->kernels->dequantize(device, *w, mc_matrix_of(ws));
    mc_tensor *y = eight ? mc_linear_quantized(t, xs, w, bs, MC_ACTIVATION_NONE, 0.5f)
                         : mc_scaled_linear(t, xs, ws, bs, MC_ACTIVATION_NONE, 0.5f);
    assert_int_equal(mc_tape_backward(t, y, ys), MC_OK);
    memcpy(dx, mc_tensor_data(mc_tensor_gradient(xs)), ROWS * IN * mc_dtype_size(dtype));
    memcpy(dbias, mc_tensor_data(mc_tensor_gradient(bs)), OUT * mc_dtype_size(dtype));
    mc_tape_end(t);
}

static void test_gradients(void **state)
{
    mc_context *ctx = *state;
    mc_device *device = ctx->device;
    static float values[OUT * IN], scales[OUT], dx[2][ROWS * IN], dbias[2][OUT];
    static uint8_t bytes[OUT * IN];
    const mc_dtype dtypes[] = {MC_F32, MC_BF16};
    for (int i = 0; i < OUT * IN; i++) values[i] = sinf((float)i);
    for (int k = 0; k < FORMATS; k++)
        for (int type = 0; type < 2; type++) {
            mc_matrix8 w = {
                .data = bytes, .scale = scales, .format = formats[k], .rows = OUT, .columns = IN};
            device->kernels->quantize(device, (mc_matrix){values, MC_F32, IN}, w);
            for (int eight = 0; eight < 2; eight++)
                gradients(ctx, dtypes[type], &w, eight, (char *)dx[eight], (char *)dbias[eight]);
            size_t size = mc_dtype_size(dtypes[type]);
            assert_memory_equal(dx[0], dx[1], ROWS * IN * size);
            assert_memory_equal(dbias[0], dbias[1], OUT * size);
            assert_true(dx[0][3] != 0 && dbias[0][3] != 0);
        }
    assert_good(ctx);
}

/* Values of the factors, NaN before the first of them is read; how many. */
static int64_t read_factors(mc_model *m, bool gradient, float *out, int64_t most)
{
    int64_t count = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(m), &it));) {
        if (!p->is_factor) continue;
        assert_true(count + mc_shape_count(p->shape) <= most);
        assert_int_equal(gradient ? mc_parameter_read_gradient(p, out + count)
                                  : mc_parameter_read(p, out + count),
                         MC_OK);
        count += mc_shape_count(p->shape);
    }
    return count;
}

static void compare_factors(const char *name, mc_model *model, mc_model *plain, bool gradient,
                            float tolerance)
{
    enum { MOST = 1 << 15 };
    static float got[MOST], expected[MOST];
    int64_t count = read_factors(model, gradient, got, MOST);
    assert_true(count > 0);
    assert_int_equal(read_factors(plain, gradient, expected, MOST), count);
    float most = 0;
    for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(expected[i]));
    assert_true(most > 0);
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - expected[i]) <= tolerance * most))
            fail_msg("%s: %s %lld of factors: %.9g, expected %.9g", name,
                     gradient ? "gradient" : "value", (long long)i, (double)got[i],
                     (double)expected[i]);
}

/* Loss, gradients and three steps of an adapter, as beside the same numbers in f32. */
static void check_base(mc_context *ctx, const tiny_family *f, mc_weight_format format)
{
    mc_model *both[2];
    for (int i = 0; i < 2; i++) {
        both[i] = tiny_model(ctx, f, &adapted);
        mc_model_set_dropout(both[i], 0);
    }
    int64_t trained = mc_model_trainable_count(both[0]);
    assert_int_equal(mc_model_quantize_base(both[0], format), MC_OK);
    assert_int_equal(mc_model_weight_format(both[0]), format);
    assert_int_equal(mc_model_trainable_count(both[0]), trained);
    copy_values(both[0], both[1]);
    assert_near(mean_loss(both[0]), mean_loss(both[1]), 1e-5);
    for (int i = 0; i < 2; i++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tape_backward(t, family_loss(t, both[i], (part){PACKED, -1}), NULL);
        mc_tape_end(t);
    }
    assert_good(ctx);
    compare_factors(f->name, both[0], both[1], true, 1e-4f);
    for (int i = 0; i < 2; i++) {
        mc_module_zero_grad(mc_model_module(both[i]));
        train_steps(ctx, both[i], &(mc_adam_options){.lr = 1e-3f, .eps = 1e-3f}, 3);
    }
    compare_factors(f->name, both[0], both[1], false, 1e-4f);
    for (int i = 0; i < 2; i++) mc_model_free(both[i]);
}

static void test_base(void **state)
{
    for (int f = 0; f < TINY_FAMILIES; f++) check_base(*state, &tiny_families[f], formats[f % 2]);
}

/* The adapter is saved, and nothing else; what the base refuses. */
static void test_base_saved(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    mc_model *model = tiny_model(ctx, tiny("gpt2"), &adapted);
    assert_int_equal(mc_model_quantize_base(NULL, MC_WEIGHTS_FP8), MC_ERR_ARGUMENT);
    assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_FLOAT), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "format 0", "MC_WEIGHTS_FP8");
    assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_FP8), MC_OK);
    assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_FP8), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "already");
    assert_int_equal(mc_lora_merge(model), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "merging", "8 bits");
    mc_optimizer *o = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.1f});
    assert_int_equal(mc_optimizer_add(o, mc_model_module(model)), MC_OK);
    assert_int_equal(mc_optimizer_add_group(o, mc_model_module(model), "*project_q*",
                                            &(mc_param_group){.lr_factor = 2}),
                     MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "8 bits", "not trained");
    mc_optimizer_free(o);
    assert_int_equal(mc_model_save(model, temp_path(&folder, "adapter")), MC_OK);
    assert_true(access(temp_path(&folder, "adapter/adapter_model.safetensors"), R_OK) == 0);
    assert_true(access(temp_path(&folder, "adapter/model.safetensors"), R_OK) != 0);
    mc_model_free(model);
    model = tiny_model(ctx, tiny("gpt2"), NULL);
    assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_INT8), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "no adapter", "virtual tokens");
    mc_model_free(model);
    const mc_load_options eight = {.lora = adapted.lora, .recipe = {.fp8 = MC_FP8_ALL}};
    model = tiny_model(ctx, tiny("gpt2"), &eight);
    assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_INT8), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "recipe");
    mc_model_free(model);
    temp_folder_free(&folder);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What is replaced takes a byte an element and four a row; the peak is a block above the model. */
static void test_memory(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 7});
    mc_model *model = tiny_model(ctx, tiny("t5"), NULL);
    assert_int_equal(mc_module_layout(model->module.root), MC_OK);
    size_t before = ctx->device->memory.in_use, saved = 0, added = 0, block = 0;
    const mc_module_root *root = model->module.root;
    for (size_t i = 0; i < root->stored_count; i++) {
        const mc_stored *s = root->stored[i];
        if (s->owner == &model->module || s->product_scale == 0) continue;
        saved += 3 * (size_t)s->count - (size_t)s->shape.dim[0] * sizeof(float);
    }
    const mc_stored *words = mc_embedding_weight(model->words)->stored;
    added = (size_t)words->count + (size_t)words->shape.dim[0] * sizeof(float);
    for (int i = 0; i < root->zero.bucket_count; i++)
        if (root->zero.buckets[i].owner != &model->module &&
            (size_t)root->zero.buckets[i].count > block)
            block = (size_t)root->zero.buckets[i].count;
    ctx->device->memory.peak = before;
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_INT8), MC_OK);
    size_t now = ctx->device->memory.in_use;
    /* places are rounded up to 64 elements */
    assert_in_range(now, before - saved + added, before - saved + added + 4096);
    assert_true(ctx->device->memory.peak <= before + added + 2 * block);
    mc_model_free(model);
    assert_int_equal(ctx->device->memory.in_use, 0);
    mc_context_free(ctx);
}

/* ---- what they refuse ------------------------------------------------------------------------ */

static void refuse_training(mc_context *ctx, mc_model *model)
{
    mc_sgd_options sgd = {.lr = 0.1f};
    assert_int_equal(mc_module_set_trainable(mc_model_module(model), NULL, true),
                     MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "8 bits", "not trained", "weight");
    mc_optimizer *o = mc_sgd_new(ctx, &sgd);
    assert_int_equal(mc_optimizer_add(o, mc_model_module(model)), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "optimizer", "8 bits", "weight");
    mc_optimizer_free(o);
    assert_int_equal(mc_module_set_trainable(mc_model_module(model), "*position*", true), MC_OK);
    mc_tape *t = mc_tape_begin(ctx);
    assert_null(family_loss(t, model, (part){PACKED, -1}));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "8 bits", "not trained");
    mc_tape_end(t);
}

static void test_refusals(void **state)
{
    mc_context *ctx = *state;
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_FLOAT), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "format 0", "MC_WEIGHTS_INT8");
    assert_int_equal(mc_model_quantize(NULL, MC_WEIGHTS_INT8), MC_ERR_ARGUMENT);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_embedding_table(t, model->words);
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_INT8), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "a tape is open");
    mc_tape_end(t);
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_INT8), MC_OK);
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_INT8), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "already");
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_FP8), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "already");
    refuse_training(ctx, model);
    temp_folder folder = temp_folder_new();
    assert_int_equal(mc_model_save(model, temp_path(&folder, "model")), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "8 bits", "not saved", "weight");
    temp_folder_free(&folder);
    mc_parameter *q = model->module.root->parameters[0];
    for (size_t i = 0; !q->stored->leaves; i++) q = model->module.root->parameters[i];
    static float values[4096];
    assert_int_equal(mc_parameter_write(q, values), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "8 bits", mc_parameter_name(q));
    mc_model_free(model);
}

/* After training steps, and with a weight that is not finite. */
static void test_bad_models(void **state)
{
    mc_context *ctx = *state;
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tape_backward(t, family_loss(t, model, (part){PACKED, -1}), NULL);
    mc_tape_end(t);
    assert_good(ctx);
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_INT8), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "gradients");
    mc_model_free(model);
    model = tiny_model(ctx, tiny("gpt2"), NULL);
    mc_parameter *p = model->module.root->parameters[0];
    for (size_t i = 0; !strstr(p->name, "project_v"); i++) p = model->module.root->parameters[i];
    static float values[DIM * DIM];
    mc_parameter_read(p, values);
    values[5 * DIM + 3] = INFINITY;
    mc_parameter_write(p, values);
    assert_int_equal(mc_model_quantize(model, MC_WEIGHTS_FP8), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, p->name, "row 5", "not finite");
    mc_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),     cmocka_unit_test(test_tied_head),
        cmocka_unit_test(test_read),       cmocka_unit_test(test_lora),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_models), cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_base),       cmocka_unit_test(test_base_saved),
    };
    return cmocka_run_group_tests(tests, set_up_context, tear_down_context);
}
