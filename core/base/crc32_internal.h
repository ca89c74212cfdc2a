/* CRC-32 as zip files have it (polynomial 0xedb88320, reflected): by carry-less products where the
 * processor has them (VPCLMULQDQ with AVX-512, PCLMULQDQ), else eight bytes at a time. */
#ifndef MC_BASE_CRC32_INTERNAL_H
#define MC_BASE_CRC32_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

typedef struct mc_crc32_table {
    uint32_t of[8][256]; /* of[k][b]: the CRC of byte b with k zeros after it */
} mc_crc32_table;

void mc_crc32_table_init(mc_crc32_table *table);
/* Goes on from `crc`, which is 0 at the beginning. */
uint32_t mc_crc32(const mc_crc32_table *table, uint32_t crc, const void *data, size_t size);
/* The CRC of bytes whose first part has the CRC `first`, and the `size` bytes after it `second`. */
uint32_t mc_crc32_join(uint32_t first, uint32_t second, uint64_t size);

#endif
