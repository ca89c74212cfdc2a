/* A context's place in its job, which it joins when it is created. */
#ifndef MC_DIST_WORLD_INTERNAL_H
#define MC_DIST_WORLD_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/dist/mesh_internal.h"

/* Reads the launcher's variables (launch_internal.h) and sets the context's rank and world size.
 * Called before the device is opened, because the local rank selects the GPU. */
void mc_world_read(mc_context *ctx);
/* This process's number on its host from the launcher's variables; 0 if unknown. */
int mc_world_local_rank(void);
/* With more than one rank: connects to the others over the control channel and creates the
 * communicators of ctx->mesh. Called when the device is open. Errors go to the context. */
void mc_world_join(mc_context *ctx, double timeout);
enum { MC_THREADS_MAX = 1024 }; /* OpenMP ends the program if it cannot create a thread */
/* Applies mc_init_options.threads to the calling thread, which is the context's. With
 * MC_THREADS_SHARED each CPU rank uses its share of the cores: its cores divided by the ranks of
 * its host that may run on them too, unless OMP_NUM_THREADS is set. That is collective. */
void mc_world_set_threads(mc_context *ctx);
/* The number of ranks that share cores with this one, itself included; *number of them have lower
 * numbers. Collective. */
int mc_world_sharing_cores(mc_context *ctx, int *number);
/* Binds the calling thread, and threads that it creates, to part `number` of this process's cores,
 * which `sharing` ranks share. Returns the number of threads to run there: one per core, but with
 * four or more cores one fewer, for the context's thread. If MC_OFFLOAD_THREADS (up to 1024) is
 * set, returns it and binds nothing. */
int mc_world_take_cores(int sharing, int number);
/* Leaves the job; not collective. */
void mc_world_leave(mc_context *ctx);
/* Reports this rank's first error to the other ranks. */
void mc_world_report(mc_context *ctx);

/* The ranks of the job on this host, this one included. */
int mc_world_ranks_here(const mc_context *ctx);

/* For other threads than the context's: report an error to all ranks; check whether the job has
 * failed, which sets *error if it holds none. */
void mc_world_report_error(const mc_context *ctx, const mc_error *error);
bool mc_world_failed(const mc_context *ctx, mc_error *error);

#endif
