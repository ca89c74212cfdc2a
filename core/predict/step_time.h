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
 * Each kernel and each collective that the step asks for passes on a clock, by a table of measured
 * rates. What is begun to be waited for later passes on a second clock, so overlap follows from the
 * order in which the step does things. Nothing else in the library uses this part.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_PREDICT_STEP_TIME_H
#define MC_PREDICT_STEP_TIME_H

#include "core/nn/memory_plan.h"

/* Seconds of a training step; NaN where the rates have nothing like what the step does. What ranks
 * take from each other and from kernels by running at the same time is not in it. */
typedef struct mc_time_plan {
    double products, attention;
    double elementwise;   /* norms, activations, embeddings, sums, zeroing */
    double loss;          /* the cross-entropy; the head's products are among the products */
    double optimizer;     /* update and gradient norm */
    double exposed;       /* waiting for other ranks, while nothing else is done */
    double offload;       /* waiting for the host's part of AdamOffload */
    double total;         /* the sum of these */
    double communication; /* of all collectives, also those that others of the above hide */
    double product_rate;  /* FLOP/s of the fastest of the products */
} mc_time_plan;

/* Where rates come from. */
typedef enum mc_rates_source {
    /* Measured on the plan's device, each when the step first asks for it: about a second on a CPU.
     * Ranks that have to share a processor measure at the same time, or are predicted too fast. */
    MC_RATES_HERE = 0,
    /* The table of an H200 (core/predict/rates.c): products and attention of f16 and bf16,
     * NVLink. On a CPU the plan becomes that of a GPU, then, without the scratch memory of its
     * kernels, which only a GPU can tell. */
    MC_RATES_H200,
} mc_rates_source;

/* GB/s that the cores of a rank read and write, unless one says otherwise; it agrees with steps of
 * 13B that were measured on hosts of 16 cores and one H200. */
#define MC_PLAN_HOST_GBS 95

typedef struct mc_time_options {
    mc_rates_source rates;
    /* A group of ranks, each of which calls mc_plan_time with it, to measure collectives on. NULL:
     * the table's, or, of MC_RATES_HERE, what `bus` says. Planned numbers of ranks other than the
     * group's are taken to have the same bus bandwidth. */
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

/* From now on time passes in plans of this context. `options` may be NULL. Errors, in `dry`:
 * MC_ERR_ARGUMENT for another kind of context or a negative option, what measuring fails with. */
MC_API mc_status mc_plan_time(mc_context *dry, const mc_time_options *options);

/* The step that mc_plan_run counted last. All 0 without mc_plan_time, and for NULL. */
MC_API mc_time_plan mc_plan_seconds(mc_context *dry);

#endif
