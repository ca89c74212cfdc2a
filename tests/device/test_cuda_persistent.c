/* Calls of a step of generation that are deferred and run as one kernel (mc_device.list_open),
 * against the same calls launched one by one: layers of all kinds, and calls that must not change
 * places.
 */
#include "core/device/hopper/decode/persistent_internal.h"
#include "core/device/hopper/decode/deferred_internal.h"
#include "tests/device/gpu_test.h"
#include "tests/device_choice.h"

/* What a case works on, twice in the GPU's memory: `on` of the run that is going on. */
enum { MOST = 40, INTEGERS = 64 };
typedef struct scene {
    mc_dtype dtype;
    int64_t rows;
    int count;
    matrix host[MOST];
    mc_matrix on[MOST];
    int32_t *integers; /* 0, 1, 2, ... in the GPU's memory */
} scene;

static scene scene_new(mc_dtype dtype, int64_t rows)
{
    int32_t integers[INTEGERS];
    for (int i = 0; i < INTEGERS; i++) integers[i] = i;
    return (scene){.dtype = dtype, .rows = rows, .integers = upload(integers, sizeof integers)};
}

/* Another matrix, by its number. Rows of half of them have gaps. */
static int add(scene *s, int64_t rows, int64_t columns, double most)
{
    assert_true(s->count < MOST);
    int64_t gap = rows > 1 && s->count % 2 ? 8 : 0;
    s->host[s->count] = matrix_new(s->dtype, rows, columns, gap, -most, most);
    return s->count++;
}

static int add_dense(scene *s, int64_t rows, int64_t columns, double most)
{
    int i = add(s, rows, columns, most);
    matrix_free(&s->host[i]);
    s->host[i] = matrix_new(s->dtype, rows, columns, 0, -most, most);
    return i;
}

static int add_norm_weight(scene *s, int64_t columns)
{
    int i = add(s, 1, columns, 1);
    for (int64_t k = 0; k < columns; k++) s->host[i].v[k] = nearest(s->dtype, uniform(0.5, 1.5));
    matrix_reset(&s->host[i]);
    return i;
}

typedef void (*script)(scene *s);

static void run_script(scene *s, script run, bool listed)
{
    for (int i = 0; i < s->count; i++) s->on[i] = upload_matrix(&s->host[i]);
    if (listed) mc_list_open(gpu);
    run(s);
    if (listed) assert_ok(mc_list_close(gpu));
}

/* Runs the script both ways and compares all matrices. Sums are added in other orders, and rounded
 * to the dtype from step to step: each step may be off by some units in the last place. */
static void compare(scene *s, script run, int steps, const char *what)
{
    const double unit = s->dtype == MC_F16 ? 0x1p-11 : 0x1p-8;
    double *expected[MOST];
    run_script(s, run, false);
    for (int i = 0; i < s->count; i++) {
        matrix *x = &s->host[i];
        matrix after = matrix_new(s->dtype, x->rows, x->columns, x->m.stride - x->columns, 0, 0);
        take_matrix(s->on[i], &after);
        expected[i] = doubles(x->rows * x->columns);
        for (int64_t k = 0; k < x->rows * x->columns; k++)
            expected[i][k] =
                element(s->dtype, after.m.data, k / x->columns * x->m.stride + k % x->columns);
        matrix_free(&after);
    }
    run_script(s, run, true);
    for (int i = 0; i < s->count; i++) take_matrix(s->on[i], &s->host[i]);
    for (int i = 0; i < s->count; i++) {
        assert_matrix(&s->host[i], expected[i], steps * unit, "cuda", what);
        matrix_free(&s->host[i]);
        free(expected[i]);
    }
    gpu->free(gpu, s->integers, INTEGERS * sizeof *s->integers);
}

/* ---- calls ----------------------------------------------------------------------------------- */

enum { NONE = -1 };

static mc_matrix at(const scene *s, int i) { return i == NONE ? (mc_matrix){0} : s->on[i]; }

static void linear_of(mc_matrix x, int64_t rows, const matrix *shape, mc_matrix weight,
                      mc_matrix bias, mc_activation activation, mc_matrix y)
{
    mc_linear_call call = {.rows = rows,
                           .in = shape->columns,
                           .out = shape->rows,
                           .alpha = 0.75f,
                           .x = x,
                           .weight = weight,
                           .bias = bias,
                           .activation = activation,
                           .y = y};
    assert_ok(gpu->kernels->linear(gpu, &call));
}

static void linear(scene *s, int x, int weight, int bias, mc_activation activation, int y)
{
    linear_of(at(s, x), s->rows, &s->host[weight], at(s, weight), at(s, bias), activation,
              at(s, y));
}

static void norm(scene *s, int x, int f, int weight, int bias, int sum, int y)
{
    mc_residual_norm_call call = {.rows = s->rows,
                                  .columns = s->host[x].columns,
                                  .x = at(s, x),
                                  .f = at(s, f),
                                  .weight = at(s, weight),
                                  .bias = at(s, bias),
                                  .eps = 1e-5f,
                                  .s = at(s, sum),
                                  .y = at(s, y)};
    assert_ok(gpu->kernels->residual_norm(gpu, &call));
}

static void sum(scene *s, int x, int f, int y)
{
    assert_ok(gpu->kernels->residual_sum(gpu, s->rows, s->host[x].columns, at(s, x), at(s, f),
                                         (mc_dropout_mask){0}, at(s, y)));
}

static void gate(scene *s, int x, mc_activation activation, int y)
{
    assert_ok(
        gpu->kernels->gated(gpu, s->rows, s->host[y].columns, activation, at(s, x), at(s, y)));
}

/* Keys and values `cache` of 6 tokens a sequence and more; the last one is new, in qkv. */
static void attend(scene *s, int qkv, int heads, int keys, int values, int y)
{
    int64_t width = s->host[y].columns;
    mc_cached_attention shape = {.sequences = s->rows,
                                 .heads = heads,
                                 .head_dim = (int)(width / heads),
                                 .scale = 0.3f,
                                 .lengths = s->integers + 6,
                                 .capacity = 16,
                                 .longest = 10,
                                 .new_k = columns_from(at(s, qkv), width),
                                 .new_v = columns_from(at(s, qkv), 2 * width)};
    assert_ok(gpu->kernels->attention_cached(gpu, &shape, at(s, qkv), at(s, keys), at(s, values),
                                             at(s, y)));
}

/* The same of heads that share one key and value head, of which queries see the last `window`. */
static void attend_shared(scene *s, int qkv, int heads, int window, int keys, int values, int y)
{
    int64_t width = s->host[y].columns, head_dim = width / heads;
    mc_cached_attention shape = {.sequences = s->rows,
                                 .heads = heads,
                                 .head_dim = (int)head_dim,
                                 .key_heads = 1,
                                 .window_left = window,
                                 .scale = 0.3f,
                                 .lengths = s->integers + 6,
                                 .capacity = 16,
                                 .longest = 10,
                                 .new_k = columns_from(at(s, qkv), width),
                                 .new_v = columns_from(at(s, qkv), width + head_dim)};
    assert_ok(gpu->kernels->attention_cached(gpu, &shape, at(s, qkv), at(s, keys), at(s, values),
                                             at(s, y)));
}

/* Of `heads` heads from column `from` on, with angles that are scaled. */
static void rotate_scaled(scene *s, int qkv, int from, int heads, int head_dim)
{
    mc_rotation r = {.heads = heads,
                     .head_dim = head_dim,
                     .rotary_dim = head_dim,
                     .halves = true,
                     .base = 500,
                     .magnitude = 1.2f,
                     .factor = 8,
                     .keep = {0.7, -0.05, 0.3}};
    assert_ok(
        gpu->kernels->rotary(gpu, s->rows, r, s->integers + 5, columns_from(at(s, qkv), from)));
}

static void rotate(scene *s, int qkv, int heads, int head_dim, bool halves)
{
    mc_rotation r = {
        .heads = 2 * heads, .head_dim = head_dim, .rotary_dim = 8, .halves = halves, .base = 10000};
    assert_ok(gpu->kernels->rotary(gpu, s->rows, r, s->integers + 5, at(s, qkv)));
}

/* ---- layers ---------------------------------------------------------------------------------- */

enum { WIDTH = 72, HEADS = 3, HEAD = 24, INNER = 136 };
/* Numbers of matrices of a layer. */
enum {
    X,
    F,
    S,
    H,
    QKV,
    Y,
    OUT,
    S2,
    H2,
    FF,
    GATED,
    OUT2,
    SUM,
    W_NORM,
    B_NORM,
    W_QKV,
    B_QKV,
    W_OUT,
    B_OUT,
    W_IN,
    B_IN,
    W_GATE,
    W_BACK,
    KEYS,
    VALUES
};

static scene layer_new(mc_dtype dtype, int64_t rows)
{
    static const int columns[] = {WIDTH, WIDTH, WIDTH,     WIDTH, 3 * WIDTH, WIDTH, WIDTH,
                                  WIDTH, WIDTH, 2 * INNER, INNER, WIDTH,     WIDTH};
    scene s = scene_new(dtype, rows);
    for (int i = 0; i <= SUM; i++)
        i == QKV || i == FF || i == Y ? add(&s, rows, columns[i], 1)
                                      : add_dense(&s, rows, columns[i], 1);
    add_norm_weight(&s, WIDTH);
    add(&s, 1, WIDTH, 0.3);
    add_dense(&s, 3 * WIDTH, WIDTH, 0.2);
    add(&s, 1, 3 * WIDTH, 0.3);
    add_dense(&s, WIDTH, WIDTH, 0.2);
    add(&s, 1, WIDTH, 0.3);
    add_dense(&s, INNER, WIDTH, 0.2);
    add(&s, 1, INNER, 0.3);
    add_dense(&s, 2 * INNER, WIDTH, 0.2);
    add_dense(&s, WIDTH, INNER, 0.2);
    add_dense(&s, 16 * rows, WIDTH, 1);
    add_dense(&s, 16 * rows, WIDTH, 1);
    assert_int_equal(s.count, VALUES + 1);
    return s;
}

/* As GPT-2's: branches one after the other. */
static void serial_layer(scene *s)
{
    norm(s, X, F, W_NORM, B_NORM, S, H);
    linear(s, H, W_QKV, B_QKV, MC_ACTIVATION_NONE, QKV);
    attend(s, QKV, HEADS, KEYS, VALUES, Y);
    linear(s, Y, W_OUT, B_OUT, MC_ACTIVATION_NONE, OUT);
    norm(s, S, OUT, W_NORM, B_NORM, S2, H2);
    linear(s, H2, W_IN, B_IN, MC_ACTIVATION_GELU_NEW, GATED);
    linear(s, GATED, W_BACK, B_OUT, MC_ACTIVATION_NONE, OUT2);
}

/* As GPT-J's: branches side by side, rotary positions. */
static void parallel_layer(scene *s)
{
    norm(s, X, NONE, W_NORM, B_NORM, NONE, H);
    linear(s, H, W_QKV, NONE, MC_ACTIVATION_NONE, QKV);
    rotate(s, QKV, HEADS, HEAD, false);
    attend(s, QKV, HEADS, KEYS, VALUES, Y);
    linear(s, Y, W_OUT, NONE, MC_ACTIVATION_NONE, OUT);
    linear(s, H, W_IN, B_IN, MC_ACTIVATION_GELU, GATED);
    linear(s, GATED, W_BACK, B_OUT, MC_ACTIVATION_NONE, OUT2);
    sum(s, X, OUT, SUM);
    norm(s, SUM, OUT2, W_NORM, B_NORM, S2, H2);
    linear(s, H2, W_OUT, NONE, MC_ACTIVATION_TANH, S);
}

/* As T5's and CPM's: RMSNorm, gates, and other activations. */
static void gated_layer(scene *s)
{
    norm(s, X, NONE, W_NORM, NONE, NONE, H);
    linear(s, H, W_QKV, NONE, MC_ACTIVATION_NONE, QKV);
    rotate(s, QKV, HEADS, HEAD, true);
    attend(s, QKV, HEADS, KEYS, VALUES, Y);
    linear(s, Y, W_OUT, NONE, MC_ACTIVATION_RELU, OUT);
    norm(s, X, OUT, W_NORM, NONE, S, H2);
    linear(s, H2, W_GATE, NONE, MC_ACTIVATION_NONE, FF);
    gate(s, FF, MC_ACTIVATION_SILU, GATED);
    linear(s, GATED, W_BACK, NONE, MC_ACTIVATION_NONE, OUT2);
    norm(s, S, OUT2, W_NORM, NONE, S2, SUM);
}

/* As LLaMA's: heads share a key and value head; queries and keys are turned together, */
static void shared_layer(scene *s)
{
    norm(s, X, F, W_NORM, NONE, S, H);
    linear(s, H, W_QKV, NONE, MC_ACTIVATION_NONE, QKV);
    rotate_scaled(s, QKV, 0, HEADS + 1, HEAD);
    attend_shared(s, QKV, HEADS, 0, KEYS, VALUES, Y);
    linear(s, Y, W_OUT, NONE, MC_ACTIVATION_NONE, OUT);
}
/* or one after the other, and there is a window; */
static void window_layer(scene *s)
{
    norm(s, X, F, W_NORM, NONE, S, H);
    linear(s, H, W_QKV, B_QKV, MC_ACTIVATION_NONE, QKV);
    rotate_scaled(s, QKV, 0, HEADS, HEAD);
    rotate_scaled(s, QKV, WIDTH, 1, HEAD);
    attend_shared(s, QKV, HEADS, 5, KEYS, VALUES, Y);
    linear(s, Y, W_OUT, NONE, MC_ACTIVATION_NONE, OUT);
}
/* in the other order, */
static void keys_first(scene *s)
{
    linear(s, H, W_QKV, B_QKV, MC_ACTIVATION_NONE, QKV);
    rotate_scaled(s, QKV, WIDTH, 1, HEAD);
    rotate_scaled(s, QKV, 0, HEADS, HEAD);
    attend_shared(s, QKV, HEADS, 5, KEYS, VALUES, Y);
    linear(s, Y, W_OUT, NONE, MC_ACTIVATION_NONE, OUT);
}
/* and of keys that were there before the list. */
static void waiting_keys(scene *s)
{
    rotate_scaled(s, QKV, 0, HEADS, HEAD);
    rotate_scaled(s, QKV, WIDTH, 1, HEAD);
    attend_shared(s, QKV, HEADS, 3, KEYS, VALUES, Y);
    linear(s, Y, W_OUT, NONE, MC_ACTIVATION_NONE, OUT);
}

static void test_layers(void **state)
{
    (void)state;
    static const script layers[] = {serial_layer, parallel_layer, gated_layer, shared_layer,
                                    window_layer, keys_first,     waiting_keys};
    const mc_dtype types[] = {MC_BF16, MC_F16};
    for (int64_t rows = 1; rows <= 4; rows++)
        for (int i = 0; i < 7; i++) {
            scene s = layer_new(types[(rows + i) % 2], rows);
            compare(&s, layers[i], 6, "a layer");
        }
}

/* So many columns that a block has several batches of them, so many terms that a row comes in
 * chunks. */
enum { TALL = 9000, NARROW = 72, SHORT = 1040 };
enum { ROW_X, ROW_TALL, ROW_SHORT, ROW_Y, ROW_LAST, TALL_WEIGHT };
static void tall_and_long(scene *s)
{
    linear(s, ROW_X, TALL_WEIGHT, NONE, MC_ACTIVATION_NONE, ROW_TALL);
    linear(s, ROW_X, TALL_WEIGHT + 1, TALL_WEIGHT + 3, MC_ACTIVATION_RELU, ROW_SHORT);
    linear(s, ROW_TALL, TALL_WEIGHT + 2, NONE, MC_ACTIVATION_NONE, ROW_Y);
    linear(s, ROW_SHORT, TALL_WEIGHT + 4, NONE, MC_ACTIVATION_GELU, ROW_LAST);
}

static void test_tall(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= 4; rows += 2) {
        scene s = scene_new(rows == 1 ? MC_BF16 : MC_F16, rows);
        add_dense(&s, rows, NARROW, 1);
        add_dense(&s, rows, TALL, 0);
        add_dense(&s, rows, SHORT, 0);
        add_dense(&s, rows, 40, 0);
        add_dense(&s, rows, 520, 0);
        add_dense(&s, TALL, NARROW, 0.2);
        add_dense(&s, SHORT, NARROW, 0.2);
        add_dense(&s, 40, TALL, 0.03);
        add(&s, 1, SHORT, 0.3);
        add_dense(&s, 520, SHORT, 0.1);
        compare(&s, tall_and_long, 4, "many columns, many terms");
    }
}

/* Rows of weights in halves, in quarters, and in quarters of chunks, in 16 and in 8 bits. */
enum { DIVIDED = 3, FEW = 40 };
static const int divided[DIVIDED] = {1024, 2048, 4096};

static mc_matrix8 quantized(const scene *s, int weight, mc_weight_format format)
{
    const matrix *w = &s->host[weight];
    mc_matrix8 q = {format, w->rows, w->columns, gpu->alloc(gpu, (size_t)(w->rows * w->columns)),
                    gpu->alloc(gpu, (size_t)w->rows * sizeof(float))};
    assert_ok(gpu->kernels->quantize(gpu, s->on[weight], q));
    return q;
}

static void drop(mc_matrix8 q)
{
    gpu->free(gpu, q.data, (size_t)(q.rows * q.columns));
    gpu->free(gpu, q.scale, (size_t)q.rows * sizeof(float));
}

/* Of width i: matrix 1 + 4 i is the weight from matrix 0 to the rows 2 + 4 i, and matrix 3 + 4 i
 * the weight from those to the result 4 + 4 i. */
static void divided_in(scene *s, mc_weight_format format)
{
    mc_matrix8 q[2 * DIVIDED];
    for (int i = 0; format && i < 2 * DIVIDED; i++) q[i] = quantized(s, 1 + 2 * i, format);
    for (int i = 0; i < 2 * DIVIDED; i++) {
        const int weight = 1 + 2 * i, x = i % 2 ? weight - 1 : 0, y = weight + 1;
        const mc_activation activation = i % 2 ? MC_ACTIVATION_RELU : MC_ACTIVATION_NONE;
        if (format)
            assert_ok(gpu->kernels->linear_quantized(gpu, s->rows, 0.75f, at(s, x), q[i],
                                                     (mc_matrix){0}, activation, at(s, y)));
        else
            linear(s, x, weight, NONE, activation, y);
    }
    for (int i = 0; format && i < 2 * DIVIDED; i++) drop(q[i]);
}

static void divided_rows(scene *s) { divided_in(s, MC_WEIGHTS_FLOAT); }
static void divided_int8(scene *s) { divided_in(s, MC_WEIGHTS_INT8); }
static void divided_fp8(scene *s) { divided_in(s, MC_WEIGHTS_FP8); }

static void test_divided(void **state)
{
    (void)state;
    static const script scripts[] = {divided_rows, divided_int8, divided_fp8};
    for (int64_t rows = 1; rows <= 4; rows += 2)
        for (int i = 0; i < 3; i++) {
            scene s = scene_new(rows == 1 ? MC_BF16 : MC_F16, rows);
            add_dense(&s, rows, 80, 1);
            for (int k = 0; k < DIVIDED; k++) {
                add_dense(&s, divided[k], 80, 0.2);
                add_dense(&s, rows, divided[k], 0);
                add_dense(&s, FEW, divided[k], 0.05);
                add_dense(&s, rows, FEW, 0);
            }
            compare(&s, scripts[i], 4, "rows in parts");
        }
}

/* ---- what must not change places ------------------------------------------------------------- */

enum { A, B, C, D, SQUARE, WIDE, BIASES };
static scene few_new(int64_t rows)
{
    scene s = scene_new(MC_BF16, rows);
    for (int i = A; i <= D; i++) add_dense(&s, rows, WIDTH, 1);
    add(&s, WIDTH, WIDTH, 0.2);
    add_dense(&s, rows, 3 * WIDTH, 1);
    add_norm_weight(&s, WIDTH);
    return s;
}

/* What a call has read is written by a later one, which itself waits for nothing. */
static void write_behind_read(scene *s)
{
    linear(s, A, SQUARE, NONE, MC_ACTIVATION_NONE, B);
    linear(s, B, SQUARE, NONE, MC_ACTIVATION_NONE, C);
    linear(s, D, SQUARE, NONE, MC_ACTIVATION_NONE, B);
    linear(s, B, SQUARE, NONE, MC_ACTIVATION_NONE, A);
}

/* Written twice, and read between and after. */
static void write_behind_write(scene *s)
{
    linear(s, A, SQUARE, NONE, MC_ACTIVATION_RELU, B);
    linear(s, B, SQUARE, BIASES, MC_ACTIVATION_NONE, C);
    norm(s, D, C, BIASES, NONE, NONE, B);
    sum(s, B, A, C);
}

static void square(scene *s, mc_matrix x, mc_activation activation, mc_matrix y)
{
    linear_of(x, s->rows, &s->host[SQUARE], s->on[SQUARE], (mc_matrix){0}, activation, y);
}

/* Columns of a wider matrix: what overlaps is the same memory, whatever its first address. */
static void columns(scene *s)
{
    mc_matrix whole = s->on[WIDE], middle = columns_from(whole, WIDTH / 2 + 4);
    for (int i = 0; i < 3; i++)
        square(s, s->on[i ? B : A], MC_ACTIVATION_NONE, columns_from(whole, i * WIDTH));
    square(s, middle, MC_ACTIVATION_NONE, s->on[C]);
    square(s, s->on[C], MC_ACTIVATION_NONE, middle);
}

/* Positions are turned in place, between two that read. */
static void in_place(scene *s)
{
    linear(s, A, SQUARE, NONE, MC_ACTIVATION_NONE, B);
    linear(s, B, SQUARE, NONE, MC_ACTIVATION_NONE, C);
    rotate(s, B, 1, 32, false);
    linear(s, B, SQUARE, NONE, MC_ACTIVATION_NONE, D);
    rotate(s, C, 1, 32, true);
    linear(s, C, SQUARE, NONE, MC_ACTIVATION_NONE, A);
}

/* The bias and a norm's weight come from a call in front. */
static void parameters(scene *s)
{
    linear(s, A, SQUARE, NONE, MC_ACTIVATION_NONE, B);
    linear(s, C, SQUARE, B, MC_ACTIVATION_NONE, D);
    linear(s, D, SQUARE, NONE, MC_ACTIVATION_NONE, A);
    norm(s, D, NONE, A, B, NONE, C);
}

/* Calls that no list has, between those of one: an activation, a product of f32. */
static void others_between(scene *s)
{
    linear(s, A, SQUARE, NONE, MC_ACTIVATION_NONE, B);
    assert_ok(
        gpu->kernels->activation(gpu, s->rows, WIDTH, MC_ACTIVATION_RELU, s->on[B], s->on[C]));
    linear(s, C, SQUARE, NONE, MC_ACTIVATION_NONE, D);
    assert_ok(
        gpu->kernels->add(gpu, s->rows * WIDTH, s->on[D], s->on[B], s->rows * WIDTH, s->on[A]));
    norm(s, A, D, BIASES, NONE, NONE, C);
}

/* Memory that is given back and taken again by the next call. */
static void memory_again(scene *s)
{
    size_t bytes = (size_t)(s->rows * WIDTH) * 2;
    for (int i = 0; i < 6; i++) {
        mc_matrix between = {gpu->alloc(gpu, bytes), s->dtype, WIDTH};
        assert_non_null(between.data);
        square(s, s->on[i % 2 ? B : A], MC_ACTIVATION_RELU, between);
        square(s, between, MC_ACTIVATION_NONE, columns_from(s->on[WIDE], i % 3 * WIDTH));
        gpu->free(gpu, between.data, bytes);
    }
}

static void test_places(void **state)
{
    (void)state;
    static const script scripts[] = {write_behind_read, write_behind_write, columns,     in_place,
                                     parameters,        others_between,     memory_again};
    for (int64_t rows = 1; rows <= 4; rows += rows == 1 ? 1 : 2)
        for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
            bool single = scripts[i] == parameters; /* a bias is one row */
            scene s = few_new(single ? 1 : rows);
            compare(&s, scripts[i], 6, "calls that depend on each other");
        }
}

/* ---- the list -------------------------------------------------------------------------------- */

static bool has_lists(void) { return mc_cuda_of(gpu)->deferred != NULL; }

/* Memory is given back when the list has been launched, which closing it does. */
static void test_deferred(void **state)
{
    (void)state;
    if (!has_lists()) skip();
    scene s = few_new(1);
    for (int i = 0; i < s.count; i++) s.on[i] = upload_matrix(&s.host[i]);
    void *block = gpu->alloc(gpu, 4096);
    size_t in_use = gpu->memory.in_use;
    mc_list_open(gpu);
    linear(&s, A, SQUARE, NONE, MC_ACTIVATION_NONE, B);
    gpu->free(gpu, block, 4096);
    assert_int_equal(gpu->memory.in_use, in_use);
    assert_ok(mc_list_close(gpu));
    assert_true(gpu->memory.in_use < in_use);
    for (int i = 0; i < s.count; i++) {
        take_matrix(s.on[i], &s.host[i]);
        matrix_free(&s.host[i]);
    }
    gpu->free(gpu, s.integers, INTEGERS * sizeof *s.integers);
}

/* More calls than a launch runs. Every sixteenth has the result of the one in front. */
enum { CALLS = MC_PERSISTENT_MOST + 40 };
static void long_list(scene *s)
{
    mc_matrix x = s->on[A], y = s->on[A + 1];
    for (int i = 0; i < CALLS; i++) {
        linear_of(x, 1, &s->host[A + 2], s->on[A + 2], (mc_matrix){0}, MC_ACTIVATION_TANH, y);
        if (i % 16 == 15) x = y;
        y = columns_from(y, 64);
    }
}

static void test_long_list(void **state)
{
    (void)state;
    scene s = scene_new(MC_F16, 1);
    add_dense(&s, 1, 64, 1);
    add_dense(&s, CALLS, 64, 1);
    add(&s, 64, 64, 0.1); /* so small that errors die out */
    compare(&s, long_list, 4, "a long list");
}

/* Recorded and run twice: the second time it begins from what the first one left. */
static void test_recorded(void **state)
{
    (void)state;
    if (!gpu->record_begin) skip();
    scene s = layer_new(MC_BF16, 2), t = s;
    for (int i = 0; i < s.count; i++) {
        s.on[i] = upload_matrix(&s.host[i]);
        t.on[i] = upload_matrix(&s.host[i]);
    }
    gpu->step_begin(gpu);
    assert_true(gpu->record_begin(gpu));
    mc_list_open(gpu);
    serial_layer(&s);
    assert_ok(mc_list_close(gpu));
    void *recording = gpu->record_end(gpu);
    assert_non_null(recording);
    for (int i = 0; i < 2; i++) assert_ok(gpu->replay(gpu, recording));
    gpu->step_end(gpu);
    mc_list_open(gpu);
    for (int i = 0; i < 2; i++) serial_layer(&t);
    assert_ok(mc_list_close(gpu));
    for (int i = 0; i < s.count; i++) {
        take_matrix(s.on[i], &s.host[i]);
        matrix other = matrix_new(s.dtype, s.host[i].rows, s.host[i].columns,
                                  s.host[i].m.stride - s.host[i].columns, 0, 0);
        take_matrix(t.on[i], &other);
        assert_memory_equal(other.m.data, s.host[i].m.data, matrix_bytes(&other));
        matrix_free(&other);
        matrix_free(&s.host[i]);
    }
    gpu->recording_free(gpu, recording);
    gpu->free(gpu, s.integers, INTEGERS * sizeof *s.integers);
}

/* A gate wider than the persistent kernel is good for, by weights of 16 or of 8 bits. */
enum { GATES = 8200 };
enum { GATE_X = VALUES + 1, GATE_BOTH, GATE_Y, GATE_OUT, GATE_WEIGHT, GATE_BACK };
static void wide_gate(scene *s)
{
    gated_layer(s);
    sum(s, X, OUT, F);
    linear(s, GATE_X, GATE_WEIGHT, NONE, MC_ACTIVATION_NONE, GATE_BOTH);
    gate(s, GATE_BOTH, MC_ACTIVATION_SILU, GATE_Y);
    linear(s, GATE_Y, GATE_BACK, NONE, MC_ACTIVATION_NONE, GATE_OUT);
}
static void wide_gate_int8(scene *s)
{
    gated_layer(s);
    mc_matrix8 q = quantized(s, GATE_WEIGHT, MC_WEIGHTS_INT8);
    assert_ok(gpu->kernels->linear_quantized(gpu, s->rows, 0.75f, at(s, GATE_X), q, (mc_matrix){0},
                                             MC_ACTIVATION_NONE, at(s, GATE_BOTH)));
    gate(s, GATE_BOTH, MC_ACTIVATION_SILU, GATE_Y);
    linear(s, GATE_Y, GATE_BACK, NONE, MC_ACTIVATION_NONE, GATE_OUT);
    drop(q);
}

/* The first word of the persistent kernel's memory is another after each of its launches. */
static uint32_t launches(void)
{
    uint32_t word;
    assert_true(gpu->copy_out(gpu, &word, mc_cuda_of(gpu)->persistent, sizeof word));
    return word;
}

/* How a list runs is chosen when all of it is known. */
static void test_wide_gate(void **state)
{
    (void)state;
    if (!has_lists()) skip();
    const script gates[] = {wide_gate, wide_gate_int8};
    force("");
    for (int i = 0; i < 2; i++) {
        scene s = layer_new(MC_BF16, 2);
        add_dense(&s, 2, 64, 1);
        add_dense(&s, 2, 2 * GATES, 0);
        add_dense(&s, 2, GATES, 0);
        add_dense(&s, 2, 24, 0);
        add_dense(&s, 2 * GATES, 64, 0.2);
        add_dense(&s, 24, GATES, 0.02);
        uint32_t before = launches();
        compare(&s, gates[i], 6, "a wide gate");
        assert_int_equal(launches() != before, i == 1);
    }
    force("decode:persistent?");
}

/* Whether a norm of such rows is deferred. */
static bool is_deferred(int64_t rows, int64_t columns)
{
    scene s = scene_new(MC_BF16, rows);
    add_dense(&s, rows, columns, 1);
    add_dense(&s, rows, columns, 0);
    add_norm_weight(&s, columns);
    for (int i = 0; i < s.count; i++) s.on[i] = upload_matrix(&s.host[i]);
    void *block = gpu->alloc(gpu, 4096);
    size_t in_use = gpu->memory.in_use;
    mc_list_open(gpu);
    norm(&s, 0, NONE, 2, NONE, NONE, 1);
    gpu->free(gpu, block, 4096);
    bool late = gpu->memory.in_use == in_use;
    assert_ok(mc_list_close(gpu));
    for (int i = 0; i < s.count; i++) {
        take_matrix(s.on[i], &s.host[i]);
        matrix_free(&s.host[i]);
    }
    gpu->free(gpu, s.integers, INTEGERS * sizeof *s.integers);
    return late;
}

/* Where nobody asks for it: one or two rows, and more where they are about as wide as XL's. */
static void test_default(void **state)
{
    (void)state;
    if (!has_lists()) skip();
    force("");
    assert_true(is_deferred(1, 64));
    assert_true(is_deferred(1, 4096));
    assert_true(is_deferred(2, 768));
    assert_true(is_deferred(2, 4096));
    assert_false(is_deferred(3, 768));
    assert_true(is_deferred(3, 1600));
    assert_true(is_deferred(4, 1600));
    assert_false(is_deferred(3, 4096));
    force("decode:separate");
    assert_false(is_deferred(1, 64));
    force("decode:persistent?");
    assert_true(is_deferred(3, 768));
    assert_false(is_deferred(5, 768));
}

/* Forced, a step that the kernel does not run is an error. */
static void test_forced(void **state)
{
    (void)state;
    if (!has_lists()) skip();
    float data[2 * 64] = {0};
    mc_matrix x = {upload(data, sizeof data), MC_F32, 64}, none = {0};
    force("decode:persistent");
    mc_list_open(gpu);
    assert_int_equal(gpu->kernels->gated(gpu, 1, 32, MC_ACTIVATION_GELU, x, x), MC_ERR_UNSUPPORTED);
    assert_string_equal(gpu->failure,
                        "MC_ROUTE=decode:persistent: a step of generation of 1 rows: it "
                        "does not take a dtype other than f16 and bf16, or such a size");
    assert_int_equal(gpu->kernels->residual_sum(gpu, 5, 1, x, x, (mc_dropout_mask){0}, none),
                     MC_ERR_UNSUPPORTED);
    assert_string_equal(gpu->failure,
                        "MC_ROUTE=decode:persistent: a step of generation of 5 rows: it "
                        "does not take other than 1 to 4 rows");
    assert_ok(mc_list_close(gpu));
    gpu->failure[0] = '\0';
    force("decode:persistent?");
    gpu->free(gpu, x.data, sizeof data);
}

/* ---------------------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),    cmocka_unit_test(test_tall),
        cmocka_unit_test(test_places),    cmocka_unit_test(test_deferred),
        cmocka_unit_test(test_long_list), cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_default),   cmocka_unit_test(test_forced),
        cmocka_unit_test(test_divided),   cmocka_unit_test(test_wide_gate),
    };
    setenv("MC_ROUTE", "decode:persistent?", 1);
    mc_context *owner = context_on("cuda", 1);
    if (!owner) return 0;
    gpu = owner->device;
    size_t in_use = gpu->memory.in_use;
    int failed = cmocka_run_group_tests(tests, open_tables, close_tables);
    size_t leaked = gpu->memory.in_use - in_use;
    if (leaked) fprintf(stderr, "%zu bytes of the GPU were not given back\n", leaked);
    mc_context_free(owner);
    return failed || leaked;
}
