#include "core/device/cpu/isa/isa_internal.h"

const mc_kernels MC_K(kernels) = {
#define MC_KERNEL_ENTRY(name) .name = MC_K(name),
    MC_KERNEL_MAP(MC_KERNEL_ENTRY)
#undef MC_KERNEL_ENTRY
};
