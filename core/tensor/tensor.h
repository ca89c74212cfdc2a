/* Tensors: a dtype, a shape, and row-major data on the context's device.
 *
 * Tensors made by operations belong to their tape and are gone after mc_tape_end; tensors made with
 * mc_tensor_new belong to the context. All functions accept NULL tensors and then return zeros. */
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
    struct mc_tensor *fixed; /* of mc_lengths_new: memory that kernels read them from; else NULL */
} mc_lengths;

typedef struct mc_tensor mc_tensor;

/* Lengths for steps that are recorded (core/autograd/step.h): of up to `count` sequences and
 * `capacity` tokens. What is launched depends on count, capacity and longest alone, which belong
 * into the key of a step; the lengths are read from memory that mc_lengths_write refills. Where
 * they are less than `capacity` together, the rows after the last token (offset[count]) are tail.
 * Until the first write all sequences are empty. Owned by the context. NULL after an error: a
 * negative number, a capacity over 2^31 - 1, memory. */
MC_API mc_lengths *mc_lengths_new(mc_context *ctx, int count, int64_t capacity);
/* Makes them those of the next batch: `count` of them, further sequences are empty. `capacity` and
 * `longest` are limits, rounded up so that many batches share them. Does not wait for the device,
 * and what was launched before still reads the old ones; not while a tape that used them has yet to
 * run backward. Errors: more sequences or tokens than
 * there is room for, a length that is negative or over `longest`, a negative `longest`, NULL for
 * any, more than `capacity` tokens; the lengths are then what they were. */
MC_API mc_status mc_lengths_write(mc_lengths *lengths, const int32_t *length, int count,
                                  int64_t capacity, int32_t longest);
/* Frees them, as mc_tensor_free does a tensor. NULL is allowed. */
MC_API void mc_lengths_free(mc_lengths *lengths);

/* Makes a tensor of zeros owned by the context. Errors: a negative size, ndim over 6, memory. */
MC_API mc_tensor *mc_tensor_new(mc_context *ctx, mc_dtype dtype, mc_shape shape);
/* The same, with a copy of `data` (host memory, row-major, of that dtype; NULL is an error). */
MC_API mc_tensor *mc_tensor_from(mc_context *ctx, mc_dtype dtype, mc_shape shape, const void *data);
/* Replaces the first `bytes` bytes of a tensor made by the two functions above with a copy of
 * `data`; does not wait for the device, and what was launched before still reads the old contents.
 * `bytes` beyond the tensor, NULL and tensors of a tape are errors. */
MC_API mc_status mc_tensor_write(mc_tensor *tensor, const void *data, size_t bytes);
/* Copies what `from` holds to the first elements of `to`, on the device and without waiting, as the
 * floating dtype that `to` has. So results leave a step that is recorded: `to` is a tensor of the
 * context, read after mc_step_run. Errors: more elements than `to` has, integers, a
 * tensor of another context. */
MC_API mc_status mc_tensor_copy(mc_tensor *to, const mc_tensor *from);
/* Frees a tensor made by mc_tensor_new or mc_tensor_from; not while a tape that used it has yet to
 * run backward. NULL is allowed. */
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
 * device. `count` must be the tensor's, and the tensor the context's. On a failed context, and
 * after an error, fills with NaN. Errors: NULL for any, another context's tensor, another count. */
MC_API mc_status mc_tensor_read_f32(mc_context *ctx, const mc_tensor *tensor, float *out,
                                    int64_t count);

#endif
