/* cuDNN is not simulated: core/device/cuda/cudnn.c is compiled with this in place of dlopen. */
#include <dlfcn.h>

extern "C" void *mc_sim_dlopen(const char *, int flags)
{
    return dlopen("(no library in the CUDA simulator)", flags);
}
