#include "tokenizers/unigram/protobuf_internal.h"

#include <string.h>

mc_protobuf mc_protobuf_begin(const char *path, const uint8_t *bytes, size_t size)
{
    return (mc_protobuf){.path = path, .start = bytes, .p = bytes, .end = bytes + size};
}

mc_protobuf mc_protobuf_enter(const mc_protobuf *field)
{
    return (mc_protobuf){.path = field->path,
                         .start = field->start,
                         .p = field->data,
                         .end = field->data + field->size};
}

static bool damaged(mc_error *err, const mc_protobuf *m, const char *what)
{
    mc_error_set(err, MC_ERR_FORMAT, "%s: byte %zu: %s: it is no SentencePiece model, or damaged",
                 m->path, (size_t)(m->p - m->start), what);
    return false;
}

static bool read_varint(mc_error *err, mc_protobuf *m, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (m->p == m->end) return damaged(err, m, "a number is cut off");
        uint8_t byte = *m->p++;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return true;
    }
    return damaged(err, m, "a number has more than ten bytes");
}

static bool read_fixed(mc_error *err, mc_protobuf *m, size_t size)
{
    if ((size_t)(m->end - m->p) < size) return damaged(err, m, "a number is cut off");
    m->value = 0;
    for (size_t i = 0; i < size; i++) m->value |= (uint64_t)m->p[i] << 8 * i;
    m->p += size;
    return true;
}

bool mc_protobuf_next(mc_error *err, mc_protobuf *m)
{
    uint64_t tag;
    if (mc_error_is_set(err) || m->p == m->end || !read_varint(err, m, &tag)) return false;
    if (tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return damaged(err, m, "a field has no number");
    m->number = (uint32_t)(tag >> 3);
    switch (tag & 7) {
    case MC_WIRE_VARINT: m->wire = MC_WIRE_VARINT; return read_varint(err, m, &m->value);
    case MC_WIRE_64: m->wire = MC_WIRE_64; return read_fixed(err, m, 8);
    case MC_WIRE_32: m->wire = MC_WIRE_32; return read_fixed(err, m, 4);
    case MC_WIRE_BYTES:
        m->wire = MC_WIRE_BYTES;
        if (!read_varint(err, m, &m->value)) return false;
        if (m->value > (uint64_t)(m->end - m->p))
            return damaged(err, m, "a field reaches past the end");
        m->data = m->p;
        m->size = (size_t)m->value;
        m->p += m->size;
        return true;
    default: return damaged(err, m, "a field of an unknown kind");
    }
}

mc_status mc_protobuf_expect(mc_error *err, const mc_protobuf *field, mc_wire wire,
                             const char *name)
{
    if (field->wire == wire) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: byte %zu: field \"%s\" is of wire type %d, expected %d", field->path,
                        (size_t)(field->p - field->start), name, (int)field->wire, (int)wire);
}

float mc_protobuf_float(const mc_protobuf *field)
{
    uint32_t bits = (uint32_t)field->value;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
