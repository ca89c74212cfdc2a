/* What kernels and launches are in the simulator of CUDA: see tests/cuda_sim/README.md. */
#ifndef MC_SIM_H
#define MC_SIM_H

#include <cuda_runtime_api.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>

namespace mc_sim
{

/* Says what is wrong, and in which kernel and thread if one runs, and aborts. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Random numbers from MC_CUDA_SIM_SEED: what may happen in any order happens in that of chance. */
uint32_t random_bits();
static inline bool chance(uint32_t one_in) { return random_bits() % one_in == 0; }

/* ---- launches -------------------------------------------------------------------------------- */

struct config {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    config(dim3 g, dim3 b, size_t s = 0, cudaStream_t st = nullptr)
        : grid(g), block(b), shared(s), stream(st)
    {
    }
};

/* Puts work after what the stream has, or into the graph that it records. */
void enqueue(cudaStream_t stream, const char *name, std::function<void()> work);

/* Whether a launch is possible; the error is kept for cudaGetLastError. */
bool check_launch(const void *kernel, const config &c);
/* Runs all blocks of a grid; thread() is the kernel. */
void run_grid(const char *name, const config &c, const void *kernel,
              const std::function<void()> &thread);

template <class T> struct as_it_is {
    using type = T;
};

/* Arguments become what the parameters are, and are copied, when this is called. */
template <class... P>
void launch(const char *name, void (*kernel)(P...), const config &c,
            typename as_it_is<P>::type... arguments)
{
    std::tuple<P...> values(arguments...);
    static_assert(sizeof values <= 32764, "a kernel has at most 32,764 bytes of arguments");
    const void *key = (const void *)kernel;
    if (!check_launch(key, c)) return;
    config copy = c;
    enqueue(c.stream, name,
            [=] { run_grid(name, copy, key, [&] { std::apply(kernel, values); }); });
}

/* ---- within kernels -------------------------------------------------------------------------- */

struct shared_mark {
    uint64_t block; /* the last one that has declared the variable */
};
void declare_shared_slowly(shared_mark *mark, void *data, size_t bytes);
extern uint64_t block_number;
static inline void declare_shared(shared_mark *mark, void *data, size_t bytes)
{
    if (mark->block != block_number) declare_shared_slowly(mark, data, bytes);
}
void *dynamic_shared();
void check_bounds(int threads, int blocks = 0);

enum class barrier_kind { plain, count, all, any };
int block_barrier(barrier_kind kind, int value);

enum class warp_kind { shuffle, ballot, barrier };
/* What the lanes of `mask` have given; [32] says which lanes have. */
const uint64_t *warp_exchange(warp_kind kind, unsigned mask, uint64_t value);
int lane_of_thread();
/* Room for what a thread gives to one mma: other lanes read it until they come to the next. */
float *operands_of_thread();

void copy_later(void *to, const void *from, size_t bytes, size_t zeros);
void copies_commit();
void copies_wait(size_t most);

float ex2_approx_ftz_f32(float x);

} // namespace mc_sim

#define MC_SIM_SHARED(name)                        \
    static mc_sim::shared_mark mc_sim_mark_##name; \
    mc_sim::declare_shared(&mc_sim_mark_##name, (void *)&(name), sizeof(name))

#endif
