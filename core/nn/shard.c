/* Buckets over several ranks: each level of sharding (Rajbhandari et al. 2020, "ZeRO") is a choice
 * of what is whole and what is a share, and of when ranks exchange it. */
#include "core/dist/comm_internal.h"
#include "core/nn/module_internal.h"

static mc_device *device_of(const mc_module_root *root) { return root->ctx->device; }

static mc_status fail_device(mc_module_root *root, mc_status status, const char *what)
{
    const char *why = root->ctx->device->failure;
    if (!status || mc_failed(root->ctx)) return status;
    return mc_fail(root->ctx, status, "%s of model \"%s\"%s%s", what, root->module->name,
                   *why ? ": " : "", why);
}

static size_t value_bytes(const mc_bucket *b, int64_t count)
{
    return (size_t)count * mc_dtype_size(b->dtype);
}

/* ---- parameters ------------------------------------------------------------------------------ */

mc_status mc_bucket_prefetch(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (b->level < 3 || b->data) return MC_OK;
    b->data = device->alloc(device, value_bytes(b, b->count));
    if (!b->data)
        return mc_fail(root->ctx, MC_ERR_NOMEM,
                       "out of memory for the gathered parameters of \"%s\" (%zu bytes)",
                       b->owner->name, value_bytes(b, b->count));
    root->gathered += b->count;
    if (root->gathered > root->most_gathered) root->most_gathered = root->gathered;
    b->gathering = mc_comm_start_all_gather(root->ctx->comm, b->kept, b->data, b->share, b->dtype);
    return mc_error_status(root->ctx);
}

static mc_status end_gathering(mc_bucket *b)
{
    mc_comm_request *request = b->gathering;
    b->gathering = NULL;
    return mc_comm_wait(request);
}

mc_status mc_bucket_gather(mc_module_root *root, mc_bucket *b)
{
    mc_status status = mc_bucket_prefetch(root, b);
    if (status || b->level < 3) return status;
    b->users++;
    return end_gathering(b);
}

static void drop_values(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    device->free(device, b->data, value_bytes(b, b->count));
    b->data = NULL;
    root->gathered -= b->count;
}

mc_status mc_bucket_forget(mc_module_root *root, mc_bucket *b)
{
    if (b->level < 3 || b->users || !b->data) return MC_OK;
    mc_status status = end_gathering(b);
    drop_values(root, b);
    return status;
}

void mc_bucket_release(mc_module_root *root, mc_bucket *b)
{
    if (b->level == 3 && b->users && --b->users == 0) drop_values(root, b);
}

mc_status mc_bucket_publish(mc_module_root *root, mc_bucket *b)
{
    if (b->level != 1 && b->level != 2) return mc_error_status(root->ctx);
    return mc_comm_all_gather(root->ctx->comm, mc_bucket_value_at(b, b->first), b->data, b->share,
                              b->dtype);
}

/* ---- gradients ------------------------------------------------------------------------------- */

mc_status mc_bucket_begin_gradient(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    size_t bytes = (size_t)b->count * sizeof(float);
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (b->level < 2 || !b->trainable) return MC_OK;
    if (b->reducing && mc_module_end_reducing(root)) return mc_error_status(root->ctx);
    if (b->gradient) return MC_OK;
    b->gradient = device->alloc(device, bytes);
    if (!b->gradient)
        return mc_fail(root->ctx, MC_ERR_NOMEM,
                       "out of memory for the gradients of \"%s\" (%zu bytes)", b->owner->name,
                       bytes);
    return fail_device(root, device->kernels->zero(device, b->gradient, bytes), "gradients");
}

static void drop_gradient(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    device->free(device, b->gradient, (size_t)b->count * sizeof(float));
    b->gradient = NULL;
}

/* Adds what the reduction that is under way gives to this rank's sums. */
mc_status mc_module_end_reducing(mc_module_root *root)
{
    mc_device *device = device_of(root);
    mc_bucket *b = root->reducing;
    if (!b) return mc_error_status(root->ctx);
    mc_comm_request *request = b->reducing;
    root->reducing = NULL;
    b->reducing = NULL;
    mc_status status = mc_comm_wait(request);
    mc_matrix from = {b->gradient + b->first, MC_F32, b->share},
              to = {b->kept_gradient, MC_F32, b->share};
    if (!status)
        status = fail_device(root, device->kernels->scale(device, b->share, from, 1, to, true),
                             "gradients");
    drop_gradient(root, b);
    return status;
}

/* One reduction is under way at a time, beside the backward pass of the block before. */
mc_status mc_bucket_reduce(mc_module_root *root, mc_bucket *b)
{
    if (b->level < 2 || !b->gradient) return mc_error_status(root->ctx);
    mc_status status = mc_module_end_reducing(root);
    if (status) return status;
    b->reducing = mc_comm_start_reduce_scatter(root->ctx->comm, b->gradient, b->gradient + b->first,
                                               b->share, MC_F32, MC_REDUCE_SUM);
    root->reducing = b->reducing ? b : NULL;
    return mc_error_status(root->ctx);
}

mc_status mc_bucket_reduce_step(mc_module_root *root, mc_bucket *b)
{
    struct mc_comm *comm = root->ctx->comm;
    if (!comm || b->level > 1 || !b->gradient) return mc_error_status(root->ctx);
    if (b->level == 0)
        return mc_comm_all_reduce(comm, b->gradient, b->gradient, b->count, MC_F32, MC_REDUCE_SUM);
    return mc_comm_reduce_scatter(comm, b->gradient, b->gradient + b->first, b->share, MC_F32,
                                  MC_REDUCE_SUM);
}

/* ---- changing the level ---------------------------------------------------------------------- */

/* Moves `*array` from `count` elements to this rank's share of them, or the other way round. */
static mc_status to_share(mc_module_root *root, const mc_bucket *b, void **array, void **share,
                          mc_dtype dtype)
{
    mc_device *device = device_of(root);
    size_t size = mc_dtype_size(dtype);
    if (!*array) return MC_OK;
    void *new = device->alloc(device, (size_t)b->share * size);
    if (!new) return mc_fail_nomem(root->ctx, "a share of a model");
    mc_matrix from = {(char *)*array + (size_t)b->first * size, dtype, b->share};
    mc_status status =
        device->kernels->scale(device, b->share, from, 1, (mc_matrix){new, dtype, b->share}, false);
    device->free(device, *array, (size_t)b->count * size);
    *array = NULL;
    *share = new;
    return fail_device(root, status, "a share");
}

static mc_status to_whole(mc_module_root *root, const mc_bucket *b, void **share, void **array,
                          mc_dtype dtype)
{
    mc_device *device = device_of(root);
    size_t size = mc_dtype_size(dtype);
    if (!*share) return MC_OK;
    void *new = device->alloc(device, (size_t)b->count * size);
    if (!new) return mc_fail_nomem(root->ctx, "a model's shares as a whole");
    mc_status status = mc_comm_all_gather(root->ctx->comm, *share, new, b->share, dtype);
    device->free(device, *share, (size_t)b->share * size);
    *share = NULL;
    *array = new;
    return status;
}

mc_status mc_bucket_shard(mc_module_root *root, mc_bucket *b, int level)
{
    mc_status status = mc_error_status(root->ctx);
    for (int k = 0; k < MC_STATE_SLOTS && !status && level; k++) {
        void *array = b->state[k], *share = NULL;
        status = to_share(root, b, &array, &share, MC_F32);
        b->state[k] = share;
    }
    void *gradient = b->gradient, *kept = NULL;
    if (!status && level >= 2) {
        status = to_share(root, b, &gradient, &kept, MC_F32);
        b->gradient = gradient;
        b->kept_gradient = kept;
    }
    if (!status && level == 3) status = to_share(root, b, &b->data, &b->kept, b->dtype);
    b->level = level;
    return status;
}

mc_status mc_bucket_unshard(mc_module_root *root, mc_bucket *b)
{
    mc_status status = mc_error_status(root->ctx);
    for (int k = 0; k < MC_STATE_SLOTS && !status && b->level; k++) {
        void *share = b->state[k], *array = NULL;
        status = to_whole(root, b, &share, &array, MC_F32);
        b->state[k] = array;
    }
    void *kept = b->kept_gradient, *gradient = b->gradient;
    if (!status && kept) {
        status = to_whole(root, b, &kept, &gradient, MC_F32);
        b->gradient = gradient;
        b->kept_gradient = kept;
    }
    if (!status && b->level == 3) status = to_whole(root, b, &b->kept, &b->data, b->dtype);
    if (!status) b->level = 0;
    return status;
}

mc_status mc_bucket_read_gradient(mc_module_root *root, const mc_parameter *p, float *values)
{
    mc_bucket *b = p->stored->bucket;
    mc_device *device = device_of(root);
    size_t bytes = (size_t)b->count * sizeof(float);
    float *whole = device->alloc(device, bytes);
    if (!whole) return mc_fail_nomem(root->ctx, "reading a gradient");
    mc_status status =
        mc_comm_all_gather(root->ctx->comm, b->kept_gradient, whole, b->share, MC_F32);
    size_t count = (size_t)mc_shape_count(p->shape);
    if (!status && !device->copy_out(device, values, whole + p->stored->offset + p->first,
                                     count * sizeof *values))
        status = fail_device(root, MC_ERR_DEVICE, "reading a gradient");
    device->free(device, whole, bytes);
    return status;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct block_state {
    mc_module *block;
    bool gathered; /* its parameters stay gathered from forward to backward */
} block_state;

typedef mc_status (*bucket_fn)(mc_module_root *root, mc_bucket *bucket);

static void each_bucket(mc_module *block, bucket_fn fn)
{
    mc_module_root *root = block->root;
    for (int i = 0; i < root->bucket_count && !mc_failed(root->ctx); i++)
        if (root->buckets[i].owner == block) fn(root, &root->buckets[i]);
}

static mc_status release(mc_module_root *root, mc_bucket *bucket)
{
    mc_bucket_release(root, bucket);
    return MC_OK;
}

static mc_module *block_before(const mc_module *block)
{
    mc_module *m = block->parent->first_child;
    while (m && m->next != block) m = m->next;
    return m;
}

/* Begins to gather the block that comes next, in forward or in backward order; blocks that no
 * longer exist are NULL. */
static void prefetch(mc_module *block)
{
    if (block) each_bucket(block, mc_bucket_prefetch);
}

/* Backward comes to the end of a block first. */
static void end_backward(mc_tape *tape, mc_node *node)
{
    const block_state *state = node->state;
    (void)tape;
    if (!state->gathered) {
        each_bucket(state->block, mc_bucket_gather);
        prefetch(block_before(state->block));
    }
    each_bucket(state->block, mc_bucket_begin_gradient);
}

static void begin_backward(mc_tape *tape, mc_node *node)
{
    const block_state *state = node->state;
    (void)tape;
    each_bucket(state->block, mc_bucket_reduce);
    each_bucket(state->block, release);
}

static const mc_op begin_op = {.name = "block begins", .backward = begin_backward, .always = true};
static const mc_op end_op = {.name = "block ends", .backward = end_backward, .always = true};

static void mark(mc_tape *tape, mc_module *block, const mc_op *op)
{
    if (!mc_tape_recording(tape)) return;
    mc_node *node = mc_tape_mark(tape, op, sizeof(block_state));
    if (!node) return;
    *(block_state *)node->state =
        (block_state){.block = block, .gathered = mc_tape_replaying(tape)};
}

static bool is_sharded(const mc_module *block)
{
    return block->root->ctx->comm && block->parent && block->parent->holds_blocks;
}

mc_status mc_block_begin(mc_tape *tape, mc_module *block)
{
    mc_context *ctx = block->ctx;
    if (!is_sharded(block)) return mc_error_status(ctx);
    if (mc_module_layout(block->root)) return mc_error_status(ctx);
    each_bucket(block, mc_bucket_gather);
    prefetch(mc_tape_replaying(tape) ? block_before(block) : block->next);
    mark(tape, block, &begin_op);
    return mc_error_status(ctx);
}

void mc_block_end(mc_tape *tape, mc_module *block)
{
    if (!is_sharded(block)) return;
    mark(tape, block, &end_op);
    /* a block that runs again in backward is about to be needed by that */
    bool needed = mc_tape_recording(tape) && mc_tape_replaying(tape);
    if (!needed) each_bucket(block, release);
}
