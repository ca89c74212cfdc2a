#include "core/checkpoint/optim_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/dist/ranks_internal.h"
#include "core/formats/safetensors_internal.h"
#include "core/formats/tensor_file_internal.h"
#include "core/optim/optimizer_internal.h"

/* ---- saving ---------------------------------------------------------------------------------- */

enum { COPY_BYTES = 1 << 20 };

/* The items to write: a spec for each, and where its bytes are. */
typedef struct save_list {
    mc_context *ctx;
    mc_safetensors_spec *specs;
    mc_state_item *items; /* the specs point to their shapes */
    size_t count, spec_capacity, item_capacity;
} save_list;

static mc_status list_item(void *user, const mc_state_item *item)
{
    save_list *list = user;
    if (!mc_grow(&list->specs, &list->spec_capacity, list->count, sizeof *list->specs) ||
        !mc_grow(&list->items, &list->item_capacity, list->count, sizeof *list->items))
        return mc_fail_nomem(list->ctx, "a list of optimizer state");
    char *name = mc_strdup(item->name);
    if (!name) return mc_fail_nomem(list->ctx, "a list of optimizer state");
    list->items[list->count] = *item;
    list->items[list->count].name = name;
    list->count++;
    return MC_OK;
}

static void save_list_release(save_list *list)
{
    for (size_t i = 0; i < list->count; i++) mc_free((void *)list->items[i].name);
    mc_free(list->items);
    mc_free(list->specs);
}

/* Writes this rank's part of an item whose bytes begin at `at`; copies it through a buffer if it is
 * on the device. */
static mc_status write_item(mc_context *ctx, mc_safetensors_writer *writer,
                            const mc_state_item *item, uint64_t at, char *buffer)
{
    size_t bytes = (size_t)item->own_count * item->size;
    if (!bytes) return MC_OK;
    const char *data =
        (const char *)item->data + (size_t)(item->own_first - item->first) * item->size;
    at += (uint64_t)item->own_first * item->size;
    if (!item->on_device || ctx->device->is_host)
        return mc_safetensors_write_at(writer, at, data, bytes);
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < COPY_BYTES ? bytes - done : COPY_BYTES;
        if (!ctx->device->copy_out(ctx->device, buffer, data + done, part))
            return mc_fail(ctx, MC_ERR_DEVICE, "optimizer state: %s", ctx->device->failure);
        mc_status status = mc_safetensors_write_at(writer, at + done, buffer, part);
        if (status) return status;
        done += part;
    }
    return MC_OK;
}

static mc_status write_list(save_list *list, const char *path)
{
    for (size_t i = 0; i < list->count; i++)
        list->specs[i] = (mc_safetensors_spec){.name = list->items[i].name,
                                               .dtype_name = list->items[i].dtype,
                                               .ndim = list->items[i].shape.ndim,
                                               .shape = list->items[i].shape.dim};
    char *buffer = mc_malloc(COPY_BYTES);
    if (!buffer) return mc_fail_nomem(list->ctx, "writing optimizer state");
    mc_safetensors_writer *writer =
        mc_safetensors_writer_new_shared(list->ctx, path, list->specs, list->count);
    mc_status status = writer ? MC_OK : mc_error_status(list->ctx);
    uint64_t at = 0;
    for (size_t i = 0; !status && i < list->count; i++) {
        status = write_item(list->ctx, writer, &list->items[i], at, buffer);
        at += (uint64_t)mc_shape_count(list->items[i].shape) * list->items[i].size;
    }
    if (!status) status = mc_safetensors_writer_commit(writer);
    mc_safetensors_writer_free(writer);
    mc_free(buffer);
    return status;
}

static mc_status check_arguments(mc_optim_manager *m, const char *path)
{
    if (!m) return MC_ERR_ARGUMENT;
    if (mc_failed(m->ctx)) return mc_error_status(m->ctx);
    return path ? MC_OK : mc_fail(m->ctx, MC_ERR_ARGUMENT, "the path of optimizer state is NULL");
}

mc_status mc_optim_manager_save(mc_optim_manager *m, const char *path)
{
    mc_status status = check_arguments(m, path);
    if (status) return status;
    save_list list = {.ctx = m->ctx};
    status = mc_optim_manager_each_state(m, list_item, NULL, &list);
    if (!status) status = write_list(&list, path);
    save_list_release(&list);
    if (status) mc_error_while(&m->ctx->error, "saving optimizer state to %s", path);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

enum { MISSING_SHOWN = 20 }; /* names in a message */

typedef struct load_job {
    mc_context *ctx;
    mc_tensor_file *file;
    const char *path;
    size_t found, found_scales, missing; /* found_scales: of fp8, among those found */
    char *names;                         /* of missing items, one per line */
    void *buffer;
} load_job;

static mc_status note_missing(load_job *job, const char *name)
{
    if (++job->missing > MISSING_SHOWN) return MC_OK;
    size_t old = job->names ? strlen(job->names) : 0, size = old + strlen(name) + 4;
    char *grown = mc_realloc(job->names, size);
    if (!grown) return mc_fail_nomem(job->ctx, "a list of missing tensors");
    job->names = grown;
    snprintf(grown + old, size - old, "\n  %s", name);
    return MC_OK;
}

static bool same_shape(const mc_tensor_entry *entry, const mc_shape *shape)
{
    if (entry->ndim != shape->ndim) return false;
    for (int i = 0; i < entry->ndim; i++)
        if (entry->shape[i] != shape->dim[i]) return false;
    return true;
}

/* Host numbers are counts, scales and rates: none may be negative, and some not zero. */
static mc_status check_number(load_job *job, const mc_state_item *item,
                              const mc_tensor_entry *entry)
{
    double value;
    mc_status status = mc_tensor_file_read_f64(job->file, entry, 0, 1, &value);
    if (status) return status;
    if (value >= 0 && isfinite(value) && !(item->positive && value == 0)) return MC_OK;
    return mc_fail(job->ctx, MC_ERR_FORMAT, "%s: tensor \"%s\": found %g, expected %s", job->path,
                   item->name, value, item->positive ? "a number above 0" : "0 or more");
}

/* A name of visit_fp8: optimizer.I.fp8.PARAMETER. */
static bool is_fp8_scales(const char *name)
{
    unsigned index;
    int end = 0;
    return sscanf(name, "optimizer.%u.%n", &index, &end) == 1 && end &&
           strncmp(name + end, "fp8.", 4) == 0;
}

static mc_status check_item(void *user, const mc_state_item *item)
{
    load_job *job = user;
    const mc_tensor_entry *entry = mc_tensor_file_find(job->file, item->name);
    if (!entry) return note_missing(job, item->name);
    job->found++;
    job->found_scales += is_fp8_scales(item->name);
    if (strcmp(entry->dtype_name, item->dtype) != 0)
        return mc_fail(job->ctx, MC_ERR_DTYPE, "%s: tensor \"%s\": dtype %s, expected %s",
                       job->path, item->name, entry->dtype_name, item->dtype);
    if (!same_shape(entry, &item->shape)) {
        mc_shape found = {.ndim = entry->ndim < MC_MAX_DIMS ? entry->ndim : MC_MAX_DIMS};
        memcpy(found.dim, entry->shape, (size_t)found.ndim * sizeof *found.dim);
        return mc_fail(job->ctx, MC_ERR_SHAPE, "%s: tensor \"%s\": shape %s, expected %s",
                       job->path, item->name, MC_SHAPE_TEXT(found), MC_SHAPE_TEXT(item->shape));
    }
    return item->number ? check_number(job, item, entry) : MC_OK;
}

/* Reads elements of a tensor as bytes. Reading avoids the page faults of a mapping, and reports a
 * file that has become shorter as an error. */
static mc_status read_elements(load_job *job, const mc_tensor_entry *entry, int64_t first,
                               int64_t count, size_t size, void *to)
{
    mc_bytes_place place = mc_tensor_file_bytes(job->file, entry);
    if (place.fd < 0) return mc_tensor_file_read_bytes(job->file, entry, first, count, to);
    return mc_file_read_at(&job->ctx->error, place.fd, entry->file,
                           place.offset + (uint64_t)first * size, to, (size_t)count * size);
}

/* A buffer for copies to a device, at most COPY_BYTES. */
static void *buffer_of(load_job *job)
{
    if (!job->buffer) job->buffer = mc_malloc(COPY_BYTES);
    if (!job->buffer) mc_fail_nomem(job->ctx, "reading optimizer state");
    return job->buffer;
}

static mc_status load_item(void *user, const mc_state_item *item)
{
    load_job *job = user;
    mc_device *device = job->ctx->device;
    const mc_tensor_entry *entry = mc_tensor_file_find(job->file, item->name);
    int64_t most = (int64_t)(COPY_BYTES / item->size);
    for (int64_t done = 0, n; done < item->count; done += n) {
        n = item->count - done < most ? item->count - done : most;
        char *to = (char *)item->data + (size_t)done * item->size;
        bool direct = !item->on_device || device->is_host;
        void *read = direct ? to : buffer_of(job);
        if (!read || read_elements(job, entry, item->first + done, n, item->size, read))
            return mc_error_status(job->ctx);
        if (!direct) device->copy_in(device, to, read, (size_t)n * item->size);
    }
    return MC_OK;
}

/* Whether the file has steps of a parameter that is frozen here. Invalid numbers are left to
 * check_item. */
static bool was_stepped(void *user, const char *name)
{
    const load_job *job = user;
    const mc_tensor_entry *entry = mc_tensor_file_find(job->file, name);
    double steps = NAN;
    if (entry && entry->ndim == 0) mc_tensor_file_read_f64(job->file, entry, 0, 1, &steps);
    return entry && steps != 0;
}

/* Logs what of the file is not read. */
static void report_spare(const load_job *job)
{
    size_t spare = mc_tensor_file_count(job->file) - job->found, scales = 0;
    for (size_t i = 0; i < mc_tensor_file_count(job->file) && spare; i++)
        scales += is_fp8_scales(mc_tensor_file_at(job->file, i)->name);
    scales -= spare ? job->found_scales : 0;
    if (scales)
        mc_log(job->ctx, MC_LOG_WARNING,
               "%s: the scales of fp8 of %zu layers were not read, since the model has no recipe "
               "for these layers: set it before loading (mc_module_set_recipe)",
               job->path, scales);
    if (spare > scales)
        mc_log(job->ctx, MC_LOG_WARNING, "%s: %zu tensors belong to no optimizer and were not read",
               job->path, spare - scales);
}

static mc_status check_file(load_job *job, mc_optim_manager *m)
{
    mc_status status = mc_optim_manager_each_state(m, check_item, was_stepped, job);
    if (status) return status;
    if (job->missing)
        return mc_fail(job->ctx, MC_ERR_NOT_FOUND,
                       "%s: %zu of the optimizers' %zu pieces of state are missing:%s%s", job->path,
                       job->missing, job->missing + job->found, job->names,
                       job->missing > MISSING_SHOWN ? "\n  ..." : "");
    report_spare(job);
    return MC_OK;
}

mc_status mc_optim_manager_load(mc_optim_manager *m, const char *path)
{
    mc_status status = check_arguments(m, path);
    if (status) return status;
    load_job job = {.ctx = m->ctx, .path = path};
    job.file = mc_tensor_file_open(m->ctx, path, NULL);
    status = job.file ? check_file(&job, m) : mc_error_status(m->ctx);
    if (!status) status = mc_optim_manager_each_state(m, load_item, was_stepped, &job);
    if (!status) mc_optim_manager_state_restored(m);
    if (!status) status = mc_ranks_meet(m->ctx);
    mc_tensor_file_free(job.file);
    mc_free(job.names);
    mc_free(job.buffer);
    if (status) mc_error_while(&m->ctx->error, "loading optimizer state from %s", path);
    return status;
}
