#include "core/nn/block_list.h"

#include <stdio.h>
#include "core/nn/inspect_internal.h"
#include "core/ops/ops.h"

struct mc_block_list {
    mc_module module;
    int count;
    void **blocks;
    mc_block_forward_fn forward;
    mc_block_options options;
};

static bool check_options(mc_context *ctx, const char *name, int count, bool callable,
                          const mc_block_options *o)
{
    int level = (int)o->zero_level, recompute = (int)o->recompute;
    if (count < 0 || !callable)
        mc_fail(ctx, MC_ERR_ARGUMENT, "block list \"%s\": %d blocks%s", name, count,
                callable ? "" : ", whose functions are NULL");
    else if (level < MC_ZERO_DEFAULT || level > MC_ZERO_3)
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "block list \"%s\": zero_level is %d, expected a mc_zero_level", name, level);
    else if (recompute < MC_RECOMPUTE_DEFAULT || recompute > MC_RECOMPUTE_FULL)
        mc_fail(ctx, MC_ERR_ARGUMENT, "block list \"%s\": recompute is %d, expected a mc_recompute",
                name, recompute);
    return !mc_failed(ctx);
}

mc_block_list *mc_block_list_new(mc_module *parent, const char *name, int count,
                                 mc_block_new_fn new_block, mc_block_forward_fn forward,
                                 const mc_block_options *options)
{
    mc_block_list *list = mc_module_add(parent, name, sizeof *list);
    if (!list) return NULL;
    if (options) list->options = *options;
    if (!check_options(parent->ctx, name, count, new_block && forward, &list->options)) return NULL;
    list->module.holds_blocks = true;
    list->forward = forward;
    list->blocks = mc_module_alloc(parent->root, ((size_t)count + 1) * sizeof *list->blocks);
    for (int i = 0; list->blocks && i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        list->blocks[i] = new_block(&list->module, number, i, list->options.config);
        if (!list->blocks[i]) return NULL;
        ((mc_module *)list->blocks[i])->zero_level = (int)list->options.zero_level;
        list->count++;
    }
    return list->blocks ? list : NULL;
}

int mc_block_list_count(const mc_block_list *list) { return list ? list->count : 0; }

void *mc_block_list_at(mc_block_list *list, int index)
{
    return list && index >= 0 && index < list->count ? list->blocks[index] : NULL;
}

void mc_block_list_set_recompute(mc_block_list *list, mc_recompute recompute)
{
    if (!list || mc_failed(list->module.ctx)) return;
    mc_block_options options = {.recompute = recompute};
    if (check_options(list->module.ctx, list->module.name, 0, true, &options))
        list->options.recompute = recompute;
}

typedef struct block_call {
    mc_block_list *list;
    void *block;
} block_call;

/* Runs a block as a segment that is run again in backward: one tensor goes in, one comes out. */
static mc_tensor *call_block(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    const block_call *call = user;
    mc_tensor *y = NULL;
    if (mc_block_begin(t, call->block) == MC_OK) y = call->list->forward(t, call->block, x, extra);
    y = y ? mc_residual_sum(t, y) : NULL;
    mc_block_end(t, call->block);
    return y;
}

/* The further inputs of a call. */
typedef struct extra_inputs {
    mc_tensor *const *tensors;
    int count;
} extra_inputs;

static mc_tensor *run_block(mc_tape *t, mc_block_list *list, void *block, mc_tensor *x,
                            extra_inputs extra)
{
    mc_recompute recompute = list->options.recompute;
    mc_scope scope = mc_scope_begin(t, recompute == MC_RECOMPUTE_SELECTIVE);
    mc_tensor *y;
    if (recompute == MC_RECOMPUTE_FULL) {
        block_call *call = mc_tape_alloc(t, sizeof *call);
        if (!call) return NULL;
        *call = (block_call){list, block};
        y = mc_tape_checkpoint(t, call_block, call, x, extra.tensors, extra.count);
    } else {
        y = mc_block_begin(t, block) ? NULL : list->forward(t, block, x, extra.tensors);
        mc_block_end(t, block);
    }
    mc_scope_end(t, scope, y);
    return y;
}

mc_tensor *mc_block_list_run(mc_tape *t, mc_block_list *list, mc_tensor *x, mc_tensor *const *extra,
                             int extra_count, mc_tensor **hidden)
{
    if (!list || !mc_op_ready(t, "block list", x)) return NULL;
    mc_context *ctx = mc_tape_context(t);
    extra_inputs inputs = {extra, extra ? extra_count : 0};
    if (inputs.count < 0 || inputs.count >= MC_NODE_INPUTS) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "block list \"%s\": %d extra inputs, at most %d",
                list->module.name, inputs.count, MC_NODE_INPUTS - 1);
        return NULL;
    }
    mc_scope scope = mc_scope_begin(t, false);
    for (int i = 0; i < list->count; i++) {
        if (hidden && !(hidden[i] = x = mc_residual_sum(t, x))) return NULL;
        mc_range_begin(ctx->device, ((mc_module *)list->blocks[i])->name);
        mc_tensor *y = run_block(t, list, list->blocks[i], x, inputs);
        mc_range_end(ctx->device);
        if (!y && !mc_failed(ctx))
            mc_fail(ctx, MC_ERR_STATE, "block %d of \"%s\" returned NULL", i, list->module.name);
        mc_error_while(&ctx->error, "running block %d of \"%s\"", i, list->module.name);
        y = y ? mc_record_block(t, list->blocks[i], y) : NULL;
        if (!y) return NULL;
        if (!hidden) mc_scope_release(t, scope, x, y);
        x = y;
    }
    return x;
}
