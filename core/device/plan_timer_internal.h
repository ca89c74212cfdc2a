/* Time on the planning device, if core/predict has set a timer: it receives the work of each
 * planning kernel, the collectives, and AdamOffload's work on the host. Without a timer no time
 * passes; planning memory needs none. */
#ifndef MC_DEVICE_PLAN_TIMER_INTERNAL_H
#define MC_DEVICE_PLAN_TIMER_INTERNAL_H

#include "core/device/device_internal.h"

/* Kinds of work that have different rates. */
typedef enum mc_work_kind {
    /* FLOP per second, by (m, n, k) */
    MC_WORK_PRODUCT_NT, /* op(A) = A, op(B) = B^T: forward */
    MC_WORK_PRODUCT_NN, /* gradients of inputs */
    MC_WORK_PRODUCT_TN, /* gradients of weights */
    /* in 8 bits, op(A) = A and op(B) = B^T (fp8_internal.h): forward with less precise sums, and
     * both kinds of gradients */
    MC_WORK_PRODUCT8_FAST,
    MC_WORK_PRODUCT8,
    /* FLOP per second, by (longest sequence, head size, heads of all sequences). With a causal mask
     * half of the scores count. */
    MC_WORK_ATTENTION,
    MC_WORK_ATTENTION_BACKWARD,
    /* bytes per second, by (rows, columns): the bytes that must be read and written */
    MC_WORK_COPY, /* everything without its own kind */
    MC_WORK_NORM,
    MC_WORK_NORM_BACKWARD, /* c: whether it also sums the branch's gradient */
    MC_WORK_SUMS,
    MC_WORK_CROSS_ENTROPY,
    MC_WORK_ADAM,
    MC_WORK_STATS,
    /* bytes of one matrix of the product per second, by (rows, columns, activation), for the time
     * in addition to the product alone */
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

/* The functions of a timer. Times are seconds on its clock; mc_plan_restart does not reset it. */
struct mc_plan_timer {
    /* Adds a kernel's work. */
    mc_status (*work)(mc_plan_timer *timer, const mc_work *work);
    /* Starts a collective of `ranks` ranks that are `apart` ranks apart (0: 1); `bytes` is the size
     * of the larger buffer. `later`: asynchronous. Returns when it ends. */
    double (*collective)(mc_plan_timer *timer, mc_bus_kind kind, int ranks, int apart, double bytes,
                         bool later);
    /* Makes the device wait for a collective. */
    void (*wait_ranks)(mc_plan_timer *timer, double end);
    /* Adds work of AdamOffload to the host's queue: bytes to copy, and bytes to read and write in
     * host memory meanwhile. `behind`: after everything launched so far. Returns when it ends. */
    double (*host_work)(mc_plan_timer *timer, double copied, double touched, bool behind);
    /* Makes the device wait for the host. */
    void (*wait_host)(mc_plan_timer *timer, double end);
    void (*restart)(mc_plan_timer *timer); /* with mc_plan_restart */
    void (*free)(mc_plan_timer *timer);
};

/* Sets a timer, which is freed with the device or when another is set. NULL: none. */
void mc_plan_set_timer(mc_device *plan, mc_plan_timer *timer);
/* NULL if there is none. */
mc_plan_timer *mc_plan_timer_of(mc_device *plan);

/* For planning kernels: passes work to the timer. An error if a required measurement fails. */
mc_status mc_plan_work(mc_device *plan, mc_work work);
/* For AdamOffload: the timer's host_work and wait_host. */
double mc_plan_host_work(mc_device *plan, double copied, double touched, bool behind);
void mc_plan_wait_host(mc_device *plan, double end);

#endif
