/* Creating the groups of a context's ranks (mc_mesh, core/base/context_internal.h). */
#ifndef MC_DIST_MESH_INTERNAL_H
#define MC_DIST_MESH_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/dist/comm_internal.h"

/* Ranks along each axis; 0: 1. Their product is the world size. */
typedef struct mc_mesh_sizes {
    int tensor, context, data, pipeline;
} mc_mesh_sizes;

/* Sets the size of each group, and this rank's place in it, from its rank in the world. */
void mc_mesh_place(mc_mesh *mesh, const mc_mesh_sizes *sizes, int rank);
mc_mesh_sizes mc_mesh_sizes_of(const mc_mesh *mesh);

/* Creates the communicators of ctx->mesh, after mc_mesh_place and with an open device. Groups of
 * the same ranks share one; others are split off. `id` and `options` are mc_comm_new's. Errors go
 * to the context. */
void mc_mesh_connect(mc_context *ctx, const mc_comm_id *id, const mc_comm_options *options);

/* What this rank has sent in all groups. */
mc_comm_volume mc_mesh_volume(mc_mesh *mesh);

#endif
