/* The engine behind AdamOffload: a thread of the host that takes gradients from the GPU, adds them
 * up, measures them, updates parameters and sends them back, beside what the GPU computes.
 *
 * One thread works off a queue of jobs in order, with a team of the rank's cores. The context's
 * thread gives it jobs, and learns by number which of them are done. Two lanes (device_internal.h)
 * carry the copies, one down and one up, through pinned slots of a few MiB that are used in turn:
 * while one chunk is on its way, the one before is worked on.
 *
 *     context's thread       ... backward of a block | reduce | gradient job  ... step | jobs ...
 *     GPU                    backward ------------------------------------- decide  forward ----
 *     down lane                          gradient of the block before ->     step's update ->
 *     engine's thread                    add up, measure                     update by buckets
 *     up lane                                                                parameters ->
 *
 * What lies where: adam_offload.c. Here jobs know plain arrays only. Errors of the thread are kept,
 * and raised in the context by the next call here that waits; until then later jobs do nothing. */
#ifndef MC_OPTIM_OFFLOAD_INTERNAL_H
#define MC_OPTIM_OFFLOAD_INTERNAL_H

#include "core/zero/zero_internal.h"

typedef struct mc_offload mc_offload;

/* Elements whose gradients are measured together: a parameter's, as far as this rank holds them. */
typedef struct mc_host_part {
    int64_t first, count; /* of the arrays; non-finite elements are numbered from `first` on */
    mc_gradient_stats stats;
} mc_host_part;

/* A gradient's way into the sums. These are f32, but for a gradient that is expected to be the only
 * one: it is kept as it came, in the beginning of the same memory: less to be written and read. */
typedef struct mc_gradient_job {
    const void *from; /* device memory; NULL: what is summed so far is measured and nothing added */
    mc_dtype dtype;   /* of `from`: MC_F32, MC_F16, MC_BF16 */
    bool set;         /* the sums are undefined and get the gradient alone (without one: zeros) */
    void *sum;        /* (count) on the host, with room for f32 */
    bool direct;      /* `set`, `is` is `dtype` and `sum` is pinned: the gradient is copied there */
    mc_dtype was, is; /* the sums' before (unless `set`) and after; `is` may be of 16 bits where it
                         is `was`, without a gradient, or where it is `dtype` and `set` */
    int64_t count;
    mc_host_part *parts; /* to be measured, afresh; NULL: not now */
    int part_count;
    double power; /* the p of the norm */
} mc_gradient_job;

/* One Adam update of `count` neighbours. All but `parameter` lie on the host. */
typedef struct mc_update_job {
    int64_t count;
    mc_adam_step step; /* step.update: see mc_offload_tell */
    mc_matrix gradient;
    float *m, *v, *master;
    void *parameter;    /* device memory */
    mc_dtype dtype;     /* of the parameter */
    mc_fence *uploaded; /* set when all copies are on the up lane */
} mc_update_job;

/* Whether optimizers of this context may keep state on the host: on GPUs; on the CPU, where state
 * is there anyway, if the environment says MC_OFFLOAD=always, for tests. */
bool mc_offload_is_wanted(const mc_context *ctx);
/* The context's engine, made at the first call, as a home with these functions; as many calls of
 * close end it, after its jobs. The home's device is of host memory; on a context that plans, one
 * that only counts. Sets the error (MC_ERR_NOMEM, MC_ERR_DEVICE) and returns NULL when it cannot be
 * made. */
const mc_home *mc_offload_open(mc_context *ctx, const mc_home *functions);
void mc_offload_close(mc_offload *e);
/* The engine of a home; NULL: none. */
mc_offload *mc_offload_of(const mc_home *home);

/* Bytes of the pinned buffers that an engine will take; 0 where there is one already. */
uint64_t mc_offload_pinned_needed(const mc_context *ctx);

/* Jobs. Each returns its number, 0 after an error (set on the context). They see the device's
 * memory as what was launched before leaves it. `from` and all arrays must stay until the job is
 * done. */
uint64_t mc_offload_gradient(mc_offload *e, const mc_gradient_job *job);
uint64_t mc_offload_update(mc_offload *e, const mc_update_job *job);
/* Copies *update from the device to *told, memory of host_alloc: the updates after it obey it. */
uint64_t mc_offload_tell(mc_offload *e, const mc_update *update, mc_update *told);

/* Lets gradients be copied to memory of the host (job.direct) until it is unpinned, for which all
 * jobs have to be done; copies are waited for. False: the system does not want that; it is logged,
 * and not asked again. */
bool mc_offload_pin(mc_offload *e, void *host, size_t bytes);
void mc_offload_unpin(mc_offload *e, void *host);

/* Hands device memory over that is to be freed when job `number` is done, which later calls find
 * out. At most two are kept so: it waits for the oldest. */
void mc_offload_lend(mc_offload *e, uint64_t number, void *data, size_t bytes);

/* The number of the newest job. */
uint64_t mc_offload_given(const mc_offload *e);
/* Waits until a job and all before it are done, or all that there are. e NULL: nothing. */
mc_status mc_offload_wait(mc_offload *e, uint64_t number);
mc_status mc_offload_finish(mc_offload *e);

#endif
