/* Reading safetensors: what is accepted, what is refused and with which words, conversions. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include "core/base/context_internal.h"
#include "core/base/json_internal.h"
#include "core/formats/safetensors_internal.h"
#include "core/formats/tensor_file_internal.h"
#include "tests/temp_folder.h"

typedef struct fixture {
    temp_folder folder;
    mc_context *ctx;
    char log[2048]; /* all lines */
} fixture;

static void keep_log(void *user, mc_log_level level, const char *line)
{
    fixture *f = user;
    (void)level;
    size_t used = strlen(f->log);
    snprintf(f->log + used, sizeof f->log - used, "%s\n", line);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->folder = temp_folder_new();
    f->ctx = mc_init_distributed(&(mc_init_options){.log = keep_log, .log_user = f});
    *state = f;
    return mc_failed(f->ctx) ? mc_print_error(f->ctx, stderr) : 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    mc_context_free(f->ctx);
    temp_folder_free(&f->folder);
    free(f);
    return 0;
}

/* Makes the bytes of a file from its header and `size` bytes of data (zeros when NULL). */
static uint8_t *make_file(const char *header, size_t length, const void *data, size_t size)
{
    uint8_t *bytes = calloc(1, 8 + length + size + 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    if (data) memcpy(bytes + 8 + length, data, size);
    return bytes;
}

static void write_file(const char *path, const char *header, const void *data, size_t size)
{
    uint8_t *bytes = make_file(header, strlen(header), data, size);
    write_bytes(path, bytes, 8 + strlen(header) + size);
    free(bytes);
}

static void expect_error(mc_context *ctx, mc_status status, const char *part)
{
    if (!mc_failed(ctx)) fail_msg("no error, expected: %s", part);
    if (!strstr(mc_error_message(ctx), part))
        fail_msg("\"%s\" not in: %s", part, mc_error_message(ctx));
    assert_int_equal(mc_error_status(ctx), status);
    mc_clear_error(ctx);
}

static mc_tensor_file *open_good(fixture *f, const char *path)
{
    mc_tensor_file *file = mc_tensor_file_open(f->ctx, path, NULL);
    if (!file) fail_msg("%s", mc_error_message(f->ctx));
    return file;
}

/* ---- What is accepted ----------------------------------------------------------------------- */

static void every_dtype_has_its_size(void **state)
{
    static const struct {
        const char *name;
        int bits;
        mc_dtype dtype;
    } table[] = {
        {"BOOL", 8, MC_BOOL}, {"U8", 8, MC_U8},    {"I8", 8, 0},          {"F8_E4M3", 8, 0},
        {"F8_E5M2", 8, 0},    {"F8_E8M0", 8, 0},   {"F8_E4M3FNUZ", 8, 0}, {"F8_E5M2FNUZ", 8, 0},
        {"F4", 4, 0},         {"F6_E2M3", 6, 0},   {"F6_E3M2", 6, 0},     {"I16", 16, 0},
        {"U16", 16, 0},       {"F16", 16, MC_F16}, {"BF16", 16, MC_BF16}, {"I32", 32, MC_I32},
        {"U32", 32, 0},       {"F32", 32, MC_F32}, {"F64", 64, 0},        {"I64", 64, MC_I64},
        {"U64", 64, 0},       {"C64", 64, 0},
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char header[256];
        size_t size = (size_t)table[i].bits; /* of 8 elements */
        const char *path = temp_path(&f->folder, "one.safetensors");
        snprintf(header, sizeof header,
                 "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%zu]}}",
                 table[i].name, size);
        write_file(path, header, NULL, size);
        mc_tensor_file *file = open_good(f, path);
        const mc_tensor_entry *entry = mc_tensor_file_find(file, "t");
        assert_non_null(entry);
        assert_int_equal(entry->dtype, table[i].dtype);
        assert_string_equal(entry->dtype_name, table[i].name);
        assert_int_equal(entry->size, size);
        assert_int_equal(entry->count, 8);
        assert_int_equal(entry->ndim, 2);
        assert_int_equal(entry->shape[1], 4);
        mc_tensor_file_free(file);
    }
}

static void scalars_and_empty_tensors_work(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "s.safetensors");
    float value = 2.5f, out = 0;
    write_file(
        path,
        "{\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
        "\"one\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"zero\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[4,4],\"spare\":[[1]]},"
        "\"__metadata__\":{\"format\":\"pt\",\"k\":\"\\u00e9\\n\"}}  ",
        &value, 4);
    mc_tensor_file *file = open_good(f, path);
    assert_int_equal(mc_tensor_file_count(file), 3);
    assert_string_equal(mc_tensor_file_at(file, 0)->name, "none");
    assert_string_equal(mc_tensor_file_at(file, 2)->name, "zero");
    assert_null(mc_tensor_file_at(file, 3));
    assert_null(mc_tensor_file_find(file, "__metadata__"));
    const mc_tensor_entry *one = mc_tensor_file_find(file, "one");
    assert_int_equal(one->ndim, 0);
    assert_int_equal(one->count, 1);
    assert_int_equal(mc_tensor_file_read_f32(file, one, 0, 1, &out), MC_OK);
    assert_true(out == 2.5f);
    const mc_tensor_entry *none = mc_tensor_file_at(file, 0);
    assert_int_equal(none->count, 0);
    assert_int_equal(none->size, 0);
    assert_int_equal(mc_tensor_file_read_f32(file, none, 0, 0, NULL), MC_OK);
    assert_string_equal(mc_tensor_file_metadata(file, "format"), "pt");
    assert_string_equal(mc_tensor_file_metadata(file, "k"), "\xc3\xa9\n");
    assert_null(mc_tensor_file_metadata(file, "absent"));
    assert_int_equal(mc_tensor_file_metadata_count(file), 2);
    assert_string_equal(mc_tensor_file_metadata_key(file, 1), "k");
    assert_null(mc_tensor_file_metadata_value(file, 2));
}

static void files_without_tensors_open(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "e.safetensors");
    static const char *const headers[] = {"{}", "{}      ", "{\"__metadata__\":{}}",
                                          "{\"__metadata__\":null}\n"};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        write_file(path, headers[i], NULL, 0);
        mc_tensor_file *file = open_good(f, path);
        assert_int_equal(mc_tensor_file_count(file), 0);
        assert_null(mc_tensor_file_at(file, 0));
        assert_null(mc_tensor_file_find(file, ""));
    }
}

static void many_tensors_are_found_by_name(void **state)
{
    enum { COUNT = 5000 };
    fixture *f = *state;
    char *header = malloc(COUNT * 96), *next = header, name[32];
    float *data = malloc(COUNT * 4), out;
    *next++ = '{';
    for (int i = 0; i < COUNT; i++) { /* neither in the order of names nor of places */
        int at = (int)((i * 1237L) % COUNT);
        data[at] = (float)at;
        next +=
            sprintf(next, "%s\"t%d\":{\"data_offsets\":[%d,%d],\"shape\":[1],\"dtype\":\"F32\"}",
                    i ? "," : "", at, at * 4, at * 4 + 4);
    }
    strcpy(next, "}");
    write_file(temp_path(&f->folder, "m.safetensors"), header, data, COUNT * 4);
    mc_tensor_file *file = open_good(f, temp_path(&f->folder, "m.safetensors"));
    assert_int_equal(mc_tensor_file_count(file), COUNT);
    for (int i = 0; i < COUNT; i++) {
        sprintf(name, "t%d", i);
        const mc_tensor_entry *entry = mc_tensor_file_find(file, name);
        assert_non_null(entry);
        assert_int_equal(mc_tensor_file_read_f32(file, entry, 0, 1, &out), MC_OK);
        assert_true(out == (float)i);
    }
    assert_null(mc_tensor_file_find(file, "t"));
    assert_null(mc_tensor_file_find(file, "t5000"));
    assert_null(mc_tensor_file_find(file, NULL));
    free(header);
    free(data);
}

/* ---- What is refused ------------------------------------------------------------------------ */

#define F32(name, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *header;
    size_t size; /* bytes of data */
    const char *message;
} damaged[] = {
    {" {}", 0, "doesn't start with '{'"},
    {"[]", 0, "doesn't start with '{'"},
    {"", 0, "doesn't start with '{'"},
    {"{", 0, "header:1: malformed JSON"},
    {"{\"a\":", 0, "malformed JSON"},
    {"{}}", 0, "malformed JSON"},
    {"{} x", 0, "malformed JSON at \"x\""},
    {"{\"\xff\":1}", 0, "malformed JSON: not UTF-8"},
    {"{\"a\xc3\":1}", 0, "malformed JSON: not UTF-8"},
    {"{\"\xed\xa0\x80\":1}", 0, "malformed JSON: not UTF-8"},
    {"{\"a\nb\":1}", 0, "a control character"},
    {"{\"a\\u0000b\":1}", 0, "a NUL character"},
    {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0,
     "nested deeper"},
    {"{" F32("a", "[1]", 0, 4) "," F32("a", "[1]", 0, 4) "}", 4,
     "tensor \"a\" stands in the header twice"},
    {"{\"a\\u0062\":1,\"ab\":2}", 0, "tensor \"ab\" stands in the header twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\" stands in the header twice"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "key \"k\" stands in the header twice"},
    {"{\"__metadata__\":[]}", 0, "__metadata__: expected an object"},
    {"{\"__metadata__\":{\"a\":\"x\",\"b\":1}}", 0, "__metadata__: \"b\": expected a string"},
    {"{\"a\":7}", 0, "tensor \"a\": expected an object"},
    {"{\"a\":{}}", 0, "tensor \"a\": key \"dtype\" is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "key \"data_offsets\" is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
     "key \"dtype\" stands there twice"},
    {"{\"a\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "unknown dtype \"F33\""},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "unknown dtype \"f32\""},
    {"{\"a\":{\"dtype\":32,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "unknown dtype"},
    {"{" F32("a", "4", 0, 16) "}", 16, "tensor \"a\": shape: expected a list"},
    {"{" F32("a", "{\"0\":4}", 0, 16) "}", 16, "shape: expected a list"},
    {"{" F32("a", "[2,-2]", 0, 16) "}", 16, "shape: dimension 1: expected a whole number"},
    {"{" F32("a", "[1.5]", 0, 4) "}", 4, "shape: dimension 0: expected a whole number"},
    {"{" F32("a", "[\"1\"]", 0, 4) "}", 4, "shape: dimension 0: expected a whole number"},
    {"{" F32("a", "[null]", 0, 4) "}", 4, "shape: dimension 0: expected a whole number"},
    {"{" F32("a", "[1e400]", 0, 4) "}", 4, "shape: dimension 0: expected a whole number"},
    {"{" F32("a", "[9007199254740993]", 0, 4) "}", 4, "shape: dimension 0: expected"},
    {"{" F32("a", "[4294967296,4294967296]", 0, 0) "}", 0, "too many"},
    {"{" F32("a", "[2147483648,2147483648]", 0, 0) "}", 0, "too many"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "no whole bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", 0, "expected [begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,8]}}", 8,
     "expected [begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[-4,0]}}", 0,
     "expected [begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":4}}", 4, "expected [begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,1e18]}}", 4,
     "expected [begin, end]"},
    {"{" F32("a", "[0]", 4, 0) "}", 4, "begin is past end"},
    {"{" F32("a", "[2]", 0, 8) "}", 7, "past the file's end, which has 7 bytes"},
    {"{" F32("a", "[2]", 0, 4) "}", 4, "span 4 bytes, but F32 of this shape has 8 bytes"},
    {"{" F32("a", "[1]", 0, 8) "}", 8, "span 8 bytes, but F32 of this shape has 4 bytes"},
    {"{" F32("a", "[2]", 0, 8) "," F32("b", "[2]", 4, 12) "}", 12,
     "tensor \"b\": its data at byte 4 overlaps tensor \"a\""},
    {"{" F32("a", "[2]", 0, 8) "," F32("b", "[2]", 0, 8) "}", 8, "overlaps"},
    {"{" F32("a", "[2]", 0, 8) "," F32("b", "[0]", 4, 4) "}", 8,
     "tensor \"b\": its data at byte 4"},
    {"{" F32("a", "[1]", 0, 4) "," F32("b", "[1]", 8, 12) "}", 12,
     "tensor \"b\": bytes 4 to 8 before its data belong to no tensor"},
    {"{" F32("a", "[1]", 4, 8) "}", 8, "bytes 0 to 4 before its data belong to no tensor"},
    {"{" F32("a", "[1]", 0, 4) "}", 5, "the last 1 of its 5 bytes of data belong to no tensor"},
    {"{}", 3, "the last 3 of its 3 bytes"},
};

static void damaged_headers_are_named(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "bad.safetensors");
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        write_file(path, damaged[i].header, NULL, damaged[i].size);
        assert_null(mc_tensor_file_open(f->ctx, path, NULL));
        if (!strstr(mc_error_message(f->ctx), "bad.safetensors"))
            fail_msg("no file name in: %s", mc_error_message(f->ctx));
        expect_error(f->ctx, MC_ERR_FORMAT, damaged[i].message);
    }
}

static void lengths_are_checked(void **state)
{
    fixture *f = *state;
    static const struct {
        uint8_t bytes[16];
        size_t size;
        const char *message;
    } table[] = {
        {{0}, 0, "0 bytes, too short"},
        {{2, 0, 0, 0, 0, 0, 0}, 7, "7 bytes, too short"},
        {{0}, 8, "doesn't start with '{'"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "header length 3 is past the end of the file"},
        {{2, 0, 0, 0, 0, 0, 0, 0}, 8, "header length 2 is past the end"},
        {{1, 0xe1, 0xf5, 5, 0, 0, 0, 0, '{', '}'},
         10,
         "header length 100000001, at most 100000000"},
        {{0, 0xe1, 0xf5, 5, 0, 0, 0, 0, '{', '}'}, 10, "header length 100000000 is past the end"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}', 0}, 11, "the header ends with a NUL"},
        {{255, 255, 255, 255, 255, 255, 255, 255, '{'}, 9, "header length 18446744073709551615"},
        {{2, 0, 0, 0, 0, 0, 0, 0x80, '{', '}'}, 10, "at most"},
    };
    const char *path = temp_path(&f->folder, "short.safetensors");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        write_bytes(path, table[i].bytes, table[i].size);
        assert_null(mc_tensor_file_open(f->ctx, path, NULL));
        expect_error(f->ctx, MC_ERR_FORMAT, table[i].message);
    }
}

/* Cuts a file at every length and flips every byte of its header: an error or a file, no crash. */
static void every_truncation_is_an_error(void **state)
{
    fixture *f = *state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"}," F32(
        "a", "[2,3]", 0, 24) "," F32("b", "[]", 24, 28) "}";
    size_t size = 8 + sizeof header - 1 + 28;
    uint8_t *bytes = make_file(header, sizeof header - 1, NULL, 28);
    mc_tensor_table parsed;
    mc_error err = {0};
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1); /* so that a sanitizer sees reads past its end */
        memcpy(exact, bytes, cut);
        assert_int_equal(mc_safetensors_parse(&err, &parsed, exact, cut, "cut"), MC_ERR_FORMAT);
        mc_error_clear(&err);
        free(exact);
    }
    for (size_t at = 0; at < size - 28; at++) {
        uint8_t before = bytes[at];
        for (int bit = 0; bit < 8; bit++) {
            bytes[at] = before ^ (uint8_t)(1 << bit);
            mc_status status = mc_safetensors_parse(&err, &parsed, bytes, size, "flipped");
            if (status == MC_OK) mc_tensor_table_release(&parsed);
            assert_int_equal(err.status, status);
            mc_error_clear(&err);
        }
        bytes[at] = before;
    }
    free(bytes);
    (void)f;
}

static void absent_files_are_named(void **state)
{
    fixture *f = *state;
    assert_null(mc_tensor_file_open(f->ctx, temp_path(&f->folder, "no.safetensors"), NULL));
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "no.safetensors: cannot open: No such file");
    assert_null(mc_tensor_file_open(f->ctx, temp_path(&f->folder, "no.json"), NULL));
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "no.json: cannot open");
    assert_null(mc_tensor_file_open(f->ctx, NULL, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "no file or folder of tensors");
    assert_null(mc_tensor_file_open(f->ctx, "/dev/null", NULL));
    expect_error(f->ctx, MC_ERR_IO, "/dev/null: not a regular file");
    mc_fail(f->ctx, MC_ERR_STATE, "an earlier error");
    assert_null(mc_tensor_file_open(f->ctx, f->folder.path, NULL));
    expect_error(f->ctx, MC_ERR_STATE, "an earlier error");
}

static void null_is_accepted(void **state)
{
    (void)state;
    float out;
    double wide;
    assert_null(mc_tensor_file_open(NULL, "x", NULL));
    assert_int_equal(mc_tensor_file_count(NULL), 0);
    assert_null(mc_tensor_file_at(NULL, 0));
    assert_null(mc_tensor_file_find(NULL, "x"));
    assert_null(mc_tensor_file_metadata(NULL, "x"));
    assert_int_equal(mc_tensor_file_metadata_count(NULL), 0);
    assert_int_equal(mc_tensor_file_read_f32(NULL, NULL, 0, 1, &out), MC_ERR_ARGUMENT);
    assert_int_equal(mc_tensor_file_read_f64(NULL, NULL, 0, 1, &wide), MC_ERR_ARGUMENT);
    mc_tensor_file_free(NULL);
}

/* ---- Conversions ---------------------------------------------------------------------------- */

/* What a half means, by its definition. */
static double half_value(unsigned bits)
{
    int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 25);
}

static void expect_same(double got, double expected)
{
    if (isnan(expected) ? !isnan(got) : got != expected || signbit(got) != signbit(expected))
        fail_msg("got %.17g, expected %.17g", got, expected);
}

static mc_tensor_entry entry_of(const char *dtype, const void *data, int64_t count)
{
    return (mc_tensor_entry){
        .name = "t", .dtype_name = dtype, .count = count, .data = data, .dense = true, .file = "f"};
}

static void halves_are_exact(void **state)
{
    (void)state;
    enum { ALL = 65536 };
    mc_error err = {0};
    uint16_t *bits = malloc(ALL * sizeof *bits);
    float *narrow = malloc(ALL * sizeof *narrow);
    double *wide = malloc(ALL * sizeof *wide);
    for (unsigned i = 0; i < ALL; i++) bits[i] = (uint16_t)i;
    mc_tensor_entry half = entry_of("F16", bits, ALL), bfloat = entry_of("BF16", bits, ALL);
    assert_int_equal(mc_tensor_copy_f32(&err, &half, 0, ALL, narrow), MC_OK);
    assert_int_equal(mc_tensor_copy_f64(&err, &half, 0, ALL, wide), MC_OK);
    for (unsigned i = 0; i < ALL; i++) {
        expect_same(narrow[i], half_value(i));
        expect_same(wide[i], half_value(i));
    }
    assert_int_equal(mc_tensor_copy_f32(&err, &bfloat, 0, ALL, narrow), MC_OK);
    for (unsigned i = 0; i < ALL; i++) {
        uint32_t as_float;
        memcpy(&as_float, &narrow[i], 4);
        assert_true(as_float == i << 16);
    }
    free(bits);
    free(narrow);
    free(wide);
}

/* Converts the elements at an odd address, as they may lie in a file. */
static void expect_values(const char *dtype, const void *data, size_t size, int64_t count,
                          const double *expected)
{
    uint8_t unaligned[80];
    float narrow[8];
    double wide[8];
    mc_error err = {0};
    memcpy(unaligned + 1, data, size);
    mc_tensor_entry entry = entry_of(dtype, unaligned + 1, count);
    assert_int_equal(mc_tensor_copy_f64(&err, &entry, 0, count, wide), MC_OK);
    assert_int_equal(mc_tensor_copy_f32(&err, &entry, 0, count, narrow), MC_OK);
    for (int64_t i = 0; i < count; i++) {
        expect_same(wide[i], expected[i]);
        expect_same(narrow[i], (float)expected[i]);
    }
    assert_int_equal(mc_tensor_copy_f64(&err, &entry, 1, count - 1, wide), MC_OK);
    expect_same(wide[count - 2], expected[count - 1]);
}

#define EXPECT_VALUES(dtype, type, ...)                                      \
    expect_values(dtype, (type[]){__VA_ARGS__}, sizeof(type[]){__VA_ARGS__}, \
                  sizeof(double[]){__VA_ARGS__} / sizeof(double), (double[]){__VA_ARGS__})

static void every_number_converts(void **state)
{
    (void)state;
    EXPECT_VALUES("F64", double, 0.1, -0.0, 1e-300, INFINITY, NAN, 1e300 * 10);
    EXPECT_VALUES("F32", float, 0.5f, -0.0f, 1e-45f, -INFINITY, NAN);
    EXPECT_VALUES("I64", int64_t, 1, -1, 16777217, -(1LL << 40) - 1, 9007199254740992);
    EXPECT_VALUES("U64", uint64_t, 1, 16777217, 1ULL << 63);
    EXPECT_VALUES("I32", int32_t, 1, -1, 16777217, INT32_MIN, INT32_MAX);
    EXPECT_VALUES("U32", uint32_t, 1, 16777217, UINT32_MAX);
    EXPECT_VALUES("I16", int16_t, 1, -1, INT16_MIN);
    EXPECT_VALUES("U16", uint16_t, 1, 65535);
    EXPECT_VALUES("I8", int8_t, 1, -1, -128);
    EXPECT_VALUES("U8", uint8_t, 1, 255);
    expect_values("BOOL", (uint8_t[]){0, 1, 2, 255}, 4, 4, (double[]){0, 1, 1, 1});
}

static void ranges_and_dtypes_are_checked(void **state)
{
    fixture *f = *state;
    float out[4] = {7, 7, 7, 7};
    static const int64_t ranges[][2] = {{-1, 1},        {0, 3},        {2, 1},
                                        {3, 0},         {1, -1},       {INT64_MAX, INT64_MAX},
                                        {INT64_MIN, 1}, {1, INT64_MAX}};
    const char *path = temp_path(&f->folder, "r.safetensors");
    write_file(path,
               "{" F32("a", "[2]", 0, 8) ",\"e\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],"
                                         "\"data_offsets\":[8,9]}}",
               (float[]){1, 2, 3}, 9);
    mc_tensor_file *file = open_good(f, path);
    const mc_tensor_entry *a = mc_tensor_file_find(file, "a");
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        assert_int_equal(mc_tensor_file_read_f32(file, a, ranges[i][0], ranges[i][1], out),
                         MC_ERR_ARGUMENT);
        expect_error(f->ctx, MC_ERR_ARGUMENT, "tensor \"a\": ");
    }
    assert_true(out[0] == 7);
    assert_int_equal(mc_tensor_file_read_f32(file, a, 2, 0, out), MC_OK);
    assert_int_equal(mc_tensor_file_read_f32(file, mc_tensor_file_find(file, "e"), 0, 1, out),
                     MC_ERR_UNSUPPORTED);
    expect_error(f->ctx, MC_ERR_UNSUPPORTED, "tensor \"e\": cannot read dtype F8_E4M3");
}

/* ---- Folders and shards --------------------------------------------------------------------- */

/* Writes a file of one F32 tensor of one element, to tell files apart by. */
static void write_one(fixture *f, const char *file, const char *tensor, float value)
{
    char header[256];
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);
    write_file(temp_path(&f->folder, file), header, &value, 4);
}

static void expect_folder(fixture *f, const char *variant, float value)
{
    float out = 0;
    mc_tensor_file_options options = {.variant = variant};
    mc_tensor_file *file = mc_tensor_file_open(f->ctx, f->folder.path, variant ? &options : NULL);
    if (!file) fail_msg("%s", mc_error_message(f->ctx));
    assert_int_equal(mc_tensor_file_read_f32(file, mc_tensor_file_find(file, "t"), 0, 1, &out),
                     MC_OK);
    assert_true(out == value);
    mc_tensor_file_free(file);
}

static void refuse_folder(fixture *f, const char *variant, mc_status status, const char *message)
{
    mc_tensor_file_options options = {.variant = variant};
    assert_null(mc_tensor_file_open(f->ctx, f->folder.path, &options));
    expect_error(f->ctx, status, message);
}

static void a_folder_has_one_file_of_weights(void **state)
{
    fixture *f = *state;
    refuse_folder(f, NULL, MC_ERR_NOT_FOUND, "no weights: expected model.safetensors");
    write_text(temp_path(&f->folder, "pytorch_model.bin"), "x");
    refuse_folder(f, NULL, MC_ERR_FORMAT, "pytorch_model.bin: 1 bytes");
    remove(temp_path(&f->folder, "pytorch_model.bin"));
    write_one(f, "other.safetensors", "t", 0);
    write_one(f, "model.x-00001-of-00002.safetensors", "t", 0);
    refuse_folder(f, NULL, MC_ERR_NOT_FOUND, "no weights");
    write_one(f, "model.fp16.safetensors", "t", 16);
    expect_folder(f, NULL, 16);
    write_one(f, "part.safetensors", "t", 8);
    write_text(temp_path(&f->folder, "model.safetensors.index.fp16.json"), "broken");
    expect_folder(f, NULL, 16); /* one variant, in two forms: the single file goes first */
    write_text(temp_path(&f->folder, "model.safetensors.index.e8.json"),
               "{\"weight_map\":{\"t\":\"part.safetensors\"}}");
    refuse_folder(f, NULL, MC_ERR_ARGUMENT, "2 variants: e8, fp16; ask for one");
    expect_folder(f, "fp16", 16);
    expect_folder(f, "e8", 8);
    refuse_folder(f, "bf16", MC_ERR_NOT_FOUND, "model.bf16.safetensors: not there");
    refuse_folder(f, "../x", MC_ERR_ARGUMENT, "no name of a variant");
    refuse_folder(f, "", MC_ERR_ARGUMENT, "no name of a variant");
    write_text(temp_path(&f->folder, "model.safetensors.index.json"),
               "{\"weight_map\":{\"t\":\"other.safetensors\"}}");
    expect_folder(f, NULL, 0);
    write_one(f, "model.safetensors", "t", 32);
    expect_folder(f, NULL, 32);
    expect_folder(f, "fp16", 16);
    assert_int_equal(unlink(temp_path(&f->folder, "model.safetensors")), 0);
    assert_int_equal(symlink("gone", temp_path(&f->folder, "model.safetensors")), 0);
    refuse_folder(f, NULL, MC_ERR_NOT_FOUND, "model.safetensors: cannot open");
}

static void shards_are_one_set(void **state)
{
    fixture *f = *state;
    float out = 0;
    write_one(f, "m1.safetensors", "b", 1);
    write_one(f, "m2.safetensors", "a", 2);
    write_text(temp_path(&f->folder, "model.safetensors.index.json"),
               "{\"metadata\":{\"total_size\":8},\n\"weight_map\":{\"b\":\"m1.safetensors\","
               "\"a\":\"m2.safetensors\"}}");
    mc_tensor_file *file = open_good(f, f->folder.path);
    assert_int_equal(mc_tensor_file_count(file), 2);
    const mc_tensor_entry *a = mc_tensor_file_at(file, 0);
    assert_string_equal(a->name, "a");
    assert_string_equal(a->file, temp_path(&f->folder, "m2.safetensors"));
    assert_int_equal(mc_tensor_file_read_f32(file, a, 0, 1, &out), MC_OK);
    assert_true(out == 2);
    mc_tensor_file_free(file);
    file = open_good(f, temp_path(&f->folder, "model.safetensors.index.json"));
    assert_int_equal(mc_tensor_file_count(file), 2);
    assert_string_equal(f->log, "");
}

static void bad_indexes_are_named(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *index;
        mc_status status;
        const char *message;
    } table[] = {
        {"", MC_ERR_FORMAT, "index.json:1: malformed JSON"},
        {"[]", MC_ERR_FORMAT, "expected a JSON object"},
        {"{}", MC_ERR_FORMAT, "key \"weight_map\": expected an object"},
        {"{\"weight_map\":[\"m1.safetensors\"]}", MC_ERR_FORMAT, "expected an object"},
        {"{\"weight_map\":{\"b\":1}}", MC_ERR_FORMAT, "weight_map: \"b\": expected a file name"},
        {"{\"weight_map\":{\"b\":\"\"}}", MC_ERR_FORMAT, "expected the name of a file"},
        {"{\"weight_map\":{\"b\":\"/etc/passwd\"}}", MC_ERR_FORMAT, "expected the name of a file"},
        {"{\"weight_map\":{\"b\":\"../m1.safetensors\"}}", MC_ERR_FORMAT, "\"../m1.safetensors\""},
        {"{\"weight_map\":{\"b\":\"m3.safetensors\"}}", MC_ERR_NOT_FOUND,
         "m3.safetensors: cannot open"},
        {"{\"weight_map\":{\"b\":\"m1.safetensors\",\"x\":\"m1.safetensors\"}}", MC_ERR_NOT_FOUND,
         "m1.safetensors: no tensor \"x\", which"},
        {"{\"weight_map\":{\"b\":\"m1.safetensors\",\"b\":\"m1.safetensors\"}}", MC_ERR_FORMAT,
         "weight_map: \"b\" stands there twice"},
        {"{\"weight_map\":{\"b\":\"cut.safetensors\"}}", MC_ERR_FORMAT, "cut.safetensors: 3 bytes"},
    };
    write_one(f, "m1.safetensors", "b", 1);
    write_text(temp_path(&f->folder, "cut.safetensors"), "abc");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        write_text(temp_path(&f->folder, "model.safetensors.index.json"), table[i].index);
        refuse_folder(f, NULL, table[i].status, table[i].message);
    }
}

static void tensors_outside_the_index_are_reported(void **state)
{
    fixture *f = *state;
    write_one(f, "m1.safetensors", "a", 1);
    write_file(temp_path(&f->folder, "m2.safetensors"),
               "{" F32("b", "[]", 0, 4) "," F32("a", "[]", 4, 8) "}", NULL, 8);
    write_text(temp_path(&f->folder, "model.safetensors.index.json"),
               "{\"weight_map\":{\"a\":\"m1.safetensors\",\"b\":\"m2.safetensors\"}}");
    mc_tensor_file *file = open_good(f, f->folder.path);
    assert_int_equal(mc_tensor_file_count(file), 2);
    assert_non_null(strstr(f->log, "m2.safetensors: tensor \"a\" is not in "));
    assert_null(strstr(f->log, "\"b\""));
    assert_null(strstr(f->log, "m1.safetensors"));
}

/* ---- Failing allocations, real files -------------------------------------------------------- */

static void failed_allocations_are_clean(void **state)
{
#ifdef MC_FAULT_INJECTION
    fixture *f = *state;
    write_one(f, "m1.safetensors", "b", 1);
    write_file(temp_path(&f->folder, "m2.safetensors"),
               "{\"__metadata__\":{\"k\":\"v\"}," F32("a", "[2]", 0, 8) "}", NULL, 8);
    write_text(temp_path(&f->folder, "model.safetensors.index.json"),
               "{\"weight_map\":{\"b\":\"m1.safetensors\",\"a\":\"m2.safetensors\"}}");
    cJSON_InitHooks(&(cJSON_Hooks){mc_malloc, mc_free});
    for (int all_after = 0; all_after < 2; all_after++) {
        mc_tensor_file *file = NULL;
        long nth = 0;
        while (!file) {
            mc_fault_fail_at(++nth, all_after);
            file = mc_tensor_file_open(f->ctx, f->folder.path, NULL);
            mc_fault_fail_at(0, false);
            if (file) break;
            assert_int_equal(mc_error_status(f->ctx), MC_ERR_NOMEM);
            mc_clear_error(f->ctx);
        }
        assert_true(nth > 40); /* each of them failed once */
        mc_tensor_file_free(file);
    }
    cJSON_InitHooks(NULL);
#else
    (void)state;
    printf("SKIPPED: needs a build with MC_FAULT_INJECTION\n");
    skip();
#endif
}

static fixture *walk_fixture; /* nftw passes no argument */
static int walk_count;

static int check_real_file(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)walk;
    size_t length = strlen(path);
    if (type != FTW_F || length < 12 || strcmp(path + length - 12, ".safetensors") != 0) return 0;
    mc_tensor_file *file = open_good(walk_fixture, path);
    assert_true(mc_tensor_file_count(file) > 0);
    for (size_t i = 0; i < mc_tensor_file_count(file); i++) {
        const mc_tensor_entry *entry = mc_tensor_file_at(file, i);
        assert_ptr_equal(mc_tensor_file_find(file, entry->name), entry);
        double *values = malloc((size_t)entry->count * sizeof *values + 1);
        assert_int_equal(mc_tensor_file_read_f64(file, entry, 0, entry->count, values), MC_OK);
        free(values);
    }
    mc_tensor_file_free(file);
    walk_count++;
    return 0;
}

static void real_files_open(void **state)
{
    const char *shared = shared_folder();
    if (!shared) skip();
    walk_fixture = *state;
    walk_count = 0;
    assert_int_equal(nftw(shared, check_real_file, 16, 0), 0);
    assert_true(walk_count > 0);
    char path[1024];
    snprintf(path, sizeof path, "%s/goldens/loader-formats/sharded-gpt2", shared);
    mc_tensor_file *shards = open_good(*state, path);
    assert_true(mc_tensor_file_count(shards) > 20);
    assert_non_null(mc_tensor_file_find(shards, "transformer.h.0.attn.c_attn.bias"));
    snprintf(path, sizeof path, "%s/data/minilm-l6", shared);
    assert_true(mc_tensor_file_count(open_good(*state, path)) > 100);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_dtype_has_its_size),
        TEST(scalars_and_empty_tensors_work),
        TEST(files_without_tensors_open),
        TEST(many_tensors_are_found_by_name),
        TEST(damaged_headers_are_named),
        TEST(lengths_are_checked),
        TEST(every_truncation_is_an_error),
        TEST(absent_files_are_named),
        TEST(null_is_accepted),
        TEST(halves_are_exact),
        TEST(every_number_converts),
        TEST(ranges_and_dtypes_are_checked),
        TEST(a_folder_has_one_file_of_weights),
        TEST(shards_are_one_set),
        TEST(bad_indexes_are_named),
        TEST(tensors_outside_the_index_are_reported),
        TEST(failed_allocations_are_clean),
        TEST(real_files_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
