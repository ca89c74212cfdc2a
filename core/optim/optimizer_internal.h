/* The fields of optimizers and OptimManagers, and the visitor of their state. */
#ifndef MC_OPTIM_OPTIMIZER_INTERNAL_H
#define MC_OPTIM_OPTIMIZER_INTERNAL_H

#include <math.h>
#include "core/nn/module_internal.h"
#include "core/optim/offload_internal.h"
#include "core/optim/optim_manager.h"
#include "core/optim/optimizer.h"

/* ---- options --------------------------------------------------------------------------------- */

/* Checks that an option is in [0, limit); the error names it. */
bool mc_option_check(mc_context *ctx, const char *who, const char *option, float value,
                     float limit);

/* ---- optimizers ------------------------------------------------------------------------------ */

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
    /* AdamOffload: the constants of an update (the range has the rest), the share of its state on
     * the GPU, and a step's `update` after it was copied to the host */
    const mc_adam_step *on_host; /* NULL: any other optimizer */
    float gpu_share;
    const mc_adam_step *eight_bit; /* Adam with 8-bit state; NULL: any other optimizer */
    const struct mc_muon *muon;    /* in `settings`; NULL: any other optimizer */
    mc_update *host_update;        /* memory of the device's host_alloc */
    uint64_t last_job;             /* the job of mc_offload that reads it */
    /* in device memory, created by mc_optimizer_prepare: the settings of its next step, and the
     * guess of a manager from which they are computed */
    struct mc_optimizer_memory {
        mc_update update;
        mc_update_guess guess;
    } * memory;
    mc_group *groups;
    size_t group_count, group_capacity;
    /* Trees with parameters of this optimizer, which are those whose `optimizer` is this one. A
     * tree may have been freed (see live_root). */
    mc_module_root **roots;
    size_t root_count, root_capacity;
    max_align_t settings[];
};

/* The gradient of a range, for kinds that also read rounded gradients. */
static inline mc_matrix mc_range_gradient(const mc_optimizer_range *range)
{
    const void *data = range->rounded ? range->rounded : range->gradient;
    return (mc_matrix){(void *)(uintptr_t)data, range->rounded ? range->dtype : MC_F32,
                       range->count};
}

/* Consecutive elements of a bucket with equal settings and step counts. */
typedef struct mc_run {
    mc_module_root *root;
    mc_bucket *bucket;
    int64_t first, count; /* elements of the bucket */
    float weight_decay, lr_factor;
    int64_t steps; /* taken before this one */
    mc_state_form form;
    mc_parameter *matrix; /* the run's only parameter, if Muon steps it as a matrix; else NULL */
} mc_run;

/* Call fn for each run of trainable parameters, and for each trainable or frozen parameter (frozen
 * ones may have no gradient and no state). Both lay the buckets out if needed, and stop at the
 * first status that is not MC_OK. */
typedef mc_status (*mc_run_fn)(void *user, const mc_run *run);
mc_status mc_optimizer_each_run(mc_optimizer *optimizer, mc_run_fn fn, void *user);
typedef mc_status (*mc_parameter_fn)(void *user, mc_module_root *root, mc_parameter *parameter);
mc_status mc_optimizer_each_parameter(mc_optimizer *optimizer, mc_parameter_fn fn, void *user);

/* Removes freed trees from optimizer->roots, and returns the number of the others. */
size_t mc_optimizer_roots(mc_optimizer *optimizer);
bool mc_optimizer_has_root(const mc_optimizer *optimizer, const mc_module_root *root);

/* Allocates gradients and state of all trainable parameters: a step cannot run out of memory. */
mc_status mc_optimizer_prepare(mc_optimizer *optimizer);
/* Restricts a run to elements first .. first + count; false if none is left. */
bool mc_run_within(mc_run *run, int64_t first, int64_t count);
/* Sums gradients over all ranks, unless that was done. */
mc_status mc_optimizer_reduce(mc_optimizer *optimizer);
/* Starts measuring the gradients on the host, for the p-norm. */
mc_status mc_optimizer_measure_host(mc_optimizer *optimizer, double power);
/* Launches the step of memory->update, and publishes the parameters; counts nothing. */
mc_status mc_optimizer_launch(mc_optimizer *optimizer);
/* Notes which parameters the next launched step is for: those that are trainable now. Steps are
 * counted when they have ended, so their parameters must be known until then. If `changes` returns
 * true, the next step has other parameters, and earlier steps must be counted first. */
bool mc_optimizer_changes(mc_optimizer *optimizer);
void mc_optimizer_begin_step(mc_optimizer *optimizer);
/* Counts the oldest launched step, taken with `lr`. */
void mc_optimizer_count_step(mc_optimizer *optimizer, double lr);

/* Adam's constants as an mc_adam_step without the fields of a range, with defaults filled in; false
 * for one out of range. And Adam's rule on a range. */
bool mc_adam_settings(mc_context *ctx, const char *who, float beta1, float beta2, float eps,
                      mc_adam_step *settings);
mc_status mc_adam_range(mc_context *ctx, const mc_adam_step *settings,
                        const mc_optimizer_range *range);
/* The same with 8-bit state, which is not in `range`. */
mc_status mc_adam_range8(mc_context *ctx, const mc_adam_step *settings,
                         const mc_optimizer_range *range, mc_state8 m, mc_state8 v);
/* root->place: chooses the form of each tensor's state, and its place on the host or the device. */
mc_status mc_optimizer_place(mc_module_root *root);
/* Whether Muon steps a parameter as a matrix. `rule`: its group's; `has_blocks`: its tree has
 * blocks. */
bool mc_muon_takes(const mc_optimizer *optimizer, const mc_parameter *parameter, mc_muon_rule rule,
                   bool has_blocks);
/* Muon: steps the matrices. Collective. */
mc_status mc_muon_launch(mc_optimizer *optimizer);

/* ---- OptimManager ---------------------------------------------------------------------------- */

typedef enum mc_clip_state {
    MC_CLIP_NONE, /* no call of clip_grad_norm since zero_grad or step */
    MC_CLIP_DONE,
    MC_CLIP_VOID /* gradients were added after the call */
} mc_clip_state;

typedef struct mc_managed {
    mc_optimizer *optimizer;    /* NULL once freed */
    mc_lr_scheduler *scheduler; /* NULL: none */
} mc_managed;

/* A launched step, whose final state is being copied to the host. */
typedef struct mc_flight {
    mc_step_state *arrived; /* memory of the device's host_alloc */
    uint64_t ticket;
    double lr; /* of the first optimizer, if it has no schedule */
} mc_flight;

/* The end of a step: its ticket, and its time in seconds of CLOCK_MONOTONIC. */
typedef struct mc_step_end {
    uint64_t ticket; /* 0: none yet */
    double time;
    bool known;     /* false: `time` is when the host noticed the end */
    double seconds; /* since the end of the previous step; NaN: unknown */
} mc_step_end;

/* The end of the step of `ticket`, which is done. By the device's clock it is the previous step's
 * end plus the time between both. Without such a clock it is `now`, which is exact (`known`) if the
 * host has waited for the step or the device works synchronously. Times based on an end that was
 * only noticed are late by as much, until the host waits for a step; `seconds` are exact. */
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
    /* launched steps whose end the host has not seen, oldest at flights[first_flight] */
    mc_flight flights[MC_FLIGHTS];
    int first_flight, in_flight;
    /* as of the newest step that the host has seen */
    double loss_scale;
    int64_t growth_counter; /* steps since the scale last changed */
    int64_t steps, skipped;
    mc_step_end last_end;               /* of the newest step that the host has seen */
    mc_step_report reports[MC_FLIGHTS]; /* the newest ones; report n at n % MC_FLIGHTS */
    int64_t reported;                   /* number of reports so far */
    int64_t warned_of_scales;           /* the last step with a warning about fp8 scales */
    /* the present gradients */
    mc_open_step open;
    mc_clip_state clip;
    mc_step_rules rules; /* of the last measurement, by clip_grad_norm or step */
    double norm;         /* NaN: none yet */
    bool last_skipped, failed;
};

void mc_optim_manager_forget_optimizer(mc_optim_manager *optim, const mc_optimizer *optimizer);
void mc_optim_manager_forget_scheduler(mc_optim_manager *optim, const mc_lr_scheduler *scheduler);

/* ---- state ----------------------------------------------------------------------------------- */

/* One named piece of state. */
typedef struct mc_state_item {
    const char *name;  /* "optimizer.0.exp_avg.<parameter>"; valid only during the call */
    const char *dtype; /* as safetensors writes it: "F32" of arrays, "F64" or "I64" of numbers */
    mc_shape shape;    /* the parameter's, or a number's: () */
    /* Elements first .. first + count of the shape are on this rank, at `data`; count may be 0. If
     * several ranks have the same elements, this rank writes own_first .. own_first + own_count. */
    void *data;
    int64_t first, count, own_first, own_count;
    size_t size;    /* bytes of an element */
    bool on_device; /* where `data` is */
    bool number;    /* one element, 8 bytes, on the host */
    bool positive;  /* numbers: must not be zero (and never negative or not finite) */
} mc_state_item;

/* Visits everything except the parameters that an exact resume needs, first numbers, then arrays;
 * the same items in the same order each time and on each rank. Creates state that does not exist
 * yet. A visitor may read the data, or write it (to restore it). Includes frozen parameters that
 * have been stepped here, or for which `stepped` (NULL: none), called with the name of the
 * parameter's step count, returns true. */
typedef mc_status (*mc_state_fn)(void *user, const mc_state_item *item);
typedef bool (*mc_stepped_fn)(void *user, const char *name);
mc_status mc_optim_manager_each_state(mc_optim_manager *optim, mc_state_fn fn,
                                      mc_stepped_fn stepped, void *user);
/* Waits until all launched steps have ended, and takes over their outcomes. NULL: does nothing.
 * Every function that changes what a step counts or reads must call this first, so that results do
 * not depend on when the host learns of a step's end. */
mc_status mc_optim_manager_settle(mc_optim_manager *optim);
/* Call this after a visitor has written: begins a step with the restored loss scale. */
void mc_optim_manager_state_restored(mc_optim_manager *optim);

#endif
