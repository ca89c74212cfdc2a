/* Time on the planning device, where somebody keeps it (core/predict): a timer is passed the work
 * that each planning kernel stands for, collectives, and what AdamOffload has the host do. Without
 * a timer no time passes; planning memory needs none. */
#ifndef MC_DEVICE_PLAN_TIMER_INTERNAL_H
#define MC_DEVICE_PLAN_TIMER_INTERNAL_H

#include "core/device/device_internal.h"

/* What is done, as far as rates differ. */
typedef enum mc_work_kind {
    /* FLOP a second, by (m, n, k) */
    MC_WORK_PRODUCT_NT, /* op(A) = A, op(B) = B^T: forward */
    MC_WORK_PRODUCT_NN, /* gradients of inputs */
    MC_WORK_PRODUCT_TN, /* gradients of weights */
    /* of bytes, op(A) = A and op(B) = B^T (fp8_internal.h): forward with sums of fewer digits, and
     * gradients of both kinds */
    MC_WORK_PRODUCT8_FAST,
    MC_WORK_PRODUCT8,
    /* FLOP a second, by (longest sequence, head size, heads of all sequences). A causal one counts
     * half of the scores. */
    MC_WORK_ATTENTION,
    MC_WORK_ATTENTION_BACKWARD,
    /* bytes a second, by (rows, columns); counted is what has to be read and written */
    MC_WORK_COPY, /* whatever has no kind of its own */
    MC_WORK_NORM,
    MC_WORK_NORM_BACKWARD, /* by whether it sums up the branch's gradient, too */
    MC_WORK_SUMS,
    MC_WORK_CROSS_ENTROPY,
    MC_WORK_ADAM,
    MC_WORK_STATS,
    /* bytes of one matrix of the product a second, by (rows, columns, activation): what it takes
     * longer than the product alone */
    MC_WORK_BIAS,
    MC_WORK_ACTIVATION,
    MC_WORK_ACTIVATION_BACKWARD,
    MC_WORK_KINDS
} mc_work_kind;

typedef struct mc_work {
    mc_work_kind kind;
    mc_dtype dtype;
    int64_t a, b, c;      /* see mc_work_kind */
    bool dropout, causal; /* of norms and attention */
    double amount;        /* FLOP or bytes */
} mc_work;

typedef enum mc_bus_kind {
    MC_BUS_ALL_GATHER,
    MC_BUS_REDUCE_SCATTER,
    MC_BUS_ALL_REDUCE,
    MC_BUS_KINDS
} mc_bus_kind;

typedef struct mc_plan_timer mc_plan_timer;

/* What a timer does. Times are seconds on its clock, which mc_plan_restart does not set back. */
struct mc_plan_timer {
    /* A kernel's work passes. */
    mc_status (*work)(mc_plan_timer *timer, const mc_work *work);
    /* A collective of `ranks` ranks, every `apart`-th of all (0: 1), is begun; `bytes` is the
     * larger of its buffers. `later`: it is waited for later. When it ends. */
    double (*collective)(mc_plan_timer *timer, mc_bus_kind kind, int ranks, int apart, double bytes,
                         bool later);
    /* The device waits for a collective. */
    void (*wait_ranks)(mc_plan_timer *timer, double end);
    /* The host is given work of AdamOffload, which it does in order: bytes to copy, and bytes to
     * read and write in its own memory meanwhile. `after`: after what was launched so far. When it
     * ends. */
    double (*host_work)(mc_plan_timer *timer, double copied, double touched, bool behind);
    /* The device waits for the host. */
    void (*wait_host)(mc_plan_timer *timer, double end);
    void (*restart)(mc_plan_timer *timer); /* with mc_plan_restart */
    void (*free)(mc_plan_timer *timer);
};

/* Takes a timer over, which is freed with the device or with the next one. NULL: none. */
void mc_plan_set_timer(mc_device *plan, mc_plan_timer *timer);
/* NULL if there is none. */
mc_plan_timer *mc_plan_timer_of(mc_device *plan);

/* For planning kernels: passes work to the timer. An error where its rate is to be measured, and
 * cannot be. */
mc_status mc_plan_work(mc_device *plan, mc_work work);
/* For AdamOffload: the timer's host_work and wait_host. */
double mc_plan_host_work(mc_device *plan, double copied, double touched, bool behind);
void mc_plan_wait_host(mc_device *plan, double end);

#endif
