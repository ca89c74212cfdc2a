/* How operations are recorded, and how backward moves gradients and memory. */
#ifndef MC_AUTOGRAD_TAPE_INTERNAL_H
#define MC_AUTOGRAD_TAPE_INTERNAL_H

#include "core/autograd/blank_internal.h"
#include "core/autograd/tape.h"
#include "core/device/device_internal.h"
#include "core/tensor/tensor_internal.h"

enum { MC_NODE_INPUTS = 12, MC_NODE_SAVED = 8 };

typedef struct mc_node mc_node;

/* One kind of operation. */
typedef struct mc_op {
    const char *name;
    /* Reads node->output->gradient and adds to the gradients of the inputs that require one. With a
     * second output, one of the two output gradients may be NULL. */
    void (*backward)(mc_tape *tape, mc_node *node);
    /* Recomputes the contents of node->output from its inputs; NULL if that is not cheap. Under
     * MC_RECOMPUTE_SELECTIVE the outputs of such ops are not kept for backward. */
    void (*recompute)(mc_tape *tape, mc_node *node);
    /* Whether `node` reads the output of `before`, and its backward can do a part of that node's
     * backward. find_pairs (backward.c) calls this only if `before` was recorded right before
     * `node` and has no other reader; if it returns true, node->fused becomes `before`. NULL:
     * never. */
    bool (*fuses)(const mc_node *node, const mc_node *before);
    /* Frees what `state` points to; may be NULL. */
    void (*release)(mc_node *node);
    /* A mark between operations: it has no output, and every backward pass that reaches it calls
     * `backward`. */
    bool always;
} mc_op;

struct mc_node {
    const mc_op *op;
    mc_node *previous;                 /* recorded just before */
    bool done;                         /* its backward has run */
    bool border;                       /* a block ended between `previous` and this node */
    int readers;                       /* number of nodes that read the output; set by find_pairs */
    mc_node *fused;                    /* see mc_op.fuses; or NULL */
    mc_tensor *inputs[MC_NODE_INPUTS]; /* NULL for an absent optional input */
    int input_count;
    mc_tensor *output;
    mc_tensor *second;               /* a second output with a gradient for backward; NULL: none */
    mc_tensor *saved[MC_NODE_SAVED]; /* contents kept until this node's backward has run */
    int saved_count;
    void *state; /* the op's own struct, in the tape's arena */
};

/* ---- creating outputs and recording ---------------------------------------------------------- */

/* A new tensor on the tape with uninitialised contents and the lengths of `like` (which may be
 * NULL). NULL after an error. */
mc_tensor *mc_tape_tensor(mc_tape *tape, mc_dtype dtype, mc_shape shape, const mc_tensor *like);
/* A view of x's memory, from `offset` bytes on, with another shape of at most as many elements. */
mc_tensor *mc_tape_view(mc_tape *tape, mc_tensor *x, mc_shape shape, size_t offset);
/* A new tensor of x's shape, dtype and lengths that takes over x's memory and may be overwritten. x
 * is then released, and its contents cannot be recomputed. NULL without an error if the contents
 * are still needed: by a recorded node, a view, a checkpointed segment that x comes into from
 * outside, or the context. */
mc_tensor *mc_tape_take(mc_tape *tape, mc_tensor *x);
/* A leaf for borrowed memory (a parameter). `gradient` is its f32 gradient, to which backward adds;
 * NULL: no gradient is required. */
mc_tensor *mc_tape_leaf(mc_tape *tape, mc_dtype dtype, mc_shape shape, void *data, float *gradient);
/* A tensor for a residual sum that is not computed yet; it has no storage and no node. */
mc_tensor *mc_tape_deferred(mc_tape *tape, mc_tensor *x, mc_tensor *f, float dropout);
/* A tensor for activation(pre), `gated` or not, see mc_tensor.pre; it has no storage. */
mc_tensor *mc_tape_deferred_activation(mc_tape *tape, mc_tensor *pre, int activation, bool gated);
/* A tensor for bytes, see mc_tensor.bytes; it has no storage. */
mc_tensor *mc_tape_in_bytes(mc_tape *tape, mc_dtype dtype, mc_tensor *bytes, const float *scale);
/* The lengths, then the offsets, in device memory (2 * count + 1); copied once per tape, unless
 * they are there already (mc_lengths_new). NULL on a device whose kernels read host memory, and
 * after an error. */
const int32_t *mc_tape_device_lengths(mc_tape *tape, const mc_lengths *lengths);
/* The same for memory that comes and goes. The leaf starts `offset` elements after *data, and its
 * gradient at its own offset after *gradient->base; both pointers are read at each use. gradient ==
 * NULL: no gradient is required. */
typedef struct mc_leaf_gradient {
    void *const *base;
    int64_t offset;
    mc_dtype dtype;
    mc_blank *blank; /* the leaf's, or that of the leaf it is a part of */
} mc_leaf_gradient;
mc_tensor *mc_tape_parameter(mc_tape *tape, mc_dtype dtype, mc_shape shape, void *const *data,
                             const mc_leaf_gradient *gradient, int64_t offset);
/* Zeroed memory that lives as long as the tape. Sets the context's error if memory is out. */
void *mc_tape_alloc(mc_tape *tape, size_t bytes);

/* Whether operations are recorded now: on a training tape, except in the first run of a
 * checkpointed segment. */
bool mc_tape_recording(const mc_tape *tape);
/* Records a call if it must be: on a training tape, if one of the inputs requires a gradient. Then
 * creates the node (with `state_bytes` of zeroed op state), marks the output, and returns the node.
 * NULL if not recorded, or out of memory, which sets the error. Pass absent optional inputs as
 * NULL. */
mc_node *mc_tape_record(mc_tape *tape, const mc_op *op, mc_tensor *output, size_t state_bytes,
                        int input_count, mc_tensor *const *inputs);
static inline mc_device *mc_tape_device(const mc_tape *tape)
{
    return mc_tape_context(tape)->device;
}
/* A tensor as the kernels take it: (rows, columns) without gaps. NULL gives a NULL matrix. */
mc_matrix mc_matrix_of(const mc_tensor *x);
/* Adds a second output to the node. It receives a gradient but belongs to no node: it cannot be
 * recomputed, and is kept if it is saved. */
void mc_node_second(mc_node *node, mc_tensor *x);
/* Records a node with zeroed state; the caller sets its inputs and output. A mark (mc_op.always)
 * has no output. NULL after an error. */
mc_node *mc_tape_mark(mc_tape *tape, const mc_op *op, size_t state_bytes);
/* Whether a checkpointed segment is running again, immediately before its backward pass. */
bool mc_tape_replaying(const mc_tape *tape);
/* Hooks, called as fn(data), around each backward pass from outside and at the tape's end. */
typedef struct mc_tape_watch {
    void (*before_backward)(void *data), (*after_backward)(void *data), (*at_end)(void *data);
} mc_tape_watch;
mc_status mc_tape_hook(mc_tape *tape, const mc_tape_watch *watch, const void *owner, void *data);
/* Removes an owner that is freed from all open tapes: its hooks, and backward if a tape uses its
 * memory; `what` completes the error, "backward: ". */
void mc_tape_unhook(const mc_context *ctx, const void *owner, const char *what);
/* Keeps x's contents until the node's backward is done. x may be an input, the output or a tensor
 * created for this purpose; NULL is ignored. */
void mc_node_save(mc_node *node, mc_tensor *x);
/* The same for x: the rest of the node's backward does not need its contents. */
void mc_node_unsave(mc_node *node, const mc_tensor *x);

/* False for a NULL tape. It has no context, so the error, which names the op, is set on that of
 * another argument (NULL: none has one, and no error is set). */
bool mc_tape_given(const mc_tape *tape, const char *op, mc_context *ctx);
/* Every op starts with `if (!mc_op_ready(t, op, x)) return NULL;`: false when the tape is NULL (an
 * error of x's context), the context has failed, or x is NULL although no error is set (which
 * becomes an error naming the op). */
bool mc_op_ready(mc_tape *tape, const char *op, const mc_tensor *x);
/* Returns whether a kernel's status in an op is MC_OK; sets the error if not. */
bool mc_op_ok(mc_tape *tape, const char *op, mc_status status);

/* ---- in backward ----------------------------------------------------------------------------- */

/* The tensor for the gradient of x, to write to, or to add to if *accumulate is set. NULL if x
 * needs no gradient or after an error. For a parameter it is a view of its bucket, in f32 or in the
 * dtype in which ranks exchange gradients. */
mc_tensor *mc_gradient_target(mc_tape *tape, mc_tensor *x, bool *accumulate);
/* Whether a parameter's gradient can be written now, which is also possible in the forward pass;
 * sets the error if not. True for NULL and for tensors without a gradient. */
bool mc_gradient_is_there(mc_tape *tape, const mc_tensor *x);
/* Adds g (x's shape) to the gradient of x, without a copy if possible: x may then share g's memory,
 * so g must not be written afterwards. */
void mc_gradient_share(mc_tape *tape, mc_tensor *x, mc_tensor *g);
/* A scratch tensor for one backward call. mc_scratch_free drops the op's reference: the memory is
 * freed unless mc_gradient_share passed it on. NULL is allowed. */
mc_tensor *mc_scratch_new(mc_tape *tape, mc_dtype dtype, mc_shape shape);
void mc_scratch_free(mc_tensor *x);
/* The contents of x for backward, recomputed if they were dropped. NULL after an error. Contents
 * that a node saved are available when its backward or recompute is called. */
void *mc_saved_data(mc_tape *tape, mc_tensor *x);

/* ---- scopes, recompute, dropout -------------------------------------------------------------- */

typedef struct mc_scope {
    uint64_t serial;        /* of the newest tensor before it */
    bool selective, within; /* `within`: inside another selective scope */
} mc_scope;

/* A block runs between begin and end. At the end, the memory of everything created inside is
 * released, except `keep` and what backward needs; with `selective`, contents that can be
 * recomputed cheaply are released even if backward needs them. */
mc_scope mc_scope_begin(mc_tape *tape, bool selective);
void mc_scope_end(mc_tape *tape, mc_scope scope, mc_tensor *keep);
/* Whether the end of a selective scope drops the contents of x, created inside, although saved. */
bool mc_scope_drops(const mc_tape *tape, const mc_tensor *x);
/* Whether a new tensor that is cheap to recompute may be kept for backward: a node will be
 * recorded, and no selective scope is open. */
bool mc_tape_keeps_cheap(const mc_tape *tape);
/* Releases x (mc_tape_release) if its memory was created in the scope and is not keep's: a block
 * may return its input, or a view of it. */
void mc_scope_release(mc_tape *tape, mc_scope scope, mc_tensor *x, const mc_tensor *keep);
/* On an evaluation tape: keeps x readable until the tape ends, whatever scopes it is in. */
void mc_scope_keep(mc_tensor *x);

typedef mc_tensor *(*mc_segment_fn)(mc_tape *tape, void *user, mc_tensor *x,
                                    mc_tensor *const *extra);
/* Runs fn(x, extra) without recording its operations; backward runs it again, recorded, with the
 * same dropout (full recompute). `extra_count` <= MC_NODE_INPUTS - 1. Gradients flow to x, the
 * extras and every parameter used inside. On an eval tape it just runs. */
mc_tensor *mc_tape_checkpoint(mc_tape *tape, mc_segment_fn fn, void *user, mc_tensor *x,
                              mc_tensor *const *extra, int extra_count);

/* The dropout to apply: p, or 0 on an eval tape; takes the next Philox offset when p > 0. */
mc_dropout_mask mc_tape_dropout(mc_tape *tape, float p);

/* The tape's number, unique within a context. */
uint64_t mc_tape_id(const mc_tape *tape);
/* Notes that the tape uses memory of `owner` (false if memory is out); whether an open tape
 * other than `but` (NULL: any) does, so that the memory must not move. */
bool mc_tape_note_owner(mc_tape *tape, const void *owner);
bool mc_is_on_open_tape(const mc_context *ctx, const void *owner, const mc_tape *but);

/* ---- losses ---------------------------------------------------------------------------------- */

/* The open step of an OptimManager, ctx->step: losses, buckets and offloading read from it how many
 * backward passes the step has, and over how many rows. */
typedef struct mc_open_step {
    mc_step_state *state; /* the manager's, in device memory: its seed is loss_scale / nominal */
    double planned;       /* mc_step_plan.nominal_rows; 0: not given */
    double nominal;       /* rows of all passes on all ranks; 0 until the first loss sets it */
    /* several ranks, no plan: rows per rank and pass, from the manager's first loss; 0: none yet */
    int64_t rows;
    int passes, begun; /* number of passes planned, and begun so far */
} mc_open_step;
/* Whether the running (or else the newest) backward pass is the last of the open step. */
static inline bool mc_step_in_last_pass(const mc_context *ctx)
{
    return ctx->step && ctx->step->begun >= ctx->step->passes;
}
/* The seed of a loss over `rows` rows per rank, {seed, 0} in device memory. In an open step it is
 * loss_scale / nominal; if nominal is not set yet, it becomes the planned number, or rows * passes
 * * ranks. Otherwise it is 1 / max(count, 1), on the tape. NULL after an error. */
const float *mc_loss_seed_of(mc_tape *tape, int64_t rows, double count);
/* mc_tape_backward from a loss with the gradient `seed` (two floats in device memory, which must
 * live as long as the tape). */
mc_status mc_tape_backward_seeded(mc_tape *tape, mc_tensor *loss, const float *seed);

#endif
