/* A linear layer whose products take numbers in 8 bits (core/device/fp8_internal.h): x and weight
 * in E4M3, the gradient of the output in E5M2. x is kept for backward as it is, and cast again
 * there, with the scale of its first cast. */
#ifndef MC_OPS_FP8_INTERNAL_H
#define MC_OPS_FP8_INTERNAL_H

#include "core/ops/ops_internal.h"

/* A matrix (rows, columns) as bytes. A device with fp8_tn takes it with `transposed`, (columns,
 * padded), where rows are summed over. NULL: that form is not there. */
typedef struct mc_fp8_operand {
    int64_t rows, columns, padded;
    mc_fp8_format format;
    const float *inverse; /* device memory */
    const uint8_t *data, *transposed;
    /* scratch that they lie in, and the scale; NULL: memory of somebody else's */
    mc_tensor *held[3];
} mc_fp8_operand;

typedef struct mc_fp8_use mc_fp8_use;
struct mc_fp8_use {
    mc_fp8_scale *scales; /* (MC_FP8_ROLES), device memory; NULL: the linear is not in 8 bits */
    mc_fp8_seen *seen;    /* the same; what casts of training see */
    bool current;         /* a cast's scale is that of the tensor itself, over all ranks */
    /* Forward leaves out the activation: the linear in 8 bits that alone reads the output casts it
     * from the pre-activation, here and in backward. So the output has no memory. */
    bool defers;
    int margin;
    /* The weight's bytes, as forward (transposed false) or the input's gradient takes them. False
     * after an error. */
    bool (*weight)(mc_tape *t, const mc_fp8_use *use, mc_tensor *weight, bool transposed,
                   mc_fp8_operand *out);
    void *owner; /* for `weight` */
};

/* The forms that a cast makes. */
typedef struct mc_fp8_forms {
    bool data, transposed;
    bool noted; /* what is seen counts: not so where the same cast is done again */
} mc_fp8_forms;
/* Those that a product takes on this device, of a matrix whose rows are not summed over (data) and
 * one whose rows are. */
mc_fp8_forms mc_fp8_forms_of(mc_tape *t, bool data, bool transposed);

/* What a cast takes: x or, with an activation, what mc_fp8_cast_call makes of it. */
typedef struct mc_fp8_source {
    int64_t rows, columns;
    mc_matrix x;
    mc_activation activation;
    mc_matrix pre;
    float *sums;
} mc_fp8_source;

/* Bytes of an operand's forms. */
size_t mc_fp8_data_bytes(const mc_fp8_operand *x);
size_t mc_fp8_transposed_bytes(const mc_fp8_operand *x);

/* The scale of the next cast of x: that of the updates before or, with use->current, that of x
 * itself, which is written to `to`. NULL after an error. */
const mc_fp8_scale *mc_fp8_scale_for(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role,
                                     const mc_fp8_source *x, mc_fp8_scale *to);
/* Casts into out->data and out->transposed, whatever forms say: those that are not NULL. */
bool mc_fp8_cast_into(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role, const mc_fp8_source *x,
                      const mc_fp8_scale *scale, bool noted, mc_fp8_operand *out);
/* The same with scratch memory, until mc_fp8_release. */
bool mc_fp8_cast_new(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role, const mc_fp8_source *x,
                     const mc_fp8_scale *scale, mc_fp8_forms forms, mc_fp8_operand *out);
void mc_fp8_release(mc_fp8_operand *x);

/* How a linear's x is cast: what backward needs of forward. */
typedef struct mc_fp8_x {
    mc_activation activation; /* x is the activation of the tensor that is there */
    bool keeps;               /* forward makes the form that backward takes, too */
    mc_tensor *scale;         /* has the scale; NULL: use->scales have it */
    mc_tensor *kept;          /* with `keeps`, that form; else NULL, and it is cast again */
} mc_fp8_x;

/* The products of a linear. Forward: all of the call, but for the activation where y has no data;
 * the tensors of *how are set. */
void mc_fp8_linear(mc_tape *t, const mc_fp8_use *use, const mc_linear_call *call, mc_fp8_x *how,
                   mc_tensor *weight);
/* The bytes of the output's gradient. */
bool mc_fp8_cast_dy(mc_tape *t, const mc_fp8_use *use, const mc_fp8_source *dy, bool for_input,
                    bool for_weight, mc_fp8_operand *out);
/* dweight = alpha dy^T x + beta dweight; x (dy->rows, in) is read where no form of it was kept. */
void mc_fp8_weight_gradient(mc_tape *t, const mc_fp8_use *use, const mc_fp8_operand *dy,
                            mc_matrix x, int64_t in, const mc_fp8_x *how, float alpha, float beta,
                            mc_matrix dweight);
/* The linear before, whose activation's gradient is a part of the call: in 8 bits, too. */
typedef struct mc_fp8_before {
    const mc_fp8_use *use;
    bool for_input, for_weight;
    mc_fp8_operand *dy; /* becomes the gradient of its pre-activation */
} mc_fp8_before;
/* All of the call; with `before` dx is left without the activation's slope, which its cast has. */
void mc_fp8_input_gradient(mc_tape *t, const mc_fp8_use *use, const mc_fp8_operand *dy,
                           const mc_linear_backward_call *call, mc_tensor *weight,
                           const mc_fp8_before *before);

/* mc_scaled_linear with products in 8 bits. */
mc_tensor *mc_scaled_linear_fp8(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                mc_activation activation, float scale, const mc_fp8_use *use);

#endif
