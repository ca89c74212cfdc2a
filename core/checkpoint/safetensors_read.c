/* The format's dtypes, and copying elements out of a file with conversion. */
#include "core/checkpoint/safetensors_internal.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian: reading them here needs byte swapping"
#endif

static const mc_safetensors_dtype dtypes[] = {
    {"F32", 32, MC_KIND_FLOAT, MC_F32},
    {"F16", 16, MC_KIND_FLOAT, MC_F16},
    {"BF16", 16, MC_KIND_BFLOAT, MC_BF16},
    {"I64", 64, MC_KIND_SIGNED, MC_I64},
    {"I32", 32, MC_KIND_SIGNED, MC_I32},
    {"U8", 8, MC_KIND_UNSIGNED, MC_U8},
    {"BOOL", 8, MC_KIND_BOOL, MC_BOOL},
    {"F64", 64, MC_KIND_FLOAT, MC_DTYPE_DEFAULT},
    {"I16", 16, MC_KIND_SIGNED, MC_DTYPE_DEFAULT},
    {"I8", 8, MC_KIND_SIGNED, MC_DTYPE_DEFAULT},
    {"U64", 64, MC_KIND_UNSIGNED, MC_DTYPE_DEFAULT},
    {"U32", 32, MC_KIND_UNSIGNED, MC_DTYPE_DEFAULT},
    {"U16", 16, MC_KIND_UNSIGNED, MC_DTYPE_DEFAULT},
    {"C64", 64, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E4M3", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E5M2", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E8M0", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E4M3FNUZ", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E5M2FNUZ", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F6_E2M3", 6, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F6_E3M2", 6, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F4", 4, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof *dtypes };

const mc_safetensors_dtype *mc_safetensors_dtype_find(const char *name)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

const mc_safetensors_dtype *mc_safetensors_dtype_of(mc_dtype dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].dtype == dtype) return &dtypes[i];
    return NULL;
}

bool mc_safetensors_measure(const mc_safetensors_dtype *dtype, const int64_t *shape, int ndim,
                            int64_t *count, int64_t *bytes)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        if (n > 0 && shape[i] > INT64_MAX / n) return false;
        n *= shape[i];
    }
    if (n > INT64_MAX / dtype->bits || n * dtype->bits % 8 != 0) return false;
    *count = n;
    *bytes = n * dtype->bits / 8;
    return true;
}

const mc_safetensors_entry *mc_safetensors_search(const mc_safetensors_entry *entries, size_t count,
                                                  const char *name)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(entries[middle].name, name);
        if (order == 0) return &entries[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE half to single, exact. No arithmetic here meets a single-precision subnormal, so it is exact
 * in programs that flush those to zero as well. */
static float float_of_half(uint16_t half)
{
    uint32_t magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
    uint32_t shifted = magnitude << 13;
    /* the exponent's bias grows from 15 to 127; infinity and NaN keep the top exponent */
    uint32_t normal = shifted + (magnitude >= 0x7c00 ? 224u << 23 : 112u << 23);
    /* m * 2^-24 = (1 + m / 1024) * 2^-14 - 2^-14 */
    float small = float_of_bits(shifted + (113u << 23)) - float_of_bits(113u << 23);
    uint32_t bits;
    memcpy(&bits, &small, sizeof bits);
    return float_of_bits((magnitude < 0x0400 ? bits : normal) | sign);
}

static float float_of_bfloat(uint16_t value) { return float_of_bits((uint32_t)value << 16); }
static int bool_of_byte(uint8_t value) { return value != 0; }

/* Converts `count` elements of C type `stored` at `from`, each by `convert`. */
#define CONVERT(stored, convert)                                             \
    for (int64_t i = 0; i < count; i++) {                                    \
        stored element;                                                      \
        memcpy(&element, from + (size_t)i * sizeof element, sizeof element); \
        out[i] = convert(element);                                           \
    }                                                                        \
    return true

/* Defines a function that converts elements of any readable kind and size into `number`s. */
#define DEFINE_CONVERT(name, number)                                                        \
    static bool name(const mc_safetensors_dtype *dtype, const uint8_t *from, int64_t count, \
                     number *out)                                                           \
    {                                                                                       \
        switch (dtype->kind * 100 + dtype->bits) {                                          \
        case MC_KIND_FLOAT * 100 + 64: CONVERT(double, (number));                           \
        case MC_KIND_FLOAT * 100 + 32: CONVERT(float, (number));                            \
        case MC_KIND_FLOAT * 100 + 16: CONVERT(uint16_t, float_of_half);                    \
        case MC_KIND_BFLOAT * 100 + 16: CONVERT(uint16_t, float_of_bfloat);                 \
        case MC_KIND_SIGNED * 100 + 64: CONVERT(int64_t, (number));                         \
        case MC_KIND_SIGNED * 100 + 32: CONVERT(int32_t, (number));                         \
        case MC_KIND_SIGNED * 100 + 16: CONVERT(int16_t, (number));                         \
        case MC_KIND_SIGNED * 100 + 8: CONVERT(int8_t, (number));                           \
        case MC_KIND_UNSIGNED * 100 + 64: CONVERT(uint64_t, (number));                      \
        case MC_KIND_UNSIGNED * 100 + 32: CONVERT(uint32_t, (number));                      \
        case MC_KIND_UNSIGNED * 100 + 16: CONVERT(uint16_t, (number));                      \
        case MC_KIND_UNSIGNED * 100 + 8: CONVERT(uint8_t, (number));                        \
        case MC_KIND_BOOL * 100 + 8: CONVERT(uint8_t, (number)bool_of_byte);                \
        }                                                                                   \
        return false;                                                                       \
    }

DEFINE_CONVERT(convert_f32, float)
DEFINE_CONVERT(convert_f64, double)

/* Checks the range and finds its first byte; NULL on error. */
static const uint8_t *find_range(mc_error *err, const mc_safetensors_entry *entry, int64_t first,
                                 int64_t count, const mc_safetensors_dtype **dtype)
{
    *dtype = mc_safetensors_dtype_find(entry->dtype_name);
    if (!*dtype || (*dtype)->kind == MC_KIND_OPAQUE) {
        mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: tensor \"%.200s\": cannot read dtype %s",
                     entry->file, entry->name, entry->dtype_name);
        return NULL;
    }
    if (first < 0 || count < 0 || first > entry->count || count > entry->count - first) {
        mc_error_set(
            err, MC_ERR_ARGUMENT,
            "%s: tensor \"%.200s\": %lld elements from number %lld on asked for, it has %lld",
            entry->file, entry->name, (long long)count, (long long)first, (long long)entry->count);
        return NULL;
    }
    return (const uint8_t *)entry->data + (size_t)first * (size_t)((*dtype)->bits / 8);
}

mc_status mc_safetensors_copy_f32(mc_error *err, const mc_safetensors_entry *entry, int64_t first,
                                  int64_t count, float *out)
{
    const mc_safetensors_dtype *dtype;
    const uint8_t *from = find_range(err, entry, first, count, &dtype);
    if (!from) return err->status;
    convert_f32(dtype, from, count, out);
    return MC_OK;
}

mc_status mc_safetensors_copy_f64(mc_error *err, const mc_safetensors_entry *entry, int64_t first,
                                  int64_t count, double *out)
{
    const mc_safetensors_dtype *dtype;
    const uint8_t *from = find_range(err, entry, first, count, &dtype);
    if (!from) return err->status;
    convert_f64(dtype, from, count, out);
    return MC_OK;
}
