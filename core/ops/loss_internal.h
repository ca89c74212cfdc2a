/* Functions shared by the losses. */
#ifndef MC_OPS_LOSS_INTERNAL_H
#define MC_OPS_LOSS_INTERNAL_H

#include "core/ops/ops_internal.h"

typedef struct mc_loss_options {
    int32_t ignore_index;
    float smoothing, logit_scale; /* logit_scale 1 if none is given */
} mc_loss_options;

/* Fills in the defaults of the options, except class weights; an error names a value out of range.
 * `given` may be NULL. */
bool mc_loss_read_options(mc_tape *t, const char *op, const mc_cross_entropy_options *given,
                          mc_loss_options *out);

/* ln(1 + e^x). */
mc_tensor *mc_softplus(mc_tape *t, mc_tensor *x);

/* Ends a loss over `rows` rows: takes over the nominal rows of `from` (labels, losses of rows), and
 * without an open step sets backward's seed. Returns the seed; NULL if nothing is recorded, after
 * an error, and without an open step if `count` is negative: unknown on the host. */
const float *mc_loss_seed(mc_tape *t, mc_tensor *loss, const mc_tensor *from, int64_t rows,
                          double count);

/* mc_cross_entropy with class weights. */
mc_tensor *mc_weighted_cross_entropy(mc_tape *t, mc_tensor *x, mc_tensor *labels,
                                     const mc_cross_entropy_options *given);

#endif
