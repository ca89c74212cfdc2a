/* PyTorch's files: what is read. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/checkpoint/torch_test.h"
#include "tests/shared_data.h"

static void expect_values(mc_tensor_file *file, const char *name, const float *values, int64_t n)
{
    float read[16];
    const mc_tensor_entry *e = mc_tensor_file_find(file, name);
    assert_non_null(e);
    assert_int_equal(e->count, n);
    assert_int_equal(mc_tensor_file_read_f32(file, e, 0, n, read), MC_OK);
    assert_memory_equal(read, values, (size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) { /* and each of them alone */
        assert_int_equal(mc_tensor_file_read_f32(file, e, i, 1, read), MC_OK);
        assert_true(read[0] == values[i]);
    }
}

/* ---- what is read ---------------------------------------------------------------------------- */

static void views_and_shared_storage(void **state)
{
    fixture *f = *state;
    mc_tensor_file *file = open_good(
        f, WRITE_TORCH(f, PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\2K\3", "K\3K\1")
                              TEXT("\1", "t") TENSOR(SIX, "K\0", "K\3K\2", "K\1K\3") TEXT("\1", "s")
                                  TENSOR(SIX, "K\1", "K\3", "K\2") TEXT("\1", "x")
                                      TENSOR(SIX, "K\4", "K\2K\1", "K\0K\7") TEXT("\1", "0")
                                          TENSOR(SIX, "K\5", "", "") TEXT("\1", "e")
                                              TENSOR(SIX, "K\6", "K\0K\4", "K\4K\1") PICKLE_END));
    assert_int_equal(mc_tensor_file_count(file), 6);
    assert_string_equal(mc_tensor_file_format(file), "PyTorch zip");
    expect_values(file, "w", six, 6);
    expect_values(file, "t", (float[]){1, 4, 2, 5, 3, 6}, 6);
    expect_values(file, "s", (float[]){2, 4, 6}, 3);
    expect_values(file, "x", (float[]){5, 5}, 2);
    expect_values(file, "0", (float[]){6}, 1);
    expect_values(file, "e", NULL, 0);
    const mc_tensor_entry *w = mc_tensor_file_find(file, "w"), *t = mc_tensor_file_find(file, "t");
    assert_true(w->dense && !t->dense && w->data == t->data);
    assert_int_equal(t->strides[1], 3);
    mc_tensor_file_free(file);
}

static void containers_name_their_tensors(void **state)
{
    fixture *f = *state;
    mc_tensor_file *file =
        open_good(f, WRITE_TORCH(f, "\x80\x02(}(" TEXT("\1", "a")
                                        TENSOR(SIX, "K\0", "K\1", "K\1") "K\7}(" TEXT("\1", "b")
                                            TENSOR(SIX, "K\1", "K\1", "K\1") "uN]K\1au" TENSOR(
                                                SIX, "K\2", "K\1", "K\1") "l."));
    assert_int_equal(mc_tensor_file_count(file), 3);
    expect_values(file, "0.a", (float[]){1}, 1);
    expect_values(file, "0.7.b", (float[]){2}, 1);
    expect_values(file, "1", (float[]){3}, 1);
    mc_tensor_file_free(file);
    file = open_good(f, WRITE_TORCH(f, "\x80\x02" TENSOR(SIX, "K\0", "K\6", "K\1") "."));
    expect_values(file, "", six, 6);
    mc_tensor_file_free(file);
}

static void weights_of_a_training_checkpoint(void **state)
{
    fixture *f = *state;
    mc_tensor_file *file = open_good(
        f, WRITE_TORCH(
               f, PICKLE_BEGIN TEXT("\5", "model") "}(" TEXT("\6", "module") "}(" TEXT("\1", "w")
                      TENSOR(SIX, "K\0", "K\6", "K\1") "uu" TEXT("\5", "epoch") "K\3" TEXT(
                          "\3", "opt") "}(" TEXT("\1", "m")
                          TENSOR(SIX, "K\0", "K\6", "K\1") "u" PICKLE_END));
    assert_int_equal(mc_tensor_file_count(file), 1);
    expect_values(file, "w", six, 6);
    assert_non_null(strstr(f->log, "1 tensors beside \"module\" are left out"));
    mc_tensor_file_free(file);
}

static void big_endian_elements_are_turned(void **state)
{
    fixture *f = *state;
    zip_bytes z = {0};
    static const char pickle[] =
        PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END;
    uint8_t turned[sizeof six];
    const char *path = temp_path(&f->folder, "big.pt");
    for (size_t i = 0; i < sizeof six; i++)
        turned[i] = ((const uint8_t *)six)[i / 4 * 4 + 3 - i % 4];
    zip_add(&z, "m/data.pkl", pickle, sizeof pickle - 1);
    zip_add(&z, "m/byteorder", "big", 3);
    zip_add(&z, "m/data/0", turned, sizeof turned);
    zip_end(&z);
    write_bytes(path, z.data, z.used);
    mc_tensor_file *file = open_good(f, path);
    expect_values(file, "w", six, 6);
    assert_true(mc_tensor_file_at(file, 0)->big_endian);
    mc_tensor_file_free(file);
}

/* The form before 1.6, with a storage that is a view of another. */
static void the_legacy_form_is_read(void **state)
{
    fixture *f = *state;
    static const char legacy[] =
        LEGACY_HEAD PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\6", "K\1") TEXT("\1", "v")
            REBUILD "(" TEXT("\7", "storage") "ctorch\nFloatStorage\n" TEXT("\1", "0")
                TEXT("\3", "cpu") "K\6"
                                  "(" TEXT("\1", "v") "K\2K\3ttQK\1(K\2t(K\1t\x89}tR" PICKLE_END
                                                      "](" TEXT("\1", "0") "e.\6\0\0\0\0\0\0";
    uint8_t bytes[sizeof legacy + sizeof six];
    const char *path = temp_path(&f->folder, "legacy.pt");
    memcpy(bytes, legacy, sizeof legacy); /* whose NUL is the last byte of the count */
    memcpy(bytes + sizeof legacy, six, sizeof six);
    write_bytes(path, bytes, sizeof bytes);
    mc_tensor_file *file = open_good(f, path);
    assert_string_equal(mc_tensor_file_format(file), "PyTorch legacy");
    expect_values(file, "w", six, 6);
    expect_values(file, "v", (float[]){4, 5}, 2);
    mc_tensor_file_free(file);
    for (size_t size = 0; size < sizeof bytes; size++) {
        write_bytes(path, bytes, size);
        assert_null(mc_tensor_file_open(f->ctx, path, NULL));
        assert_non_null(strstr(mc_error_message(f->ctx), path));
        mc_clear_error(f->ctx);
    }
}

static void zip64_is_read(void **state)
{
    fixture *f = *state;
    static const char pickle[] =
        PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END;
    zip_bytes z = {.wide = true};
    const char *path = temp_path(&f->folder, "wide.pt");
    zip_add(&z, "m/data.pkl", pickle, sizeof pickle - 1);
    zip_add(&z, "m/data/0", six, sizeof six);
    zip_end(&z);
    write_bytes(path, z.data, z.used);
    mc_tensor_file *file = open_good(f, path);
    expect_values(file, "w", six, 6);
    mc_tensor_file_free(file);
}

/* ---- large files ----------------------------------------------------------------------------- */

/* Bytes of memory that are no file's; 0 where the system doesn't say. */
static long own_memory(void)
{
    char line[256];
    long kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "RssAnon:", 8) == 0) kilobytes = strtol(line + 8, NULL, 10);
    if (file) fclose(file);
    return kilobytes * 1024;
}

/* A sparse file of 5 GiB: an entry that large, another one and the directory after it. */
static void write_large(const char *path, int64_t elements)
{
    static const char pickle[] = PICKLE_BEGIN TEXT("\1", "w") TENSOR(
        STORAGE("Float", "0", "\x8a\5\0\0\0\x50\0"), "\x8a\5\xfa\xff\xff\x4f\0", "K\6", "K\1")
        TEXT("\1", "x") TENSOR(STORAGE("Float", "1", "K\6"), "K\0", "K\6", "K\1") PICKLE_END;
    zip_bytes head = {.wide = true}, tail = {.wide = true};
    uint64_t size = (uint64_t)elements * 4;
    zip_add(&head, "m/data.pkl", pickle, sizeof pickle - 1);
    zip_add(&head, "m/data/0", "", 0);
    memcpy(head.data + head.used - 16, &size, 8); /* the sizes in its zip64 field */
    memcpy(head.data + head.used - 8, &size, 8);
    head.entries[1].size = size;
    uint64_t behind = head.used + size;
    zip_add(&tail, "m/data/1", six, sizeof six);
    for (int i = 0; i < 2; i++) tail.entries[i + 1] = head.entries[i];
    tail.entries[0].begin = behind;
    tail.count = 3;
    tail.base = behind;
    zip_end(&tail);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(head.data, head.used, 1, file), 1);
    assert_int_equal(fseeko(file, (off_t)(behind - sizeof six), SEEK_SET), 0);
    assert_int_equal(fwrite(six, sizeof six, 1, file), 1);
    assert_int_equal(fwrite(tail.data, tail.used, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static void large_files_take_no_memory(void **state)
{
    enum { MOST = 16 << 20 };
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "large.pt");
    write_large(path, INT64_C(5) << 28);
    long before = own_memory();
    mc_tensor_file *file = open_good(f, path);
    expect_values(file, "w", six, 6);
    expect_values(file, "x", six, 6);
    assert_true(own_memory() - before < MOST);
    mc_tensor_file_free(file);
}

/* ---- folders, real files, memory ------------------------------------------------------------- */

static void folders_hold_pytorch_files(void **state)
{
    fixture *f = *state;
    mc_tensor_file *file;
    const char *made =
        WRITE_TORCH(f, PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END);
    assert_int_equal(rename(made, temp_path(&f->folder, "pytorch_model.pt")), 0);
    mc_tensor_file_free(file = open_good(f, f->folder.path));
    made = WRITE_TORCH(f, PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\2", "K\1") PICKLE_END);
    assert_int_equal(rename(made, temp_path(&f->folder, "part-1.bin")), 0);
    write_text(temp_path(&f->folder, "pytorch_model.bin.index.json"),
               "{\"weight_map\":{\"w\":\"part-1.bin\"}}");
    file = open_good(f, f->folder.path);
    expect_values(file, "w", six, 2);
    mc_tensor_file_free(file);
    made = WRITE_TORCH(f, PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\3", "K\1") PICKLE_END);
    assert_int_equal(rename(made, temp_path(&f->folder, "pytorch_model.fp16.bin")), 0);
    file = mc_tensor_file_open(f->ctx, f->folder.path, &(mc_tensor_file_options){"fp16"});
    expect_values(file, "w", six, 3);
    mc_tensor_file_free(file);
}

/* Values of a file are those of another under the same names. */
static void expect_equal(fixture *f, const char *path, const char *expected_path)
{
    mc_tensor_file *file = open_good(f, path), *expected = open_good(f, expected_path);
    for (size_t i = 0; i < mc_tensor_file_count(expected); i++) {
        const mc_tensor_entry *e = mc_tensor_file_at(expected, i);
        const mc_tensor_entry *found = mc_tensor_file_find(file, e->name);
        assert_non_null(found);
        assert_string_equal(found->dtype_name, e->dtype_name);
        assert_int_equal(found->size, e->size);
        void *bytes = malloc(e->size + 1);
        assert_int_equal(mc_tensor_file_read_bytes(file, found, 0, e->count, bytes), MC_OK);
        assert_memory_equal(bytes, e->data, e->size);
        free(bytes);
    }
    mc_tensor_file_free(file);
    mc_tensor_file_free(expected);
}

static void goldens_are_equal(void **state)
{
    fixture *f = *state;
    const char *expected = shared_path("goldens/loader-formats/expected.safetensors");
    if (!expected) skip();
    expect_equal(f, shared_path("goldens/loader-formats/zip.bin"), expected);
    expect_equal(f, shared_path("goldens/loader-formats/legacy.bin"), expected);
    expect_equal(f, shared_path("goldens/loader-formats/nested.pt"), expected);
    expect_refused(f, shared_path("goldens/loader-formats/evil.bin"),
                   "the global \"posix.system\" is refused");
    expect_refused(f, shared_path("goldens/torch-files/bumblebee/numpy_arrays.legacy.pt"),
                   "the global \"numpy.core.multiarray._reconstruct\" is refused");
    expect_refused(f, shared_path("goldens/torch-files/candle/test.npz"),
                   "without FOLDER/data.pkl");
    static const char *const folders[] = {"cpm1", "cpm2", "mc-bert", "mc-gpt2", "mc-t5"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char torch[64], same[64];
        snprintf(torch, sizeof torch, "goldens/%s/pytorch_model.pt", folders[i]);
        snprintf(same, sizeof same, "goldens/%s/model.safetensors", folders[i]);
        expect_equal(f, shared_path(torch), shared_path(same));
    }
    mc_tensor_file *file =
        open_good(f, shared_path("goldens/torch-files/candle/fortran_tensor_3d.pth"));
    const mc_tensor_entry *e = mc_tensor_file_find(file, "tensor_fortran");
    double values[24];
    assert_int_equal(mc_tensor_file_read_f64(file, e, 0, 24, values), MC_OK);
    for (int i = 0; i < 24; i++) assert_true(values[i] == i + 1);
    mc_tensor_file_free(file);
    file = open_good(f, shared_path("goldens/torch-files/bumblebee/tensors.legacy.pt"));
    assert_string_equal(mc_tensor_file_format(file), "PyTorch legacy");
    assert_string_equal(mc_tensor_file_find(file, "0")->dtype_name, "F64");
    mc_tensor_file_free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(views_and_shared_storage),
        TEST(containers_name_their_tensors),
        TEST(weights_of_a_training_checkpoint),
        TEST(big_endian_elements_are_turned),
        TEST(the_legacy_form_is_read),
        TEST(zip64_is_read),
        TEST(large_files_take_no_memory),
        TEST(folders_hold_pytorch_files),
        TEST(goldens_are_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
