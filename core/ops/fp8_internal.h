/* A linear layer with 8-bit products (core/device/fp8_internal.h): x and weight in E4M3, the
 * gradient of the output in E5M2. Backward keeps x in its own dtype, and casts it again with the
 * scale of the first cast. */
#ifndef MC_OPS_FP8_INTERNAL_H
#define MC_OPS_FP8_INTERNAL_H

#include "core/ops/ops_internal.h"

/* A matrix (rows, columns) in 8 bits. For products that sum over rows, a device with fp8_tn needs
 * the form `transposed` (columns, padded). NULL: that form does not exist. */
typedef struct mc_fp8_operand {
    int64_t rows, columns, padded;
    mc_fp8_format format;
    const float *inverse; /* device memory */
    const uint8_t *data, *transposed;
    /* scratch memory of both forms and of the scale; NULL: memory of another owner */
    mc_tensor *held[3];
} mc_fp8_operand;

typedef struct mc_fp8_use mc_fp8_use;
struct mc_fp8_use {
    mc_fp8_scale *scales; /* (MC_FP8_ROLES), device memory; NULL: the linear is not in 8 bits */
    mc_fp8_seen *seen;    /* (MC_FP8_ROLES), device memory; what casts observe; NULL: not kept */
    bool current;         /* scales come from the tensor itself, over all ranks */
    /* Forward leaves the activation to the next 8-bit linear, the output's only reader, which
     * computes it from the pre-activation in its casts. So the output needs no memory. `gated`: it
     * is activation(a) * b of the halves a and b of the pre-activation's columns. */
    bool defers, gated;
    /* With fixed scales the output is the activation itself in E4M3, with the scale of the next
     * 8-bit linear's input: in device memory, at a multiple of 16 bytes; no gradients. NULL: not
     * so. */
    const float *result;
    /* The fixed scale of the linear's own input, there too: bytes of x with it are read in place of
     * x (mc_tensor.bytes). NULL: not fixed. */
    const float *input;
    int margin;
    /* The weight in 8 bits, in the form for forward (transposed false) or for the input's gradient.
     * False after an error. */
    bool (*weight)(mc_tape *t, const mc_fp8_use *use, mc_tensor *weight, bool transposed,
                   mc_fp8_operand *out);
    void *owner; /* for `weight` */
};

/* The forms that a cast produces. */
typedef struct mc_fp8_forms {
    bool data, transposed;
    bool noted; /* the observed maximum counts; false for a repeated cast */
} mc_fp8_forms;
/* The forms that products on this device need: `data` if one does not sum over the rows,
 * `transposed` if one does. */
mc_fp8_forms mc_fp8_forms_of(mc_tape *t, bool data, bool transposed);

/* The source of a cast: x or, with an activation, a function of it (see mc_fp8_cast_call). */
typedef struct mc_fp8_source {
    int64_t rows, columns;
    mc_matrix x;
    mc_activation activation;
    bool gated;
    mc_matrix pre;
    float *sums;
} mc_fp8_source;

/* Bytes of an operand's forms. */
size_t mc_fp8_data_bytes(const mc_fp8_operand *x);
size_t mc_fp8_transposed_bytes(const mc_fp8_operand *x);

/* Computes a tensor's scale from itself: from the largest magnitudes of what the ranks of a group
 * would cast with `what` (rows 0: nothing); NULL: of this rank alone. Scratch: seen (ranks). All in
 * device memory. */
mc_status mc_fp8_find_scale(mc_context *ctx, const mc_rank_group *group,
                            const mc_fp8_cast_call *what, mc_fp8_role role, int margin,
                            mc_fp8_seen *seen, mc_fp8_scale *to);
/* The scale for the next cast of x: from earlier updates or, with use->current, from x itself,
 * written to `to`. NULL after an error. */
const mc_fp8_scale *mc_fp8_scale_for(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role,
                                     const mc_fp8_source *x, mc_fp8_scale *to);
/* Casts into out->data and out->transposed, whichever are not NULL. */
bool mc_fp8_cast_into(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role, const mc_fp8_source *x,
                      const mc_fp8_scale *scale, bool noted, mc_fp8_operand *out);
/* The same into scratch memory, which mc_fp8_release frees. */
bool mc_fp8_cast_new(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role, const mc_fp8_source *x,
                     const mc_fp8_scale *scale, mc_fp8_forms forms, mc_fp8_operand *out);
void mc_fp8_release(mc_fp8_operand *x);

/* How a linear's x was cast in forward, for backward. */
typedef struct mc_fp8_x {
    mc_activation activation; /* x is this function of the tensor passed */
    bool gated;
    bool keeps;       /* forward also produces and keeps the form for backward */
    mc_tensor *scale; /* holds the scale; NULL: it is in use->scales */
    mc_tensor *kept;  /* with `keeps`, that form; else NULL: x is cast again */
} mc_fp8_x;

/* The products of a linear. Forward: all of the call, but without the activation if y has no data;
 * sets the tensors of *how. x of MC_U8 is in E4M3 already, with its fixed scale; y of MC_U8 is
 * written with the scale use->result. */
void mc_fp8_linear(mc_tape *t, const mc_fp8_use *use, const mc_linear_call *call, mc_fp8_x *how,
                   mc_tensor *weight);
/* Casts the output's gradient. */
bool mc_fp8_cast_dy(mc_tape *t, const mc_fp8_use *use, const mc_fp8_source *dy, bool for_input,
                    bool for_weight, mc_fp8_operand *out);
/* dweight = alpha dy^T x + beta dweight; x (dy->rows, in) is read unless its form was kept, which
 * is freed. */
void mc_fp8_weight_gradient(mc_tape *t, const mc_fp8_use *use, const mc_fp8_operand *dy,
                            mc_matrix x, int64_t in, mc_fp8_x *how, float alpha, float beta,
                            mc_matrix dweight);
/* The linear before, also in 8 bits, if the call includes its activation's gradient. */
typedef struct mc_fp8_before {
    const mc_fp8_use *use;
    bool for_input, for_weight;
    mc_fp8_operand *dy; /* receives the gradient of its pre-activation */
} mc_fp8_before;
/* All of the call; releases dy. With `before`, dx lacks the activation's slope, which its cast
 * applies. */
void mc_fp8_input_gradient(mc_tape *t, const mc_fp8_use *use, mc_fp8_operand *dy,
                           const mc_linear_backward_call *call, mc_tensor *weight,
                           const mc_fp8_before *before);

/* mc_residual_norm and mc_stream_norm, whose result also is in 8 bits (mc_tensor.bytes) with that
 * scale, in device memory; NULL: it is not. */
mc_tensor *mc_residual_norm_fp8(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout,
                                mc_tensor *weight, mc_tensor *bias, float eps, const float *scale);
mc_tensor *mc_stream_norm_fp8(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                              float eps, mc_tensor **sum, const float *scale);

/* mc_scaled_linear with products in 8 bits. */
mc_tensor *mc_scaled_linear_fp8(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                mc_activation activation, float scale, const mc_fp8_use *use);

#endif
