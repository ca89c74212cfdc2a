/* Device memory: how much there is, and how much a training step, or generation, will need.
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
 * mc_memory(ctx).peak after training. A `step` that generates (mc_model_generate, or answers of a
 * generator, which ignore end tokens) is planned in the same way; its cache is part of activations.
 *
 * How long the step takes, such a run says too: core/predict/step_time.h.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_NN_MEMORY_PLAN_H
#define MC_NN_MEMORY_PLAN_H

#include "core/nn/module.h"

/* Bytes of a context's device. */
typedef struct mc_memory_use {
    uint64_t in_use, peak; /* allocated now, and the most so far */
    uint64_t reserved;     /* taken from the system, in use or kept for reuse */
    uint64_t available;    /* what the system could give beside `touched`; 0: unknown. On the CPU
                              what is free of the machine's memory, of the limits of the process's
                              control groups, and of its own (RLIMIT_AS, RLIMIT_DATA) */
    uint64_t space;        /* on the CPU: address space that RLIMIT_AS leaves; 0: no limit */
    uint64_t touched;      /* of `reserved`, what the system has given pages for */
    uint64_t process;      /* on the CPU: what the process takes beside that, now: its code,
                              libraries, threads and files. 0: unknown */
    uint64_t buffers;      /* on the CPU: what the library of matrix products may take beside that
                              when products are large */
} mc_memory_use;

/* All zeros for NULL. Does not look at the context's error. */
MC_API mc_memory_use mc_memory(mc_context *ctx);
/* Loads what the context's device computes with, and has it take the memory that it keeps for
 * itself: on the CPU the library of matrix products, its threads and their buffers, which else come
 * with the first product. Then mc_memory(ctx).available is what tensors may take. Takes a fraction
 * of a second at the first call. Errors: MC_ERR_DEVICE where a library is not found, or the
 * process's limit of address space (ulimit -v) is too small for it. */
MC_API mc_status mc_device_prepare(mc_context *ctx);
/* The fastest that the device multiplies matrices of a dtype by its datasheet, in FLOP/s; 0 where
 * that is not known (the CPU). */
MC_API double mc_device_peak_rate(mc_context *ctx, mc_dtype dtype);

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
    uint64_t space; /* on the CPU: the address space that it reserves */
    /* what the system has to give for all that. On the CPU it is more than `peak`: blocks of ever
     * other sizes leave gaps between them, and memory comes in pages */
    uint64_t touched;
    uint64_t host; /* beside all that, in the host's memory: what AdamOffload keeps there */
    /* what this rank sends to others in a step, by the least that any algorithm needs */
    uint64_t sent;
    uint64_t collectives; /* calls */
} mc_memory_plan;

/* A context like `ctx` whose device only counts; memory is not taken, numbers read from it are 0.
 * `ctx` must outlive it. NULL, with the error set in `ctx`, when memory is out or ctx has failed.
 */
MC_API mc_context *mc_plan_context_new(mc_context *ctx);
/* The same for rank 0 of a job of `ranks` ranks, whatever job there is; `level` is the level of
 * sharding of modules that say nothing else (MC_ZERO_DEFAULT: ctx's). Nothing is communicated.
 * Errors: MC_ERR_ARGUMENT for fewer than 1 rank, more than 65536, or another level. */
MC_API mc_context *mc_plan_context_new_ranks(mc_context *ctx, int ranks, mc_zero_level level);

/* Runs two steps on such a context: what the first makes and keeps is there in the second, which is
 * the one that counts. `module` is any of the model that is trained. Errors: those of the step, and
 * MC_ERR_ARGUMENT for another kind of context. They are set in `dry`. */
MC_API mc_status mc_plan_run(mc_context *dry, mc_module *module,
                             void (*step)(mc_context *ctx, void *user), void *user,
                             mc_memory_plan *plan);

#endif
