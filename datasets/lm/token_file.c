/* Token files: paths and patterns to shards, and shards as one run of tokens. */
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include "core/base/paths_internal.h"
#include "datasets/lm/token_file_internal.h"
#include "datasets/token_files.h"

void mc_token_file_ref(mc_token_file *file) { file->references++; }

void mc_token_file_unref(mc_token_file *file)
{
    if (!file || --file->references) return;
    for (size_t i = 0; i < file->shard_count; i++) mc_token_shard_release(&file->shards[i]);
    mc_free(file->shards);
    mc_free(file);
}

static void release_owner(void *object) { mc_token_file_unref(object); }

void mc_token_file_free(mc_token_file *file)
{
    if (!file) return;
    mc_disown(&file->owned);
    mc_token_file_unref(file);
}

/* ---- opening ---- */

mc_token_file *mc_token_file_new(mc_context *ctx)
{
    mc_token_file *file = mc_new_owned(ctx, sizeof *file, "a token file", release_owner);
    if (!file) return NULL;
    file->ctx = ctx;
    file->references = 1;
    return file;
}

bool mc_token_file_reserve(mc_token_file *file)
{
    if (file->shard_count < INT_MAX &&
        mc_grow(&file->shards, &file->shard_capacity, file->shard_count, sizeof *file->shards))
        return true;
    mc_fail_nomem(file->ctx, "the shards of a token file");
    return false;
}

void mc_token_file_add(mc_token_file *file, const mc_token_shard *shard)
{
    mc_token_shard *at = &file->shards[file->shard_count++];
    *at = *shard;
    at->first = file->count;
    file->count += at->count;
}

static bool add_shard(mc_token_file *file, const char *path)
{
    mc_token_shard shard;
    if (!mc_token_file_reserve(file) || mc_token_shard_open(&file->ctx->error, path, &shard))
        return false;
    mc_token_file_add(file, &shard);
    return true;
}

/* The .bin of an .idx; false for other paths. */
static bool bin_of_index(const char *path, char bin[MC_PATH_MAX])
{
    size_t length = strlen(path);
    if (length < 5 || length >= MC_PATH_MAX || strcmp(path + length - 4, ".idx") != 0) return false;
    memcpy(bin, path, length + 1);
    memcpy(bin + length - 4, ".bin", 4);
    return true;
}

/* Whether a match is an .idx whose .bin is matched as well, and so is opened with that. */
static bool comes_with_bin(const char *pattern, const char *path)
{
    char bin[MC_PATH_MAX];
    return bin_of_index(path, bin) && mc_path_is_file(bin) &&
           fnmatch(pattern, bin, FNM_PATHNAME | FNM_PERIOD) == 0;
}

/* The same where a shell has expanded the pattern. */
static bool is_listed_with_bin(const char *const *paths, int count, const char *path)
{
    char bin[MC_PATH_MAX];
    if (!path || !bin_of_index(path, bin)) return false;
    for (int i = 0; i < count; i++)
        if (paths[i] && strcmp(paths[i], bin) == 0) return true;
    return false;
}

/* Adds what a pattern matches. */
static bool add_matches(mc_token_file *file, const char *pattern)
{
    mc_paths found = {0};
    bool good = mc_paths_add(&file->ctx->error, &found, pattern);
    for (size_t i = 0; good && i < found.count; i++)
        if (!comes_with_bin(pattern, found.path[i])) good = add_shard(file, found.path[i]);
    mc_paths_release(&found);
    return good;
}

static bool add_pattern(mc_token_file *file, const char *pattern)
{
    if (!pattern || !*pattern) {
        mc_fail(file->ctx, MC_ERR_ARGUMENT, "a token file needs a path");
        return false;
    }
    bool plain = strpbrk(pattern, "*?[") == NULL || mc_path_is_file(pattern);
    return plain ? add_shard(file, pattern) : add_matches(file, pattern);
}

mc_token_file *mc_token_file_open_list(mc_context *ctx, const char *const *patterns, int count)
{
    if (mc_failed(ctx)) return NULL;
    if (!patterns || count < 1) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "a token file needs a path");
        return NULL;
    }
    mc_token_file *file = mc_token_file_new(ctx);
    bool good = file != NULL;
    for (int i = 0; good && i < count; i++)
        if (!is_listed_with_bin(patterns, count, patterns[i]))
            good = add_pattern(file, patterns[i]);
    if (good) return file;
    mc_token_file_free(file);
    return NULL;
}

mc_token_file *mc_token_file_open(mc_context *ctx, const char *pattern)
{
    return mc_token_file_open_list(ctx, &pattern, 1);
}

/* ---- what there is ---- */

static const mc_token_shard *find_shard(const mc_token_file *file, int shard)
{
    bool there = file && shard >= 0 && (size_t)shard < file->shard_count;
    return there ? &file->shards[shard] : NULL;
}

int64_t mc_token_file_count(const mc_token_file *file) { return file ? file->count : 0; }
int mc_token_file_shards(const mc_token_file *file) { return file ? (int)file->shard_count : 0; }

const char *mc_token_file_path(const mc_token_file *file, int shard)
{
    const mc_token_shard *s = find_shard(file, shard);
    return s ? s->path : NULL;
}

mc_token_format mc_token_file_format(const mc_token_file *file, int shard)
{
    const mc_token_shard *s = find_shard(file, shard);
    return s ? s->format : MC_TOKENS_DEFAULT;
}

int64_t mc_token_file_shard_count(const mc_token_file *file, int shard)
{
    const mc_token_shard *s = find_shard(file, shard);
    return s ? s->count : 0;
}

int64_t mc_token_file_documents(const mc_token_file *file)
{
    int64_t documents = 0;
    for (size_t i = 0; file && i < file->shard_count; i++) {
        if (file->shards[i].documents < 0) return -1;
        documents += file->shards[i].documents;
    }
    return documents;
}

bool mc_token_file_document(const mc_token_file *file, int64_t i, int64_t *first, int64_t *count)
{
    if (i < 0 || i >= mc_token_file_documents(file)) return false;
    const mc_token_shard *shard = file->shards;
    for (; i >= shard->documents; shard++) i -= shard->documents;
    int64_t begin, end;
    mc_error *err = &file->ctx->error;
    if (mc_failed(file->ctx) || mc_token_shard_document(err, shard, i, &begin) ||
        mc_token_shard_document(err, shard, i + 1, &end))
        return false;
    *first = shard->first + begin;
    *count = end - begin;
    return true;
}

/* ---- tokens ---- */

size_t mc_token_file_find(const mc_token_file *file, int64_t i)
{
    size_t low = 0, high = file->shard_count; /* in [low, high) */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (file->shards[middle].first <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

mc_status mc_token_file_read(const mc_token_file *file, int64_t first, int64_t count, int32_t *out)
{
    return mc_token_file_read_within(file, first, count, (int64_t)INT32_MAX + 1, out);
}

mc_status mc_token_file_read_within(const mc_token_file *file, int64_t first, int64_t count,
                                    int64_t vocabulary, int32_t *out)
{
    if (!file) return MC_ERR_ARGUMENT;
    mc_context *ctx = file->ctx;
    if (mc_failed(ctx) || (count && !mc_given(ctx, out))) return mc_error_status(ctx);
    if (first < 0 || count < 0 || first > file->count || count > file->count - first)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "%s: %" PRId64 " tokens from %" PRId64 " on: there are %" PRId64,
                       file->shards[0].path, count, first, file->count);
    for (size_t s = mc_token_file_find(file, first); count; s++) {
        const mc_token_shard *shard = &file->shards[s];
        int64_t begin = first - shard->first, left = shard->count - begin;
        int64_t some = count < left ? count : left;
        mc_status status = mc_token_shard_read(&ctx->error, shard, begin, some, vocabulary, out);
        if (status) return status;
        first += some;
        count -= some;
        out += some;
    }
    return MC_OK;
}

int32_t mc_token_file_largest(const mc_token_file *file)
{
    int32_t tokens[4096], largest = -1;
    int64_t most = sizeof tokens / sizeof *tokens;
    for (int64_t at = 0; file && at < file->count; at += most) {
        int64_t some = file->count - at < most ? file->count - at : most;
        if (mc_token_file_read(file, at, some, tokens)) return -1;
        for (int64_t i = 0; i < some; i++)
            if (tokens[i] > largest) largest = tokens[i];
    }
    return largest;
}
