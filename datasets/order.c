#include "datasets/order_internal.h"

uint64_t mc_order_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t mc_order_key(uint64_t seed, int64_t epoch, uint64_t stream)
{
    return mc_order_mix(mc_order_mix(mc_order_mix(seed) + (uint64_t)epoch) + stream);
}

/* The i-th number of a stream, below n. */
static int64_t draw(uint64_t key, int64_t i, int64_t n)
{
    return (int64_t)(mc_order_mix(key + ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u) % (uint64_t)n);
}

static void swap_rows(int32_t *a, int32_t *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int32_t kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

/* Shuffles `count` blocks of `size` rows. */
static void shuffle_blocks(int32_t *rows, int64_t count, int64_t size, uint64_t key)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t other = draw(key, i, i + 1);
        if (other != i) swap_rows(rows + i * size, rows + other * size, size);
    }
}

static void sift_down(uint64_t *heap, size_t at, size_t count)
{
    uint64_t value = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

/* Heap sort, ascending: in place, unlike the C library's, which may allocate. */
static void sort_keys(uint64_t *keys, size_t count)
{
    for (size_t i = count / 2; i-- > 0;) sift_down(keys, i, count);
    for (size_t end = count; end-- > 1;) {
        uint64_t largest = keys[0];
        keys[0] = keys[end];
        keys[end] = largest;
        sift_down(keys, 0, end);
    }
}

/* Sorts rows by weight. A key is weight, then place, so equal weights keep their order; the rows
 * themselves are put aside in the upper half of the scratch. */
static void sort_window(const mc_order *order, int32_t *rows, int64_t count)
{
    uint64_t *keys = order->scratch;
    int32_t *aside = (int32_t *)(keys + count);
    for (int64_t i = 0; i < count; i++) {
        keys[i] = (uint64_t)order->weight[rows[i]] << 32 | (uint64_t)i;
        aside[i] = rows[i];
    }
    sort_keys(keys, (size_t)count);
    for (int64_t i = 0; i < count; i++) rows[i] = aside[keys[i] & UINT32_MAX];
}

static int64_t window_rows(int64_t rows, int64_t batch)
{
    return batch > rows / MC_ORDER_WINDOW ? rows : batch * MC_ORDER_WINDOW;
}

size_t mc_order_scratch(int64_t rows, int64_t batch)
{
    size_t window = (size_t)window_rows(rows, batch);
    return window + window / 2 + 1;
}

void mc_order_build(const mc_order *order, int64_t epoch, int32_t *out)
{
    int64_t full = order->rows / order->batch, end = full * order->batch;
    int64_t window = window_rows(order->rows, order->batch);
    for (int64_t i = 0; i < order->rows; i++) out[i] = (int32_t)i;
    if (order->shuffle) shuffle_blocks(out, order->rows, 1, mc_order_key(order->seed, epoch, 0));
    if (!order->by_length) return;
    for (int64_t at = 0; at < end; at += window)
        sort_window(order, out + at, end - at < window ? end - at : window);
    sort_window(order, out + end, order->rows - end);
    if (order->shuffle)
        shuffle_blocks(out, full, order->batch, mc_order_key(order->seed, epoch, 1));
}
