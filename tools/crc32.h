/* CRC-32 as zip, gzip and PNG have it (polynomial 0xEDB88320), eight bytes at a time. */
#ifndef MC_TOOLS_CRC32_H
#define MC_TOOLS_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of `size` bytes more; that of none is 0. One thread at a time. */
uint32_t crc32_add(uint32_t crc, const void *data, size_t size);

#endif
