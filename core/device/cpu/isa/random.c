/* Counter-based random numbers. Everything here must give the same bits in every build and on every
 * device: integers, and f32 additions, products, quotients and square roots, each rounded once. The
 * build turns off contraction of a * b + c for this file. */
#include <math.h>
#include "core/device/cpu/isa/math_internal.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

/* Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). */
static inline __attribute__((always_inline)) void philox_block(uint64_t key, uint64_t block,
                                                               uint64_t offset, uint32_t *words)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)offset, c3 = (uint32_t)(offset >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xd2511f53u, p1 = (uint64_t)c2 * 0xcd9e8d57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Several blocks at a time, one in each 64-bit lane. A word is in the low half of its lane; the
 * high half does not matter, because the multiplication reads only the low half. Even lanes hold
 * the first blocks and odd lanes the following ones, so that pairing lanes for the store leaves the
 * blocks in order. */
#if defined(__AVX512F__)
enum { BLOCKS = 8 };
typedef __m512i lanes;
#define LANES_FIRST _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0)
#define LANES_ALL(x) _mm512_set1_epi64((long long)(x))
#define LANES_ADD(a, b) _mm512_add_epi64(a, b)
#define LANES_MULTIPLY(a, b) _mm512_mul_epu32(a, b)
#define LANES_HIGH(a) _mm512_srli_epi64(a, 32)
#define LANES_XOR3(a, b, c) _mm512_ternarylogic_epi64(a, b, c, 0x96)
#define LANES_PAIR(low, high) _mm512_mask_mov_epi32(low, 0xaaaa, _mm512_slli_epi64(high, 32))
#define LANES_STORE_EVEN(to, a, b) _mm512_storeu_si512(to, _mm512_unpacklo_epi64(a, b))
#define LANES_STORE_ODD(to, a, b) _mm512_storeu_si512(to, _mm512_unpackhi_epi64(a, b))
#elif defined(__AVX2__)
enum { BLOCKS = 4 };
typedef __m256i lanes;
#define LANES_FIRST _mm256_set_epi64x(3, 1, 2, 0)
#define LANES_ALL(x) _mm256_set1_epi64x((long long)(x))
#define LANES_ADD(a, b) _mm256_add_epi64(a, b)
#define LANES_MULTIPLY(a, b) _mm256_mul_epu32(a, b)
#define LANES_HIGH(a) _mm256_srli_epi64(a, 32)
#define LANES_XOR3(a, b, c) _mm256_xor_si256(a, _mm256_xor_si256(b, c))
#define LANES_PAIR(low, high) _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa)
#define LANES_STORE_EVEN(to, a, b) _mm256_storeu_si256((__m256i *)(to), _mm256_unpacklo_epi64(a, b))
#define LANES_STORE_ODD(to, a, b) _mm256_storeu_si256((__m256i *)(to), _mm256_unpackhi_epi64(a, b))
#endif

#ifdef LANES_FIRST
static inline void philox_lanes(uint64_t key, uint64_t block, uint64_t offset, uint32_t *words)
{
    const lanes m0 = LANES_ALL(0xd2511f53u), m1 = LANES_ALL(0xcd9e8d57u);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    lanes c0 = LANES_ADD(LANES_ALL(block), LANES_FIRST), c1 = LANES_HIGH(c0);
    lanes c2 = LANES_ALL(offset), c3 = LANES_HIGH(c2);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        lanes p0 = LANES_MULTIPLY(c0, m0), p1 = LANES_MULTIPLY(c2, m1);
        c0 = LANES_XOR3(LANES_HIGH(p1), c1, LANES_ALL(k0));
        c1 = p1;
        c2 = LANES_XOR3(LANES_HIGH(p0), c3, LANES_ALL(k1));
        c3 = p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    lanes first = LANES_PAIR(c0, c1), second = LANES_PAIR(c2, c3);
    LANES_STORE_EVEN(words, first, second);
    LANES_STORE_ODD(words + 2 * BLOCKS, first, second);
}
#endif

void MC_K(philox)(uint64_t key, uint64_t first_block, uint64_t offset, int64_t blocks,
                  uint32_t *words)
{
    int64_t done = 0;
#ifdef LANES_FIRST
    for (; done + BLOCKS <= blocks; done += BLOCKS)
        philox_lanes(key, first_block + (uint64_t)done, offset, words + 4 * done);
#endif
    for (int64_t i = done; i < blocks; i++)
        philox_block(key, first_block + (uint64_t)i, offset, words + 4 * i);
}

void MC_K(dropout_factors)(mc_dropout_mask mask, int64_t first, int64_t n, float *factors)
{
    const float keep = 1.0f / (1.0f - mask.p);
    const uint32_t threshold = (uint32_t)((double)mask.p * 0x1p32);
    uint32_t words[MC_CHUNK + 32]; /* whole groups of blocks are fastest */
    int skip = (int)(first & 3);   /* words of the first block for earlier elements */
    const uint64_t offset = mask.offset + (mask.base ? *mask.base : 0);
    while (n > 0) {
        int count = (int)mc_min_i64(n, MC_CHUNK - skip);
        MC_K(philox)
        (mask.seed, (uint64_t)first >> 2, offset, (skip + count + 31) / 32 * 8, words);
#pragma omp simd
        for (int i = 0; i < count; i++) factors[i] = words[skip + i] >= threshold ? keep : 0.0f;
        factors += count;
        first += count;
        n -= count;
        skip = 0;
    }
}

/* sqrt(-2 ln u) for u = k / 2^24, 0 < k <= 2^24. */
static inline float radius(uint32_t k)
{
    return sqrtf(-2.0f * mc_log_f32((float)(int32_t)k * 0x1p-24f));
}

/* Cosine and sine of 2 pi k / 2^24: finds the nearest quarter turn in integers, and uses
 * polynomials of the rest in quarter turns, |t| <= 1/2. */
static inline void turn(uint32_t k, float *cosine, float *sine)
{
    uint32_t quarter = (k + (1u << 21)) >> 22;
    float t = (float)((int32_t)k - (int32_t)(quarter << 22)) * 0x1p-22f, y = t * t;
    float s = ((-0.00460165786379f * y + 0.0796800327617f) * y + -0.645963460233f) * y;
    s = (s + 1.57079632171f) * t;
    float c = ((0.000903766539827f * y + -0.0208601651099f) * y + 0.253669225965f) * y;
    c = (c + -1.2337005426f) * y + 1.0f;
    uint32_t swap = quarter & 1, cs = mc_float_bits(swap ? s : c), ss = mc_float_bits(swap ? c : s);
    *cosine = mc_bits_float(cs ^ ((quarter + 1) & 2) << 30);
    *sine = mc_bits_float(ss ^ (quarter & 2) << 30);
}

/* Box and Muller's transform of each pair of words. */
static void normals(const uint32_t *words, int count, float mean, float std, float *out)
{
#pragma omp simd
    for (int i = 0; i < count / 2; i++) {
        float r = radius((words[2 * i] >> 8) + 1), c, s;
        turn(words[2 * i + 1] >> 8, &c, &s);
        out[2 * i] = mean + std * (r * c);
        out[2 * i + 1] = mean + std * (r * s);
    }
}

/* Rounding could give b, which the range excludes. */
static void uniforms(const uint32_t *words, int count, float a, float b, float *out)
{
    float width = b - a, below = nextafterf(b, a);
#pragma omp simd
    for (int i = 0; i < count; i++) {
        float x = a + width * ((float)(int32_t)(words[i] >> 8) * 0x1p-24f);
        out[i] = x < b || !(b > a) ? x : below;
    }
}

/* Elements first .. first + n, n <= MC_CHUNK, of the whole parameter into `to`. */
static void fill_chunk(mc_fill fill, int64_t first, int n, float *to)
{
    uint32_t words[MC_CHUNK + 8];
    float values[MC_CHUNK + 8];
    int skip = (int)(first & 3), blocks = (skip + n + 3) / 4;
    if (fill.kind == MC_FILL_CONSTANT) {
        for (int i = 0; i < n; i++) to[i] = fill.a;
        return;
    }
    MC_K(philox)(fill.key, (uint64_t)first >> 2, 0, blocks, words);
    if (fill.kind == MC_FILL_NORMAL)
        normals(words, 4 * blocks, fill.a, fill.b, values);
    else
        uniforms(words, 4 * blocks, fill.a, fill.b, values);
    memcpy(to, values + skip, (size_t)n * sizeof *to);
}

mc_status MC_K(fill)(mc_device *d, mc_fill fill, int64_t first, int64_t count, mc_matrix out)
{
    (void)d;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL / 4)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float values[MC_CHUNK];
        fill_chunk(fill, first + k.column, k.n, values);
        mc_convert_out(values, k.n, out.data, out.dtype, k.column);
    }
    return MC_OK;
}
