/* How operations record themselves, and how gradients and memory move during backward. */
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
     * second output one of the two gradients may be NULL. */
    void (*backward)(mc_tape *tape, mc_node *node);
    /* Computes the contents of node->output again from its inputs; NULL if that is not cheap. Under
     * MC_RECOMPUTE_SELECTIVE the outputs of ops that have it are not kept for backward. */
    void (*recompute)(mc_tape *tape, mc_node *node);
    /* Whether `node` reads the output of `before`, and its backward can do a part of that one's.
     * Asked by the pass in front of backward (find_pairs in backward.c) where `before` was recorded
     * right before `node`, and only one node reads its output; node->fused is `before` then. NULL:
     * never. */
    bool (*fuses)(const mc_node *node, const mc_node *before);
    /* Frees what `state` holds besides itself; may be NULL. */
    void (*release)(mc_node *node);
    /* A mark that stands between operations: it has no output, and every backward pass that comes
     * by it calls `backward`. */
    bool always;
} mc_op;

struct mc_node {
    const mc_op *op;
    mc_node *previous;                 /* recorded just before */
    bool done;                         /* its backward has run */
    bool border;                       /* a block has ended between `previous` and this node */
    int readers;                       /* nodes that the output is an input of; set by find_pairs */
    mc_node *fused;                    /* see mc_op.fuses; or NULL */
    mc_tensor *inputs[MC_NODE_INPUTS]; /* NULL where an optional input is absent */
    int input_count;
    mc_tensor *output;
    mc_tensor *second; /* another output, whose gradient backward reads too; NULL: none */
    mc_tensor *saved[MC_NODE_SAVED]; /* contents kept until this node's backward has run */
    int saved_count;
    void *state; /* the op's own struct, in the tape's arena */
};

/* ---- making outputs and recording ------------------------------------------------------------ */

/* A new tensor on the tape with uninitialised contents; takes `like`'s lengths (like may be NULL).
 * NULL after an error. */
mc_tensor *mc_tape_tensor(mc_tape *tape, mc_dtype dtype, mc_shape shape, const mc_tensor *like);
/* A view of x's memory with another shape of as many elements or fewer, from `offset` bytes on. */
mc_tensor *mc_tape_view(mc_tape *tape, mc_tensor *x, mc_shape shape, size_t offset);
/* x's memory as that of a new tensor of the same shape, dtype and lengths, which an operation may
 * overwrite; x is as if released, and computing the contents again is not possible. NULL without an
 * error where somebody else needs the contents: a recorded node, a view, a checkpointed segment
 * that x comes into from outside, the context. */
mc_tensor *mc_tape_take(mc_tape *tape, mc_tensor *x);
/* A leaf that shows borrowed memory (a parameter). `gradient` is its f32 gradient, which backward
 * adds to; NULL: no gradient is wanted. */
mc_tensor *mc_tape_leaf(mc_tape *tape, mc_dtype dtype, mc_shape shape, void *data, float *gradient);
/* A tensor that stands for a residual sum not made yet; it has no storage and no node. */
mc_tensor *mc_tape_deferred(mc_tape *tape, mc_tensor *x, mc_tensor *f, float dropout);
/* A tensor that stands for activation(pre), as mc_tensor.pre says; it has no storage. */
mc_tensor *mc_tape_deferred_activation(mc_tape *tape, mc_tensor *pre, int activation);
/* The lengths, then the offsets, in device memory (2 * count + 1); copied once a tape, unless they
 * are there (mc_lengths_new). NULL on a device whose kernels read the host's, and after an
 * error. */
const int32_t *mc_tape_device_lengths(mc_tape *tape, const mc_lengths *lengths);
/* The same for memory that comes and goes: the leaf lies `offset` elements after *data, and its
 * gradient as many as that says after *gradient->base, wherever those point when it is used.
 * gradient == NULL: none is wanted. */
typedef struct mc_leaf_gradient {
    void *const *base;
    int64_t offset;
    mc_dtype dtype;
    mc_blank *blank; /* of the leaf, or of one that it is a part of */
} mc_leaf_gradient;
mc_tensor *mc_tape_parameter(mc_tape *tape, mc_dtype dtype, mc_shape shape, void *const *data,
                             const mc_leaf_gradient *gradient, int64_t offset);
/* Memory that lives as long as the tape; zeroed. Sets the context's error when out. */
void *mc_tape_alloc(mc_tape *tape, size_t bytes);

/* Whether what is done now is recorded: a training tape outside the first run of a checkpointed
 * segment. */
bool mc_tape_recording(const mc_tape *tape);
/* Whether this call must be recorded: a training tape, and one of the inputs requires a gradient.
 * If so, makes the node (with `state_bytes` of zeroed op state), marks the output and returns it;
 * NULL otherwise (not recorded, or out of memory, which sets the error). Absent optional inputs are
 * passed as NULL. */
mc_node *mc_tape_record(mc_tape *tape, const mc_op *op, mc_tensor *output, size_t state_bytes,
                        int input_count, mc_tensor *const *inputs);
static inline mc_device *mc_tape_device(const mc_tape *tape)
{
    return mc_tape_context(tape)->device;
}
/* A tensor as the kernels take it: (rows, columns) without gaps. NULL gives a NULL matrix. */
mc_matrix mc_matrix_of(const mc_tensor *x);
/* Names another output of the node. It takes a gradient then, but belongs to no node: it cannot be
 * computed again, and is kept if it is saved. */
void mc_node_second(mc_node *node, mc_tensor *x);
/* Records a node with zeroed state whose inputs and output, if it has any, the caller sets; a mark
 * (mc_op.always) has none. NULL after an error. */
mc_node *mc_tape_mark(mc_tape *tape, const mc_op *op, size_t state_bytes);
/* Whether a checkpointed segment runs again: its backward follows at once. */
bool mc_tape_replaying(const mc_tape *tape);
/* What is called as fn(data) around every backward pass from outside, and when the tape ends. */
typedef struct mc_tape_watch {
    void (*before_backward)(void *data), (*after_backward)(void *data), (*at_end)(void *data);
} mc_tape_watch;
mc_status mc_tape_hook(mc_tape *tape, const mc_tape_watch *watch, const void *owner, void *data);
/* Takes an owner's hooks from all open tapes. */
void mc_tape_unhook(const mc_context *ctx, const void *owner);
/* Keeps x's contents until the node's backward is done. x may be an input, the output or a tensor
 * made for this purpose; NULL is ignored. */
void mc_node_save(mc_node *node, mc_tensor *x);

/* Every op starts with `if (!mc_op_ready(t, x)) return NULL;`: false when the tape is NULL, the
 * context has failed, or x is NULL although no error is set (which becomes an error naming the
 * op). */
bool mc_op_ready(mc_tape *tape, const char *op, const mc_tensor *x);
/* Checks a kernel's status in an op: sets the error on failure and returns whether it went well. */
bool mc_op_ok(mc_tape *tape, const char *op, mc_status status);

/* ---- in backward ----------------------------------------------------------------------------- */

/* Where the gradient of x goes: a tensor to write to, or to add to when *accumulate is set. NULL if
 * x needs no gradient or after an error. For a parameter it is the view of its bucket, of f32 or of
 * the dtype in which gradients travel between ranks. */
mc_tensor *mc_gradient_target(mc_tape *tape, mc_tensor *x, bool *accumulate);
/* Whether a gradient of a parameter can be written to, in the forward pass too; sets the error.
 * True if there is none, and for NULL. */
bool mc_gradient_is_there(mc_tape *tape, const mc_tensor *x);
/* Adds g (x's shape) to the gradient of x without copying where that is possible: x may then share
 * g's memory, so g must not be written afterwards. */
void mc_gradient_share(mc_tape *tape, mc_tensor *x, mc_tensor *g);
/* A scratch tensor for the duration of a backward. mc_scratch_free gives up the op's hold on it:
 * the memory goes, unless mc_gradient_share passed it on. NULL is allowed. */
mc_tensor *mc_scratch_new(mc_tape *tape, mc_dtype dtype, mc_shape shape);
void mc_scratch_free(mc_tensor *x);
/* Contents of x for backward: recomputes them if they were dropped. NULL after an error. Those that
 * a node saved are there when its backward or recompute is called. */
void *mc_saved_data(mc_tape *tape, mc_tensor *x);

/* ---- scopes, recompute, dropout -------------------------------------------------------------- */

typedef struct mc_scope {
    uint64_t serial;        /* of the newest tensor before it */
    bool selective, within; /* `within`: another one that is selective */
} mc_scope;

/* Between begin and end lies a block. At the end the memory of everything made inside is released
 * unless backward needs it or it is `keep`; with `selective`, contents that can be recomputed
 * cheaply are released too although backward needs them. */
mc_scope mc_scope_begin(mc_tape *tape, bool selective);
void mc_scope_end(mc_tape *tape, mc_scope scope, mc_tensor *keep);
/* Whether the end of a selective scope drops the contents of x, made within, although saved. */
bool mc_scope_drops(const mc_tape *tape, const mc_tensor *x);
/* Whether what is made now and cheaply computed again may be kept for backward: a node is going to
 * be recorded, and no selective scope is open. */
bool mc_tape_keeps_cheap(const mc_tape *tape);
/* Releases x (mc_tape_release) if its memory was made since the scope began and is not keep's: a
 * block may hand on its input, or a view of it. */
void mc_scope_release(mc_tape *tape, mc_scope scope, mc_tensor *x, const mc_tensor *keep);
/* On an evaluation tape: x is readable until the tape ends, whatever scopes it was made in. */
void mc_scope_keep(mc_tensor *x);

typedef mc_tensor *(*mc_segment_fn)(mc_tape *tape, void *user, mc_tensor *x,
                                    mc_tensor *const *extra);
/* Runs fn(x, extra) without recording its inside; backward runs it again, recorded, with the same
 * dropout (full recompute). `extra_count` <= MC_NODE_INPUTS - 1. Gradients flow to x, the extras
 * and every parameter used inside. On an eval tape it just runs. */
mc_tensor *mc_tape_checkpoint(mc_tape *tape, mc_segment_fn fn, void *user, mc_tensor *x,
                              mc_tensor *const *extra, int extra_count);

/* The dropout to apply: p, or 0 on an eval tape; takes the next Philox offset when p > 0. */
mc_dropout_mask mc_tape_dropout(mc_tape *tape, float p);

/* A number for each tape, never used twice by a context. */
uint64_t mc_tape_id(const mc_tape *tape);
/* Notes that the tape has leaves that show memory of `owner` (false when memory is out); whether an
 * open tape has such, other than `but` (NULL: any), so that the memory must not move. */
bool mc_tape_note_owner(mc_tape *tape, const void *owner);
bool mc_is_on_open_tape(const mc_context *ctx, const void *owner, const mc_tape *but);

/* ---- losses ---------------------------------------------------------------------------------- */

/* The step that an OptimManager has begun and not ended, ctx->step: all that losses, buckets and
 * offloading know of how many backward passes it has and how many rows they are taken over. */
typedef struct mc_open_step {
    mc_step_state *state; /* the manager's, in device memory: its seed is loss_scale / nominal */
    double planned;       /* mc_step_plan.nominal_rows; 0: not given */
    double nominal;       /* rows of all passes on all ranks; 0 until the first loss sets it */
    int64_t rows;         /* several ranks: of a pass on a rank, as the manager's first loss had it
                             without a plan, for all its steps; 0: there was none yet */
    int passes, begun;    /* how many there will be, and how many backward has begun */
} mc_open_step;
/* Whether the backward pass that runs, or the newest one, is the last of the open step. */
static inline bool mc_step_in_last_pass(const mc_context *ctx)
{
    return ctx->step && ctx->step->begun >= ctx->step->passes;
}
/* The seed of a loss over `rows` rows a rank, {seed, 0} in device memory: loss_scale / nominal in
 * an open step (nominal, if it is not set: as planned, or rows * passes * ranks), else 1 /
 * max(count, 1) on the tape. NULL after an error. */
const float *mc_loss_seed_of(mc_tape *tape, int64_t rows, double count);
/* mc_tape_backward from a loss whose gradient is `seed` (two floats in device memory, which must
 * stay until the tape ends). */
mc_status mc_tape_backward_seeded(mc_tape *tape, mc_tensor *loss, const float *seed);

#endif
