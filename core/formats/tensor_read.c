/* Copying elements out of a file of tensors, with conversion. */
#include "core/formats/tensor_file_internal.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files of tensors are little-endian: reading them here needs byte swapping"
#endif

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
#define DEFINE_CONVERT(name, number)                                                              \
    static bool name(const mc_file_dtype *dtype, const uint8_t *from, int64_t count, number *out) \
    {                                                                                             \
        switch (dtype->kind * 100 + dtype->bits) {                                                \
        case MC_KIND_FLOAT * 100 + 64: CONVERT(double, (number));                                 \
        case MC_KIND_FLOAT * 100 + 32: CONVERT(float, (number));                                  \
        case MC_KIND_FLOAT * 100 + 16: CONVERT(uint16_t, float_of_half);                          \
        case MC_KIND_BFLOAT * 100 + 16: CONVERT(uint16_t, float_of_bfloat);                       \
        case MC_KIND_SIGNED * 100 + 64: CONVERT(int64_t, (number));                               \
        case MC_KIND_SIGNED * 100 + 32: CONVERT(int32_t, (number));                               \
        case MC_KIND_SIGNED * 100 + 16: CONVERT(int16_t, (number));                               \
        case MC_KIND_SIGNED * 100 + 8: CONVERT(int8_t, (number));                                 \
        case MC_KIND_UNSIGNED * 100 + 64: CONVERT(uint64_t, (number));                            \
        case MC_KIND_UNSIGNED * 100 + 32: CONVERT(uint32_t, (number));                            \
        case MC_KIND_UNSIGNED * 100 + 16: CONVERT(uint16_t, (number));                            \
        case MC_KIND_UNSIGNED * 100 + 8: CONVERT(uint8_t, (number));                              \
        case MC_KIND_BOOL * 100 + 8: CONVERT(uint8_t, (number)bool_of_byte);                      \
        }                                                                                         \
        return false;                                                                             \
    }

DEFINE_CONVERT(convert_f32, float)
DEFINE_CONVERT(convert_f64, double)

/* ---- Ranges of a tensor ---------------------------------------------------------------------- */

/* Checks the range; sets *dtype. */
static bool check_range(mc_error *err, const mc_tensor_entry *entry, int64_t first, int64_t count,
                        const mc_file_dtype **dtype)
{
    *dtype = mc_file_dtype_find(entry->dtype_name);
    if (*dtype && (first < 0 || count < 0 || first > entry->count || count > entry->count - first))
        mc_error_set(
            err, MC_ERR_ARGUMENT,
            "%s: tensor \"%.200s\": %lld elements from number %lld on asked for, it has %lld",
            entry->file, entry->name, (long long)count, (long long)first, (long long)entry->count);
    else if (!*dtype || (*dtype)->bits % 8 != 0)
        mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: tensor \"%.200s\": cannot read dtype %s",
                     entry->file, entry->name, entry->dtype_name);
    else
        return true;
    return false;
}

/* The place of element `first` of a view, in elements from its first one; *left: the elements from
 * it to the end of its row. */
static int64_t find_element(const mc_tensor_entry *entry, int64_t first, int64_t *left)
{
    int64_t at = 0;
    *left = 1;
    for (int d = entry->ndim - 1; d >= 0; d--) {
        int64_t index = first % entry->shape[d];
        if (d == entry->ndim - 1) *left = entry->shape[d] - index;
        at += index * entry->strides[d];
        first /= entry->shape[d];
    }
    return at;
}

/* Copies `count` elements that lie `step` bytes apart. */
static void gather(const uint8_t *from, int64_t step, int64_t count, size_t size, uint8_t *out)
{
    if (step == (int64_t)size) {
        memcpy(out, from, (size_t)count * size);
        return;
    }
    for (int64_t i = 0; i < count; i++) /* constant sizes are copied by one instruction */
        switch (size) {
        case 2: memcpy(out + i * 2, from + i * step, 2); break;
        case 4: memcpy(out + i * 4, from + i * step, 4); break;
        default: memcpy(out + (size_t)i * size, from + i * step, size);
        }
}

/* Reverses the bytes of each element, or of each half of a complex one. */
static void swap_bytes(const mc_file_dtype *dtype, uint8_t *data, int64_t count)
{
    size_t part = (size_t)dtype->bits / 8;
    if (dtype->name[0] == 'C') {
        part /= 2;
        count *= 2;
    }
    for (int64_t i = 0; i < count; i++, data += part)
        for (size_t low = 0, high = part - 1; low < high; low++, high--) {
            uint8_t byte = data[low];
            data[low] = data[high];
            data[high] = byte;
        }
}

/* Copies elements of a checked range as a row-major tensor. */
static void copy_elements(const mc_file_dtype *dtype, const mc_tensor_entry *entry, int64_t first,
                          int64_t count, uint8_t *out)
{
    size_t size = (size_t)dtype->bits / 8;
    const uint8_t *data = entry->data;
    if (entry->dense) {
        if (count) memcpy(out, data + (size_t)first * size, (size_t)count * size);
        return;
    }
    int64_t step = entry->ndim ? entry->strides[entry->ndim - 1] * (int64_t)size : 0;
    for (int64_t done = 0, n; done < count; done += n) {
        int64_t at = find_element(entry, first + done, &n);
        if (n > count - done) n = count - done;
        gather(data + at * (int64_t)size, step, n, size, out + (size_t)done * size);
    }
    if (entry->big_endian) swap_bytes(dtype, out, count);
}

mc_status mc_tensor_copy_bytes(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                               int64_t count, void *out)
{
    const mc_file_dtype *dtype;
    if (!check_range(err, entry, first, count, &dtype)) return err->status;
    copy_elements(dtype, entry, first, count, out);
    return mc_file_check_bytes(err, entry->data);
}

/* Defines mc_tensor_copy_f32 and _f64. Views go through a small buffer. */
#define DEFINE_COPY(name, convert, number)                                                    \
    mc_status name(mc_error *err, const mc_tensor_entry *entry, int64_t first, int64_t count, \
                   number *out)                                                               \
    {                                                                                         \
        enum { PIECE = 512 };                                                                 \
        uint8_t buffer[PIECE * 8];                                                            \
        const mc_file_dtype *dtype;                                                           \
        if (!check_readable(err, entry, first, count, &dtype)) return err->status;            \
        if (entry->dense) {                                                                   \
            size_t at = (size_t)first * (size_t)(dtype->bits / 8);                            \
            convert(dtype, (const uint8_t *)entry->data + at, count, out);                    \
            return mc_file_check_bytes(err, entry->data);                                     \
        }                                                                                     \
        for (int64_t done = 0, n; done < count; done += n) {                                  \
            n = count - done < PIECE ? count - done : PIECE;                                  \
            copy_elements(dtype, entry, first + done, n, buffer);                             \
            convert(dtype, buffer, n, out + done);                                            \
        }                                                                                     \
        return mc_file_check_bytes(err, entry->data);                                         \
    }

/* Like check_range, for elements that are numbers. */
static bool check_readable(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                           int64_t count, const mc_file_dtype **dtype)
{
    if (!check_range(err, entry, first, count, dtype)) return false;
    if ((*dtype)->kind != MC_KIND_OPAQUE) return true;
    mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: tensor \"%.200s\": cannot read dtype %s",
                 entry->file, entry->name, entry->dtype_name);
    return false;
}

DEFINE_COPY(mc_tensor_copy_f32, convert_f32, float)
DEFINE_COPY(mc_tensor_copy_f64, convert_f64, double)
