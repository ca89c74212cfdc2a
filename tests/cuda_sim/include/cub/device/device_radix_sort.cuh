/* CUB's sort of pairs, as far as it is used, for the simulator. */
#ifndef MC_SIM_DEVICE_RADIX_SORT_CUH
#define MC_SIM_DEVICE_RADIX_SORT_CUH

#include <cstring>
#include <utility>
#include <vector>
#include "tests/cuda_sim/include/mc_sim.h"

namespace cub
{

template <class T> struct DoubleBuffer {
    T *d_buffers[2];
    int selector;
    DoubleBuffer(T *current, T *alternate) : d_buffers{current, alternate}, selector(0) {}
    T *Current() { return d_buffers[selector]; }
    T *Alternate() { return d_buffers[selector ^ 1]; }
};

struct DeviceRadixSort {
    /* The result is in either buffer, which chance says; the other one and the scratch memory hold
     * rubbish. */
    template <class K, class V>
    static cudaError_t SortPairs(void *scratch, size_t &bytes, DoubleBuffer<K> &keys,
                                 DoubleBuffer<V> &values, uint32_t count, int first_bit,
                                 int end_bit, cudaStream_t stream)
    {
        size_t needed = 1000 + (size_t)count / 3;
        if (!scratch) {
            bytes = needed;
            return cudaSuccess;
        }
        if (bytes < needed) return cudaErrorInvalidValue;
        K *from = keys.Current();
        V *from_values = values.Current();
        if (mc_sim::chance(2)) {
            keys.selector ^= 1;
            values.selector ^= 1;
        }
        K *to = keys.Current(), *other = keys.Alternate();
        V *to_values = values.Current(), *other_values = values.Alternate();
        mc_sim::enqueue(stream, "DeviceRadixSort", [=] {
            std::vector<std::pair<K, V>> pairs(count);
            for (uint32_t i = 0; i < count; i++) pairs[i] = {from[i], from_values[i]};
            std::stable_sort(pairs.begin(), pairs.end(), [=](const auto &a, const auto &b) {
                K mask = end_bit - first_bit >= (int)sizeof(K) * 8
                             ? ~(K)0
                             : (K)((((K)1 << (end_bit - first_bit)) - 1) << first_bit);
                return (a.first & mask) < (b.first & mask);
            });
            std::memset(scratch, 0xff, needed);
            std::memset((void *)other, 0xff, count * sizeof(K));
            std::memset((void *)other_values, 0xff, count * sizeof(V));
            for (uint32_t i = 0; i < count; i++) {
                to[i] = pairs[i].first;
                to_values[i] = pairs[i].second;
            }
        });
        return cudaSuccess;
    }
};

} // namespace cub

#endif
