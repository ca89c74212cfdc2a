/* The inside of optimizers and OptimManagers, and the visitor of their state. */
#ifndef MC_OPTIM_OPTIMIZER_INTERNAL_H
#define MC_OPTIM_OPTIMIZER_INTERNAL_H

#include <math.h>
#include "core/nn/module_internal.h"
#include "core/optim/offload_internal.h"
#include "core/optim/optim_manager.h"
#include "core/optim/optimizer.h"

/* ---- options ----------------------------------------------------------------------------- */

/* Checks that an option lies in [0, limit), naming it otherwise. */
bool mc_option_check(mc_context *ctx, const char *who, const char *option, float value,
                     float limit);

/* ---- optimizers -------------------------------------------------------------------------- */

/* Settings of a parameter; group 0 is that of mc_optimizer_add. */
typedef struct mc_group {
    float weight_decay; /* negative: the optimizer's own */
    float lr_factor;
    mc_muon_rule muon;
} mc_group;

struct mc_optimizer {
    mc_owned owned;
    mc_context *ctx;
    const mc_optimizer_kind *kind;
    double lr;
    float weight_decay;
    bool no_decay_bias_norm;
    int64_t steps;
    mc_optim_manager *manager; /* NULL: none */
    /* AdamOffload: the constants of an update (the rest is the range's), how much of its state
     * stays on the GPU, and what a step's `update` says, when it has come to the host */
    const mc_adam_step *on_host; /* NULL: any other optimizer */
    float gpu_share;
    const mc_adam_step *eight_bit; /* Adam with its state in 8 bits; NULL: any other optimizer */
    const struct mc_muon *muon;    /* in `settings`; NULL: any other optimizer */
    mc_update *told;               /* memory of the device's host_alloc */
    uint64_t last_job;             /* of mc_offload, that reads it */
    /* in device memory, made by mc_optimizer_prepare: the settings of its next step, and the host's
     * guess that a manager makes it from */
    struct mc_optimizer_memory {
        mc_update update;
        mc_update_guess guess;
    } * memory;
    mc_group *groups;
    size_t group_count, group_capacity;
    /* The trees it has parameters of. A tree may be gone (see live_root). Which parameters: those
     * whose `optimizer` is this one. */
    mc_module_root **roots;
    size_t root_count, root_capacity;
    max_align_t settings[];
};

/* The gradient of a range that a kind gets that reads rounded ones too. */
static inline mc_matrix mc_range_gradient(const mc_optimizer_range *range)
{
    const void *data = range->rounded ? range->rounded : range->gradient;
    return (mc_matrix){(void *)(uintptr_t)data, range->rounded ? range->dtype : MC_F32,
                       range->count};
}

/* Neighbours in a bucket with the same settings and step count. */
typedef struct mc_run {
    mc_module_root *root;
    mc_bucket *bucket;
    int64_t first, count; /* elements of the bucket */
    float weight_decay, lr_factor;
    int64_t steps; /* taken so far */
    mc_state_form form;
    mc_parameter *matrix; /* the only one of the run, which Muon steps as a matrix; else NULL */
} mc_run;

/* Calls fn for each run of trainable parameters, and each trainable or frozen parameter in turn
 * (frozen ones may have no gradient and no state). Both lay the buckets out if need be, and stop at
 * the first status that is not MC_OK. */
typedef mc_status (*mc_run_fn)(void *user, const mc_run *run);
mc_status mc_optimizer_each_run(mc_optimizer *optimizer, mc_run_fn fn, void *user);
typedef mc_status (*mc_parameter_fn)(void *user, mc_module_root *root, mc_parameter *parameter);
mc_status mc_optimizer_each_parameter(mc_optimizer *optimizer, mc_parameter_fn fn, void *user);

/* The trees that it has parameters of: so many at optimizer->roots, those that live. */
size_t mc_optimizer_roots(mc_optimizer *optimizer);
bool mc_optimizer_has_root(const mc_optimizer *optimizer, const mc_module_root *root);

/* Makes gradients and state of all trainable parameters, so a step cannot run out of memory. */
mc_status mc_optimizer_prepare(mc_optimizer *optimizer);
/* Cuts a run to the elements from `first` on; false if nothing is left. */
bool mc_run_within(mc_run *run, int64_t first, int64_t count);
/* Sums gradients over all ranks, where that has not been done. */
mc_status mc_optimizer_reduce(mc_optimizer *optimizer);
/* Begins to measure those of the gradients that lie on the host, for the p-norm. */
mc_status mc_optimizer_measure_host(mc_optimizer *optimizer, double power);
/* Runs the step that memory->update describes, and gives parameters out; counts nothing. */
mc_status mc_optimizer_launch(mc_optimizer *optimizer);
/* Whose step the next one launched is: that of the parameters that are trainable now. Steps are
 * counted when they have ended, and as long as one is on its way its parameters must be known: if
 * `changes` they would be others, and steps launched before are to be counted first. */
bool mc_optimizer_changes(mc_optimizer *optimizer);
void mc_optimizer_begin_step(mc_optimizer *optimizer);
/* Counts the oldest step launched: it was taken with `lr`. */
void mc_optimizer_count_step(mc_optimizer *optimizer, double lr);

/* Adam's settings, an mc_adam_step without what a range says: with the defaults filled in, false
 * for one out of its range; and its rule on a range. */
bool mc_adam_settings(mc_context *ctx, const char *who, float beta1, float beta2, float eps,
                      mc_adam_step *settings);
mc_status mc_adam_range(mc_context *ctx, const mc_adam_step *settings,
                        const mc_optimizer_range *range);
/* The same with state in 8 bits, which `range` doesn't show. */
mc_status mc_adam_range8(mc_context *ctx, const mc_adam_step *settings,
                         const mc_optimizer_range *range, mc_state8 m, mc_state8 v);
/* root->place: chooses the form of each tensor's state, and whether it lies on the host. */
mc_status mc_optimizer_place(mc_module_root *root);
/* Whether a parameter is one that Muon steps as a matrix. `rule`: its group's; `has_blocks`: its
 * tree has. */
bool mc_muon_takes(const mc_optimizer *optimizer, const mc_parameter *parameter, mc_muon_rule rule,
                   bool has_blocks);
/* Muon: steps the matrices. All ranks do it together. */
mc_status mc_muon_launch(mc_optimizer *optimizer);

/* ---- OptimManager ------------------------------------------------------------------------ */

typedef enum mc_clip_state {
    MC_CLIP_NONE, /* clip_grad_norm was not called since zero_grad or step */
    MC_CLIP_DONE,
    MC_CLIP_VOID /* gradients were added after it was called */
} mc_clip_state;

typedef struct mc_managed {
    mc_optimizer *optimizer;    /* NULL once freed */
    mc_lr_scheduler *scheduler; /* NULL: none */
} mc_managed;

/* A step that was launched: its state when it ended is on the way to the host. */
typedef struct mc_flight {
    mc_step_state *arrived; /* memory of the device's host_alloc */
    uint64_t ticket;
    double lr; /* of the first optimizer, if it has no schedule */
} mc_flight;

/* The end of a step: the ticket that stands for it, and its time in seconds of CLOCK_MONOTONIC. */
typedef struct mc_step_end {
    uint64_t ticket; /* 0: none yet */
    double time;
    bool known;     /* else `time` is only when it was seen that the step had ended */
    double seconds; /* since the end of the step before; NaN: not known */
} mc_step_end;

/* When the step of `ticket`, which is done, ended: as long after the end of the step before as the
 * device's clock says; without that `now`, which is known to be the end if the host has waited for
 * the step or the device works while a call runs. Times that follow an end that was only seen are
 * as late as that was seen, until the host waits for a step; `seconds` are right all the same. */
mc_step_end mc_step_end_of(mc_device *device, const mc_step_end *before, uint64_t ticket,
                           bool waited, double now);

enum { MC_FLIGHTS = MC_STEPS_LATE + 1 };

struct mc_optim_manager {
    mc_owned owned;
    mc_context *ctx;
    mc_optim_manager_options options; /* with the defaults filled in */
    mc_managed *managed;
    size_t managed_count, managed_capacity;
    bool scaling;
    mc_step_state *state; /* in device memory */
    /* steps launched whose end the host has not seen, the oldest at flights[first_flight] */
    mc_flight flights[MC_FLIGHTS];
    int first_flight, in_flight;
    /* as the newest step that the host has seen left it */
    double loss_scale;
    int64_t growth_counter; /* steps since the scale last changed */
    int64_t steps, skipped;
    mc_step_end last_end;               /* of the newest step that the host has seen */
    mc_step_report reports[MC_FLIGHTS]; /* the last ones; report n at n % MC_FLIGHTS */
    int64_t reported;                   /* how many there have been */
    int64_t warned_of_scales;           /* the last step that a warning of fp8's scales named */
    /* the gradients as they stand */
    mc_open_step open;
    mc_clip_state clip;
    mc_step_rules rules; /* as clip_grad_norm or step measured them */
    double norm;         /* NaN: none yet */
    bool last_skipped, failed;
};

void mc_optim_manager_forget_optimizer(mc_optim_manager *optim, const mc_optimizer *optimizer);
void mc_optim_manager_forget_scheduler(mc_optim_manager *optim, const mc_lr_scheduler *scheduler);

/* ---- state ------------------------------------------------------------------------------- */

/* One named piece of state. */
typedef struct mc_state_item {
    const char
        *name; /* "optimizer.0.exp_avg.<parameter>", "scaler.loss_scale"; gone after the call */
    const char *dtype; /* as safetensors writes it: "F32" of arrays, "F64" or "I64" of numbers */
    mc_shape shape;    /* the parameter's, or a number's: () */
    /* Elements first .. first + count of the shape are on this rank, at `data`; count may be 0. Of
     * those that several ranks have, this one is to write own_first .. own_first + own_count. */
    void *data;
    int64_t first, count, own_first, own_count;
    size_t size;    /* bytes of an element */
    bool on_device; /* where `data` is */
    bool number;    /* one element, 8 bytes, on the host */
    bool positive;  /* numbers: zero is not allowed (negative and not finite ones never are) */
} mc_state_item;

/* Visits everything that an exact resume needs beside the parameters: first the numbers, then the
 * arrays; the same items in the same order each time, and on each rank. Makes state that does not
 * exist yet. A visitor may read the data, or write it (and so restore it). Frozen parameters take
 * part that have been stepped, or of which `stepped` (NULL: none) says so, asked for the name of
 * their number of steps. */
typedef mc_status (*mc_state_fn)(void *user, const mc_state_item *item);
typedef bool (*mc_stepped_fn)(void *user, const char *name);
mc_status mc_optim_manager_each_state(mc_optim_manager *optim, mc_state_fn fn,
                                      mc_stepped_fn stepped, void *user);
/* Waits until all steps launched have ended, and takes over what they left. NULL: nothing. A
 * function that changes what a step counts or reads calls this first: how late a step is known to
 * have ended must not show. */
mc_status mc_optim_manager_settle(mc_optim_manager *optim);
/* To be called when a visitor has written: begins a step with the restored loss scale. */
void mc_optim_manager_state_restored(mc_optim_manager *optim);

#endif
