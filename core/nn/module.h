/* Modules: trees of named parameters.
 *
 * A module is a struct of yours whose first member is `mc_module module`; mc_module_new makes a
 * root, mc_module_add a child. Parameters are named by the path to them
 * ("encoder.layers.0.ffn.ffn.w_out.weight"), and the name decides the initial values together with
 * the context's seed, so the same model has the same weights everywhere.
 *
 *     typedef struct my_model { mc_module module; mc_parameter *gate; mc_linear *up; } my_model;
 *
 *     my_model *m = mc_module_new(ctx, "", sizeof *m, NULL);
 *     if (!m) return NULL;
 *     m->gate = mc_parameter_new(&m->module, "gate", MC_SHAPE(dim), mc_init_normal(0, 0.02f));
 *     m->up = mc_linear_add(&m->module, "up", dim, 4 * dim, NULL);
 *
 * Storage. The stored tensors of a block (see block_list.h), or of the root outside its blocks, lie
 * in one flat buffer a (dtype, trainable) pair, with flat gradients (f32, but see mc_grad_dtype)
 * and f32 optimizer state of the same layout. Buffers are laid out at the first tape, optimizer or
 * load that needs them; declaring or freezing parameters later lays them out anew, keeping values,
 * gradients (as f32 then) and state. Gradient memory exists for trainable parameters only, from the
 * first backward or optimizer on. */
#ifndef MC_NN_MODULE_H
#define MC_NN_MODULE_H

#include "core/autograd/tape.h"

typedef struct mc_parameter mc_parameter;

/* Public so that it can be embedded. Members are private. */
typedef struct mc_module {
    mc_context *ctx;
    const char *name; /* the part of the path this module adds; "" adds none */
    struct mc_module *parent, *first_child, *last_child, *next;
    struct mc_module_root *root;
    bool holds_blocks; /* its children are blocks */
    int zero_level;    /* of a block or a root: see mc_zero_level */
} mc_module;

typedef struct mc_module_options {
    mc_dtype dtype; /* of the parameters: MC_F32 (default), MC_F16, MC_BF16 */
    /* How parameters outside of blocks are spread over ranks. Default: the context's. */
    mc_zero_level zero_level;
} mc_module_options;

/* Makes a root module of `size` zeroed bytes, owned by the context; names are relative to it.
 * `name` comes first in its parameters' names unless it is "". NULL after an error: a NULL name, a
 * `size` below that of mc_module, options out of range. */
MC_API void *mc_module_new(mc_context *ctx, const char *name, size_t size,
                           const mc_module_options *options);
/* Makes a child. A name that begins with '/' stands for the whole path from the root: the
 * parameters then belong to the parent (its block, its buckets) under a name of another place, as a
 * checkpoint format may want it. Errors: an empty name or one with '.' at an end, one the parent
 * has already, a `size` below that of mc_module. */
MC_API void *mc_module_add(mc_module *parent, const char *name, size_t size);
/* Frees a root and its whole tree, parameters and state (the context would do it otherwise). A
 * module that is no root is an error. */
MC_API void mc_module_free(mc_module *root);

/* ---- initial values -------------------------------------------------------------------------- */

/* Fills elements first .. first + count of a parameter into `out` (f32). `seed` is the parameter's
 * own, made of the context's seed and its name. Must depend on nothing but its arguments. */
typedef void (*mc_init_fn)(void *user, uint64_t seed, int64_t first, int64_t count, float *out);

typedef struct mc_initializer {
    enum {
        MC_INIT_ZEROS = 0,
        MC_INIT_CONSTANT,
        MC_INIT_NORMAL,
        MC_INIT_UNIFORM,
        MC_INIT_CUSTOM
    } kind;
    float a, b;
    mc_init_fn fn;
    void *user;
} mc_initializer;

MC_API mc_initializer mc_init_zeros(void);
MC_API mc_initializer mc_init_constant(float value);
MC_API mc_initializer mc_init_normal(float mean, float std);
MC_API mc_initializer mc_init_uniform(float low, float high); /* [low, high) */
MC_API mc_initializer mc_init_custom(mc_init_fn fn, void *user);

/* ---- parameters ------------------------------------------------------------------------------ */

/* Declares a parameter. Errors: a name twice, a size below 1, a custom initialiser without a
 * function, more than INT64_MAX / 64 elements in the model. NULL after an error. */
MC_API mc_parameter *mc_parameter_new(mc_module *module, const char *name, mc_shape shape,
                                      mc_initializer init);

/* The parameter as a tensor of the tape: reading it is free, and its gradient goes to the
 * bucket. */
MC_API mc_tensor *mc_parameter_tensor(mc_tape *tape, mc_parameter *parameter);

MC_API const char *mc_parameter_name(const mc_parameter *parameter); /* full path */
MC_API mc_shape mc_parameter_shape(const mc_parameter *parameter);
MC_API mc_dtype mc_parameter_dtype(const mc_parameter *parameter);
MC_API bool mc_parameter_trainable(const mc_parameter *parameter);
/* Copies values from or to host memory as f32 (row-major, all elements; rounding on write). Over
 * several ranks all of them call it, and write the same: who reads what is spread over ranks
 * (MC_ZERO_3, AdamOffload) needs the others. NULL values are an error. */
MC_API mc_status mc_parameter_write(mc_parameter *parameter, const float *values);
MC_API mc_status mc_parameter_read(mc_parameter *parameter, float *values);

/* Walks all parameters below a module in the order of their declaration:
 *     mc_parameter_iterator it = { 0 };
 *     for (mc_parameter *p; (p = mc_module_next_parameter(module, &it)); ) ...
 * Declaring parameters while iterating is not allowed. */
typedef struct mc_parameter_iterator {
    size_t next;
} mc_parameter_iterator;
MC_API mc_parameter *mc_module_next_parameter(mc_module *module, mc_parameter_iterator *it);
/* The parameter of that full name below the module's root, NULL if there is none (no error). */
MC_API mc_parameter *mc_module_find_parameter(mc_module *module, const char *name);
MC_API int64_t mc_module_parameter_count(mc_module *module); /* elements of all parameters below */

/* Freezes or thaws all parameters below a module whose full name matches `pattern` (fnmatch(3);
 * NULL: all). A stored tensor is trainable or not as a whole: parts of one must agree, or it is an
 * error, and nothing changes. A pattern that matches nothing is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_module_set_trainable(mc_module *module, const char *pattern, bool trainable);
/* Zeros the gradients of the module's root. */
MC_API mc_status mc_module_zero_grad(mc_module *module);

#endif
