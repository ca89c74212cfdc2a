/* One token file: which format it is, its header, and its tokens. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "datasets/lm/token_file_internal.h"

size_t mc_token_width(mc_token_type type)
{
    switch (type) {
    case MC_TOKEN_U8:
    case MC_TOKEN_I8: return 1;
    case MC_TOKEN_I16:
    case MC_TOKEN_U16: return 2;
    case MC_TOKEN_I32:
    case MC_TOKEN_U32: return 4;
    case MC_TOKEN_I64: return 8;
    default: return 0;
    }
}

/* ---- llm.c ---- */

static int32_t header_word(const uint8_t *file, int i)
{
    int32_t word;
    memcpy(&word, file + 4 * i, sizeof word);
    return word;
}

static bool has_llmc_magic(const uint8_t *file, size_t size)
{
    if (size < sizeof(int32_t)) return false;
    int32_t magic = header_word(file, 0);
    return magic == MC_LLMC_MAGIC || magic == MC_LLMC_MAGIC_U32;
}

/* What a file that holds no tokens seems to be instead. */
static mc_status not_tokens(mc_error *err, const char *path, const uint8_t *file, size_t size)
{
    static const struct {
        int32_t magic;
        const char *what;
    } known[] = {
        {20240522, "an evaluation set of llm.c"},
        {20240326, "a model of llm.c"},
        {20240327, "a debug state of llm.c"},
        {20240527, "an optimizer state of llm.c"},
    };
    if (!size) return mc_error_set(err, MC_ERR_FORMAT, "%s: an empty file, no tokens", path);
    int32_t magic = size < sizeof magic ? 0 : header_word(file, 0);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].magic == magic)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: %s (magic %d), expected tokens (magic %d)",
                                path, known[i].what, magic, MC_LLMC_MAGIC);
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: not a token file: wrong magic %d, expected %d or %d (llm.c), and no "
                        ".idx lies beside it (Megatron)",
                        path, magic, MC_LLMC_MAGIC, MC_LLMC_MAGIC_U32);
}

mc_status mc_llmc_read(mc_error *err, const char *path, const uint8_t *file, size_t size,
                       mc_token_shard *shard)
{
    if (!has_llmc_magic(file, size)) return not_tokens(err, path, file, size);
    if (size < MC_LLMC_HEADER)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: %zu bytes, the header alone has %d", path,
                            size, MC_LLMC_HEADER);
    bool wide = header_word(file, 0) == MC_LLMC_MAGIC_U32;
    int version = header_word(file, 1), expected = wide ? MC_LLMC_VERSION_U32 : MC_LLMC_VERSION;
    int32_t count = header_word(file, 2);
    if (version != expected)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: version %d, expected %d", path, version,
                            expected);
    if (count < 0)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: the header says %" PRIu32
                            " tokens; a shard holds at most %d: split it",
                            path, (uint32_t)count, INT32_MAX);
    shard->format = MC_TOKENS_LLMC;
    shard->documents = -1;
    shard->type = wide ? MC_TOKEN_U32 : MC_TOKEN_U16;
    shard->data = file + MC_LLMC_HEADER;
    shard->count = count;
    uint64_t width = mc_token_width(shard->type), bytes = MC_LLMC_HEADER + width * (uint64_t)count;
    uint64_t most = MC_LLMC_HEADER + width * INT32_MAX;
    if (bytes != size)
        return mc_error_set(
            err, MC_ERR_FORMAT,
            "%s: the header says %d tokens, which is %" PRIu64 " bytes in all; the file has %zu%s",
            path, count, bytes, size,
            size > most ? ", more than the 2^31 - 1 tokens of a shard: split it" : "");
    if (!count) return mc_error_set(err, MC_ERR_FORMAT, "%s: an empty shard, no tokens", path);
    return MC_OK;
}

/* ---- opening ---- */

static bool ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), tail = strlen(ending);
    return length > tail && strcmp(path + length - tail, ending) == 0;
}

/* `path` with its last `drop` bytes replaced. False if that is too long to be a path. */
static bool with_ending(char out[MC_PATH_MAX], const char *path, size_t drop, const char *ending)
{
    int written = snprintf(out, MC_PATH_MAX, "%.*s%s", (int)(strlen(path) - drop), path, ending);
    return written >= 0 && written < MC_PATH_MAX;
}

/* Opens the pair, whose .bin may be mapped already. */
static mc_status open_megatron(mc_error *err, const char *bin, const char *idx,
                               mc_token_shard *shard)
{
    mc_status status = MC_OK;
    if (!shard->map.data) status = mc_file_map_init(err, &shard->map, bin);
    if (!status) status = mc_file_map_init(err, &shard->index_map, idx);
    if (!status && shard->index_map.size) /* its stretches are read when they are needed */
        (void)madvise((void *)shard->index_map.data, shard->index_map.size, MADV_RANDOM);
    if (!status)
        status = mc_token_index_init(err, idx, shard->index_map.data, shard->index_map.size,
                                     shard->map.size, &shard->index);
    if (!status && !shard->map.size)
        status = mc_error_set(err, MC_ERR_FORMAT, "%s: an empty shard, no tokens", bin);
    if (status) return status;
    shard->format = MC_TOKENS_MEGATRON;
    shard->documents = shard->index.documents;
    shard->type = shard->index.type;
    shard->data = shard->map.data;
    shard->count = (int64_t)(shard->map.size / mc_token_width(shard->type));
    shard->path = mc_strdup(bin);
    return shard->path ? MC_OK : mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", bin);
}

/* The .bin of an .idx that was named itself. */
static mc_status open_index(mc_error *err, const char *idx, mc_token_shard *shard)
{
    char bin[MC_PATH_MAX];
    mc_file_map_release(&shard->map);
    if (!ends_in(idx, ".idx") || !with_ending(bin, idx, 4, ".bin"))
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: an index of Megatron's, whose name should end in .idx", idx);
    return open_megatron(err, bin, idx, shard);
}

/* Finds the format by the content. llm.c's magic and version together are 8 bytes, which no file
 * of bare tokens begins with by chance. */
static mc_status open_file(mc_error *err, const char *path, mc_token_shard *shard)
{
    char idx[MC_PATH_MAX];
    mc_status status = mc_file_map_init(err, &shard->map, path);
    if (status) return status;
    mc_token_shard_advise(shard, true); /* only the header is read here */
    const uint8_t *file = shard->map.data;
    size_t size = shard->map.size;
    if (mc_token_index_is(file, size)) return open_index(err, path, shard);
    bool paired =
        ends_in(path, ".bin") && with_ending(idx, path, 4, ".idx") && mc_path_is_file(idx);
    bool llmc =
        has_llmc_magic(file, size) && size >= 8 &&
        (header_word(file, 1) == MC_LLMC_VERSION || header_word(file, 1) == MC_LLMC_VERSION_U32);
    if (paired && !llmc) return open_megatron(err, path, idx, shard);
    status = mc_llmc_read(err, path, file, size, shard);
    if (status) return status;
    shard->path = mc_strdup(path);
    return shard->path ? MC_OK : mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", path);
}

/* Whether all that was read of its files was there. */
static mc_status check_maps(mc_error *err, const mc_token_shard *shard)
{
    mc_file_check_bytes(err, shard->map.data);
    return mc_file_check_bytes(err, shard->index_map.data);
}

mc_status mc_token_shard_open(mc_error *err, const char *path, mc_token_shard *shard)
{
    char bin[MC_PATH_MAX], idx[MC_PATH_MAX];
    *shard = (mc_token_shard){0};
    bool prefix = !mc_path_is_file(path) && with_ending(bin, path, 0, ".bin") &&
                  with_ending(idx, path, 0, ".idx") && mc_path_is_file(bin) && mc_path_is_file(idx);
    mc_status status = prefix ? open_megatron(err, bin, idx, shard) : open_file(err, path, shard);
    mc_token_shard_advise(shard, false);
    status = check_maps(err, shard);
    if (status) mc_token_shard_release(shard);
    return status;
}

void mc_token_shard_release(mc_token_shard *shard)
{
    mc_file_map_release(&shard->map);
    mc_file_map_release(&shard->index_map);
    mc_token_index_release(&shard->index);
    mc_free(shard->own);
    mc_free(shard->begins);
    mc_free(shard->path);
    *shard = (mc_token_shard){0};
}

void mc_token_shard_advise(const mc_token_shard *shard, bool random)
{
    const mc_file_map *map = &shard->map;
    if (map->size) (void)madvise((void *)map->data, map->size, random ? MADV_RANDOM : MADV_NORMAL);
}

void mc_token_need(const uint8_t *bytes, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)bytes % page;
    (void)madvise((void *)(bytes - before), size + before, MADV_WILLNEED);
}

mc_status mc_token_shard_document(mc_error *err, const mc_token_shard *shard, int64_t i,
                                  int64_t *begin)
{
    if (!shard->begins) {
        *begin = 0;
        mc_token_index_document(err, &shard->index, i, begin);
        if (i && !*begin) mc_file_check_whole(err, shard->index_map.data);
        return check_maps(err, shard);
    }
    *begin = shard->begins[i];
    return MC_OK;
}

/* ---- tokens ---- */

/* Copies `count` tokens of a type; whether all were from 0 to below limit. */
#define COPY_TOKENS(name, type)                                                              \
    static bool copy_##name(const uint8_t *data, int64_t count, int64_t limit, int32_t *out) \
    {                                                                                        \
        bool good = true;                                                                    \
        for (int64_t i = 0; i < count; i++) {                                                \
            type value;                                                                      \
            memcpy(&value, data + (size_t)i * sizeof value, sizeof value);                   \
            good &= (uint64_t)(int64_t)value < (uint64_t)limit; /* not negative either */    \
            out[i] = (int32_t)value;                                                         \
        }                                                                                    \
        return good;                                                                         \
    }

COPY_TOKENS(u8, uint8_t)
COPY_TOKENS(i8, int8_t)
COPY_TOKENS(i16, int16_t)
COPY_TOKENS(u16, uint16_t)
COPY_TOKENS(i32, int32_t)
COPY_TOKENS(u32, uint32_t)
COPY_TOKENS(i64, int64_t)

static bool copy_tokens(const mc_token_shard *shard, int64_t first, int64_t count, int64_t limit,
                        int32_t *out)
{
    const uint8_t *data = shard->data + (size_t)first * mc_token_width(shard->type);
    switch (shard->type) {
    case MC_TOKEN_U8: return copy_u8(data, count, limit, out);
    case MC_TOKEN_I8: return copy_i8(data, count, limit, out);
    case MC_TOKEN_I16: return copy_i16(data, count, limit, out);
    case MC_TOKEN_U16: return copy_u16(data, count, limit, out);
    case MC_TOKEN_I32: return copy_i32(data, count, limit, out);
    case MC_TOKEN_U32: return copy_u32(data, count, limit, out);
    default: return copy_i64(data, count, limit, out);
    }
}

/* The value of a token, whatever it is. */
static int64_t token_value(const mc_token_shard *shard, int64_t i)
{
    int32_t narrow;
    int64_t wide;
    size_t width = mc_token_width(shard->type);
    if (shard->type == MC_TOKEN_I64) {
        memcpy(&wide, shard->data + (size_t)i * width, sizeof wide);
        return wide;
    }
    copy_tokens(shard, i, 1, INT64_MAX, &narrow);
    return shard->type == MC_TOKEN_U32 ? (int64_t)(uint32_t)narrow : narrow;
}

static mc_status check_value(mc_error *err, const mc_token_shard *shard, int64_t i, int64_t value,
                             int64_t limit)
{
    if (value < 0)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: token %" PRId64 " at position %" PRId64 " is negative",
                            shard->path, value, i);
    if (value < limit) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: token %" PRId64 " at position %" PRId64
                        " is past the vocabulary: expected 0 to %" PRId64,
                        shard->path, value, i, limit - 1);
}

/* The tokens of a program, by its function. */
static mc_status call_read(mc_error *err, const mc_token_shard *shard, int64_t first, int64_t count,
                           int64_t limit, int32_t *out)
{
    if (!shard->read(shard->user, first, count, out))
        return mc_error_set(err, MC_ERR_IO,
                            "%s: the program's function could not give %" PRId64
                            " tokens from position %" PRId64 " on",
                            shard->path, count, first);
    mc_status status = MC_OK;
    for (int64_t i = 0; i < count && !status; i++)
        if (out[i] < 0 || out[i] >= limit)
            status = check_value(err, shard, first + i, out[i], limit);
    return status;
}

mc_status mc_token_shard_read(mc_error *err, const mc_token_shard *shard, int64_t first,
                              int64_t count, int64_t limit, int32_t *out)
{
    if (shard->read) return call_read(err, shard, first, count, limit, out);
    bool good = copy_tokens(shard, first, count, limit, out);
    /* A last token that is not zero lies before the file's end, as all others do. */
    bool doubtful = count && !out[count - 1];
    if (doubtful ? mc_file_check_whole(err, shard->map.data)
                 : mc_file_check_bytes(err, shard->map.data))
        return err->status;
    mc_status status = MC_OK;
    for (int64_t i = first; !good && !status && i < first + count; i++)
        status = check_value(err, shard, i, token_value(shard, i), limit);
    return mc_file_check_bytes(err, shard->map.data);
}
