/* How long a training step takes, before it is run.
 *
 * The step is run on a planning context (core/nn/memory_plan.h), which computes nothing:
 *
 *     mc_context *dry = mc_plan_context_new_ranks(ctx, 64, MC_ZERO_3);
 *     mc_plan_time(dry, &(mc_time_options){.rates = MC_RATES_H200});
 *     ...                                     a model, its optimizer, inputs
 *     mc_plan_run(dry, mc_model_module(model), step, &everything, &plan);
 *     mc_time_plan time = mc_plan_seconds(dry);
 *
 * Each kernel and collective of the step advances a clock, by a table of measured rates.
 * Asynchronous work advances a second clock, so overlap follows from the order of the step's calls.
 * Nothing else in the library uses this part.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_PREDICT_STEP_TIME_H
#define MC_PREDICT_STEP_TIME_H

#include "core/nn/memory_plan.h"

/* Seconds of a training step; NaN if the rates lack an operation of the step. The slowdown of ranks
 * and kernels that run at the same time is not included. */
typedef struct mc_time_plan {
    double products, attention;
    double elementwise;   /* norms, activations, embeddings, sums, zeroing */
    double loss;          /* the cross-entropy; the head's products are among the products */
    double optimizer;     /* update and gradient norm */
    double exposed;       /* waiting for other ranks, with nothing else to do */
    double offload;       /* waiting for the host's part of AdamOffload */
    double total;         /* the sum of these */
    double communication; /* all collectives, including those that overlap the above */
    double product_rate;  /* FLOP/s of the fastest of the products */
} mc_time_plan;

/* Where rates come from. */
typedef enum mc_rates_source {
    /* Measured on the plan's device, each at its first use in the step: about a second on a CPU.
     * Ranks that share a processor must measure at the same time; otherwise the prediction is too
     * fast. */
    MC_RATES_HERE = 0,
    /* The table of an H200 (core/predict/rates.c): products and attention of f16 and bf16, NVLink.
     * On a CPU the plan is then that of a GPU, without the scratch memory of its kernels, which can
     * only be measured on a GPU. */
    MC_RATES_H200,
} mc_rates_source;

/* GB/s that the cores of a rank read and write, unless one says otherwise; it agrees with steps of
 * 13B that were measured on hosts of 16 cores and one H200. */
#define MC_PLAN_HOST_GBS 95

typedef struct mc_time_options {
    mc_rates_source rates;
    /* A group of ranks on which to measure collectives; each of them calls mc_plan_time with it.
     * NULL: the table's rates or, with MC_RATES_HERE, `bus`. Other planned numbers of ranks are
     * assumed to have the same bus bandwidth. */
    struct mc_comm *comm;
    double
        bus; /* bytes/s of bus bandwidth within a host. 0: as measured, else 5e9, an assumption */
    int ranks_per_host; /* 0: 8 */
    double network;     /* bytes/s from each rank to other hosts; 0: 50e9, which is 400 Gb/s */
    /* AdamOffload, for each rank. bytes/s between host and device, each way; 0: 50e9, an assumption
     * of PCIe 5.0 x16. bytes/s that its share of the cores reads and writes; 0: that of
     * MC_PLAN_HOST_GBS */
    double host_bus, host_memory;
} mc_time_options;

/* Turns on the clock in plans of this context. `options` may be NULL. Errors, in `dry`:
 * MC_ERR_ARGUMENT for another kind of context or a negative option, errors of measuring. */
MC_API mc_status mc_plan_time(mc_context *dry, const mc_time_options *options);

/* Returns the times of the step that mc_plan_run ran last. All 0 without mc_plan_time, and for
 * NULL. */
MC_API mc_time_plan mc_plan_seconds(mc_context *dry);

#endif
