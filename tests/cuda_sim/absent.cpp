/* cuDNN is not simulated: who loads it is compiled with this in place of dlopen. What needs no GPU,
 * such as making plans, works as ever. */
#include <dlfcn.h>
#include "tests/cuda_sim/simulator.h"

extern "C" void *mc_sim_dlopen(const char *name, int flags)
{
    return dlopen(mc_sim::is_in_use() ? "(no such library for a simulated GPU)" : name, flags);
}
