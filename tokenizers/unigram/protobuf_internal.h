/* Reads the fields of a protobuf message one by one, within its bytes. */
#ifndef MC_TOKENIZERS_PROTOBUF_INTERNAL_H
#define MC_TOKENIZERS_PROTOBUF_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"

typedef enum mc_wire {
    MC_WIRE_VARINT = 0,
    MC_WIRE_64 = 1,
    MC_WIRE_BYTES = 2,
    MC_WIRE_32 = 5
} mc_wire;

typedef struct mc_protobuf {
    const char *path;     /* of the file, for errors */
    const uint8_t *start; /* of the file */
    const uint8_t *p, *end;
    /* the field that mc_protobuf_next read */
    uint32_t number;
    mc_wire wire;
    uint64_t value;      /* of a number */
    const uint8_t *data; /* of bytes and messages, into the file */
    size_t size;
} mc_protobuf;

mc_protobuf mc_protobuf_begin(const char *path, const uint8_t *bytes, size_t size);
/* The message that the current field holds. */
mc_protobuf mc_protobuf_enter(const mc_protobuf *field);
/* Reads the next field; false at the end, and with the error set where the bytes are damaged. */
bool mc_protobuf_next(mc_error *err, mc_protobuf *message);
/* That the current field is of this kind; what it is goes into the error. */
mc_status mc_protobuf_expect(mc_error *err, const mc_protobuf *field, mc_wire wire,
                             const char *name);
/* The value of a 32-bit float field. */
float mc_protobuf_float(const mc_protobuf *field);

#endif
