/* What the tests of attention share: cases, and the shapes that they stand for. */
#ifndef MC_TESTS_ATTENTION_TEST_H
#define MC_TESTS_ATTENTION_TEST_H

#include "tests/device/kernel_test.h"

typedef struct attention_case {
    const int32_t *length;
    int count, heads, dim;
    int tail;          /* rows of capacity past the total */
    int gap, grad_gap; /* elements between rows, of qkv and out, and of their gradients */
    bool causal, masked;
    float dropout;
    mc_dtype dtype;
    const int32_t *key_length; /* of another batch that holds the keys; NULL: the same one */
    mc_dtype bias;             /* 0: none */
    int bias_more;             /* rows and columns of the bias past the longest sequences */
    bool by_distance;          /* the bias, which is f32 then */
    bool marked;               /* random marks, instead of causal */
    int group, value_more;     /* heads that share keys, 0: 1; value_dim - dim */
    int window_left, window_right;
    bool bottom_right;
} attention_case;

/* Columns: a matrix has q, k and v in each row. */
typedef struct attention_widths {
    int key_heads, value_dim;
    int64_t q, k, v, all, out;
} attention_widths;

static inline attention_widths widths_of(const attention_case *c)
{
    int keys = c->heads / (c->group ? c->group : 1), value = c->dim + c->value_more;
    int64_t q = (int64_t)c->heads * c->dim, k = (int64_t)keys * c->dim, v = (int64_t)keys * value;
    return (attention_widths){keys, value, q, k, v, q + k + v, (int64_t)c->heads * value};
}

/* Whether a query sees a key by where it lies. */
static inline bool place_allows(const attention_case *c, int place, int key)
{
    return (!c->causal || key <= place) && (!c->window_left || place - key < c->window_left) &&
           (!c->window_right || key - place < c->window_right);
}

enum { MOST_SEQUENCES = 400 };

/* Lengths of a packed batch; `packed` (2 MOST_SEQUENCES + 1) gets them, and the offsets after. */
static inline mc_lengths pack_lengths(const attention_case *c, const int32_t *length, int tail,
                                      int32_t *packed)
{
    int32_t *offset = packed + c->count, longest = 0;
    assert_true(c->count <= MOST_SEQUENCES);
    for (int i = 0; i < c->count; i++) {
        packed[i] = length[i];
        longest = length[i] > longest ? length[i] : longest;
    }
    offset[0] = 0;
    for (int i = 0; i < c->count; i++) offset[i + 1] = offset[i] + length[i];
    return (mc_lengths){c->count, packed, offset, offset[c->count], offset[c->count] + tail,
                        longest};
}

/* Which keys are seen where a case is masked: two of three, of the first sequence none. To be
 * freed. */
static inline uint8_t *random_mask(const attention_case *c, const mc_lengths *keys)
{
    uint8_t *mask = malloc((size_t)keys->total + 1);
    assert_non_null(mask);
    for (int64_t i = 0; i < keys->total; i++) mask[i] = random_bits() % 3 != 0;
    if (c->masked && c->count) memset(mask, 0, (size_t)keys->length[0]);
    return mask;
}

/* Without a bias. */
static inline mc_attention_shape shape_of(const attention_case *c, const mc_lengths *queries,
                                          const mc_lengths *keys, const uint8_t *mask)
{
    return (mc_attention_shape){.lengths = queries,
                                .key_lengths = c->key_length ? keys : NULL,
                                .heads = c->heads,
                                .head_dim = c->dim,
                                .key_heads = c->group ? c->heads / c->group : 0,
                                .value_dim = c->value_more ? c->dim + c->value_more : 0,
                                .bottom_right = c->bottom_right,
                                .window_left = c->window_left,
                                .window_right = c->window_right,
                                .scale = 1 / sqrtf((float)c->dim),
                                .causal = c->causal,
                                .key_mask = c->masked ? mask : NULL,
                                .dropout = {c->dropout, 0x9876543210u, 3}};
}

/* Marks of three spans, half of the tokens context. To be freed. */
static inline int32_t *random_marks(const mc_lengths *keys)
{
    int32_t *marks = malloc(((size_t)keys->total + 1) * sizeof *marks);
    assert_non_null(marks);
    for (int64_t i = 0; i < keys->total; i++)
        marks[i] = (int32_t)(2 * (random_bits() % 3) + random_bits() % 2);
    return marks;
}

/* Whether query i of a sequence sees its key j, both with their marks. By CPM's own words, not by
 * the library's function. */
static inline bool marks_allow(int32_t query, int32_t key, int i, int j)
{
    if (query / 2 != key / 2) return false;
    if (key % 2 == 1) return true;
    return query % 2 == 0 && j <= i;
}

/* The bias's rows for each head, and its columns. */
static inline void bias_size(const attention_case *c, const mc_lengths *queries,
                             const mc_lengths *keys, int64_t *rows, int64_t *columns)
{
    int64_t longest = queries->longest > keys->longest ? queries->longest : keys->longest;
    *rows = c->by_distance ? 1 : queries->longest + c->bias_more;
    *columns = c->by_distance ? 2 * (longest + c->bias_more) - 1 : keys->longest + c->bias_more;
    if (*columns < 1) *columns = 1; /* some memory */
}

/* The bias and its gradient, of those sizes, in the shape. */
static inline void set_bias(const attention_case *c, mc_attention_shape *shape, mc_matrix bias,
                            int64_t rows, float *dbias)
{
    if (c->by_distance) {
        shape->position_bias = bias.data;
        shape->position_limit = (bias.stride + 1) / 2;
        shape->dposition_bias = dbias;
    } else {
        shape->bias = bias;
        shape->bias_rows = rows;
        shape->dbias = dbias;
    }
}

static void run_case(attention_case c); /* each test's own */

/* Under sanitizers a third of the kinds, another one at each call: a test's call has had all of
 * them once it has been made for the three dtypes. */
static inline bool is_spared(int mode, int call)
{
#ifdef MC_TEST_SANITIZED
    return mode % 3 != call % 3;
#else
    (void)mode, (void)call;
    return false;
#endif
}

static inline void run_kinds(attention_case c)
{
    static int calls;
    int call = calls++;
    for (int mode = 0; mode < 8; mode++) {
        if (is_spared(mode, call)) continue;
        c.causal = !c.marked && mode & 1;
        c.masked = mode & 2;
        c.dropout = mode & 4 ? 0.2f : 0;
        run_case(c);
    }
}

#endif
