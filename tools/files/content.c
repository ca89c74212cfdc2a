#include "tools/files/content.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_ROOM = 4096, PIECE = 1 << 15, PLACES = 64 };

static const uint64_t START = 0xcbf29ce484222325u;

static uint64_t add(uint64_t hash, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return hash;
}

/* All of a file of at most PLACES pieces, else that many pieces, from the first to the last. False:
 * it cannot be read. */
static bool add_file(uint64_t *hash, const char *path, int64_t size)
{
    FILE *file = fopen(path, "rbe");
    char *piece = file ? malloc(PIECE) : NULL;
    int64_t pieces = (size + PIECE - 1) / PIECE, taken = pieces < PLACES ? pieces : PLACES;
    bool good = piece;
    *hash = add(*hash, &size, sizeof size);
    for (int64_t i = 0; good && i < taken; i++) {
        int64_t at = taken < pieces ? (size - PIECE) / (PLACES - 1) * i : i * PIECE;
        good = fseeko(file, (off_t)at, SEEK_SET) == 0;
        size_t got = good ? fread(piece, 1, PIECE, file) : 0;
        good = good && got > 0;
        *hash = add(*hash, piece, got);
    }
    free(piece);
    if (file) fclose(file);
    return good;
}

static int is_model_file(const struct dirent *entry)
{
    static const char *const endings[] = {".json", ".safetensors", ".bin", ".pt", ".txt", ".model"};
    size_t length = strlen(entry->d_name);
    if (entry->d_name[0] == '.') return 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i]);
        if (length > n && strcmp(entry->d_name + length - n, endings[i]) == 0) return 1;
    }
    return 0;
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* How many files were added; -1: one cannot be read. */
static int add_folder(uint64_t *hash, const char *folder)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, is_model_file, compare_names), added = 0;
    for (int i = 0; i < count; i++) {
        char path[PATH_ROOM];
        struct stat info;
        int length = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        bool file = length < PATH_ROOM && stat(path, &info) == 0 && S_ISREG(info.st_mode);
        if (file && added >= 0) {
            *hash = add(*hash, entries[i]->d_name, strlen(entries[i]->d_name) + 1);
            added = !info.st_size || add_file(hash, path, info.st_size) ? added + 1 : -1;
        }
        free(entries[i]);
    }
    free(entries);
    return added;
}

content content_of(mc_context *ctx, const char *identifier, const char *revision)
{
    char path[PATH_ROOM];
    struct stat info;
    content out = {""};
    uint64_t hash = START;
    mc_hub_options cached = {.revision = revision};
    if (!identifier || mc_failed(ctx)) return out;
    snprintf(path, sizeof path, "%s", identifier);
    if (stat(path, &info) != 0 && !mc_hub_cached(identifier, &cached, path, sizeof path))
        return out;
    if (stat(path, &info) != 0) return out;
    bool found =
        S_ISDIR(info.st_mode) ? add_folder(&hash, path) > 0 : add_file(&hash, path, info.st_size);
    if (found) snprintf(out.text, sizeof out.text, "%016" PRIx64, hash);
    return out;
}
