/* Parameters, stored tensors and flat buckets. */
#ifndef MC_NN_MODULE_INTERNAL_H
#define MC_NN_MODULE_INTERNAL_H

#include "core/autograd/tape_internal.h"
#include "core/nn/module.h"

enum { MC_BUCKET_ALIGN = 64 /* elements */, MC_STATE_SLOTS = 3 };

typedef struct mc_bucket mc_bucket;
typedef struct mc_stored mc_stored;

/* Optimizer state slots of a bucket: flat f32 arrays in its layout. */
enum { MC_STATE_M = 0 /* also SGD's momentum buffer */, MC_STATE_V = 1, MC_STATE_MASTER = 2 };

struct mc_parameter {
    mc_module *module;
    char *name; /* full path */
    mc_shape shape;
    mc_initializer init;
    mc_stored *stored;
    int64_t first;    /* element offset within the stored tensor */
    bool initialized; /* has values: initial ones or loaded ones */
    /* of core/optim: per parameter, since neighbours in a stored tensor may be in different
     * groups */
    void *optimizer;         /* the mc_optimizer that steps it; NULL: none */
    int optimizer_group;     /* its settings there */
    int64_t optimizer_steps; /* steps it has taken there */
};

/* A stored tensor: one or several parameters, consecutive rows; behind the last of them there may
 * be rows that belong to none, which are zero. */
struct mc_stored {
    mc_module *owner; /* the block, or the root */
    mc_shape shape;   /* of the whole */
    int64_t count;    /* elements of the whole */
    mc_parameter **parts;
    int part_count;
    bool trainable;
    mc_bucket *bucket; /* NULL before the first layout */
    int64_t offset;    /* elements from the start of the bucket */
    /* the leaf of the newest tape that used it, so that one tape has one leaf a stored tensor */
    mc_tensor *leaf;
    uint64_t leaf_tape;
};

/* One flat buffer with its gradient and optimizer state. Elements between stored tensors
 * (alignment) are zero in every array and stay so. */
struct mc_bucket {
    mc_module *owner;
    mc_dtype dtype;
    bool trainable;
    int64_t count;                /* elements, a multiple of MC_BUCKET_ALIGN */
    void *data;                   /* (count) of dtype */
    float *gradient;              /* (count); NULL until needed, and always when frozen */
    float *state[MC_STATE_SLOTS]; /* (count) each; NULL until an optimizer wants it */
    mc_stored **stored;           /* in order of offset */
    int stored_count;
};

typedef struct mc_module_root {
    mc_owned owned;
    mc_context *ctx;
    mc_module *module;
    mc_dtype dtype;
    mc_parameter **parameters;
    size_t parameter_count, parameter_capacity;
    mc_stored **stored;
    size_t stored_count, stored_capacity;
    mc_bucket *buckets;
    int bucket_count;
    bool layout_valid;
    /* all allocations of the tree (modules, names), freed with it */
    void **pieces;
    size_t piece_count, piece_capacity;
} mc_module_root;

/* Lays the buckets out if need be, runs initialisers of parameters without values, and keeps
 * values, gradients and state of those that have them. On success root->layout_valid. */
mc_status mc_module_layout(mc_module_root *root);
/* mc_module_layout, and gradient memory for every trainable bucket (zeroed when new). */
mc_status mc_module_need_gradients(mc_module_root *root);
/* State slot of a bucket, allocated and zeroed at first use. NULL after an error. MASTER is filled
 * from the bucket's values. */
float *mc_bucket_state(mc_module_root *root, mc_bucket *bucket, int slot);

void mc_buckets_free(mc_module_root *root, mc_bucket *buckets, int count);

/* Where a stored tensor's values and gradient begin. */
void *mc_stored_data(const mc_stored *stored);
float *mc_stored_gradient(const mc_stored *stored); /* NULL if there is none */

/* A tape leaf for a stored tensor: one a tape. */
mc_tensor *mc_stored_tensor(mc_tape *tape, mc_stored *stored);

/* Marks parameters as having values already, so that a layout does not initialise them: loaders
 * call it before they fill them in. */
static inline void mc_parameter_mark_loaded(mc_parameter *p) { p->initialized = true; }

/* Memory that lives as long as the root. Sets the error when out. */
void *mc_module_alloc(mc_module_root *root, size_t bytes);
char *mc_module_strdup(mc_module_root *root, const char *text);

#endif
