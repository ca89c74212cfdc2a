/* The context: where errors stick, what owns everything, and how a process takes part in a job.
 *
 * Every object of the library is made from a context and freed with it. A context belongs to one
 * thread at a time; two contexts in one process are independent.
 *
 * Errors. The context keeps the first error. While one is set, operations and constructors do
 * nothing and return NULL, functions that return numbers return NaN, and accessors on NULL return
 * zero values. So a whole program is written without checks and checked where it matters:
 *
 *     mc_context *ctx = mc_init_distributed(&(mc_init_options){ .seed = 42 });
 *     ...
 *     if (mc_failed(ctx)) return mc_print_error(ctx, stderr);
 *
 * NULL for an argument that a function requires is an error of its context, MC_ERR_ARGUMENT, which
 * names both: "mc_model_save: folder is NULL". Functions without a context return a status or a
 * zero value.
 *
 * Return values. A function that can fail returns the object it creates (NULL after an error), a
 * number (NaN after an error), or an mc_status; a bool answers a question. Numbers measured or
 * counted on the host are double. Options passed to kernels, and tensor elements, are float.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_BASE_CONTEXT_H
#define MC_BASE_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "core/base/status.h"
#include "core/base/version.h"

/* In options NULL, 0, false and an enum's _DEFAULT mean the default. If zero is itself a useful
 * value, these set it: MC_TRUE_ZERO (negative zero) in options of type float or double, MC_INT_ZERO
 * in options of an integer type. */
#define MC_TRUE_ZERO (-0.0f)
#define MC_INT_ZERO INT32_MIN

typedef struct mc_context mc_context;

typedef enum mc_log_level { MC_LOG_INFO = 0, MC_LOG_WARNING = 1 } mc_log_level;

/* Receives one line (no newline) for each notice that is not an error: a newly initialised head, an
 * unused tensor in a file, NaN in loaded weights. */
typedef void (*mc_log_fn)(void *user, mc_log_level level, const char *line);

/* How far a download from the hub (core/hub/hub.h) has come. */
typedef struct mc_download {
    const char *repository; /* "openai-community/gpt2" */
    const char *file;       /* being fetched; NULL: before the first and after the last, and while
                               another process downloads the same repository */
    int64_t done, total;    /* bytes of the call's files; the total grows as sizes become known */
    bool finished;          /* last report of this download, which succeeded or failed */
} mc_download;

/* Receives the progress of a download, ten times a second or so, on the thread that waits for it.
 * False ends the download with MC_ERR_INTERRUPTED; what has arrived is kept for the next try. */
typedef bool (*mc_download_fn)(void *user, const mc_download *progress);

/* How parameters, gradients and optimizer state are spread over ranks (Rajbhandari et al. 2020);
 * one rank holds it all at any level. Of biases and norms in blocks only the state is sharded. */
typedef enum mc_zero_level {
    MC_ZERO_DEFAULT = 0, /* the level in mc_init_options */
    MC_ZERO_0,           /* replicated */
    MC_ZERO_1,           /* optimizer state sharded */
    MC_ZERO_2,           /* and gradients */
    MC_ZERO_3,           /* and parameters: each rank holds its shard, and a block's are gathered
                            while it runs */
} mc_zero_level;

/* The dtype in which ranks exchange gradients, and in which blocks (block_list.h) store a gradient
 * that a single backward pass computes. Sums over several backward passes are always f32.
 *
 * With MC_GRAD_PARAMETER blocks of f16 or bf16 write gradients of matrices in that dtype: at levels
 * 2 and 3 in every pass; at levels 0 and 1, and on one rank at any, if a step has one backward pass
 * (mc_step_plan). Each of these gradients is rounded once and stored rounded, which halves gradient
 * memory and what norms and optimizers read. Gradients outside of blocks (embeddings, even if tied
 * to a head) stay f32, and so do those of biases and norms, which blocks exchange as f32. If a step
 * has more passes than planned, gradients are f32 from the second pass on and in all later steps.
 * However, the passes of one tape, or of tapes open at the same time, are added with rounding. At
 * levels 2 and 3 with several ranks and one pass a step, each rank also stores its shard of the
 * sums in the parameters' dtype, in half the memory of f32. A second pass makes the shard f32. */
typedef enum mc_grad_dtype {
    MC_GRAD_DEFAULT = 0, /* as MC_GRAD_F32 */
    MC_GRAD_F32,         /* exact up to the order of additions; stored, and passed to optimizers, in
                            f32 */
    MC_GRAD_PARAMETER,   /* the parameters' dtype: half the bytes for f16 and bf16, rounded before
                            sending and, by some transports, at each addition */
} mc_grad_dtype;

/* mc_init_options.threads: ranks divide the cores that they share. */
#define MC_THREADS_SHARED (-1)

typedef struct mc_init_options {
    uint64_t seed; /* of initialisation, dropout and shuffling; 0 is a seed like any other */
    /* "cpu" (default), "cuda", or "cuda:1" for the GPU of that number among those that CUDA shows;
     * "cuda" takes the GPU whose number is the rank's number on its host, or the only GPU. The
     * library makes it the thread's current GPU only while one of its functions runs. The GPU that
     * a program has selected (cudaSetDevice) stays selected; if it has selected none, that stays
     * so. */
    const char *device;
    mc_log_fn log; /* NULL: nothing is logged; the library itself never prints */
    void *log_user;
    mc_download_fn download; /* called as downloads proceed; NULL: no calls */
    void *download_user;
    mc_zero_level zero_level; /* for models whose own options leave the default; default:
                                 MC_ZERO_3 */
    mc_grad_dtype grad_dtype; /* see mc_grad_dtype; default: MC_GRAD_F32 */
    double comm_timeout;      /* seconds that a rank waits for others; 0: the environment variable
                            MC_COMM_TIMEOUT, else 300 */
    /* Threads of the CPU kernels, set by omp_set_num_threads for the calling thread. Above 0: this
     * many. MC_THREADS_SHARED, on every CPU rank: the rank's part of the host's cores, unless
     * OMP_NUM_THREADS is set. 0: OpenMP's own number. */
    int threads;
} mc_init_options;

/* Creates a context of one rank. Ignores any launcher and connects to no other rank. "cuda" selects
 * the GPU of the process's number on its host. `options` may be NULL. Returns NULL only if memory
 * is out. */
static inline mc_context *mc_context_new(const mc_init_options *options);

/* Creates a context of this rank of a job. Detects the launcher (torchrun or torch.distributed by
 * RANK and WORLD_SIZE, Open MPI, Slurm, PMI). With more than one rank, connects to rank 0 over TCP
 * (at MASTER_ADDR and port MASTER_PORT + 1, or MC_MASTER_PORT), and then to all ranks over MPI on
 * CPUs or NCCL on GPUs. Ranks prove to each other that they know the job's secret. On several hosts
 * without MPI it comes from MC_JOB_SECRET_FILE or MC_JOB_SECRET; without it they fail at once. A
 * rank that has not joined by the timeout is an error that names it, and so is a rank with another
 * seed, zero_level, grad_dtype or MC_THREADS_SHARED. The first error of any rank reaches all.
 * `options` may be NULL. Returns NULL only when memory is out; every function accepts that NULL as
 * a failed context. */
static inline mc_context *mc_init_distributed(const mc_init_options *options);

/* The two functions above call these with the MC_API_VERSION that the program was compiled with. If
 * the library's version differs, `options` is not read, and the returned context has failed with
 * MC_ERR_UNSUPPORTED. For programs that look functions up by name. */
MC_API mc_context *mc_context_new_as(int api_version, const mc_init_options *options);
MC_API mc_context *mc_init_distributed_as(int api_version, const mc_init_options *options);
static inline mc_context *mc_context_new(const mc_init_options *options)
{
    return mc_context_new_as(MC_API_VERSION, options);
}
static inline mc_context *mc_init_distributed(const mc_init_options *options)
{
    return mc_init_distributed_as(MC_API_VERSION, options);
}

/* Frees the context and every object created from it. NULL is allowed. */
MC_API void mc_context_free(mc_context *ctx);

MC_API int mc_rank(const mc_context *ctx);       /* 0-based; 0 for a single process */
MC_API int mc_world_size(const mc_context *ctx); /* 1 for a single process */
/* This rank's index among the ranks that divide the rows of a batch, and the number of these ranks.
 * Today these are all ranks, in their order. */
MC_API int mc_data_rank(const mc_context *ctx);
MC_API int mc_data_size(const mc_context *ctx);
MC_API uint64_t mc_seed(const mc_context *ctx);

/* Whether an error is set (or ctx is NULL). */
MC_API bool mc_failed(const mc_context *ctx);
/* The status of the first error, MC_OK without one, MC_ERR_NOMEM for a NULL context. */
MC_API mc_status mc_error_status(const mc_context *ctx);
/* The message of the first error, "" without one. Valid until the error is cleared. */
MC_API const char *mc_error_message(const mc_context *ctx);
/* Prints "error: <message> (<status text>; while ...; raised at file:line)" and a newline to
 * `stream` (NULL: nowhere), as mc_print_text. Returns 1, so that main() can return it; 0 when no
 * error is set. */
MC_API int mc_print_error(const mc_context *ctx, FILE *stream);
/* Prints a UTF-8 text (NULL: none) for people to read: control characters, but for newlines and
 * tabs, as "\x1b", since a terminal would obey those that a file holds. */
MC_API void mc_print_text(FILE *stream, const char *text);
/* Sets an error of the program's own, as if an operation had failed; an earlier error stays. In a
 * job of several ranks the error reaches all of them, so that none waits for a rank that has
 * failed. Returns `status`. */
#define mc_set_error(ctx, status, ...) \
    mc_set_error_at((ctx), (status), __FILE__, __LINE__, __VA_ARGS__)
MC_API mc_status mc_set_error_at(mc_context *ctx, mc_status status, const char *file, int line,
                                 const char *format, ...) MC_PRINTF(5, 6);
/* Ends the error state; the context is usable again. */
MC_API void mc_clear_error(mc_context *ctx);

/* printf on one rank only (to stdout, flushed). Does nothing on the others or on a failed
 * context. */
MC_API void mc_print_rank(mc_context *ctx, int rank, const char *format, ...) MC_PRINTF(3, 4);

/* The version of the library that is running, e.g. "0.1.0"; compare with MC_VERSION.
 * core/about/about.h reports its commit and built-in parts. */
MC_API const char *mc_version(void);

#endif
