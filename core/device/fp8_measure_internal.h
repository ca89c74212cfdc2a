/* Times of a linear layer's products in 16 bits (or f32) and in 8 bits, and of the casts, measured
 * on a device through the kernel table. */
#ifndef MC_DEVICE_FP8_MEASURE_INTERNAL_H
#define MC_DEVICE_FP8_MEASURE_INTERNAL_H

#include "core/device/device_internal.h"

/* The products of a pass. */
typedef enum mc_fp8_product {
    MC_FP8_FORWARD,
    MC_FP8_INPUT_GRADIENT,
    MC_FP8_WEIGHT_GRADIENT,
    MC_FP8_PRODUCTS
} mc_fp8_product;

/* Seconds per call. Casts: x for forward, and for the weight's gradient; the gradient of the output
 * in both forms; the weight in both forms. */
typedef struct mc_fp8_times {
    double wide[MC_FP8_PRODUCTS], eight[MC_FP8_PRODUCTS];
    double cast_x, cast_x_again, cast_dy, cast_weight;
} mc_fp8_times;

/* Measures a layer (out, in) of a dtype on `rows` rows: for each kernel the shortest of `runs` runs
 * of `calls` calls, after one run for tuning. MC_ERR_NOMEM, or the status of a kernel. */
mc_status mc_fp8_measure(mc_device *d, mc_dtype dtype, int64_t rows, int64_t out, int64_t in,
                         int runs, int calls, mc_fp8_times *times);

/* The times of all products of a pass, and of all casts, for `passes` passes per cast weight. */
double mc_fp8_products_of(const double products[MC_FP8_PRODUCTS]);
double mc_fp8_casts_of(const mc_fp8_times *times, int passes);

#endif
