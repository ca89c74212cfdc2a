/* GGUF, llama.cpp's files: a header of values by key, descriptions of tensors, and the tensors'
 * bytes. This part knows only values and tensors; models/gguf knows a model's names for them.
 *
 * Numbers are little-endian. Shapes are row-major here (the file has the row's length first). */
#ifndef MC_FORMATS_GGUF_INTERNAL_H
#define MC_FORMATS_GGUF_INTERNAL_H

#include "core/base/arena_internal.h"
#include "core/base/bytes_internal.h"
#include "core/base/file_internal.h"
#include "core/formats/tensor_file_internal.h"

/* The file's numbers for the types of values. */
typedef enum mc_gguf_kind {
    MC_GGUF_U8 = 0,
    MC_GGUF_I8,
    MC_GGUF_U16,
    MC_GGUF_I16,
    MC_GGUF_U32,
    MC_GGUF_I32,
    MC_GGUF_FLOAT,
    MC_GGUF_BOOL,
    MC_GGUF_STRING,
    MC_GGUF_ARRAY,
    MC_GGUF_U64,
    MC_GGUF_I64,
    MC_GGUF_DOUBLE,
    MC_GGUF_KINDS
} mc_gguf_kind;

enum { MC_GGUF_DIMS = 4, MC_GGUF_VERSION = 3, MC_GGUF_ALIGN = 32 };

/* How a row's elements are stored: in blocks of a fixed number of elements and bytes. */
typedef struct mc_gguf_dtype {
    const char *name;
    uint32_t number;    /* the file's */
    uint32_t file_type; /* general.file_type of a file with matrices of this type */
    int block, bytes;
} mc_gguf_dtype;

/* "F32", "F16", "BF16" or "Q8_0" (blocks of 32 numbers of 8 bits with a scale); else NULL. */
const mc_gguf_dtype *mc_gguf_dtype_find(const char *name);

typedef struct mc_gguf_value {
    const char *key;
    mc_gguf_kind kind;   /* of each item */
    bool is_array;       /* the items are no arrays themselves */
    uint64_t count;      /* of items; 1 unless is_array */
    const uint8_t *data; /* the first item; a string is its length in 8 bytes, then its text */
} mc_gguf_value;

typedef struct mc_gguf_tensor {
    const char *name;
    int ndim;
    int64_t shape[MC_GGUF_DIMS];
    int64_t rows, columns; /* columns: the last dimension */
    const mc_gguf_dtype *dtype;
    const uint8_t *data;
    uint64_t size;
} mc_gguf_tensor;

/* The contents of a file, pointing into its bytes. Values are sorted by key, tensors by name. */
typedef struct mc_gguf {
    const char *path;
    mc_gguf_value *values;
    mc_gguf_tensor *tensors;
    size_t value_count, tensor_count;
    uint64_t align;
    mc_arena texts;
} mc_gguf;

bool mc_gguf_is(const uint8_t *data, size_t size);
/* Refuses GGUF as a tensor file: the error says what to do with it. */
mc_tensor_parse_fn mc_gguf_refuse;
/* Parses the `size` bytes of a file, and checks all of it except the tensors' numbers. The bytes
 * and `path` must outlive *g. MC_ERR_FORMAT names the key or tensor, and MC_ERR_UNSUPPORTED a
 * tensor type other than the four. On failure *g is empty. */
mc_status mc_gguf_parse(mc_error *err, mc_gguf *g, const uint8_t *data, size_t size,
                        const char *path);
void mc_gguf_release(mc_gguf *g);

/* The value of a key, or NULL. */
const mc_gguf_value *mc_gguf_find(const mc_gguf *g, const char *key);
const mc_gguf_tensor *mc_gguf_find_tensor(const mc_gguf *g, const char *name);
/* Reads an item that is a number or a boolean; false if the value has another type. */
bool mc_gguf_number(const mc_gguf_value *value, uint64_t item, double *out);
/* The text at *at in a string's data (not NUL-terminated), with its length; moves *at to the next
 * item. */
const char *mc_gguf_text(const uint8_t **at, size_t *length);
/* Reads rows as f32. */
void mc_gguf_read(const mc_gguf_tensor *t, int64_t row, int64_t rows, float *out);

/* ---- writing ---------------------------------------------------------------------------------
 *
 * Values and tensors are declared, then mc_gguf_begin writes all of them, and mc_gguf_write the
 * tensors' numbers in the order in which they were declared. */

typedef struct mc_gguf_writer {
    mc_bytes values, tensors;
    uint64_t value_count, tensor_count, declared; /* declared: bytes of all tensors */
    bool nomem;
} mc_gguf_writer;

void mc_gguf_put_u32(mc_gguf_writer *w, const char *key, uint32_t value);
void mc_gguf_put_f32(mc_gguf_writer *w, const char *key, float value);
void mc_gguf_put_bool(mc_gguf_writer *w, const char *key, bool value);
void mc_gguf_put_string(mc_gguf_writer *w, const char *key, const char *value);
/* An array, whose items follow. */
void mc_gguf_put_array(mc_gguf_writer *w, const char *key, mc_gguf_kind kind, uint64_t count);
void mc_gguf_item_text(mc_gguf_writer *w, const char *text, size_t length);
void mc_gguf_item_u32(mc_gguf_writer *w, uint32_t value);
void mc_gguf_item_f32(mc_gguf_writer *w, float value);
void mc_gguf_item_bytes(mc_gguf_writer *w, const void *bytes, size_t size);

void mc_gguf_add_tensor(mc_gguf_writer *w, const char *name, const mc_gguf_dtype *dtype, int ndim,
                        const int64_t *shape);
/* Begins the file, which is written aside. Releases nothing. */
mc_status mc_gguf_begin(mc_error *err, const mc_gguf_writer *w, mc_file_writer *file,
                        const char *path);
/* Writes rows of a tensor; `room` holds one row of f32. */
mc_status mc_gguf_write(mc_file_writer *file, const mc_gguf_dtype *dtype, const float *from,
                        int64_t rows, int64_t columns, void *room);
/* Ends a tensor of `bytes` bytes. */
mc_status mc_gguf_end_tensor(mc_file_writer *file, uint64_t bytes);
uint64_t mc_gguf_bytes(const mc_gguf_dtype *dtype, int64_t rows, int64_t columns);
void mc_gguf_writer_release(mc_gguf_writer *w);

#endif
