/* The CRC-32 of zip files (polynomial 0xedb88320, reflected): by carry-less products if the
 * processor has them (VPCLMULQDQ with AVX-512 or AVX2, PCLMULQDQ), else eight bytes at a time. */
#ifndef MC_BASE_CRC32_INTERNAL_H
#define MC_BASE_CRC32_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

typedef struct mc_crc32_table {
    uint32_t of[8][256]; /* of[k][b]: the CRC of byte b with k zeros after it */
} mc_crc32_table;

void mc_crc32_table_init(mc_crc32_table *table);
/* Continues from `crc`, which is 0 at the beginning. */
uint32_t mc_crc32(const mc_crc32_table *table, uint32_t crc, const void *data, size_t size);
/* The same for numbers of 16 or 32 bits, which the same pass checks for values that are not finite:
 * *largest becomes the maximum of itself and of the numbers' bits without the sign. */
uint32_t mc_crc32_largest(const mc_crc32_table *table, uint32_t crc, const void *data, size_t size,
                          int bits, uint32_t *largest);
/* Computes *largest alone. */
void mc_largest_bits(const void *data, size_t size, int bits, uint32_t *largest);
/* The CRC of two parts in sequence, from both CRCs and the number of bytes of the second. */
uint32_t mc_crc32_join(uint32_t first, uint32_t second, uint64_t size);

#endif
