/* Modules: trees of named parameters.
 *
 * A module is your own struct whose first member is `mc_module module`. mc_module_new creates a
 * root, mc_module_add a child. A parameter's name is its path
 * ("encoder.layers.0.ffn.ffn.w_out.weight"). The name and the context's seed determine the initial
 * values, so the same model has the same weights everywhere.
 *
 *     typedef struct my_model { mc_module module; mc_parameter *gate; mc_linear *up; } my_model;
 *
 *     my_model *m = mc_module_new(ctx, "", sizeof *m, NULL);
 *     if (!m) return NULL;
 *     m->gate = mc_parameter_new(&m->module, "gate", MC_SHAPE(dim), mc_init_normal(0, 0.02f));
 *     m->up = mc_linear_add(&m->module, "up", dim, 4 * dim, NULL);
 *
 * Storage. The tensors of a block (see block_list.h), or of the root outside its blocks, share one
 * flat buffer for each (dtype, trainable) pair. Gradients (f32, but see mc_grad_dtype) and f32
 * optimizer state are flat too, in the same layout. Buffers are laid out at the first tape,
 * optimizer or load that needs them. Declaring or freezing parameters later lays them out again and
 * keeps values, gradients (as f32 then) and state. Gradient memory exists only for trainable
 * parameters, from the first backward or optimizer on.
 *
 * Part of the promised interface (docs/api.md). */
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
    int zero_level;    /* of a block, a list of blocks or a root: see mc_zero_level */
} mc_module;

typedef struct mc_module_options {
    mc_dtype dtype; /* of the parameters: MC_F32 (default), MC_F16, MC_BF16 */
    /* Sharding of parameters outside of blocks. Default: the context's. */
    mc_zero_level zero_level;
} mc_module_options;

/* Creates a root module of `size` zeroed bytes, owned by the context; names are relative to it.
 * `name` is the prefix of its parameters' names unless it is "". Returns NULL after an error: a
 * NULL name, a `size` below that of mc_module, options out of range. */
MC_API void *mc_module_new(mc_context *ctx, const char *name, size_t size,
                           const mc_module_options *options);
/* Creates a child. A name that begins with '/' is the whole path from the root: the parameters are
 * still stored with the parent (its block, its buckets), but under another path, as some checkpoint
 * formats require. Errors: an empty name, a name that begins or ends with '.', a name that the
 * parent already has, a `size` below that of mc_module. */
MC_API void *mc_module_add(mc_module *parent, const char *name, size_t size);
/* Frees a root with its whole tree, parameters and state (otherwise the context frees them). No
 * backward can run after that on a tape that used it: MC_ERR_STATE. Another module than a root is
 * an error. */
MC_API void mc_module_free(mc_module *root);

/* ---- initial values -------------------------------------------------------------------------- */

/* Writes elements first .. first + count - 1 of a parameter to `out` (f32). `seed` is derived from
 * the context's seed and the parameter's name. The result must depend only on the arguments. */
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

/* Declares a parameter. Returns NULL after an error: a name that exists already, a size below 1, a
 * custom initialiser without a function, more than INT64_MAX / 64 elements in the model. */
MC_API mc_parameter *mc_parameter_new(mc_module *module, const char *name, mc_shape shape,
                                      mc_initializer init);

/* Returns the parameter as a tensor of the tape, without a copy; its gradient goes to the
 * bucket. */
MC_API mc_tensor *mc_parameter_tensor(mc_tape *tape, mc_parameter *parameter);

MC_API const char *mc_parameter_name(const mc_parameter *parameter); /* full path */
MC_API mc_shape mc_parameter_shape(const mc_parameter *parameter);
MC_API mc_dtype mc_parameter_dtype(const mc_parameter *parameter);
MC_API bool mc_parameter_trainable(const mc_parameter *parameter);
/* Copies values from or to host memory as f32 (row-major, all elements; rounding on write). All
 * ranks call it together and write the same values, because reading sharded parameters (MC_ZERO_3,
 * AdamOffload) takes all ranks. NULL values are an error. */
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
/* Returns the parameter with that full name below the module's root, NULL if no parameter has it
 * (not an error). */
MC_API mc_parameter *mc_module_find_parameter(mc_module *module, const char *name);
MC_API int64_t mc_module_parameter_count(mc_module *module); /* elements of all parameters below */

/* Freezes or thaws all parameters below a module whose full name matches `pattern` (fnmatch(3);
 * NULL: all). Parameters stored in one tensor must all be frozen or all trainable; otherwise this
 * is an error and nothing changes. A pattern that matches nothing is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_module_set_trainable(mc_module *module, const char *pattern, bool trainable);
/* Zeros the gradients of the module's root. */
MC_API mc_status mc_module_zero_grad(mc_module *module);

#endif
