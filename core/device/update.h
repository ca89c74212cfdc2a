/* The settings of one step of an optimizer.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DEVICE_UPDATE_H
#define MC_DEVICE_UPDATE_H

#include <stdint.h>

/* The device decides it, so it is in device memory: host code may read it only on the CPU
 * device. */
typedef struct mc_update {
    double lr;            /* to be multiplied by the factor of the parameter's group */
    int64_t step;         /* the number of this step of the optimizer, from 1 */
    float gradient_scale; /* undoes the loss scale, divides by the count, and clips */
    int32_t skip;         /* not 0: do not change anything */
} mc_update;

#endif
