#include "core/nn/block_list.h"

#include <stdio.h>
#include "core/nn/module_internal.h"
#include "core/ops/fused.h"

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

/* Whether `block` is a child of the list that came after `before`. */
static bool is_new_child(const mc_module *list, const mc_module *before, const void *block)
{
    const mc_module *m = before ? before->next : list->first_child;
    while (m && m != block) m = m->next;
    return m;
}

/* Adds block i by its constructor, which might return anything. */
static void *add_block(mc_block_list *list, mc_block_new_fn new_block, int i)
{
    mc_module *module = &list->module, *before = module->last_child;
    char number[16];
    snprintf(number, sizeof number, "%d", i);
    void *block = new_block(module, number, i, list->options.config);
    if (mc_failed(module->ctx)) return NULL;
    if (is_new_child(module, before, block)) return block;
    mc_fail(module->ctx, MC_ERR_ARGUMENT,
            "block list \"%s\": the constructor of block %d returned %s, expected the module that "
            "it added to the list (mc_module_add)",
            module->name, i, block ? "something else" : "NULL");
    return NULL;
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
    list->module.zero_level = (int)list->options.zero_level;
    list->forward = forward;
    list->blocks = mc_module_alloc(parent->root, ((size_t)count + 1) * sizeof *list->blocks);
    for (int i = 0; list->blocks && i < count; i++) {
        list->blocks[i] = add_block(list, new_block, i);
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

mc_status mc_block_list_set_recompute(mc_block_list *list, mc_recompute recompute)
{
    if (!list) return MC_ERR_ARGUMENT;
    if (mc_failed(list->module.ctx)) return mc_error_status(list->module.ctx);
    mc_block_options options = {.recompute = recompute};
    if (check_options(list->module.ctx, list->module.name, 0, true, &options))
        list->options.recompute = recompute;
    return mc_error_status(list->module.ctx);
}

/* The tensors of a call: a checkpointed segment takes them as extra inputs. */
enum { CALL_NAMED = 7, CALL_TENSORS = CALL_NAMED + MC_CALL_EXTRA };
_Static_assert((int)CALL_TENSORS < (int)MC_NODE_INPUTS,
               "a node has an input for each tensor of a call");

static void list_tensors(mc_call *call, mc_tensor **slot[CALL_TENSORS])
{
    mc_tensor **named[CALL_NAMED] = {&call->key_mask, &call->memory_mask, &call->position_bias,
                                     &call->marks,    &call->positions,   &call->globals,
                                     &call->memory};
    for (int i = 0; i < (int)CALL_TENSORS; i++)
        slot[i] = i < (int)CALL_NAMED ? named[i] : &call->extra[i - CALL_NAMED];
}

/* One block of a call. */
typedef struct block_call {
    mc_block_list *list;
    void *block;
    mc_call call;
} block_call;

/* `whole`: the result must not be a deferred sum. */
static mc_tensor *call_block(mc_tape *t, const block_call *c, mc_tensor *x, bool whole)
{
    mc_tensor *y = NULL;
    if (mc_block_begin(t, c->block) == MC_OK) y = c->list->forward(t, c->block, x, &c->call);
    if (y && whole) y = mc_residual_sum(t, y);
    mc_block_end(t, c->block);
    return y;
}

/* Runs a block as a checkpointed segment, with one main input and one result. */
static mc_tensor *call_segment(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *tensors)
{
    block_call again = *(const block_call *)user;
    mc_tensor **slot[CALL_TENSORS];
    list_tensors(&again.call, slot);
    for (int i = 0; i < (int)CALL_TENSORS; i++) *slot[i] = tensors[i];
    return call_block(t, &again, x, true);
}

static mc_tensor *checkpoint_block(mc_tape *t, const block_call *c, mc_tensor *x)
{
    block_call *kept = mc_tape_alloc(t, sizeof *kept);
    mc_tensor **slot[CALL_TENSORS], *tensors[CALL_TENSORS];
    if (!kept) return NULL;
    *kept = *c;
    list_tensors(&kept->call, slot);
    for (int i = 0; i < (int)CALL_TENSORS; i++) tensors[i] = *slot[i];
    return mc_tape_checkpoint(t, call_segment, kept, x, tensors, CALL_TENSORS);
}

static mc_tensor *run_block(mc_tape *t, const block_call *c, mc_tensor *x)
{
    mc_recompute recompute = c->list->options.recompute;
    mc_scope scope = mc_scope_begin(t, recompute == MC_RECOMPUTE_SELECTIVE);
    mc_tensor *y =
        recompute == MC_RECOMPUTE_FULL ? checkpoint_block(t, c, x) : call_block(t, c, x, false);
    mc_scope_end(t, scope, y);
    return y;
}

mc_tensor *mc_block_list_forward(mc_tape *t, mc_block_list *list, mc_tensor *x, const mc_call *call)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_given(ctx, list) || !mc_op_ready(t, "block list", x)) return NULL;
    block_call c = {.list = list, .call = call ? *call : (mc_call){0}};
    mc_scope scope = mc_scope_begin(t, false);
    for (int i = 0; i < list->count; i++) {
        mc_tensor **hidden = c.call.hidden;
        if (hidden && !(hidden[i] = x = mc_residual_sum(t, x))) return NULL;
        c.block = list->blocks[i];
        c.call.layer = i;
        mc_range_begin(ctx->device, ((mc_module *)c.block)->name);
        mc_tensor *y = run_block(t, &c, x);
        mc_range_end(ctx->device);
        if (!y && !mc_failed(ctx))
            mc_fail(ctx, MC_ERR_STATE, "block %d of \"%s\" returned NULL", i, list->module.name);
        mc_error_while(&ctx->error, "running block %d of \"%s\"", i, list->module.name);
        if (y && ctx->recorder) y = ctx->record_block(t, c.block, y);
        if (!y) return NULL;
        if (!hidden) mc_scope_release(t, scope, x, y);
        x = y;
    }
    return x;
}
