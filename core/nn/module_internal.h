/* Parameters and stored tensors, whose memory is in the buckets of core/zero. */
#ifndef MC_NN_MODULE_INTERNAL_H
#define MC_NN_MODULE_INTERNAL_H

#include "core/base/name_index_internal.h"
#include "core/nn/module.h"
#include "core/zero/zero_internal.h"

typedef struct mc_stored mc_stored;

struct mc_parameter {
    mc_module *module;
    char *name; /* full path */
    mc_shape shape;
    mc_initializer init;
    mc_stored *stored;
    int64_t first;    /* element offset within the stored tensor */
    bool initialized; /* has values: initial ones or loaded ones */
    bool is_factor;   /* of an adapter (adapter_internal.h) */
    bool is_table;    /* of an embedding */
    bool in_adapter;  /* is saved in adapter files: a factor, or a parameter saved with factors */
    bool is_new;      /* the file that the model was loaded from lacks it */
    /* of core/optim: per parameter, because parameters of one stored tensor may be in different
     * groups */
    void *optimizer;         /* the mc_optimizer that steps it; NULL: none */
    int optimizer_group;     /* its settings there */
    bool optimizer_matrix;   /* Muon steps it as a matrix */
    int64_t optimizer_steps; /* steps it has taken there */
    bool optimizer_stepped;  /* its newest launched step counts for it too */
    bool eight_bit;          /* the optimizer requires 8-bit state */
    bool offload;            /* the optimizer is an AdamOffload: state is on the host */
    float gpu_share;         /* of that optimizer */
};

/* A stored tensor: one or several parameters in consecutive rows, and possibly rows of zeros after
 * them that belong to no parameter. */
struct mc_stored {
    mc_module *owner; /* the block, or the root */
    mc_shape shape;   /* of the whole */
    int64_t count;    /* elements of the whole */
    mc_parameter **parts;
    int part_count;
    bool trainable;
    mc_state_form form;         /* required form of its optimizer state; core/optim chooses */
    float product_scale;        /* scale of a linear layer's product with this weight; else 0 */
    struct mc_adapter *adapter; /* NULL: none */
    mc_matrix8 quantized;       /* quantized_internal.h; data NULL: none */
    bool leaves;                /* only `quantized` is kept: it has (or will soon have) no bucket */
    int fp8; /* number among the layers in 8 bits, MC_FP8_BY_ROWS (fp8_internal.h); 0: not one */
    int fp8_reader; /* of a norm's weight: the number of a layer that reads its result; 0: none */
    uint8_t *fp8_data, *fp8_transposed; /* kept casts (fp8.c); NULL: none */
    uint64_t fp8_epoch;                 /* values_epoch of the kept casts; 0: invalid */
    uint64_t fp8_seen; /* values_epoch in which a cast has observed it (mc_fp8_begin_weight_cast) */
    mc_bucket *bucket; /* NULL before the first layout, and if `leaves` */
    mc_span *span;     /* its span in the bucket */
    /* the leaf on the newest tape that used it: a tape has one leaf per stored tensor */
    mc_tensor *leaf;
    uint64_t leaf_tape;
};

static inline mc_stored *mc_stored_of(const mc_span *span) { return span->owner; }

typedef struct mc_module_root {
    mc_owned owned;
    mc_context *ctx;
    mc_module *module;
    mc_dtype dtype;
    mc_parameter **parameters;
    size_t parameter_count, parameter_capacity;
    mc_name_index by_name; /* of the parameters */
    mc_stored **stored;
    size_t stored_count, stored_capacity;
    int64_t stored_elements; /* total of all stored tensors */
    mc_zero zero;            /* buckets per block or root, for trainable and frozen parameters */
    bool layout_valid;
    uint64_t watched_tape; /* the newest tape that runs blocks (block.c) */
    /* of core/optim: moves state to the place that the optimizers require, if needed. NULL: no
     * optimizer */
    mc_status (*place)(struct mc_module_root *root);
    bool placed;
    struct mc_fp8_state *fp8; /* products in 8 bits (fp8_internal.h); NULL: none */
    uint64_t values_epoch;    /* incremented when values change; from 1 */
    /* all allocations of the tree (modules, names), freed with it */
    void **pieces;
    size_t piece_count, piece_capacity;
} mc_module_root;

/* Lays the buckets out if needed, initialises parameters without values, and keeps the values,
 * gradients and state of the others. Sets root->layout_valid on success. */
mc_status mc_module_layout(mc_module_root *root);
/* Called after parameters were frozen or thawed: with fp8 the next update has current scales again,
 * since nothing is known of the gradients of a layer that was frozen. */
mc_status mc_fp8_restart_scales(mc_module_root *root);
/* mc_module_layout, then root->place if it is due. Does nothing while a tape that uses the model is
 * open. Collective. */
mc_status mc_module_place(mc_module_root *root);
/* mc_module_place, and gradient memory for every trainable bucket (zeros if new), for steps of
 * `passes` backward passes; 0: unknown. */
mc_status mc_module_need_gradients(mc_module_root *root, int passes);
/* The level of a bucket with its state on the host or on the device. */
const mc_level *mc_module_level(const mc_module_root *root, const mc_bucket *bucket, bool on_host);
/* mc_bucket_move, which also updates the stored tensors. */
mc_status mc_module_move_bucket(mc_module_root *root, mc_bucket *bucket, mc_bucket *description,
                                bool on_host);

/* The address of a stored tensor's values, if they are in memory as a whole. */
void *mc_stored_data(const mc_stored *stored);
/* Frees root->fp8 with all its memory (fp8.c). */
void mc_fp8_free(mc_module_root *root);
/* Frees its copy in 8 bits, if it has one (quantized.c). */
void mc_stored_free_quantized(mc_stored *stored);

/* This rank's shard of a parameter: `count` elements, from `element` of the bucket on. */
void mc_parameter_held(const mc_parameter *p, int64_t *element, int64_t *count);
/* The same for the elements whose values this rank stores: all, unless ranks share them. */
void mc_parameter_values_held(const mc_parameter *p, int64_t *element, int64_t *count);

/* The places of a parameter's elements that a loader must fill in on this rank, and their values
 * become the parameter's. At level 3 these are the rank's shard (and all elements while they are
 * gathered), else all elements; and the optimizer's master copy, which may be on the host. The
 * buckets must be laid out. Not collective. */
typedef struct mc_parameter_place {
    void *data; /* of element number `first` */
    mc_dtype dtype;
    bool on_host; /* host memory, even if the device is the host; else device memory */
    int64_t first, count;
} mc_parameter_place;
enum { MC_PARAMETER_PLACES = 3 };
mc_status mc_parameter_places(mc_parameter *p, mc_parameter_place places[MC_PARAMETER_PLACES],
                              int *count);

/* Called around a block's forward pass on a tape, and recorded there for its backward pass: gather
 * and release the block's buckets, and reduce their gradients. */
mc_status mc_block_begin(mc_tape *tape, mc_module *block);
void mc_block_end(mc_tape *tape, mc_module *block);

/* A tape's leaf for a stored tensor: one per tape. */
mc_tensor *mc_stored_tensor(mc_tape *tape, mc_stored *stored);
/* The same for mc_stored_fp8_product alone: it may have no values where the block has gathered
 * bytes (fp8_gather.c). */
mc_tensor *mc_stored_tensor_fp8(mc_tape *tape, mc_stored *stored);

/* Marks a parameter as having values, so that a layout does not initialise it. Loaders call this
 * before they fill it in. */
static inline void mc_parameter_mark_loaded(mc_parameter *p) { p->initialized = true; }

/* Removes the parameters from number `first` on, with their stored tensors, which must contain no
 * earlier parameter. */
mc_status mc_module_drop_parameters(mc_module_root *root, size_t first);

/* Memory that lives as long as the root. Sets the error if memory is out. */
void *mc_module_alloc(mc_module_root *root, size_t bytes);
char *mc_module_strdup(mc_module_root *root, const char *text);

#endif
