/* A context's place in its job: joined when the context is made. */
#ifndef MC_DIST_WORLD_INTERNAL_H
#define MC_DIST_WORLD_INTERNAL_H

#include "core/base/context_internal.h"

/* Reads who started this process (launch_internal.h) and sets the context's rank and world size.
 * Called before the device is opened: on a GPU machine the local rank chooses the GPU. */
void mc_world_read(mc_context *ctx);
/* With more than one rank: meets the others over the control channel and makes the communicator of
 * all, ctx->comm. Called when the device is open. Errors stay on the context. */
void mc_world_join(mc_context *ctx, double timeout);
/* Leaves the job; collective with nobody. */
void mc_world_leave(mc_context *ctx);
/* Tells the other ranks of this rank's first error. */
void mc_world_report(mc_context *ctx);

/* For threads of this rank beside the context's own: tell all ranks of an error; whether the job
 * has failed, with the error in *error if it holds none. */
void mc_world_tell(const mc_context *ctx, const mc_error *error);
bool mc_world_failed(const mc_context *ctx, mc_error *error);

#endif
