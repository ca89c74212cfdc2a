/* What tests of communicators share. Each rank is a process that mpirun has started (or the only
 * one). Include after cmocka.h. */
#ifndef MC_TESTS_COMM_TEST_H
#define MC_TESTS_COMM_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/dist/comm_internal.h"
#include "core/dist/launch_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

/* Looks for leaks now, and not at the process's end: MPI has unloaded its parts then, and what
 * those have not freed could not be told from what we have not. */
static inline void check_leaks(void)
{
#ifdef __SANITIZE_ADDRESS__
    __lsan_do_leak_check();
#endif
}

#define assert_good(ctx) \
    if (mc_failed(ctx)) fail_msg("rank %d: %s", my_rank(), mc_error_message(ctx))

static inline mc_launch launched(void)
{
    mc_error error = {0};
    mc_launch launch;
    if (mc_launch_read(&error, &launch)) fail_msg("%s", error.message);
    return launch;
}

static inline int my_rank(void) { return launched().rank; }
static inline int ranks(void) { return launched().world_size; }

/* A context that knows of no other ranks: what is tested here are communicators alone. */
static inline mc_context *new_context(void)
{
    mc_context *ctx = mc_context_new(NULL);
    assert_good(ctx);
    return ctx;
}

static inline mc_comm *new_world(mc_context *ctx, double timeout)
{
    return mc_comm_new(ctx, NULL, ranks(), my_rank(), &(mc_comm_options){.timeout = timeout});
}

#endif
