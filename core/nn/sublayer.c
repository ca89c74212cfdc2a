#include "core/nn/sublayer.h"

#include "core/autograd/tape_internal.h"
#include "core/ops/fused.h"

static mc_tensor *run_attention(mc_tape *t, void *layer, mc_tensor *x, const mc_call *call)
{
    return mc_attention_forward(t, layer, x, call);
}

static mc_tensor *run_feed_forward(mc_tape *t, void *layer, mc_tensor *x, const mc_call *call)
{
    (void)call;
    return mc_feed_forward_forward(t, layer, x);
}

mc_branch mc_attention_branch(mc_attention *attention)
{
    return (mc_branch){run_attention, attention};
}

mc_branch mc_feed_forward_branch(mc_feed_forward *ffn)
{
    return (mc_branch){run_feed_forward, ffn};
}

/* norm(x); sets *sum to x, computed in the same pass if it was deferred. Then the deferred branch
 * is released. */
static mc_tensor *norm_stream(mc_tape *t, mc_tensor *x, mc_layernorm *norm, mc_tensor **sum)
{
    mc_tensor *h = mc_layernorm_forward_stream(t, norm, x, sum);
    if (h && x->deferred) mc_tape_release(t, x->deferred->f);
    return h;
}

/* Whether a branch is given: a zero mc_branch has no function. */
static bool has_branch(mc_tape *t, const mc_tensor *x, mc_branch branch, const char *function)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_tape_given(t, function, x ? x->ctx : NULL) || mc_failed(ctx)) return false;
    if (!branch.forward) mc_fail(ctx, MC_ERR_ARGUMENT, "%s: a branch's forward is NULL", function);
    return branch.forward != NULL;
}

mc_tensor *mc_sublayer_pre_norm(mc_tape *t, mc_tensor *x, mc_layernorm *norm, mc_branch branch,
                                const mc_call *call, float dropout)
{
    if (!has_branch(t, x, branch, "mc_sublayer_pre_norm")) return NULL;
    mc_tensor *s, *h = norm ? norm_stream(t, x, norm, &s) : (s = mc_residual_sum(t, x));
    mc_tensor *y = h ? branch.forward(t, branch.layer, h, call) : NULL;
    if (norm) mc_tape_release(t, h);
    return y ? mc_residual_defer(t, s, y, dropout) : NULL;
}

mc_tensor *mc_sublayer_post_norm(mc_tape *t, mc_tensor *x, mc_branch branch, const mc_call *call,
                                 float dropout, mc_layernorm *norm)
{
    if (!has_branch(t, x, branch, "mc_sublayer_post_norm")) return NULL;
    mc_tensor *y = branch.forward(t, branch.layer, x, call);
    mc_tensor *h = y ? mc_layernorm_forward_residual(t, norm, x, y, dropout) : NULL;
    mc_tape_release(t, y);
    return h;
}

mc_tensor *mc_sublayer_parallel(mc_tape *t, mc_tensor *x, mc_layernorm *norm, mc_layernorm *second,
                                mc_branch a, mc_branch b, const mc_call *call, float dropout)
{
    if (!has_branch(t, x, a, "mc_sublayer_parallel") ||
        !has_branch(t, x, b, "mc_sublayer_parallel"))
        return NULL;
    mc_tensor *s, *h = norm_stream(t, x, norm, &s);
    mc_tensor *left = h ? a.forward(t, a.layer, h, call) : NULL;
    if (left && second) {
        mc_tape_release(t, h);
        h = mc_layernorm_forward(t, second, s);
    }
    mc_tensor *right = left && h ? b.forward(t, b.layer, h, call) : NULL;
    mc_tape_release(t, h);
    if (!right) return NULL;
    mc_tensor *sum = mc_residual_sum(t, mc_residual_defer(t, s, left, dropout));
    mc_tape_release(t, left);
    return sum ? mc_residual_defer(t, sum, right, dropout) : NULL;
}
