/* Parsing and checking the header of one safetensors file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"
#include "core/formats/safetensors_internal.h"
#include "core/formats/tensor_file_internal.h"

static const char metadata_key[] = "__metadata__";

/* The state of one parse. */
typedef struct parser {
    mc_error *err;
    const char *path;
    const uint8_t *data; /* the buffer after the header */
    int64_t size;        /* its bytes */
    mc_tensor_table *table;
    char *text;      /* the free part of table->text */
    int64_t *shapes; /* the free part of table->shapes */
} parser;

#define tensor_error(p, name, text, ...)                                                     \
    mc_error_set((p)->err, MC_ERR_FORMAT, "%s: tensor \"%.200s\": " text, (p)->path, (name), \
                 __VA_ARGS__)

/* A number of the format: whole, not negative, and small enough for a double to hold exactly. */
static bool read_whole(const cJSON *item, int64_t *out)
{
    if (!cJSON_IsNumber(item)) return false;
    double value = item->valuedouble;
    if (!(value >= 0 && value < 0x1p53) || value != floor(value)) return false;
    *out = (int64_t)value;
    return true;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

/* The members of an object sorted by key, in a heap array; a repeated key is an error. `where` is
 * put before the key in messages. NULL on error. */
static const cJSON **sorted_members(mc_error *err, const cJSON *object, size_t *count,
                                    const char *path, const char *where)
{
    size_t n = 0;
    for (const cJSON *item = object->child; item; item = item->next) n++;
    const cJSON **members = mc_calloc(n, sizeof *members);
    if (!members) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its header", path);
        return NULL;
    }
    *count = 0;
    for (const cJSON *item = object->child; item; item = item->next) members[(*count)++] = item;
    qsort(members, n, sizeof *members, compare_keys);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(members[i - 1]->string, members[i]->string) != 0) continue;
        mc_error_set(err, MC_ERR_FORMAT, "%s: %s \"%.200s\" stands in the header twice", path,
                     where, members[i]->string);
        mc_free(members);
        return NULL;
    }
    return members;
}

/* Copies a string into table->text. */
static const char *keep(parser *p, const char *string)
{
    size_t size = strlen(string) + 1;
    char *kept = memcpy(p->text, string, size);
    p->text += size;
    return kept;
}

static bool read_metadata(parser *p, const cJSON *object)
{
    size_t count;
    if (cJSON_IsNull(object)) return true;
    if (!cJSON_IsObject(object)) {
        mc_error_set(p->err, MC_ERR_FORMAT, "%s: __metadata__: expected an object", p->path);
        return false;
    }
    const cJSON **members = sorted_members(p->err, object, &count, p->path, "__metadata__ key");
    if (!members) return false;
    bool good = true;
    for (size_t i = 0; i < count && good; i++) {
        good = cJSON_IsString(members[i]);
        if (!good) {
            mc_error_set(p->err, MC_ERR_FORMAT, "%s: __metadata__: \"%.200s\": expected a string",
                         p->path, members[i]->string);
            break;
        }
        p->table->strings[i].key = keep(p, members[i]->string);
        p->table->strings[i].value = keep(p, members[i]->valuestring);
        p->table->string_count = i + 1;
    }
    mc_free(members);
    return good;
}

/* Finds the three fields of a tensor; keys of other names are ignored. */
static bool find_fields(parser *p, const cJSON *tensor, const cJSON *fields[3])
{
    static const char *const names[3] = {"dtype", "shape", "data_offsets"};
    if (!cJSON_IsObject(tensor)) {
        tensor_error(p, tensor->string, "expected an object with dtype, shape and %s", names[2]);
        return false;
    }
    for (const cJSON *item = tensor->child; item; item = item->next) {
        for (int i = 0; i < 3; i++) {
            if (strcmp(item->string, names[i]) != 0) continue;
            if (fields[i]) {
                tensor_error(p, tensor->string, "key \"%s\" stands there twice", names[i]);
                return false;
            }
            fields[i] = item;
        }
    }
    for (int i = 0; i < 3; i++) {
        if (fields[i]) continue;
        tensor_error(p, tensor->string, "key \"%s\" is missing", names[i]);
        return false;
    }
    return true;
}

static bool read_shape(parser *p, mc_tensor_entry *entry, const cJSON *list)
{
    if (!cJSON_IsArray(list)) {
        tensor_error(p, entry->name, "%s: expected a list of whole numbers", "shape");
        return false;
    }
    entry->shape = p->shapes;
    for (const cJSON *item = list->child; item; item = item->next) {
        if (!read_whole(item, p->shapes)) {
            tensor_error(p, entry->name, "shape: dimension %d: expected a whole number from 0 up",
                         entry->ndim);
            return false;
        }
        p->shapes++;
        entry->ndim++;
    }
    return true;
}

/* Reads data_offsets and checks them against the buffer. */
static bool read_offsets(parser *p, mc_tensor_entry *entry, const cJSON *list)
{
    int64_t begin = 0, end = 0;
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    if (!first || !first->next || first->next->next || !read_whole(first, &begin) ||
        !read_whole(first->next, &end)) {
        tensor_error(p, entry->name, "data_offsets: expected %s", "[begin, end] in whole numbers");
        return false;
    }
    if (begin > end) {
        tensor_error(p, entry->name, "data_offsets [%lld, %lld]: begin is past end",
                     (long long)begin, (long long)end);
        return false;
    }
    if (end > p->size) {
        tensor_error(p, entry->name,
                     "data_offsets [%lld, %lld]: past the file's end, which has %lld bytes of data",
                     (long long)begin, (long long)end, (long long)p->size);
        return false;
    }
    entry->data = p->data + begin;
    entry->size = (size_t)(end - begin);
    return true;
}

static bool read_tensor(parser *p, mc_tensor_entry *entry, const cJSON *tensor)
{
    const cJSON *fields[3] = {NULL, NULL, NULL};
    int64_t bytes;
    if (!find_fields(p, tensor, fields)) return false;
    entry->name = keep(p, tensor->string);
    entry->file = p->path;
    const char *text = cJSON_GetStringValue(fields[0]);
    const mc_file_dtype *dtype = text ? mc_safetensors_dtype_find(text) : NULL;
    if (!dtype) {
        tensor_error(p, entry->name, "unknown dtype \"%.40s\"", text ? text : "(not a string)");
        return false;
    }
    entry->dtype = dtype->dtype;
    entry->dtype_name = dtype->name;
    if (!read_shape(p, entry, fields[1]) || !read_offsets(p, entry, fields[2])) return false;
    if (!mc_file_dtype_measure(dtype, entry->shape, entry->ndim, &entry->count, &bytes)) {
        tensor_error(p, entry->name, "shape: %s elements are too many, or no whole bytes", text);
        return false;
    }
    mc_row_major(entry->shape, entry->ndim, p->shapes);
    entry->strides = p->shapes;
    p->shapes += entry->ndim;
    entry->dense = true;
    if ((uint64_t)bytes != entry->size) {
        tensor_error(p, entry->name,
                     "data_offsets span %zu bytes, but %s of this shape has %lld bytes",
                     entry->size, entry->dtype_name, (long long)bytes);
        return false;
    }
    return true;
}

static int compare_places(const void *a, const void *b)
{
    const mc_tensor_entry *x = *(const mc_tensor_entry *const *)a;
    const mc_tensor_entry *y = *(const mc_tensor_entry *const *)b;
    const uint8_t *from_x = x->data, *from_y = y->data;
    if (from_x != from_y) return from_x < from_y ? -1 : 1;
    return (x->size > y->size) - (x->size < y->size);
}

/* Checks entries in the order of their data: each begins where the last one ended. */
static bool check_sequence(parser *p, const mc_tensor_entry *const *order, size_t count)
{
    int64_t covered = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t begin = (const uint8_t *)order[i]->data - p->data;
        if (begin < covered) {
            tensor_error(p, order[i]->name, "its data at byte %lld overlaps tensor \"%.200s\"",
                         (long long)begin, order[i - 1]->name);
            return false;
        }
        if (begin > covered) {
            tensor_error(p, order[i]->name,
                         "bytes %lld to %lld before its data belong to no tensor",
                         (long long)covered, (long long)begin);
            return false;
        }
        covered = begin + (int64_t)order[i]->size;
    }
    if (covered == p->size) return true;
    mc_error_set(p->err, MC_ERR_FORMAT,
                 "%s: the last %lld of its %lld bytes of data belong to no tensor", p->path,
                 (long long)(p->size - covered), (long long)p->size);
    return false;
}

static bool check_layout(parser *p)
{
    size_t count = p->table->count;
    const mc_tensor_entry **order = mc_calloc(count, sizeof *order);
    if (!order) {
        mc_error_set(p->err, MC_ERR_NOMEM, "%s: out of memory for its header", p->path);
        return false;
    }
    for (size_t i = 0; i < count; i++) order[i] = &p->table->entries[i];
    qsort(order, count, sizeof *order, compare_places);
    bool good = check_sequence(p, order, count);
    mc_free(order);
    return good;
}

/* Allocates the table; one pass over the tree counts how much it needs. */
static bool allocate(parser *p, const cJSON *root, size_t members)
{
    size_t text = 0, dims = 0, strings = 0;
    for (const cJSON *item = root->child; item; item = item->next) {
        text += strlen(item->string) + 1;
        bool metadata = strcmp(item->string, metadata_key) == 0;
        for (const cJSON *field = item->child; field; field = field->next) {
            if (metadata && cJSON_IsString(field) && field->string) {
                text += strlen(field->string) + strlen(field->valuestring) + 2;
                strings++;
            }
            for (const cJSON *dim = field->child; dim && !metadata; dim = dim->next) dims++;
        }
    }
    mc_tensor_table *table = p->table;
    table->entries = mc_calloc(members, sizeof *table->entries);
    table->strings = mc_calloc(strings, sizeof *table->strings);
    table->text = mc_malloc(text);
    table->shapes = mc_calloc(2 * dims, sizeof *table->shapes);
    p->text = table->text;
    p->shapes = table->shapes;
    if (table->entries && table->strings && table->text && table->shapes) return true;
    mc_error_set(p->err, MC_ERR_NOMEM, "%s: out of memory for its header", p->path);
    return false;
}

static bool read_root(parser *p, const cJSON *root)
{
    size_t count = 0;
    const cJSON **members = sorted_members(p->err, root, &count, p->path, "tensor");
    if (!members) return false;
    bool good = allocate(p, root, count);
    for (size_t i = 0; i < count && good; i++) {
        if (strcmp(members[i]->string, metadata_key) == 0)
            good = read_metadata(p, members[i]);
        else
            good = read_tensor(p, &p->table->entries[p->table->count++], members[i]);
    }
    mc_free(members);
    return good && check_layout(p);
}

/* Finds the JSON text and checks the length before it. */
static bool find_text(mc_error *err, const uint8_t *data, size_t size, const char *path,
                      size_t *length)
{
    uint64_t announced = 0;
    if (size < 8) {
        mc_error_set(err, MC_ERR_FORMAT,
                     "%s: %zu bytes, too short for a safetensors file (8 bytes give the header's "
                     "length)",
                     path, size);
        return false;
    }
    for (int i = 7; i >= 0; i--) announced = announced << 8 | data[i];
    if (announced > MC_SAFETENSORS_HEADER_MAX) {
        mc_error_set(err, MC_ERR_FORMAT,
                     "%s: header length %llu, at most %d expected: not a safetensors file", path,
                     (unsigned long long)announced, MC_SAFETENSORS_HEADER_MAX);
        return false;
    }
    if (announced > size - 8) {
        mc_error_set(err, MC_ERR_FORMAT,
                     "%s: header length %llu is past the end of the file of %zu bytes", path,
                     (unsigned long long)announced, size);
        return false;
    }
    if (announced == 0 || data[8] != '{') {
        mc_error_set(err, MC_ERR_FORMAT, "%s: the header doesn't start with '{'", path);
        return false;
    }
    if (data[8 + announced - 1] == '\0') { /* which would end the text for C functions */
        mc_error_set(err, MC_ERR_FORMAT, "%s: the header ends with a NUL", path);
        return false;
    }
    *length = (size_t)announced;
    return true;
}

mc_status mc_safetensors_parse(mc_error *err, mc_tensor_table *table, const uint8_t *data,
                               size_t size, const char *path)
{
    *table = (mc_tensor_table){0};
    size_t length;
    char name[MC_PATH_MAX + 16];
    if (!find_text(err, data, size, path, &length)) return err->status;
    snprintf(name, sizeof name, "%s: header", path);
    cJSON *root = mc_json_parse(err, (const char *)data + 8, length, name, 1);
    if (!root) return err->status;
    parser p = {.err = err,
                .path = path,
                .data = data + 8 + length,
                .size = (int64_t)(size - 8 - length),
                .table = table};
    bool good = read_root(&p, root);
    cJSON_Delete(root);
    if (good) return MC_OK;
    mc_tensor_table_release(table);
    return err->status;
}
