/* The persistent decode kernel, a step of generation with 1 to 4 rows as one kernel: calls of the
 * kernel table stand on a list as steps, which one launch runs in their order (persistent.cu). A
 * block a multiprocessor stays for all of them, so that weights are read without a break.
 *
 * A list is in order: each step may read what earlier ones write. No memory that one step reads or
 * writes is used for something else within the list. */
#ifndef MC_DEVICE_HOPPER_PERSISTENT_INTERNAL_H
#define MC_DEVICE_HOPPER_PERSISTENT_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

enum {
    MC_PERSISTENT_ROWS = 4,   /* of a step, at most */
    MC_PERSISTENT_MOST = 360, /* steps of a list: with its shapes it is an argument of a kernel */
    MC_PERSISTENT_SHAPES = 4, /* of attention, in a list */
    MC_PERSISTENT_WIDEST = 32768,  /* columns that steps hand to each other */
    MC_PERSISTENT_LONGEST = 16384, /* terms of a product: every block keeps the rows */
    MC_PERSISTENT_SLOTS = 8,       /* see persistent.cu */
    /* of mc_cuda_device.persistent: device memory, zeros at first */
    MC_PERSISTENT_MEMORY =
        ((MC_PERSISTENT_SLOTS + 1) * MC_PERSISTENT_ROWS * MC_PERSISTENT_WIDEST + 1024) * 4,
};

typedef enum mc_persistent_kind {
    MC_PERSISTENT_LINEAR, /* of weights in 16 or 8 bits */
    MC_PERSISTENT_NORM,   /* residual_norm, or residual_sum where y is NULL */
    MC_PERSISTENT_GATED,
    MC_PERSISTENT_ROTARY, /* taken in by the attention after it */
    MC_PERSISTENT_ATTENTION
} mc_persistent_kind;

/* y = activation(alpha x weight^T + bias). All matrices but a weight in 8 bits are of the step's
 * dtype; strides in elements. The weight's rows lie one after the other. */
typedef struct mc_persistent_linear {
    const void *x, *weight, *bias; /* bias NULL: none */
    const float *scale;            /* (out); NULL: the weight is of the dtype */
    void *y;
    int32_t out, x_stride, y_stride;
    float alpha;
    uint16_t in;
    /* planned: rows that every block has, and how many blocks have one more; terms of a chunk */
    uint16_t each, more, chunk;
} mc_persistent_linear;

/* s = x + f (f NULL: x), y = the norm of s; bias NULL: RMSNorm. s, y NULL: nobody else reads it.
 * Rows lie one after the other. */
typedef struct mc_persistent_norm {
    const void *x, *f, *weight, *bias;
    void *s, *y;
    int32_t columns;
    float eps;
} mc_persistent_norm;

/* y = activation(the first n columns of x) * the last n. */
typedef struct mc_persistent_gated {
    const void *x;
    void *y;
    int32_t n, x_stride, y_stride;
} mc_persistent_gated;

typedef struct mc_persistent_rotary {
    void *x;
    const int32_t *positions;
    double log2_base;
    int32_t x_stride;
    int16_t heads, head_dim, pairs;
    bool halves;
    float sign, magnitude, factor, keep[3]; /* see mc_rotation */
} mc_persistent_rotary;

/* What the attentions of a list have in common; see mc_cached_attention. */
typedef struct mc_persistent_shape {
    const int32_t *lengths, *first, *pages;
    const float *bias;
    int64_t capacity, longest, limit;
    int32_t heads, head_dim, page_shift;
    int32_t sharing, window; /* heads that share keys and values, 1: none; 0: no window */
    float scale;
    int32_t q_stride, new_k_stride, new_v_stride, k_stride, v_stride, out_stride;
} mc_persistent_shape;

typedef struct mc_persistent_attention {
    const void *q, *new_k, *new_v; /* new_k, new_v NULL: they are in the cache */
    void *k, *v, *out;
    int16_t shape, rotary[2]; /* steps in front that turn q and new_k; -1: none (planned) */
    int16_t parts;            /* of a (sequence, head)'s keys (planned) */
} mc_persistent_attention;

typedef struct mc_persistent_step {
    uint8_t kind, rows, dtype, format, activation; /* format: mc_weight_format */
    /* planned by mc_persistent_run */
    uint8_t barrier : 1; /* the grid waits for all steps before this one */
    uint8_t skip : 1;    /* another step does it */
    uint8_t turn : 3;    /* see mc_persistent_divide */
    int8_t publish;      /* the slot of the exchange that the result goes to; -1: none */
    int16_t from[3]; /* where inputs come from: a step that publishes them, or see persistent.cu */
    uint16_t words[3];     /* and where that is: slot * 8192 + the first column / 4 */
    uint8_t chunks, split; /* of a weight's row, see mc_persistent_divide */
    uint16_t next;         /* the next linear after this step, or the list's end */
    union {
        mc_persistent_linear linear;
        mc_persistent_norm norm;
        mc_persistent_gated gated;
        mc_persistent_rotary rotary;
        mc_persistent_attention attention;
    };
} mc_persistent_step;

typedef struct mc_persistent_list {
    int32_t count, shapes;
    mc_persistent_shape shape[MC_PERSISTENT_SHAPES];
    mc_persistent_step step[MC_PERSISTENT_MOST];
} mc_persistent_list;

/* Whether the GPU can run lists: it is a Hopper. */
bool mc_persistent_usable(mc_device *d);

/* A call of the kernel table of 1 to MC_PERSISTENT_ROWS rows as a step: arguments as there. False
 * where the kernel can't run it. The list is not full. The step goes to *step, which is where the
 * caller wants it; only attention looks at the list, for its shapes. */
bool mc_persistent_take_linear(mc_device *d, const mc_linear_call *call, mc_persistent_step *step);
bool mc_persistent_take_quantized(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                  mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                  mc_matrix y, mc_persistent_step *step);
bool mc_persistent_take_norm(const mc_residual_norm_call *call, mc_persistent_step *step);
bool mc_persistent_take_sum(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, mc_matrix f,
                            mc_dropout_mask dropout, mc_matrix s, mc_persistent_step *step);
bool mc_persistent_take_gated(mc_device *d, int64_t rows, int64_t n, mc_activation activation,
                              mc_matrix x, mc_matrix y, mc_persistent_step *step);
bool mc_persistent_take_rotary(mc_device *d, int64_t rows, mc_rotation rotation,
                               const int32_t *positions, mc_matrix x, mc_persistent_step *step);
bool mc_persistent_take_attention(mc_device *d, mc_persistent_list *list,
                                  const mc_cached_attention *shape, mc_matrix q, mc_matrix k,
                                  mc_matrix v, mc_matrix out, mc_persistent_step *step);

/* Plans and launches the steps of the list on the device's stream. */
mc_status mc_persistent_run(mc_device *d, mc_persistent_list *list);

#ifdef __cplusplus
}
#endif
#endif
