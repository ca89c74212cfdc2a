/* Saving a model's parameters under the names of a weight map. */
#include "core/checkpoint/weight_map_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/formats/safetensors_internal.h"
#include "core/checkpoint/shards_internal.h"
#include "core/checkpoint/weight_files_internal.h"
#include "core/nn/module_internal.h"

/* ---- what is saved --------------------------------------------------------------------------- */

/* A tensor of the file: one parameter, or several concatenated. */
typedef struct saved_tensor {
    char name[MC_NAME_MAX];
    mc_shape shape;
    mc_weight_place place; /* of the first parameter */
    mc_parameter *first;
    int parts;         /* number found so far */
    size_t number;     /* in the order of declaration */
    const char *order; /* the map's */
} saved_tensor;

typedef struct saved {
    saved_tensor *tensors;
    size_t count;
} saved;

/* Adds a parameter to the list: its own tensor, or the next part of the last one. */
static bool add_saved(saved *s, mc_parameter *p, const mc_weight_form *form)
{
    const mc_weight_map *map = form->map;
    saved_tensor *next = &s->tensors[s->count], *last = s->count ? next - 1 : NULL;
    mc_weight_place place = mc_weight_place_of(map, p->name);
    bool own =
        form->own_names || !mc_weight_name(map, form->layers, p->name, form->prefixed, next->name);
    if (own) {
        snprintf(next->name, MC_NAME_MAX, "%s", p->name);
        place = (mc_weight_place){.parts = 1, .factor = place.factor};
    }
    next->place = place;
    int part = next->place.part;
    if (part) {
        bool follows = last && last->parts == part && strcmp(last->name, next->name) == 0 &&
                       last->first->stored == p->stored;
        if (follows) last->parts++;
        return follows || !mc_fail(p->module->ctx, MC_ERR_STATE,
                                   "parameter \"%s\" does not follow part %d of \"%s\"", p->name,
                                   part - 1, next->name);
    }
    next->first = p;
    next->parts = 1;
    next->shape = mc_weight_file_shape(next->place, p->shape);
    if (form->scaling < 0) next->place.factor = 1 / next->place.factor;
    if (!form->scaling) next->place.factor = 1;
    next->order = form->own_names ? NULL : map->order;
    next->number = s->count++;
    return true;
}

/* Adds the same tensor under its second name, if it has one. */
static void add_copy(saved *s, mc_module *model, const mc_weight_form *form)
{
    saved_tensor *next = &s->tensors[s->count], *last = next - 1;
    char name[MC_NAME_MAX];
    if (!mc_weight_written_copy(model, form->map, form->own_names, last->first->name, name)) return;
    *next = *last;
    memcpy(next->name, name, sizeof name);
    next->number = s->count++;
}

static int compare_tensors(const void *a, const void *b)
{
    const saved_tensor *x = a, *y = b;
    int result = x->order ? mc_tensor_name_compare(x->order, x->name, y->name) : 0;
    return result ? result : (x->number > y->number) - (x->number < y->number);
}

static bool collect(mc_module *model, const mc_weight_form *form, saved *s)
{
    size_t most = 2 * model->root->parameter_count + 1; /* including copies */
    s->tensors = mc_calloc(most, sizeof *s->tensors);
    if (!s->tensors) return !mc_fail_nomem(model->ctx, "saving weights");
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(model, &it));) {
        if (!mc_weight_is_held(form->map, p)) continue;
        if (p->stored->leaves)
            return !mc_fail(model->ctx, MC_ERR_UNSUPPORTED,
                            "\"%s\" is in 8 bits, and is not saved: save the model before its "
                            "weights are",
                            p->name);
        if (!add_saved(s, p, form)) return false;
        add_copy(s, model, form);
    }
    qsort(s->tensors, s->count, sizeof *s->tensors, compare_tensors);
    return true;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* This rank's share of a tensor to write: its shard, whether parameters are sharded or
 * replicated. */
typedef struct saved_part {
    int64_t first, count; /* elements of the concatenated parameters */
    const char *data;
} saved_part;

static saved_part part_of(const saved_tensor *s)
{
    const mc_bucket *b = s->first->stored->bucket;
    int64_t begin = s->first->stored->span->offset + s->first->first;
    int64_t end = begin + mc_shape_count(s->shape), last = b->first + b->share;
    int64_t from = begin > b->first ? begin : b->first, to = end < last ? end : last;
    if (to <= from) return (saved_part){0, 0, NULL};
    return (saved_part){from - begin, to - from, mc_bucket_value_at(b, from)};
}

static size_t element_size(const saved_tensor *s)
{
    return mc_dtype_size(mc_parameter_dtype(s->first));
}

/* A piece of a part with the place's factor applied, on the device. */
static const void *scaled_piece(const saved_tensor *s, const void *data, size_t bytes,
                                void *scratch)
{
    mc_context *ctx = s->first->module->ctx;
    mc_dtype dtype = mc_parameter_dtype(s->first);
    int64_t n = (int64_t)(bytes / mc_dtype_size(dtype));
    mc_matrix from = {(void *)(uintptr_t)data, dtype, n}, to = {scratch, dtype, n};
    if (s->place.factor == 1) return data;
    mc_status status =
        ctx->device->kernels->scale(ctx->device, n, from, s->place.factor, to, false);
    if (status) mc_fail(ctx, status, "saving weights: %s", ctx->device->failure);
    return scratch;
}

/* Writes a part's values through small buffers. `at`: offset of the tensor's bytes. */
static void write_values(mc_safetensors_writer *writer, const saved_tensor *s, saved_part part,
                         uint64_t at)
{
    enum { PIECE = 1 << 20 };
    mc_context *ctx = s->first->module->ctx;
    mc_device *device = ctx->device;
    size_t size = (size_t)part.count * element_size(s);
    at += (uint64_t)part.first * element_size(s);
    if (device->is_host && s->place.factor == 1) {
        mc_safetensors_write_at(writer, at, part.data, size);
        return;
    }
    char *host = mc_malloc(PIECE);
    void *scratch = s->place.factor == 1 ? NULL : device->alloc(device, PIECE);
    if (!host || (!scratch && s->place.factor != 1)) mc_fail_nomem(ctx, "saving weights");
    for (size_t done = 0; done < size && !mc_failed(ctx); done += PIECE) {
        size_t n = size - done < PIECE ? size - done : PIECE;
        const void *piece = scaled_piece(s, part.data + done, n, scratch);
        if (!mc_failed(ctx) && !device->copy_out(device, host, piece, n))
            mc_fail(ctx, MC_ERR_DEVICE, "saving weights: %s", device->failure);
        mc_safetensors_write_at(writer, at + done, host, n);
    }
    device->free(device, scratch, PIECE);
    mc_free(host);
}

/* Some columns of a part of a matrix, which become rows of the file. */
typedef struct band {
    const char *host; /* the part: elements first .. first + count of (rows, columns) */
    int64_t first, count, rows, columns;
    size_t element;
    int64_t column, width; /* the band's columns */
    char *out;             /* (width, rows): as in the file */
} band;

static int64_t at_least(int64_t x, int64_t least) { return x > least ? x : least; }

/* The first row whose element in `column` has the index `element` or a later one. */
static int64_t row_from(const band *b, int64_t element, int64_t column)
{
    return at_least(element - column + b->columns - 1, 0) / b->columns;
}

static void transpose(const band *b)
{
    int64_t last = b->first + b->count;
    for (int64_t row = b->first / b->columns; row * b->columns < last; row++)
        for (int64_t i = 0; i < b->width; i++) {
            int64_t source = row * b->columns + b->column + i, target = i * b->rows + row;
            if (source < b->first || source >= last) continue;
            if (b->element == sizeof(uint16_t))
                ((uint16_t *)b->out)[target] = ((const uint16_t *)b->host)[source - b->first];
            else
                ((uint32_t *)b->out)[target] = ((const uint32_t *)b->host)[source - b->first];
        }
}

/* Writes a band, which is contiguous in the file if this rank has the whole matrix. */
static void write_band(mc_safetensors_writer *writer, const band *b, uint64_t at)
{
    int64_t begin = b->column * b->rows;
    transpose(b);
    if (b->count == b->rows * b->columns) {
        mc_safetensors_write_at(writer, at + (uint64_t)begin * b->element, b->out,
                                (size_t)(b->width * b->rows) * b->element);
        return;
    }
    for (int64_t i = 0; i < b->width; i++) {
        int64_t from = row_from(b, b->first, b->column + i);
        int64_t to = row_from(b, b->first + b->count, b->column + i);
        if (to > from)
            mc_safetensors_write_at(writer,
                                    at + (uint64_t)(begin + i * b->rows + from) * b->element,
                                    b->out + (size_t)(i * b->rows + from) * b->element,
                                    (size_t)(to - from) * b->element);
    }
}

/* Writes a part of a matrix transposed: copies it to the host, then writes a few rows at a time. */
static void write_transposed(mc_safetensors_writer *writer, const saved_tensor *s, saved_part part,
                             uint64_t at)
{
    enum { BAND = 16 };
    mc_context *ctx = s->first->module->ctx;
    mc_device *device = ctx->device;
    size_t element = element_size(s), size = (size_t)part.count * element;
    int64_t rows = s->shape.dim[1], columns = s->shape.dim[0];
    char *host = mc_malloc(size), *out = mc_malloc((size_t)rows * BAND * element);
    if (!host || !out)
        mc_fail_nomem(ctx, "saving weights");
    else if (!device->copy_out(device, host, part.data, size))
        mc_fail(ctx, MC_ERR_DEVICE, "saving weights: %s", device->failure);
    for (int64_t column = 0; column < columns && !mc_failed(ctx); column += BAND) {
        int64_t width = columns - column < BAND ? columns - column : BAND;
        band b = {host, part.first, part.count, rows, columns, element, column, width, out};
        write_band(writer, &b, at);
    }
    mc_free(host);
    mc_free(out);
}

static void write_tensor(mc_safetensors_writer *writer, const saved_tensor *s, uint64_t at)
{
    saved_part part = part_of(s);
    if (!part.count) return;
    if (s->place.transpose && s->shape.ndim == 2)
        write_transposed(writer, s, part, at);
    else
        write_values(writer, s, part, at);
}

/* ---- files ----------------------------------------------------------------------------------- */

static uint64_t bytes_of(const saved_tensor *s)
{
    return (uint64_t)mc_shape_count(s->shape) * element_size(s);
}

/* Writes and syncs the tensors of file `number`, by their `shard`. `specs` has room for all
 * tensors. */
static void write_file(mc_weight_files *files, const saved *s, const size_t *shard, size_t number,
                       mc_safetensors_spec *specs)
{
    mc_context *ctx = files->ctx;
    size_t count = 0;
    uint64_t at = 0;
    for (size_t i = 0; i < s->count; i++) {
        const saved_tensor *t = &s->tensors[i];
        if (shard[i] != number) continue;
        specs[count++] = (mc_safetensors_spec){.name = t->name,
                                               .dtype = mc_parameter_dtype(t->first),
                                               .ndim = t->shape.ndim,
                                               .shape = t->shape.dim};
    }
    mc_safetensors_writer *writer = mc_weight_files_add(files, specs, count);
    for (size_t i = 0; writer && i < s->count && !mc_failed(ctx); i++) {
        if (shard[i] != number) continue;
        write_tensor(writer, &s->tensors[i], at);
        mc_weight_files_note(files, s->tensors[i].name, mc_shape_count(s->tensors[i].shape),
                             bytes_of(&s->tensors[i]));
        at += bytes_of(&s->tensors[i]);
    }
    mc_safetensors_writer_sync(writer);
}

/* Assigns each tensor to a file; returns the number of files. */
static size_t split(const saved *s, const mc_weight_form *form, size_t *shard, uint64_t *bytes)
{
    for (size_t i = 0; i < s->count; i++) bytes[i] = bytes_of(&s->tensors[i]);
    uint64_t most = form->max_shard_size > 0 ? (uint64_t)form->max_shard_size : UINT64_MAX;
    size_t count = mc_shards_split(bytes, s->count, most, shard);
    return count ? count : 1;
}

static mc_weight_files *write_files(mc_context *ctx, const saved *s, const mc_weight_form *form,
                                    const char *path)
{
    size_t *shard = mc_calloc(s->count + 1, sizeof *shard);
    uint64_t *bytes = mc_calloc(s->count + 1, sizeof *bytes);
    mc_safetensors_spec *specs = mc_calloc(s->count + 1, sizeof *specs);
    mc_weight_files *files = NULL;
    if (shard && bytes && specs)
        files = mc_weight_files_new(ctx, path, split(s, form, shard, bytes));
    else
        mc_fail_nomem(ctx, "saving weights");
    for (size_t i = 0; files && i < files->most && !mc_failed(ctx); i++)
        write_file(files, s, shard, i, specs);
    mc_weight_files_write_index(files);
    mc_free(shard);
    mc_free(bytes);
    mc_free(specs);
    return files;
}

mc_weight_files *mc_weights_write(mc_module *model, const mc_weight_form *form, const char *path)
{
    if (!model || mc_failed(model->ctx) || mc_module_layout(model->root)) return NULL;
    if (mc_zero_rest(&model->root->zero)) return NULL;
    saved s = {0};
    mc_weight_files *files = NULL;
    if (collect(model, form, &s)) files = write_files(model->ctx, &s, form, path);
    mc_free(s.tensors);
    if (!mc_failed(model->ctx)) return files;
    mc_weight_files_free(files);
    return NULL;
}
