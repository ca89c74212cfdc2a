#include "tokenizers/cpm/jieba_internal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

#define NO_TABLE "%s: not a jieba table that this version can use: "

/* Four sums in turn, so that the processor need not wait for one product to begin the next. */
uint64_t mc_jieba_checksum(const void *data, size_t size)
{
    const uint64_t prime = UINT64_C(0x9E3779B97F4A7C15);
    const uint8_t *p = data;
    uint64_t sums[4] = {1, 2, 3, 4}, words[4] = {0};
    for (; size; size -= size < sizeof words ? size : sizeof words, p += sizeof words) {
        if (size < sizeof words) memset(words, 0, sizeof words);
        memcpy(words, p, size < sizeof words ? size : sizeof words);
        for (int i = 0; i < 4; i++) {
            sums[i] = (sums[i] ^ words[i]) * prime;
            sums[i] ^= sums[i] >> 29;
        }
    }
    uint64_t all = 0;
    for (int i = 0; i < 4; i++) all = (all ^ sums[i]) * prime;
    return all ^ all >> 32;
}

static mc_status check_header(mc_error *err, const char *path, const mc_jieba_header *h,
                              size_t size)
{
    if (memcmp(h->magic, MC_JIEBA_MAGIC, sizeof h->magic) != 0)
        return mc_error_set(err, MC_ERR_FORMAT, NO_TABLE "it begins otherwise", path);
    if (h->byte_order != 0x01020304)
        return mc_error_set(err, MC_ERR_FORMAT, NO_TABLE "it has another byte order", path);
    if (h->version != MC_JIEBA_VERSION)
        return mc_error_set(err, MC_ERR_FORMAT, NO_TABLE "version %u, expected %d", path,
                            h->version, MC_JIEBA_VERSION);
    uint64_t expected = sizeof *h + (uint64_t)h->log_count * sizeof(double) +
                        (uint64_t)h->char_count * MC_JIEBA_STATES * sizeof(double) +
                        (uint64_t)h->trie_size * (sizeof(mc_trie_node) + sizeof(int32_t));
    if (h->size != size || expected != size)
        return mc_error_set(err, MC_ERR_FORMAT,
                            NO_TABLE "%zu bytes, its header names %llu and parts of %llu", path,
                            size, (unsigned long long)h->size, (unsigned long long)expected);
    if (!h->trie_size || h->trie_size % 256 || !h->longest || h->longest > MC_JIEBA_WORD_MAX)
        return mc_error_set(err, MC_ERR_FORMAT,
                            NO_TABLE "a trie of %u slots, words of up to %u bytes", path,
                            h->trie_size, h->longest);
    return MC_OK;
}

/* That no step through the trie, and no value, leads out of the table. */
static mc_status check_trie(mc_error *err, const char *path, const mc_jieba *jieba)
{
    const mc_trie *trie = &jieba->trie;
    uint32_t base = 0;
    int32_t highest = -1, lowest = 0;
    for (size_t i = 0; i < trie->size; i++) {
        base = trie->nodes[i].base > base ? trie->nodes[i].base : base;
        highest = trie->values[i] > highest ? trie->values[i] : highest;
        lowest = trie->values[i] < lowest ? trie->values[i] : lowest;
    }
    if (base < trie->size && lowest >= -1 && highest < (int64_t)jieba->header.log_count)
        return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        NO_TABLE "its trie leads to slot %u of %zu and values %d to %d of %u", path,
                        base, trie->size, lowest, highest, jieba->header.log_count);
}

mc_status mc_jieba_read(mc_error *err, const char *path, const void *data, size_t size,
                        mc_jieba *jieba)
{
    mc_jieba_header *h = &jieba->header;
    const uint8_t *at = data;
    if (size < sizeof *h)
        return mc_error_set(err, MC_ERR_FORMAT, NO_TABLE "%zu bytes, its header alone has %zu",
                            path, size, sizeof *h);
    memcpy(h, data, sizeof *h);
    if (check_header(err, path, h, size)) return err->status;
    size_t summed = offsetof(mc_jieba_header, checksum) + sizeof h->checksum;
    if (mc_jieba_checksum(at + summed, size - summed) != h->checksum)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: damaged: its checksum differs", path);
    at += sizeof *h;
    jieba->logs = (const double *)at;
    at += h->log_count * sizeof *jieba->logs;
    jieba->emissions = (const double(*)[MC_JIEBA_STATES])at;
    at += h->char_count * sizeof *jieba->emissions;
    jieba->trie =
        (mc_trie){.nodes = (mc_trie_node *)(uintptr_t)at,
                  .values = (int32_t *)(uintptr_t)(at + h->trie_size * sizeof(mc_trie_node)),
                  .size = h->trie_size};
    return check_trie(err, path, jieba);
}

void mc_jieba_release(mc_jieba *jieba)
{
    mc_free(jieba->image);
    *jieba = (mc_jieba){0};
}

/* ---- Finding it ------------------------------------------------------------------------------ */

static mc_status open_table(mc_error *err, mc_jieba *jieba, const char *path)
{
    enum { TABLE_MAX = 1 << 30 };
    size_t size; /* its checksum reads all of it, so that a mapping would save nothing */
    jieba->image = mc_file_read(err, path, TABLE_MAX, &size);
    return jieba->image ? mc_jieba_read(err, path, jieba->image, size, jieba) : err->status;
}

static mc_status build_table(mc_error *err, mc_jieba *jieba, const char *folder)
{
    size_t size;
    jieba->image = mc_jieba_build_folder(err, folder, &size);
    return jieba->image ? mc_jieba_read(err, folder, jieba->image, size, jieba) : err->status;
}

mc_status mc_jieba_open_path(mc_error *err, mc_jieba *jieba, const char *path)
{
    char table[MC_PATH_MAX], dict[MC_PATH_MAX];
    *jieba = (mc_jieba){0};
    if (mc_path_join(err, table, path, MC_JIEBA_FILE) || mc_path_join(err, dict, path, "dict.txt"))
        return err->status;
    if (!mc_path_is_folder(path))
        open_table(err, jieba, path);
    else if (mc_path_is_file(table))
        open_table(err, jieba, table);
    else if (mc_path_is_file(dict))
        build_table(err, jieba, path);
    else
        mc_error_set(err, MC_ERR_NOT_FOUND,
                     "%s: holds neither " MC_JIEBA_FILE " nor jieba's dict.txt", path);
    if (mc_error_is_set(err)) mc_jieba_release(jieba);
    return err->status;
}

/* Cuts a path to the folder that it names a file of; false if there is none. */
static bool to_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash) slash[slash == path] = '\0';
    return slash != NULL;
}

/* The folder of the shared library that this code is in. (Of a program the loader may know a bare
 * name only, which is none.) */
static bool library_folder(char folder[MC_PATH_MAX])
{
    Dl_info info;
    if (!dladdr(MC_JIEBA_MAGIC, &info) || !info.dli_fname) return false;
    size_t length = strlen(info.dli_fname);
    if (length >= MC_PATH_MAX) return false;
    memcpy(folder, info.dli_fname, length + 1);
    return to_folder(folder);
}

static bool program_folder(char folder[MC_PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", folder, MC_PATH_MAX - 1);
    if (length <= 0) return false;
    folder[length] = '\0';
    return to_folder(folder);
}

/* In an installation the library is in lib/ or the like and the program in bin/, in a build folder
 * both are at the top or one below. */
static bool is_beside(const char *folder, char path[MC_PATH_MAX])
{
    static const char *const places[] = {MC_DATA_FROM_LIBRARY "/" MC_JIEBA_FILE,
                                         "../share/modelcenter/" MC_JIEBA_FILE,
                                         "share/modelcenter/" MC_JIEBA_FILE};
    mc_error ignored = {0}; /* a path that is too long */
    bool found = false;
    for (size_t i = 0; i < sizeof places / sizeof *places && !found; i++)
        found = !mc_path_join(&ignored, path, folder, places[i]) && mc_path_is_file(path);
    mc_error_clear(&ignored);
    return found;
}

mc_status mc_jieba_open(mc_error *err, mc_jieba *jieba)
{
    const char *chosen = getenv("MC_JIEBA_DIR"), *installed = MC_DATA_DIR "/" MC_JIEBA_FILE;
    char library[MC_PATH_MAX] = "", program[MC_PATH_MAX] = "", path[MC_PATH_MAX];
    *jieba = (mc_jieba){0};
    if (chosen && *chosen) {
        mc_jieba_open_path(err, jieba, chosen);
        mc_error_while(err, "opening the dictionary that MC_JIEBA_DIR names");
        return err->status;
    }
    if ((library_folder(library) && is_beside(library, path)) ||
        (program_folder(program) && is_beside(program, path)))
        return mc_jieba_open_path(err, jieba, path);
    if (mc_path_is_file(installed)) return mc_jieba_open_path(err, jieba, installed);
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "there is no jieba dictionary: no share/modelcenter/" MC_JIEBA_FILE
                        " beside %s, nor %s; a build without Debian's python3-jieba has none. "
                        "MC_JIEBA_DIR may name the folder of one, or of Python's jieba",
                        *program ? program : library, installed);
}
