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
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"

typedef struct mc_device mc_device;

typedef struct mc_matrix {
    void *data;
    mc_dtype dtype;
    int64_t stride; /* elements from one row to the next */
} mc_matrix;

/* Dropout of a tensor read in element order i = 0, 1, ...: element i is kept iff word i % 4 of the
 * Philox-4x32-10 block with key = seed and counter = (i / 4, offset), both 64-bit little-endian
 * word pairs, is >= (uint32_t)(p * 2^32); kept values are multiplied by 1 / (1 - p). p == 0:
 * none. */
typedef struct mc_dropout_mask {
    float p;
    uint64_t seed, offset;
} mc_dropout_mask;

/* How the elements of a parameter are filled; see core/nn/module.h. Element i depends only on (key,
 * i): Philox block i / 4 (offset 0) gives the uniforms of elements 4j .. 4j+3. */
typedef enum mc_fill_kind { MC_FILL_CONSTANT, MC_FILL_NORMAL, MC_FILL_UNIFORM } mc_fill_kind;
typedef struct mc_fill {
    mc_fill_kind kind;
    float a, b; /* constant a; normal(mean a, std b); uniform over [a, b) */
    uint64_t key;
} mc_fill;

/* Attention over a packed batch; q, k, v, out: (rows, heads * head_dim) matrices, often column
 * views of one. Scores are scale * q.k, softmax over the keys of the same sequence. */
typedef struct mc_attention_shape {
    const mc_lengths *lengths;
    int heads, head_dim;
    float scale;
    bool causal;
    /* Keys to ignore: (lengths->total) bytes, 0 = ignored; NULL: none. A query without any key gets
     * zeros. */
    const uint8_t *key_mask;
    mc_dropout_mask
        dropout; /* on the probabilities; element index ((h * total + query row) * L4 + k),
                           L4 = longest rounded up to 4, k counted within the sequence */
} mc_attention_shape;

/* One Adam update over `count` elements of flat arrays:
 *     g' = g * gradient_scale + l2 * p
 *     m  = beta1 m + (1 - beta1) g'
 *     v  = beta2 v + (1 - beta2) g'^2
 *     p' = p - step_size * m / (sqrt(v) / sqrt_correction2 + eps) - decay * p
 * with step_size = lr / (1 - beta1^t) and sqrt_correction2 = sqrt(1 - beta2^t), as the caller
 * computed them in double. */
typedef struct mc_adam_step {
    float gradient_scale, beta1, beta2, eps, step_size, sqrt_correction2;
    float decay; /* lr * weight_decay, decoupled; 0 with l2 */
    float l2;    /* weight_decay added to the gradient; 0 otherwise */
} mc_adam_step;

typedef struct mc_gradient_stats {
    double sum_squares; /* of finite and non-finite values alike */
    double sum_powers;  /* sum of |g|^p for the norm asked for */
    float largest;      /* largest |g|; NaN if any is NaN */
    bool finite;        /* no inf, no NaN */
} mc_gradient_stats;

typedef struct mc_kernels {
    /* C(m,n) = op(A) op(B) + beta * C (beta 0 or 1; with 0 C is not read); op transposes if asked:
     * A is (m,k) or, transposed, stored (k,m); B is (k,n) or, transposed, stored (n,k). */
    mc_status (*gemm)(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                      int64_t k, mc_matrix a, mc_matrix b, float beta, mc_matrix c);

    /* x += bias (f32/f16/bf16, (columns); NULL data: none), kept as the pre-activation in x; then
     * y = activation(x). y.data == x.data or NULL where the activation is NONE. */
    mc_status (*bias_activation)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                 mc_matrix bias, mc_activation activation, mc_matrix y);
    /* dx = dy * activation'(x) where x is the pre-activation; dx may be dy. */
    mc_status (*activation_backward)(mc_device *d, int64_t rows, int64_t columns,
                                     mc_activation activation, mc_matrix x, mc_matrix dy,
                                     mc_matrix dx, bool accumulate);
    /* y = activation(x), elementwise; y may be x. */
    mc_status (*activation)(mc_device *d, int64_t rows, int64_t columns, mc_activation activation,
                            mc_matrix x, mc_matrix y);
    /* out (columns) f32 += sum over rows of x. */
    mc_status (*column_sums)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, float *out);

    /* s = x + dropout(f) (f.data NULL: s = x, and then s.data may be x.data or NULL = not stored);
     * y = (s - mean) * rstd * weight + bias, rstd = 1/sqrt(var + eps), biased variance. mean, rstd:
     * (rows) f32, may be NULL. Dropout counts elements of the (rows, columns) matrix. */
    mc_status (*residual_norm)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                               mc_matrix f, mc_dropout_mask dropout, mc_matrix weight,
                               mc_matrix bias, float eps, mc_matrix s, mc_matrix y, float *mean,
                               float *rstd);
    /* ds [+]= gradient of the norm at s; df = dropout mask applied to this call's ds (NULL data:
     * not wanted); dweight, dbias (columns) f32 += (NULL: not wanted). ds.data may be NULL too. */
    mc_status (*residual_norm_backward)(mc_device *d, int64_t rows, int64_t columns, mc_matrix s,
                                        mc_matrix weight, const float *mean, const float *rstd,
                                        mc_matrix dy, mc_dropout_mask dropout, mc_matrix ds,
                                        bool accumulate, mc_matrix df, float *dweight,
                                        float *dbias);

    /* y = dropout(x), and backward with the same call on the gradient; y may be x. */
    mc_status (*dropout)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                         mc_dropout_mask dropout, mc_matrix y, bool accumulate);

    /* y(row) = sum over the `tables` of table[i](index[i][row]). Indices i32, checked by the op. */
    mc_status (*embedding)(mc_device *d, int64_t rows, int64_t columns, int tables,
                           const mc_matrix *table, const int32_t *const *index, mc_matrix y);
    /* dtable(index[row]) += dy(row), f32, in a fixed order. */
    mc_status (*embedding_backward)(mc_device *d, int64_t rows, int64_t columns, mc_matrix dy,
                                    const int32_t *index, mc_matrix dtable);
    /* y(i) = x(index[i]); and its gradient dx(index[i]) += dy(i) with embedding_backward. A
     * negative index gives a row of zeros here and is skipped there. */
    mc_status (*gather_rows)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                             const int32_t *index, mc_matrix y);

    /* out = attention(q, k, v). log_sum_exp (heads, total) f32: kept for backward, NULL: not
     * wanted. Rows of out from lengths->total to capacity are set to zero. */
    mc_status (*attention)(mc_device *d, const mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                           mc_matrix v, mc_matrix out, float *log_sum_exp);
    /* dq, dk, dv of the same; probabilities are computed again from q, k and log_sum_exp. Rows past
     * lengths->total of dq, dk, dv are set to zero. */
    mc_status (*attention_backward)(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                    mc_matrix k, mc_matrix v, mc_matrix out,
                                    const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                    mc_matrix dk, mc_matrix dv);

    /* loss[0] += sum over rows with label != ignore_index of (log sum exp(x) - x[label]), with
     * `smoothing` e: (1-e) * that + e * mean over classes of (lse - x_c); loss[1] += their number.
     * dx.data not NULL: dx = seed * gradient of the sum (zero rows where ignored), may be x.
     * Labels are i32, checked by the op. The sum is accumulated in double in row order. */
    mc_status (*cross_entropy)(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                               const int32_t *labels, int32_t ignore_index, float smoothing,
                               float seed, float *loss, mc_matrix dx);

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
    mc_status (*adam)(mc_device *d, int64_t count, mc_adam_step step, const float *gradient,
                      float *m, float *v, float *master /* NULL: the parameter is f32 itself */,
                      void *parameter, mc_dtype parameter_dtype);
    /* buffer = momentum * buffer + g' (first step: g'), p -= lr * buffer (nesterov: g' + momentum *
     * buffer); momentum 0: buffer may be NULL. g' and decay as in mc_adam_step. */
    mc_status (*sgd)(mc_device *d, int64_t count, float gradient_scale, float lr, float momentum,
                     bool nesterov, bool first_step, float decay, float l2, const float *gradient,
                     float *buffer, float *master, void *parameter, mc_dtype parameter_dtype);
    /* Adds to *stats; power: the p of the norm (sum_powers is left alone for p = 2). */
    mc_status (*gradient_stats)(mc_device *d, int64_t count, const float *gradient, double power,
                                mc_gradient_stats *stats);
} mc_kernels;

#endif
