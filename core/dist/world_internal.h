/* A context's place in its job: joined when the context is made. */
#ifndef MC_DIST_WORLD_INTERNAL_H
#define MC_DIST_WORLD_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/dist/mesh_internal.h"

/* Reads who started this process (launch_internal.h) and sets the context's rank and world size.
 * Called before the device is opened: on a GPU machine the local rank chooses the GPU. */
void mc_world_read(mc_context *ctx);
/* This process's number on its host by the launcher's variables; 0 where nothing says. */
int mc_world_local_rank(void);
/* With more than one rank: meets the others over the control channel and makes the communicators
 * of ctx->mesh. Called when the device is open. Errors stay on the context. */
void mc_world_join(mc_context *ctx, double timeout);
enum { MC_THREADS_MAX = 1024 }; /* OpenMP ends the program where it gets no thread */
/* What mc_init_options.threads asks for, on the calling thread, whose context it is.
 * MC_THREADS_SHARED has each CPU rank use as many threads as there are cores for it, its cores
 * divided by the ranks of its host that may run on them too; OMP_NUM_THREADS in the environment
 * says otherwise. That is collective. */
void mc_world_set_threads(mc_context *ctx);
/* How many ranks may run on cores that this one may run on, itself included; *number of them come
 * before it. Collective. */
int mc_world_sharing_cores(mc_context *ctx, int *number);
/* Binds the calling thread, and those that it makes, to rank `number`'s part of this process's
 * cores, which `sharing` ranks share. Returns how many threads are to run there: as many, but of
 * four or more one is left to the context's thread. MC_OFFLOAD_THREADS in the environment, up to
 * 1024, is returned instead, and then nothing is bound. */
int mc_world_take_cores(int sharing, int number);
/* Leaves the job; collective with nobody. */
void mc_world_leave(mc_context *ctx);
/* Reports this rank's first error to the other ranks. */
void mc_world_report(mc_context *ctx);

/* The ranks of the job on this host, this one included. */
int mc_world_ranks_here(const mc_context *ctx);

/* For threads of this rank beside the context's own: tell all ranks of an error; whether the job
 * has failed, with the error in *error if it holds none. */
void mc_world_tell(const mc_context *ctx, const mc_error *error);
bool mc_world_failed(const mc_context *ctx, mc_error *error);

#endif
