#include "core/dist/mesh_internal.h"

#include "core/device/plan_internal.h"

static int one_or(int size) { return size ? size : 1; }

/* This rank's group along axes of `size` ranks in all; neighbours are `apart` ranks apart. */
static mc_rank_group place(int rank, int apart, int size)
{
    return (mc_rank_group){.size = size, .rank = rank / apart % size};
}

void mc_mesh_place(mc_mesh *mesh, const mc_mesh_sizes *sizes, int rank)
{
    int tensor = one_or(sizes->tensor), context = one_or(sizes->context),
        data = one_or(sizes->data), pipeline = one_or(sizes->pipeline), shard = context * data;
    *mesh = (mc_mesh){.world = place(rank, 1, tensor * shard * pipeline),
                      .tensor = place(rank, 1, tensor),
                      .context = place(rank, tensor, context),
                      .data = place(rank, tensor * context, data),
                      .pipeline = place(rank, tensor * shard, pipeline),
                      .shard = place(rank, tensor, shard)};
}

mc_mesh_sizes mc_mesh_sizes_of(const mc_mesh *mesh)
{
    return (mc_mesh_sizes){.tensor = mesh->tensor.size,
                           .context = mesh->context.size,
                           .data = mesh->data.size,
                           .pipeline = mesh->pipeline.size};
}

/* A group, a larger group to split it from, and the distance of its neighbours among all ranks. */
typedef struct part {
    mc_rank_group *group;
    const mc_rank_group *within;
    int apart;
} part;
enum { PARTS = 5 };

/* Lists the groups in the order of their creation. */
static void list_parts(mc_mesh *m, part parts[PARTS])
{
    int tensor = m->tensor.size, context = m->context.size, shard = m->shard.size;
    parts[0] = (part){&m->shard, &m->world, tensor};
    parts[1] = (part){&m->data, &m->shard, tensor * context};
    parts[2] = (part){&m->context, &m->shard, tensor};
    parts[3] = (part){&m->tensor, &m->world, 1};
    parts[4] = (part){&m->pipeline, &m->world, tensor * shard};
}

/* Creates a group's communicator if it has more than one rank. A plan has no ranks to split. */
static void connect(mc_context *ctx, const part *p)
{
    mc_rank_group *group = p->group;
    const mc_rank_group *world = &ctx->mesh.world;
    int first = world->rank - group->rank * p->apart; /* equal on all ranks of the group */
    if (group->size == 1) return;
    if (group->size == p->within->size)
        group->comm = p->within->comm;
    else if (!mc_device_is_plan(ctx->device))
        group->comm = mc_comm_split(world->comm, first, group->rank);
    else if ((group->comm = mc_comm_new(ctx, NULL, group->size, group->rank, NULL)))
        group->comm->apart = p->apart;
}

void mc_mesh_connect(mc_context *ctx, const mc_comm_id *id, const mc_comm_options *options)
{
    part parts[PARTS];
    if (ctx->mesh.world.size == 1) return;
    ctx->mesh.world.comm =
        mc_comm_new(ctx, id, ctx->mesh.world.size, ctx->mesh.world.rank, options);
    list_parts(&ctx->mesh, parts);
    for (int i = 0; i < PARTS; i++) connect(ctx, &parts[i]);
}

mc_comm_volume mc_mesh_volume(mc_mesh *mesh)
{
    mc_comm_volume all = mc_comm_volume_of(mesh->world.comm);
    part parts[PARTS];
    list_parts(mesh, parts);
    for (int i = 0; i < PARTS; i++) {
        if (parts[i].group->comm == parts[i].within->comm) continue;
        mc_comm_volume volume = mc_comm_volume_of(parts[i].group->comm);
        all.calls += volume.calls;
        all.bytes += volume.bytes;
    }
    return all;
}
