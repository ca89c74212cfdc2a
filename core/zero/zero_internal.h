/* ZeRO: flat memory that the ranks of a group share (Rajbhandari et al. 2020).
 *
 * A bucket is one flat range of elements with four arrays over it: values, gradient, the sum of
 * gradients over ranks, and optimizer state. Its level says which of them a rank has whole, and of
 * which it has its share. A bucket consists of spans, tensors of the room above, which this room
 * knows by offset and count only.
 *
 *  array          | transitions; any other one is an error that names both states
 *  ---------------+------------------------------------------------------------------------------
 *  values, SHARE  | RESTING -> GATHERING (prefetch) -> READY (in use, by `users`) -> RESTING
 *                 | READY -> STALE (a step changed them) -> GATHERING, in place, at the next use
 *                 | GATHERING, STALE -> RESTING: it failed, or nobody uses them any more
 *                 | GATHERING -> STALE: it failed in place
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
 * At an update under way elsewhere (`updating`) every use of values waits. One rank without a home
 * has level 0: gradients stay OPEN. */
#ifndef MC_ZERO_ZERO_INTERNAL_H
#define MC_ZERO_ZERO_INTERNAL_H

#include "core/autograd/tape_internal.h"

enum { MC_BUCKET_ALIGN = 64 /* elements */, MC_STATE_SLOTS = 3 };

/* The form in which a span has its optimizer state; a master copy is f32 always. */
typedef enum mc_state_form {
    MC_STATE_F32 = 0,
    MC_STATE_8BIT, /* M and V as codes of 8 bits, with an f32 scale for each MC_STATE_BLOCK elements
                      of the bucket, which then is laid out in multiples of that: no block lies on
                      two ranks or in two spans */
    MC_STATE_FIRST /* f32, and no V */
} mc_state_form;

/* Optimizer state of a bucket: flat arrays in its layout, f32 but for spans of another form. */
enum { MC_STATE_M = 0 /* also SGD's momentum buffer */, MC_STATE_V = 1, MC_STATE_MASTER = 2 };

typedef enum mc_extent { MC_WHOLE, MC_SHARE } mc_extent;

/* What a level shares. */
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
    mc_blank blank; /* of its part of the gradient */
    mc_state_form form;
} mc_span;

typedef struct mc_bucket {
    /* what it is */
    void *owner;      /* of all its spans, in the room above */
    const char *name; /* the owner's, for messages */
    mc_dtype dtype;   /* of the values */
    bool trainable;
    bool in_block; /* reduced at the end of its owner's backward pass: a pass may have its gradient
                      in the dtype that travels */
    const mc_level *level;
    int64_t count;        /* elements, a multiple of MC_BUCKET_ALIGN * ranks; zero between spans */
    int64_t first, share; /* this rank's share: elements first .. first + share */
    mc_span *spans;       /* in order of offset */
    int span_count;

    struct mc_values {
        mc_values_state state;
        void *data;      /* (count); SHARE: NULL while RESTING */
        void *share;     /* SHARE: (share); else NULL */
        int users;       /* SHARE: how many have gathered it */
        bool updating;   /* the home updates them */
        int running;     /* of a block: calls of its forward function under way */
        int retained;    /* of a block: how many of the users are its backward passes */
        uint64_t holder; /* the newest tape that has used it outside of its block */
        struct mc_comm_request *request;
    } values;
    struct mc_gradient {
        mc_gradient_state state;
        mc_dtype dtype; /* f32; of buckets in a block that which travels, where gradients are SHARE,
                           and where they are WHOLE in steps of one pass */
        void *data;     /* (count) of dtype, where backward adds */
        void *sent;     /* (count) of the values' dtype, on the way between ranks; NULL: not so */
        bool arrives;   /* the reduction under way writes to the sum itself */
        bool needed;    /* a pass or a step has asked for gradients: they are zeros at least */
        int uses;       /* outside of its block in the backward pass under way */
        uint64_t pass;  /* the newest tape that may add to it since zero_grad; 0: none */
        struct mc_comm_request *request;
    } gradient;
    struct mc_sum { /* SHARE: summed over ranks; WHOLE: `gradient` is it, and this is not used */
        mc_sum_state state;
        mc_dtype dtype; /* of the elements; memory of a home has room for f32, and stays */
        void *data;     /* (share) */
    } sum;
    bool formed; /* a span's form is not MC_STATE_F32: see state.c for what lies where */
    float *state[MC_STATE_SLOTS]; /* WHOLE: (count), SHARE: (share) each; NULL until needed */
    struct mc_bucket_host *host;  /* the home's record; not NULL: state and sum lie with it */
} mc_bucket;

/* All buckets of a model. */
typedef struct mc_zero {
    mc_context *ctx;
    const mc_rank_group *group;
    const char *name; /* the model's, for messages */
    mc_bucket *buckets;
    int bucket_count;
    int64_t gathered, most_gathered; /* elements that are gathered */
    int64_t align; /* of spans and shares that are laid out from now on; 0: MC_BUCKET_ALIGN */
    const struct mc_home *home; /* NULL: state lies on the device */
} mc_zero;

/* Memory beside the device's for state and sums, given by who updates there. It works beside the
 * context's thread; functions return the status of the context's error. */
typedef struct mc_home {
    mc_device *device; /* allocates arrays there, for the context's thread */
    /* A bucket's record, when its arrays are about to lie here; and its end, when they have gone or
     * are about to be freed. */
    mc_status (*enter)(mc_zero *zero, mc_bucket *bucket);
    void (*leave)(mc_zero *zero, mc_bucket *bucket);
    /* Adds gradients, in device memory, to the sum, soon; frees `block` when they were read. */
    mc_status (*take)(mc_zero *zero, mc_bucket *bucket, mc_matrix share, void *block, size_t bytes);
    mc_status (*settle)(mc_zero *zero, mc_bucket *bucket); /* waits for the sum, as f32 */
    /* The values that an update writes are seen by all that is launched from now on. */
    mc_status (*wait)(mc_zero *zero, mc_bucket *bucket);
    mc_status (*rest)(mc_zero *zero);              /* waits for all that it does */
    void (*close)(mc_zero *zero);                  /* no bucket is there any more */
    uint64_t (*bytes)(const struct mc_home *home); /* of host memory that it has taken */
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
/* Whether it has vectors alone: their gradients travel as f32. */
static inline bool mc_bucket_has_vectors_alone(const mc_bucket *b)
{
    return b->span_count && b->spans[0].vector;
}
/* The elements that this rank's optimizers step, and whose state it has. */
static inline int64_t mc_bucket_first(const mc_bucket *b)
{
    return b->level->state == MC_SHARE ? b->first : 0;
}
static inline int64_t mc_bucket_held(const mc_bucket *b)
{
    return b->level->state == MC_SHARE ? b->share : b->count;
}
/* Where an element lies that this rank holds: its value, its gradient summed over ranks (NULL data:
 * there is none), and its state. */
static inline void *mc_bucket_value_at(const mc_bucket *b, int64_t element)
{
    size_t size = mc_dtype_size(b->dtype);
    if (!mc_bucket_shares_values(b)) return (char *)b->values.data + (size_t)element * size;
    return (char *)b->values.share + (size_t)(element - b->first) * size;
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
/* The same of f32. */
static inline float *mc_bucket_state_at(const mc_bucket *b, int slot, int64_t element)
{
    return mc_bucket_state_place(b, slot, element);
}

/* Transitions. An illegal one sets MC_ERR_STATE. */
mc_status mc_values_go(mc_zero *zero, mc_bucket *bucket, mc_values_state to);
mc_status mc_gradient_go(mc_zero *zero, mc_bucket *bucket, mc_gradient_state to);
mc_status mc_sum_go(mc_zero *zero, mc_bucket *bucket, mc_sum_state to);

/* Makes a kernel's status an error of the context, with the device's reason. */
mc_status mc_zero_fail(mc_zero *zero, mc_status status, const char *what);
/* Memory of a device or a home, `what` of the model. NULL after an error. */
void *mc_zero_alloc(mc_zero *zero, mc_device *device, size_t bytes, const char *what);
/* The device that state and sum are allocated from. */
mc_device *mc_bucket_home(const mc_zero *zero, const mc_bucket *bucket);
/* Frees a bucket's arrays and spans; and buckets with their array. */
void mc_bucket_end(mc_zero *zero, mc_bucket *bucket);
void mc_zero_free(mc_zero *zero, mc_bucket *buckets, int count);

/* ---- values (values.c) ----------------------------------------------------------------------- */

/* Waits for an update, and gathers values that are shared, until as many calls of release. prefetch
 * begins to gather what is about to be asked for; forget drops what was prefetched and is not used;
 * outdate, before a step, does so too, and has what is in use gathered again by its next use. */
mc_status mc_bucket_gather(mc_zero *zero, mc_bucket *bucket);
void mc_bucket_release(mc_zero *zero, mc_bucket *bucket);
mc_status mc_bucket_prefetch(mc_zero *zero, mc_bucket *bucket);
mc_status mc_bucket_forget(mc_zero *zero, mc_bucket *bucket);
mc_status mc_bucket_outdate(mc_zero *zero, mc_bucket *bucket);
/* Values that are WHOLE while state is SHARE: gives every rank what the others have stepped. */
mc_status mc_bucket_publish(mc_zero *zero, mc_bucket *bucket);
/* Waits for the update of a bucket that a step began, and publishes it. The device is not waited
 * for. Who touches values calls it first, or that for all; all ranks at the same place. */
mc_status mc_bucket_await(mc_zero *zero, mc_bucket *bucket);
mc_status mc_zero_await(mc_zero *zero);
/* Waits until the context's thread may touch a home's arrays, and what is launched this rank's
 * share of the values; not collective. */
mc_status mc_zero_rest(mc_zero *zero);

/* ---- gradient (gradient.c) ------------------------------------------------------------------- */

/* Where backward adds to a span's gradient, from element `first` of it on. */
mc_leaf_gradient mc_bucket_leaf(mc_bucket *bucket, mc_span *span, int64_t first);
/* Memory for the gradients of all trainable buckets that exist from the first pass on, WHOLE ones
 * and the sums of a home: zeros, for steps of so many passes; 0: not known. One pass may have them
 * in the dtype that travels. */
mc_status mc_zero_need_gradients(mc_zero *zero, int passes);
size_t mc_bucket_gradient_bytes(const mc_bucket *bucket);
/* Called before a tape's first leaf of the bucket. If another pass has contributed since zero_grad,
 * a WHOLE gradient becomes f32, but only if `alone`: no other open tape and no recording points at
 * it. */
mc_status mc_bucket_begin_pass(mc_zero *zero, mc_bucket *bucket, uint64_t tape, bool alone);
/* Before and after a block's backward pass: OPEN; and QUEUED or REDUCING, beside the backward pass
 * of the block before. WHOLE: in the last pass of a step only. */
mc_status mc_bucket_begin_gradient(mc_zero *zero, mc_bucket *bucket);
mc_status mc_bucket_reduce(mc_zero *zero, mc_bucket *bucket);
/* Ends what is REDUCING. */
mc_status mc_zero_end_reducing(mc_zero *zero);
/* Sums over ranks all that is OPEN or QUEUED, for reading it. An error where gradients are VOID. */
mc_status mc_zero_sum(mc_zero *zero);
/* SUMMED -> OPEN: every rank keeps a part of the sum, so that summing again gives it once. */
mc_status mc_bucket_reopen(mc_zero *zero, mc_bucket *bucket);
/* Zeros all of a bucket's gradients, or elements of `gradient`, of which there is memory. */
mc_status mc_bucket_zero_gradient(mc_zero *zero, mc_bucket *bucket);
mc_status mc_bucket_blank(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count);
/* For a move: SUMMED in f32, if WHOLE, or in the sum; nothing is blank. */
mc_status mc_bucket_settle_gradient(mc_zero *zero, mc_bucket *bucket);
/* What gradients travel between ranks as. */
mc_dtype mc_bucket_travel_dtype(const mc_zero *zero, const mc_bucket *bucket);
/* Frees `gradient`. */
void mc_bucket_drop_gradient(mc_zero *zero, mc_bucket *bucket);

/* ---- the sum (sum.c) ------------------------------------------------------------------------- */

/* Memory for it, whose contents are not set, for steps of so many passes. */
mc_status mc_sum_make(mc_zero *zero, mc_bucket *bucket, int passes);
/* The same where a step is about to read it and no reduction has landed: zeros. */
mc_status mc_sum_need(mc_zero *zero, mc_bucket *bucket, int passes);
size_t mc_sum_bytes(const mc_bucket *bucket);
/* In f32 from now on, and settled where it has a home. */
mc_status mc_sum_widen(mc_zero *zero, mc_bucket *bucket);
/* Adds what was reduced: `share`, unless it has arrived in the sum itself. */
mc_status mc_sum_add(mc_zero *zero, mc_bucket *bucket, mc_matrix share);
void mc_sum_clear(mc_zero *zero, mc_bucket *bucket);
/* Statistics of elements of the sum, to device memory; it may have to be waited for. */
mc_status mc_sum_stats(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count,
                       mc_tensor_stats *stats);
/* Copies elements first .. first + count of the summed gradient to host memory, as f32. All ranks
 * do it together. */
mc_status mc_bucket_read_gradient(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count,
                                  float *values);

/* ---- state and moves (move.c) ---------------------------------------------------------------- */

/* A slot, allocated and zeroed at first use; MASTER is filled from the values. NULL after an
 * error. */
float *mc_bucket_state(mc_zero *zero, mc_bucket *bucket, int slot);
/* Bytes of a slot's array, the same on all ranks. */
size_t mc_bucket_state_bytes(const mc_bucket *bucket, int slot);
/* Codes and scales from an element on, the first of a block. */
mc_state8 mc_bucket_state8_at(const mc_bucket *bucket, int slot, int64_t element);
/* Of the span that was added last. */
void mc_bucket_set_form(mc_bucket *bucket, mc_state_form form);
/* Copies what a new bucket has of an old one's state, of spans whose form stays; the state of
 * others stays as it is. `gathers`: the old one's shares, as all ranks do then. */
mc_status mc_state_copy(mc_zero *zero, mc_bucket *new, const mc_bucket *old, int slot,
                        bool gathers);
/* Writes values of this rank's share into the master copy. */
mc_status mc_bucket_fill_master(mc_zero *zero, mc_bucket *bucket, int64_t element, int64_t count);
/* Copies f32 arrays between device and home. */
mc_status mc_home_copy(mc_zero *zero, float *to, bool to_host, const float *from, bool from_host,
                       int64_t count);

/* Begins the description of a bucket: a name, dtype and so on are the caller's. add_span appends a
 * span; set_level cuts it into shares. */
mc_status mc_bucket_add_span(mc_zero *zero, mc_bucket *bucket, void *owner, int64_t count,
                             bool vector);
void mc_bucket_set_level(mc_zero *zero, mc_bucket *bucket, const mc_level *level);
/* A bucket's description without its arrays, of the spans that stay (NULL: all). To be ended after
 * a failure too. */
mc_status mc_bucket_describe(mc_zero *zero, const mc_bucket *bucket, mc_bucket *description,
                             bool (*stays)(const mc_span *span));
/* Moves old buckets to new ones of another level, home, dtype of gradients or layout. The new ones
 * are descriptions; `at_home` says which are to lie with the home. Spans are known by their owner;
 * those of no old bucket have zeros, and a master copy where others have one. New arrays are built,
 * then all are committed: after a failure the old buckets are as they were, with their gradients
 * summed. The caller frees what is left of the old ones, or of the new ones after a failure. No
 * tape is open that uses them; all ranks do it together. */
mc_status mc_zero_move(mc_zero *zero, mc_bucket *old, int old_count, mc_bucket *new, int new_count,
                       const bool *at_home);
/* The same of one bucket, which stays where it is. Ends the description on failure. */
mc_status mc_bucket_move(mc_zero *zero, mc_bucket *bucket, mc_bucket *description, bool at_home);

#endif
