/* Quantizing weights to 8 bits, dequantizing them, and products with them: few rows have kernels of
 * their own; for more rows the weight is copied to the dtype of x, one piece at a time. */
#include "core/device/cuda/product/skinny_gemm.cuh"

namespace
{

enum { THREADS = 256, BLOCK = 32 << 20 /* elements of a copy */ };

/* One block per row. Bits without the sign are ordered like numbers, NaN after infinity. */
__global__ void __launch_bounds__(THREADS) quantize(mc_view x, mc_matrix8 q)
{
    __shared__ uint32_t largest[THREADS / 32];
    int64_t row = blockIdx.x;
    uint32_t own = 0;
    for (int64_t k = threadIdx.x; k < q.columns; k += THREADS)
        own = max(own, __float_as_uint(mc_load_one(x, row * x.stride + k)) & 0x7fffffffu);
    own = mc_block_largest(own, largest);
    float scale = mc_quantized_scale(q.format, __uint_as_float(own));
    if (threadIdx.x == 0) q.scale[row] = scale;
    for (int64_t k = threadIdx.x; k < q.columns; k += THREADS)
        q.data[row * q.columns + k] =
            mc_to_quantized(q.format, mc_load_one(x, row * x.stride + k), scale);
}

struct dequantize {
    mc_matrix8 q;
    mc_view y;

    template <class T> __device__ void run(int64_t row, int64_t column, int n) const
    {
        float v[mc_width<T>], scale = q.scale[row];
        const uint8_t *from = q.data + row * q.columns + column;
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            v[i] = i < n ? scale * mc_from_quantized(q.format, from[i]) : 0.0f;
        mc_store<T>(y, row * y.stride + column, n, v);
    }
};

void launch_dequantize(mc_device *d, mc_matrix8 q, mc_matrix y)
{
    MC_WITH_TYPE(y.dtype, {
        dequantize f = {q, mc_view_of(y, q.rows, mc_width<T>)};
        mc_launch_chunks<T>(d, q.rows, q.columns, f);
    });
}

/* Rows of the weight that are copied at a time. */
int64_t rows_of_block(const mc_matrix8 &q)
{
    return mc_least(q.rows, BLOCK / q.columns > 16 ? BLOCK / q.columns : 16);
}

} // namespace

extern "C" mc_status mc_cuda_quantize(mc_device *d, mc_matrix x, mc_matrix8 q)
{
    if (!q.rows) return MC_OK;
    quantize<<<(unsigned)q.rows, THREADS, 0, mc_cuda_of(d)->stream>>>(mc_view_of(x, q.rows, 1), q);
    return mc_cuda_launched(d, "quantize");
}

extern "C" mc_status mc_cuda_dequantize(mc_device *d, mc_matrix8 q, mc_matrix y)
{
    launch_dequantize(d, q, y);
    return mc_cuda_launched(d, "dequantize");
}

extern "C" size_t mc_quantized_copy_bytes(const mc_product *p)
{
    return (size_t)(rows_of_block(p->quantized) * p->terms) * mc_dtype_size(p->x.dtype);
}

extern "C" mc_status mc_quantized_by_copies(mc_device *d, const mc_product *p)
{
    const mc_matrix8 &q = p->quantized;
    const mc_matrix y = p->y, bias = p->bias;
    int64_t most = rows_of_block(q);
    mc_matrix copy = {NULL, p->x.dtype, q.columns};
    size_t bytes = mc_quantized_copy_bytes(p);
    if (!(copy.data = d->alloc(d, bytes))) return MC_ERR_NOMEM;
    mc_status status = MC_OK;
    bool &listing = mc_cuda_of(d)->listing;
    const bool listed = listing;
    listing = false; /* its products read weights before preceding kernels have ended */
    for (int64_t j = 0; j < q.rows && !status; j += most) {
        mc_matrix8 part = q;
        part.rows = mc_least(most, q.rows - j);
        part.data += j * q.columns;
        part.scale += j;
        launch_dequantize(d, part, copy);
        mc_linear_call c = {p->rows, q.columns, part.rows,     p->alpha, p->x,
                            copy,    bias,      p->activation, {},       y};
        c.y.data = (char *)y.data + j * (int64_t)mc_dtype_size(y.dtype);
        if (bias.data) c.bias.data = (char *)bias.data + j * (int64_t)mc_dtype_size(bias.dtype);
        status = mc_cuda_linear(d, &c);
    }
    listing = listed;
    d->free(d, copy.data, bytes);
    return status;
}
