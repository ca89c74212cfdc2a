/* The kernels a device offers: the one table between operations and hardware.
 *
 * Conventions. Matrices are row-major with a row stride in elements (`mc_matrix`). f32, f16 and
 * bf16 are accepted wherever a matrix of floats is; arithmetic and accumulation are f32, results
 * are rounded to nearest even once, on store. Counts may be zero. `accumulate` adds to the
 * destination instead of overwriting it. Outputs may not overlap inputs unless a kernel says so.
 * Kernels check nothing: operations have checked shapes and dtypes. A kernel that needs scratch
 * memory takes it from the device's pool and returns MC_ERR_NOMEM when there is none (otherwise
 * MC_OK). Results do not depend on uninitialised memory, and are bit-equal from run to run with the
 * same number of threads. */
#ifndef MC_DEVICE_KERNELS_INTERNAL_H
#define MC_DEVICE_KERNELS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/status.h"
#include "core/device/activation.h"
#include "core/device/choose_internal.h"
#include "core/device/fp8_internal.h"
#include "core/device/step_internal.h"
#include "core/device/weights.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"

typedef struct mc_device mc_device;

typedef struct mc_matrix {
    void *data;
    mc_dtype dtype;
    int64_t stride; /* elements from one row to the next */
} mc_matrix;

/* A matrix (rows, columns) in 8 bits, with contiguous rows: element (i, k) is scale[i] times the
 * value of byte i * columns + k in the format (quantized_internal.h). */
typedef struct mc_matrix8 {
    mc_weight_format format;
    int64_t rows, columns;
    uint8_t *data;
    float *scale; /* (rows) */
} mc_matrix8;

/* Dropout of a tensor read in element order i = 0, 1, ...: element i is kept iff word i % 4 of the
 * Philox-4x32-10 block with key = seed and counter = (i / 4, offset), both 64-bit little-endian
 * word pairs, is >= (uint32_t)(p * 2^32); kept values are multiplied by 1 / (1 - p). p == 0: none.
 * The offset is the sum of `offset` and *base, so that recorded launches drop different elements in
 * each run. A library's attention (cuDNN's, for f16 and bf16) draws its own numbers from the same
 * seed and offset: it drops other probabilities, but the same ones in forward and backward. */
typedef struct mc_dropout_mask {
    float p;
    uint64_t seed, offset;
    const uint64_t *base; /* device memory: added to offset when the kernel runs; NULL: 0 */
} mc_dropout_mask;

/* The initial values of a parameter's elements; see core/nn/module.h. Element i depends only on
 * (key, i): Philox block i / 4 (offset 0) gives the uniforms of elements 4j .. 4j+3. */
typedef enum mc_fill_kind { MC_FILL_CONSTANT, MC_FILL_NORMAL, MC_FILL_UNIFORM } mc_fill_kind;
typedef struct mc_fill {
    mc_fill_kind kind;
    float a, b; /* constant a; normal(mean a, std b); uniform over [a, b) */
    uint64_t key;
} mc_fill;

/* Attention over a packed batch; q: (rows, heads * head_dim), k: (rows, key_heads * head_dim), v:
 * (rows, key_heads * value_dim), out: (rows, heads * value_dim), often column views of one matrix.
 * Scores are scale * q.k + bias, softmax over the keys of the same sequence. k and v may belong to
 * another packed batch than q and out, with the same number of sequences. */
typedef struct mc_attention_shape {
    const mc_lengths *lengths; /* of the queries, on the host */
    /* the same in device memory: length (count), then offset (count + 1) */
    const int32_t *device_lengths;
    int heads, head_dim;
    /* Grouped heads (Ainslie et al. 2023): head h of the queries reads head h / (heads / key_heads)
     * of the keys and values; a divisor of heads. 0: heads. */
    int key_heads;
    int value_dim; /* of a head of v and out; 0: head_dim */
    float scale;
    /* Query i of a sequence is at key i; with bottom_right the last query is at the last key. A
     * causal query attends to the keys up to its place. */
    bool causal, bottom_right;
    /* The most keys that a query attends to on each side, including the key at its place: with
     * window_left 1, none before it. 0: no limit. */
    int window_left, window_right;
    /* Keys to ignore: (total of the keys' lengths) bytes, 0 = ignored; NULL: none. The result of a
     * query without keys is zero. */
    const uint8_t *key_mask;
    /* On the probabilities; element index ((h * total + query row) * L4 + k), L4 = the longest
     * sequence of keys rounded up to 4, k counted within the sequence. */
    mc_dropout_mask dropout;
    /* For the keys, like the two above for the queries; NULL: the same. */
    const mc_lengths *key_lengths;
    const int32_t *device_key_lengths;
    /* Added to the scores, the same for all sequences: (heads, bias_rows, bias.stride), element
     * [h][i][j] for query i and key j of a sequence; bias_rows and bias.stride are at least the
     * longest sequences of queries and of keys. NULL data: none. -infinity hides a key; if it hides
     * all keys of a query, our kernels give zeros, a library's may give NaN. */
    mc_matrix bias;
    int64_t bias_rows;
    /* attention_backward adds the gradient of the bias here (f32, its shape), over the sequences in
     * a fixed order; NULL: not required. attention does not read it. */
    float *dbias;
    /* Relative position bias (Raffel et al. 2020), added to the scores. It depends only on the
     * distance of key and query: f32 (heads, 2 * position_limit - 1), element [h][position_limit -
     * 1 + j - i] for key j and the query at key i, both counted within their sequence.
     * position_limit is at least the longest sequence of queries and of keys. NULL: none. Not
     * together with `bias`. */
    const float *position_bias;
    int64_t position_limit;
    /* attention_backward adds the gradient of position_bias here (its shape), in a fixed order;
     * NULL: not required. attention does not read it. */
    float *dposition_bias;
    /* Token marks of CPM-1 (self-attention only): i32 (total), 2 * span + context for each token.
     * Query i attends to key j iff both have the same span, and either key j is context, or query i
     * is not context and j <= i. Replaces `causal`. NULL: none. */
    const int32_t *marks;
    /* Global tokens of self-attention (Beltagy et al. 2020): i32 (total), 0 = global, negative: a
     * query without keys. No window hides a global key. With global_queries only global queries
     * have keys, without it only the others. NULL: none. */
    const int32_t *globals;
    bool global_queries;
    /* The kernels of the call: attention writes it, and attention_backward reads it (NULL: it
     * chooses like attention). The CPU has no choice. */
    const struct mc_route *route;
} mc_attention_shape;

/* The bias of the scores, in either form: for head h, query i and key j it is element first + h *
 * head_step + i * query_step + j. For a bias by distance, a query's row begins one element before
 * the previous query's. */
typedef struct mc_score_bias {
    mc_matrix values; /* NULL data: none */
    float *gradient;  /* in the same layout; NULL: not required */
    int64_t first, head_step, query_step;
} mc_score_bias;
static inline mc_score_bias mc_score_bias_of(const mc_attention_shape *s)
{
    mc_score_bias b = {s->bias, s->dbias, 0, s->bias_rows * s->bias.stride, s->bias.stride};
    if (!s->position_bias) return b;
    b.values.data = (void *)(uintptr_t)s->position_bias;
    b.values.dtype = MC_F32;
    b.values.stride = b.head_step = 2 * s->position_limit - 1;
    b.gradient = s->dposition_bias;
    b.first = s->position_limit - 1;
    b.query_step = -1;
    return b;
}

/* The rule of `marks`, for the marks of a query and a key and their positions in the sequence. */
static inline bool mc_marks_see(int32_t query_mark, int32_t key_mark, int64_t query, int64_t key)
{
    bool same_span = ((query_mark ^ key_mark) & ~1) == 0;
    return same_span && ((key_mark & 1) || (!(query_mark & 1) && key <= query));
}

/* The rule of `globals`, for a query's and a key's; `near`: the key is in the query's window. */
static inline bool mc_globals_see(bool global_queries, int32_t query, int32_t key, bool near)
{
    return query >= 0 && (query == 0) == global_queries && (near || key == 0);
}

/* The lengths of the keys and values. */
static inline const mc_lengths *mc_key_lengths(const mc_attention_shape *shape)
{
    return shape->key_lengths ? shape->key_lengths : shape->lengths;
}
static inline int mc_key_heads(const mc_attention_shape *shape)
{
    return shape->key_heads ? shape->key_heads : shape->heads;
}
static inline int mc_value_dim(const mc_attention_shape *shape)
{
    return shape->value_dim ? shape->value_dim : shape->head_dim;
}

/* The key at which the first query of a sequence is. */
static inline int64_t mc_first_place(const mc_attention_shape *s, int64_t queries, int64_t keys)
{
    return s->bottom_right ? keys - queries : 0;
}

/* Keys first .. end - 1, of `keys`, to which the query at `place` attends, apart from masks and
 * marks. Both never decrease from one query to the next. */
typedef struct mc_key_range {
    int64_t first, end;
} mc_key_range;
static inline mc_key_range mc_keys_seen(const mc_attention_shape *s, int64_t place, int64_t keys)
{
    int64_t right = s->causal ? 1 : s->window_right, end = right ? place + right : keys;
    int64_t first = s->window_left ? place + 1 - s->window_left : 0;
    end = end < 0 ? 0 : end > keys ? keys : end;
    return (mc_key_range){first < 0 ? 0 : first > end ? end : first, end};
}

/* The feature of a shape that only a device's plain kernels support, not those on tensor cores;
 * NULL: none. */
static inline const char *mc_attention_needs(const mc_attention_shape *s)
{
    if (mc_key_heads(s) != s->heads) return "heads that share keys";
    if (mc_value_dim(s) != s->head_dim) return "values of another head size";
    if (s->window_left || s->window_right) return "a window";
    if (s->globals) return "global tokens";
    return s->bottom_right ? "queries that end where the keys end" : NULL;
}

/* One new token per sequence, or any other query that attends to the keys of one sequence. */
typedef struct mc_cached_attention {
    int64_t sequences;
    int heads, head_dim, key_heads, value_dim; /* the last two as in mc_attention_shape */
    float scale;
    int window_left; /* at most this many of the last keys; 0: all */
    /* Sequence s attends to n = lengths[s] <= longest rows of k and v from first[s] on; NULL: from
     * s * capacity. In device memory; `longest` is known on the host. */
    const int32_t *lengths, *first;
    int64_t capacity, longest;
    /* If the rows are in pages of 2^page_shift: key i is in row mc_page_row(pages, page_shift,
     * first[s], i). In device memory. NULL: no pages. */
    const int32_t *pages;
    int page_shift;
    /* (sequences, columns of k; of v): keys and values of the queries' own tokens, the last of each
     * sequence. The kernel first stores them in their rows of k and v. NULL data: they are
     * there. */
    mc_matrix new_k, new_v;
    /* Added to the scores as in mc_attention_shape, for a query at its last key; NULL: none.
     * position_limit >= longest. */
    const float *position_bias;
    int64_t position_limit;
} mc_cached_attention;

static inline int mc_cached_key_heads(const mc_cached_attention *c)
{
    return c->key_heads ? c->key_heads : c->heads;
}
static inline int mc_cached_value_dim(const mc_cached_attention *c)
{
    return c->value_dim ? c->value_dim : c->head_dim;
}

/* The row of key i of a sequence whose page numbers start at pages[first]. */
MC_ANYWHERE int64_t mc_page_row(const int32_t *pages, int shift, int32_t first, int64_t i)
{
    return ((int64_t)pages[first + (i >> shift)] << shift) + (i & ((1 << shift) - 1));
}

/* Rotary positions (Su et al. 2021) in the first `heads` heads of head_dim columns of each row:
 * pair i of the head's first rotary_dim columns is rotated by position * base^(-2 i / rotary_dim),
 * backwards with `inverse`. Pairs are columns i and i + rotary_dim / 2 with `halves`, else 2 i and
 * 2 i + 1. */
typedef struct mc_rotation {
    int heads, head_dim, rotary_dim;
    bool halves, inverse;
    float base;
    float magnitude; /* factor of cosine and sine; 0: 1 */
    /* Pair i with the angle a per position keeps the fraction keep[0] + keep[1] i + keep[2] a of
     * it, limited to 0 to 1; the rest is divided by `factor`. factor 0: keeps all. */
    float factor;
    double keep[3];
} mc_rotation;

/* The angle of a pair per position, from the angle by the base alone. */
MC_ANYWHERE double mc_rotary_angle(const mc_rotation *r, int pair, double angle)
{
    if (r->factor == 0) return angle;
    double kept = r->keep[0] + r->keep[1] * pair + r->keep[2] * angle;
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    return angle * (kept + (1 - kept) / r->factor);
}
MC_ANYWHERE float mc_rotary_magnitude(const mc_rotation *r)
{
    return r->magnitude == 0 ? 1.0f : r->magnitude;
}

/* One Adam update over `count` elements of flat arrays:
 *     lr = update->lr * lr_factor,  t = update->step + step_offset
 *     g' = g * update->gradient_scale + (l2 ? weight_decay * p : 0)
 *     m  = beta1 m + (1 - beta1) g'
 *     v  = beta2 v + (1 - beta2) g'^2
 *     p' = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *            - (l2 ? 0 : lr * weight_decay * p)
 * and nothing at all if update->skip. Powers and quotients of the scalars are taken in double, from
 * the betas as they stand here (with 0.999 there and 0.999f here, v would be off by 1e-5 of
 * itself), and then rounded to f32. */
typedef struct mc_adam_step {
    const mc_update *update; /* device memory */
    float beta1, beta2, eps;
    float lr_factor, weight_decay;
    bool l2;
    int64_t step_offset; /* <= 0: for parameters that joined the optimizer later */
} mc_adam_step;

/* Optimizer state in 8 bits: a code for each element, and for each MC_STATE_BLOCK elements a scale,
 * their largest magnitude. A code is an index into a sorted map of 256 numbers
 * (dynamic_map_internal.h). All zeros: state of zero. */
enum { MC_STATE_BLOCK = 256 };
typedef struct mc_state8 {
    uint8_t *code;
    float *scale;
} mc_state8;

/* One step of SGD: g' and decay as in mc_adam_step; buffer = momentum * buffer + g' (at t = 1: g'),
 * p -= lr * buffer (nesterov: g' + momentum * buffer). momentum 0: no buffer. */
typedef struct mc_sgd_step {
    const mc_update *update; /* device memory */
    float momentum;
    bool nesterov;
    float lr_factor, weight_decay;
    bool l2;
    int64_t step_offset;
} mc_sgd_step;

/* One step of Muon on elements of a matrix. */
typedef struct mc_muon_step {
    const mc_update *update; /* device memory */
    float momentum;
    bool nesterov;
    float lr_factor, weight_decay;
    float scale; /* factor of Newton-Schulz's result */
} mc_muon_step;

/* The first column after the strip of a row (muon_mirror). */
MC_ANYWHERE int64_t mc_strip_end(int64_t n, int64_t strip, int64_t row)
{
    int64_t first = row / strip * strip;
    return n - first < 2 * strip ? n : first + strip;
}

/* A linear layer: y (rows, out) = activation(alpha * x weight^T + bias), x (rows, in), weight (out,
 * in), bias (out) or NULL data. With an activation, pre receives its argument unless pre's data is
 * NULL; without one pre is ignored. */
typedef struct mc_linear_call {
    int64_t rows, in, out;
    float alpha;
    mc_matrix x, weight, bias;
    mc_activation activation;
    mc_matrix pre, y;
} mc_linear_call;

/* The gradient of a linear's input: dx (rows, in) = beta * dx + alpha * dy (rows, out) weight. With
 * an activation (then beta is 0) this is multiplied by activation'(pre), pre (rows, in), which
 * gives the gradient of the previous linear's pre-activation; its column sums, the gradient of that
 * linear's bias, are added to sums (in), unless NULL. dbias (out) += the column sums of dy, the
 * gradient of the linear's own bias, unless NULL. */
typedef struct mc_linear_backward_call {
    int64_t rows, in, out;
    float alpha, beta;
    mc_matrix dy, weight;
    mc_activation activation;
    mc_matrix pre, dx;
    float *sums, *dbias;
} mc_linear_backward_call;

/* The norm of a residual sum: s = x + dropout(f) (f.data NULL: s = x, and then s.data may be
 * x.data); s.data NULL: not stored, but y is computed as if it were, in x's dtype; y = (s - mean) *
 * rstd * weight + bias, rstd = 1/sqrt(var + eps), biased variance. mean, rstd: (rows) f32, may be
 * NULL. Dropout counts elements of the (rows, columns) matrix. bias.data NULL makes it RMSNorm: y =
 * s * rstd * weight, rstd = 1/sqrt(mean of s^2 + eps); mean is left alone. y may be f. With `bytes`
 * also writes y to it in E4M3, as fp8_cast with that scale does. */
typedef struct mc_residual_norm_call {
    int64_t rows, columns;
    mc_matrix x, f;
    mc_dropout_mask dropout;
    mc_matrix weight, bias;
    float eps;
    mc_matrix s, y;
    float *mean, *rstd;
    uint8_t *bytes;     /* (rows, columns), contiguous; NULL: none */
    const float *scale; /* of bytes, in device memory */
} mc_residual_norm_call;

/* The gradients of mc_residual_norm_call. mean NULL: of RMSNorm, and then dbias is NULL. ds [+]=
 * the norm's gradient at s. df = the dropout mask applied to the resulting ds (or if ds.data is
 * NULL, to the norm's gradient), rounded; NULL data: not required. dweight, dbias (columns) f32 +=
 * (NULL: not required). dbranch (columns) f32 += the column sums of df as stored (or if df.data is
 * NULL, of the resulting ds), equal to column_sums except for the order: the gradient of a bias at
 * the end of f (NULL, or neither df nor ds: not required). */
typedef struct mc_residual_norm_backward_call {
    int64_t rows, columns;
    mc_matrix s, weight;
    const float *mean, *rstd;
    mc_matrix dy;
    mc_dropout_mask dropout;
    mc_matrix ds, df;
    bool accumulate; /* to ds */
    float *dweight, *dbias, *dbranch;
} mc_residual_norm_backward_call;

/* Statistics of some elements. Sums are of x - shift, where shift is one of the elements (0 if that
 * is not finite), so that a mean that is large compared with the spread costs no precision. */
typedef struct mc_tensor_stats {
    int64_t count;
    double shift, sum, squares;
    float largest, smallest; /* NaN if any element is; -INFINITY and INFINITY for no elements */
} mc_tensor_stats;

/* ---- general operations ---------------------------------------------------------------------- */

/* Two arrays of one shape, each with its own stride in every dimension, in elements. A stride of 0
 * in x repeats its elements. */
enum { MC_STRIDED_DIMS = 5 };
typedef struct mc_strided_shape {
    int ndim; /* 1 to MC_STRIDED_DIMS */
    int64_t size[MC_STRIDED_DIMS], x[MC_STRIDED_DIMS], y[MC_STRIDED_DIMS];
} mc_strided_shape;

/* `batch` products C(m,n) = alpha * op(A) op(B) + add, as gemm makes them. The matrices of product
 * i lie i steps (in elements) after the first ones. A step of 0: all products share the operand;
 * not allowed of c. add: of c's dtype, stride and step, either c.data or apart from it; NULL:
 * nothing is added, and C is not read. */
typedef struct mc_batched_gemm_call {
    int64_t batch;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    float alpha;
    mc_matrix a, b;
    const void *add;
    mc_matrix c;
    int64_t a_step, b_step, c_step;
} mc_batched_gemm_call;

/* Functions of one element. */
typedef enum mc_unary {
    MC_UNARY_EXP,
    MC_UNARY_LOG,
    MC_UNARY_SQRT,
    MC_UNARY_SIGMOID,
    MC_UNARY_SOFTPLUS /* ln(1 + e^x) */
} mc_unary;

/* Functions of two elements that depend on their order. */
typedef enum mc_binary { MC_BINARY_SUBTRACT, MC_BINARY_DIVIDE } mc_binary;

/* Functions of a row. NORMALIZE is x / max(|x|, eps), |x| the row's Euclidean length. */
/* The ids of sequences in GLM's format, whose blanks are filled in after the text. The first
 * `start` ends the text. Rows of the text are context: mark 1, position in the sequence, block 0.
 * Each `start` begins a block, which fills a blank: mark 0, the position of a `mask` of the
 * sequence, and the row's number in its block, from 1. Block i has the i-th mask, the last block
 * the last mask; with fewer masks the rest has the last one; without masks rows have their own
 * position. */
typedef struct mc_blanks_call {
    const int32_t *ids; /* (capacity) */
    int32_t start, mask;
    int32_t *mark, *position, *block; /* (capacity) */
} mc_blanks_call;

typedef enum mc_row_map { MC_ROW_SOFTMAX, MC_ROW_LOG_SOFTMAX, MC_ROW_NORMALIZE } mc_row_map;

/* Cross-entropy of rows. With class weights w and smoothing e, the loss of a row with the label c
 * is
 *     (1 - e) w[c] nll[c] + e / classes * sum over j of w[j] nll[j],  nll[j] = -log softmax(x)[j]
 * and 0 if the label is ignore_index. */
typedef struct mc_row_loss_call {
    int64_t rows, classes;
    mc_matrix x;
    const int32_t *labels; /* checked by the op */
    int32_t ignore_index;
    float smoothing;
    const float *class_weights; /* (classes); NULL: ones */
} mc_row_loss_call;

/* ---- training in 8 bits (fp8_internal.h) ----------------------------------------------------- */

/* Casts x (rows, columns): each element times scale, as a byte, to `data` (rows, columns),
 * contiguous, and to `transposed` (columns, padded), whose rows end with zeros from element `rows`
 * on; NULL: not required. Adds its observations to *seen, unless NULL. scale NULL: casts nothing
 * and only updates seen->largest.
 *
 * With an activation it casts activation(x) or, with `pre` (of x's shape), x * activation'(pre),
 * rounded to x's dtype as `activation` and `activation_backward` would store it. Adds the column
 * sums to sums (columns), f32; NULL: no sums, always so without `pre`.
 *
 * `gated`: it casts the result of the kernel `gated` for x (rows, 2 * columns) or, with `pre`
 * (rows, columns), that of `gated_backward` for `pre` and the gradient x (rows, columns / 2). The
 * columns of a half are a multiple of 8. */
typedef struct mc_fp8_cast_call {
    int64_t rows, columns, padded;
    mc_matrix x;
    mc_activation activation;
    bool gated;
    mc_matrix pre;
    float *sums;
    mc_fp8_format format;
    const float *scale; /* device memory */
    mc_fp8_seen *seen;  /* device memory */
    uint8_t *data, *transposed;
} mc_fp8_cast_call;

/* Whether x itself is cast. */
static inline bool mc_fp8_is_plain(const mc_fp8_cast_call *c)
{
    return c->activation == MC_ACTIVATION_NONE && !c->gated;
}

/* Casts x (rows, columns) or, with factor (columns), x(i, k) * factor[k] in f32, to E4M3 with a
 * scale for each row: that of its largest magnitude (mc_fp8_set_scale). Row i is inverse[i] times
 * its bytes. All in device memory. */
typedef struct mc_fp8_rows_call {
    int64_t rows, columns;
    mc_matrix x;
    const float *factor; /* NULL: none */
    int margin;
    uint8_t *data;  /* (rows, columns), contiguous */
    float *inverse; /* (rows) */
} mc_fp8_rows_call;

/* Computes scales of `count` tensors, with the roles first_role, first_role + 1, ... in turn, from
 * the observations of `ranks` ranks: seen (ranks, count). With `current` from these alone;
 * otherwise they enter the histories, which determine the scales. Zeros clear (count), and adds the
 * observations to *total, unless NULL. All in device memory. */
typedef struct mc_fp8_update_call {
    int count, ranks;
    mc_fp8_role first_role;
    bool current;
    int margin;
    const mc_fp8_seen *seen;
    mc_fp8_scale *scales;
    mc_fp8_seen *clear;
    mc_fp8_total *total;
} mc_fp8_update_call;

/* A matrix of bytes; element (i, k) is *inverse (device memory) times the value of byte i * stride
 * + k, or inverse[i] times that in a product by rows. */
typedef struct mc_fp8_matrix {
    const uint8_t *data;
    int64_t stride;
    mc_fp8_format format;
    const float *inverse;
} mc_fp8_matrix;

/* C(m,n) = alpha * op(A) op(B) + beta * C + bias, as in gemm, summed in f32; bias (n) has C's
 * dtype; NULL data: no bias; with a bias beta is 0. `fast`: tensor cores may sum with fewer digits
 * (14 bits of mantissa on Hopper). On a device with fp8_tn op(A) is A as stored and op(B) B
 * transposed; strides are multiples of MC_FP8_UNIT, and data is aligned to 16 bytes.
 *
 * `by_rows`: A and B have an inverse for each of their rows as stored, which are rows of op(A) and
 * columns of op(B). An inverse of NULL is 1 for all rows, of B in any order; with fp8_tn an array
 * is required.
 *
 * With C of MC_U8, contiguous: C = *scale * activation(alpha * op(A) op(B) + bias) in E4M3, as
 * fp8_cast rounds, but infinity may become the largest number; bias has any dtype. GPUs may round
 * to 16 bits before the activation. */
typedef struct mc_fp8_gemm_call {
    bool transpose_a, transpose_b, fast, by_rows;
    int64_t m, n, k;
    float alpha, beta;
    mc_fp8_matrix a, b;
    mc_matrix bias, c;
    mc_activation activation; /* NONE unless C is MC_U8 */
    const float *scale;       /* device memory, at a multiple of 16 bytes; used for MC_U8 */
} mc_fp8_gemm_call;

typedef struct mc_kernels {
    /* C(m,n) = alpha * op(A) op(B) + beta * C (beta 0 or 1; with 0 C is not read); op transposes if
     * asked: A is (m,k) or, transposed, stored (k,m); B is (k,n) or, transposed, stored (n,k). */
    mc_status (*gemm)(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                      int64_t k, float alpha, mc_matrix a, mc_matrix b, float beta, mc_matrix c);

    mc_status (*linear)(mc_device *d, const mc_linear_call *call);
    mc_status (*linear_backward_input)(mc_device *d, const mc_linear_backward_call *call);

    /* x += bias (f32/f16/bf16, (columns); NULL data: none), and x keeps this pre-activation; then y
     * = activation(x). y.data == x.data or NULL if the activation is NONE. */
    mc_status (*bias_activation)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                 mc_matrix bias, mc_activation activation, mc_matrix y);
    /* dx [+]= factor * dy * activation'(x), x the pre-activation; dx may be dy. For ReLU x may be
     * its output instead, also after dropout: it is positive where x was and was not dropped. */
    mc_status (*activation_backward)(mc_device *d, int64_t rows, int64_t columns,
                                     mc_activation activation, mc_matrix x, float factor,
                                     mc_matrix dy, mc_matrix dx, bool accumulate);
    /* y = activation(x), elementwise; y may be x. */
    mc_status (*activation)(mc_device *d, int64_t rows, int64_t columns, mc_activation activation,
                            mc_matrix x, mc_matrix y);
    /* out (columns) f32 += sum over rows of x. */
    mc_status (*column_sums)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, float *out);

    mc_status (*residual_norm)(mc_device *d, const mc_residual_norm_call *call);
    mc_status (*residual_norm_backward)(mc_device *d, const mc_residual_norm_backward_call *call);

    /* y [+]= dropout(x), or dropout(relu(x)). Backward without `relu` is the same call on the
     * gradient; y may be x. */
    mc_status (*dropout)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, bool relu,
                         mc_dropout_mask dropout, mc_matrix y, bool accumulate);

    /* y(row) = scale * sum over the `tables` of table[i](index[i][row]). The op has checked the
     * indices, i32. */
    mc_status (*embedding)(mc_device *d, int64_t rows, int64_t columns, int tables,
                           const mc_matrix *table, const int32_t *const *index, float scale,
                           mc_matrix y);
    /* dtable(index[row]) += scale * dy(row), in f32 and in a fixed order. */
    mc_status (*embedding_backward)(mc_device *d, int64_t rows, int64_t columns, mc_matrix dy,
                                    const int32_t *index, float scale, mc_matrix dtable);
    /* y(i) = x(index[i]); embedding_backward computes its gradient dx(index[i]) += dy(i). A
     * negative index gives a row of zeros here and is skipped there. */
    mc_status (*gather_rows)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                             const int32_t *index, mc_matrix y);
    /* position[row] = first + the number of ids before it in its sequence that are not `pad`; first
     * - 1 for a pad and after the last sequence. The lengths are passed twice, as in
     * mc_attention_shape. */
    mc_status (*token_positions)(mc_device *d, const mc_lengths *lengths,
                                 const int32_t *device_lengths, const int32_t *ids, int32_t pad,
                                 int32_t first, int32_t *position);
    /* GLM's marks and positions of each row; after the last sequence they are 0. */
    mc_status (*find_blanks)(mc_device *d, const mc_lengths *lengths, const int32_t *device_lengths,
                             const mc_blanks_call *call);

    /* out = attention(q, k, v), each of any floating dtype. log_sum_exp (heads, total of the
     * queries) f32: for backward; NULL: not required. Rows of out from its total to its capacity
     * are set to zero. */
    mc_status (*attention)(mc_device *d, mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                           mc_matrix v, mc_matrix out, float *log_sum_exp);
    /* dq, dk, dv and shape->dbias of the same; recomputes the probabilities from q, k and
     * log_sum_exp. Rows past the totals of dq, dk, dv are set to zero. */
    mc_status (*attention_backward)(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                    mc_matrix k, mc_matrix v, mc_matrix out,
                                    const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                    mc_matrix dk, mc_matrix dv);

    /* loss[0] += sum over rows with label != ignore_index of (log sum exp(x) - x[label]), with
     * `smoothing` e: (1-e) * that + e * mean over classes of (lse - x_c); loss[1] += their number.
     * dx.data not NULL: dx = seed * gradient of the sum (zero rows where ignored), may be x. `seed`
     * points to device memory; NULL without dx. dx may have a larger row stride than classes;
     * elements after the classes are not changed. Labels are i32, checked by the op. The sum is
     * accumulated in double in a fixed order. */
    mc_status (*cross_entropy)(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                               const int32_t *labels, int32_t ignore_index, float smoothing,
                               const float *seed, float *loss, mc_matrix dx);
    /* Of losses (sum, count) in device memory: y = (a.sum + k * b.sum, c) and k_out = (k, 0) with
     * c = a.count, 1 if that is 0, and k = factor * c / b.count, 0 if that is 0. */
    mc_status (*loss_add)(mc_device *d, const float *a, const float *b, float factor, float *y,
                          float *k_out);

    mc_status (*argmax)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, int32_t *out);

    /* Elementwise with broadcasting of b over the leading elements: i -> b[i % b_count]. */
    mc_status (*add)(mc_device *d, int64_t count, mc_matrix a, mc_matrix b, int64_t b_count,
                     mc_matrix y); /* y may be a */
    mc_status (*multiply)(mc_device *d, int64_t count, mc_matrix a, mc_matrix b, int64_t b_count,
                          mc_matrix y, bool accumulate);
    /* y [+]= factor * x, converting dtypes. */
    mc_status (*scale)(mc_device *d, int64_t count, mc_matrix x, float factor, mc_matrix y,
                       bool accumulate);
    /* y(i) [+]= sum over j of x(j * y_count + i): the gradient of broadcasting. y f32/f16/bf16. */
    mc_status (*sum_leading)(mc_device *d, int64_t count, mc_matrix x, int64_t y_count, mc_matrix y,
                             bool accumulate);

    /* Element i of `out` (elements first .. first + count of the parameter) by `fill`. */
    mc_status (*fill)(mc_device *d, mc_fill fill, int64_t first, int64_t count, mc_matrix out);
    mc_status (*zero)(mc_device *d, void *data, size_t bytes);

    /* ---- flat optimizer kernels: all arrays of `count` elements ---- */
    mc_status (*adam)(mc_device *d, int64_t count, mc_adam_step step,
                      mc_matrix gradient /* f32/f16/bf16 */, float *m, float *v,
                      float *master /* NULL: the parameter is f32 itself */, void *parameter,
                      mc_dtype parameter_dtype);
    /* The same with m and v in 8 bits, whose blocks begin at the first element: m in the signed
     * map, v in the unsigned one, in which nothing above zero becomes zero. Both are decoded,
     * updated in f32, from which the parameter is updated too, and encoded again. */
    mc_status (*adam8)(mc_device *d, int64_t count, mc_adam_step step, mc_matrix gradient,
                       mc_state8 m, mc_state8 v, float *master, void *parameter,
                       mc_dtype parameter_dtype);
    /* momentum 0: buffer may be NULL. */
    mc_status (*sgd)(mc_device *d, int64_t count, mc_sgd_step step,
                     mc_matrix gradient /* f32/f16/bf16 */, float *buffer, float *master,
                     void *parameter, mc_dtype parameter_dtype);
    /* buffer += (1 - momentum) (g - buffer), g the gradient * gradient_scale; x = buffer, or with
     * nesterov g + momentum (buffer - g). In a skipped step the buffer stays and x is 0. */
    mc_status (*muon_momentum)(mc_device *d, int64_t count, mc_muon_step step,
                               mc_matrix gradient /* f32/f16/bf16 */, float *buffer,
                               mc_matrix x /* f32/bf16 */);
    /* x /= max(sqrt(stats->sum_squares), least); stats in device memory. */
    mc_status (*muon_normalize)(mc_device *d, int64_t count, const mc_gradient_stats *stats,
                                float least, mc_matrix x);
    /* Of each of `batch` matrices (n, n), `step` elements apart: x(i, j) = x(j, i) where column j
     * is after the strip of row i. Rows 0 .. strip - 1 are the first strip, and so on; the last
     * one has less than 2 * strip. strip: a multiple of 16, or n. x f32/bf16. */
    mc_status (*muon_mirror)(mc_device *d, int64_t batch, int64_t n, int64_t strip, mc_matrix x,
                             int64_t step);
    /* parameter = (1 - lr weight_decay) parameter - lr scale x. */
    mc_status (*muon_update)(mc_device *d, int64_t count, mc_muon_step step, mc_matrix x,
                             float *master /* NULL: the parameter is f32 itself */, void *parameter,
                             mc_dtype parameter_dtype);
    /* Adds to *stats (device memory), sums in a fixed order; power: the p of the norm (sum_powers
     * does not change for p = 2 and INFINITY). The elements are numbered first, first + 1, ... (<
     * 2^63). Gradients f32/f16/bf16. */
    mc_status (*gradient_stats)(mc_device *d, int64_t count, mc_matrix gradient, double power,
                                int64_t first, mc_gradient_stats *stats);

    /* ---- the end of a step: see step_internal.h; all pointers are to device memory ---- */
    mc_status (*step_seed)(mc_device *d, double nominal, mc_step_state *state);
    /* Adds the loss (sum, count) of a backward pass. */
    mc_status (*step_count)(mc_device *d, const float *loss, mc_step_state *state);
    mc_status (*step_measure)(mc_device *d, mc_step_rules rules, int ranks,
                              const mc_step_sums *parts, mc_step_state *state);
    mc_status (*step_decide)(mc_device *d, mc_step_rules rules, mc_step_state *state);
    mc_status (*step_update)(mc_device *d, const mc_step_state *state, const mc_update_guess *guess,
                             mc_update *update);

    /* ---- residual streams, generation ---- */
    /* s = x + dropout(f), with the same bits as residual_norm's s. */
    mc_status (*residual_sum)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, mc_matrix f,
                              mc_dropout_mask dropout, mc_matrix s);
    /* y(index[i]) = x(i) for i < rows, with distinct indices. x and y have one dtype. */
    mc_status (*scatter_rows)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                              const int32_t *index, mc_matrix y);
    /* Attention of one query per sequence over cached keys and values. q: (sequences, heads *
     * head_dim), out: (sequences, heads * value_dim); k: rows of key_heads * head_dim columns, v:
     * of key_heads * value_dim, all of one floating dtype. out is the sum of the sequence's rows of
     * v, weighted by the softmax of scale * q.k. Rows after them are undefined and never read; a
     * sequence without keys gives zeros. */
    mc_status (*attention_cached)(mc_device *d, const mc_cached_attention *shape, mc_matrix q,
                                  mc_matrix k, mc_matrix v, mc_matrix out);
    /* Chooses the next token of each row by its logits (rows, vocab), of any floating dtype, and
     * prepares the next step: see choose_internal.h. Draws are equal on all devices, unless the
     * random number is within f32 rounding of the border between two tokens. */
    mc_status (*choose_tokens)(mc_device *d, const mc_choose_call *call, mc_matrix logits);
    /* The most probable tokens of each row of logits (rows, vocab), of any floating dtype: see
     * choose_internal.h. */
    mc_status (*best_tokens)(mc_device *d, const mc_best_call *call, mc_matrix logits);

    /* ---- positions ---- */
    /* out(h, i) = table(bucket[i], h): (heads, distances) f32 of table (buckets, heads). Indices
     * are not checked. */
    mc_status (*position_bias)(mc_device *d, int64_t heads, int64_t distances, mc_matrix table,
                               const int32_t *bucket, float *out);
    /* dtable(b, h) [+]= the sum over i with bucket[i] = b of dy(h, i), in a fixed order. */
    mc_status (*position_bias_backward)(mc_device *d, int64_t buckets, int64_t heads,
                                        int64_t distances, const float *dy, const int32_t *bucket,
                                        mc_matrix dtable, bool accumulate);
    /* In place. Angles have full f32 precision, however large the position: i32 (rows), any value.
     * Columns that are not rotated are not changed. */
    mc_status (*rotary)(mc_device *d, int64_t rows, mc_rotation rotation, const int32_t *positions,
                        mc_matrix x);

    /* ---- gated feed-forward ---- */
    /* y (rows, n) = activation(a) * b, where a and b are the first and the last n columns of x
     * (rows, 2 n). */
    mc_status (*gated)(mc_device *d, int64_t rows, int64_t n, mc_activation activation, mc_matrix x,
                       mc_matrix y);
    /* dx (rows, 2 n) [+]= its gradient: dy * b * activation'(a), then dy * activation(a); dy (rows,
     * n). Without `accumulate` dx may be x. */
    mc_status (*gated_backward)(mc_device *d, int64_t rows, int64_t n, mc_activation activation,
                                mc_matrix x, mc_matrix dy, mc_matrix dx, bool accumulate);

    /* ---- inspection ---- */
    /* *out (device memory) = statistics of `count` elements, summed in double in a fixed order. */
    mc_status (*tensor_stats)(mc_device *d, int64_t count, mc_matrix x, mc_tensor_stats *out);

    /* ---- general operations ---- */
    /* y [+]= factor * x over the elements of `shape`; the strides of the matrices are not used. */
    mc_status (*strided_copy)(mc_device *d, const mc_strided_shape *shape, mc_matrix x,
                              float factor, mc_matrix y, bool accumulate);
    mc_status (*batched_gemm)(mc_device *d, const mc_batched_gemm_call *call);
    /* y = f(x); dx [+]= dy f'(x). */
    mc_status (*unary)(mc_device *d, int64_t count, mc_unary kind, mc_matrix x, mc_matrix y);
    mc_status (*unary_backward)(mc_device *d, int64_t count, mc_unary kind, mc_matrix x,
                                mc_matrix dy, mc_matrix dx, bool accumulate);
    /* y(i) [+]= factor * f(a[i % a_count], b[i % b_count]) for i < count. */
    mc_status (*binary)(mc_device *d, int64_t count, mc_binary kind, mc_matrix a, int64_t a_count,
                        mc_matrix b, int64_t b_count, float factor, mc_matrix y, bool accumulate);
    /* y (outer, inner) [+]= factor * the sum over j of x (outer, size, inner), without gaps. */
    mc_status (*sum_middle)(mc_device *d, int64_t outer, int64_t size, int64_t inner, mc_matrix x,
                            float factor, mc_matrix y, bool accumulate);
    /* y(row) = f(x(row)), columns >= 1. eps: of NORMALIZE. */
    mc_status (*row_map)(mc_device *d, int64_t rows, int64_t columns, mc_row_map kind, float eps,
                         mc_matrix x, mc_matrix y);
    /* dx(row) [+]= its gradient. `kept` is y for the softmaxes, x for NORMALIZE. */
    mc_status (*row_map_backward)(mc_device *d, int64_t rows, int64_t columns, mc_row_map kind,
                                  float eps, mc_matrix kept, mc_matrix dy, mc_matrix dx,
                                  bool accumulate);
    /* y(i) = the mean of the rows of sequence i of x, zeros for an empty one. The lengths are
     * passed twice, as in mc_attention_shape. */
    mc_status (*mean_pool)(mc_device *d, const mc_lengths *lengths, const int32_t *device_lengths,
                           int64_t columns, mc_matrix x, mc_matrix y);
    /* dx(row) [+]= dy(i) / length of the row's sequence i. Rows after the last sequence are set to
     * zero, or not changed if `accumulate` is set. */
    mc_status (*mean_pool_backward)(mc_device *d, const mc_lengths *lengths,
                                    const int32_t *device_lengths, int64_t columns, mc_matrix dy,
                                    mc_matrix dx, bool accumulate);
    /* y(i) = the maximum of each column over the rows of sequence i of x, zeros for an empty one;
     * NaN is the largest value. */
    mc_status (*max_pool)(mc_device *d, const mc_lengths *lengths, const int32_t *device_lengths,
                          int64_t columns, mc_matrix x, mc_matrix y);
    /* dx [+]= dy(i) where x is y(i), in the first such row of sequence i, and zero elsewhere, also
     * in the rows after the last sequence. */
    mc_status (*max_pool_backward)(mc_device *d, const mc_lengths *lengths,
                                   const int32_t *device_lengths, int64_t columns, mc_matrix x,
                                   mc_matrix y, mc_matrix dy, mc_matrix dx, bool accumulate);
    /* loss (rows) and weight (rows) f32: the loss of each row, and its weight (that of its label, 0
     * if the label is ignored). */
    mc_status (*cross_entropy_rows)(mc_device *d, const mc_row_loss_call *call, float *loss,
                                    float *weight);
    /* dx(row) [+]= drows[row] times the gradient of the row's loss. */
    mc_status (*cross_entropy_rows_backward)(mc_device *d, const mc_row_loss_call *call,
                                             const float *drows, mc_matrix dx, bool accumulate);

    /* ---- weights in 8 bits ---- */
    /* Writes q.scale and q.data: scale[i] = max |x(i, k)| / 127 (INT8) or / 448 (FP8), and byte (i,
     * k) is the format's nearest number to x(i, k) / scale[i], ties to even. In f32, with equal
     * bits on all devices. scale[i] is not finite if an element of the row is not. */
    mc_status (*quantize)(mc_device *d, mc_matrix x, mc_matrix8 q);
    /* y (q.rows, q.columns) = q, rounded once. */
    mc_status (*dequantize)(mc_device *d, mc_matrix8 q, mc_matrix y);
    /* y (rows, q.rows) = activation(alpha * x q^T + bias), x (rows, q.columns), bias (q.rows) or
     * NULL data. Bytes are converted without loss and summed in f32; but with many rows, or if x is
     * f32, CUDA multiplies by q rounded to x's dtype. */
    mc_status (*linear_quantized)(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                  mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                  mc_matrix y);

    /* ---- training in 8 bits ---- */
    mc_status (*fp8_cast)(mc_device *d, const mc_fp8_cast_call *call);
    mc_status (*fp8_cast_rows)(mc_device *d, const mc_fp8_rows_call *call);
    /* y (columns, rows) = x (rows, columns) transposed; ones (columns) are set to 1: the inverses
     * of y's rows in a product by rows; NULL: not needed. */
    mc_status (*fp8_transpose)(mc_device *d, int64_t rows, int64_t columns, const uint8_t *x,
                               uint8_t *y, float *ones);
    mc_status (*fp8_update)(mc_device *d, const mc_fp8_update_call *call);
    mc_status (*fp8_gemm)(mc_device *d, const mc_fp8_gemm_call *call);
} mc_kernels;

#endif
