/* Newton-Schulz of matrices of one shape, for Muon (Jordan et al. 2024): five times
 *     G = X X^T, X = 3.4445 X + (-4.775 G + 2.0315 G G) X
 * For a tall X, G = X^T X and X is multiplied from the right. */
#ifndef MC_OPTIM_NEWTON_SCHULZ_INTERNAL_H
#define MC_OPTIM_NEWTON_SCHULZ_INTERNAL_H

#include "core/device/device_internal.h"

/* `count` matrices (rows, columns), one after another. G and G G are symmetric, so of each row only
 * the columns up to the end of its strip of rows are computed; the rest is mirrored. */
typedef struct mc_newton_schulz {
    int64_t count, rows, columns;
    int64_t strip; /* rows of G in a strip: a multiple of 16, or min(rows, columns): one strip */
} mc_newton_schulz;

/* With strips where they pay. */
mc_newton_schulz mc_newton_schulz_of(int64_t count, int64_t rows, int64_t columns);

/* FLOP of the products, and bytes of scratch memory beside X. */
double mc_newton_schulz_flops(const mc_newton_schulz *n);
size_t mc_newton_schulz_bytes(const mc_newton_schulz *n, mc_dtype dtype);

/* What the result of mc_newton_schulz_run has to be multiplied by. */
double mc_newton_schulz_factor(void);

/* Divides each matrix of x, f32 or bf16, by its norm (1e-7 at least), then iterates. x moves to
 * other memory of the device's pool, of the same size, which the caller then owns instead. Returns
 * MC_ERR_NOMEM or the status of a kernel; x then has undefined values. */
mc_status mc_newton_schulz_run(mc_device *d, const mc_newton_schulz *n, mc_matrix *x);

#endif
