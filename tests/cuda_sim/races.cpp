#include "tests/cuda_sim/simulator.h"
namespace mc_sim
{
void races_begin_grid() {}
void races_begin_block() {}
void races_end_grid() {}
void races_block_barrier() {}
void races_warp_barrier(unsigned, unsigned) {}
}
