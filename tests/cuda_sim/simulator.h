/* What the parts of the simulator ask of each other. */
#ifndef MC_SIM_SIMULATOR_H
#define MC_SIM_SIMULATOR_H

#include <mutex>
#include "tests/cuda_sim/include/cuda_runtime.h"

namespace mc_sim
{

/* One thread of the host at a time. */
extern std::recursive_mutex big_lock;
using lock = std::lock_guard<std::recursive_mutex>;

constexpr size_t LARGEST_SHARED = 227 << 10, USUAL_SHARED = 48 << 10;
constexpr int MULTIPROCESSORS = 3;
constexpr size_t GPU_MEMORY = (size_t)6 << 30;

/* The dynamic shared memory that cudaFuncSetAttribute allows a kernel. */
size_t allowed_shared(const void *kernel);

bool is_in_use(); /* there are streams */

/* Puts work on a stream as `enqueue` does, but runs nothing now. */
void enqueue_quietly(cudaStream_t stream, const char *name, std::function<void()> work);
bool is_recording(cudaStream_t stream);
/* Runs what a stream has next: there has to be something. */
void run_next(cudaStream_t stream);

/* Whether memory of the GPU is all there: fails otherwise. `what` says who wants it. */
void check_device_memory(const void *data, size_t bytes, const char *what);

extern bool kernel_runs; /* some thread of a kernel is at work: fail() tells where */
void describe_thread(char *text, size_t size);

/* The race detector (races.cpp); does nothing where kernels are not compiled for it. */
void races_begin_grid();
void races_begin_block();
void races_block_barrier();
void races_warp_barrier(unsigned warp, unsigned lanes);
void races_shared(const void *data, size_t bytes);
void races_access(const void *data, size_t bytes, bool writes);
int thread_of_block();

/* Where it looks for memory of the GPU. */
constexpr uintptr_t ARENA = (uintptr_t)0x500000000000, ARENA_BYTES = (uintptr_t)1 << 40;

} // namespace mc_sim

#endif
