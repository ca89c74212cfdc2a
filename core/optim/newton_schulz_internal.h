/* Newton-Schulz of matrices of one shape, for Muon: X = 3.4445 X + (-4.775 A + 2.0315 A A) X with
 * A = X X^T, five times, of a tall X that of its transpose. */
#ifndef MC_OPTIM_NEWTON_SCHULZ_INTERNAL_H
#define MC_OPTIM_NEWTON_SCHULZ_INTERNAL_H

#include "core/device/device_internal.h"

/* `count` matrices (rows, columns), one after another. A and A A are symmetric, so of each row only
 * the columns up to the end of its strip of rows are multiplied; the rest is mirrored. */
typedef struct mc_newton_schulz {
    int64_t count, rows, columns;
    int64_t strip; /* rows of A in a strip: a multiple of 16, or min(rows, columns): one strip */
} mc_newton_schulz;

/* With strips where they pay. */
mc_newton_schulz mc_newton_schulz_of(int64_t count, int64_t rows, int64_t columns);

/* FLOP of the products, and the bytes that they take beside X. */
double mc_newton_schulz_flops(const mc_newton_schulz *n);
size_t mc_newton_schulz_bytes(const mc_newton_schulz *n, mc_dtype dtype);

/* What the result has to be multiplied by. */
double mc_newton_schulz_factor(void);

/* The matrices of x, f32 or bf16, each divided by its norm (1e-7 at least), then iterated. x moves
 * to other memory of the device's pool, of the same size. */
mc_status mc_newton_schulz_run(mc_device *d, const mc_newton_schulz *n, mc_matrix *x);

#endif
