/* Tensors: a dtype, a shape, and row-major data on the context's device.
 *
 * Tensors returned by operations belong to their tape, and mc_tape_end frees them. Tensors created
 * by mc_tensor_new belong to the context. All functions accept NULL tensors and then return
 * zeros.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_TENSOR_TENSOR_H
#define MC_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/context.h"
#include "core/tensor/dtype.h"

enum { MC_MAX_DIMS = 6 };

/* Sizes of each dimension, outermost first; ndim 0 is a scalar of one element. */
typedef struct mc_shape {
    int ndim;
    int64_t dim[MC_MAX_DIMS];
} mc_shape;

/* MC_SHAPE(rows, columns): a shape of one to six sizes. */
#define MC_SHAPE(...)                                                              \
    ((mc_shape){.ndim = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                .dim = {__VA_ARGS__}})

MC_API int64_t mc_shape_count(mc_shape shape); /* elements: the product of the sizes */
MC_API bool mc_shape_equal(mc_shape a, mc_shape b);

/* Lengths of the sequences of a packed batch, on the host. Tokens of sequence i are the rows
 * offset[i] .. offset[i] + length[i] of a packed (capacity, ...) tensor; there is no padding
 * between sequences. Rows from `total` to `capacity` are a finite, ignored tail. */
typedef struct mc_lengths {
    int count;               /* sequences */
    const int32_t *length;   /* (count) tokens of each, 0 allowed */
    const int32_t *offset;   /* (count + 1) first row of each; offset[count] == total */
    int64_t total;           /* tokens of all sequences; with `fixed`: the capacity */
    int64_t capacity;        /* rows of the packed tensors, >= total */
    int32_t longest;         /* the largest length; with `fixed`: a limit for it */
    struct mc_tensor *fixed; /* from mc_lengths_new: device memory that kernels read; else NULL */
} mc_lengths;

typedef struct mc_tensor mc_tensor;

/* Creates lengths for recorded steps (core/autograd/step.h), of up to `count` sequences and
 * `capacity` tokens. The kernel launches depend only on count, capacity and longest, which must be
 * part of the step's key. Kernels read the lengths from device memory, which mc_lengths_write
 * refills. Rows from the last token (offset[count]) to `capacity` are an ignored tail. Until the
 * first write all sequences are empty. Owned by the context. Returns NULL after an error: a
 * negative number, a capacity over 2^31 - 1, memory. */
MC_API mc_lengths *mc_lengths_new(mc_context *ctx, int count, int64_t capacity);
/* Replaces the lengths by the `count` lengths of the next batch; the other sequences become empty.
 * `capacity` and `longest` are limits that the caller rounds up, so that many batches share them.
 * Does not wait for the device; work launched before still reads the old lengths. Must not be
 * called while a tape that used them still has to run backward. Errors, which leave the lengths
 * unchanged: more sequences or tokens than fit, a length that is negative or over `longest`, a
 * negative `longest`, a NULL argument, more than `capacity` tokens. */
MC_API mc_status mc_lengths_write(mc_lengths *lengths, const int32_t *length, int count,
                                  int64_t capacity, int32_t longest);
/* Frees lengths of mc_lengths_new, under the same rule as mc_tensor_free. NULL is allowed. */
MC_API void mc_lengths_free(mc_lengths *lengths);

/* Creates a tensor of zeros, owned by the context. Errors: no such dtype, a negative size,
 * ndim over 6, memory. */
MC_API mc_tensor *mc_tensor_new(mc_context *ctx, mc_dtype dtype, mc_shape shape);
/* The same, with a copy of `data` (host memory, row-major, of that dtype; NULL is an error). */
MC_API mc_tensor *mc_tensor_from(mc_context *ctx, mc_dtype dtype, mc_shape shape, const void *data);
/* Replaces the first `bytes` bytes of a tensor created by the two functions above with a copy of
 * `data`. Does not wait for the device; work launched before still reads the old contents. Errors:
 * more bytes than the tensor has, NULL, a tensor of a tape. */
MC_API mc_status mc_tensor_write(mc_tensor *tensor, const void *data, size_t bytes);
/* Copies the elements of `from` to the first elements of `to`, converted to the floating dtype of
 * `to`, on the device and without waiting. Use it to get results out of a recorded step: `to` is a
 * tensor of the context, which the caller reads after mc_step_run. Errors: more elements than `to`
 * has, integers, a tensor of another context. */
MC_API mc_status mc_tensor_copy(mc_tensor *to, const mc_tensor *from);
/* Frees a tensor created by mc_tensor_new or mc_tensor_from. An open tape that used it can run no
 * backward after that: MC_ERR_STATE. NULL is allowed. Freeing a tensor of a tape (the result of an
 * operation, a gradient) is an error, MC_ERR_ARGUMENT, and leaves it to the tape: mc_tape_release
 * gives its memory back earlier. */
MC_API void mc_tensor_free(mc_tensor *tensor);

MC_API mc_dtype mc_tensor_dtype(const mc_tensor *tensor);
MC_API mc_shape mc_tensor_shape(const mc_tensor *tensor);
MC_API int64_t mc_tensor_size(const mc_tensor *tensor, int dim); /* dim < 0 counts from the last */
MC_API int64_t mc_tensor_count(const mc_tensor *tensor);         /* elements */
/* Data on the device; NULL once it was released (inside a block of a finished forward pass). */
MC_API void *mc_tensor_data(const mc_tensor *tensor);
/* The lengths of the packed batch whose rows this tensor holds, NULL if it is not packed. */
MC_API const mc_lengths *mc_tensor_lengths(const mc_tensor *tensor);

/* Copies `count` elements to host memory as f32 (any floating or integer dtype), waiting for the
 * device. `count` must equal the tensor's, and the tensor must belong to the context. On a failed
 * context, and after an error, fills `out` with NaN. Errors: a NULL argument, a tensor of another
 * context, another count. */
MC_API mc_status mc_tensor_read_f32(mc_context *ctx, const mc_tensor *tensor, float *out,
                                    int64_t count);

#endif
