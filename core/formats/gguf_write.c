#include <math.h>
#include <string.h>
#include "core/device/cpu/isa/convert_internal.h"
#include "core/formats/gguf_internal.h"

static void append(mc_gguf_writer *w, mc_bytes *to, const void *data, size_t size)
{
    w->nomem = w->nomem || !mc_bytes_append(to, data, size);
}

static void append_text(mc_gguf_writer *w, mc_bytes *to, const char *text, size_t length)
{
    uint64_t size = length;
    append(w, to, &size, sizeof size);
    append(w, to, text, length);
}

static void put_key(mc_gguf_writer *w, const char *key, mc_gguf_kind kind)
{
    uint32_t number = kind;
    append_text(w, &w->values, key, strlen(key));
    append(w, &w->values, &number, sizeof number);
    w->value_count++;
}

void mc_gguf_put_u32(mc_gguf_writer *w, const char *key, uint32_t value)
{
    put_key(w, key, MC_GGUF_U32);
    mc_gguf_item_u32(w, value);
}

void mc_gguf_put_f32(mc_gguf_writer *w, const char *key, float value)
{
    put_key(w, key, MC_GGUF_FLOAT);
    mc_gguf_item_f32(w, value);
}

void mc_gguf_put_bool(mc_gguf_writer *w, const char *key, bool value)
{
    uint8_t byte = value;
    put_key(w, key, MC_GGUF_BOOL);
    append(w, &w->values, &byte, 1);
}

void mc_gguf_put_string(mc_gguf_writer *w, const char *key, const char *value)
{
    put_key(w, key, MC_GGUF_STRING);
    mc_gguf_item_text(w, value, strlen(value));
}

void mc_gguf_put_array(mc_gguf_writer *w, const char *key, mc_gguf_kind kind, uint64_t count)
{
    put_key(w, key, MC_GGUF_ARRAY);
    mc_gguf_item_u32(w, kind);
    append(w, &w->values, &count, sizeof count);
}

void mc_gguf_item_text(mc_gguf_writer *w, const char *text, size_t length)
{
    append_text(w, &w->values, text, length);
}

void mc_gguf_item_u32(mc_gguf_writer *w, uint32_t value)
{
    append(w, &w->values, &value, sizeof value);
}

void mc_gguf_item_f32(mc_gguf_writer *w, float value)
{
    append(w, &w->values, &value, sizeof value);
}

void mc_gguf_item_bytes(mc_gguf_writer *w, const void *bytes, size_t size)
{
    append(w, &w->values, bytes, size);
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + MC_GGUF_ALIGN - 1) / MC_GGUF_ALIGN * MC_GGUF_ALIGN;
}

void mc_gguf_add_tensor(mc_gguf_writer *w, const char *name, const mc_gguf_dtype *dtype, int ndim,
                        const int64_t *shape)
{
    uint32_t dims = (uint32_t)ndim;
    int64_t rows = 1;
    append_text(w, &w->tensors, name, strlen(name));
    append(w, &w->tensors, &dims, sizeof dims);
    for (int i = ndim; i-- > 0;) {
        uint64_t size = (uint64_t)shape[i];
        append(w, &w->tensors, &size, sizeof size);
        if (i < ndim - 1) rows *= shape[i];
    }
    append(w, &w->tensors, &dtype->number, sizeof dtype->number);
    append(w, &w->tensors, &w->declared, sizeof w->declared);
    w->declared += padded(mc_gguf_bytes(dtype, rows, shape[ndim - 1]));
    w->tensor_count++;
}

static void pad(mc_file_writer *file, uint64_t bytes)
{
    static const uint8_t zeros[MC_GGUF_ALIGN];
    mc_file_write(file, zeros, (size_t)(padded(bytes) - bytes));
}

mc_status mc_gguf_begin(mc_error *err, const mc_gguf_writer *w, mc_file_writer *file,
                        const char *path)
{
    uint32_t version = MC_GGUF_VERSION;
    if (w->nomem) return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its header", path);
    if (mc_file_writer_init(err, file, path)) return err->status;
    mc_file_write(file, "GGUF", 4);
    mc_file_write(file, &version, sizeof version);
    mc_file_write(file, &w->tensor_count, sizeof w->tensor_count);
    mc_file_write(file, &w->value_count, sizeof w->value_count);
    mc_file_write(file, w->values.data, w->values.count);
    mc_file_write(file, w->tensors.data, w->tensors.count);
    pad(file, file->written);
    return err->status;
}

/* The scale is the largest magnitude divided by 127, so that no number is clipped. */
static void store_block(const float *x, uint8_t *to)
{
    enum { BLOCK = 32 };
    float largest = 0;
    for (int i = 0; i < BLOCK; i++) largest = fmaxf(largest, fabsf(x[i]));
    float scale = largest / 127;
    uint16_t half = mc_to_f16(scale);
    memcpy(to, &half, sizeof half);
    for (int i = 0; i < BLOCK; i++) {
        bool stored = scale > 0 && isfinite(x[i] / scale);
        int8_t number = (int8_t)(stored ? roundf(x[i] / scale) : 0);
        memcpy(to + sizeof half + i, &number, 1);
    }
}

static void store_row(const mc_gguf_dtype *dtype, const float *x, int64_t n, uint8_t *to)
{
    if (dtype->block > 1) {
        for (int64_t i = 0; i < n; i += dtype->block, to += dtype->bytes) store_block(x + i, to);
    } else if (dtype->bytes == 4) {
        memcpy(to, x, (size_t)n * 4);
    } else {
        bool brain = strcmp(dtype->name, "BF16") == 0;
        for (int64_t i = 0; i < n; i++) {
            uint16_t stored = brain ? mc_to_bf16(x[i]) : mc_to_f16(x[i]);
            memcpy(to + 2 * i, &stored, sizeof stored);
        }
    }
}

mc_status mc_gguf_write(mc_file_writer *file, const mc_gguf_dtype *dtype, const float *from,
                        int64_t rows, int64_t columns, void *room)
{
    const size_t row = (size_t)mc_gguf_bytes(dtype, 1, columns);
    for (int64_t i = 0; i < rows; i++) {
        store_row(dtype, from + i * columns, columns, room);
        if (mc_file_write(file, room, row)) break;
    }
    return file->err->status;
}

mc_status mc_gguf_end_tensor(mc_file_writer *file, uint64_t bytes)
{
    pad(file, bytes);
    return file->err->status;
}

void mc_gguf_writer_release(mc_gguf_writer *w)
{
    mc_bytes_release(&w->values);
    mc_bytes_release(&w->tensors);
}
