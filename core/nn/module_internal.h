/* Parameters and stored tensors, which lie in the buckets of core/zero. */
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
    bool in_adapter;  /* belongs to the files of an adapter: factors, and what is saved with them */
    /* of core/optim: per parameter, since neighbours in a stored tensor may be in different
     * groups */
    void *optimizer;         /* the mc_optimizer that steps it; NULL: none */
    int optimizer_group;     /* its settings there */
    bool optimizer_matrix;   /* Muon steps it as a matrix */
    int64_t optimizer_steps; /* steps it has taken there */
    bool optimizer_stepped;  /* the newest step that was launched there is one of its own too */
    bool eight_bit;          /* the optimizer wants its state in 8 bits */
    bool offload;            /* the optimizer is an AdamOffload: its state is to lie on the host */
    float gpu_share;         /* of that optimizer */
};

/* A stored tensor: one or several parameters, consecutive rows; after the last of them there may
 * be rows that belong to none, which are zero. */
struct mc_stored {
    mc_module *owner; /* the block, or the root */
    mc_shape shape;   /* of the whole */
    int64_t count;    /* elements of the whole */
    mc_parameter **parts;
    int part_count;
    bool trainable;
    mc_state_form form;         /* that its optimizer state is to have; core/optim chooses */
    float product_scale;        /* of a linear layer's weight: the factor of its product; else 0 */
    struct mc_adapter *adapter; /* NULL: none */
    mc_matrix8 quantized;       /* quantized_internal.h; data NULL: none */
    bool leaves; /* `quantized` stands for it: it has, or is about to have, no bucket */
    int fp8;     /* its number among those whose products are in 8 bits; 0: it is not */
    uint8_t *fp8_data, *fp8_transposed; /* its bytes (fp8.c); NULL: none are kept */
    uint64_t fp8_epoch;                 /* the values_epoch that they are of; 0: none */
    mc_bucket *bucket;                  /* NULL before the first layout, and where `leaves` */
    mc_span *span;                      /* of the bucket */
    /* the leaf of the newest tape that used it, so that one tape has one leaf a stored tensor */
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
    int64_t stored_elements; /* of all of them */
    mc_zero zero;            /* a bucket for each block or root, trainable or not */
    bool layout_valid;
    uint64_t watched_tape; /* the newest tape that runs blocks: block.c looks after it */
    /* of core/optim: moves state to where the optimizers want it, unless that is done. NULL: there
     * are none */
    mc_status (*place)(struct mc_module_root *root);
    bool placed;
    struct mc_fp8_state *fp8; /* products in 8 bits (fp8_internal.h); NULL: none */
    uint64_t values_epoch;    /* counts up when values change; from 1 */
    /* all allocations of the tree (modules, names), freed with it */
    void **pieces;
    size_t piece_count, piece_capacity;
} mc_module_root;

/* Lays the buckets out if need be, runs initialisers of parameters without values, and keeps
 * values, gradients and state of those that have them. On success root->layout_valid. */
mc_status mc_module_layout(mc_module_root *root);
/* mc_module_layout, and root->place where it is due. Nothing while a tape is open that uses the
 * model. All ranks do it together. */
mc_status mc_module_place(mc_module_root *root);
/* mc_module_place, and gradient memory for every trainable bucket (zeroed when new), for steps of
 * so many backward passes; 0: not known. */
mc_status mc_module_need_gradients(mc_module_root *root, int passes);
/* Of a bucket with its state on the host, or on the device. */
const mc_level *mc_module_level(const mc_module_root *root, const mc_bucket *bucket, bool on_host);
/* mc_bucket_move, and the stored tensors have their new places. */
mc_status mc_module_move_bucket(mc_module_root *root, mc_bucket *bucket, mc_bucket *description,
                                bool on_host);

/* Where a stored tensor's values begin, where they are there as a whole. */
void *mc_stored_data(const mc_stored *stored);
/* Frees all of root->fp8, if there is any (fp8.c). */
void mc_fp8_free(mc_module_root *root);
/* Frees its copy in 8 bits, if it has one (quantized.c). */
void mc_stored_free_quantized(mc_stored *stored);

/* The elements of a parameter that this rank holds: `count` of them, from `element` of the bucket
 * on. */
void mc_parameter_held(const mc_parameter *p, int64_t *element, int64_t *count);

/* Where the elements of a parameter lie whose values this rank has to receive: at level 3 those
 * that it holds (and all while they are gathered), else all; and the optimizer's copy, on the host
 * where that is. The caller fills all of them in, and they are what the parameter is from then
 * on. The buckets are laid out; other ranks need not ask. */
typedef struct mc_parameter_place {
    void *data; /* of element number `first` */
    mc_dtype dtype;
    bool on_host; /* memory of the host, be it the device's too; else the device's alone */
    int64_t first, count;
} mc_parameter_place;
enum { MC_PARAMETER_PLACES = 3 };
mc_status mc_parameter_places(mc_parameter *p, mc_parameter_place places[MC_PARAMETER_PLACES],
                              int *count);

/* For blocks, around their forward pass on a tape, and (recorded there) around their backward pass:
 * gathers and releases their buckets, reduces their gradients. */
mc_status mc_block_begin(mc_tape *tape, mc_module *block);
void mc_block_end(mc_tape *tape, mc_module *block);

/* A tape leaf for a stored tensor: one a tape. */
mc_tensor *mc_stored_tensor(mc_tape *tape, mc_stored *stored);

/* Marks parameters as having values already, so that a layout does not initialise them: loaders
 * call it before they fill them in. */
static inline void mc_parameter_mark_loaded(mc_parameter *p) { p->initialized = true; }

/* Takes the parameters from number `first` on out again, with what they are stored in, of which no
 * older one is a part. */
mc_status mc_module_drop_parameters(mc_module_root *root, size_t first);

/* Memory that lives as long as the root. Sets the error when out. */
void *mc_module_alloc(mc_module_root *root, size_t bytes);
char *mc_module_strdup(mc_module_root *root, const char *text);

#endif
