/* Results that are not finite. */
#ifndef MC_MODELS_FINITE_INTERNAL_H
#define MC_MODELS_FINITE_INTERNAL_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

static inline bool mc_all_finite(const float *values, size_t count)
{
    bool finite = true;
    for (size_t i = 0; i < count; i++) finite = finite && isfinite(values[i]);
    return finite;
}

#endif
