/* A program's own module in a file: there and back in every dtype, parts of it, what the file
 * holds, and files that do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <sys/resource.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/optim/optim_test.h"

/* What was logged last. */
static char logged[1024];

static void keep_line(void *user, mc_log_level level, const char *line)
{
    (void)user;
    if (level == MC_LOG_WARNING) snprintf(logged, sizeof logged, "%s", line);
}

typedef struct fixture {
    temp_folder folder;
    mc_context *ctx;
    const char *path;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->folder = temp_folder_new();
    f->path = strdup(temp_path(&f->folder, "mine.safetensors"));
    f->ctx = mc_init_distributed(&(mc_init_options){.seed = 3, .log = keep_line});
    *logged = '\0';
    *state = f;
    return mc_failed(f->ctx);
}

static int tear_down(void **state)
{
    fixture *f = *state;
    mc_context_free(f->ctx);
    temp_folder_free(&f->folder);
    free((char *)f->path);
    free(f);
    return 0;
}

/* ---- modules --------------------------------------------------------------------------------- */

typedef struct model {
    mc_module module;
    mc_module *part;
    mc_parameter *gate, *odd;
    mc_linear *up;
} model;

/* Initial values from `value` on; `rows` of one of the parameters. */
static model *model_new(mc_context *ctx, mc_dtype dtype, float value, int64_t rows)
{
    model *m = mc_module_new(ctx, "net", sizeof *m, &(mc_module_options){.dtype = dtype});
    mc_initializer init = mc_init_uniform(value, value + 1);
    m->gate = mc_parameter_new(&m->module, "gate", MC_SHAPE(rows), init);
    m->part = mc_module_add(&m->module, "part", sizeof(mc_module));
    m->up = mc_linear_add(m->part, "up", 6, 4, NULL);
    m->odd = mc_parameter_new_padded(m->part, "odd", MC_SHAPE(3, 5), 8, init);
    mc_parameter_part parts[] = {{"q", 2, init}, {"k", 3, init}};
    mc_parameter_new_stacked(&m->module, parts, 2, MC_SHAPE(4), NULL);
    assert_good(ctx);
    return m;
}

static float *values_of(mc_parameter *p)
{
    float *values = malloc((size_t)mc_shape_count(mc_parameter_shape(p)) * sizeof *values);
    assert_non_null(values);
    assert_int_equal(mc_parameter_read(p, values), MC_OK);
    return values;
}

/* How many parameters below `a` have the same values as those of the same names in b. */
static int equal_parameters(mc_module *a, mc_module *b)
{
    int equal = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(a, &it));) {
        mc_parameter *q = mc_module_find_parameter(b, mc_parameter_name(p));
        assert_non_null(q);
        float *x = values_of(p), *y = values_of(q);
        equal += memcmp(x, y, (size_t)mc_shape_count(mc_parameter_shape(p)) * sizeof *x) == 0;
        free(x);
        free(y);
    }
    return equal;
}
enum { PARAMETERS = 6 /* gate, up's two, odd, q, k */ };

/* ---- there and back -------------------------------------------------------------------------- */

static void test_round_trip(void **state)
{
    fixture *f = *state;
    for (int type = 0; type < 3; type++) {
        mc_dtype dtype = (mc_dtype[]){MC_F32, MC_F16, MC_BF16}[type];
        model *a = model_new(f->ctx, dtype, 1, 7), *b = model_new(f->ctx, dtype, 5, 7);
        mc_parameter *bias = mc_module_find_parameter(&b->module, "net.part.up.bias");
        mc_parameter_write(bias, (float[]){1, 2, 3, 4});
        assert_int_equal(equal_parameters(&a->module, &b->module), 1); /* up's weight */
        assert_int_equal(mc_module_save(&a->module, f->path), MC_OK);
        assert_int_equal(mc_module_load(&b->module, f->path), MC_OK);
        assert_good(f->ctx);
        assert_int_equal(equal_parameters(&a->module, &b->module), PARAMETERS);
        assert_string_equal(logged, "");
        mc_module_free(&a->module);
        mc_module_free(&b->module);
    }
}

/* Another dtype in memory than in the file. */
static void test_converted(void **state)
{
    fixture *f = *state;
    model *half = model_new(f->ctx, MC_BF16, 1, 7), *wide = model_new(f->ctx, MC_F32, 5, 7);
    mc_module_save(&half->module, f->path);
    mc_module_load(&wide->module, f->path);
    assert_good(f->ctx);
    assert_int_equal(equal_parameters(&half->module, &wide->module), PARAMETERS);
}

/* As a PyTorch file, of which nothing else stays. */
static void test_torch(void **state)
{
    fixture *f = *state;
    model *a = model_new(f->ctx, MC_F16, 1, 7), *b = model_new(f->ctx, MC_F16, 5, 7);
    const char *path = temp_path(&f->folder, "mine.pt");
    const char *aside = temp_path(&f->folder, "mine.pt.safetensors");
    assert_int_equal(mc_module_save_torch(&a->module, path), MC_OK);
    assert_int_not_equal(access(aside, F_OK), 0);
    mc_tensor_file *file = mc_tensor_file_open(f->ctx, path, NULL);
    assert_string_equal(mc_tensor_file_format(file), "PyTorch zip");
    mc_tensor_file_free(file);
    mc_module_load(&b->module, path);
    assert_good(f->ctx);
    assert_int_equal(equal_parameters(&a->module, &b->module), PARAMETERS);
    write_text(aside, "mine");
    assert_int_equal(mc_module_save_torch(&a->module, path), MC_ERR_ARGUMENT);
    assert_int_equal(access(aside, F_OK), 0); /* it is left alone */
    mc_clear_error(f->ctx);
}

/* What other readers find in the file. */
static void test_contents(void **state)
{
    fixture *f = *state;
    static const char *const names[PARAMETERS] = {
        "net.gate", "net.k", "net.part.odd", "net.part.up.bias", "net.part.up.weight", "net.q"};
    model *m = model_new(f->ctx, MC_BF16, 1, 7);
    mc_module_save(&m->module, f->path);
    mc_tensor_file *file = mc_tensor_file_open(f->ctx, f->path, NULL);
    assert_good(f->ctx);
    assert_int_equal(mc_tensor_file_count(file), PARAMETERS);
    for (size_t i = 0; i < PARAMETERS; i++) {
        const mc_tensor_entry *entry = mc_tensor_file_at(file, i);
        assert_string_equal(entry->name, names[i]);
        assert_int_equal(entry->dtype, MC_BF16);
    }
    const mc_tensor_entry *odd = mc_tensor_file_find(file, "net.part.odd");
    assert_true(odd->ndim == 2 && odd->shape[0] == 3 && odd->shape[1] == 5); /* no padding */
    float found[15], *expected = values_of(m->odd);
    assert_int_equal(mc_tensor_file_read_f32(file, odd, 0, 15, found), MC_OK);
    assert_memory_equal(found, expected, sizeof found);
    free(expected);
    mc_tensor_file_free(file);
}

/* A part of a model, under its full names; the rest is left alone. */
static void test_part(void **state)
{
    fixture *f = *state;
    model *a = model_new(f->ctx, MC_F32, 1, 7), *b = model_new(f->ctx, MC_F32, 5, 7);
    float *gate = values_of(b->gate), *after;
    mc_module_save(a->part, f->path);
    mc_module_load(b->part, f->path);
    assert_good(f->ctx);
    assert_int_equal(equal_parameters(a->part, &b->module), 3);
    after = values_of(b->gate);
    assert_memory_equal(gate, after, 7 * sizeof *gate);
    free(gate);
    free(after);
    assert_int_equal(mc_module_load(&b->module, f->path), MC_ERR_NOT_FOUND);
    assert_error(f->ctx, MC_ERR_NOT_FOUND, f->path, "3 tensors are missing", "\"net.gate\"",
                 "\"net.q\"", "\"net.k\"");
    mc_module_save(&a->module, f->path); /* more than is asked for */
    mc_module_load(b->part, f->path);
    assert_good(f->ctx);
    assert_non_null(strstr(logged, "3 tensors are not used"));
}

/* ---- files that do not fit ------------------------------------------------------------------- */

/* Loading fails so, and changes nothing. */
static void refuse(fixture *f, model *m, mc_status status, const char *word, const char *other)
{
    model *before = model_new(f->ctx, MC_F32, 5, 7);
    assert_int_equal(mc_module_load(&m->module, f->path), status);
    assert_error(f->ctx, status, f->path, word, other);
    assert_int_equal(equal_parameters(&before->module, &m->module), PARAMETERS);
    mc_module_free(&before->module);
}

static void test_bad_files(void **state)
{
    fixture *f = *state;
    model *m = model_new(f->ctx, MC_F32, 5, 7), *other = model_new(f->ctx, MC_F32, 1, 8);
    refuse(f, m, MC_ERR_NOT_FOUND, "mine", "");
    mc_module_save(&other->module, f->path);
    refuse(f, m, MC_ERR_SHAPE, "\"net.gate\"", "shape (8), expected (7)");
    write_text(f->path, "no safetensors");
    refuse(f, m, MC_ERR_FORMAT, "mine", "");
    mc_module_save(&other->module, f->path);
    assert_int_equal(truncate(f->path, 200), 0);
    refuse(f, m, MC_ERR_FORMAT, "mine", "");
    static const char name[] = "net.gate";
    mc_safetensors_spec spec = {.name = name, .dtype = MC_I32, .ndim = 1, .shape = (int64_t[]){7}};
    mc_safetensors_writer *w = mc_safetensors_writer_new(f->ctx, f->path, &spec, 1, NULL, 0);
    mc_safetensors_write(w, (int32_t[7]){0}, 7 * sizeof(int32_t));
    mc_safetensors_writer_commit(w);
    mc_safetensors_writer_free(w);
    assert_good(f->ctx);
    refuse(f, m, MC_ERR_DTYPE, "\"net.gate\"", "I32, expected F64, F32, F16 or BF16");
}

static void test_bad_arguments(void **state)
{
    fixture *f = *state;
    model *m = model_new(f->ctx, MC_F32, 5, 7);
    assert_int_equal(mc_module_save(NULL, f->path), MC_ERR_ARGUMENT);
    assert_int_equal(mc_module_load(NULL, f->path), MC_ERR_ARGUMENT);
    mc_module_save(&m->module, NULL);
    assert_error(f->ctx, MC_ERR_ARGUMENT, "mc_module_save", "NULL");
    mc_module_load(&m->module, NULL);
    assert_error(f->ctx, MC_ERR_ARGUMENT, "mc_module_load", "NULL");
    mc_module_save(&m->module, temp_path(&f->folder, "absent/file.safetensors"));
    assert_error(f->ctx, MC_ERR_NOT_FOUND, "absent");
    mc_module_save(&m->module, f->path);
    mc_set_error(f->ctx, MC_ERR_STATE, "an error before");
    assert_int_equal(mc_module_save(&m->module, temp_path(&f->folder, "b")), MC_ERR_STATE);
    assert_int_equal(mc_module_load(&m->module, f->path), MC_ERR_STATE);
    assert_error(f->ctx, MC_ERR_STATE, "an error before");
    assert_int_equal(access(temp_path(&f->folder, "b"), F_OK), -1);
}

/* Where there is no room, the file that was there stays. */
static void test_no_room(void **state)
{
    fixture *f = *state;
    model *a = model_new(f->ctx, MC_F32, 1, 7), *b = model_new(f->ctx, MC_F32, 5, 7);
    struct rlimit before, small = {.rlim_cur = 100};
    mc_module_save(&a->module, f->path);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    mc_status status = mc_module_save(&b->module, f->path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, MC_ERR_IO);
    assert_error(f->ctx, MC_ERR_IO, "mine");
    mc_module_load(&b->module, f->path);
    assert_good(f->ctx);
    assert_int_equal(equal_parameters(&a->module, &b->module), PARAMETERS);
}

#ifdef MC_FAULT_INJECTION
/* Every allocation in turn fails. */
static void test_out_of_memory(void **state)
{
    fixture *f = *state;
    model *a = model_new(f->ctx, MC_F32, 1, 7), *b = model_new(f->ctx, MC_F32, 5, 7);
    for (int loads = 0; loads < 2; loads++) {
        long nth = 0, count;
        do {
            mc_fault_fail_at(++nth, false);
            mc_status status =
                loads ? mc_module_load(&b->module, f->path) : mc_module_save(&a->module, f->path);
            count = mc_fault_count();
            mc_fault_fail_at(0, false);
            if (nth <= count && status) assert_int_equal(status, MC_ERR_NOMEM);
            if (nth > count) assert_int_equal(status, MC_OK);
            mc_clear_error(f->ctx);
        } while (nth <= count);
        assert_true(nth > 5);
    }
    assert_int_equal(equal_parameters(&a->module, &b->module), PARAMETERS);
}
#endif

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_round_trip),    TEST(test_converted), TEST(test_contents),      TEST(test_torch),
        TEST(test_part),          TEST(test_bad_files), TEST(test_bad_arguments),
#ifdef MC_FAULT_INJECTION
        TEST(test_out_of_memory),
#endif
        TEST(test_no_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
