/* The engine of AdamOffload: a host thread that copies gradients from the GPU, sums and measures
 * them, updates parameters and copies them back, concurrently with the GPU.
 *
 * The thread works through a queue of jobs in order, using the rank's cores. The context's thread
 * adds numbered jobs, and waits for a job by its number. Two lanes (device_internal.h) carry the
 * copies, one to the host (down) and one to the GPU (up), through pinned slots of a few MiB, used
 * in turn: while one chunk is copied, the previous one is processed.
 *
 *     context's thread       ... backward of a block | reduce | gradient job  ... step | jobs ...
 *     GPU                    backward ------------------------------------- decide  forward ----
 *     down lane                          gradient of the block before ->     step's update ->
 *     engine's thread                    add up, measure                     update by buckets
 *     up lane                                                                parameters ->
 *
 * adam_offload.c explains the layout of buckets; jobs here see only plain arrays. An error of the
 * thread is kept and raised in the context by the next function that waits; until then later jobs
 * do nothing. */
#ifndef MC_OPTIM_OFFLOAD_INTERNAL_H
#define MC_OPTIM_OFFLOAD_INTERNAL_H

#include "core/zero/zero_internal.h"

typedef struct mc_offload mc_offload;

/* Elements whose gradients are measured together: this rank's shard of a parameter. */
typedef struct mc_host_part {
    int64_t first, count; /* of the arrays; non-finite elements are numbered from `first` */
    mc_gradient_stats stats;
} mc_host_part;

/* Adds a gradient to the sums. These are f32, except if the gradient is planned to be the only one:
 * then it is kept in its dtype, at the start of the same memory, which saves memory traffic. */
typedef struct mc_gradient_job {
    const void *from; /* device memory; NULL: adds nothing, only measures the sums */
    mc_dtype dtype;   /* of `from`: MC_F32, MC_F16, MC_BF16 */
    bool set;         /* overwrites the undefined sums by the gradient (without one: by zeros) */
    void *sum;        /* (count) on the host, with room for f32 */
    bool direct;      /* `set`, `is` == `dtype` and `sum` is pinned: copies directly */
    /* sums' dtypes before (unless `set`) and after; `is` may have 16 bits if it is `was`, without a
     * gradient, or if it is `dtype` and `set` */
    mc_dtype was, is;
    int64_t count;
    mc_host_part *parts; /* measured anew; NULL: not measured */
    int part_count;
    double power; /* the p of the norm */
} mc_gradient_job;

/* An Adam update of `count` consecutive elements. All but `parameter` are in host memory. */
typedef struct mc_update_job {
    int64_t count;
    mc_adam_step step; /* step.update: see mc_offload_copy_update */
    mc_matrix gradient;
    float *m, *v, *master;
    void *parameter;    /* device memory */
    mc_dtype dtype;     /* of the parameter */
    mc_fence *uploaded; /* set after the last copy on the up lane */
} mc_update_job;

/* Whether optimizers of this context may keep state on the host: on GPUs always; on the CPU, where
 * state is in host memory anyway, only with MC_OFFLOAD=always, for tests. */
bool mc_offload_is_wanted(const mc_context *ctx);
/* The context's engine, created by the first call, as a home with these functions. The last of as
 * many calls of close frees it, after its jobs. The home's device allocates host memory; on a
 * planning context it only counts. NULL with the error set (MC_ERR_NOMEM, MC_ERR_DEVICE) if it
 * cannot be created. */
const mc_home *mc_offload_open(mc_context *ctx, const mc_home *functions);
void mc_offload_close(mc_offload *e);
/* The engine of a home; NULL: none. */
mc_offload *mc_offload_of(const mc_home *home);

/* Bytes of the pinned buffers that an engine will allocate; 0 if it exists already. */
uint64_t mc_offload_pinned_needed(const mc_context *ctx);

/* Jobs. Each returns its number, 0 after an error (set on the context). They see device memory as
 * earlier launches leave it. `from` and all arrays must stay valid until the job is done. */
uint64_t mc_offload_gradient(mc_offload *e, const mc_gradient_job *job);
uint64_t mc_offload_update(mc_offload *e, const mc_update_job *job);
/* Copies *update from the device to *host_update, memory of host_alloc; later update jobs wait for
 * it. */
uint64_t mc_offload_copy_update(mc_offload *e, const mc_update *update, mc_update *host_update);

/* Pins host memory so that gradients can be copied there (job.direct), until mc_offload_unpin,
 * before which all jobs must be done; that waits for copies. False if the system refuses: this is
 * logged, and not tried again. */
bool mc_offload_pin(mc_offload *e, void *host, size_t bytes);
void mc_offload_unpin(mc_offload *e, void *host);

/* Passes ownership of device memory that later calls free when job `number` is done. At most two
 * such buffers are kept: a third waits for the oldest. */
void mc_offload_lend(mc_offload *e, uint64_t number, void *data, size_t bytes);

/* The number of the newest job. */
uint64_t mc_offload_given(const mc_offload *e);
/* Waits until a job and all earlier ones are done, or all jobs. e NULL: does nothing. */
mc_status mc_offload_wait(mc_offload *e, uint64_t number);
mc_status mc_offload_finish(mc_offload *e);

#endif
