/* Element types. The numbers are fixed, because files contain them.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_TENSOR_DTYPE_H
#define MC_TENSOR_DTYPE_H

#include <stddef.h>
#include "core/base/status.h"

/*       name  value text    bytes  safetensors */
#define MC_DTYPE_MAP(X)           \
    X(F32, 1, "f32", 4, "F32")    \
    X(F16, 2, "f16", 2, "F16")    \
    X(BF16, 3, "bf16", 2, "BF16") \
    X(I64, 4, "i64", 8, "I64")    \
    X(I32, 5, "i32", 4, "I32")    \
    X(U8, 6, "u8", 1, "U8")       \
    X(BOOL, 7, "bool", 1, "BOOL")

typedef enum mc_dtype {
    MC_DTYPE_DEFAULT = 0, /* in options: f32, or the file's dtype if the function says so */
#define MC_DTYPE_ENUM(name, value, text, bytes, file_name) MC_##name = value,
    MC_DTYPE_MAP(MC_DTYPE_ENUM)
#undef MC_DTYPE_ENUM
} mc_dtype;

MC_API size_t mc_dtype_size(mc_dtype dtype);      /* bytes an element; 0 for no dtype */
MC_API const char *mc_dtype_name(mc_dtype dtype); /* "f32", ...; "none" for no dtype */

#endif
