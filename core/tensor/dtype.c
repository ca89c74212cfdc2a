#include "core/tensor/dtype.h"

size_t mc_dtype_size(mc_dtype dtype)
{
    switch (dtype) {
#define MC_DTYPE_SIZE(name, value, text, bytes, file_name) \
    case MC_##name: return bytes;
        MC_DTYPE_MAP(MC_DTYPE_SIZE)
#undef MC_DTYPE_SIZE
    case MC_DTYPE_DEFAULT: break;
    }
    return 0;
}

const char *mc_dtype_name(mc_dtype dtype)
{
    switch (dtype) {
#define MC_DTYPE_NAME(name, value, text, bytes, file_name) \
    case MC_##name: return text;
        MC_DTYPE_MAP(MC_DTYPE_NAME)
#undef MC_DTYPE_NAME
    case MC_DTYPE_DEFAULT: break;
    }
    return "none";
}
