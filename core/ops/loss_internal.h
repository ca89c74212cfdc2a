/* What losses share. */
#ifndef MC_OPS_LOSS_INTERNAL_H
#define MC_OPS_LOSS_INTERNAL_H

#include "core/ops/ops_internal.h"

typedef struct mc_loss_options {
    int32_t ignore_index;
    float smoothing, logit_scale; /* logit_scale 1 where none is given */
} mc_loss_options;

/* The options with their defaults filled in, but for the class weights; an error that names what is
 * out of range. `given` may be NULL. */
bool mc_loss_read_options(mc_tape *t, const char *op, const mc_cross_entropy_options *given,
                          mc_loss_options *out);

/* ln(1 + e^x). */
mc_tensor *mc_softplus(mc_tape *t, mc_tensor *x);

/* Ends a loss over `rows` rows: passes the nominal rows of `from` (labels, losses of rows) on, and
 * gives it the seed of backward where no step is open. The seed; NULL where nothing is recorded,
 * after an error, and where no step is open and `count` is negative: not known on the host. */
const float *mc_loss_seed(mc_tape *t, mc_tensor *loss, const mc_tensor *from, int64_t rows,
                          double count);

/* mc_cross_entropy with class weights. */
mc_tensor *mc_weighted_cross_entropy(mc_tape *t, mc_tensor *x, mc_tensor *labels,
                                     const mc_cross_entropy_options *given);

#endif
