/* Device memory: how much is free, and how much a training step or generation will need.
 *
 * A plan runs the step on a device that computes nothing and counts what would be allocated, before
 * anything large is allocated. It uses no formulas of specific models, so it works for every model,
 * dtype and kind of recompute:
 *
 *     mc_context *dry = mc_plan_context_new(ctx);
 *     mc_gpt2 *gpt2 = mc_gpt2_new(dry, &config, &load);     ... optimizer, OptimManager, inputs
 *     mc_memory_plan plan;
 *     mc_plan_run(dry, mc_model_module(gpt2), step, &everything, &plan);
 *     mc_context_free(dry);
 *
 * where `step` is the same function that trains on the real context. On the CPU `peak` is
 * mc_memory(ctx).peak after training, on a GPU within 2 % of it. A `step` that generates
 * (mc_model_generate, or answers of a generator, which ignore end tokens) is planned in the same
 * way; its cache is part of activations.
 *
 * Such a run can also predict the step's time: core/predict/step_time.h.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_NN_MEMORY_PLAN_H
#define MC_NN_MEMORY_PLAN_H

#include "core/nn/module.h"

/* Bytes of a context's device. */
typedef struct mc_memory_use {
    uint64_t in_use, peak; /* allocated now, and the most so far */
    uint64_t reserved;     /* taken from the system, in use or kept for reuse */
    uint64_t available;    /* what the system could still provide beyond `touched`; 0: unknown. On
                              the CPU: what is free of the machine's memory, of the limits of the
                              process's control groups, and of its own limits (RLIMIT_AS,
                              RLIMIT_DATA) */
    uint64_t space;        /* on the CPU: address space that RLIMIT_AS leaves; 0: no limit */
    uint64_t touched;      /* the part of `reserved` that has pages of physical memory */
    uint64_t process;      /* on the CPU: other memory of the process now: its code, libraries,
                              threads and files. 0: unknown */
    uint64_t buffers;      /* on the CPU: what the library of matrix products may take in addition
                              for large products */
} mc_memory_use;

/* All zeros for NULL. Works on a failed context too. */
MC_API mc_memory_use mc_memory(mc_context *ctx);
/* Loads the device's libraries and lets them allocate their own memory now. On the CPU these are
 * the library of matrix products, its threads and their buffers, which are otherwise loaded at the
 * first product. Afterwards tensors may take mc_memory(ctx).available. Takes a fraction of a second
 * at the first call. Errors: MC_ERR_DEVICE if a library is not found, or the process's limit of
 * address space (ulimit -v) is too small for it. */
MC_API mc_status mc_device_prepare(mc_context *ctx);
/* Returns the device's peak rate of matrix products of a dtype according to its datasheet, in
 * FLOP/s; 0 if unknown (the CPU). */
MC_API double mc_device_peak_rate(mc_context *ctx, mc_dtype dtype);

/* Bytes of a training step. All but `peak` are parts of the peak, at the moment when the most
 * memory is in use. */
typedef struct mc_memory_plan {
    uint64_t parameters;  /* those in 8 bits, in their place or beside them, too */
    uint64_t gradients;   /* those kept for the step; at levels 2 and 3 few are there early in
                             backward, where the peak often is */
    uint64_t optimizer;   /* state: moments and master copies */
    uint64_t inputs;      /* tensors of the context and small change */
    uint64_t activations; /* of forward and backward, after what recompute leaves out */
    uint64_t logits;      /* the chunk of logits that exists at once */
    uint64_t workspace;   /* scratch memory of kernels, and the device's own */
    uint64_t peak;
    uint64_t space; /* on the CPU: the address space that it reserves */
    /* what the system has to provide for the peak. On the CPU it is more than `peak`: blocks of
     * varying sizes leave gaps between them, and memory comes in pages */
    uint64_t touched;
    uint64_t host; /* in addition, host memory of AdamOffload */
    /* bytes that this rank sends to others in a step: the least that any algorithm needs */
    uint64_t sent;
    uint64_t collectives; /* calls */
} mc_memory_plan;

/* Creates a context like `ctx` whose device only counts: it allocates no memory, and numbers read
 * from it are 0. `ctx` must outlive it. Returns NULL, with the error set in `ctx`, if memory is out
 * or ctx has failed.
 */
MC_API mc_context *mc_plan_context_new(mc_context *ctx);
/* Creates a planning context for rank 0 of a job of `ranks` ranks, whatever the real number of
 * ranks. `level` is the default level of sharding of modules (MC_ZERO_DEFAULT: ctx's). Does not
 * communicate. Errors: MC_ERR_ARGUMENT for fewer than 1 rank, more than 65536, or another level. */
MC_API mc_context *mc_plan_context_new_ranks(mc_context *ctx, int ranks, mc_zero_level level);

/* Runs two steps on such a context. Memory that the first one keeps exists in the second. The plan
 * is of the step with the larger peak: the second, except where the first takes more (delayed
 * scales of fp8, which it does not have yet). `sent` and `collectives` are of the second. `module`
 * is any module of the trained model. Errors, set in `dry`: those of the step, and MC_ERR_ARGUMENT
 * for another kind of context. */
MC_API mc_status mc_plan_run(mc_context *dry, mc_module *module,
                             void (*step)(mc_context *ctx, void *user), void *user,
                             mc_memory_plan *plan);

#endif
