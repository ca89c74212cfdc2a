/* Copies to shared memory that happen any time before they are waited for. */
#ifndef MC_SIM_CUDA_PIPELINE_PRIMITIVES_H
#define MC_SIM_CUDA_PIPELINE_PRIMITIVES_H

#include "tests/cuda_sim/include/mc_sim.h"

static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes,
                                           size_t zeros = 0)
{
    mc_sim::copy_later(to, from, bytes, zeros);
}
static inline void __pipeline_commit() { mc_sim::copies_commit(); }
static inline void __pipeline_wait_prior(size_t most) { mc_sim::copies_wait(most); }

#endif
