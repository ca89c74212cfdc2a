/* The context's inside, and how the library raises errors and registers what a context owns. */
#ifndef MC_BASE_CONTEXT_INTERNAL_H
#define MC_BASE_CONTEXT_INTERNAL_H

#include <math.h>
#include "core/base/context.h"
#include "core/base/error_internal.h"
#include "core/base/memory_internal.h"

/* A link in the context's list of owned objects. Embed one in every object that a context frees. */
typedef struct mc_owned {
    struct mc_owned *previous, *next;
    void (*free)(void *object);
    void *object;
} mc_owned;

typedef struct mc_device mc_device; /* core/device/device_internal.h */

/* Some ranks of the job, which do one thing together, and this rank's place among them. */
typedef struct mc_rank_group {
    struct mc_comm *comm; /* NULL with one rank */
    int size, rank;
} mc_rank_group;

/* The groups that this rank is in, by what they do together; core/dist/mesh.c makes them. world =
 * tensor x context x data x pipeline: of these, `tensor` is the fastest axis, so that its ranks
 * are neighbours on a host, then come context and data, and `pipeline` is the slowest. So far
 * tensor, context and pipeline have one rank in every job; a plan may have more. */
typedef struct mc_mesh {
    mc_rank_group world;    /* all ranks: files, errors, what rank 0 prints */
    mc_rank_group tensor;   /* share the work of each layer */
    mc_rank_group context;  /* have parts of the same sequences */
    mc_rank_group data;     /* have other rows: batches, sums over them, streams of dropout */
    mc_rank_group pipeline; /* have other layers */
    /* data x context: share parameters, gradients and optimizer state (ZeRO), and sum gradients */
    mc_rank_group shard;
} mc_mesh;

struct mc_tape;
struct mc_module;

struct mc_context {
    mc_error error;
    uint64_t seed;
    uint64_t rng_offset; /* counter of dropout calls: the Philox offset of the next one */
    mc_mesh mesh;
    int local_rank;         /* on this host; -1: unknown */
    int threads;            /* mc_init_options.threads */
    struct mc_world *world; /* core/dist: how it was started; NULL for a single context */
    mc_log_fn log;
    void *log_user;
    mc_download_fn download;
    void *download_user;
    mc_owned owned; /* list head; the newest object comes first and is freed first */
    mc_device *device;
    struct mc_comm *alone; /* core/dist: mc_context_comm of a program with one rank */
    int zero_level;        /* of modules that say nothing else: 0 to 3 */
    mc_grad_dtype grad_dtype;
    size_t reduce_bytes; /* levels 0 and 1: of gradients that are summed over ranks together */
    struct mc_open_step *step;    /* core/autograd: that an OptimManager has begun; NULL: none */
    struct mc_autograd *autograd; /* core/autograd: made with the first tape */
    struct mc_steps *steps;       /* core/autograd: made with the first recorded step */
    struct mc_blank *blanks;      /* core/autograd: gradients that stand for zeros */
    /* core/checkpoint: where shared files go that are written later, NULL: they are written at
     * once; and the checkpoint that is being written now, NULL: none */
    struct mc_save_queue *save_queue;
    struct mc_saving *saving;
    int64_t saved_step; /* of the newest checkpoint that was saved whole; 0: none yet */
    /* core/inspect: while mc_record takes statistics, and for block lists mc_record of a block's
     * output, under the block's full name; else NULL */
    struct mc_recorder *recorder;
    struct mc_tensor *(*record_block)(struct mc_tape *t, const struct mc_module *block,
                                      struct mc_tensor *x);
    const struct mc_home *home; /* core/zero: while optimizer state lies on the host; else NULL */
};

/* Sets the context's error if it has none; gives back `status`. Accepts ctx == NULL. */
#define mc_fail(ctx, status, ...) mc_fail_at((ctx), (status), __FILE__, __LINE__, __VA_ARGS__)
mc_status mc_fail_at(mc_context *ctx, mc_status status, const char *file, int line,
                     const char *format, ...) MC_PRINTF(5, 6);
/* mc_fail with MC_ERR_NOMEM, naming what the memory was for. */
#define mc_fail_nomem(ctx, what) mc_fail((ctx), MC_ERR_NOMEM, "out of memory for %s", (what))

/* Whether a pointer that a public function requires is there. If it is NULL, sets the context's
 * error, with the function's name and the argument's: "mc_model_save: folder is NULL". */
#define mc_given(ctx, argument) mc_given_as((ctx), (argument), #argument)
/* The same where the header names the argument otherwise. */
#define mc_given_as(ctx, argument, name) \
    mc_given_at((ctx), (argument) != NULL, __func__, (name), __FILE__, __LINE__)
bool mc_given_at(mc_context *ctx, bool given, const char *function, const char *argument,
                 const char *file, int line);

/* Logs one line through the context's callback, if there is one. */
void mc_log(mc_context *ctx, mc_log_level level, const char *format, ...) MC_PRINTF(3, 4);

/* A context of one rank like `ctx` (its seed; without a log) on another device, which it owns from
 * now on. NULL when memory is out; the device is closed then. */
mc_context *mc_context_new_like(const mc_context *ctx, mc_device *device);

/* Registers `object`, to be freed by `free_object` when the context is; mc_disown takes it off the
 * list again (an object's own free function calls it first). */
void mc_own(mc_context *ctx, mc_owned *link, void *object, void (*free_object)(void *));
void mc_disown(mc_owned *link);

/* calloc of a context-owned object whose first member is `mc_owned owned`. On failure sets the
 * context's error (naming `what`) and returns NULL; also NULL when the context has failed
 * already. */
void *mc_new_owned(mc_context *ctx, size_t size, const char *what, void (*free_object)(void *));

/* The value of an option: `fallback` where it is a plain zero; MC_TRUE_ZERO is zero. */
static inline float mc_option(float value, float fallback)
{
    return value != 0 || signbit(value) ? value + 0.0f : fallback;
}
/* The same of an integer, where MC_INT_ZERO is zero. */
static inline int64_t mc_option_int(int64_t value, int64_t fallback)
{
    return value == MC_INT_ZERO ? 0 : value != 0 ? value : fallback;
}
/* One of two options, still as an option. */
static inline float mc_option_or(float value, float other)
{
    return value != 0 || signbit(value) ? value : other;
}

#endif
