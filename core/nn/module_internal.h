/* Parameters, stored tensors and flat buckets. */
#ifndef MC_NN_MODULE_INTERNAL_H
#define MC_NN_MODULE_INTERNAL_H

#include "core/autograd/tape_internal.h"
#include "core/base/name_index_internal.h"
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
    bool is_factor;   /* of an adapter (adapter_internal.h) */
    bool in_adapter;  /* belongs to the files of an adapter: factors, and what is saved with them */
    /* of core/optim: per parameter, since neighbours in a stored tensor may be in different
     * groups */
    void *optimizer;         /* the mc_optimizer that steps it; NULL: none */
    int optimizer_group;     /* its settings there */
    int64_t optimizer_steps; /* steps it has taken there */
    bool optimizer_stepped;  /* the newest step that was launched there is one of its own too */
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
    float product_scale;        /* of a linear layer's weight: the factor of its product; else 0 */
    struct mc_adapter *adapter; /* NULL: none */
    mc_matrix8 eight;           /* eight_bit_internal.h; data NULL: none */
    bool leaves;                /* `eight` stands for it: it has, or is about to have, no bucket */
    mc_bucket *bucket;          /* NULL before the first layout, and where `leaves` */
    int64_t offset;             /* elements from the start of the bucket */
    mc_blank blank;             /* its part of the bucket's `gradient` */
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
    int level;                    /* of sharding: 0 to 3, see mc_zero_level; with one rank 0. Those
                                     with state on the host are of level 2 at least, with one rank
                                     too */
    int64_t count;                /* elements, a multiple of MC_BUCKET_ALIGN * ranks */
    int64_t first, share;         /* this rank's share: elements first .. first + share */
    void *data;                   /* (count) of dtype; level 3: NULL while it is not gathered */
    void *kept;                   /* level 3: (share) of dtype; else NULL */
    void *gradient;               /* (count) of gradient_dtype, where backward adds; NULL until
                                     needed, always when frozen, and at levels 2 and 3 outside of
                                     backward */
    mc_dtype gradient_dtype;      /* f32; of blocks that in which gradients travel between ranks, at
                                     levels 2 and 3, and at 0 and 1 while a step has one pass */
    void *vectors;                /* f32 while gradient_dtype is not: the gradients of what is no
                                     matrix, after all matrices, until they travel; at levels 0 and
                                     1 they stay, and are put into `gradient` before it is read */
    uint64_t pass;                /* the newest tape that may add to gradients, since all were
                                     zeroed; 0: none */
    bool waits;                   /* levels 0 and 1: `gradient` waits to be summed with others */
    bool summed;                  /* levels 0 and 1: `gradient` is summed over ranks, at level 1 in
                                     this rank's share */
    void *kept_gradient;          /* levels 2 and 3: (share), summed over ranks; else NULL */
    mc_dtype kept_dtype;          /* its dtype: f32, or while a step has one pass that in which
                                     gradients travel */
    mc_blank kept_blank;          /* all of it */
    bool arrives;                 /* the sum under way arrives there, and not where it came from */
    void *sent;                   /* (count) of dtype: gradients on their way between ranks, where
                                     they do not go as f32; else NULL */
    float *state[MC_STATE_SLOTS]; /* level 0: (count), else (share) each; NULL until an optimizer
                                     wants it */
    struct mc_bucket_host *host;  /* not NULL: state and kept_gradient lie in the host's memory */
    bool wants_host;              /* they are to: decided by mc_module_place */
    int users;                    /* level 3: how many have gathered it */
    bool stale;                   /* level 3: `data` is in use and older than the last step */
    int running;                  /* of a block: calls of its forward function under way */
    int backward;                 /* uses outside of its block in the backward pass under way, whose
                                     end it is reduced at */
    uint64_t holder;              /* the newest tape that has used it outside of its block */
    /* under way between ranks: the gathering of `data`, the reduction of `gradient` */
    struct mc_comm_request *gathering, *reducing;
    mc_stored **stored; /* in order of offset */
    int stored_count;
};

/* The elements that this rank's optimizers step, and whose state it holds. */
static inline int64_t mc_bucket_first(const mc_bucket *b) { return b->level ? b->first : 0; }
static inline int64_t mc_bucket_held(const mc_bucket *b) { return b->level ? b->share : b->count; }
/* Where an element lies that this rank holds: its value, its gradient summed over ranks (NULL data:
 * there are none yet), and its state. */
static inline void *mc_bucket_value_at(const mc_bucket *b, int64_t element)
{
    size_t size = mc_dtype_size(b->dtype);
    if (b->level < 3) return (char *)b->data + (size_t)element * size;
    return (char *)b->kept + (size_t)(element - b->first) * size;
}
static inline mc_matrix mc_bucket_gradient(const mc_bucket *b, int64_t element)
{
    bool whole = b->level < 2;
    mc_matrix g = {NULL, whole ? b->gradient_dtype : b->kept_dtype, b->count};
    char *data = whole ? b->gradient : b->kept_gradient;
    if (data)
        g.data = data + (size_t)(whole ? element : element - b->first) * mc_dtype_size(g.dtype);
    return g;
}
static inline float *mc_bucket_state_at(const mc_bucket *b, int slot, int64_t element)
{
    return b->state[slot] ? b->state[slot] + (element - mc_bucket_first(b)) : NULL;
}

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
    mc_bucket *buckets;
    int bucket_count;
    int64_t gathered, most_gathered; /* elements of level-3 buckets that are there as a whole */
    bool layout_valid;
    bool placed;                /* state lies where the optimizers want it */
    struct mc_offload *offload; /* the context's; NULL: no bucket has state on the host */
    /* all allocations of the tree (modules, names), freed with it */
    void **pieces;
    size_t piece_count, piece_capacity;
} mc_module_root;

/* Lays the buckets out if need be, runs initialisers of parameters without values, and keeps
 * values, gradients and state of those that have them. On success root->layout_valid. */
mc_status mc_module_layout(mc_module_root *root);
/* mc_module_layout, and gradient memory for every trainable bucket (zeroed when new), for steps of
 * so many backward passes; 0: not known. */
mc_status mc_module_need_gradients(mc_module_root *root, int passes);
/* State slot of a bucket, allocated and zeroed at first use. NULL after an error. MASTER is filled
 * from the bucket's values. */
float *mc_bucket_state(mc_module_root *root, mc_bucket *bucket, int slot);

void mc_buckets_free(mc_module_root *root, mc_bucket *buckets, int count);

/* Lays a bucket out anew without the stored tensors that leave it, whose values go. It is whole,
 * with neither gradients nor state. */
mc_status mc_bucket_shrink(mc_module_root *root, mc_bucket *bucket);

/* Where a stored tensor's values begin, where they are there as a whole (NULL: they are not). */
void *mc_stored_data(const mc_stored *stored);
/* Frees its copy in 8 bits, if it has one (eight_bit.c). */
void mc_stored_free_eight(mc_stored *stored);

/* ---- state on the host (bucket_host.c) ------------------------------------------------------- */

/* Where a bucket's state and kept_gradient lie: the device, or one that is the host's memory. */
mc_device *mc_bucket_home(const mc_module_root *root, const mc_bucket *bucket);
/* Moves state to where the optimizers of the parameters want it, if that has changed: to the host
 * for AdamOffload, but for the first buckets up to its gpu_share of the elements, and those that
 * another optimizer has a part of. Nothing while a tape is open that uses the model. Checks first
 * that the host has memory enough. The buckets are laid out; all ranks do it together. */
mc_status mc_module_place(mc_module_root *root);
/* Begins the life of a bucket's state on the host, with none yet; and ends it. */
mc_status mc_bucket_make_host(mc_module_root *root, mc_bucket *bucket);
void mc_bucket_free_host(mc_module_root *root, mc_bucket *bucket);
/* Waits for the update of a bucket that a step began, and gives ranks its parameters. The device is
 * not waited for: what is launched from now on sees the new values. Who touches a bucket's
 * parameters calls it, or mc_module_await for all, first; all ranks at the same place. */
mc_status mc_bucket_await(mc_module_root *root, mc_bucket *bucket);
bool mc_bucket_is_updating(const mc_bucket *bucket);
mc_status mc_module_await(mc_module_root *root);
/* Waits until the host's arrays may be touched by the context's thread, and this rank's share of
 * the parameters by what is launched; not collective. */
mc_status mc_module_rest(mc_module_root *root);

/* Adds this rank's share of a gradient, in device memory, to the sum on the host, soon. `block` is
 * freed when it was copied. */
mc_status mc_bucket_send(mc_module_root *root, mc_bucket *bucket, mc_matrix share, void *block,
                         size_t bytes);
/* Forgets the sum: it stands for zeros. */
void mc_bucket_forget_sum(mc_bucket *bucket);
/* Waits for the sum, which the caller is going to change, in f32. */
mc_status mc_bucket_change_sum(mc_module_root *root, mc_bucket *bucket);
/* Whether there are sums that are not just zeros. */
bool mc_bucket_has_sum(const mc_bucket *bucket);
/* Copies the share's sums to device memory, wherever they lie. */
mc_status mc_bucket_copy_sum(mc_module_root *root, mc_bucket *bucket, float *to);
/* Of elements of the sum, to device memory; it may have to be waited for. */
mc_status mc_bucket_gradient_stats(mc_module_root *root, mc_bucket *bucket, int64_t first,
                                   int64_t count, mc_tensor_stats *stats);
/* Moves them to the host from where kept_gradient is on the device, and back (NULL if there are
 * none but zeros). */
mc_status mc_bucket_take_sum(mc_module_root *root, mc_bucket *bucket);
mc_status mc_bucket_give_sum(mc_module_root *root, mc_bucket *bucket);
/* Has the sum measured for the p-norm, unless that was done as it arrived. */
mc_status mc_bucket_measure(mc_module_root *root, mc_bucket *bucket, double power);
/* When that is done (mc_module_rest): adds the statistics of parameters within first .. first +
 * count, whose first element has that number. */
void mc_bucket_add_stats(const mc_bucket *bucket, int64_t first, int64_t count, int64_t number,
                         mc_gradient_stats *stats);
/* An Adam update of elements of this rank's share, by the host, that obeys *told (see
 * mc_bucket_tell); and says that the parameters of a bucket are about to change, on any rank. */
mc_status mc_bucket_update(mc_module_root *root, mc_bucket *bucket, int64_t first, int64_t count,
                           const mc_adam_step *step);
void mc_bucket_begin_update(mc_bucket *bucket);

/* Copies f32 arrays between the homes of two buckets, or of one and another time. */
mc_status mc_home_copy(mc_module_root *root, float *to, bool to_host, const float *from,
                       bool from_host, int64_t count);
/* Writes values of this rank's share into the master copy. */
mc_status mc_bucket_fill_master(mc_module_root *root, mc_bucket *bucket, int64_t element,
                                int64_t count);
/* The level of sharding that a bucket has with its state on the host, or on the device. */
int mc_bucket_level(const mc_module_root *root, const mc_bucket *bucket, bool host);

/* ---- sharding (shard.c) ---------------------------------------------------------------------- */

/* Awaits the parameters (mc_bucket_await), and at level 3 has them gathered until as many calls of
 * release; release does nothing at other levels. prefetch begins to gather what is about to be
 * asked for; forget drops what was prefetched and not asked for, for it shows old values once
 * parameters change; outdate does so too, and has what is in use gathered anew by the next that
 * asks for it. */
mc_status mc_bucket_gather(mc_module_root *root, mc_bucket *bucket);
void mc_bucket_release(mc_module_root *root, mc_bucket *bucket);
mc_status mc_bucket_prefetch(mc_module_root *root, mc_bucket *bucket);
mc_status mc_bucket_forget(mc_module_root *root, mc_bucket *bucket);
mc_status mc_bucket_outdate(mc_module_root *root, mc_bucket *bucket);
/* Makes elements of `gradient` zeros, of which there is memory: matrices become blank. */
mc_status mc_bucket_blank(mc_module_root *root, mc_bucket *bucket, int64_t first, int64_t count);
/* Makes all of a bucket's gradients zeros: those here, and sums over ranks. */
mc_status mc_bucket_zero_gradient(mc_module_root *root, mc_bucket *bucket);
/* Where backward adds to the gradient of a stored tensor, from element `first` of it on. */
mc_leaf_gradient mc_stored_leaf_gradient(mc_stored *stored, int64_t first);
void mc_bucket_drop_vectors(mc_module_root *root, mc_bucket *bucket);
/* What the dtype of `gradient` is at the bucket's level; at levels 0 and 1 until it is made. */
mc_dtype mc_bucket_gradient_dtype(const mc_module_root *root, const mc_bucket *bucket);
/* Levels 0 and 1: makes `gradient`, zeros, for steps of so many passes: one pass can have it in the
 * dtype that travels; and the bytes that it takes. */
mc_status mc_bucket_make_gradient(mc_module_root *root, mc_bucket *bucket, int passes);
size_t mc_bucket_gradient_bytes(const mc_bucket *bucket);
/* Levels 0 and 1: gradients in 16 bits become f32, and stay so. No leaf shows them, and recordings
 * are forgotten. */
mc_status mc_bucket_widen_gradient(mc_module_root *root, mc_bucket *bucket);
/* Levels 2 and 3: what the dtype of kept_gradient is to be where it is made, for steps of so many
 * passes; its bytes; and the same as f32 from now on. */
mc_dtype mc_bucket_kept_dtype(const mc_module_root *root, const mc_bucket *bucket, int passes);
static inline size_t mc_bucket_kept_bytes(const mc_bucket *b)
{
    return (size_t)b->share * mc_dtype_size(b->kept_dtype);
}
mc_status mc_bucket_widen_kept(mc_module_root *root, mc_bucket *bucket);
/* Before and after a block's backward pass. Levels 2 and 3: makes room for the gradients that it is
 * going to add (zeros), and begins to sum what it added over all ranks into kept_gradient. Levels 0
 * and 1: begins to sum in the last backward pass of a step, once enough has come together. */
mc_status mc_bucket_begin_gradient(mc_module_root *root, mc_bucket *bucket);
mc_status mc_bucket_reduce(mc_module_root *root, mc_bucket *bucket);
/* `reduce` only begins: this ends what is under way in a model. */
mc_status mc_module_end_reducing(mc_module_root *root);
/* Sums all gradients that are not yet over all ranks, at level 1 this rank's share only; and makes
 * those of levels 0 and 1 such that more can be added and all be summed again. At levels 2 and 3
 * that is what a forward pass has left that no backward pass followed. */
mc_status mc_module_sum_gradients(mc_module_root *root);
mc_status mc_bucket_reopen(mc_module_root *root, mc_bucket *bucket);
/* Levels 1 and 2: gives every rank the parameters that others have stepped. */
mc_status mc_bucket_publish(mc_module_root *root, mc_bucket *bucket);

/* Makes a bucket of level 0 one of another level, and the other way round, keeping all it has. All
 * ranks do it together. */
mc_status mc_bucket_shard(mc_module_root *root, mc_bucket *bucket, int level);
mc_status mc_bucket_unshard(mc_module_root *root, mc_bucket *bucket);
/* Levels 2 and 3: a parameter's gradient as ranks have summed it; all ranks do it together. */
mc_status mc_bucket_read_gradient(mc_module_root *root, const mc_parameter *p, float *values);
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
