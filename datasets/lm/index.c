/* Megatron's .idx, in both of its forms. Nothing in it is taken on trust: counts are bounded by the
 * size of the file before they are used, and its arrays, which may begin at an odd offset, are read
 * by memcpy.
 *
 * The index of a large corpus has gigabytes, so opening a file reads its ends alone. The arrays are
 * checked in stretches, each before the first number of it is used; all conditions are local: a
 * sequence begins where the one before it ends, and a document not before the one before it. */
#include <inttypes.h>
#include <string.h>
#include "datasets/lm/token_file_internal.h"

enum {
    STRETCH = 1 << 12, /* entries */
    /* places in the header of MMIDIDX, */
    VERSION_AT = 9,
    TYPE_AT = 17,
    SEQUENCES_AT = 18,
    BOUNDS_AT = 26,
    /* and of TNTIDX */
    LEGACY_VERSION_AT = 8,
    LEGACY_TYPE_AT = 16,
    LEGACY_WIDTH_AT = 24,
    LEGACY_SEQUENCES_AT = 32,
    LEGACY_SIZES_AT = 40,
    LEGACY_BOUNDS_AT = 48,
    LEGACY_HEADER = 56,
};

#define LEGACY_MAGIC "TNTIDX\0"
enum { LEGACY_MAGIC_SIZE = 8 };

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

static int64_t length_of(const mc_token_index *index, int64_t sequence)
{
    return index->legacy ? load_i64(index->lengths, sequence) : load_i32(index->lengths, sequence);
}

bool mc_token_index_is(const uint8_t *file, size_t size)
{
    return (size >= MC_MEGATRON_MAGIC_SIZE &&
            memcmp(file, MC_MEGATRON_MAGIC, MC_MEGATRON_MAGIC_SIZE) == 0) ||
           (size >= LEGACY_MAGIC_SIZE && memcmp(file, LEGACY_MAGIC, LEGACY_MAGIC_SIZE) == 0);
}

/* ---- headers ---- */

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

static mc_status check_version(mc_error *err, const char *path, uint64_t version)
{
    if (version == MC_MEGATRON_VERSION) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: version %" PRIu64 ", expected %d", path, version,
                        MC_MEGATRON_VERSION);
}

static mc_status check_header_size(mc_error *err, const char *path, size_t size, size_t header)
{
    if (size >= header) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: %zu bytes, an index has at least %zu", path, size,
                        header);
}

/* Counts that the file has room for. */
static mc_status take_counts(mc_error *err, const char *path, size_t size, bool fits,
                             uint64_t sequences, uint64_t bounds, mc_token_index *index)
{
    if (!fits)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: %" PRIu64 " sequences and %" PRIu64
                            " document bounds do not fit its %zu bytes",
                            path, sequences, bounds, size);
    if (!bounds)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: no document bounds, expected 1 or more", path);
    index->sequences = (int64_t)sequences;
    index->documents = (int64_t)bounds - 1;
    return MC_OK;
}

static mc_status read_header(mc_error *err, const char *path, const uint8_t *file, size_t size,
                             mc_token_index *index)
{
    mc_status status = check_header_size(err, path, size, MC_MEGATRON_HEADER);
    if (!status) status = check_version(err, path, load_u64(file + VERSION_AT));
    if (status) return status;
    *index = (mc_token_index){.type = (mc_token_type)file[TYPE_AT]};
    status = check_type(err, path, index->type);
    if (status) return status;
    uint64_t sequences = load_u64(file + SEQUENCES_AT), bounds = load_u64(file + BOUNDS_AT);
    uint64_t room = size - MC_MEGATRON_HEADER;
    bool fits = sequences <= room / 12 && bounds <= room / 8;
    uint64_t needed = fits ? 12 * sequences + 8 * bounds : 0;
    if (fits) fits = needed == room || needed + sequences == room; /* modes of multimodal data */
    status = take_counts(err, path, size, fits, sequences, bounds, index);
    if (status) return status;
    index->lengths = file + MC_MEGATRON_HEADER;
    index->pointers = index->lengths + 4 * sequences;
    index->bounds = index->pointers + 8 * sequences;
    return MC_OK;
}

static mc_status check_legacy_type(mc_error *err, const char *path, const uint8_t *file)
{
    uint64_t code = load_u64(file + LEGACY_TYPE_AT), width = load_u64(file + LEGACY_WIDTH_AT);
    mc_token_type type = code < MC_TOKEN_U32 ? (mc_token_type)code : MC_TOKEN_U32;
    mc_status status = check_type(err, path, type);
    if (status || width == mc_token_width(type)) return status;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: tokens of %" PRIu64 " bytes, expected %zu of type code %d", path,
                        width, mc_token_width(type), (int)type);
}

static mc_status read_legacy_header(mc_error *err, const char *path, const uint8_t *file,
                                    size_t size, mc_token_index *index)
{
    mc_status status = check_header_size(err, path, size, LEGACY_HEADER);
    if (!status) status = check_version(err, path, load_u64(file + LEGACY_VERSION_AT));
    if (!status) status = check_legacy_type(err, path, file);
    if (status) return status;
    *index = (mc_token_index){.legacy = true, .type = (mc_token_type)file[LEGACY_TYPE_AT]};
    uint64_t sequences = load_u64(file + LEGACY_SEQUENCES_AT);
    uint64_t sizes = load_u64(file + LEGACY_SIZES_AT), bounds = load_u64(file + LEGACY_BOUNDS_AT);
    uint64_t room = (size - LEGACY_HEADER) / 8; /* numbers */
    bool fits = sequences < room / 2 && sizes <= room && bounds <= room &&
                2 * (sequences + 1) + sizes + bounds == room && (size - LEGACY_HEADER) % 8 == 0;
    status = take_counts(err, path, size, fits, sequences, bounds, index);
    if (status) return status;
    if (sizes != sequences)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: %" PRIu64 " sizes of %" PRIu64
                            " sequences, expected one each: sequences of one dimension",
                            path, sizes, sequences);
    index->dims = file + LEGACY_HEADER;
    index->pointers = index->dims + 8 * (sequences + 1);
    index->lengths = index->pointers + 8 * (sequences + 1);
    index->bounds = index->lengths + 8 * sequences;
    return MC_OK;
}

/* ---- stretches ---- */

/* Where sequence i begins, in the index's own unit; unchecked. */
static uint64_t unit_of(const mc_token_index *index)
{
    return index->legacy ? 1 : mc_token_width(index->type);
}

static uint64_t end_of_bin(const mc_token_index *index)
{
    return index->legacy ? index->bin_size / mc_token_width(index->type) : index->bin_size;
}

/* Where sequence i is to begin: where the one before ends. */
static uint64_t expected_begin(const mc_token_index *index, int64_t i)
{
    if (!i) return 0;
    return (uint64_t)load_i64(index->pointers, i - 1) +
           (uint64_t)length_of(index, i - 1) * unit_of(index);
}

static mc_status check_sequence(mc_error *err, const mc_token_index *index, int64_t i)
{
    const char *path = index->path, *place = index->legacy ? "token" : "byte";
    int64_t length = length_of(index, i), pointer = load_i64(index->pointers, i);
    uint64_t unit = unit_of(index), end = end_of_bin(index), size = (uint64_t)length * unit;
    if (length < 0)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: sequence %" PRId64 " has %" PRId64 " tokens",
                            path, i, length);
    bool inside = pointer >= 0 && (uint64_t)pointer <= end && (uint64_t)length <= end / unit &&
                  size <= end - (uint64_t)pointer;
    if (!inside)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: sequence %" PRId64 ", %" PRIu64 " %ss from %s %" PRId64
                            " on, lies outside the .bin of %" PRIu64 " %ss",
                            path, i, size, place, place, pointer, end, place);
    uint64_t expected = expected_begin(index, i);
    if ((uint64_t)pointer != expected)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: sequence %" PRId64 " begins at %s %" PRId64
                            " of the .bin, expected %" PRIu64 ", where the one before ends",
                            path, i, place, pointer, expected);
    if (!index->dims || (load_i64(index->dims, i) == i && load_i64(index->dims, i + 1) == i + 1))
        return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: sequence %" PRId64 " has not one dimension: its sizes are %" PRId64
                        " to %" PRId64,
                        path, i, load_i64(index->dims, i), load_i64(index->dims, i + 1));
}

/* The last sequence ends with the .bin. */
static mc_status check_end(mc_error *err, const mc_token_index *index)
{
    uint64_t end = end_of_bin(index), at = expected_begin(index, index->sequences);
    bool listed = !index->legacy || (uint64_t)load_i64(index->pointers, index->sequences) == at;
    bool whole = index->bin_size % mc_token_width(index->type) == 0;
    if (at == end && listed && whole) return MC_OK;
    uint64_t scale = index->legacy ? mc_token_width(index->type) : 1;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: its sequences take %" PRIu64 " bytes, the .bin has %" PRIu64,
                        index->path, at * scale, index->bin_size);
}

static mc_status check_sequences(mc_error *err, const mc_token_index *index, int64_t stretch)
{
    int64_t i = stretch * STRETCH, end = i + STRETCH;
    bool last = end >= index->sequences;
    if (last) end = index->sequences;
    size_t count = (size_t)(end > i ? end - i : 0);
    mc_token_need(index->pointers + 8 * i, 8 * count);
    mc_token_need(index->lengths + (index->legacy ? 8 : 4) * i, (index->legacy ? 8 : 4) * count);
    mc_status status = MC_OK;
    for (; i < end && !status; i++) status = check_sequence(err, index, i);
    return status || !last ? status : check_end(err, index);
}

static mc_status check_documents(mc_error *err, const mc_token_index *index, int64_t stretch)
{
    int64_t i = stretch * STRETCH, end = i + STRETCH, bound = 0;
    bool last = end > index->documents;
    if (last) end = index->documents + 1;
    mc_token_need(index->bounds + 8 * i, 8 * (size_t)(end - i));
    for (; i < end; i++) {
        int64_t before = i ? load_i64(index->bounds, i - 1) : 0;
        bound = load_i64(index->bounds, i);
        if (bound < before || bound > index->sequences || (i == 0 && bound != 0))
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: document bound %" PRId64 " is %" PRId64 ", expected %" PRId64
                                " to %" PRId64,
                                index->path, i, bound, before, i ? index->sequences : 0);
    }
    if (!last || bound == index->sequences) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: the documents end at sequence %" PRId64 " of %" PRId64, index->path,
                        bound, index->sequences);
}

static int64_t stretches_of(int64_t entries) { return (entries + STRETCH - 1) / STRETCH; }

/* Checks the stretch that an entry is in, unless that was done before. */
static mc_status check_at(mc_error *err, const mc_token_index *index, int64_t entry, bool document)
{
    int64_t stretch = entry / STRETCH, of_sequences = stretches_of(index->sequences + 1);
    _Atomic unsigned char *done = &index->checked[(document ? of_sequences : 0) + stretch];
    if (*done) return MC_OK;
    mc_status status =
        document ? check_documents(err, index, stretch) : check_sequences(err, index, stretch);
    if (!status) *done = 1;
    return status;
}

/* ---- opening and reading ---- */

static mc_status check_ends(mc_error *err, const mc_token_index *index)
{
    mc_status status = check_at(err, index, 0, false);
    if (!status) status = check_at(err, index, index->sequences, false);
    if (!status) status = check_at(err, index, 0, true);
    return status ? status : check_at(err, index, index->documents, true);
}

mc_status mc_token_index_init(mc_error *err, const char *path, const uint8_t *file, size_t size,
                              uint64_t bin_size, mc_token_index *index)
{
    *index = (mc_token_index){0};
    if (size >= MC_MEGATRON_HEADER && !mc_token_index_is(file, size))
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: wrong magic: expected \"MMIDIDX\" or \"TNTIDX\" of Megatron's "
                            "index",
                            path);
    bool legacy = size > 0 && file[0] == LEGACY_MAGIC[0];
    mc_status status = legacy ? read_legacy_header(err, path, file, size, index)
                              : read_header(err, path, file, size, index);
    if (status) return status;
    index->bin_size = bin_size;
    index->path = mc_strdup(path);
    index->checked = mc_calloc(
        (size_t)(stretches_of(index->sequences + 1) + stretches_of(index->documents + 1)), 1);
    if (!index->path || !index->checked)
        status = mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", path);
    if (!status) status = check_ends(err, index);
    if (status) mc_token_index_release(index);
    return status;
}

void mc_token_index_release(mc_token_index *index)
{
    mc_free(index->path);
    mc_free((void *)index->checked);
    *index = (mc_token_index){0};
}

mc_status mc_token_index_document(mc_error *err, const mc_token_index *index, int64_t i,
                                  int64_t *begin)
{
    mc_status status = check_at(err, index, i, true);
    if (status) return status;
    int64_t sequence = load_i64(index->bounds, i);
    status = check_at(err, index, sequence, false);
    if (status) return status;
    int64_t unit = (int64_t)unit_of(index);
    *begin = sequence < index->sequences ? load_i64(index->pointers, sequence) / unit
                                         : (int64_t)end_of_bin(index) / unit;
    return MC_OK;
}
