/* Rows by index: embedding lookup, gathering, scattering. Bytes per element, for 16-bit types: 4,
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
        for (int i = 0; i < tables; i++) { /* the number of a table's rows is unknown here */
            call.table[i] = mc_view_of(table[i], 2, width);
            call.index[i] = index[i];
        }
        mc_launch_chunks<T>(d, rows, columns, call);
    });
    return mc_cuda_launched(d, "embedding");
}

/* One warp per sequence, and one for the rows after the last, 32 tokens at a time. */
static __global__ void __launch_bounds__(256)
    place_tokens(const int32_t *lengths, int64_t count, int64_t capacity, const int32_t *ids,
                 int32_t pad, int32_t first, int32_t *position)
{
    const int64_t sequence = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (sequence > count) return;
    const bool tail = sequence == count;
    const int64_t begin = lengths[count + sequence];
    const int64_t end = tail ? capacity : begin + lengths[sequence];
    int32_t next = first;
    for (int64_t at = begin; at < end; at += 32) {
        const int64_t row = at + lane;
        const bool counts = !tail && row < end && ids[row] != pad;
        const unsigned those = __ballot_sync(0xffffffffu, counts);
        const int32_t place = next + __popc(those & ((1u << lane) - 1));
        if (row < end) position[row] = counts ? place : first - 1;
        next += __popc(those);
    }
}

extern "C" mc_status mc_cuda_token_positions(mc_device *d, const mc_lengths *lengths,
                                             const int32_t *device_lengths, const int32_t *ids,
                                             int32_t pad, int32_t first, int32_t *position)
{
    if (lengths->capacity == 0) return MC_OK;
    const int warps = 8;
    place_tokens<<<(unsigned)(lengths->count / warps + 1), warps * 32, 0, mc_cuda_of(d)->stream>>>(
        device_lengths, lengths->count, lengths->capacity, ids, pad, first, position);
    return mc_cuda_launched(d, "token_positions");
}

/* The first row at or after `row` with the token, or `end`. A warp searches together. */
__device__ int32_t find_token(const int32_t *ids, int32_t row, int32_t end, int32_t token, int lane)
{
    for (; row < end; row += 32) {
        const bool here = row + lane < end && ids[row + lane] == token;
        const unsigned those = __ballot_sync(0xffffffffu, here);
        if (those) return row + __ffs((int)those) - 1;
    }
    return end;
}

/* See mc_blanks_call, and the CPU's kernel, which has the same names. */
__device__ void place_rows(const mc_blanks_call &c, int32_t begin, int32_t first, int32_t end,
                           int32_t mask, int32_t mark, int lane)
{
    for (int32_t k = first + lane; k < end; k += 32) {
        c.mark[k] = mark;
        c.position[k] = (mark || mask < 0 ? k : mask) - begin;
        c.block[k] = mark ? 0 : k - first + 1;
    }
}

/* A warp for each sequence, and one for the rows after the last. */
__global__ void place_blanks(const int32_t *lengths, int count, int64_t capacity, mc_blanks_call c)
{
    const int64_t sequence = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (sequence > count) return;
    const int32_t begin = lengths[count + sequence];
    if (sequence == count) {
        for (int64_t k = begin + lane; k < capacity; k += 32)
            c.mark[k] = c.position[k] = c.block[k] = 0;
        return;
    }
    const int32_t end = begin + lengths[sequence];
    int32_t start = find_token(c.ids, begin, end, c.start, lane);
    int32_t next_mask = find_token(c.ids, begin, end, c.mask, lane), mask = -1;
    place_rows(c, begin, begin, start, -1, 1, lane);
    for (int32_t next; start < end; start = next) {
        next = find_token(c.ids, start + 1, end, c.start, lane);
        do {
            if (next_mask == end) break;
            mask = next_mask;
            next_mask = find_token(c.ids, mask + 1, end, c.mask, lane);
        } while (next == end);
        place_rows(c, begin, start, next, mask, 0, lane);
    }
}

extern "C" mc_status mc_cuda_find_blanks(mc_device *d, const mc_lengths *lengths,
                                         const int32_t *device_lengths, const mc_blanks_call *call)
{
    if (lengths->capacity == 0) return MC_OK;
    const int warps = 8;
    place_blanks<<<(unsigned)(lengths->count / warps + 1), warps * 32, 0, mc_cuda_of(d)->stream>>>(
        device_lengths, lengths->count, lengths->capacity, *call);
    return mc_cuda_launched(d, "find_blanks");
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
