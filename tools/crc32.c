#include "tools/crc32.h"

#include <stdbool.h>

/* table[k][b]: what byte b does to the checksum when k bytes follow it. */
static uint32_t table[8][256];

static void fill_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t value = b;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
        table[0][b] = value;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xFF];
}

uint32_t crc32_add(uint32_t crc, const void *data, size_t size)
{
    static bool filled;
    const uint8_t *p = data;
    if (!filled) fill_table();
    filled = true;
    crc = ~crc;
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                              (uint32_t)p[3] << 24);
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^
              table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
    }
    for (; size; p++, size--) crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xFF];
    return ~crc;
}
