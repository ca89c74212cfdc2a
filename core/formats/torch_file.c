/* PyTorch's two file formats: a zip archive with a pickle and one entry for each storage, and the
 * older stream of pickles followed by the storages (torch/serialization.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/formats/torch_internal.h"

enum { SHOWN = 200 };

/* ---- zip ------------------------------------------------------------------------------------- */

bool mc_torch_is_zip(const uint8_t *data, size_t size)
{
    return size >= 4 && data[0] == 'P' && data[1] == 'K' &&
           ((data[2] == 3 && data[3] == 4) || (data[2] == 5 && data[3] == 6));
}

/* Whether an entry's name is FOLDER/`name`. */
static bool is_record(const mc_zip_entry *e, const char *name)
{
    const char *slash = memchr(e->name, '/', e->length);
    size_t rest = slash ? e->length - (size_t)(slash + 1 - e->name) : 0;
    return slash && rest == strlen(name) && memcmp(slash + 1, name, rest) == 0;
}

/* Finds the archive's only folder and the pickle in it. */
static const mc_zip_entry *find_pickle(mc_error *err, const mc_zip *zip)
{
    const mc_zip_entry *found = NULL;
    for (size_t i = 0; i < zip->count; i++) {
        const mc_zip_entry *e = &zip->entries[i];
        if (is_record(e, "constants.pkl")) {
            mc_error_set(err, MC_ERR_UNSUPPORTED,
                         "%s: a TorchScript archive, which is a program: expected a file of "
                         "torch.save",
                         zip->path);
            return NULL;
        }
        if (!is_record(e, "data.pkl")) continue;
        if (found) {
            mc_error_set(err, MC_ERR_FORMAT, "%s: two pickles: \"%.*s\" and \"%.*s\"", zip->path,
                         SHOWN, found->name, SHOWN, e->name);
            return NULL;
        }
        found = e;
    }
    if (!found)
        mc_error_set(err, MC_ERR_FORMAT,
                     "%s: a zip file without FOLDER/data.pkl: expected one of torch.save",
                     zip->path);
    return found;
}

/* Reads the entry "byteorder", which old files don't have. */
static bool read_byte_order(mc_error *err, mc_torch_bytes *bytes)
{
    char name[512];
    int length =
        snprintf(name, sizeof name, "%.*sbyteorder", (int)bytes->prefix_length, bytes->prefix);
    const mc_zip_entry *e = NULL;
    if (length > 0 && (size_t)length < sizeof name)
        e = mc_zip_find(bytes->zip, name, (size_t)length);
    if (!e || (e->size == 6 && memcmp(e->data, "little", 6) == 0)) return true;
    bytes->big_endian = e->size == 3 && memcmp(e->data, "big", 3) == 0;
    if (!bytes->big_endian)
        mc_error_set(err, MC_ERR_FORMAT, "%s: entry \"byteorder\": expected \"little\" or \"big\"",
                     bytes->path);
    return bytes->big_endian;
}

static mc_status parse_archive(mc_error *err, mc_tensor_table *table, const mc_zip *zip,
                               size_t size)
{
    char where[MC_PATH_MAX + SHOWN + 8];
    mc_pickle pickle;
    mc_pickle_value root;
    const mc_zip_entry *e = find_pickle(err, zip);
    if (!e) return err->status;
    mc_torch_bytes bytes = {.path = zip->path, .size = size, .zip = zip, .prefix = e->name};
    bytes.prefix_length = e->length - strlen("data.pkl");
    if (mc_zip_check(err, zip, e) || !read_byte_order(err, &bytes)) return err->status;
    snprintf(where, sizeof where, "%s: entry \"%.*s\"", zip->path,
             (int)(e->length < SHOWN ? e->length : SHOWN), e->name);
    mc_pickle_init(&pickle, err, where, e->data, e->size);
    mc_status status = mc_pickle_run(&pickle, &root);
    if (!status && pickle.at != e->size)
        status = mc_error_set(err, MC_ERR_FORMAT, "%s: %zu bytes after the pickle", where,
                              e->size - pickle.at);
    if (!status) status = mc_torch_table(err, table, &root, &bytes, e->size);
    mc_pickle_release(&pickle);
    return status;
}

mc_status mc_torch_zip_parse(mc_error *err, mc_tensor_table *table, const uint8_t *data,
                             size_t size, const char *path)
{
    mc_zip zip;
    *table = (mc_tensor_table){0};
    mc_status status = mc_zip_init(err, &zip, data, size, path);
    if (!status) status = parse_archive(err, table, &zip, size);
    mc_zip_release(&zip);
    if (status) mc_tensor_table_release(table);
    return status;
}

/* ---- the older stream ------------------------------------------------------------------------ */

/* LONG1 of 0x1950a86a20f9469cfc6c, the stream's magic number. */
static const uint8_t magic[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
enum { MAGIC_WITHIN = 16 }; /* bytes before the magic number: the protocol, a frame */

/* Accepts any pickle, so that the error for another program's pickle can say what it is. */
bool mc_torch_is_legacy(const uint8_t *data, size_t size)
{
    return size >= 2 && data[0] == 0x80 && data[1] >= 2 && data[1] <= 5;
}

static bool has_magic(const uint8_t *data, size_t size)
{
    for (size_t at = 0; at < MAGIC_WITHIN && at + sizeof magic <= size; at++)
        if (memcmp(data + at, magic, sizeof magic) == 0) return true;
    return false;
}

static int compare_keys(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int compare_blocks(const void *a, const void *b)
{
    const mc_torch_storage *x = ((const mc_torch_block *)a)->storage;
    const mc_torch_storage *y = ((const mc_torch_block *)b)->storage;
    return compare_keys(x->key, x->key_length, y->key, y->key_length);
}

const mc_torch_block *mc_torch_block_find(const mc_torch_block *blocks, size_t count,
                                          const char *key, size_t length)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const mc_torch_storage *s = blocks[middle].storage;
        int order = compare_keys(s->key, s->key_length, key, length);
        if (order == 0) return &blocks[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The storages named in the pickle, each once. NULL after an error. */
static mc_torch_block *list_blocks(const mc_pickle *p, size_t *count)
{
    char shown[MC_PICKLE_SHOWN + 1];
    size_t kept = 0;
    mc_torch_block *blocks = mc_calloc(p->storage_count, sizeof *blocks);
    if (!blocks) {
        mc_error_set(p->err, MC_ERR_NOMEM, "%s: out of memory for its storages", p->where);
        return NULL;
    }
    *count = 0;
    for (mc_torch_storage *s = p->storages; s; s = s->next) blocks[(*count)++].storage = s;
    qsort(blocks, *count, sizeof *blocks, compare_blocks);
    for (size_t i = 0; i < *count; i++) {
        const mc_torch_storage *s = blocks[i].storage, *last = kept ? blocks[kept - 1].storage : s;
        bool same = kept && compare_blocks(&blocks[kept - 1], &blocks[i]) == 0;
        if (same && (s->dtype != last->dtype || s->whole != last->whole)) {
            mc_error_set(p->err, MC_ERR_FORMAT,
                         "%s: storage \"%s\" has %lld elements of %s and %lld of %s", p->where,
                         mc_pickle_show(shown, s->key, s->key_length), (long long)s->whole,
                         s->dtype->name, (long long)last->whole, last->dtype->name);
            mc_free(blocks);
            return NULL;
        }
        if (!same) blocks[kept++] = blocks[i];
    }
    *count = kept;
    return blocks;
}

/* Finds the bytes of the next block of the file, by its key: a count of elements, then the
 * elements. */
static bool place_block(mc_pickle *p, mc_torch_block *blocks, size_t count,
                        const mc_pickle_value *key)
{
    char shown[MC_PICKLE_SHOWN + 1];
    uint64_t elements = 0;
    if (key->kind != MC_PICKLE_TEXT)
        return mc_pickle_false(
            mc_error_set(p->err, MC_ERR_FORMAT, "%s: a storage whose key is no text", p->where));
    mc_pickle_show(shown, key->text, key->length);
    mc_torch_block *block =
        (mc_torch_block *)(uintptr_t)mc_torch_block_find(blocks, count, key->text, key->length);
    if (!block || block->data)
        return mc_pickle_false(mc_error_set(p->err, MC_ERR_FORMAT, "%s: storage \"%s\" %s",
                                            p->where, shown,
                                            block ? "comes twice" : "is of no tensor"));
    size_t left = p->size - p->at, element = (size_t)block->storage->dtype->bits / 8;
    for (int i = 7; i >= 0 && left >= 8; i--) elements = elements << 8 | p->data[p->at + (size_t)i];
    if (left < 8 || elements != (uint64_t)block->storage->whole || elements > (left - 8) / element)
        return mc_pickle_false(mc_error_set(p->err, MC_ERR_FORMAT,
                                            "%s: storage \"%s\": %llu elements at byte %zu, with "
                                            "%zu bytes left: expected %lld of %s",
                                            p->where, shown, (unsigned long long)elements, p->at,
                                            left, (long long)block->storage->whole,
                                            block->storage->dtype->name));
    block->data = p->data + p->at + 8;
    p->at += 8 + (size_t)elements * element;
    return true;
}

/* Reads the list of keys and finds the storages after it. */
static bool place_blocks(mc_pickle *p, mc_torch_block *blocks, size_t count)
{
    mc_pickle_value keys;
    if (mc_pickle_run(p, &keys)) return false;
    if (keys.kind != MC_PICKLE_LIST)
        return mc_pickle_false(mc_error_set(
            p->err, MC_ERR_FORMAT, "%s: no list of storages at byte %zu", p->where, p->at));
    for (size_t i = 0; i < keys.node->count; i++)
        if (!place_block(p, blocks, count, &keys.node->items[i])) return false;
    return p->at == p->size || mc_pickle_false(mc_error_set(p->err, MC_ERR_FORMAT,
                                                            "%s: %zu bytes after its last storage",
                                                            p->where, p->size - p->at));
}

static bool read_head(mc_pickle *p)
{
    mc_pickle_value magic_number, version, system;
    if (!has_magic(p->data, p->size))
        return mc_pickle_false(mc_error_set(
            p->err, MC_ERR_FORMAT,
            "%s: a pickle, but none of torch.save: expected its magic number", p->where));
    if (mc_pickle_run(p, &magic_number) || mc_pickle_run(p, &version) || mc_pickle_run(p, &system))
        return false;
    return (version.kind == MC_PICKLE_INT && version.number == 1001) ||
           mc_pickle_false(mc_error_set(p->err, MC_ERR_UNSUPPORTED,
                                        "%s: PyTorch's legacy format of another version than 1001",
                                        p->where));
}

mc_status mc_torch_legacy_parse(mc_error *err, mc_tensor_table *table, const uint8_t *data,
                                size_t size, const char *path)
{
    mc_pickle pickle;
    mc_pickle_value root;
    mc_torch_bytes bytes = {.path = path, .size = size}; /* little-endian on every machine */
    mc_torch_block *blocks = NULL;
    *table = (mc_tensor_table){0};
    mc_pickle_init(&pickle, err, path, data, size);
    bool good = read_head(&pickle) && mc_pickle_run(&pickle, &root) == MC_OK;
    size_t work = pickle.at;
    if (good) blocks = list_blocks(&pickle, &bytes.block_count);
    bytes.blocks = blocks;
    if (blocks && place_blocks(&pickle, blocks, bytes.block_count))
        mc_torch_table(err, table, &root, &bytes, work);
    mc_free(blocks);
    mc_pickle_release(&pickle);
    if (err->status) mc_tensor_table_release(table);
    return err->status;
}
