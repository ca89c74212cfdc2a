/* The context's fields, how the library raises errors, and how a context comes to own objects. */
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

/* Some ranks of the job that do one kind of work together, and this rank's place among them. */
typedef struct mc_rank_group {
    struct mc_comm *comm; /* NULL with one rank */
    int size, rank;
} mc_rank_group;

/* The groups that this rank is in, by kind of work; core/dist/mesh.c creates them. world = tensor x
 * context x data x pipeline. `tensor` is the fastest axis, so that its ranks are neighbours on a
 * host; context and data follow, and `pipeline` is the slowest. Today tensor, context and pipeline
 * have one rank each in every job. */
typedef struct mc_mesh {
    mc_rank_group world;    /* all ranks: files, errors, output of rank 0 */
    mc_rank_group tensor;   /* its ranks share the work of each layer */
    mc_rank_group context;  /* its ranks have parts of the same sequences */
    mc_rank_group data;     /* its ranks have different rows: of batches, sums, dropout streams */
    mc_rank_group pipeline; /* its ranks have different layers */
    /* data x context: its ranks shard parameters, gradients and state (ZeRO) and sum gradients */
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
    int zero_level;        /* the default of modules, 0 to 3 */
    mc_grad_dtype grad_dtype;
    size_t reduce_bytes;          /* levels 0 and 1: size of one all-reduce of gradients */
    struct mc_open_step *step;    /* core/autograd: begun by an OptimManager; NULL: none */
    struct mc_autograd *autograd; /* core/autograd: created with the first tape */
    struct mc_steps *steps;       /* core/autograd: created with the first recorded step */
    struct mc_blank *blanks;      /* core/autograd: lazily zeroed gradients */
    /* core/checkpoint: the queue of shared files that a thread writes later (NULL: they are written
     * at once), and the checkpoint that is being written now (NULL: none) */
    struct mc_save_queue *save_queue;
    struct mc_saving *saving;
    size_t new_folders; /* core/checkpoint: mc_make_new_folders' of mc_model_folder_begin */
    int64_t saved_step; /* of the newest checkpoint that was saved completely; 0: none yet */
    /* core/inspect, while mc_record takes statistics: the recorder, and the function by which block
     * lists record each block's output under its full name; else NULL */
    struct mc_recorder *recorder;
    struct mc_tensor *(*record_block)(struct mc_tape *t, const struct mc_module *block,
                                      struct mc_tensor *x);
    const struct mc_home *home; /* core/zero: set while optimizer state is on the host; else NULL */
};

/* Sets the context's error if it has none; returns `status`. Accepts ctx == NULL. */
#define mc_fail(ctx, status, ...) mc_fail_at((ctx), (status), __FILE__, __LINE__, __VA_ARGS__)
mc_status mc_fail_at(mc_context *ctx, mc_status status, const char *file, int line,
                     const char *format, ...) MC_PRINTF(5, 6);
/* mc_fail with MC_ERR_NOMEM, naming what the memory was for. */
#define mc_fail_nomem(ctx, what) mc_fail((ctx), MC_ERR_NOMEM, "out of memory for %s", (what))

/* Whether a required pointer of a public function is not NULL. If it is NULL, sets the context's
 * error, which names the function and the argument: "mc_model_save: folder is NULL". */
#define mc_given(ctx, argument) mc_given_as((ctx), (argument), #argument)
/* The same if the header's name of the argument differs. */
#define mc_given_as(ctx, argument, name) \
    mc_given_at((ctx), (argument) != NULL, __func__, (name), __FILE__, __LINE__)
bool mc_given_at(mc_context *ctx, bool given, const char *function, const char *argument,
                 const char *file, int line);

/* Logs one line through the context's callback, if there is one. */
void mc_log(mc_context *ctx, mc_log_level level, const char *format, ...) MC_PRINTF(3, 4);

/* A context of one rank with the seed of `ctx` and no log, on another device, which it owns from
 * now on. Returns NULL if memory is out, after closing the device. */
mc_context *mc_context_new_like(const mc_context *ctx, mc_device *device);

/* Registers `object`, to be freed by `free_object` when the context is; mc_disown takes it off the
 * list again (an object's own free function calls it first). */
void mc_own(mc_context *ctx, mc_owned *link, void *object, void (*free_object)(void *));
void mc_disown(mc_owned *link);

/* calloc of a context-owned object whose first member is `mc_owned owned`. On failure sets the
 * context's error (naming `what`) and returns NULL; also NULL when the context has failed
 * already. */
void *mc_new_owned(mc_context *ctx, size_t size, const char *what, void (*free_object)(void *));

/* The value of an option: `fallback` if it is a plain zero; MC_TRUE_ZERO gives zero. */
static inline float mc_option(float value, float fallback)
{
    return value != 0 || signbit(value) ? value + 0.0f : fallback;
}
/* The same for an integer, for which MC_INT_ZERO gives zero. */
static inline int64_t mc_option_int(int64_t value, int64_t fallback)
{
    return value == MC_INT_ZERO ? 0 : value != 0 ? value : fallback;
}
/* The first option unless it is the default, else the second. The result is again an option. */
static inline float mc_option_or(float value, float other)
{
    return value != 0 || signbit(value) ? value : other;
}

#endif
