/* A tape, and what a context keeps for its tapes: private to core/autograd. */
#ifndef MC_AUTOGRAD_TAPE_STATE_INTERNAL_H
#define MC_AUTOGRAD_TAPE_STATE_INTERNAL_H

#include "core/autograd/tape_internal.h"
#include "core/base/arena_internal.h"

/* The owner of memory that a tape uses: a model, a tensor of the context, lengths, another tape. */
typedef struct mc_tape_owner {
    struct mc_tape_owner *next;
    const void *owner;
} mc_tape_owner;

/* Lengths that were copied to the device. */
typedef struct mc_device_lengths {
    struct mc_device_lengths *next;
    const mc_lengths *lengths;
    mc_tensor *tensor;
} mc_device_lengths;

typedef struct mc_tape_hooks {
    struct mc_tape_hooks *next;
    const mc_tape_watch *watch; /* NULL: removed */
    const void *owner;
    void *data;
} mc_tape_hooks;

struct mc_tape {
    mc_owned owned;
    mc_context *ctx;
    mc_tape *next; /* in the context's list of open tapes, or of ended ones */
    mc_tape_owner *owners;
    mc_device_lengths *device_lengths;
    mc_tape_hooks *hooks;
    mc_arena arena;
    mc_tensor *newest;    /* all tensors, newest first */
    mc_node *newest_node; /* recorded nodes, newest first */
    uint64_t id;          /* 0: it has ended */
    const char *orphaned; /* what an owner was that has been freed; NULL: all are there */
    bool training;
    bool border;    /* a block ended after the newest node */
    bool selective; /* within a selective scope */
    int unrecorded; /* > 0 during the first run of checkpointed segments */
    bool replaying; /* dropout offsets come from replay_offset */
    uint64_t replay_offset;
    uint64_t serial;        /* tensors created so far */
    uint64_t segment_start; /* while replaying: serial of the segment's first tensor */
};

/* What a context keeps for its tapes. */
typedef struct mc_autograd {
    mc_owned owned;
    mc_context *ctx;
    mc_tape *ended; /* ended tapes, whose arenas are reused */
    mc_tape *open;
    uint64_t last_id;
} mc_autograd;

/* Notes the owners of the memory of a tensor from outside the tape, and of its lengths. x may be
 * NULL. */
void mc_tape_note_outside(mc_tape *tape, const mc_tensor *x);
/* Drops a tensor's reference to its storage. */
void mc_tape_unref(mc_tensor *x);
/* Allocates the memory of x's storage; sets the error if memory is out. */
bool mc_tape_fill_storage(mc_tape *tape, mc_storage *storage, const mc_tensor *x);
/* Whether one of the inputs requires a gradient; an error if such an input is on another tape. */
bool mc_tape_wants_gradient(mc_tape *tape, const char *op, int count, mc_tensor *const *inputs);
/* Runs backward from the newest node down to, but not including, `stop`. */
void mc_tape_run_backward(mc_tape *tape, mc_node *stop);
/* Recomputes the dropped contents that the node saved. False after an error. */
bool mc_node_restore(mc_tape *tape, mc_node *node);
/* Releases what the node saved for its backward. */
void mc_node_forget(mc_node *node);

#endif
