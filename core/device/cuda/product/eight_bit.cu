/* Weights into 8 bits, out of them, and products with them, of which few rows have kernels of their
 * own and others a copy of the weight in the dtype of x, a piece at a time. */
#include "core/device/cuda/product/linear_few.cuh"
#include "core/device/cuda/runtime/planning_internal.h"

namespace
{

enum { THREADS = 256, MOST_ROWS = 64, BLOCK = 32 << 20 /* elements of a copy */ };

/* A block to a row. Bits without the sign count up with the number, NaN after infinity. */
__global__ void __launch_bounds__(THREADS) quantize(mc_view x, mc_matrix8 q)
{
    __shared__ uint32_t largest[THREADS / 32];
    int64_t row = blockIdx.x;
    uint32_t own = 0;
    for (int64_t k = threadIdx.x; k < q.columns; k += THREADS)
        own = max(own, __float_as_uint(mc_load_one(x, row * x.stride + k)) & 0x7fffffffu);
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        own = max(own, __shfl_xor_sync(0xffffffffu, own, lane));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = own;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) own = max(own, largest[i]);
    float scale = mc_eight_bit_scale(q.format, __uint_as_float(own));
    if (threadIdx.x == 0) q.scale[row] = scale;
    for (int64_t k = threadIdx.x; k < q.columns; k += THREADS)
        q.data[row * q.columns + k] =
            mc_to_eight_bit(q.format, mc_load_one(x, row * x.stride + k), scale);
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
            v[i] = i < n ? scale * mc_from_eight_bit(q.format, from[i]) : 0.0f;
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

/* Rows of 16 bytes each, or several of them. */
bool is_for_few(int64_t rows, mc_matrix x, const mc_matrix8 &q, mc_matrix bias, mc_matrix y)
{
    return rows <= MOST_ROWS && y.dtype != MC_F32 && mc_common_dtype(x, bias, y) == y.dtype &&
           q.columns % 16 == 0 && q.columns <= 1 << 28 && q.rows <= 1 << 30 && mc_is(x.data, 16) &&
           (rows == 1 || x.stride % 8 == 0) && mc_is(q.data, 16);
}

/* Rows of the weight that are copied at a time. */
int64_t rows_of_block(const mc_matrix8 &q)
{
    return mc_least(q.rows, BLOCK / q.columns > 16 ? BLOCK / q.columns : 16);
}

mc_status many_rows(mc_device *d, int64_t rows, float alpha, mc_matrix x, const mc_matrix8 &q,
                    mc_matrix bias, mc_activation activation, mc_matrix y)
{
    int64_t most = rows_of_block(q);
    int64_t out = (int64_t)mc_dtype_size(y.dtype);
    mc_matrix copy = {NULL, x.dtype, q.columns};
    size_t bytes = (size_t)(most * q.columns) * mc_dtype_size(x.dtype);
    if (!(copy.data = d->alloc(d, bytes))) return MC_ERR_NOMEM;
    mc_status status = MC_OK;
    const bool chained = d->chained;
    d->chained = false; /* products in chains read weights before kernels in front have ended */
    for (int64_t j = 0; j < q.rows && !status; j += most) {
        mc_matrix8 part = q;
        part.rows = mc_least(most, q.rows - j);
        part.data += j * q.columns;
        part.scale += j;
        launch_dequantize(d, part, copy);
        mc_linear_call c = {rows, q.columns, part.rows, alpha, x, copy, bias, activation, {}, y};
        c.y.data = (char *)y.data + j * out;
        if (bias.data) c.bias.data = (char *)bias.data + j * (int64_t)mc_dtype_size(bias.dtype);
        status = mc_cuda_linear(d, &c);
    }
    d->chained = chained;
    d->free(d, copy.data, bytes);
    return status;
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

extern "C" size_t mc_cuda_linear_eight_scratch(int64_t rows, mc_matrix x, mc_matrix8 q,
                                               mc_matrix bias, mc_matrix y)
{
    if (!rows || !q.rows || is_for_few(rows, x, q, bias, y)) return 0;
    return (size_t)(rows_of_block(q) * q.columns) * mc_dtype_size(x.dtype);
}

extern "C" mc_status mc_cuda_linear_eight(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                          mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                          mc_matrix y)
{
    if (!rows || !q.rows) return MC_OK;
    if (!is_for_few(rows, x, q, bias, y))
        return many_rows(d, rows, alpha, x, q, bias, activation, y);
    return mc_few_linear(d, {(int)rows,
                             (int)q.columns,
                             (int)q.rows,
                             alpha,
                             (const char *)x.data,
                             (const char *)q.data,
                             rows > 1 ? x.stride * 2 : 0,
                             q.columns,
                             mc_view_of(bias, 1, 1),
                             {},
                             mc_view_of(y, 2, 1),
                             activation,
                             q.format,
                             q.scale});
}
