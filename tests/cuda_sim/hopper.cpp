/* A wing that is none: what the floor takes from core/device/hopper, but for decoding in one kernel,
 * which is the real one. Where a test switches it on (mc_sim_wing) it takes calls of 16 bits as if
 * this were a Hopper, notes which kernel was asked for, and leaves the work to the portable ones.
 * So it is tested which route a call takes, not what Hopper's kernels compute. */
#include "core/device/cuda/attention/attention_internal.h"
#include "core/device/cuda/product/gemm_internal.h"
#include "core/device/cuda/runtime/routes_internal.h"

extern "C" {
bool mc_sim_wing;
const char *mc_sim_wing_ran; /* the kernel that ran last */
}

namespace
{

mc_status take(mc_device *d, mc_dtype dtype)
{
    if (!mc_sim_wing) return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "a call on a simulated GPU");
    return dtype == MC_F32 ? mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "f32") : MC_OK;
}

} // namespace

mc_status mc_hopper_attention_takes(mc_device *d, const void *call, bool)
{
    const mc_attention_call *c = (const mc_attention_call *)call;
    mc_status status = take(d, c->q.dtype);
    return status ? status : mc_cudnn_forward_takes(d, c);
}

mc_status mc_hopper_attention_backward(mc_device *d, const void *)
{
    return mc_cuda_fail(d, MC_ERR_STATE, "there is no cuDNN here");
}

mc_status mc_tensor_attention_takes(mc_device *d, const void *call, bool)
{
    return take(d, ((const mc_attention_call *)call)->q.dtype);
}

mc_status mc_tensor_attention(mc_device *d, const void *call)
{
    mc_sim_wing_ran = "attention";
    return mc_portable_attention(d, call);
}

mc_status mc_tensor_attention_backward(mc_device *d, const void *call)
{
    mc_sim_wing_ran = "attention_backward";
    return mc_portable_attention_backward(d, call);
}

mc_status mc_skinny_hopper_takes(mc_device *d, const void *call, bool)
{
    const mc_product *p = (const mc_product *)call;
    mc_status status = take(d, p->y.dtype);
    return status ? status : p->rows < 5 ? MC_ERR_UNSUPPORTED : mc_skinny_takes(d, call, false);
}

mc_status mc_skinny_hopper(mc_device *d, const void *call)
{
    mc_sim_wing_ran = "skinny";
    return mc_skinny(d, call);
}

mc_status mc_hopper_product_takes(mc_device *d, const void *call, bool asked)
{
    const mc_product *p = (const mc_product *)call;
    mc_status status = take(d, p->y.dtype);
    return status ? status : asked || p->activation ? MC_OK : MC_ERR_UNSUPPORTED;
}

mc_status mc_hopper_product(mc_device *d, const void *call)
{
    const mc_route_list *list = &mc_product_routes;
    mc_sim_wing_ran = "product";
    return list->routes[list->count - 1].run(d, call);
}
