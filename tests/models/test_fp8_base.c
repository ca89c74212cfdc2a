/* Adapters beside a base in 8 bits, with a recipe: products of bytes against a plain loop in
 * double, gradients of families beside those of an f32 base, and what is refused. Runs on the
 * device that MC_TEST_DEVICE names. */
#include "core/nn/fp8_internal.h"
#include "core/nn/quantized_internal.h"
#include "tests/device/fp8_test.h"
#include "tests/device_choice.h"
#include "tests/models/family_test.h"
#include "tests/models/one_linear.h"

/* ---- a linear in a block --------------------------------------------------------------------- */

enum { ROWS = 24, IN = 32, OUT = 48 };

typedef struct linear_test {
    mc_module *root;
    mc_block_list *list;
    mc_parameter *weight, *bias;
    double x[ROWS * IN], dy[ROWS * OUT], bias_values[OUT];
} linear_test;

static mc_quantized_choice choose(const mc_stored *s, void *user)
{
    (void)user;
    return s->product_scale != 0 ? MC_QUANTIZED_ALONE : MC_QUANTIZED_NOT;
}

static mc_status store_in_8_bits(linear_test *l, mc_weight_format format)
{
    mc_module_set_trainable(l->root, "*weight", false);
    return mc_module_quantize(
        l->root->root, &(mc_quantized_plan){.format = format, .choose = choose, .trains = true});
}

/* A root with one linear of scale 0.5, frozen and in 8 bits, whose rows have many sizes. */
static linear_test *linear_test_new(mc_context *ctx, mc_dtype dtype, int64_t in,
                                    mc_weight_format format)
{
    static linear_test l;
    static float w[OUT * IN], b[OUT];
    l.root = mc_module_new(ctx, "", sizeof(mc_module), &(mc_module_options){.dtype = dtype});
    l.list = one_linear_new(l.root, in, OUT);
    assert_good(ctx);
    l.weight = mc_module_find_parameter(l.root, "blocks.0.w.weight");
    l.bias = mc_module_find_parameter(l.root, "blocks.0.w.bias");
    for (int i = 0; i < ROWS * IN; i++)
        l.x[i] = nearest(dtype, ldexp(uniform(-1, 1), i / IN % 9 - 4));
    for (int i = 0; i < OUT * in; i++) w[i] = ldexpf((float)uniform(-1, 1), (int)(i / in) % 7 - 5);
    for (int i = 0; i < ROWS * OUT; i++)
        l.dy[i] = nearest(dtype, ldexp(uniform(-1, 1), i / OUT % 11 - 20));
    for (int i = 0; i < OUT; i++) b[i] = (float)(l.bias_values[i] = nearest(dtype, uniform(-1, 1)));
    mc_parameter_write(l.weight, w);
    mc_parameter_write(l.bias, b);
    assert_good(ctx);
    assert_int_equal(store_in_8_bits(&l, format), MC_OK);
    return &l;
}

/* x (ROWS, columns), each element with a factor (in f32) unless that is NULL, as its bytes have it
 * whose scale is that of the row. */
static void cast_rows(const double *x, int columns, const float *factor, int margin, double *out)
{
    for (int r = 0; r < ROWS; r++) {
        double largest = 0;
        for (int i = 0; i < columns; i++) {
            double f = factor ? (double)factor[i] : 1;
            out[r * columns + i] = (double)(float)(x[r * columns + i] * f);
            largest = fmax(largest, fabs(out[r * columns + i]));
        }
        double scale = ldexp(exp2(floor(log2(448 / largest))), -margin);
        for (int i = r * columns; i < (r + 1) * columns; i++)
            out[i] = fp8_value(MC_FP8_E4M3, fp8_nearest(MC_FP8_E4M3, out[i] * scale)) / scale;
    }
}

typedef struct pass_result {
    double y[ROWS * OUT], dx[ROWS * IN], dbias[OUT];
} pass_result;

static void expect(const linear_test *l, int margin, pass_result *p)
{
    static double x[ROWS * IN], dy[ROWS * OUT];
    static uint8_t data[OUT * IN];
    static float scale[OUT];
    mc_device *d = l->root->ctx->device;
    const mc_matrix8 *w = &l->weight->stored->quantized;
    assert_true(d->copy_out(d, data, w->data, sizeof data) &&
                d->copy_out(d, scale, w->scale, sizeof scale));
    cast_rows(l->x, IN, NULL, margin, x);
    cast_rows(l->dy, OUT, scale, margin, dy);
    memset(p, 0, sizeof *p);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++) {
            double sum = 0;
            for (int i = 0; i < IN; i++) {
                double value = fp8_value(MC_FP8_E4M3, data[o * IN + i]);
                sum += x[r * IN + i] * value * (double)scale[o];
                p->dx[r * IN + i] += 0.5 * dy[r * OUT + o] * value;
            }
            p->y[r * OUT + o] = 0.5 * sum + l->bias_values[o];
            p->dbias[o] += l->dy[r * OUT + o]; /* not of bytes */
        }
}

static mc_tensor *given(mc_tape *t, mc_dtype dtype, int columns, const double *values, bool leaf)
{
    static uint8_t bytes[ROWS * OUT * 4];
    for (int i = 0; i < ROWS * columns; i++) set_element(dtype, bytes, i, values[i]);
    return mc_tape_input(t, dtype, MC_SHAPE(ROWS, columns), bytes, leaf);
}

static void run_pass(mc_context *ctx, linear_test *l, mc_dtype dtype, pass_result *p)
{
    static float out[ROWS * OUT];
    mc_module_zero_grad(l->root);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = given(t, dtype, IN, l->x, true);
    mc_tensor *y = mc_block_list_forward(t, l->list, x, NULL);
    mc_tensor_read_f32(ctx, y, out, ROWS * OUT);
    for (int i = 0; i < ROWS * OUT; i++) p->y[i] = (double)out[i];
    mc_tape_backward(t, y, given(t, dtype, OUT, l->dy, false));
    mc_tensor_read_f32(ctx, mc_tensor_gradient(x), out, ROWS * IN);
    for (int i = 0; i < ROWS * IN; i++) p->dx[i] = (double)out[i];
    mc_parameter_read_gradient(l->bias, out);
    for (int i = 0; i < OUT; i++) p->dbias[i] = (double)out[i];
    mc_tape_end(t);
    assert_good(ctx);
}

/* Row by row, since rows have many sizes. */
static void compare(const double *got, const double *expected, int rows, int columns,
                    double tolerance, const char *what)
{
    for (int r = 0; r < rows; r++) {
        double largest = 0;
        for (int i = r * columns; i < (r + 1) * columns; i++)
            largest = fmax(largest, fabs(expected[i]));
        for (int i = r * columns; i < (r + 1) * columns; i++)
            if (!(fabs(got[i] - expected[i]) <= tolerance * largest))
                fail_msg("%s[%d]: got %.9g, expected %.9g", what, i, got[i], expected[i]);
    }
}

/* f32: sums of at most 48 products differ in their order; bf16: results are rounded, y twice. A GPU
 * sums with fewer digits, or multiplies by weights that are rounded to bf16 (test_cuda_fp8). On the
 * CPU the second operand of dx may be transposed first, as on GPUs that multiply bytes: it moves no
 * bit. */
static void test_linear(void **state)
{
    (void)state;
    mc_context *ctx = test_context(7);
    static pass_result got, again, expected;
    for (int i = 0; i < 4; i++) {
        mc_dtype dtype = i & 1 ? MC_BF16 : MC_F32;
        int margin = i & 2;
        double sums = ctx->device->is_host ? 2e-6 : 0x1p-9,
               tolerance = dtype == MC_F32 ? sums : sums + 0x1p-8;
        linear_test *l = linear_test_new(ctx, dtype, IN, MC_WEIGHTS_FP8);
        const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .fp8_margin = margin};
        assert_int_equal(mc_module_set_recipe(l->root, &recipe), MC_OK);
        assert_int_equal(mc_module_fp8_linears(l->root), 1);
        run_pass(ctx, l, dtype, &got);
        expect(l, margin, &expected);
        compare(got.y, expected.y, ROWS, OUT, 2 * tolerance, "y");
        compare(got.dx, expected.dx, ROWS, IN, tolerance, "dx");
        compare(got.dbias, expected.dbias, 1, OUT, 1e-6, "dbias");
        assert_int_equal(mc_fp8_advance_scales(l->root->root, NULL), MC_OK); /* it has no state */
        ctx->device->fp8_tn |= ctx->device->is_host;
        run_pass(ctx, l, dtype, &again);
        ctx->device->fp8_tn &= !ctx->device->is_host;
        assert_memory_equal(&again, &got, sizeof got);
        mc_module_free(l->root);
    }
    mc_context_free(ctx);
}

/* ---- families -------------------------------------------------------------------------------- */

/* All of their linear layers have sizes that are multiples of 16. */
static const tiny_family bases[] = {
    {"gptj", "{\"model_type\": \"gptj\", \"vocab_size\": 50, \"n_embd\": 32, \"n_inner\": 64, "
             "\"n_layer\": 2, \"n_head\": 2, \"n_positions\": 24, \"rotary_dim\": 8, "
             "\"initializer_range\": 0.2, \"bos_token_id\": 0, \"eos_token_id\": 1}"},
    {"llama", "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 32, "
              "\"intermediate_size\": 48, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
              "\"num_key_value_heads\": 2, \"max_position_embeddings\": 24, "
              "\"initializer_range\": 0.2, \"bos_token_id\": 0, \"eos_token_id\": 1}"},
};
enum { BASES = 2, MOST = 1 << 15 };

static const mc_lora_options lora = {.rank = 2, .target_pattern = "all-linear", .base = "base"};
static const mc_recipe all = {.fp8 = MC_FP8_ALL};

/* With factors that are not zero, as B's are at first. */
static mc_model *adapted(mc_context *ctx, const tiny_family *f, mc_dtype dtype,
                         const mc_recipe *recipe, mc_recompute recompute)
{
    mc_load_options load = {.dtype = dtype, .lora = &lora, .recompute = recompute};
    if (recipe) load.recipe = *recipe;
    mc_model *model = tiny_model(ctx, f, &load);
    mc_model_set_dropout(model, 0);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(model), &it));) {
        static float v[MOST];
        if (!p->is_factor) continue;
        for (int64_t j = 0; j < mc_shape_count(p->shape); j++) v[j] = 0.02f * (float)(j % 7 - 3);
        assert_int_equal(mc_parameter_write(p, v), MC_OK);
    }
    return model;
}

/* The gradients of all factors after a pass; their number. */
static int64_t gradients_of(mc_context *ctx, mc_model *model, float *out)
{
    int64_t count = 0;
    mc_module_zero_grad(mc_model_module(model));
    mc_tape *t = mc_tape_begin(ctx);
    mc_tape_backward(t, family_loss(t, model, (part){PACKED, -1}), NULL);
    mc_tape_end(t);
    assert_good(ctx);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(model), &it));) {
        if (!p->is_factor) continue;
        assert_true(count + mc_shape_count(p->shape) <= MOST);
        assert_int_equal(mc_parameter_read_gradient(p, out + count), MC_OK);
        count += mc_shape_count(p->shape);
    }
    return count;
}

/* |a - b| / |b|. */
static double distance(const float *a, const float *b, int64_t count)
{
    double apart = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)a[i] - (double)b[i];
        apart += d * d;
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(apart / size);
}

static float evaluated(mc_context *ctx, mc_model *model)
{
    float loss[2];
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *sum = family_loss(t, model, (part){PACKED, -1});
    mc_tensor_read_f32(ctx, sum, loss, 2);
    mc_tape_end(t);
    assert_good(ctx);
    return loss[0];
}

/* Beside the base before it was in 8 bits gradients are no farther off than those of the recipe
 * alone, whose weights are rounded too, and whose scales are of tensors. They are not those of the
 * stored bytes without the recipe. An evaluation casts nothing. */
static void check_family(mc_context *ctx, const tiny_family *f, mc_dtype dtype)
{
    static float plain[MOST], stored[MOST], recipe[MOST], both[MOST];
    float *const to[] = {plain, stored, recipe, both};
    float loss[4];
    int64_t count = 0;
    int layers[4];
    for (int i = 0; i < 4; i++) {
        mc_model *model = adapted(ctx, f, dtype, i & 2 ? &all : NULL, MC_RECOMPUTE_NONE);
        if (i & 1) assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_FP8), MC_OK);
        layers[i] = mc_module_fp8_linears(mc_model_module(model));
        loss[i] = evaluated(ctx, model);
        count = gradients_of(ctx, model, to[i]);
        mc_model_free(model);
    }
    assert_true(layers[2] > 0 && layers[3] == layers[2] && loss[3] == loss[1]);
    double far = distance(both, plain, count), usual = distance(recipe, plain, count),
           moved = distance(both, stored, count);
    printf("%s, %s: %.3f (%.3f by the recipe alone, %.3f by the base alone)\n", f->name,
           mc_dtype_name(dtype), far, usual, distance(stored, plain, count));
    assert_true(far < 1.1 * usual && moved > 0.01);
}

static void test_families(void **state)
{
    (void)state;
    mc_context *ctx = test_context(7);
    for (int f = 0; f < BASES; f++) {
        check_family(ctx, &bases[f], MC_F32);
        check_family(ctx, &bases[f], MC_BF16);
    }
    mc_context_free(ctx);
}

/* The recipe after the base or before it; blocks that run again: to the bit. */
static void test_same(void **state)
{
    (void)state;
    mc_context *ctx = test_context(7);
    static float first[MOST], other[MOST];
    mc_model *model = adapted(ctx, &bases[0], MC_BF16, &all, MC_RECOMPUTE_NONE);
    assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_FP8), MC_OK);
    int64_t count = gradients_of(ctx, model, first);
    mc_model_free(model);
    for (int i = 0; i < 2; i++) {
        model = adapted(ctx, &bases[0], MC_BF16, NULL, i ? MC_RECOMPUTE_FULL : MC_RECOMPUTE_NONE);
        assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_FP8), MC_OK);
        assert_int_equal(mc_module_set_recipe(mc_model_module(model), &all), MC_OK);
        assert_int_equal(gradients_of(ctx, model, other), count);
        assert_memory_equal(first, other, (size_t)count * sizeof *first);
        mc_model_free(model);
    }
    mc_context_free(ctx);
}

/* `auto` takes all layers of such a base, without measuring. A layer of other sizes stays as it is:
 * the feed-forward of 40 in two blocks. */
static void test_who_takes_part(void **state)
{
    (void)state;
    mc_context *ctx = test_context(7);
    const mc_recipe chosen = {.fp8 = MC_FP8_AUTO};
    mc_fp8_kind kinds[MC_FP8_KINDS];
    mc_model *model = adapted(ctx, tiny("gptj"), MC_BF16, NULL, MC_RECOMPUTE_NONE);
    mc_module *module = mc_model_module(model);
    assert_int_equal(mc_model_quantize_base(model, MC_WEIGHTS_FP8), MC_OK);
    assert_int_equal(mc_module_set_recipe(module, &chosen), MC_OK);
    assert_int_equal(mc_module_fp8_linears(module), 2 * 2);
    const bool multiplies = ctx->device->fp8_tn;
    ctx->device->fp8_tn = true;
    assert_int_equal(mc_module_choose_fp8(module, 40, 1, kinds), 0);
    ctx->device->fp8_tn = multiplies;
    assert_good(ctx);
    assert_int_equal(mc_module_fp8_linears(module), 2 * 2);
    assert_int_equal(mc_module_set_recipe(module, NULL), MC_OK);
    assert_int_equal(mc_module_fp8_linears(module), 0);
    mc_model_free(model);
    mc_context_free(ctx);
}

static void run_plain_pass(mc_context *ctx, void *user)
{
    mc_module_zero_grad(mc_model_module(user));
    mc_tape *t = mc_tape_begin(ctx);
    mc_tape_backward(t, family_loss(t, user, (part){PACKED, -1}), NULL);
    mc_tape_end(t);
}

/* A plan has the scratch memory of casts and of transposed bytes. */
static void test_plan(void **state)
{
    (void)state;
    mc_context *ctx = test_context(7);
    for (int i = 0; i < 2; i++) {
        mc_context *dry = mc_plan_context_new(ctx);
        mc_memory_plan plan;
        mc_model *model = adapted(dry, &bases[i], MC_BF16, &all, MC_RECOMPUTE_FULL);
        mc_model_quantize_base(model, MC_WEIGHTS_FP8);
        mc_plan_run(dry, mc_model_module(model), run_plain_pass, model, &plan);
        assert_good(dry);
        mc_context_free(dry);
        model = adapted(ctx, &bases[i], MC_BF16, &all, MC_RECOMPUTE_FULL);
        mc_model_quantize_base(model, MC_WEIGHTS_FP8);
        run_plain_pass(ctx, model);
        ctx->device->memory.peak = ctx->device->memory.in_use; /* without the weights in bf16 */
        run_plain_pass(ctx, model);
        assert_good(ctx);
        printf("%s: planned %llu bytes, taken %llu\n", bases[i].name, (unsigned long long)plan.peak,
               (unsigned long long)mc_memory(ctx).peak);
        assert_near((double)plan.peak, (double)mc_memory(ctx).peak,
                    0.02 * (double)mc_memory(ctx).peak);
        mc_model_free(model);
    }
    mc_context_free(ctx);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refuse_recipe(mc_context *ctx, linear_test *l, mc_recipe recipe, const char *what,
                          const char *expected)
{
    assert_int_equal(mc_module_set_recipe(l->root, &recipe), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, what, expected);
    assert_int_equal(mc_module_fp8_linears(l->root), 0);
    mc_module_free(l->root);
}

static void refuse_base(mc_context *ctx, mc_recipe recipe, mc_weight_format format,
                        const char *expected)
{
    mc_model *model = adapted(ctx, &bases[0], MC_F32, &recipe, MC_RECOMPUTE_NONE);
    int layers = mc_module_fp8_linears(mc_model_module(model));
    assert_int_equal(mc_model_quantize_base(model, format), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "fp8: a base in ", expected);
    assert_int_equal(mc_model_weight_format(model), MC_WEIGHTS_FLOAT);
    assert_int_equal(mc_module_fp8_linears(mc_model_module(model)), layers);
    mc_model_free(model);
}

static void test_refusals(void **state)
{
    (void)state;
    mc_context *ctx = test_context(7);
    const mc_recipe fixed = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    refuse_recipe(ctx, linear_test_new(ctx, MC_F32, IN, MC_WEIGHTS_INT8), all,
                  "fp8: weight \"blocks.0.w.weight\" in int8", "expected MC_WEIGHTS_FP8");
    refuse_recipe(ctx, linear_test_new(ctx, MC_F32, IN, MC_WEIGHTS_FP8), fixed,
                  "fp8: weight \"blocks.0.w.weight\" in 8 bits", "MC_FP8_STATIC");
    refuse_recipe(ctx, linear_test_new(ctx, MC_F32, IN - 8, MC_WEIGHTS_FP8), all,
                  "no linear layer in a block", "multiples of 16");
    linear_test *half = linear_test_new(ctx, MC_F16, IN, MC_WEIGHTS_FP8);
    assert_int_equal(mc_module_set_recipe(half->root, &all), MC_ERR_DTYPE);
    assert_error(ctx, MC_ERR_DTYPE, "f16");
    mc_module_free(half->root);
    refuse_base(ctx, all, MC_WEIGHTS_INT8, "expected MC_WEIGHTS_FP8");
    refuse_base(ctx, fixed, MC_WEIGHTS_FP8, "MC_FP8_STATIC");
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),   cmocka_unit_test(test_families),
        cmocka_unit_test(test_same),     cmocka_unit_test(test_who_takes_part),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
