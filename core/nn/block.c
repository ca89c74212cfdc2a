/* The work around a block's forward and backward pass: gathering and releasing its buckets, and
 * reducing their gradients. */
#include "core/nn/fp8_internal.h"

typedef struct block_state {
    mc_module *block;
    bool gathered; /* its parameters stay gathered from forward to backward */
} block_state;

static void each_bucket(mc_module *block, mc_status (*fn)(mc_zero *, mc_bucket *))
{
    mc_zero *z = &block->root->zero;
    for (int i = 0; i < z->bucket_count && !mc_failed(z->ctx); i++)
        if (z->buckets[i].owner == block) fn(z, &z->buckets[i]);
}

/* The same for the form of a bucket's values that the tape uses. */
typedef mc_status (*values_fn)(mc_zero *zero, mc_bucket *bucket, struct mc_values *values);

static void each_values(const mc_tape *tape, mc_module *block, values_fn fn)
{
    mc_zero *z = &block->root->zero;
    for (int i = 0; i < z->bucket_count && !mc_failed(z->ctx); i++) {
        mc_bucket *b = &z->buckets[i];
        if (b->owner == block) fn(z, b, mc_fp8_values_for(tape, b));
    }
}

/* Keeps the values from the end of the block, where backward enters it, to its beginning. */
static mc_status retain(mc_zero *zero, mc_bucket *bucket, struct mc_values *values)
{
    mc_status status = mc_bucket_gather(zero, bucket, values);
    if (!status) values->retained++;
    return status;
}

static mc_status release(mc_zero *zero, mc_bucket *bucket, struct mc_values *values)
{
    values->retained--;
    mc_bucket_release(zero, bucket, values);
    return MC_OK;
}

static mc_status begin_running(mc_zero *zero, mc_bucket *bucket, struct mc_values *values)
{
    mc_status status = mc_bucket_gather(zero, bucket, values);
    if (!status) values->running++;
    return status;
}

static void end_running(const mc_tape *tape, mc_module *block, bool needed)
{
    mc_zero *z = &block->root->zero;
    for (int i = 0; i < z->bucket_count; i++) {
        mc_bucket *b = &z->buckets[i];
        if (b->owner != block) continue;
        struct mc_values *values = mc_fp8_values_for(tape, b);
        if (!values->running) continue; /* it failed to begin */
        values->running--;
        if (needed)
            values->retained++;
        else
            mc_bucket_release(z, b, values);
    }
}

static mc_module *block_before(const mc_module *block)
{
    mc_module *m = block->parent->first_child;
    while (m && m->next != block) m = m->next;
    return m;
}

/* Starts gathering the next block, in forward or in backward order; NULL at the ends of the
 * list. */
static void prefetch(const mc_tape *tape, mc_module *block)
{
    if (block) each_values(tape, block, mc_bucket_prefetch);
}

/* Backward reaches the end of a block first. */
static void end_backward(mc_tape *tape, mc_node *node)
{
    const block_state *state = node->state;
    if (!state->gathered) {
        each_values(tape, state->block, retain);
        prefetch(tape, block_before(state->block));
    }
    each_bucket(state->block, mc_bucket_begin_gradient);
}

static void begin_backward(mc_tape *tape, mc_node *node)
{
    const block_state *state = node->state;
    each_bucket(state->block, mc_bucket_reduce);
    each_values(tape, state->block, release);
}

static const mc_op begin_op = {.name = "block begins", .backward = begin_backward, .always = true};
static const mc_op end_op = {.name = "block ends", .backward = end_backward, .always = true};

static void nothing(void *data) { (void)data; }

/* After a failure: releases blocks that backward has entered but not left, and drops prefetched
 * values. */
static void let_go(void *data)
{
    mc_zero *z = data;
    for (int i = 0; i < z->bucket_count && mc_failed(z->ctx); i++) {
        mc_bucket *b = &z->buckets[i];
        while (b->values.retained) release(z, b, &b->values);
        while (b->bytes.retained) release(z, b, &b->bytes);
        mc_bucket_forget(z, b);
    }
}

static mc_status watch(mc_tape *tape, mc_module_root *root)
{
    static const mc_tape_watch calls = {nothing, let_go, let_go};
    if (root->watched_tape == mc_tape_id(tape)) return MC_OK;
    mc_status status = mc_tape_hook(tape, &calls, root, &root->zero);
    if (!status) root->watched_tape = mc_tape_id(tape);
    return status;
}

static void mark(mc_tape *tape, mc_module *block, const mc_op *op)
{
    if (!mc_tape_recording(tape)) return;
    mc_node *node = mc_tape_mark(tape, op, sizeof(block_state));
    if (!node) return;
    *(block_state *)node->state =
        (block_state){.block = block, .gathered = mc_tape_replaying(tape)};
}

/* Whether a block needs this work: with several ranks, or with state on the host. */
static bool is_sharded(const mc_module *block)
{
    const mc_module_root *root = block->root;
    return (root->zero.group->comm || root->zero.home) && block->parent &&
           block->parent->holds_blocks;
}

mc_status mc_block_begin(mc_tape *tape, mc_module *block)
{
    mc_context *ctx = block->ctx;
    if (mc_module_place(block->root)) return mc_error_status(ctx);
    if (!is_sharded(block) || watch(tape, block->root)) return mc_error_status(ctx);
    each_values(tape, block, begin_running);
    prefetch(tape, mc_tape_replaying(tape) ? block_before(block) : block->next);
    mark(tape, block, &begin_op);
    return mc_error_status(ctx);
}

void mc_block_end(mc_tape *tape, mc_module *block)
{
    if (!is_sharded(block)) return;
    mark(tape, block, &end_op);
    /* a block that runs again is about to run backward */
    bool needed = mc_tape_recording(tape) && mc_tape_replaying(tape);
    end_running(tape, block, needed);
}
