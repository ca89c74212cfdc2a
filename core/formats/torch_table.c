/* Names and data of the tensors in a PyTorch file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"
#include "core/formats/torch_internal.h"

enum { DEPTH_MAX = 64, NAME_MAX_BYTES = 1 << 14, PARTS_MAX = 8, TABLE_TIMES = 32 };

typedef struct walk {
    mc_error *err;
    const mc_torch_bytes *bytes;
    mc_tensor_table *table;
    bool fill;                /* false: only counts */
    size_t count, text, dims; /* tensors, bytes of their names, numbers of shapes and strides */
    size_t visits, visits_max;
    size_t length; /* of the name so far */
    char name[NAME_MAX_BYTES];
} walk;

#define walk_error(w, ...) mc_pickle_false(mc_error_set((w)->err, MC_ERR_FORMAT, __VA_ARGS__))
#define tensor_error(w, text, ...) \
    walk_error(w, "%s: tensor \"%.200s\": " text, (w)->bytes->path, (w)->name, __VA_ARGS__)

/* ---- one tensor ------------------------------------------------------------------------------ */

/* Adds the part of a zip entry with a CRC. The tensors of a storage are mostly adjacent, so
 * comparing with the last part avoids most repetitions; sort_parts removes the others. */
static bool add_part(walk *w, const mc_zip_entry *e)
{
    mc_tensor_table *t = w->table;
    if (t->part_count && t->parts[t->part_count - 1].data == e->data) return true;
    if (!mc_grow(&t->parts, &t->part_capacity, t->part_count, sizeof *t->parts)) {
        mc_error_set(w->err, MC_ERR_NOMEM, "%s: out of memory for its checksums", w->bytes->path);
        return false;
    }
    t->parts[t->part_count++] = (mc_stored_part){.data = e->data,
                                                 .size = e->size,
                                                 .crc = e->crc,
                                                 .name = e->name,
                                                 .name_length = e->length,
                                                 .file = w->bytes->path};
    return true;
}

static int compare_parts(const void *a, const void *b)
{
    const mc_stored_part *x = a, *y = b;
    return (x->data > y->data) - (x->data < y->data);
}

/* Sorts the parts and removes repetitions. */
static void sort_parts(mc_tensor_table *t)
{
    size_t kept = 0;
    const uint8_t *last = NULL;
    if (t->part_count) qsort(t->parts, t->part_count, sizeof *t->parts, compare_parts);
    for (size_t i = 0; i < t->part_count; i++) {
        mc_stored_part part = t->parts[i];
        if (i && part.data == last) continue;
        last = part.data;
        if (part.crc)
            t->parts[kept++] = part;
        else if (part.size)
            t->unchecked++;
    }
    t->part_count = kept;
}

/* The bytes of a tensor's storage, and their number, which must match its size. */
static const uint8_t *find_storage(walk *w, const mc_torch_storage *s, uint64_t *size)
{
    const mc_torch_bytes *b = w->bytes;
    char shown[MC_PICKLE_SHOWN + 1], name[512];
    uint64_t element = (uint64_t)s->dtype->bits / 8;
    mc_pickle_show(shown, s->key, s->key_length);
    *size = (uint64_t)s->whole * element;
    if (!b->zip) {
        const mc_torch_block *block =
            mc_torch_block_find(b->blocks, b->block_count, s->key, s->key_length);
        if (block && block->data) return block->data;
        tensor_error(w, "the file has no storage \"%s\"", shown);
        return NULL;
    }
    int length = snprintf(name, sizeof name, "%.*sdata/%.*s", (int)b->prefix_length, b->prefix,
                          (int)s->key_length, s->key);
    const mc_zip_entry *e = NULL;
    if (length > 0 && (size_t)length < sizeof name) e = mc_zip_find(b->zip, name, (size_t)length);
    if (!e) {
        tensor_error(w, "the file has no entry \"data/%s\"", shown);
        return NULL;
    }
    if ((uint64_t)s->whole <= UINT64_MAX / 16 && e->size == *size)
        return add_part(w, e) ? e->data : NULL;
    tensor_error(w, "entry \"data/%s\" has %zu bytes, expected %lld elements of %s", shown, e->size,
                 (long long)s->whole, s->dtype->name);
    return NULL;
}

/* Checks that the elements are within the storage's `room` elements. */
static bool check_place(walk *w, const mc_torch_tensor *t, int64_t count, int64_t room)
{
    int64_t last = t->offset;
    bool inside = last >= 0 && last <= room;
    for (int i = 0; i < t->ndim && inside; i++) {
        if (t->strides[i] < 0)
            return tensor_error(w, "stride %lld: expected 0 or more", (long long)t->strides[i]);
        int64_t steps = count && t->shape[i] > 1 ? t->shape[i] - 1 : 0;
        if (steps && t->strides[i] > (room - last) / steps) inside = false;
        if (inside) last += steps * t->strides[i];
    }
    if (inside && (!count || last < room)) return true;
    return tensor_error(w, "its elements from number %lld on are not all in a storage of %lld",
                        (long long)t->offset, (long long)room);
}

static bool is_row_major(const mc_torch_tensor *t)
{
    int64_t step = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] > 1 && t->strides[i] != step) return false;
        step *= t->shape[i];
    }
    return true;
}

/* Fills in an entry except for its name. */
static bool place_tensor(walk *w, const mc_torch_tensor *t, mc_tensor_entry *entry)
{
    const mc_torch_storage *s = t->storage;
    int64_t bytes, element = t->dtype->bits / 8;
    uint64_t size;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0)
            return tensor_error(w, "dimension %d: %lld, expected 0 or more", i,
                                (long long)t->shape[i]);
    if (!mc_file_dtype_measure(t->dtype, t->shape, t->ndim, &entry->count, &bytes))
        return tensor_error(w, "its %s elements are too many", t->dtype->name);
    const uint8_t *data = find_storage(w, s, &size);
    if (!data) return false;
    int64_t stored = s->dtype->bits / 8;
    if (!check_place(w, t, entry->count, s->count * stored / element)) return false;
    if ((uint64_t)bytes > w->bytes->size)
        return tensor_error(w, "a view of %lld bytes, more than the %llu of the file",
                            (long long)bytes, (unsigned long long)w->bytes->size);
    entry->dtype = t->dtype->dtype;
    entry->dtype_name = t->dtype->name;
    entry->size = (size_t)bytes;
    entry->data = data + s->first * stored + t->offset * element;
    entry->big_endian = w->bytes->big_endian && element > 1;
    entry->dense = !bytes || (is_row_major(t) && !entry->big_endian);
    return true;
}

static bool add_tensor(walk *w, const mc_torch_tensor *t)
{
    mc_tensor_table *table = w->table;
    size_t ndim = (size_t)t->ndim;
    w->name[w->length] = '\0';
    if (w->fill) {
        mc_tensor_entry *entry = &table->entries[w->count];
        if (!mc_utf8_is_valid(w->name, w->length))
            return tensor_error(w, "its name is not %s", "UTF-8");
        if (!place_tensor(w, t, entry)) return false;
        int64_t *dims = table->shapes + w->dims;
        entry->name = memcpy(table->text + w->text, w->name, w->length + 1);
        entry->file = w->bytes->path;
        entry->ndim = t->ndim;
        entry->shape = dims;
        entry->strides = dims + ndim;
        if (ndim) memcpy(dims, t->shape, ndim * sizeof *dims);
        if (ndim) memcpy(dims + ndim, t->strides, ndim * sizeof *dims);
        table->count++;
    }
    w->count++;
    w->text += w->length + 1;
    w->dims += 2 * ndim;
    return true;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static bool holds_values(const mc_pickle_value *v)
{
    return v->kind == MC_PICKLE_TENSOR || v->kind == MC_PICKLE_DICT || v->kind == MC_PICKLE_LIST ||
           v->kind == MC_PICKLE_TUPLE;
}

/* Appends a key to the name. */
static bool append_key(walk *w, const char *key, size_t length)
{
    if (memchr(key, '\0', length) || length + 2 > sizeof w->name - w->length)
        return walk_error(
            w, "%s: below \"%.*s\": a key with a NUL, or a name of more than %zu bytes",
            w->bytes->path, (int)(w->length < 200 ? w->length : 200), w->name, sizeof w->name);
    if (w->length) w->name[w->length++] = '.';
    memcpy(w->name + w->length, key, length);
    w->length += length;
    return true;
}

static bool count_visit(walk *w, int depth)
{
    if (depth > DEPTH_MAX)
        return walk_error(w, "%s: containers nested more than %d deep", w->bytes->path, DEPTH_MAX);
    return ++w->visits <= w->visits_max ||
           walk_error(w, "%s: containers that hold each other again and again", w->bytes->path);
}

/* Appends the name of a container's item `i`: its key in a dict, else its number. */
static bool append_item_key(walk *w, const mc_pickle_value *container, size_t i)
{
    char digits[24];
    int64_t number = (int64_t)i;
    if (container->kind == MC_PICKLE_DICT) {
        const mc_pickle_value *key = &container->node->items[i - 1];
        if (key->kind == MC_PICKLE_TEXT) return append_key(w, key->text, key->length);
        if (key->kind != MC_PICKLE_INT)
            return walk_error(w, "%s: below \"%.*s\": a key that is neither text nor a number",
                              w->bytes->path, (int)(w->length < 200 ? w->length : 200), w->name);
        number = key->number;
    }
    int length = snprintf(digits, sizeof digits, "%lld", (long long)number);
    return append_key(w, digits, (size_t)length);
}

static bool has_tensors(walk *w, const mc_pickle_value *v, int depth);

static bool walk_value(walk *w, const mc_pickle_value *v, int depth)
{
    if (!count_visit(w, depth)) return false;
    if (v->kind == MC_PICKLE_TENSOR) return add_tensor(w, v->tensor);
    size_t step = v->kind == MC_PICKLE_DICT ? 2 : 1, length = w->length;
    for (size_t i = step - 1; i < v->node->count; i += step) {
        const mc_pickle_value *item = &v->node->items[i];
        if (!count_visit(w, depth)) return false;
        if (!holds_values(item)) continue;
        /* Keys of settings may be of any type; only keys above tensors must be names. */
        bool deeper = item->kind == MC_PICKLE_TENSOR || has_tensors(w, item, depth + 1);
        if (mc_error_is_set(w->err)) return false;
        if (deeper && (!append_item_key(w, v, i) || !walk_value(w, item, depth + 1))) return false;
        w->length = length;
    }
    return true;
}

static bool has_tensors(walk *w, const mc_pickle_value *v, int depth)
{
    if (!count_visit(w, depth)) return false;
    if (v->kind == MC_PICKLE_TENSOR) return true;
    size_t step = v->kind == MC_PICKLE_DICT ? 2 : 1;
    for (size_t i = step - 1; i < v->node->count; i += step)
        if (holds_values(&v->node->items[i]) && has_tensors(w, &v->node->items[i], depth + 1))
            return true;
    return false;
}

/* The dict under the first of the usual keys for weights in training checkpoints; NULL if none
 * holds tensors. */
static const mc_pickle_value *find_part(walk *w, const mc_pickle_value *root, const char **part)
{
    static const char *const keys[] = {"state_dict", "model_state_dict", "model",
                                       "module",     "model_state",      "net",
                                       "network",    "weights",          NULL};
    if (root->kind != MC_PICKLE_DICT) return NULL;
    for (const char *const *key = keys; *key; key++)
        for (size_t i = 0; i < root->node->count; i += 2) {
            const mc_pickle_value *name = &root->node->items[i], *value = name + 1;
            *part = *key;
            if (name->kind == MC_PICKLE_TEXT && name->length == strlen(*key) &&
                memcmp(name->text, *key, name->length) == 0 && value->kind == MC_PICKLE_DICT &&
                has_tensors(w, value, 1))
                return value;
        }
    return NULL;
}

/* Counts the tensors below a value. */
static bool count_tensors(walk *w, const mc_pickle_value *v, bool fill)
{
    w->fill = fill;
    w->count = w->text = w->dims = w->length = 0;
    return !holds_values(v) || walk_value(w, v, 0);
}

static bool allocate(walk *w)
{
    mc_tensor_table *table = w->table;
    uint64_t bytes = (uint64_t)w->count * sizeof *table->entries + w->text +
                     (uint64_t)w->dims * sizeof *table->shapes;
    if (bytes / TABLE_TIMES > w->bytes->size + (1 << 12))
        return walk_error(w, "%s: %zu tensors are named in a file of %llu bytes", w->bytes->path,
                          w->count, (unsigned long long)w->bytes->size);
    table->entries = mc_calloc(w->count, sizeof *table->entries);
    table->text = mc_malloc(w->text);
    table->shapes = mc_calloc(w->dims, sizeof *table->shapes);
    if (table->entries && table->text && table->shapes) return true;
    mc_error_set(w->err, MC_ERR_NOMEM, "%s: out of memory for its tensors' names", w->bytes->path);
    return false;
}

static bool make_table(walk *w, const mc_pickle_value *root)
{
    const mc_pickle_value *inner;
    if (!count_tensors(w, root, false)) return false;
    size_t all = w->count;
    for (int i = 0; i < PARTS_MAX; i++) {
        const char *part;
        if (!(inner = find_part(w, root, &part))) break;
        w->table->part = part;
        root = inner;
    }
    if (mc_error_is_set(w->err) || !count_tensors(w, root, false)) return false;
    w->table->left_out = all - w->count;
    if (!allocate(w) || !count_tensors(w, root, true)) return false;
    sort_parts(w->table);
    return mc_tensor_table_sort(w->err, w->table) == MC_OK;
}

mc_status mc_torch_table(mc_error *err, mc_tensor_table *table, const mc_pickle_value *root,
                         const mc_torch_bytes *bytes, size_t work)
{
    walk *w = mc_calloc(1, sizeof *w);
    if (!w)
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its tensors' names",
                            bytes->path);
    w->err = err;
    w->bytes = bytes;
    w->table = table;
    w->visits_max = work / 2 < SIZE_MAX / 16 ? 8 * work + 1024 : SIZE_MAX;
    make_table(w, root);
    mc_free(w);
    return err->status;
}
