/* Which route a call takes, and what MC_ROUTE does: without a GPU too, since the simulator has a
 * wing that is none (tests/cuda_sim/hopper.cpp). */
#include "core/device/cuda/attention/attention_internal.h"
#include "tests/device/gpu_test.h"
#include <ctype.h>

/* The simulator's. */
extern bool mc_sim_wing __attribute__((weak));
extern const char *mc_sim_wing_ran __attribute__((weak));

static void test_unknown(void **state)
{
    (void)state;
    static const char *const cases[] = {"attentoin:cudnn",
                                        "attention",
                                        "attention:",
                                        "decode:separate?,decode:quickly?",
                                        ":",
                                        "?",
                                        "decode:separat",
                                        "decode:separatee"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mc_routes_read(gpu, cases[i]), MC_ERR_ARGUMENT);
        assert_non_null(strstr(gpu->failure, ", attention:portable, product:gemv, "));
        assert_non_null(strstr(gpu->failure, ", decode:separate"));
    }
    assert_int_equal(mc_routes_read(gpu, "decode:separate,product:lt"), MC_ERR_ARGUMENT);
    assert_non_null(strstr(gpu->failure, "MC_ROUTE=product:lt, expected some of "));
    gpu->failure[0] = '\0';
    force("");
    setenv("MC_ROUTE", "attention:fast", 1);
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.device = "cuda"});
    unsetenv("MC_ROUTE");
    assert_non_null(strstr(mc_error_message(ctx), "MC_ROUTE=attention:fast, expected some of "));
    mc_context_free(ctx);
}

/* The pages have the headings that routes name, as GitHub makes anchors of them. */
static void test_figures(void **state)
{
    (void)state;
    for (int kernel = 0; kernel < MC_ROUTE_KERNELS; kernel++) {
        const mc_route_list *list = mc_route_lists[kernel];
        for (int i = 0; i < list->count; i++) {
            char path[512], line[1024], anchor[1024];
            const char *figure = list->routes[i].figure,
                       *hash = figure ? strchr(figure, '#') : NULL;
            assert_true(!figure == (i + 1 == list->count));
            if (!figure) continue;
            assert_non_null(hash);
            snprintf(path, sizeof path, MC_SOURCE_DIR "/%.*s", (int)(hash - figure), figure);
            FILE *file = fopen(path, "r");
            if (!file) skip(); /* a copy of the programs alone */
            bool found = false;
            while (!found && fgets(line, sizeof line, file)) {
                const char *from = line + strspn(line, "# ");
                size_t n = 0;
                for (; *from && *from != '\n'; from++)
                    if (isalnum((unsigned char)*from) || *from == ' ' || *from == '-')
                        anchor[n++] = *from == ' ' ? '-' : (char)tolower((unsigned char)*from);
                anchor[n] = '\0';
                found = *line == '#' && !strcmp(anchor, hash + 1);
            }
            fclose(file);
            if (!found)
                fail_msg("%s:%s: no heading %s", list->kernel, list->routes[i].name, figure);
        }
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { TOKENS = 2, HEAD = 8 };
static const int32_t packed[] = {TOKENS, 0, TOKENS};

typedef struct scene {
    mc_lengths lengths;
    mc_attention_shape shape;
    void *memory;
    float *log_sum_exp;
    mc_matrix x;
} scene;

static scene scene_new(mc_dtype dtype)
{
    const float zeros[4 * TOKENS * HEAD] = {0};
    scene s = {.lengths = {1, packed, packed + 1, TOKENS, TOKENS, TOKENS}};
    s.memory = upload(zeros, sizeof zeros);
    s.log_sum_exp = (float *)s.memory + TOKENS * HEAD;
    s.x = (mc_matrix){s.memory, dtype, HEAD};
    s.shape = (mc_attention_shape){.heads = 1, .head_dim = HEAD, .scale = 1};
    s.shape.device_lengths = upload(packed, sizeof packed);
    return s;
}

static void scene_free(scene *s)
{
    gpu->free(gpu, (void *)(uintptr_t)s->shape.device_lengths, sizeof packed);
    gpu->free(gpu, s->memory, 4 * TOKENS * HEAD * sizeof(float));
}

static mc_status attend(scene *s)
{
    s->shape.lengths = &s->lengths;
    return gpu->kernels->attention(gpu, &s->shape, s->x, s->x, s->x, s->x, s->log_sum_exp);
}

static mc_status attend_backward(scene *s)
{
    return gpu->kernels->attention_backward(gpu, &s->shape, s->x, s->x, s->x, s->x, s->log_sum_exp,
                                            s->x, s->x, s->x, s->x);
}

/* What a call's route is, with routes forced. */
static const char *route_of(scene *s, const char *routes)
{
    force(routes);
    assert_int_equal(attend(s), MC_OK);
    return s->shape.route->name;
}

static void test_attention(void **state)
{
    (void)state;
    if (!&mc_sim_wing) skip();
    scene f32 = scene_new(MC_F32), bf16 = scene_new(MC_BF16);
    assert_string_equal(route_of(&bf16, ""), "portable"); /* no Hopper */
    mc_sim_wing = true;
    assert_string_equal(route_of(&bf16, ""), "hopper"); /* cuDNN is absent */
    assert_string_equal(mc_sim_wing_ran, "attention");
    assert_string_equal(route_of(&f32, ""), "portable");
    assert_string_equal(route_of(&bf16, "attention:portable"), "portable");
    assert_string_equal(route_of(&bf16, "decode:separate,attention:cudnn?"), "hopper");
    assert_string_equal(route_of(&f32, "attention:hopper?"), "portable");
    force("attention:hopper");
    assert_int_equal(attend(&f32), MC_ERR_UNSUPPORTED);
    assert_null(f32.shape.route); /* not the one of the call before */
    assert_string_equal(gpu->failure, "MC_ROUTE=attention:hopper: attention of 1 sequences with 2 "
                                      "tokens, 1 heads of 8, f32: it does not take f32");
    force("attention:cudnn");
    assert_int_equal(attend(&bf16), MC_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpu->failure, "MC_ROUTE=attention:cudnn: attention of "));
    mc_sim_wing = false;
    gpu->failure[0] = '\0';
    force("");
    scene_free(&f32);
    scene_free(&bf16);
}

/* Backward runs by the route that forward took, whatever is forced meanwhile. */
static void test_backward(void **state)
{
    (void)state;
    if (!&mc_sim_wing) skip();
    scene s = scene_new(MC_BF16);
    mc_sim_wing = true;
    assert_string_equal(route_of(&s, ""), "hopper");
    mc_sim_wing = false;
    force("attention:portable");
    assert_int_equal(attend_backward(&s), MC_OK);
    assert_string_equal(mc_sim_wing_ran, "attention_backward");
    assert_int_equal(attend(&s), MC_OK);
    mc_sim_wing = true;
    mc_sim_wing_ran = "";
    force("attention:hopper");
    assert_int_equal(attend_backward(&s), MC_OK);
    assert_string_equal(mc_sim_wing_ran, "");
    mc_sim_wing = false;
    force("");
    scene_free(&s);
}

/* ---- products -------------------------------------------------------------------------------- */

enum { WIDTH = 64 };

static mc_linear_call linear_of(int64_t rows, mc_matrix m, mc_activation activation)
{
    return (mc_linear_call){.rows = rows,
                            .in = WIDTH,
                            .out = WIDTH,
                            .alpha = 1,
                            .x = m,
                            .weight = m,
                            .activation = activation,
                            .y = m};
}

/* Where a linear goes; "": not to the wing. */
static const char *product_of(int64_t rows, mc_matrix m, mc_activation activation)
{
    const mc_linear_call c = linear_of(rows, m, activation);
    mc_sim_wing_ran = "";
    assert_int_equal(gpu->kernels->linear(gpu, &c), MC_OK);
    return mc_sim_wing_ran;
}

static void test_products(void **state)
{
    (void)state;
    if (!&mc_sim_wing) skip();
    const size_t bytes = 3 * 128 * WIDTH * sizeof(float);
    mc_matrix m = {gpu->alloc(gpu, bytes), MC_BF16, WIDTH};
    const mc_activation gelu = MC_ACTIVATION_GELU_NEW, none = MC_ACTIVATION_NONE;
    assert_int_equal(gpu->kernels->zero(gpu, m.data, bytes), MC_OK);
    assert_string_equal(product_of(128, m, gelu), "");
    mc_sim_wing = true;
    assert_string_equal(product_of(2, m, none), "");
    assert_string_equal(product_of(8, m, none), "skinny");
    assert_string_equal(product_of(128, m, none), "");
    assert_string_equal(product_of(128, m, gelu), "product");
    force("product:cublas");
    assert_string_equal(product_of(8, m, none), "");
    assert_string_equal(product_of(128, m, gelu), "");
    force("product:hopper?");
    assert_string_equal(product_of(8, m, none), "product");
    assert_string_equal(product_of(128, m, none), "product");
    force("product:skinny_hopper");
    const mc_linear_call few = linear_of(2, m, none);
    assert_int_equal(gpu->kernels->linear(gpu, &few), MC_ERR_UNSUPPORTED);
    assert_string_equal(gpu->failure, "MC_ROUTE=product:skinny_hopper: a linear of 2 rows, weight "
                                      "(64, 64), bf16: it does not take this call");
    gpu->failure[0] = '\0';
    m.dtype = MC_F32;
    force("");
    assert_string_equal(product_of(128, m, gelu), "");
    mc_sim_wing = false;
    gpu->free(gpu, m.data, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown),   cmocka_unit_test(test_figures),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_backward),
        cmocka_unit_test(test_products),
    };
    return RUN_ON_GPU(tests);
}
