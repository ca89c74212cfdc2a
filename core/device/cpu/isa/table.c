#include "core/device/cpu/isa/isa_internal.h"

const mc_kernels MC_K(kernels) = {
#define KERNEL(name) .name = MC_K(name),
#include "core/device/kernels.def"
#undef KERNEL
};
