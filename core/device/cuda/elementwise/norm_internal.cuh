/* What the kernels of LayerNorm and RMSNorm share: norm.cu has those for rows of any kind, norm_ahead.cu faster
 * ones for rows of 16-bit types of some lengths. */
#ifndef MC_DEVICE_CUDA_ELEMENTWISE_NORM_INTERNAL_CUH
#define MC_DEVICE_CUDA_ELEMENTWISE_NORM_INTERNAL_CUH

#include "core/device/cuda/runtime/kernels.cuh"

/* One call of residual_norm (x, f, s, y, weight, bias, and eps) or of its backward pass (s, dy, ds,
 * df, weight). */
struct mc_norm_call {
    int64_t rows, columns;
    mc_view x, f, s, y, weight, bias, dy, ds, df;
    mc_dropping mask;
    float eps;
    const float *mean, *rstd;
    float *mean_out, *rstd_out;
    /* round: the norm is that of s as stored, or as it would be; rms: RMSNorm, without bias, mean and mean_out */
    bool round, accumulate, rms;
};

/* What a sum is of: x alone, x + f, or x + dropout(f). */
enum mc_summands { MC_ALONE, MC_PLAIN, MC_DROPPED };

/* What is summed up over the rows, by column: for dweight and dbias, or for dbranch too. */
enum { MC_WEIGHTS = 2, MC_WEIGHTS_AND_BRANCH = 3 };

/* Sums of blocks or rows for each column, in the device's memory: (parts, sums, columns). */
struct mc_norm_partials {
    float *data;
    int64_t parts, sums; /* sums 0: none are wanted */
};

static inline size_t mc_norm_partials_bytes(const mc_norm_partials *p, int64_t columns)
{
    return (size_t)(p->parts * p->sums * columns) * sizeof(float);
}

static inline mc_status mc_norm_partials_new(mc_device *d, int64_t parts, int64_t columns,
                                             mc_norm_partials *p)
{
    p->parts = parts;
    p->data = (float *)d->alloc(d, mc_norm_partials_bytes(p, columns));
    return p->data ? MC_OK : MC_ERR_NOMEM;
}

template <int width> __device__ __forceinline__ float mc_sum_of(const float (&v)[width])
{
    float sum = v[0];
#pragma unroll
    for (int i = 1; i < width; i++) sum += v[i];
    return sum;
}

/* The sum of squared deviations of the first n, which in whole chunks are all or none. */
template <bool ALL, int width>
__device__ __forceinline__ float mc_squares_of(const float (&v)[width], int n, float mean)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < width; i++)
        if (ALL ? n > 0 : i < n) sum += (v[i] - mean) * (v[i] - mean);
    return sum;
}

template <int width>
__device__ __forceinline__ void mc_normalise(float mean, float rstd, float (&s)[width])
{
#pragma unroll
    for (int i = 0; i < width; i++) s[i] = (s[i] - mean) * rstd;
}

struct mc_norm_sums {
    float gradient, product; /* over the row, of g = dy * weight and of g * normalised s */
    __device__ __forceinline__ mc_norm_sums &operator+=(const mc_norm_sums &o)
    {
        gradient += o.gradient;
        product += o.product;
        return *this;
    }
};

struct mc_row_facts {
    float rstd;
    mc_norm_sums means;
};

/* v = the gradient at the sum, s normalised: rstd (g - the mean of g - s times that of g s). */
template <int width>
__device__ __forceinline__ void mc_norm_gradient(const mc_row_facts &r, const float (&s)[width],
                                                 const float (&g)[width], float (&v)[width])
{
    const float constant = -r.rstd * r.means.gradient, slope = -r.rstd * r.means.product;
#pragma unroll
    for (int i = 0; i < width; i++)
        v[i] = __fmaf_rn(g[i], r.rstd, __fmaf_rn(s[i], slope, constant));
}

/* The kernels of norm_ahead.cu, for T = __nv_bfloat16 and __half. False: it has none for a call
 * like this, which is left to the caller. */
template <class T> bool mc_norm_ahead(mc_device *d, const mc_norm_call &c);

/* The same for the backward pass: *launched says whether. p->sums says what is wanted; where the kernel is
 * launched, *p is what it writes, dbranch's sums in any case. MC_ERR_NOMEM: there is no memory for
 * that, and nothing is launched. */
template <class T>
mc_status mc_norm_ahead_backward(mc_device *d, const mc_norm_call &c, mc_norm_partials *p,
                                 bool *launched);

#endif
