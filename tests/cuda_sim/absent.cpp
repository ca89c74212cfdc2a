/* cuDNN and NCCL are not simulated: who loads them is compiled with this in place of dlopen. */
#include <dlfcn.h>

extern "C" void *mc_sim_dlopen(const char *, int flags)
{
    return dlopen("(no library in the CUDA simulator)", flags);
}
