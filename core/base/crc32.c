#include "core/base/crc32_internal.h"

void mc_crc32_table_init(mc_crc32_table *table)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        table->of[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++) {
            uint32_t shorter = table->of[k - 1][b];
            table->of[k][b] = shorter >> 8 ^ table->of[0][shorter & 0xff];
        }
}

uint32_t mc_crc32(const mc_crc32_table *table, uint32_t crc, const void *data, size_t size)
{
    const uint8_t *at = data;
    crc = ~crc;
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                              (uint32_t)at[3] << 24);
        crc = table->of[7][low & 0xff] ^ table->of[6][low >> 8 & 0xff] ^
              table->of[5][low >> 16 & 0xff] ^ table->of[4][low >> 24] ^ table->of[3][at[4]] ^
              table->of[2][at[5]] ^ table->of[1][at[6]] ^ table->of[0][at[7]];
    }
    for (; size > 0; size--, at++) crc = crc >> 8 ^ table->of[0][(crc ^ *at) & 0xff];
    return ~crc;
}
