/* Writing safetensors: the header from the declared tensors, then the data as it arrives. */
#include "core/formats/safetensors_internal.h"
#include "core/formats/tensor_file_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/bytes_internal.h"
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/formats/save_queue_internal.h"

struct mc_safetensors_writer {
    mc_owned owned;
    mc_context *ctx;
    mc_file_writer file;
    uint64_t begin;           /* of the data, in the file */
    uint64_t declared, given; /* bytes of data; given: by this rank */
    bool shared;              /* all ranks write it */
    bool queued;              /* the context's queue writes it later from `blocks` */
    mc_save_blocks blocks;
    bool synced, renamed;
};

static const mc_file_dtype *dtype_of(const mc_safetensors_spec *spec)
{
    if (spec->dtype_name) return mc_safetensors_dtype_find(spec->dtype_name);
    return mc_file_dtype_of(spec->dtype ? spec->dtype : MC_F32);
}

/* ---- The header's text ---------------------------------------------------------------------- */

typedef struct text {
    mc_bytes all;
    bool nomem;
} text;

static void append_bytes(text *t, const char *bytes, size_t size)
{
    t->nomem = t->nomem || !mc_bytes_append(&t->all, bytes, size);
}

static void append(text *t, const char *string) { append_bytes(t, string, strlen(string)); }

static void append_int(text *t, int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRId64, value);
    append(t, digits);
}

/* Appends a JSON string; UTF-8 stays as it is. */
static void append_quoted(text *t, const char *string)
{
    append(t, "\"");
    for (; *string; string++) {
        char escape[8];
        if (*string == '"' || *string == '\\') {
            append_bytes(t, "\\", 1);
            append_bytes(t, string, 1);
        } else if ((unsigned char)*string < ' ') {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)*string);
            append(t, escape);
        } else {
            append_bytes(t, string, 1);
        }
    }
    append(t, "\"");
}

static void append_metadata(text *t, const mc_safetensors_string *strings, size_t count)
{
    bool format_given = false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(strings[i].key, "format") == 0) format_given = true;
    append(t, "{\"__metadata__\":{");
    if (!format_given) append(t, "\"format\":\"pt\"");
    for (size_t i = 0; i < count; i++) {
        if (i || !format_given) append(t, ",");
        append_quoted(t, strings[i].key);
        append(t, ":");
        append_quoted(t, strings[i].value);
    }
    append(t, "}");
}

static void append_spec(text *t, const mc_safetensors_spec *spec, uint64_t begin, uint64_t end)
{
    append(t, ",");
    append_quoted(t, spec->name);
    append(t, ":{\"dtype\":");
    append_quoted(t, dtype_of(spec)->name);
    append(t, ",\"shape\":[");
    for (int i = 0; i < spec->ndim; i++) {
        if (i) append(t, ",");
        append_int(t, spec->shape[i]);
    }
    append(t, "],\"data_offsets\":[");
    append_int(t, (int64_t)begin);
    append(t, ",");
    append_int(t, (int64_t)end);
    append(t, "]}");
}

/* ---- What may be declared ------------------------------------------------------------------- */

#define spec_error(err, path, name, text, ...)                                            \
    (mc_error_set((err), MC_ERR_ARGUMENT, "%s: tensor \"%.200s\": " text, (path), (name), \
                  __VA_ARGS__),                                                           \
     false)

/* Checks one tensor and adds its bytes to *end. */
static bool check_spec(mc_error *err, const char *path, const mc_safetensors_spec *spec,
                       uint64_t *end)
{
    int64_t count, bytes;
    const mc_file_dtype *dtype = dtype_of(spec);
    const char *name = spec->name ? spec->name : "";
    if (!spec->name || strcmp(name, "__metadata__") == 0 || !mc_utf8_is_valid(name, strlen(name)))
        return spec_error(err, path, name, "not a name that a %s can have", "tensor");
    if (!dtype)
        return spec_error(err, path, name, "no dtype \"%s\" in safetensors",
                          spec->dtype_name ? spec->dtype_name : mc_dtype_name(spec->dtype));
    if (spec->ndim < 0)
        return spec_error(err, path, name, "%d dimensions: expected 0 or more", spec->ndim);
    for (int i = 0; i < spec->ndim; i++)
        if (!spec->shape || spec->shape[i] < 0)
            return spec_error(err, path, name, "dimension %d: expected a number from 0 up", i);
    if (!mc_file_dtype_measure(dtype, spec->shape, spec->ndim, &count, &bytes) ||
        (uint64_t)bytes > (uint64_t)INT64_MAX - *end)
        return spec_error(err, path, name, "its %s elements are too many, or no whole bytes",
                          dtype->name);
    unsigned align = dtype->bits >= 8 ? (unsigned)dtype->bits / 8 : 1;
    if (*end % align != 0)
        return spec_error(err, path, name,
                          "would start at byte %llu, no multiple of its element's %u bytes: "
                          "declare larger elements first",
                          (unsigned long long)*end, align);
    *end += (uint64_t)bytes;
    return true;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Checks that `count` strings at intervals of `stride` bytes from `first` are all different. */
static bool check_unique(mc_error *err, const char *path, const void *first, size_t stride,
                         size_t count)
{
    const char **sorted = mc_calloc(count, sizeof *sorted);
    if (!sorted) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its header", path);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        memcpy(&sorted[i], (const char *)first + i * stride, sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_strings);
    bool good = true;
    for (size_t i = 1; i < count && good; i++) {
        good = strcmp(sorted[i - 1], sorted[i]) != 0;
        if (!good)
            mc_error_set(err, MC_ERR_ARGUMENT, "%s: \"%.200s\" is declared twice", path, sorted[i]);
    }
    mc_free(sorted);
    return good;
}

static bool check_strings(mc_error *err, const char *path, const mc_safetensors_string *strings,
                          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *key = strings[i].key, *value = strings[i].value;
        if (key && value && mc_utf8_is_valid(key, strlen(key)) &&
            mc_utf8_is_valid(value, strlen(value)))
            continue;
        mc_error_set(err, MC_ERR_ARGUMENT, "%s: metadata string %zu: expected UTF-8 key and value",
                     path, i);
        return false;
    }
    return count == 0 || check_unique(err, path, &strings->key, sizeof *strings, count);
}

/* The file's name in messages. */
static const char *name_of(const mc_safetensors_writer *writer)
{
    return writer->file.path ? writer->file.path : "a file that is saved in the background";
}

/* ---- The writer ----------------------------------------------------------------------------- */

static void free_object(void *object)
{
    mc_safetensors_writer *writer = object;
    mc_disown(&writer->owned);
    mc_file_writer_release(&writer->file);
    mc_save_blocks_release(&writer->blocks);
    mc_free(writer);
}

void mc_safetensors_writer_free(mc_safetensors_writer *writer)
{
    if (writer) free_object(writer);
}

/* Checks the specs and writes the header's text. */
static bool make_header(mc_safetensors_writer *writer, text *t, const char *path,
                        const mc_safetensors_spec *specs, size_t count)
{
    mc_error *err = &writer->ctx->error;
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = writer->declared;
        if (!check_spec(err, path, &specs[i], &writer->declared)) return false;
        append_spec(t, &specs[i], begin, writer->declared);
    }
    if (count && !check_unique(err, path, &specs->name, sizeof *specs, count)) return false;
    append(t, "}");
    while (t->all.count % 8 != 0 && !t->nomem) append(t, " "); /* aligns the data */
    if (t->nomem)
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its header", path);
    else if (t->all.count > MC_SAFETENSORS_HEADER_MAX)
        mc_error_set(err, MC_ERR_ARGUMENT, "%s: a header of %zu bytes, at most %d can be read",
                     path, t->all.count, MC_SAFETENSORS_HEADER_MAX);
    return !mc_error_is_set(err);
}

static bool write_header(mc_safetensors_writer *writer, const char *path, const text *t)
{
    uint8_t length[8];
    writer->begin = sizeof length + t->all.count;
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)t->all.count >> (8 * i));
    return mc_file_writer_init(&writer->ctx->error, &writer->file, path) == MC_OK &&
           mc_file_write(&writer->file, length, sizeof length) == MC_OK &&
           mc_file_write(&writer->file, t->all.data, t->all.count) == MC_OK;
}

/* Rank 0 has created the file; the others open it too. An abandoned file is removed only after all
 * ranks have met. A rank that finds the file removed learns the cause at that meeting, before its
 * own error. */
static bool join_file(mc_safetensors_writer *writer, const char *path, const text *t)
{
    mc_context *ctx = writer->ctx;
    bool first = ctx->mesh.world.rank == 0;
    uint64_t tag = 0;
    if (first && !write_header(writer, path, t)) return false;
    tag = writer->file.aside.tag;
    if (mc_ranks_share(ctx, &tag, sizeof tag)) return false;
    writer->begin = sizeof(uint64_t) + t->all.count;
    mc_error own = {0};
    if (!first) mc_file_writer_join(&own, &writer->file, path, tag);
    writer->file.err = &ctx->error; /* from now on */
    mc_ranks_meet(ctx);
    mc_error_move(&ctx->error, &own);
    return !mc_failed(ctx);
}

static mc_safetensors_writer *new_writer(mc_context *ctx, const char *path,
                                         const mc_safetensors_spec *specs, size_t count,
                                         const mc_safetensors_string *strings, size_t string_count,
                                         bool shared)
{
    text t = {0};
    mc_safetensors_writer *writer =
        mc_new_owned(ctx, sizeof *writer, "a safetensors writer", free_object);
    if (!writer) return NULL;
    writer->ctx = ctx;
    writer->file.aside.fd = -1;
    writer->shared = shared && ctx->mesh.world.comm;
    writer->queued = shared && ctx->save_queue;
    bool good = path != NULL;
    if (!good) mc_fail(ctx, MC_ERR_ARGUMENT, "no name given for the safetensors file");
    good = good && check_strings(&ctx->error, path, strings, string_count);
    if (good) append_metadata(&t, strings, string_count);
    good = good && make_header(writer, &t, path, specs, count);
    if (good && writer->shared)
        good = join_file(writer, path, &t);
    else
        good = good && write_header(writer, path, &t);
    mc_bytes_release(&t.all);
    if (good) return writer;
    free_object(writer);
    return NULL;
}

mc_safetensors_writer *mc_safetensors_writer_new(mc_context *ctx, const char *path,
                                                 const mc_safetensors_spec *specs, size_t count,
                                                 const mc_safetensors_string *strings,
                                                 size_t string_count)
{
    if (mc_failed(ctx) || !mc_given(ctx, path) || (count && !mc_given(ctx, specs)) ||
        (string_count && !mc_given(ctx, strings)))
        return NULL;
    return new_writer(ctx, path, specs, count, strings, string_count, false);
}

mc_safetensors_writer *mc_safetensors_writer_new_shared(mc_context *ctx, const char *path,
                                                        const mc_safetensors_spec *specs,
                                                        size_t count)
{
    return new_writer(ctx, path, specs, count, NULL, 0, true);
}

const char *mc_safetensors_writer_aside(const mc_safetensors_writer *writer)
{
    return writer->file.aside.path;
}

mc_status mc_safetensors_write(mc_safetensors_writer *writer, const void *data, size_t size)
{
    if (!writer) return MC_ERR_ARGUMENT;
    if (mc_failed(writer->ctx) || (size && !mc_given(writer->ctx, data)))
        return mc_error_status(writer->ctx);
    if (writer->synced)
        return mc_fail(writer->ctx, MC_ERR_STATE, "%s: finished already", name_of(writer));
    if (size > writer->declared - writer->given)
        return mc_fail(writer->ctx, MC_ERR_ARGUMENT,
                       "%s: %zu bytes given where %llu are left of the %llu declared",
                       writer->file.path, size,
                       (unsigned long long)(writer->declared - writer->given),
                       (unsigned long long)writer->declared);
    mc_status status = mc_file_write(&writer->file, data, size);
    if (status == MC_OK) writer->given += size;
    return status;
}

mc_status mc_safetensors_write_at(mc_safetensors_writer *writer, uint64_t offset, const void *data,
                                  size_t size)
{
    if (!writer) return MC_ERR_ARGUMENT;
    if (mc_failed(writer->ctx)) return mc_error_status(writer->ctx);
    if (writer->synced)
        return mc_fail(writer->ctx, MC_ERR_STATE, "%s: finished already", name_of(writer));
    if (offset > writer->declared || size > writer->declared - offset)
        return mc_fail(writer->ctx, MC_ERR_ARGUMENT,
                       "%s: %zu bytes given at %llu of the %llu declared", writer->file.path, size,
                       (unsigned long long)offset, (unsigned long long)writer->declared);
    mc_status status = MC_OK;
    if (!writer->queued)
        status = mc_file_write_at(&writer->file, writer->begin + offset, data, size);
    else if (!mc_save_blocks_add(&writer->blocks, writer->begin + offset, data, size))
        status = mc_fail_nomem(writer->ctx, "a copy of what is saved in the background");
    if (status == MC_OK) writer->given += size;
    return status;
}

/* The number of bytes that all ranks have given; waits for them. */
static mc_status count_given(mc_safetensors_writer *writer, uint64_t *given)
{
    const mc_rank_group *world = &writer->ctx->mesh.world;
    *given = writer->given;
    if (!writer->shared) return MC_OK;
    return mc_ranks_reduce(writer->ctx, world, given, 1, MC_I64, MC_REDUCE_SUM);
}

mc_status mc_safetensors_writer_sync(mc_safetensors_writer *writer)
{
    uint64_t given;
    if (!writer) return MC_ERR_ARGUMENT;
    if (mc_failed(writer->ctx)) return mc_error_status(writer->ctx);
    mc_status status = count_given(writer, &given);
    if (status) return status;
    if (writer->synced || given != writer->declared)
        return mc_fail(writer->ctx, MC_ERR_STATE, "%s: %s (%llu of %llu bytes)", name_of(writer),
                       writer->synced ? "finished already" : "not all tensors were written",
                       (unsigned long long)given, (unsigned long long)writer->declared);
    if (writer->queued) /* the queue does the rest */
        status = mc_save_queue_add(&writer->ctx->error, writer->ctx->save_queue, &writer->file,
                                   &writer->blocks);
    else
        status = mc_file_sync(&writer->file);
    if (!status && writer->shared && !writer->queued) status = mc_ranks_meet(writer->ctx);
    writer->synced = status == MC_OK;
    return status;
}

mc_status mc_safetensors_writer_rename(mc_safetensors_writer *writer)
{
    if (!writer) return MC_ERR_ARGUMENT;
    if (mc_failed(writer->ctx)) return mc_error_status(writer->ctx);
    if (!writer->synced || writer->renamed)
        return mc_fail(writer->ctx, MC_ERR_STATE, "%s: %s", name_of(writer),
                       writer->synced ? "renamed already" : "not synced yet");
    mc_status status = MC_OK;
    if (writer->file.aside.pending)
        status = mc_file_rename(&writer->file); /* only on the rank that created it */
    writer->renamed = status == MC_OK;
    return status || !writer->shared || writer->queued ? status : mc_ranks_meet(writer->ctx);
}

mc_status mc_safetensors_writer_commit(mc_safetensors_writer *writer)
{
    mc_status status = mc_safetensors_writer_sync(writer);
    return status ? status : mc_safetensors_writer_rename(writer);
}

static int compare_specs(const void *a, const void *b)
{
    const mc_safetensors_spec *x = a, *y = b;
    const mc_file_dtype *dtype_x = dtype_of(x), *dtype_y = dtype_of(y);
    int bits_x = dtype_x ? dtype_x->bits : 0, bits_y = dtype_y ? dtype_y->bits : 0;
    if (bits_x != bits_y) return bits_x > bits_y ? -1 : 1;
    return strcmp(x->name ? x->name : "", y->name ? y->name : "");
}

void mc_safetensors_sort(mc_safetensors_spec *specs, size_t count)
{
    if (specs && count) qsort(specs, count, sizeof *specs, compare_specs);
}
