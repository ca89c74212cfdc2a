/* Attention's routes. A route is a pair of kernels, forward and backward, since backward reads the
 * log-sum-exp as its forward kernel wrote it. attention chooses the pair and stores it in the
 * shape, which the operation keeps for attention_backward. */
#include "core/device/cuda/attention/attention_internal.h"

#include <stdio.h>
#include "core/device/cuda/runtime/routes_internal.h"

static const mc_route routes[] = {
#ifdef MC_HAVE_HOPPER
    {"cudnn_hopper", mc_hopper_attention_takes, mc_cudnn_attention,
     "bench/notebook/2026-11-21-attention-backward.md#our-kernels-beside-cudnn",
     mc_hopper_attention_backward},
#endif
    {"cudnn", mc_cudnn_attention_takes, mc_cudnn_attention, "bench/RESULTS.md#training-on-one-gpu",
     mc_cudnn_attention_backward},
#ifdef MC_HAVE_HOPPER
    {"hopper", mc_tensor_attention_takes, mc_tensor_attention,
     "bench/RESULTS.md#training-on-one-gpu", mc_tensor_attention_backward},
#endif
    {"cudnn_rest", mc_cudnn_attention_takes_rest, mc_cudnn_attention,
     "bench/notebook/2026-11-29-one-h200.md#windows-and-offsets", mc_cudnn_attention_backward},
    {"portable", NULL, mc_portable_attention, NULL, mc_portable_attention_backward},
};

static void describe(const void *call, char *text, size_t size)
{
    const mc_attention_call *c = call;
    const mc_attention_shape *s = c->shape;
    snprintf(text, size, "%sattention of %d sequences with %lld tokens, %d heads of %d, %s",
             s->causal ? "causal " : "", s->lengths->count, (long long)s->lengths->total, s->heads,
             s->head_dim, mc_dtype_name(c->q.dtype));
}

const mc_route_list mc_attention_routes = {"attention", routes, sizeof routes / sizeof *routes,
                                           describe};

/* Without tokens no kernel runs. */
static mc_status choose(mc_device *d, const mc_attention_call *c, const mc_route **route)
{
    bool empty = c->shape->lengths->total == 0 && mc_key_lengths(c->shape)->total == 0;
    return empty ? MC_OK : mc_route_choose(d, MC_ROUTE_ATTENTION, c, route);
}

void mc_cuda_attention_prepare(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                               mc_matrix k, mc_matrix v, mc_matrix out, const float *log_sum_exp)
{
    const mc_route *route;
    const mc_attention_call c = {
        .shape = shape, .q = q, .k = k, .v = v, .out = out, .log_sum_exp = log_sum_exp};
    choose(d, &c, &route);
    d->failure[0] = '\0'; /* the call itself reports it */
}

mc_status mc_cuda_attention(mc_device *d, mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                            mc_matrix v, mc_matrix out, float *log_sum_exp)
{
    const mc_attention_call c = {
        .shape = shape, .q = q, .k = k, .v = v, .out = out, .log_sum_exp = log_sum_exp};
    mc_status status = mc_sdpa_zero_tails(d, shape, 1, &out);
    if (!status) status = choose(d, &c, &shape->route);
    return status || shape->lengths->total == 0 ? status : shape->route->run(d, &c);
}

mc_status mc_cuda_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                     mc_matrix k, mc_matrix v, mc_matrix out,
                                     const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                     mc_matrix dk, mc_matrix dv)
{
    const mc_attention_call c = {.shape = shape,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .out = out,
                                 .log_sum_exp = log_sum_exp,
                                 .dout = dout,
                                 .dq = dq,
                                 .dk = dk,
                                 .dv = dv};
    const mc_route *route = shape->route;
    mc_status status = mc_sdpa_zero_tails(d, shape, 3, (mc_matrix[]){dq, dk, dv});
    if (!status && !route) status = choose(d, &c, &route);
    return status || !route ? status : route->backward(d, &c);
}
