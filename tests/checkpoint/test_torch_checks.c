/* The CRCs of PyTorch zip files: every byte of every tensor is checked as a model is loaded, in
 * whatever way it is read; a field of 0 says that there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/base/crc32_internal.h"
#include "tests/zip_sums.h"
#include "core/formats/torch_writer.h"
#include "tests/models/family_test.h"

/* ---- the sum itself -------------------------------------------------------------------------- */

static uint32_t bit_by_bit(const uint8_t *data, size_t size)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void test_sums(void **state)
{
    (void)state;
    enum { MOST = 1200 };
    static uint8_t data[MOST + 32];
    mc_crc32_table table;
    uint32_t seed = 1;
    mc_crc32_table_init(&table);
    assert_int_equal(mc_crc32(&table, 0, "123456789", 9), 0xcbf43926u);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(seed = seed * 1664525 + 99, seed >> 24);
    for (size_t size = 0; size <= MOST; size += size < 300 ? 1 : 37) {
        const uint8_t *at = data + size % 32;
        uint32_t whole = bit_by_bit(at, size), first = mc_crc32(&table, 0, at, size / 3);
        assert_int_equal(mc_crc32(&table, 0, at, size), whole);
        assert_int_equal(mc_crc32(&table, first, at + size / 3, size - size / 3), whole);
        uint32_t second = mc_crc32(&table, 0, at + size / 3, size - size / 3);
        assert_int_equal(mc_crc32_join(first, second, size - size / 3), whole);
    }
}

/* The largest number wherever it stands, and the same sum as without looking for it. */
static void test_largest(void **state)
{
    (void)state;
    enum { MOST = 1201 };
    static uint8_t data[4 * MOST];
    mc_crc32_table table;
    mc_crc32_table_init(&table);
    for (int bits = 16; bits <= 32; bits += 16)
        for (size_t place = 0; place < MOST; place += place < 300 ? 1 : 37) {
            size_t width = (size_t)bits / 8, size = width * MOST;
            uint32_t found = 3, alone = 3;
            memset(data, 0, sizeof data);
            memset(data + (MOST - 1 - place) * width, 0x80, width); /* a sign and one more bit */
            memset(data + place * width, 0xff, width);
            assert_int_equal(mc_crc32_largest(&table, 0, data, size, bits, &found),
                             mc_crc32(&table, 0, data, size));
            mc_largest_bits(data, size, bits, &alone);
            assert_int_equal(found, bits == 16 ? 0x7fff : 0x7fffffff);
            assert_int_equal(alone, found);
        }
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Saves a tiny model as pytorch_model.bin alone. */
static void save_torch(mc_context *ctx, const char *family, const temp_folder *folder)
{
    mc_model *model = tiny_model(ctx, tiny(family), NULL);
    const char *path = temp_path(folder, "model.safetensors");
    assert_int_equal(mc_model_save(model, folder->path), MC_OK);
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    assert_int_equal(mc_torch_write_file(file, temp_path(folder, "pytorch_model.bin")), MC_OK);
    mc_tensor_file_free(file);
    mc_model_free(model);
    assert_int_equal(unlink(path), 0);
}

static uint8_t *read_all(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

/* Where a tensor's last byte lies in the file. */
static size_t last_byte(mc_context *ctx, const char *path, const char *name)
{
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    const mc_tensor_entry *e = mc_tensor_file_find(file, name);
    float *values = malloc(e->size);
    size_t size, at = 0;
    uint8_t *data = read_all(path, &size);
    mc_tensor_file_read_f32(file, e, 0, e->count, values);
    while (at + e->size <= size && memcmp(data + at, values, e->size) != 0) at++;
    assert_true(at + e->size <= size);
    at += e->size - 1;
    free(values);
    free(data);
    mc_tensor_file_free(file);
    return at;
}

/* Whatever tensor is damaged, and however it is read: straight, transposed, in parts, converted. */
static void test_damage(void **state)
{
    mc_context *ctx = *state;
    static const struct {
        const char *family, *tensor;
        mc_dtype dtype;
    } rows[] = {
        {"gpt2", "transformer.wte.weight", MC_F32},
        {"gpt2", "transformer.h.1.attn.c_attn.weight", MC_F32},
        {"gpt2", "transformer.h.1.attn.c_attn.bias", MC_F32},
        {"gpt2", "transformer.h.0.mlp.c_proj.weight", MC_F32},
        {"gpt2", "transformer.h.0.ln_1.bias", MC_BF16},
        {"bert", "bert.encoder.layer.1.output.dense.weight", MC_BF16},
        {"t5", "decoder.block.2.layer.1.EncDecAttention.o.weight", MC_F16},
    };
    temp_folder folder = temp_folder_new();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *path = temp_path(&folder, "pytorch_model.bin");
        mc_load_options options = {.dtype = rows[i].dtype};
        mc_tensor_checksums sums;
        size_t size;
        if (i == 0 || strcmp(rows[i].family, rows[i - 1].family) != 0)
            save_torch(ctx, rows[i].family, &folder);
        mc_model_free(mc_model_from_pretrained(ctx, folder.path, &options));
        assert_good(ctx);
        uint8_t *data = read_all(path, &size), *whole = read_all(path, &size);
        data[last_byte(ctx, path, rows[i].tensor)] ^= 0x10;
        write_bytes(path, data, size);
        assert_null(mc_model_from_pretrained(ctx, folder.path, &options));
        assert_error(ctx, MC_ERR_FORMAT, path, "/data/", "CRC", "damaged");
        mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
        assert_int_equal(mc_tensor_file_verify(file, &sums), MC_ERR_FORMAT);
        mc_clear_error(ctx);
        mc_tensor_file_free(file);
        drop_zip_sums(data, size); /* then nothing finds the damage */
        write_bytes(path, data, size);
        mc_model_free(mc_model_from_pretrained(ctx, folder.path, &options));
        assert_good(ctx);
        write_bytes(path, whole, size);
        free(data);
        free(whole);
    }
    temp_folder_free(&folder);
}

static void test_counts(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    mc_tensor_checksums sums = {.absent = 1};
    size_t size;
    save_torch(ctx, "gpt2", &folder);
    const char *path = temp_path(&folder, "pytorch_model.bin");
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    size_t count = mc_tensor_file_count(file);
    assert_int_equal(mc_tensor_file_verify(file, &sums), MC_OK);
    assert_true(sums.checked == count && sums.absent == 0);
    assert_int_equal(mc_tensor_file_verify(file, NULL), MC_OK);
    mc_tensor_file_free(file);
    uint8_t *data = read_all(path, &size);
    drop_zip_sums(data, size);
    write_bytes(path, data, size);
    free(data);
    file = mc_tensor_file_open(ctx, path, NULL);
    assert_int_equal(mc_tensor_file_verify(file, &sums), MC_OK);
    assert_true(sums.checked == 0 && sums.absent == count);
    assert_int_equal(mc_tensor_file_verify(NULL, &sums), MC_ERR_ARGUMENT);
    temp_folder_free(&folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_largest),
                                       TEST(test_damage), TEST(test_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
