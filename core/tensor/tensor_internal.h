/* The fields of tensors and their storage. */
#ifndef MC_TENSOR_TENSOR_INTERNAL_H
#define MC_TENSOR_TENSOR_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/tensor/tensor.h"

/* Device memory shared by a tensor and its views. Freed when `references` reaches 0. `saves` counts
 * the recorded nodes whose backward needs the contents. At the end of a scope, contents without
 * saves are released even if tensors still point here (data == NULL then). */
typedef struct mc_storage {
    mc_device *device;
    void *data;
    size_t bytes;
    int references;
    int saves;
    bool dropped;  /* only backward may still read it: freed when saves reaches 0 */
    bool borrowed; /* data belongs to another owner (a parameter bucket) and is never freed here */
    bool in_arena; /* the struct itself lives in a tape's arena */
    bool computed; /* integers that kernels write: see mc_tensor_new_computed */
    /* Borrowed memory that comes and goes, such as a parameter that is gathered from the ranks for
     * each use. `data` is not set; the contents start `base_offset` bytes after *base (NULL: not
     * present). */
    void *const *base;
    size_t base_offset;
    struct mc_tensor *source; /* the tensor it was created for: its node can recompute it */
} mc_storage;

/* Where the contents start now; NULL: not in memory. */
static inline void *mc_storage_data(const mc_storage *storage)
{
    if (!storage->base) return storage->data;
    return *storage->base ? (char *)*storage->base + storage->base_offset : NULL;
}

struct mc_node; /* core/autograd */

/* x + dropout(f), not computed yet: see mc_residual_defer in core/ops/ops.h. */
typedef struct mc_deferred {
    struct mc_tensor *x, *f;
    float dropout;
} mc_deferred;

struct mc_tensor {
    mc_owned owned; /* tensors of a context; unused for those of a tape */
    mc_context *ctx;
    mc_dtype dtype;
    mc_shape shape;
    mc_storage *storage;
    size_t offset; /* bytes from the start of the storage */
    /* The values of an integer tensor created from host data, kept if device memory is not host
     * memory, so that indices are checked without waiting for the device. Else NULL. */
    void *host;
    const mc_lengths *lengths;
    /* the expression that the tensor stands for, not computed yet; or NULL */
    const mc_deferred *deferred;
    /* Or the tensor stands for the activation (mc_activation) of `pre` or, `gated`, for
     * activation(a) * b of the halves a and b of its columns, which the next linear layer computes
     * as it reads it: see mc_fp8_use.defers. Else NULL. */
    struct mc_tensor *pre;
    int activation;
    bool gated;
    /* The same values in E4M3 with a fixed scale, for the linear layer whose input has it; without
     * a storage there are no others. Else NULL. See mc_fp8_use.result, mc_residual_norm_fp8. */
    struct mc_tensor *bytes;
    const float *bytes_scale;
    struct mc_stored *norm; /* the weight of the norm layer that computed it; else NULL */
    /* autograd */
    struct mc_tape *tape;       /* the tape that created it; NULL for context tensors */
    struct mc_tensor *previous; /* the tensor created before it on that tape */
    uint64_t serial;            /* its number on that tape, from 1 */
    struct mc_node *node;       /* the node that produced it; NULL for inputs and parameters */
    struct mc_tensor *gradient; /* during backward; of a leaf: the view of its bucket */
    int64_t zero_rows;          /* of a padded parameter: number of zero rows at its end */
    bool foreign;               /* a view of another tape's memory, without a reference to it */
    bool requires_grad;
    bool is_leaf; /* a parameter: its gradient is in its bucket */
    /* the lazily zeroed buffer of a leaf's gradient or its view; else NULL */
    struct mc_blank *blank;
    /* of a loss: its gradient in a backward pass without a given one, {seed, 0} in device memory;
     * see mc_loss_seed_of */
    const float *seed;
    /* of labels and their losses: the largest number of rows of any rank in a pass; 0: the local
     * one */
    int64_t nominal_rows;
};

/* Rows and columns when all but the last dimension are taken together; a 1-D tensor is one row. */
int64_t mc_tensor_rows(const mc_tensor *x);
int64_t mc_tensor_columns(const mc_tensor *x);
/* "(3, 17, 48)" into a caller's buffer; returns it. */
typedef struct mc_shape_text {
    char text[128];
} mc_shape_text;
mc_shape_text mc_shape_print(mc_shape shape);
#define MC_SHAPE_TEXT(shape) (mc_shape_print(shape).text)

/* The contents of an integer tensor on the host, without waiting; NULL if only the device has
 * them. */
const void *mc_tensor_host(const mc_tensor *x);

/* A tensor of i32 zeros that kernels will overwrite. The host does not know its values, so
 * operations use them as indices without a check. mc_tensor_write sets it. The caller must free it
 * before the context. */
mc_tensor *mc_tensor_new_computed(mc_context *ctx, mc_shape shape);

/* Checks a shape (sizes >= 0, no overflow) and computes its bytes. */
bool mc_shape_bytes(mc_shape shape, mc_dtype dtype, size_t *bytes);
/* The same for a new tensor, with an error that names what is wrong: the dtype or the shape. */
bool mc_tensor_bytes(mc_context *ctx, mc_dtype dtype, mc_shape shape, size_t *bytes);

/* lengths->fixed holds int32: length (count) and offset (count + 1), as kernels take them; then, at
 * mc_lengths_first_at, the first row of each sequence (count; -1: it is empty), and at
 * mc_lengths_position_at each row's position in its sequence (capacity; 0 after the last token). */
static inline size_t mc_lengths_first_at(const mc_lengths *lengths)
{
    return (2 * (size_t)lengths->count + 1) * sizeof(int32_t);
}
static inline size_t mc_lengths_position_at(const mc_lengths *lengths)
{
    return (3 * (size_t)lengths->count + 1) * sizeof(int32_t);
}
/* Tokens of all sequences of the present batch. */
static inline int64_t mc_lengths_tokens(const mc_lengths *lengths)
{
    return lengths->fixed ? lengths->offset[lengths->count] : lengths->total;
}
/* Removes lengths from their context's list: the caller frees them. */
void mc_lengths_disown(mc_lengths *lengths);

/* Frees the device memory of a storage; the struct stays. */
void mc_storage_free_data(mc_storage *storage);
void mc_storage_unref(mc_storage *storage); /* NULL allowed */

static inline bool mc_dtype_is_float(mc_dtype dtype)
{
    return dtype == MC_F32 || dtype == MC_F16 || dtype == MC_BF16;
}
static inline bool mc_dtype_is_index(mc_dtype dtype) { return dtype == MC_I64 || dtype == MC_I32; }

#endif
