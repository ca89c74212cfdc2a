/* The command as one of several ranks: which ranks show something, when all of them stop, and how a
 * rank leaves that cannot go on.
 *
 *     ranks_options o = RANKS_DEFAULTS;
 *     ranks_add_rows(&table, &o);
 *     mc_context *ctx = ranks_start(&o, seed, "cpu", &log);
 *     while (... && !ranks_stop(ctx, step)) step++ ...
 *     return ranks_leave(ctx, code);
 */
#ifndef MC_TOOLS_RANKS_H
#define MC_TOOLS_RANKS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/log/run_log.h"

typedef struct ranks_options {
    int zero_level; /* 0 to 3 */
    mc_grad_dtype grad_dtype;
    double comm_timeout; /* seconds; 0: the library's default */
} ranks_options;

#define RANKS_DEFAULTS  \
    {                   \
        .zero_level = 3 \
    }

/* A heading, --zero-level and --comm-timeout. */
void ranks_add_rows(args_table *table, ranks_options *o);
/* --comm-timeout alone. */
void ranks_add_timeout_row(args_table *table, ranks_options *o);

/* Makes the context of a command that runs on any number of ranks. The log, to which the library's
 * lines go, is silent on every rank but the first; so must run_log_init make it (ranks_silent). */
mc_context *ranks_start(const ranks_options *o, uint64_t seed, const char *device, run_log *log);
bool ranks_silent(const mc_context *ctx);

/* Whether the context has one rank, as the command needs; else sets its error. */
bool ranks_is_single(mc_context *ctx, const char *command);

/* Whether to stop: after an error, or when this or any other rank was interrupted, on which they
 * agree here. Every rank calls it as often; `n` counts the calls. On GPUs, which would have to wait
 * for it, ranks agree at every 16th n only. From the first call on, interrupt_requested says what
 * was agreed on. */
bool ranks_stop(mc_context *ctx, int64_t n, bool gpu);

/* The least of the ranks' numbers, on all of them. NaN after an error. */
double ranks_least(mc_context *ctx, double mine);
/* Their sum, in the same way. */
double ranks_sum(mc_context *ctx, double mine);

/* Ends the job for all ranks over something that this one has shown already. */
void ranks_refuse(mc_context *ctx, const char *message);

/* Prints the context's error, unless this rank has shown it already (`shown`). */
void ranks_print_error(const mc_context *ctx, bool shown);

/* Frees the context and returns the code to leave with. After an error among several ranks it does
 * not return: the process ends at once, since what else runs at its end may wait for ranks that are
 * gone. */
int ranks_leave(mc_context *ctx, int code);

#endif
