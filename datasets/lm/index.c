/* Megatron's .idx. Nothing in it is taken on trust: counts are bounded by the size of the file
 * before they are used, and its arrays, which begin at an odd offset, are read by memcpy. */
#include <inttypes.h>
#include <string.h>
#include "datasets/lm/token_file_internal.h"

enum { VERSION_AT = 9, TYPE_AT = 17, SEQUENCES_AT = 18, BOUNDS_AT = 26 };

static uint64_t load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static int64_t load_i64(const uint8_t *array, int64_t i)
{
    int64_t value;
    memcpy(&value, array + (size_t)i * sizeof value, sizeof value);
    return value;
}

static int32_t load_i32(const uint8_t *array, int64_t i)
{
    int32_t value;
    memcpy(&value, array + (size_t)i * sizeof value, sizeof value);
    return value;
}

static mc_status check_type(mc_error *err, const char *path, mc_token_type type)
{
    if (type == MC_TOKEN_F64 || type == MC_TOKEN_F32)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: numbers of type %s, expected whole ones", path,
                            type == MC_TOKEN_F64 ? "f64" : "f32");
    if (type == MC_TOKEN_U32 || !mc_token_width(type))
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: type code %d, expected 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) "
                            "or 8 (u16)",
                            path, (int)type);
    return MC_OK;
}

/* The fixed part, and that the arrays fill the rest of the file. */
static mc_status read_header(mc_error *err, const char *path, const uint8_t *file, size_t size,
                             mc_token_index *index)
{
    if (size < MC_MEGATRON_HEADER)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: %zu bytes, an index has at least %d", path,
                            size, MC_MEGATRON_HEADER);
    if (memcmp(file, MC_MEGATRON_MAGIC, MC_MEGATRON_MAGIC_SIZE) != 0)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: wrong magic: expected \"MMIDIDX\" of Megatron's index", path);
    uint64_t version = load_u64(file + VERSION_AT);
    if (version != MC_MEGATRON_VERSION)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: version %" PRIu64 ", expected %d", path,
                            version, MC_MEGATRON_VERSION);
    *index = (mc_token_index){.type = (mc_token_type)file[TYPE_AT]};
    mc_status status = check_type(err, path, index->type);
    if (status) return status;
    uint64_t sequences = load_u64(file + SEQUENCES_AT), bounds = load_u64(file + BOUNDS_AT);
    uint64_t room = size - MC_MEGATRON_HEADER;
    bool fits = sequences <= room / 12 && bounds <= room / 8;
    uint64_t needed = fits ? 12 * sequences + 8 * bounds : 0;
    if (fits) fits = needed == room || needed + sequences == room; /* modes of multimodal data */
    if (!fits)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: %" PRIu64 " sequences and %" PRIu64
                            " document bounds do not fit its %zu bytes",
                            path, sequences, bounds, size);
    if (!bounds)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: no document bounds, expected 1 or more", path);
    index->sequences = (int64_t)sequences;
    index->documents = (int64_t)bounds - 1;
    index->pointers = file + MC_MEGATRON_HEADER + 4 * sequences;
    index->bounds = index->pointers + 8 * sequences;
    return MC_OK;
}

/* Sequences lie one behind the other and fill the .bin: then token numbers are places in it. */
static mc_status check_sequences(mc_error *err, const char *path, const mc_token_index *index,
                                 uint64_t bin_size)
{
    const uint8_t *lengths = index->pointers - 4 * index->sequences;
    uint64_t at = 0, width = mc_token_width(index->type);
    for (int64_t i = 0; i < index->sequences; i++) {
        int32_t length = load_i32(lengths, i);
        int64_t pointer = load_i64(index->pointers, i);
        if (length < 0)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: sequence %" PRId64 " has %d tokens", path,
                                i, length);
        uint64_t bytes = (uint64_t)length * width;
        if (pointer < 0 || (uint64_t)pointer > bin_size || bytes > bin_size - (uint64_t)pointer)
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: sequence %" PRId64 ", %" PRIu64 " bytes from byte %" PRId64
                                " on, lies outside the .bin of %" PRIu64 " bytes",
                                path, i, bytes, pointer, bin_size);
        if ((uint64_t)pointer != at)
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: sequence %" PRId64 " begins at byte %" PRId64
                                " of the .bin, expected %" PRIu64 ", where the one before ends",
                                path, i, pointer, at);
        at += bytes;
    }
    if (at == bin_size) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: its sequences take %" PRIu64 " bytes, the .bin has %" PRIu64, path, at,
                        bin_size);
}

static mc_status check_documents(mc_error *err, const char *path, const mc_token_index *index)
{
    int64_t before = 0;
    for (int64_t i = 0; i <= index->documents; i++) {
        int64_t bound = load_i64(index->bounds, i);
        if (bound < before || bound > index->sequences || (i == 0 && bound != 0))
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: document bound %" PRId64 " is %" PRId64 ", expected %" PRId64
                                " to %" PRId64,
                                path, i, bound, before, i ? index->sequences : 0);
        before = bound;
    }
    if (before == index->sequences) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: the documents end at sequence %" PRId64 " of %" PRId64, path, before,
                        index->sequences);
}

mc_status mc_token_index_read(mc_error *err, const char *path, const uint8_t *file, size_t size,
                              uint64_t bin_size, mc_token_index *index)
{
    mc_status status = read_header(err, path, file, size, index);
    if (!status) status = check_sequences(err, path, index, bin_size);
    if (!status) status = check_documents(err, path, index);
    return status;
}

int64_t mc_token_index_document(const mc_token_index *index, int64_t i)
{
    int64_t sequence = load_i64(index->bounds, i), last = index->sequences - 1;
    int64_t width = (int64_t)mc_token_width(index->type);
    if (sequence < index->sequences) return load_i64(index->pointers, sequence) / width;
    if (last < 0) return 0;
    const uint8_t *lengths = index->pointers - 4 * index->sequences;
    return load_i64(index->pointers, last) / width + load_i32(lengths, last);
}
