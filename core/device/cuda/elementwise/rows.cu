/* Rows by index: embedding lookup, gathering, scattering. Bytes an element, for 16-bit types: 4,
 * and 2 for each further table of an embedding. */
#include "core/device/cuda/runtime/kernels.cuh"

enum { TABLES = 8 }; /* of one launch */

struct embedding_call {
    mc_view y, table[TABLES];
    const int32_t *index[TABLES];
    int tables;
    float scale;

    template <class T> __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        float sum[mc_width<T>] = {};
#pragma unroll
        for (int i = 0; i < TABLES; i++) {
            if (i >= tables) break;
            float v[mc_width<T>];
            mc_load<T>(table[i], index[i][row] * table[i].stride + column, n, v);
#pragma unroll
            for (int j = 0; j < mc_width<T>; j++) sum[j] += v[j];
        }
#pragma unroll
        for (int j = 0; j < mc_width<T>; j++) sum[j] *= scale;
        mc_store<T>(y, row * y.stride + column, n, sum);
    }
};

static mc_dtype tables_dtype(int tables, const mc_matrix *table, mc_matrix y)
{
    for (int i = 0; i < tables; i++)
        if (table[i].dtype != y.dtype) return MC_DTYPE_DEFAULT;
    return y.dtype;
}

extern "C" mc_status mc_cuda_embedding(mc_device *d, int64_t rows, int64_t columns, int tables,
                                       const mc_matrix *table, const int32_t *const *index,
                                       float scale, mc_matrix y)
{
    if (rows == 0 || columns == 0) return MC_OK;
    if (tables > TABLES)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "embedding: %d tables, at most %d", tables,
                            (int)TABLES);
    MC_WITH_TYPE(tables_dtype(tables, table, y), {
        const int width = mc_width<T>;
        embedding_call call = {mc_view_of(y, rows, width), {}, {}, tables, scale};
        for (int i = 0; i < tables; i++) { /* how many rows a table has is not known here */
            call.table[i] = mc_view_of(table[i], 2, width);
            call.index[i] = index[i];
        }
        mc_launch_chunks<T>(d, rows, columns, call);
    });
    return mc_cuda_launched(d, "embedding");
}

struct gather_call {
    mc_view x, y;
    const int32_t *index;

    template <class T> __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        float v[mc_width<T>] = {};
        int32_t from = index[row];
        if (from >= 0) mc_load<T>(x, from * x.stride + column, n, v);
        mc_store<T>(y, row * y.stride + column, n, v);
    }
};

extern "C" mc_status mc_cuda_gather_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                         const int32_t *index, mc_matrix y)
{
    if (rows == 0 || columns == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        gather_call call = {mc_view_of(x, 2, width), mc_view_of(y, rows, width), index};
        mc_launch_chunks<T>(d, rows, columns, call);
    });
    return mc_cuda_launched(d, "gather_rows");
}

struct scatter_call {
    mc_view x, y;
    const int32_t *index;

    template <class T> __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        mc_bits bits = mc_load_bits<T>(x, row * x.stride + column, n);
        mc_store_bits<T>(y, index[row] * y.stride + column, n, bits);
    }
};

extern "C" mc_status mc_cuda_scatter_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                          const int32_t *index, mc_matrix y)
{
    if (rows == 0 || columns == 0) return MC_OK;
    MC_WITH_TYPE(x.dtype, {
        const int width = mc_width<T>;
        scatter_call call = {mc_view_of(x, rows, width), mc_view_of(y, 2, width), index};
        mc_launch_chunks<T>(d, rows, columns, call);
    });
    return mc_cuda_launched(d, "scatter_rows");
}
