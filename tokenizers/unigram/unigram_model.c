/* Reading SentencePiece's .model: a protobuf message of pieces, the trainer's settings and the
 * normalizer's (sentencepiece_model.proto). */
#include <math.h>
#include <string.h>
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/unigram/protobuf_internal.h"
#include "tokenizers/unigram/sentencepiece_internal.h"

/* Numbers of the fields that are read. */
enum { MODEL_PIECE = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3, MODEL_DENORMALIZER = 5 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum {
    TRAINER_TYPE = 3,
    TRAINER_SUFFIX = 24,
    TRAINER_BYTE_FALLBACK = 35,
    TRAINER_UNK_SURFACE = 44,
    TRAINER_UNK = 45,
    TRAINER_BOS = 46,
    TRAINER_EOS = 47,
    TRAINER_PAD = 48
};
enum { NORMALIZER_TABLE = 2, NORMALIZER_PREFIX = 3, NORMALIZER_SQUEEZE = 4, NORMALIZER_ESCAPE = 5 };
enum { TYPE_UNIGRAM = 1, TYPE_BPE = 2 };

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the model", path);
}

static mc_status read_bool(mc_error *err, const mc_protobuf *field, const char *name, bool *out)
{
    if (mc_protobuf_expect(err, field, MC_WIRE_VARINT, name)) return err->status;
    *out = field->value != 0;
    return MC_OK;
}

/* A string of UTF-8 without a NUL, on the heap; an empty one where `empty` says so leaves *out. */
static mc_status read_string(mc_error *err, const mc_protobuf *field, const char *name, bool empty,
                             char **out)
{
    if (mc_protobuf_expect(err, field, MC_WIRE_BYTES, name)) return err->status;
    if (!field->size && !empty) return MC_OK;
    if (!mc_utf8_is_valid((const char *)field->data, field->size) ||
        memchr(field->data, 0, field->size))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: \"%s\": a NUL, or no UTF-8", field->path,
                            name);
    char *copy = mc_strndup((const char *)field->data, field->size);
    if (!copy) return no_memory(err, field->path);
    mc_free(*out);
    *out = copy;
    return MC_OK;
}

static mc_status read_trainer(mc_tokenizer *tok, mc_error *err, mc_protobuf m, int *type)
{
    mc_unigram *u = &tok->unigram;
    while (mc_protobuf_next(err, &m)) {
        mc_status status = MC_OK;
        switch (m.number) {
        case TRAINER_TYPE:
            status = mc_protobuf_expect(err, &m, MC_WIRE_VARINT, "model_type");
            *type = m.value <= 4 ? (int)m.value : 0;
            break;
        case TRAINER_SUFFIX:
            status = read_bool(err, &m, "treat_whitespace_as_suffix", &u->whitespace_as_suffix);
            break;
        case TRAINER_BYTE_FALLBACK:
            status = read_bool(err, &m, "byte_fallback", &u->byte_fallback);
            break;
        case TRAINER_UNK_SURFACE:
            status = read_string(err, &m, "unk_surface", true, &u->unk_surface);
            break;
        case TRAINER_UNK: status = read_string(err, &m, "unk_piece", false, &tok->unk_token); break;
        case TRAINER_BOS: status = read_string(err, &m, "bos_piece", false, &tok->bos_token); break;
        case TRAINER_EOS: status = read_string(err, &m, "eos_piece", false, &tok->eos_token); break;
        case TRAINER_PAD: status = read_string(err, &m, "pad_piece", false, &tok->pad_token); break;
        default: break;
        }
        if (status) return status;
    }
    return err->status;
}

static mc_status read_normalizer(mc_unigram *u, mc_error *err, mc_protobuf m)
{
    while (mc_protobuf_next(err, &m)) {
        mc_status status = MC_OK;
        if (m.number == NORMALIZER_TABLE) {
            status = mc_protobuf_expect(err, &m, MC_WIRE_BYTES, "precompiled_charsmap");
            mc_charsmap_release(&u->charsmap);
            if (!status && m.size)
                status = mc_charsmap_init(err, &u->charsmap, m.path, m.data, m.size);
        } else if (m.number == NORMALIZER_PREFIX) {
            status = read_bool(err, &m, "add_dummy_prefix", &u->add_dummy_prefix);
        } else if (m.number == NORMALIZER_SQUEEZE) {
            status = read_bool(err, &m, "remove_extra_whitespaces", &u->remove_extra_whitespaces);
        } else if (m.number == NORMALIZER_ESCAPE) {
            status = read_bool(err, &m, "escape_whitespaces", &u->escape_whitespaces);
        }
        if (status) return status;
    }
    return err->status;
}

static mc_status check_denormalizer(mc_error *err, mc_protobuf m)
{
    while (mc_protobuf_next(err, &m))
        if (m.number == NORMALIZER_TABLE && m.wire == MC_WIRE_BYTES && m.size)
            return mc_error_set(err, MC_ERR_UNSUPPORTED,
                                "%s: a model with a denormalizer is not supported", m.path);
    return err->status;
}

/* The settings, and how many pieces there are. */
static mc_status read_settings(mc_tokenizer *tok, mc_error *err, mc_protobuf m, int *type,
                               size_t *count)
{
    while (mc_protobuf_next(err, &m)) {
        mc_status status = MC_OK;
        if (m.number < MODEL_PIECE || m.number > MODEL_DENORMALIZER || m.number == 4) continue;
        status = mc_protobuf_expect(err, &m, MC_WIRE_BYTES, "a part of the model");
        if (status) return status;
        if (m.number == MODEL_PIECE) ++*count;
        if (m.number == MODEL_TRAINER) status = read_trainer(tok, err, mc_protobuf_enter(&m), type);
        if (m.number == MODEL_NORMALIZER)
            status = read_normalizer(&tok->unigram, err, mc_protobuf_enter(&m));
        if (m.number == MODEL_DENORMALIZER) status = check_denormalizer(err, mc_protobuf_enter(&m));
        if (status) return status;
    }
    return err->status;
}

typedef struct piece {
    const char *text;
    size_t size;
    float score;
    uint64_t type;
} piece;

static mc_status read_piece(mc_error *err, mc_protobuf m, size_t id, piece *out)
{
    *out = (piece){.text = "", .type = MC_PIECE_NORMAL};
    while (mc_protobuf_next(err, &m)) {
        mc_status status = MC_OK;
        if (m.number == PIECE_TEXT) {
            status = mc_protobuf_expect(err, &m, MC_WIRE_BYTES, "piece");
            out->text = (const char *)m.data;
            out->size = m.size;
        } else if (m.number == PIECE_SCORE) {
            status = mc_protobuf_expect(err, &m, MC_WIRE_32, "score");
            out->score = mc_protobuf_float(&m);
        } else if (m.number == PIECE_TYPE) {
            status = mc_protobuf_expect(err, &m, MC_WIRE_VARINT, "type");
            out->type = m.value;
        }
        if (status) return status;
    }
    if (mc_error_is_set(err)) return err->status;
    if (out->type == MC_PIECE_UNUSED && out->size == 1 && !*out->text) return MC_OK;
    const char *fault = !out->size              ? "is empty"
                        : !isfinite(out->score) ? "has a score that is no number"
                        : out->type < 1 || out->type > MC_PIECE_BYTE ? "is of an unknown type"
                        : memchr(out->text, 0, out->size)            ? "holds a NUL"
                        : !mc_utf8_is_valid(out->text, out->size)    ? "is no UTF-8"
                                                                     : NULL;
    if (!fault) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: piece %zu %s", m.path, id, fault);
}

static mc_status read_pieces(mc_tokenizer *tok, mc_error *err, mc_protobuf m, size_t count)
{
    mc_unigram *u = &tok->unigram;
    if (!count || count > MC_TOKENS_MAX)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: %zu pieces, 1 to %d expected", m.path, count,
                            MC_TOKENS_MAX);
    tok->entries = mc_calloc(count, sizeof *tok->entries);
    if (!tok->entries) return no_memory(err, m.path);
    tok->entry_capacity = tok->entry_count = count;
    if (mc_unigram_reserve(u, err, m.path, count)) return err->status;
    for (size_t id = 0; id < count && mc_protobuf_next(err, &m);) {
        piece found;
        if (m.number != MODEL_PIECE) continue;
        if (read_piece(err, mc_protobuf_enter(&m), id, &found)) return err->status;
        bool none = found.size == 1 && !*found.text; /* takes an id without being a piece */
        u->types[id] = (uint8_t)found.type;
        u->scores[id] = (double)found.score;
        if (found.type == MC_PIECE_UNKNOWN && u->unk_id >= 0)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: pieces %d and %zu are both unknown's",
                                m.path, u->unk_id, id);
        if (found.type == MC_PIECE_UNKNOWN) u->unk_id = (int32_t)id;
        if (!mc_tokenizer_store(tok, found.text, none ? 0 : found.size, &tok->entries[id]))
            return no_memory(err, m.path);
        id++;
    }
    return err->status;
}

static bool set_defaults(mc_tokenizer *tok)
{
    mc_unigram *u = &tok->unigram;
    tok->kind = MC_TOKENIZER_UNIGRAM;
    tok->has_normalizer = false;
    u->single = u->add_dummy_prefix = u->remove_extra_whitespaces = u->escape_whitespaces = true;
    u->unk_id = -1;
    return mc_tokenizer_set_string(&u->unk_surface, " \xE2\x81\x87 ") &&
           mc_tokenizer_set_string(&tok->unk_token, "<unk>") &&
           mc_tokenizer_set_string(&tok->bos_token, "<s>") &&
           mc_tokenizer_set_string(&tok->eos_token, "</s>") &&
           mc_tokenizer_set_string(&tok->pad_token, "<pad>");
}

mc_status mc_unigram_read_model(mc_tokenizer *tok, mc_error *err, const char *path,
                                const char *bytes, size_t size)
{
    mc_unigram *u = &tok->unigram;
    int type = TYPE_UNIGRAM;
    size_t count = 0;
    mc_protobuf m = mc_protobuf_begin(path, (const uint8_t *)bytes, size);
    if (!set_defaults(tok)) return no_memory(err, path);
    if (read_settings(tok, err, m, &type, &count) || read_pieces(tok, err, m, count))
        return err->status;
    if (u->unk_id < 0)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: no piece is of type unknown", path);
    if (mc_unigram_keep_source(tok, err, path, bytes, size)) return err->status;
    if (type == TYPE_UNIGRAM) return MC_OK;
    u->bpe = type == TYPE_BPE; /* its merges are made once the pieces are indexed */
    if (u->bpe) return MC_OK;
    u->by_library = true;
    u->library = mc_sentencepiece_new(err, path, bytes, size);
    return err->status;
}
