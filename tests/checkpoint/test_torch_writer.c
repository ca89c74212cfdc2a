/* Writing PyTorch's files. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/formats/torch_writer.h"
#include "tests/checkpoint/torch_test.h"

/* ---- writing --------------------------------------------------------------------------------- */

static void state_dicts_are_written(void **state)
{
    fixture *f = *state;
    static const int64_t shape[] = {2, 3}, none[] = {0};
    static const char *const dtypes[] = {
        "F32", "F16",  "BF16", "F64", "I64", "I32",     "I16",     "I8",  "U8",    "BOOL",
        "C64", "C128", "U16",  "U32", "U64", "F8_E4M3", "F8_E5M2", "C32", "F4_X2", "BITS16"};
    enum { COUNT = sizeof dtypes / sizeof *dtypes };
    mc_safetensors_spec specs[COUNT + 2];
    uint8_t bytes[COUNT * 6 * 16 + 4];
    const char *path = temp_path(&f->folder, "all.pt");
    size_t size = 4, at = 0; /* of a scalar, and of an empty one */
    for (int i = 0; i < COUNT; i++)
        specs[i] = (mc_safetensors_spec){
            .name = dtypes[i], .dtype_name = dtypes[i], .ndim = 2, .shape = shape};
    specs[COUNT] = (mc_safetensors_spec){.name = "none", .ndim = 1, .shape = none};
    specs[COUNT + 1] = (mc_safetensors_spec){.name = "scalar"};
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 37);
    mc_torch_writer *w = mc_torch_writer_new(f->ctx, path, specs, COUNT + 2);
    assert_non_null(w);
    static const int sizes[COUNT] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1, 8, 16, 2, 4, 8, 1, 1, 4, 1, 2};
    for (int i = 0; i < COUNT; i++) size += 6 * (size_t)sizes[i];
    for (; at < size - 1; at += 7 < size - 1 - at ? 7 : size - 1 - at) /* cut anywhere */
        assert_int_equal(mc_torch_write(w, bytes + at, 7 < size - 1 - at ? 7 : size - 1 - at),
                         MC_OK);
    assert_int_equal(mc_torch_writer_commit(w), MC_ERR_STATE); /* one byte is missing */
    mc_clear_error(f->ctx);
    assert_int_equal(mc_torch_write(w, bytes + at, 1), MC_OK);
    assert_int_equal(mc_torch_writer_commit(w), MC_OK);
    mc_torch_writer_free(w);
    mc_tensor_file *file = open_good(f, path);
    assert_int_equal(mc_tensor_file_count(file), COUNT + 2);
    for (int i = 0, from = 0; i < COUNT; from += 6 * sizes[i++]) {
        const mc_tensor_entry *e = mc_tensor_file_find(file, dtypes[i]);
        assert_string_equal(e->dtype_name, dtypes[i]);
        assert_int_equal(e->size, 6 * sizes[i]);
        assert_memory_equal(e->data, bytes + from, e->size);
        assert_int_equal((uintptr_t)e->data % 64, 0);
    }
    const char *again = temp_path(&f->folder, "again.pt");
    assert_int_equal(mc_torch_write_file(file, again), MC_OK);
    mc_tensor_file_free(file);
    file = open_good(f, again);
    assert_int_equal(mc_tensor_file_count(file), COUNT + 2);
    mc_tensor_file_free(file);
}

static void refuse_specs(fixture *f, mc_safetensors_spec spec, size_t count, const char *message)
{
    const char *path = temp_path(&f->folder, "never.pt");
    assert_null(mc_torch_writer_new(f->ctx, path, (mc_safetensors_spec[]){spec, spec}, count));
    assert_int_equal(mc_error_status(f->ctx), MC_ERR_ARGUMENT);
    if (!strstr(mc_error_message(f->ctx), message))
        fail_msg("\"%s\" not in: %s", message, mc_error_message(f->ctx));
    mc_clear_error(f->ctx);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void bad_state_dicts_are_refused(void **state)
{
    fixture *f = *state;
    refuse_specs(f, (mc_safetensors_spec){.name = "w"}, 2, "\"w\" is declared twice");
    refuse_specs(f, (mc_safetensors_spec){.name = "w", .dtype_name = "F4"}, 1, "no dtype \"F4\"");
    refuse_specs(f, (mc_safetensors_spec){.name = "\xff"}, 1, "not a name");
    refuse_specs(f, (mc_safetensors_spec){.name = "w", .ndim = -1}, 1, "-1 dimensions");
    refuse_specs(f, (mc_safetensors_spec){.name = "w", .ndim = 1, .shape = (int64_t[]){-1}}, 1,
                 "dimension 0");
    mc_torch_writer *w = mc_torch_writer_new(f->ctx, temp_path(&f->folder, "x.pt"),
                                             &(mc_safetensors_spec){.name = "w"}, 1);
    assert_int_equal(mc_torch_write(w, six, 5), MC_ERR_ARGUMENT);
    mc_torch_writer_free(w);
    mc_clear_error(f->ctx);
    assert_int_not_equal(access(temp_path(&f->folder, "x.pt"), F_OK), 0);
}

static void failed_allocations_are_clean(void **state)
{
#ifdef MC_FAULT_INJECTION
    fixture *f = *state;
    const char *path =
        WRITE_TORCH(f, PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END);
    const char *copy = temp_path(&f->folder, "copy.pt");
    for (int all_after = 0; all_after < 2; all_after++) {
        long nth = 0;
        for (bool done = false; !done;) {
            mc_fault_fail_at(++nth, all_after);
            mc_tensor_file *file = mc_tensor_file_open(f->ctx, path, NULL);
            done = file && mc_torch_write_file(file, copy) == MC_OK;
            mc_fault_fail_at(0, false);
            if (!done) assert_int_equal(mc_error_status(f->ctx), MC_ERR_NOMEM);
            mc_clear_error(f->ctx);
            mc_tensor_file_free(file);
        }
        assert_true(nth > 20);
    }
#else
    (void)state;
    printf("SKIPPED: needs a build with MC_FAULT_INJECTION\n");
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(state_dicts_are_written),
        TEST(bad_state_dicts_are_refused),
        TEST(failed_allocations_are_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
