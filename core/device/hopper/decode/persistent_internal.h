/* The persistent decode kernel: a generation step of 1 to 4 rows as one kernel. Calls of the kernel
 * table are steps of a list, which one launch runs in order (persistent.cu). One block runs on each
 * multiprocessor through all steps, so weights are read without a break.
 *
 * A step may read what earlier steps write, and names these steps (`from`). Memory that a step
 * reads or writes is not used for anything else within the list. */
#ifndef MC_DEVICE_HOPPER_PERSISTENT_INTERNAL_H
#define MC_DEVICE_HOPPER_PERSISTENT_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

enum {
    MC_PERSISTENT_ROWS = 4,   /* of a step at most */
    MC_PERSISTENT_MOST = 360, /* steps of a list, which with its shapes is a kernel's argument */
    MC_PERSISTENT_SHAPES = 4, /* of attention, in a list */
    MC_PERSISTENT_WIDEST = 32768,  /* columns of a published result */
    MC_PERSISTENT_LONGEST = 16384, /* terms of a product: every block keeps the rows */
    MC_PERSISTENT_SLOTS = 8,       /* see persistent.cu */
    /* of mc_cuda_device.persistent: device memory, zeros at first */
    MC_PERSISTENT_MEMORY =
        ((MC_PERSISTENT_SLOTS + 1) * MC_PERSISTENT_ROWS * MC_PERSISTENT_WIDEST + 1024) * 4,
};

typedef enum mc_persistent_kind {
    MC_PERSISTENT_LINEAR, /* with weights in 16 or 8 bits */
    MC_PERSISTENT_NORM,   /* residual_norm, or residual_sum where y is NULL */
    MC_PERSISTENT_GATED,
    MC_PERSISTENT_ROTARY, /* done by the next attention if possible */
    MC_PERSISTENT_ATTENTION
} mc_persistent_kind;

/* y = activation(alpha x weight^T + bias). All matrices except an 8-bit weight have the step's
 * dtype; strides are in elements. The weight's rows are contiguous. */
typedef struct mc_persistent_linear {
    const void *x, *weight, *bias; /* bias: may be NULL */
    const float *scale;            /* (out); NULL: the weight has the step's dtype */
    void *y;
    int32_t out, x_stride, y_stride;
    float alpha;
    uint16_t in;
    /* planned: rows of every block; blocks with one row more; terms of a chunk */
    uint16_t each, more, chunk;
} mc_persistent_linear;

/* s = x + f (f NULL: x), y = the norm of s; bias NULL: RMSNorm. s, y NULL: not needed in memory.
 * Rows are contiguous. */
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

/* What the attention steps of a list have in common; see mc_cached_attention. */
typedef struct mc_persistent_shape {
    const int32_t *lengths, *first, *pages;
    const float *bias;
    int64_t capacity, longest, limit;
    int32_t heads, head_dim, page_shift;
    int32_t sharing, window; /* heads for each key head; 0: no window */
    float scale;
    int32_t q_stride, new_k_stride, new_v_stride, k_stride, v_stride, out_stride;
} mc_persistent_shape;

typedef struct mc_persistent_attention {
    const void *q, *new_k, *new_v; /* new_k, new_v NULL: in the cache already */
    void *k, *v, *out;
    int16_t shape, rotary[2]; /* earlier steps that rotate q and new_k; -1: none (planned) */
    int16_t parts;            /* of the keys of a (sequence, head) (planned) */
} mc_persistent_attention;

/* mc_persistent_step.from of an input that is not published, and .at of one that is not some
 * columns of a result. */
enum { MC_PERSISTENT_IN_MEMORY = -1, MC_PERSISTENT_RESIDENT = -2, MC_PERSISTENT_NOWHERE = 0xffff };

typedef struct mc_persistent_step {
    uint8_t kind, rows, dtype, format, activation; /* format: mc_weight_format */
    uint8_t barrier : 1; /* planned: all blocks finish the preceding steps first */
    uint8_t skip : 1;    /* planned: another step does its work */
    uint8_t turn : 3;    /* see mc_persistent_divide */
    int8_t publish;      /* planned: the result's slot in the exchange; -1: not published */
    /* Of x; x and f; q, new_k and new_v: the step that computes it, and the first column of that
     * step's result (a norm's are y and then s). Of an input from before the list: IN_MEMORY, and a
     * number that only inputs with the same address have. Planned: the step that publishes it, and
     * where (slot * 8192 + the first column / 4), IN_MEMORY, or RESIDENT (in shared memory). */
    int16_t from[3];
    uint16_t at[3];
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

/* Whether the GPU can run lists: whether it is a Hopper. */
bool mc_persistent_usable(mc_device *d);

/* Makes a step of a call of the kernel table with 1 to MC_PERSISTENT_ROWS rows: arguments as there.
 * False if the kernel cannot run it. The caller adds *step to the list, which has room; only
 * attention uses the list, for its shapes. */
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
