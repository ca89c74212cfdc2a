/* The device's functions with its GPU current: see current_internal.h. */
#include <type_traits>
#include "core/device/cuda/runtime/current_internal.h"
#include "core/device/cuda/runtime/cuda_internal.h"
#include "core/device/hopper/decode/deferred_internal.h"

bool mc_cuda_current_find(mc_device *d, int ordinal, mc_cuda_current *current)
{
    static const char missing[] = "the driver has no functions for current contexts";
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*device_of)(CUdevice *, int);
    CUdevice device;
    *(void **)&current->get = mc_cuda_driver_function("cuCtxGetCurrent");
    *(void **)&current->push = mc_cuda_driver_function("cuCtxPushCurrent");
    *(void **)&current->pop = mc_cuda_driver_function("cuCtxPopCurrent");
    *(void **)&retain = mc_cuda_driver_function("cuDevicePrimaryCtxRetain");
    *(void **)&device_of = mc_cuda_driver_function("cuDeviceGet");
    if (!current->get || !current->push || !current->pop || !retain || !device_of)
        return mc_cuda_fail(d, MC_ERR_DEVICE, "%s", missing) == MC_OK;
    CUresult result = device_of(&device, ordinal);
    if (!result) result = retain(&current->context, device);
    if (!result) return true;
    current->context = NULL;
    return mc_cuda_fail(d, MC_ERR_DEVICE, "GPU %d does not start (the driver's error %d)", ordinal,
                        (int)result) == MC_OK;
}

bool mc_cuda_enter(mc_device *d)
{
    const mc_cuda_current *c = &mc_cuda_of(d)->current;
    CUcontext now = NULL;
    if (!c->context || (c->get(&now) == CUDA_SUCCESS && now == c->context)) return false;
    return c->push(c->context) == CUDA_SUCCESS;
}

void mc_cuda_leave(mc_device *d, bool entered)
{
    CUcontext ours;
    if (entered) mc_cuda_of(d)->current.pop(&ours);
}

namespace
{

/* Makes the GPU current during its lifetime. The device may be freed meanwhile. */
class entered
{
    CUresult (*pop)(CUcontext *);

  public:
    explicit entered(mc_device *d) : pop(mc_cuda_enter(d) ? mc_cuda_of(d)->current.pop : nullptr) {}
    entered(const entered &) = delete;
    ~entered()
    {
        CUcontext ours;
        if (pop) pop(&ours);
    }
};

const mc_device *plain(const mc_device *) { return &mc_cuda_plain; }
const mc_kernels *plain(const mc_kernels *) { return mc_cuda_plain.kernels; }
const mc_lanes *plain(const mc_lanes *) { return mc_cuda_plain.lanes; }

/* Defers a call if possible; most kernels cannot be deferred. */
template <auto entry> struct late {
    template <class... Rest> static bool puts_off(mc_device *, Rest...) { return false; }
};
#define PUTS_OFF(name)                                             \
    template <> struct late<&mc_kernels::name> {                   \
        template <class... Rest> static bool puts_off(Rest... all) \
        {                                                          \
            return mc_cuda_defer_##name(all...);                   \
        }                                                          \
    };
#ifdef MC_HAVE_HOPPER
PUTS_OFF(linear)
PUTS_OFF(linear_quantized)
PUTS_OFF(residual_norm)
PUTS_OFF(residual_sum)
PUTS_OFF(gated)
PUTS_OFF(rotary)
PUTS_OFF(attention_cached)
#endif
#undef PUTS_OFF

/* The guarded function of a table's entry. Before a kernel runs, deferred calls are launched. */
template <auto entry> struct guarded;
template <class Table, class Result, class... Rest, Result (*Table::*entry)(mc_device *, Rest...)>
struct guarded<entry> {
    static Result call(mc_device *d, Rest... rest)
    {
        entered gpu(d);
        if constexpr (std::is_same_v<Table, mc_kernels>) {
            if (late<entry>::puts_off(d, rest...)) return MC_OK;
            mc_status status = mc_cuda_catch_up(d);
            if (status) return status;
        }
        return (plain((const Table *)nullptr)->*entry)(d, rest...);
    }
};

constexpr mc_kernels guard_kernels()
{
    mc_kernels all{};
#define KERNEL(name) all.name = guarded<&mc_kernels::name>::call;
#include "core/device/kernels.def"
#undef KERNEL
    return all;
}

constexpr mc_lanes guard_lanes()
{
    mc_lanes all{};
#define GUARD(name) all.name = guarded<&mc_lanes::name>::call;
    GUARD(lane_new)
    GUARD(lane_free)
    GUARD(fence_new)
    GUARD(fence_free)
    GUARD(fence_set)
    GUARD(after)
    GUARD(wait)
    GUARD(pin)
    GUARD(unpin)
    GUARD(copy_in)
    GUARD(copy_out)
#undef GUARD
    return all;
}

constexpr mc_kernels guarded_kernels = guard_kernels();
constexpr mc_lanes guarded_lanes = guard_lanes();

} // namespace

extern "C" mc_device mc_cuda_guarded(void)
{
    mc_device d = mc_cuda_plain;
    d.kernels = &guarded_kernels;
    d.lanes = &guarded_lanes;
#define GUARD(name) d.name = guarded<&mc_device::name>::call;
    GUARD(alloc)
    GUARD(free)
    GUARD(free_memory)
    GUARD(copy_in)
    GUARD(copy_out)
    GUARD(copy_out_later)
    GUARD(is_done)
    GUARD(elapsed)
    GUARD(wait)
    GUARD(host_alloc)
    GUARD(host_free)
    GUARD(step_end)
    GUARD(stream)
    GUARD(record_begin)
    GUARD(record_end)
    GUARD(replay)
    GUARD(recording_free)
    GUARD(list_close)
    GUARD(close)
#undef GUARD
    return d;
}
