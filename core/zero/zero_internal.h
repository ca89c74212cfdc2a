/* ZeRO: flat memory that the ranks of a group share (Rajbhandari et al. 2020).
 *
 * A bucket is one flat range of elements with four arrays over it: values, gradient, the sum of
 * gradients over ranks, and optimizer state. Its level determines of which arrays a rank stores the
 * whole, and of which its share. A bucket consists of spans: tensors of the room above, of which
 * this room knows only offset and count.
 *
 *  array          | transitions; any other one is an error that names both states
 *  ---------------+------------------------------------------------------------------------------
 *  values, SHARE  | RESTING -> GATHERING (prefetch) -> READY (in use, by `users`) -> RESTING
 *                 | READY -> STALE (a step changed them) -> GATHERING, in place, at the next use
 *                 | GATHERING, STALE -> RESTING: it failed, or nobody uses them any more
 *                 | GATHERING -> STALE: it failed in place
 *                 | the same for `bytes`, the values in 8 bits
 *  values, WHOLE  | always READY
 *  gradient       | NONE -> OPEN: a pass may add to it
 *                 | OPEN -> QUEUED (WHOLE: waits for others to travel with) -> OPEN, REDUCING
 *                 | OPEN -> REDUCING -> SUMMED (WHOLE); or into the sum, memory freed, NONE (SHARE)
 *                 | SUMMED -> OPEN: a further pass, or zero_grad
 *                 | OPEN, QUEUED, REDUCING -> VOID: a reduction failed, the step's sums are lost
 *                 | VOID -> NONE, OPEN: zero_grad
 *  sum            | EMPTY (zeros) -> NARROW (a step of one pass, in the dtype that travels)
 *                 | EMPTY, NARROW -> WIDE (f32); NARROW, WIDE -> EMPTY: zero_grad
 *                 | memory is claimed when the first reduction lands, and freed by zero_grad
 *
 * While a home updates the values (`updating`), every use of them waits. One rank without a home
 * has level 0: gradients stay OPEN. */
#ifndef MC_ZERO_ZERO_INTERNAL_H
#define MC_ZERO_ZERO_INTERNAL_H

#include "core/autograd/tape_internal.h"

enum { MC_BUCKET_ALIGN = 64 /* elements */, MC_STATE_SLOTS = 3 };

/* The form of a span's optimizer state; a master copy is always f32. */
typedef enum mc_state_form {
    MC_STATE_F32 = 0,
    /* M and V as 8-bit codes, with an f32 scale for each MC_STATE_BLOCK elements of the bucket. The
     * bucket is then laid out in multiples of that: no block spans two ranks or two spans */
    MC_STATE_8BIT,
    MC_STATE_FIRST /* f32, and no V */
} mc_state_form;

/* Optimizer state of a bucket: flat arrays in its layout, f32 except for spans of another form. */
enum { MC_STATE_M = 0 /* also SGD's momentum buffer */, MC_STATE_V = 1, MC_STATE_MASTER = 2 };

typedef enum mc_extent { MC_WHOLE, MC_SHARE } mc_extent;

/* Which arrays are whole and which are shared at a level. */
typedef struct mc_level {
    mc_extent values, gradient, state;
} mc_level;
extern const mc_level mc_levels[4];

typedef enum mc_values_state {
    MC_VALUES_RESTING,
    MC_VALUES_GATHERING,
    MC_VALUES_READY,
    MC_VALUES_STALE
} mc_values_state;

typedef enum mc_gradient_state {
    MC_GRADIENT_NONE,
    MC_GRADIENT_OPEN,
    MC_GRADIENT_QUEUED,
    MC_GRADIENT_REDUCING,
    MC_GRADIENT_SUMMED,
    MC_GRADIENT_VOID
} mc_gradient_state;

typedef enum mc_sum_state { MC_SUM_EMPTY, MC_SUM_NARROW, MC_SUM_WIDE } mc_sum_state;

/* A tensor of the room above. Matrices come first in a bucket, then vectors (biases, the weights of
 * norms). */
typedef struct mc_span {
    void *owner;
    int64_t offset, count; /* elements */
    bool vector;
    mc_blank blank; /* for its part of the gradient */
    mc_state_form form;
} mc_span;

typedef struct mc_bucket {
    /* description */
    void *owner;      /* of all its spans, in the room above */
    const char *name; /* the owner's, for messages */
    mc_dtype dtype;   /* of the values */
    bool trainable;
    /* reduced at the end of its owner's backward pass: may be in the exchanged dtype */
    bool in_block;
    const mc_level *level;
    int64_t count;        /* elements, a multiple of MC_BUCKET_ALIGN * ranks; zero between spans */
    int64_t first, share; /* this rank's share: elements first .. first + share */
    mc_span *spans;       /* in order of offset */
    int span_count;

    void *values_share; /* SHARE: (share), the values that this rank stores; else NULL */
    bool updating;      /* the home is updating the values */
    uint64_t holder;    /* the newest tape that used the values outside of their block */
    /* `bytes`: SHARE values that ranks cast to 8 bits before they gather them (mc_zero.cast), for
     * blocks that multiply with these alone; otherwise always RESTING */
    struct mc_values {
        mc_values_state state;
        void *data;   /* (count); SHARE: NULL while RESTING */
        int users;    /* SHARE: number of gathers not released */
        int running;  /* of a block: active calls of its forward function */
        int retained; /* of a block: how many users are its backward passes */
        struct mc_comm_request *request;
    } values, bytes;
    struct mc_gradient {
        mc_gradient_state state;
        /* f32; in blocks the exchanged dtype if SHARE, or if WHOLE in steps of one pass */
        mc_dtype dtype;
        void *data;    /* (count) of dtype, to which backward adds */
        void *sent;    /* (count) of the values' dtype, for the exchange; NULL: unused */
        bool arrives;  /* the running reduction writes directly to the sum */
        bool needed;   /* a pass or a step has requested gradients: at least zeros */
        int uses;      /* outside of its block, in the running backward pass */
        uint64_t pass; /* the newest tape that may have added to it since zero_grad; 0: none */
        struct mc_comm_request *request;
    } gradient;
    struct mc_sum { /* SHARE: summed over ranks; WHOLE: unused, as `gradient` is the sum */
        mc_sum_state state;
        mc_dtype dtype; /* of the elements; a home's memory always has room for f32 */
        void *data;     /* (share) */
    } sum;
    bool formed; /* a span's form is not MC_STATE_F32: state.c computes the layout */
    float *state[MC_STATE_SLOTS]; /* WHOLE: (count), SHARE: (share) each; NULL until needed */
    struct mc_bucket_host *host;  /* the home's record; not NULL: state and sum are in the home */
} mc_bucket;

/* All buckets of a model. */
typedef struct mc_zero {
    mc_context *ctx;
    const mc_rank_group *group;
    const char *name; /* the model's, for messages */
    mc_bucket *buckets;
    int bucket_count;
    int64_t gathered, most_gathered; /* elements gathered now, and the most so far */
    int64_t align;                   /* alignment of new spans and shares; 0: MC_BUCKET_ALIGN */
    const struct mc_home *home;      /* NULL: state is on the device */
    /* Casts this rank's share of the values into bytes.data, for which ranks may communicate; from
     * the room above. */
    mc_status (*cast)(struct mc_zero *zero, mc_bucket *bucket);
} mc_zero;

/* Memory outside of the device for state and sums, from a module that also updates there. It works
 * asynchronously to the context's thread; functions return the status of the context's error. */
typedef struct mc_home {
    mc_device *device; /* allocates the home's arrays, for the context's thread */
    /* Creates a bucket's record before its arrays move in; ends it after they have left, or before
     * they are freed. */
    mc_status (*enter)(mc_zero *zero, mc_bucket *bucket);
    void (*leave)(mc_zero *zero, mc_bucket *bucket);
    /* Adds gradients, in device memory, to the sum, asynchronously; frees `block` after reading. */
    mc_status (*take)(mc_zero *zero, mc_bucket *bucket, mc_matrix share, void *block, size_t bytes);
    mc_status (*settle)(mc_zero *zero, mc_bucket *bucket); /* waits for the sum, as f32 */
    /* Makes all later launches see the values that an update writes. */
    mc_status (*wait)(mc_zero *zero, mc_bucket *bucket);
    mc_status (*rest)(mc_zero *zero);              /* waits for all of its work */
    void (*close)(mc_zero *zero);                  /* called when it has no bucket left */
    uint64_t (*bytes)(const struct mc_home *home); /* host memory allocated */
} mc_home;

/* ---- buckets --------------------------------------------------------------------------------- */

static inline bool mc_bucket_shares_values(const mc_bucket *b)
{
    return b->level->values == MC_SHARE;
}
static inline bool mc_bucket_shares_gradient(const mc_bucket *b)
{
    return b->level->gradient == MC_SHARE;
}
/* Whether it has only vectors: their gradients are exchanged as f32. */
static inline bool mc_bucket_has_vectors_alone(const mc_bucket *b)
{
    return b->span_count && b->spans[0].vector;
}
/* The elements that this rank's optimizers update, and whose state it stores. */
static inline int64_t mc_bucket_first(const mc_bucket *b)
{
    return b->level->state == MC_SHARE ? b->first : 0;
}
static inline int64_t mc_bucket_held(const mc_bucket *b)
{
    return b->level->state == MC_SHARE ? b->share : b->count;
}
/* The first one of them among `count` elements from `first` on, and how many of these they are. */
static inline int64_t mc_bucket_held_of(const mc_bucket *b, int64_t first, int64_t count,
                                        int64_t *held)
{
    int64_t begin = mc_bucket_first(b), end = begin + mc_bucket_held(b), last = first + count;
    int64_t from = first > begin ? first : begin, to = last < end ? last : end;
    *held = to > from ? to - from : 0;
    return from;
}
/* The address of an element of this rank's shard: its value, its gradient summed over ranks (NULL
 * data: none), and its state. */
static inline void *mc_bucket_value_at(const mc_bucket *b, int64_t element)
{
    size_t size = mc_dtype_size(b->dtype);
    if (!mc_bucket_shares_values(b)) return (char *)b->values.data + (size_t)element * size;
    return (char *)b->values_share + (size_t)(element - b->first) * size;
}
static inline mc_matrix mc_bucket_gradient(const mc_bucket *b, int64_t element)
{
    bool share = mc_bucket_shares_gradient(b);
    mc_matrix g = {NULL, share ? b->sum.dtype : b->gradient.dtype, b->count};
    char *data = share ? b->sum.data : b->gradient.data;
    if (data)
        g.data = data + (size_t)(share ? element - b->first : element) * mc_dtype_size(g.dtype);
    return g;
}
/* The address of an element's state, whatever its form (state.c). */
void *mc_bucket_state_place(const mc_bucket *b, int slot, int64_t element);
/* The same for f32 state. */
static inline float *mc_bucket_state_at(const mc_bucket *b, int slot, int64_t element)
{
    return mc_bucket_state_place(b, slot, element);
}

/* Transitions. An illegal one sets MC_ERR_STATE. */
mc_status mc_values_go(mc_zero *zero, mc_bucket *bucket, struct mc_values *v, mc_values_state to);
mc_status mc_gradient_go(mc_zero *zero, mc_bucket *bucket, mc_gradient_state to);
mc_status mc_sum_go(mc_zero *zero, mc_bucket *bucket, mc_sum_state to);

/* Turns a kernel's status into an error of the context, with the device's message. */
mc_status mc_zero_fail(mc_zero *zero, mc_status status, const char *what);
/* Allocates `what` of the model on a device or in a home. NULL after an error. */
void *mc_zero_alloc(mc_zero *zero, mc_device *device, size_t bytes, const char *what);
/* The device that state and sum are allocated from. */
mc_device *mc_bucket_home(const mc_zero *zero, const mc_bucket *bucket);
/* Frees a bucket's arrays and spans; frees an array of buckets. */
void mc_bucket_end(mc_zero *zero, mc_bucket *bucket);
void mc_zero_free(mc_zero *zero, mc_bucket *buckets, int count);

/* ---- values (values.c) ----------------------------------------------------------------------- */

/* Gather waits for an update and gathers shared values, until as many calls of release; `v` is the
 * bucket's `values` or its `bytes`. prefetch starts the gather of values that are about to be used.
 * refresh gathers again what a step has changed. forget drops prefetched values without users, of
 * both; outdate, called before a step, does this too, and makes the next use gather again. */
mc_status mc_bucket_gather(mc_zero *zero, mc_bucket *bucket, struct mc_values *v);
void mc_bucket_release(mc_zero *zero, mc_bucket *bucket, struct mc_values *v);
mc_status mc_bucket_prefetch(mc_zero *zero, mc_bucket *bucket, struct mc_values *v);
mc_status mc_bucket_refresh(mc_zero *zero, mc_bucket *bucket, struct mc_values *v);
mc_status mc_bucket_forget(mc_zero *zero, mc_bucket *bucket);
mc_status mc_bucket_outdate(mc_zero *zero, mc_bucket *bucket);
/* For WHOLE values with SHARE state: sends this rank's updated share to all ranks. */
mc_status mc_bucket_publish(mc_zero *zero, mc_bucket *bucket);
/* Waits for a bucket's update that a step began, and publishes it, without waiting for the device.
 * Call this, or the function for all buckets, before any use of values, on all ranks at the same
 * place. */
mc_status mc_bucket_await(mc_zero *zero, mc_bucket *bucket);
mc_status mc_zero_await(mc_zero *zero);
/* Waits until the context's thread may use a home's arrays, and launches may use this rank's share
 * of the values; not collective. */
mc_status mc_zero_rest(mc_zero *zero);

/* ---- gradient (gradient.c) ------------------------------------------------------------------- */

/* The memory of a span's gradient, from its element `first` on, to which backward adds. */
mc_leaf_gradient mc_bucket_leaf(mc_bucket *bucket, mc_span *span, int64_t first);
/* Allocates, as zeros, the gradients of all trainable buckets that exist from the first pass on:
 * WHOLE ones, and a home's sums. For steps of `passes` passes; 0: unknown. With one pass they may
 * have the exchanged dtype. */
mc_status mc_zero_need_gradients(mc_zero *zero, int passes);
size_t mc_bucket_gradient_bytes(const mc_bucket *bucket);
/* Called before a tape's first leaf of the bucket. If another pass has contributed since zero_grad,
 * a WHOLE gradient becomes f32, but only if `alone`: no other open tape and no recording points at
 * it. */
mc_status mc_bucket_begin_pass(mc_zero *zero, mc_bucket *bucket, uint64_t tape, bool alone);
/* Before and after a block's backward pass: makes the gradient OPEN; then QUEUED or REDUCING,
 * concurrently with the backward pass of the previous block. WHOLE: only in a step's last pass. */
mc_status mc_bucket_begin_gradient(mc_zero *zero, mc_bucket *bucket);
mc_status mc_bucket_reduce(mc_zero *zero, mc_bucket *bucket);
/* Ends all REDUCING gradients. */
mc_status mc_zero_end_reducing(mc_zero *zero);
/* Sums all OPEN or QUEUED gradients over ranks, for reading. An error if one is VOID. */
mc_status mc_zero_sum(mc_zero *zero);
/* SUMMED -> OPEN: every rank keeps a part of the sum, so that summing again gives the same sum. */
mc_status mc_bucket_reopen(mc_zero *zero, mc_bucket *bucket);
/* Zeros all of a bucket's gradients, or elements of an allocated `gradient`. */
mc_status mc_bucket_zero_gradient(mc_zero *zero, mc_bucket *bucket);
mc_status mc_bucket_blank(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count);
/* For a move: brings it to SUMMED in f32 (WHOLE) or into the sum, with nothing blank. */
mc_status mc_bucket_settle_gradient(mc_zero *zero, mc_bucket *bucket);
/* The dtype in which ranks exchange the gradient. */
mc_dtype mc_bucket_travel_dtype(const mc_zero *zero, const mc_bucket *bucket);
/* Frees `gradient`. */
void mc_bucket_drop_gradient(mc_zero *zero, mc_bucket *bucket);

/* ---- the sum (sum.c) ------------------------------------------------------------------------- */

/* Allocates its memory, uninitialised, for steps of `passes` passes. */
mc_status mc_sum_make(mc_zero *zero, mc_bucket *bucket, int passes);
/* The same for a step that reads it before any reduction: zeros. */
mc_status mc_sum_need(mc_zero *zero, mc_bucket *bucket, int passes);
size_t mc_sum_bytes(const mc_bucket *bucket);
/* Changes it to f32, and settles it in a home. */
mc_status mc_sum_widen(mc_zero *zero, mc_bucket *bucket);
/* Adds the reduced `share`, unless the reduction wrote to the sum directly. */
mc_status mc_sum_add(mc_zero *zero, mc_bucket *bucket, mc_matrix share);
void mc_sum_clear(mc_zero *zero, mc_bucket *bucket);
/* Statistics of elements of the sum, written to device memory; may wait for a home. */
mc_status mc_sum_stats(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count,
                       mc_tensor_stats *stats);
/* Copies elements first .. first + count of the summed gradient to host memory, as f32.
 * Collective. */
mc_status mc_bucket_read_gradient(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count,
                                  float *values);

/* ---- state and moves (move.c) ---------------------------------------------------------------- */

/* A slot's array, allocated and zeroed at first use; MASTER starts from the values. NULL after an
 * error. */
float *mc_bucket_state(mc_zero *zero, mc_bucket *bucket, int slot);
/* Bytes of a slot's array, the same on all ranks. */
size_t mc_bucket_state_bytes(const mc_bucket *bucket, int slot);
/* Codes and scales from `element` on, which must be the first of a block. */
mc_state8 mc_bucket_state8_at(const mc_bucket *bucket, int slot, int64_t element);
/* Sets the form of the last added span. */
void mc_bucket_set_form(mc_bucket *bucket, mc_state_form form);
/* Copies an old bucket's state of spans that keep their form; other elements of the new state are
 * not changed. `gathers`: gathers the old bucket's shares, which is collective. */
mc_status mc_state_copy(mc_zero *zero, mc_bucket *new, const mc_bucket *old, int slot,
                        bool gathers);
/* Copies values of this rank's share to the master copy. */
mc_status mc_bucket_fill_master(mc_zero *zero, mc_bucket *bucket, int64_t element, int64_t count);
/* Copies f32 arrays between device and home. */
mc_status mc_home_copy(mc_zero *zero, float *to, bool to_host, const float *from, bool from_host,
                       int64_t count);

/* Build a bucket's description, whose name, dtype and so on the caller has set. add_span appends a
 * span; set_level divides it into shares. */
mc_status mc_bucket_add_span(mc_zero *zero, mc_bucket *bucket, void *owner, int64_t count,
                             bool vector);
void mc_bucket_set_level(mc_zero *zero, mc_bucket *bucket, const mc_level *level);
/* Copies a bucket's description without its arrays, with the spans that `stays` accepts (NULL:
 * all). Must be ended, after a failure too. */
mc_status mc_bucket_describe(mc_zero *zero, const mc_bucket *bucket, mc_bucket *description,
                             bool (*stays)(const mc_span *span));
/* Moves old buckets to new ones of another level, home, dtype of gradients or layout. The new ones
 * are descriptions; `at_home` marks those for the home. Spans are matched by owner; spans without
 * an old bucket get zeros, and a master copy if others have one. All new arrays are built before
 * any is committed: after a failure the old buckets are unchanged, except that their gradients are
 * summed. The caller then frees the remains of the old buckets, or of the new ones after a failure.
 * No tape that uses them may be open. Collective. */
mc_status mc_zero_move(mc_zero *zero, mc_bucket *old, int old_count, mc_bucket *new, int new_count,
                       const bool *at_home);
/* The same for one bucket, in place. Ends the description on failure. */
mc_status mc_bucket_move(mc_zero *zero, mc_bucket *bucket, mc_bucket *description, bool at_home);

#endif
