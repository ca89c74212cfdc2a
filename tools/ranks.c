#include "tools/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/log/download_bar.h"
#include "tools/train/interrupt.h"

enum { GPU_PERIOD = 16 }; /* steps */

void ranks_add_rows(args_table *table, ranks_options *o)
{
    ARGS_ADD(table,
             {ARGS_HEADING("Several ranks (on several hosts: MC_JOB_SECRET_FILE, docs/ranks.md)")},
             {ARGS_INT("zero-level", &o->zero_level, 0, 3,
                       "what is sharded over ranks: 0 nothing, 1 optimizer state, 2 gradients too, "
                       "3 parameters too"),
              .known_as = "zero-stage,zero"});
    ranks_add_timeout_row(table, o);
}

void ranks_add_timeout_row(args_table *table, ranks_options *o)
{
    ARGS_ADD(table, {ARGS_REAL("comm-timeout", &o->comm_timeout, 0, 1e7,
                               "seconds until a rank that waits for others gives up"),
                     .default_text = "MC_COMM_TIMEOUT, else 300"});
}

/* The command joins its job once. After that the secret's text leaves the environment, which other
 * processes of the user can read, and which programs inherit. */
static void forget_secret(void)
{
    char *text = getenv("MC_JOB_SECRET");
    if (!text) return;
    explicit_bzero(text, strlen(text));
    unsetenv("MC_JOB_SECRET");
}

mc_context *ranks_start(const ranks_options *o, uint64_t seed, const char *device, run_log *log)
{
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = seed,
                           .threads = MC_THREADS_SHARED,
                           .device = device,
                           .log = run_log_library_line,
                           .log_user = log,
                           .download = download_bar_show,
                           .download_user = log,
                           .zero_level = (mc_zero_level)((int)MC_ZERO_0 + o->zero_level),
                           .grad_dtype = o->grad_dtype,
                           .comm_timeout = o->comm_timeout});
    forget_secret();
    log->silent = ranks_silent(ctx);
    return ctx;
}

bool ranks_silent(const mc_context *ctx) { return mc_rank(ctx) != 0; }

bool ranks_is_single(mc_context *ctx, const char *command)
{
    if (mc_failed(ctx)) return false;
    if (mc_world_size(ctx) == 1) return true;
    mc_set_error(ctx, MC_ERR_UNSUPPORTED,
                 "modelcenter %s runs on one rank, but %d were started: start it without mpirun, "
                 "srun or torchrun",
                 command, mc_world_size(ctx));
    return false;
}

bool ranks_stop(mc_context *ctx, int64_t n, bool gpu)
{
    int ranks = mc_world_size(ctx);
    if (mc_failed(ctx) || ranks == 1) return mc_failed(ctx) || interrupt_requested();
    interrupt_share();
    if (!interrupt_requested() && n % (gpu ? GPU_PERIOD : 1) == 0) {
        double mine = interrupt_signal() != 0;
        if (-ranks_least(ctx, -mine) > 0) interrupt_agree();
    }
    return mc_failed(ctx) || interrupt_requested();
}

double ranks_least(mc_context *ctx, double mine)
{
    int ranks = mc_world_size(ctx);
    double *all = calloc((size_t)ranks, sizeof *all), least = mine;
    if (!all) mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for the numbers of all ranks");
    mc_gather_numbers(ctx, &mine, 1, all);
    for (int r = 0; !mc_failed(ctx) && r < ranks; r++)
        if (all[r] < least) least = all[r];
    free(all);
    return mc_failed(ctx) ? (double)NAN : least;
}

double ranks_sum(mc_context *ctx, double mine)
{
    mc_sum_numbers(ctx, &mine, 1);
    return mc_failed(ctx) ? (double)NAN : mine;
}

void ranks_refuse(mc_context *ctx, const char *message)
{
    if (mc_world_size(ctx) > 1 && !mc_failed(ctx)) mc_set_error(ctx, MC_ERR_STATE, "%s", message);
}

void ranks_print_error(const mc_context *ctx, bool shown)
{
    if (!shown) mc_print_error(ctx, stderr);
}

int ranks_leave(mc_context *ctx, int code)
{
    bool at_once = mc_failed(ctx) && mc_world_size(ctx) > 1;
    mc_context_free(ctx);
    if (!at_once) return code;
    fflush(NULL);
    _exit(code);
}
