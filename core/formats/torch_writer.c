/* Writing state dicts as torch.save does. */
#include "core/formats/torch_writer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/bytes_internal.h"
#include "core/base/context_internal.h"
#include "core/base/json_internal.h"
#include "core/formats/pickle_internal.h"
#include "core/formats/zip_writer_internal.h"

struct mc_torch_writer {
    mc_owned owned;
    mc_context *ctx;
    mc_file_writer file;
    mc_zip_writer zip;
    uint64_t *sizes; /* bytes of each tensor */
    size_t count;
    size_t begun;  /* tensors whose entry has begun */
    uint64_t left; /* bytes of the current one that are missing */
    bool committed;
};

/* ---- the pickle ------------------------------------------------------------------------------ */

typedef struct bytes {
    mc_bytes all;
    bool nomem;
} bytes;

static void append(bytes *b, const void *data, size_t size)
{
    b->nomem = b->nomem || !mc_bytes_append(&b->all, data, size);
}

/* An opcode and a number of `count` bytes, little-endian. */
static void append_number(bytes *b, uint8_t op, uint64_t value, int count)
{
    append(b, &op, 1);
    for (int i = 0; i < count; i++) append(b, &(uint8_t){(uint8_t)(value >> 8 * i)}, 1);
}

static void append_op(bytes *b, const char *ops) { append(b, ops, strlen(ops)); }

static void append_int(bytes *b, int64_t value)
{
    if (value < 1 << 8)
        append_number(b, 'K', (uint64_t)value, 1);
    else if (value <= INT32_MAX)
        append_number(b, 'J', (uint64_t)value, 4);
    else {
        append_number(b, 0x8a, 8, 1); /* LONG1 of 8 bytes */
        append_number(b, (uint8_t)value, (uint64_t)value >> 8, 7);
    }
}

static void append_text(bytes *b, const char *text)
{
    append_number(b, 'X', strlen(text), 4);
    append_op(b, text);
}

static void append_tuple(bytes *b, const int64_t *values, int count)
{
    append_op(b, "(");
    for (int i = 0; i < count; i++) append_int(b, values[i]);
    append_op(b, "t");
}

static void append_ordered_dict(bytes *b) { append_op(b, "ccollections\nOrderedDict\n)R"); }

/* Appends the call that rebuilds tensor `i` from its storage, which torch.load finds by the
 * persistent id. Dtypes without a storage class of their own are views of bytes. */
static void append_tensor(bytes *b, size_t i, const mc_safetensors_spec *spec, int64_t count,
                          const mc_file_dtype *dtype, int64_t *strides)
{
    char key[24], line[64];
    const char *storage = mc_torch_name_of(dtype->name, true);
    snprintf(key, sizeof key, "%zu", i);
    append_text(b, spec->name);
    append_op(b, storage ? "ctorch._utils\n_rebuild_tensor_v2\n(("
                         : "ctorch._utils\n_rebuild_tensor_v3\n((");
    append_text(b, "storage");
    if (storage)
        snprintf(line, sizeof line, "ctorch\n%s\n", storage);
    else
        snprintf(line, sizeof line, "ctorch.storage\nUntypedStorage\n");
    append_op(b, line);
    append_text(b, key);
    append_text(b, "cpu");
    append_int(b, storage ? count : count * dtype->bits / 8);
    append_op(b, "tQ");
    append_int(b, 0);
    mc_row_major(spec->shape, spec->ndim, strides);
    append_tuple(b, spec->shape, spec->ndim);
    append_tuple(b, strides, spec->ndim);
    append_op(b, "\x89"); /* requires no gradient */
    append_ordered_dict(b);
    if (!storage) {
        snprintf(line, sizeof line, "ctorch\n%s\n", mc_torch_name_of(dtype->name, false));
        append_op(b, line);
    }
    append_op(b, "tR");
}

/* ---- what may be declared -------------------------------------------------------------------- */

#define spec_error(w, spec, text, ...)                                                  \
    (mc_fail((w)->ctx, MC_ERR_ARGUMENT, "%s: tensor \"%.200s\": " text, (w)->file.path, \
             (spec)->name ? (spec)->name : "", __VA_ARGS__) == MC_OK)

/* Checks a spec and computes its dtype and elements; NULL after an error. */
static const mc_file_dtype *check_spec(mc_torch_writer *w, const mc_safetensors_spec *spec,
                                       int64_t *count, int64_t *size)
{
    enum { DIMS_MAX = 64 };
    const mc_file_dtype *dtype = spec->dtype_name
                                     ? mc_file_dtype_find(spec->dtype_name)
                                     : mc_file_dtype_of(spec->dtype ? spec->dtype : MC_F32);
    bool good = true;
    if (!spec->name || !mc_utf8_is_valid(spec->name, strlen(spec->name)))
        good = spec_error(w, spec, "not a name that a %s can have", "tensor");
    else if (!dtype || !(mc_torch_name_of(dtype->name, false)))
        good = spec_error(w, spec, "no dtype \"%s\" in PyTorch",
                          spec->dtype_name ? spec->dtype_name : mc_dtype_name(spec->dtype));
    else if (spec->ndim < 0 || spec->ndim > DIMS_MAX || (spec->ndim && !spec->shape))
        good = spec_error(w, spec, "%d dimensions: expected 0 to %d", spec->ndim, DIMS_MAX);
    for (int i = 0; good && i < spec->ndim; i++)
        if (spec->shape[i] < 0)
            good = spec_error(w, spec, "dimension %d: expected a number from 0 up", i);
    if (good && !mc_file_dtype_measure(dtype, spec->shape, spec->ndim, count, size))
        good = spec_error(w, spec, "its %s elements are too many", dtype->name);
    return good ? dtype : NULL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool check_unique(mc_torch_writer *w, const mc_safetensors_spec *specs, size_t count)
{
    const char **names = mc_calloc(count + 1, sizeof *names);
    if (!names) return !mc_fail_nomem(w->ctx, "a state dict");
    for (size_t i = 0; i < count; i++) names[i] = specs[i].name;
    qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 1; i < count && !mc_failed(w->ctx); i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            mc_fail(w->ctx, MC_ERR_ARGUMENT, "%s: \"%.200s\" is declared twice", w->file.path,
                    names[i]);
    mc_free(names);
    return !mc_failed(w->ctx);
}

/* Checks all specs and makes the pickle. */
static bool make_pickle(mc_torch_writer *w, bytes *b, const mc_safetensors_spec *specs,
                        size_t count)
{
    int64_t elements, size, strides[64];
    append_op(b, "\x80\x02");
    append_ordered_dict(b);
    append_op(b, "(");
    for (size_t i = 0; i < count; i++) {
        const mc_file_dtype *dtype = check_spec(w, &specs[i], &elements, &size);
        if (!dtype) return false;
        w->sizes[i] = (uint64_t)size;
        append_tensor(b, i, &specs[i], elements, dtype, strides);
    }
    append_op(b, "u.");
    if (b->nomem) return !mc_fail_nomem(w->ctx, "a state dict's pickle");
    return check_unique(w, specs, count);
}

/* ---- the writer ------------------------------------------------------------------------------ */

static void free_object(void *object)
{
    mc_torch_writer *writer = object;
    mc_disown(&writer->owned);
    mc_zip_writer_release(&writer->zip);
    mc_file_writer_release(&writer->file);
    mc_free(writer->sizes);
    mc_free(writer);
}

void mc_torch_writer_free(mc_torch_writer *writer)
{
    if (writer) free_object(writer);
}

static mc_status write_record(mc_torch_writer *w, const char *name, const void *data, size_t size)
{
    mc_status status = mc_zip_begin(&w->zip, name, size);
    if (!status) status = mc_zip_add(&w->zip, data, size);
    return status ? status : mc_zip_end(&w->zip);
}

/* Ends the complete tensor and begins the next ones, up to one that has bytes. */
static mc_status next_tensor(mc_torch_writer *w)
{
    char name[MC_ZIP_NAME_MAX];
    mc_status status = MC_OK;
    while (!status && w->left == 0 && w->begun <= w->count) {
        if (w->begun) status = mc_zip_end(&w->zip);
        if (w->begun++ == w->count || status) break;
        w->left = w->sizes[w->begun - 1];
        snprintf(name, sizeof name, "archive/data/%zu", w->begun - 1);
        status = mc_zip_begin(&w->zip, name, w->left);
    }
    return status;
}

mc_torch_writer *mc_torch_writer_new(mc_context *ctx, const char *path,
                                     const mc_safetensors_spec *specs, size_t count)
{
    bytes b = {0};
    if (mc_failed(ctx) || !mc_given(ctx, path) || (count && !mc_given(ctx, specs))) return NULL;
    mc_torch_writer *w = mc_new_owned(ctx, sizeof *w, "a PyTorch file's writer", free_object);
    if (!w) return NULL;
    w->ctx = ctx;
    w->file.aside.fd = -1;
    w->count = count;
    w->sizes = mc_calloc(count + 1, sizeof *w->sizes);
    if (!w->sizes)
        mc_fail_nomem(ctx, "a PyTorch file's writer");
    else if (mc_file_writer_init(&ctx->error, &w->file, path) == MC_OK &&
             make_pickle(w, &b, specs, count)) {
        mc_zip_writer_init(&w->zip, &w->file);
        if (write_record(w, "archive/data.pkl", b.all.data, b.all.count) == MC_OK &&
            write_record(w, "archive/byteorder", "little", 6) == MC_OK)
            next_tensor(w);
    }
    mc_bytes_release(&b.all);
    if (!mc_failed(ctx)) return w;
    free_object(w);
    return NULL;
}

mc_status mc_torch_write(mc_torch_writer *w, const void *data, size_t size)
{
    if (!w) return MC_ERR_ARGUMENT;
    if (mc_failed(w->ctx) || (size && !mc_given(w->ctx, data))) return mc_error_status(w->ctx);
    if (w->committed) return mc_fail(w->ctx, MC_ERR_STATE, "%s: finished already", w->file.path);
    const uint8_t *from = data;
    mc_status status = MC_OK;
    while (size && !status) {
        size_t part = w->left < size ? (size_t)w->left : size;
        if (!part)
            return mc_fail(w->ctx, MC_ERR_ARGUMENT, "%s: %zu bytes more than were declared",
                           w->file.path, size);
        status = mc_zip_add(&w->zip, from, part);
        w->left -= part;
        from += part;
        size -= part;
        if (!status && !w->left) status = next_tensor(w);
    }
    return status;
}

mc_status mc_torch_writer_commit(mc_torch_writer *w)
{
    if (!w) return MC_ERR_ARGUMENT;
    if (mc_failed(w->ctx)) return mc_error_status(w->ctx);
    if (w->committed || w->begun <= w->count)
        return mc_fail(w->ctx, MC_ERR_STATE, "%s: %s", w->file.path,
                       w->committed ? "finished already" : "not all tensors were written");
    mc_status status = write_record(w, "archive/version", "3\n", 2);
    if (!status) status = mc_zip_finish(&w->zip);
    if (!status) status = mc_file_commit(&w->file);
    w->committed = status == MC_OK;
    return status;
}

/* ---- whole files ----------------------------------------------------------------------------- */

static mc_status copy_tensor(mc_torch_writer *w, mc_tensor_file *from, const mc_tensor_entry *e,
                             uint8_t *buffer, int64_t room, mc_status (*tick)(void *), void *user)
{
    int64_t element = e->count ? (int64_t)e->size / e->count : 1, most = room / element;
    mc_status status = MC_OK;
    for (int64_t at = 0, n; at < e->count && !status; at += n) {
        n = e->count - at < most ? e->count - at : most;
        status = mc_tensor_file_read_bytes(from, e, at, n, buffer);
        if (!status) status = mc_torch_write(w, buffer, (size_t)(n * element));
        if (!status && tick) status = tick(user);
    }
    return status;
}

mc_status mc_torch_write_file_ticking(mc_tensor_file *from, const char *path,
                                      mc_status (*tick)(void *), void *user)
{
    enum { ROOM = 1 << 20 };
    if (!from) return MC_ERR_ARGUMENT;
    mc_context *ctx = mc_tensor_file_context(from);
    if (mc_failed(ctx)) return mc_error_status(ctx);
    size_t count = mc_tensor_file_count(from);
    mc_safetensors_spec *specs = mc_calloc(count + 1, sizeof *specs);
    uint8_t *buffer = mc_malloc(ROOM);
    mc_torch_writer *w = NULL;
    if (!specs || !buffer) mc_fail_nomem(ctx, "writing a PyTorch file");
    for (size_t i = 0; i < count && !mc_failed(ctx); i++) {
        const mc_tensor_entry *e = mc_tensor_file_at(from, i);
        specs[i] = (mc_safetensors_spec){
            .name = e->name, .dtype_name = e->dtype_name, .ndim = e->ndim, .shape = e->shape};
    }
    if (!mc_failed(ctx)) w = mc_torch_writer_new(ctx, path, specs, count);
    for (size_t i = 0; i < count && w && !mc_failed(ctx); i++)
        copy_tensor(w, from, mc_tensor_file_at(from, i), buffer, ROOM, tick, user);
    if (w && !mc_failed(ctx)) mc_torch_writer_commit(w);
    mc_torch_writer_free(w);
    mc_free(specs);
    mc_free(buffer);
    return mc_error_status(ctx);
}

mc_status mc_torch_write_file(mc_tensor_file *from, const char *path)
{
    return mc_torch_write_file_ticking(from, path, NULL, NULL);
}
