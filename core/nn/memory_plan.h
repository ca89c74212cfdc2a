/* Device memory: how much there is, and how much a training step will need; and how long it takes.
 *
 * A plan is made before anything large is allocated, by running the step once on a device that
 * computes nothing and counts what would be taken. So it needs no formulas of any model's, and
 * holds for every model, dtype and kind of recompute:
 *
 *     mc_context *dry = mc_plan_context_new(ctx);
 *     mc_gpt2 *gpt2 = mc_gpt2_new(dry, &config, &load);     ... optimizer, OptimManager, inputs
 *     mc_memory_plan plan;
 *     mc_plan_run(dry, mc_model_module(gpt2), step, &everything, &plan);
 *     mc_context_free(dry);
 *
 * where `step` is the same function that trains on the real context. It is within 2 % of
 * mc_memory(ctx).peak after training.
 *
 * With mc_plan_time before mc_plan_run the plan says how long the step takes, too: each kernel and
 * each collective that the step asks for passes on a clock, by a table of measured rates. What is
 * begun to be waited for later passes on a second clock, so what overlaps what follows from the
 * order in which the step does things. */
#ifndef MC_NN_MEMORY_PLAN_H
#define MC_NN_MEMORY_PLAN_H

#include "core/nn/module.h"

/* Bytes of a context's device. */
typedef struct mc_memory_use {
    uint64_t in_use, peak; /* handed out now, and the most so far */
    uint64_t reserved;     /* taken from the system, in use or kept for reuse */
    uint64_t available;    /* what the system could give beside `reserved`; 0: unknown. On the CPU
                              what is free of the machine's memory and of the limits of the
                              process's control groups */
} mc_memory_use;

/* All zeros for NULL. Does not look at the context's error. */
MC_API mc_memory_use mc_memory(mc_context *ctx);
/* The fastest that the device multiplies matrices of a dtype by its datasheet, in FLOP/s; 0 where
 * that is not known (the CPU). */
MC_API double mc_device_peak_rate(mc_context *ctx, mc_dtype dtype);

/* Seconds of a training step; all 0 without mc_plan_time, NaN where the rates have nothing like
 * what the step does. What ranks take from each other and from kernels by running at the same time
 * is not in it. */
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

/* Bytes of a training step. All but `peak` are parts of it, as they stand when the most is in
 * use. */
typedef struct mc_memory_plan {
    uint64_t parameters, gradients;
    uint64_t optimizer;   /* state: moments and master copies */
    uint64_t inputs;      /* tensors of the context and small change */
    uint64_t activations; /* of forward and backward, after what recompute leaves out */
    uint64_t logits;      /* the chunk of logits that exists at once */
    uint64_t workspace;   /* scratch memory of kernels, and the device's own */
    uint64_t peak;
    uint64_t host; /* beside all that, in the host's memory: what AdamOffload keeps there */
    /* what this rank sends to others in a step, by the least that any algorithm needs */
    uint64_t sent;
    uint64_t collectives; /* calls */
    mc_time_plan time;
} mc_memory_plan;

/* A context like `ctx` whose device only counts; memory is not taken, numbers read from it are 0.
 * `ctx` must outlive it. NULL, with the error set in `ctx`, when memory is out or ctx has failed.
 */
MC_API mc_context *mc_plan_context_new(mc_context *ctx);
/* The same for rank 0 of a job of `ranks` ranks, whatever job there is; `level` is the level of
 * sharding of modules that say nothing else (MC_ZERO_DEFAULT: ctx's). Nothing is communicated.
 * Errors: MC_ERR_ARGUMENT for fewer than 1 rank, more than 65536, or another level. */
MC_API mc_context *mc_plan_context_new_ranks(mc_context *ctx, int ranks, mc_zero_level level);

/* Where rates come from. */
typedef enum mc_rates_source {
    /* Measured on the plan's device, each when the step first asks for it: about a second on a CPU.
     * Ranks that have to share a processor measure at the same time, or are predicted too fast. */
    MC_RATES_HERE = 0,
    /* The table of an H200 (core/device/plan_rates.c): products and attention of f16 and bf16,
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

/* Has plans of this context say how long steps take. `options` may be NULL. Errors, in `dry`:
 * MC_ERR_ARGUMENT for another kind of context or a negative option, what measuring fails with. */
MC_API mc_status mc_plan_time(mc_context *dry, const mc_time_options *options);

/* Runs two steps on such a context: what the first makes and keeps is there in the second, which is
 * the one that counts. `module` is any of the model that is trained. Errors: those of the step, and
 * MC_ERR_ARGUMENT for another kind of context. They are set in `dry`. */
MC_API mc_status mc_plan_run(mc_context *dry, mc_module *module,
                             void (*step)(mc_context *ctx, void *user), void *user,
                             mc_memory_plan *plan);

#endif
