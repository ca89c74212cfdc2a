#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"
#include "core/device/cpu/isa/convert_internal.h"
#include "core/formats/gguf_internal.h"

enum { NAME_LIMIT = 1 << 16, ALIGN_LIMIT = 1 << 20, LEAST_VALUE = 13, LEAST_TENSOR = 32 };

/* Bytes of an item; 0: the item stores its own length. */
static const uint8_t sizes[MC_GGUF_KINDS] = {
    [MC_GGUF_U8] = 1,  [MC_GGUF_I8] = 1,  [MC_GGUF_U16] = 2,   [MC_GGUF_I16] = 2,
    [MC_GGUF_U32] = 4, [MC_GGUF_I32] = 4, [MC_GGUF_FLOAT] = 4, [MC_GGUF_BOOL] = 1,
    [MC_GGUF_U64] = 8, [MC_GGUF_I64] = 8, [MC_GGUF_DOUBLE] = 8};

static const mc_gguf_dtype dtypes[] = {
    {"F32", 0, 0, 1, 4}, {"F16", 1, 1, 1, 2}, {"BF16", 30, 32, 1, 2}, {"Q8_0", 8, 7, 32, 34}};
enum { F32, F16, BF16, Q8_0, DTYPES };

/* Names of other types, for errors. */
static const char *const other_names[] = {
    [2] = "Q4_0",  [3] = "Q4_1",  [6] = "Q5_0",  [7] = "Q5_1",  [9] = "Q8_1", [10] = "Q2_K",
    [11] = "Q3_K", [12] = "Q4_K", [13] = "Q5_K", [14] = "Q6_K", [15] = "Q8_K"};

const mc_gguf_dtype *mc_gguf_dtype_find(const char *name)
{
    for (int i = 0; i < DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

uint64_t mc_gguf_bytes(const mc_gguf_dtype *dtype, int64_t rows, int64_t columns)
{
    return (uint64_t)rows * (uint64_t)(columns / dtype->block) * (uint64_t)dtype->bytes;
}

bool mc_gguf_is(const uint8_t *data, size_t size)
{
    return size >= 4 && memcmp(data, "GGUF", 4) == 0;
}

mc_status mc_gguf_refuse(mc_error *err, mc_tensor_table *table, const uint8_t *data, size_t size,
                         const char *path)
{
    (void)data, (void)size;
    *table = (mc_tensor_table){0};
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: a GGUF file: \"modelcenter convert --to hf\" makes a folder of it",
                        path);
}

/* ---- what is read of the header -------------------------------------------------------------- */

typedef struct reader {
    mc_error *err;
    mc_gguf *g;
    const uint8_t *begin, *at, *end;
} reader;

static bool wrong(const reader *r, const char *what)
{
    mc_error_set(r->err, MC_ERR_FORMAT, "%s: byte %zu: %s", r->g->path, (size_t)(r->at - r->begin),
                 what);
    return false;
}

static bool take(reader *r, void *to, size_t size)
{
    if ((size_t)(r->end - r->at) < size) return wrong(r, "the file ends within its header");
    memcpy(to, r->at, size);
    r->at += size;
    return true;
}

static bool skip(reader *r, uint64_t size)
{
    if ((uint64_t)(r->end - r->at) < size) return wrong(r, "the file ends within its header");
    r->at += size;
    return true;
}

/* A key or a tensor's name, as a new string. */
static const char *take_name(reader *r)
{
    uint64_t length;
    if (!take(r, &length, sizeof length)) return NULL;
    if (length == 0 || length >= NAME_LIMIT || length > (uint64_t)(r->end - r->at)) {
        wrong(r, "expected the name of a key or tensor of 1 to 65,535 bytes within the file");
        return NULL;
    }
    const char *text = (const char *)r->at;
    if (memchr(text, '\0', length) || !mc_utf8_is_valid(text, length)) {
        wrong(r, "a name that is no UTF-8 text");
        return NULL;
    }
    char *name = mc_arena_alloc(&r->g->texts, length + 1);
    if (!name) {
        mc_error_set(r->err, MC_ERR_NOMEM, "%s: out of memory for its names", r->g->path);
        return NULL;
    }
    memcpy(name, text, length);
    r->at += length;
    return name;
}

static bool wrong_value(const reader *r, const mc_gguf_value *v, const char *what)
{
    mc_error_set(r->err, MC_ERR_FORMAT, "%s: key \"%.200s\": %s", r->g->path, v->key, what);
    return false;
}

static bool skip_texts(reader *r, const mc_gguf_value *v)
{
    for (uint64_t i = 0; i < v->count; i++) {
        uint64_t length;
        if ((size_t)(r->end - r->at) < sizeof length)
            return wrong_value(r, v, "the file ends within its text");
        memcpy(&length, r->at, sizeof length);
        r->at += sizeof length;
        if (length > (uint64_t)(r->end - r->at))
            return wrong_value(r, v, "the file ends within its text");
        r->at += length;
    }
    return true;
}

static bool take_value(reader *r, mc_gguf_value *v)
{
    uint32_t kind;
    *v = (mc_gguf_value){.key = take_name(r), .count = 1};
    if (!v->key || !take(r, &kind, sizeof kind)) return false;
    v->is_array = kind == MC_GGUF_ARRAY;
    if (v->is_array && (!take(r, &kind, sizeof kind) || !take(r, &v->count, sizeof v->count)))
        return false;
    if (kind >= MC_GGUF_KINDS || kind == MC_GGUF_ARRAY)
        return wrong_value(r, v, kind == MC_GGUF_ARRAY ? "an array of arrays" : "no such type");
    v->kind = (mc_gguf_kind)kind;
    v->data = r->at;
    size_t size = sizes[kind] ? sizes[kind] : sizeof(uint64_t);
    if (v->count > (uint64_t)(r->end - r->at) / size)
        return wrong_value(r, v, "more items than the file has bytes for");
    return sizes[kind] ? skip(r, v->count * size) : skip_texts(r, v);
}

static bool wrong_tensor(const reader *r, const mc_gguf_tensor *t, const char *what)
{
    mc_error_set(r->err, MC_ERR_FORMAT, "%s: tensor \"%.200s\": %s", r->g->path, t->name, what);
    return false;
}

static bool find_dtype(const reader *r, mc_gguf_tensor *t, uint32_t number)
{
    enum { OTHERS = sizeof other_names / sizeof *other_names };
    const char *name = number < OTHERS ? other_names[number] : NULL;
    for (int i = 0; i < DTYPES && !t->dtype; i++)
        if (dtypes[i].number == number) t->dtype = &dtypes[i];
    if (t->dtype) return true;
    mc_error_set(r->err, MC_ERR_UNSUPPORTED,
                 "%s: tensor \"%.200s\": type %" PRIu32 "%s%s%s: expected F32, F16, BF16 or Q8_0",
                 r->g->path, t->name, number, name ? " (" : "", name ? name : "", name ? ")" : "");
    return false;
}

/* The file stores the length of a row first. */
static bool take_shape(reader *r, mc_gguf_tensor *t)
{
    uint32_t ndim;
    uint64_t all = 1, size[MC_GGUF_DIMS];
    if (!take(r, &ndim, sizeof ndim)) return false;
    if (ndim < 1 || ndim > MC_GGUF_DIMS) return wrong_tensor(r, t, "expected 1 to 4 dimensions");
    t->ndim = (int)ndim;
    for (uint32_t i = 0; i < ndim; i++) {
        if (!take(r, &size[i], sizeof *size)) return false;
        if (size[i] == 0 || size[i] > (uint64_t)INT64_MAX / 8 / all)
            return wrong_tensor(r, t, "a dimension of 0, or too many elements");
        all *= size[i];
        t->shape[ndim - 1 - i] = (int64_t)size[i];
    }
    t->columns = t->shape[t->ndim - 1];
    t->rows = (int64_t)all / t->columns;
    return true;
}

/* t->size holds the offset until all descriptions have been read. */
static bool take_tensor(reader *r, mc_gguf_tensor *t)
{
    uint32_t number;
    *t = (mc_gguf_tensor){.name = take_name(r)};
    if (!t->name || !take_shape(r, t) || !take(r, &number, sizeof number) ||
        !take(r, &t->size, sizeof t->size) || !find_dtype(r, t, number))
        return false;
    if (t->columns % t->dtype->block == 0) return true;
    return wrong_tensor(r, t, "a row of Q8_0 has a multiple of 32 elements");
}

/* ---- the whole file -------------------------------------------------------------------------- */

static int compare_values(const void *a, const void *b)
{
    return strcmp(((const mc_gguf_value *)a)->key, ((const mc_gguf_value *)b)->key);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const mc_gguf_tensor *)a)->name, ((const mc_gguf_tensor *)b)->name);
}

static bool sort_values(const reader *r)
{
    mc_gguf *g = r->g;
    if (g->value_count) qsort(g->values, g->value_count, sizeof *g->values, compare_values);
    for (size_t i = 1; i < g->value_count; i++)
        if (strcmp(g->values[i - 1].key, g->values[i].key) == 0)
            return wrong_value(r, &g->values[i], "stands there twice");
    return true;
}

static bool sort_tensors(const reader *r)
{
    mc_gguf *g = r->g;
    if (g->tensor_count) qsort(g->tensors, g->tensor_count, sizeof *g->tensors, compare_tensors);
    for (size_t i = 1; i < g->tensor_count; i++)
        if (strcmp(g->tensors[i - 1].name, g->tensors[i].name) == 0)
            return wrong_tensor(r, &g->tensors[i], "stands there twice");
    return true;
}

static bool read_counts(reader *r)
{
    uint32_t version;
    uint64_t tensors, values;
    r->at += 4;
    if (!take(r, &version, sizeof version)) return false;
    if (version < 2 || version > MC_GGUF_VERSION) {
        mc_error_set(r->err, MC_ERR_UNSUPPORTED,
                     "%s: version %" PRIu32 " of GGUF: expected 2 or 3, little-endian", r->g->path,
                     version);
        return false;
    }
    if (!take(r, &tensors, sizeof tensors) || !take(r, &values, sizeof values)) return false;
    uint64_t left = (uint64_t)(r->end - r->at);
    if (tensors > left / LEAST_TENSOR || values > left / LEAST_VALUE) {
        mc_error_set(r->err, MC_ERR_FORMAT,
                     "%s: a header of %" PRIu64 " tensors and %" PRIu64
                     " values does not fit into the file's %zu bytes",
                     r->g->path, tensors, values, (size_t)(r->end - r->begin));
        return false;
    }
    r->g->values = mc_calloc(values ? values : 1, sizeof *r->g->values);
    r->g->tensors = mc_calloc(tensors ? tensors : 1, sizeof *r->g->tensors);
    r->g->value_count = values;
    r->g->tensor_count = tensors;
    if (r->g->values && r->g->tensors) return true;
    mc_error_set(r->err, MC_ERR_NOMEM, "%s: out of memory for its header", r->g->path);
    return false;
}

static bool read_align(const reader *r)
{
    const mc_gguf_value *v = mc_gguf_find(r->g, "general.alignment");
    double align = MC_GGUF_ALIGN;
    bool good = !v || (mc_gguf_number(v, 0, &align) && align >= 1 && align <= ALIGN_LIMIT &&
                       align == floor(align));
    if (!good) return wrong_value(r, v, "expected a whole number from 1 to 1,048,576");
    r->g->align = (uint64_t)align;
    return true;
}

/* Turns offsets into pointers. */
static bool place_tensors(reader *r)
{
    mc_gguf *g = r->g;
    uint64_t header = (uint64_t)(r->at - r->begin), size = (uint64_t)(r->end - r->begin);
    uint64_t first = (header + g->align - 1) / g->align * g->align;
    for (size_t i = 0; i < g->tensor_count; i++) {
        mc_gguf_tensor *t = &g->tensors[i];
        uint64_t offset = t->size, bytes = mc_gguf_bytes(t->dtype, t->rows, t->columns);
        if (offset % g->align != 0)
            return wrong_tensor(r, t, "its offset is no multiple of general.alignment");
        if (first > size || offset > size - first || bytes > size - first - offset) {
            mc_error_set(r->err, MC_ERR_FORMAT,
                         "%s: tensor \"%.200s\": %" PRIu64 " bytes from byte %" PRIu64
                         " of the data on, but the file ends %s",
                         g->path, t->name, bytes, offset,
                         first > size ? "before the data" : "before");
            return false;
        }
        t->data = r->begin + first + offset;
        t->size = bytes;
    }
    return true;
}

mc_status mc_gguf_parse(mc_error *err, mc_gguf *g, const uint8_t *data, size_t size,
                        const char *path)
{
    *g = (mc_gguf){.path = path};
    reader r = {.err = err, .g = g, .begin = data, .at = data, .end = data + size};
    bool good = mc_gguf_is(data, size);
    if (!good) mc_error_set(err, MC_ERR_FORMAT, "%s: not a GGUF file: it does not begin so", path);
    good = good && read_counts(&r);
    for (size_t i = 0; good && i < g->value_count; i++) good = take_value(&r, &g->values[i]);
    for (size_t i = 0; good && i < g->tensor_count; i++) good = take_tensor(&r, &g->tensors[i]);
    if (good && sort_values(&r) && sort_tensors(&r) && read_align(&r) && place_tensors(&r))
        return MC_OK;
    mc_gguf_release(g);
    return err->status;
}

void mc_gguf_release(mc_gguf *g)
{
    mc_free(g->values);
    mc_free(g->tensors);
    mc_arena_release(&g->texts);
    *g = (mc_gguf){0};
}

/* ---- looking in ------------------------------------------------------------------------------ */

const mc_gguf_value *mc_gguf_find(const mc_gguf *g, const char *key)
{
    mc_gguf_value wanted = {.key = key};
    if (!g->value_count) return NULL;
    return bsearch(&wanted, g->values, g->value_count, sizeof *g->values, compare_values);
}

const mc_gguf_tensor *mc_gguf_find_tensor(const mc_gguf *g, const char *name)
{
    mc_gguf_tensor wanted = {.name = name};
    if (!g->tensor_count) return NULL;
    return bsearch(&wanted, g->tensors, g->tensor_count, sizeof *g->tensors, compare_tensors);
}

bool mc_gguf_number(const mc_gguf_value *v, uint64_t item, double *out)
{
    if (!v || item >= v->count || !sizes[v->kind]) return false;
    const uint8_t *at = v->data + item * sizes[v->kind];
#define NUMBER(kind, type)                  \
    case kind: {                            \
        type number;                        \
        memcpy(&number, at, sizeof number); \
        *out = (double)number;              \
        return true;                        \
    }
    switch (v->kind) {
        NUMBER(MC_GGUF_U8, uint8_t)
        NUMBER(MC_GGUF_I8, int8_t)
        NUMBER(MC_GGUF_U16, uint16_t)
        NUMBER(MC_GGUF_I16, int16_t)
        NUMBER(MC_GGUF_U32, uint32_t)
        NUMBER(MC_GGUF_I32, int32_t)
        NUMBER(MC_GGUF_FLOAT, float)
        NUMBER(MC_GGUF_BOOL, uint8_t)
        NUMBER(MC_GGUF_U64, uint64_t)
        NUMBER(MC_GGUF_I64, int64_t)
        NUMBER(MC_GGUF_DOUBLE, double)
    default: return false;
    }
#undef NUMBER
}

const char *mc_gguf_text(const uint8_t **at, size_t *length)
{
    uint64_t size;
    memcpy(&size, *at, sizeof size);
    const char *text = (const char *)*at + sizeof size;
    *length = (size_t)size;
    *at = (const uint8_t *)text + size;
    return text;
}

/* A scale in f16, and 32 numbers of 8 bits. */
static void read_blocks(const uint8_t *from, int64_t blocks, float *out)
{
    for (int64_t b = 0; b < blocks; b++, from += dtypes[Q8_0].bytes, out += dtypes[Q8_0].block) {
        uint16_t half;
        memcpy(&half, from, sizeof half);
        float scale = mc_from_f16(half);
        for (int i = 0; i < dtypes[Q8_0].block; i++) out[i] = scale * (float)(int8_t)from[2 + i];
    }
}

void mc_gguf_read(const mc_gguf_tensor *t, int64_t row, int64_t rows, float *out)
{
    const uint8_t *from = t->data + mc_gguf_bytes(t->dtype, row, t->columns);
    const int64_t count = rows * t->columns;
    if (t->dtype == &dtypes[F32]) memcpy(out, from, (size_t)count * sizeof *out);
    if (t->dtype == &dtypes[Q8_0]) read_blocks(from, count / t->dtype->block, out);
    if (t->dtype != &dtypes[F16] && t->dtype != &dtypes[BF16]) return;
    for (int64_t i = 0; i < count; i++) {
        uint16_t stored;
        memcpy(&stored, from + 2 * i, sizeof stored);
        out[i] = t->dtype == &dtypes[F16] ? mc_from_f16(stored) : mc_from_bf16(stored);
    }
}
