/* CRC-32 as zip files have it (polynomial 0xedb88320, reflected): by carry-less products where the
 * processor has them (VPCLMULQDQ with AVX-512 or AVX2, PCLMULQDQ), else eight bytes at a time. */
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
/* The same of numbers of `bits` bits, 16 or 32, in one pass with what finds those that are not
 * finite: *largest becomes the largest of itself and the numbers' bits without their sign. */
uint32_t mc_crc32_largest(const mc_crc32_table *table, uint32_t crc, const void *data, size_t size,
                          int bits, uint32_t *largest);
/* The second part alone. */
void mc_largest_bits(const void *data, size_t size, int bits, uint32_t *largest);
/* The CRC of bytes whose first part has the CRC `first`, and the `size` bytes after it `second`. */
uint32_t mc_crc32_join(uint32_t first, uint32_t second, uint64_t size);

#endif
