#include "core/base/crc32_internal.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL 0xedb88320u

void mc_crc32_table_init(mc_crc32_table *table)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table->of[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++) {
            uint32_t shorter = table->of[k - 1][b];
            table->of[k][b] = shorter >> 8 ^ table->of[0][shorter & 0xff];
        }
}

/* The bits without the sign are compared as signed integers: every vector unit can do that. */
#define LARGEST(type, mask)                                       \
    do {                                                          \
        type most = 0;                                            \
        for (size_t i = 0; i < size / sizeof(type); i++) {        \
            type number;                                          \
            memcpy(&number, at + i * sizeof(type), sizeof(type)); \
            number &= (mask);                                     \
            most = number > most ? number : most;                 \
        }                                                         \
        if ((uint32_t)most > *largest) *largest = (uint32_t)most; \
    } while (0)

void mc_largest_bits(const void *data, size_t size, int bits, uint32_t *largest)
{
    const uint8_t *at = data;
    if (bits == 16)
        LARGEST(int16_t, 0x7fff);
    else
        LARGEST(int32_t, 0x7fffffff);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
 * Intel 2009. The constants that fold over D bits are x^(D+32) and x^(D-32) modulo the polynomial,
 * with their 32 bits reversed, times two. */
#define BY_256_BYTES _mm_set_epi64x(0x01322d1430, 0x011542778a)
#define BY_128_BYTES _mm_set_epi64x(0x014a7fe880, 0x01e88ef372)
#define BY_64_BYTES _mm_set_epi64x(0x01c6e41596, 0x0154442bd4)
#define BY_16_BYTES _mm_set_epi64x(0x00ccaa009e, 0x01751997d0)

#define NARROW __attribute__((target("pclmul,sse4.1")))

/* Folds 16 bytes of state onto the 16 bytes `next`, over the distance of the constants `by`. */
NARROW static __m128i fold(__m128i state, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(state, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(state, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* The larger of the numbers' bits without the sign, lane by lane: cheap beside the products. */
NARROW static __m128i larger(__m128i most, __m128i numbers, int bits)
{
    if (bits == 16) return _mm_max_epu16(most, _mm_and_si128(numbers, _mm_set1_epi16(0x7fff)));
    return _mm_max_epu32(most, _mm_and_si128(numbers, _mm_set1_epi32(0x7fffffff)));
}

/* Folds 64 bytes or more, a multiple of 16, after XORing `state` into the first. `left` receives 16
 * bytes with the same CRC as all of them. If `bits` is not 0, *largest covers these numbers. */
NARROW static void fold_all(__m128i state, const uint8_t *data, size_t size, uint8_t left[16],
                            int bits, uint32_t *largest)
{
    const __m128i by_64 = BY_64_BYTES, by_16 = BY_16_BYTES;
    const __m128i *at = (const void *)data, *end = (const void *)(data + size);
    __m128i x[4], most = _mm_setzero_si128(), next;
    for (int i = 0; i < 4; i++) {
        x[i] = _mm_loadu_si128(at++);
        if (bits) most = larger(most, x[i], bits);
    }
    x[0] = _mm_xor_si128(x[0], state);
    for (; end - at >= 4; at += 4)
        for (int i = 0; i < 4; i++) {
            x[i] = fold(x[i], by_64, next = _mm_loadu_si128(at + i));
            if (bits) most = larger(most, next, bits);
        }
    for (int i = 1; i < 4; i++) x[0] = fold(x[0], by_16, x[i]);
    for (; at < end; at++) {
        x[0] = fold(x[0], by_16, next = _mm_loadu_si128(at));
        if (bits) most = larger(most, next, bits);
    }
    if (bits) {
        _mm_storeu_si128((void *)left, most);
        mc_largest_bits(left, 16, bits, largest);
    }
    _mm_storeu_si128((void *)left, x[0]);
}

/* The same at twice the width, for AMD since Zen 3 and Intel's cores without AVX-512. */
#define DOUBLE __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.1")))

DOUBLE static __m256i fold_double(__m256i state, __m256i by, __m256i next)
{
    __m256i low = _mm256_clmulepi64_epi128(state, by, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(state, by, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

DOUBLE static __m256i larger_double(__m256i most, __m256i numbers, int bits)
{
    if (bits == 16)
        return _mm256_max_epu16(most, _mm256_and_si256(numbers, _mm256_set1_epi16(0x7fff)));
    return _mm256_max_epu32(most, _mm256_and_si256(numbers, _mm256_set1_epi32(0x7fffffff)));
}

/* Folds 128 bytes or more, in steps of 128; returns how many. `left` receives 128 bytes to fold
 * further. */
DOUBLE static size_t fold_steps(__m128i state, const uint8_t *data, size_t size, uint8_t left[128],
                                int bits, uint32_t *largest)
{
    const __m256i by_128 = _mm256_broadcastsi128_si256(BY_128_BYTES);
    size_t done = 128;
    __m256i x[4], most = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_loadu_si256((const void *)(data + 32 * i));
        if (bits) most = larger_double(most, x[i], bits);
    }
    x[0] = _mm256_xor_si256(x[0], _mm256_zextsi128_si256(state));
    for (; size - done >= 128; done += 128)
        for (int i = 0; i < 4; i++) {
            __m256i next = _mm256_loadu_si256((const void *)(data + done + 32 * i));
            x[i] = fold_double(x[i], by_128, next);
            if (bits) most = larger_double(most, next, bits);
        }
    if (bits) {
        _mm256_storeu_si256((void *)left, most);
        mc_largest_bits(left, 32, bits, largest);
    }
    for (int i = 0; i < 4; i++) _mm256_storeu_si256((void *)(left + 32 * i), x[i]);
    return done;
}

#define WIDE __attribute__((target("avx512f,avx512bw,vpclmulqdq,pclmul,sse4.1")))
#define WIDE_INLINE WIDE __attribute__((always_inline)) static inline

/* The same at four times the width, with AVX-512. */
WIDE_INLINE __m512i fold_wide(__m512i state, __m512i by, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(state, by, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(state, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* all three XORed */
}

WIDE_INLINE __m512i larger_wide(__m512i most, __m512i numbers, int bits)
{
    if (bits == 16)
        return _mm512_max_epu16(most, _mm512_and_si512(numbers, _mm512_set1_epi16(0x7fff)));
    return _mm512_max_epu32(most, _mm512_and_si512(numbers, _mm512_set1_epi32(0x7fffffff)));
}

/* Folds 256 bytes or more, in steps of 256; returns how many. `left` receives 64 bytes to fold
 * further. */
WIDE_INLINE size_t fold_most(__m128i state, const uint8_t *data, size_t size, uint8_t left[64],
                             int bits, uint32_t *largest)
{
    const __m512i by_256 = _mm512_broadcast_i32x4(BY_256_BYTES);
    const __m512i by_64 = _mm512_broadcast_i32x4(BY_64_BYTES);
    size_t done = 256;
    __m512i x[4], most = _mm512_setzero_si512();
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_loadu_si512(data + 64 * i);
        if (bits) most = larger_wide(most, x[i], bits);
    }
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(state));
    for (; size - done >= 256; done += 256)
        for (int i = 0; i < 4; i++) {
            __m512i next = _mm512_loadu_si512(data + done + 64 * i);
            x[i] = fold_wide(x[i], by_256, next);
            if (bits) most = larger_wide(most, next, bits);
        }
    for (int i = 1; i < 4; i++) x[0] = fold_wide(x[0], by_64, x[i]);
    if (bits) {
        _mm512_storeu_si512(left, most);
        mc_largest_bits(left, 64, bits, largest);
    }
    _mm512_storeu_si512(left, x[0]);
    return done;
}

WIDE static size_t fold_plain(__m128i state, const uint8_t *data, size_t size, uint8_t left[64])
{
    return fold_most(state, data, size, left, 0, NULL);
}

WIDE static size_t fold_16(__m128i state, const uint8_t *data, size_t size, uint8_t left[64],
                           uint32_t *largest)
{
    return fold_most(state, data, size, left, 16, largest);
}

WIDE static size_t fold_32(__m128i state, const uint8_t *data, size_t size, uint8_t left[64],
                           uint32_t *largest)
{
    return fold_most(state, data, size, left, 32, largest);
}

static bool can_fold(void) { return __builtin_cpu_supports("pclmul"); }

static bool can_fold_wide(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("vpclmulqdq");
}

static bool can_fold_double(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
}

/* Folds 256 bytes or more, a multiple of 16; `state` is the inverted CRC. `left` receives 16 bytes
 * with the same CRC as all of them. *largest covers all numbers. */
static void fold_bytes(uint32_t state, const uint8_t *data, size_t size, uint8_t left[16], int bits,
                       uint32_t *largest)
{
    uint8_t rest[128 + 256];
    const __m128i first = _mm_cvtsi32_si128((int)state);
    size_t done, kept = 64;
    if (can_fold_wide()) {
        done = bits == 16   ? fold_16(first, data, size, rest, largest)
               : bits == 32 ? fold_32(first, data, size, rest, largest)
                            : fold_plain(first, data, size, rest);
    } else if (can_fold_double()) {
        done = fold_steps(first, data, size, rest, bits, largest);
        kept = 128;
    } else {
        fold_all(first, data, size, left, bits, largest);
        return;
    }
    if (bits) mc_largest_bits(data + done, size - done, bits, largest);
    memcpy(rest + kept, data + done, size - done);
    fold_all(_mm_setzero_si128(), rest, kept + size - done, left, 0, NULL);
}
#else
static bool can_fold(void) { return false; }
static void fold_bytes(uint32_t state, const uint8_t *data, size_t size, uint8_t left[16], int bits,
                       uint32_t *largest)
{
    (void)state, (void)data, (void)size, (void)left, (void)bits, (void)largest;
}
#endif

static uint32_t by_table(const mc_crc32_table *table, uint32_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                              (uint32_t)at[3] << 24);
        crc = table->of[7][low & 0xff] ^ table->of[6][low >> 8 & 0xff] ^
              table->of[5][low >> 16 & 0xff] ^ table->of[4][low >> 24] ^ table->of[3][at[4]] ^
              table->of[2][at[5]] ^ table->of[1][at[6]] ^ table->of[0][at[7]];
    }
    for (; size > 0; size--, at++) crc = crc >> 8 ^ table->of[0][(crc ^ *at) & 0xff];
    return crc;
}

uint32_t mc_crc32_largest(const mc_crc32_table *table, uint32_t crc, const void *data, size_t size,
                          int bits, uint32_t *largest)
{
    enum { LEAST = 256 }; /* fewer bytes are faster by table */
    const uint8_t *at = data;
    uint8_t left[16];
    size_t folded = size >= LEAST && can_fold() ? size / 16 * 16 : 0;
    crc = ~crc;
    if (folded) {
        fold_bytes(crc, at, folded, left, bits, largest);
        crc = by_table(table, 0, left, sizeof left);
    }
    if (bits) mc_largest_bits(at + folded, size - folded, bits, largest);
    return ~by_table(table, crc, at + folded, size - folded);
}

uint32_t mc_crc32(const mc_crc32_table *table, uint32_t crc, const void *data, size_t size)
{
    return mc_crc32_largest(table, crc, data, size, 0, NULL);
}

/* a * b modulo the polynomial; bit 31 is the coefficient of 1. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 1u << 31) product ^= b;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

uint32_t mc_crc32_join(uint32_t first, uint32_t second, uint64_t size)
{
    uint32_t power = 1u << 23; /* x^8, of one byte of zeros */
    for (; size; size >>= 1) {
        if (size & 1) first = multiply(power, first);
        power = multiply(power, power);
    }
    return first ^ second;
}
