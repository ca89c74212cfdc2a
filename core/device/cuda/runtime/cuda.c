/* Opening the CUDA device, and its functions besides kernels. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"
#include "core/device/cuda/runtime/cuda_memory_internal.h"
#include "core/device/cuda/runtime/libraries_internal.h"
#include "core/device/cuda/runtime/planning_internal.h"
#include "core/device/cuda/runtime/routes_internal.h"
#include "core/device/hopper/decode/deferred_internal.h"
#include <nvtx3/nvToolsExt.h>

/* ---- errors ---------------------------------------------------------------------------------- */

mc_status mc_cuda_fail(mc_device *d, mc_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(d->failure, sizeof d->failure, format, args);
    va_end(args);
    return status;
}

mc_status mc_cuda_check(mc_device *d, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return MC_OK;
    mc_status status = error == cudaErrorMemoryAllocation ? MC_ERR_NOMEM : MC_ERR_DEVICE;
    if (status == MC_ERR_NOMEM) cudaGetLastError(); /* or the next launch would report it too */
    return mc_cuda_fail(d, status, "%s: %s (CUDA error %d, %s)", what, cudaGetErrorString(error),
                        (int)error, cudaGetErrorName(error));
}

mc_status mc_cuda_launched(mc_device *d, const char *what)
{
    return mc_cuda_check(d, cudaGetLastError(), what);
}

/* ---- functions for other files --------------------------------------------------------------- */

mc_status mc_cuda_choice(mc_device *d, const char *name, const char *const values[3], int *choice)
{
    const char *value = getenv(name);
    *choice = 0;
    if (!value || !*value) return MC_OK;
    for (int i = 0; i < 3 && !*choice; i++)
        if (values[i] && !strcmp(value, values[i])) *choice = i + 1;
    if (*choice) return MC_OK;
    return mc_cuda_fail(d, MC_ERR_ARGUMENT, "%s=%s, expected %s%s%s%s%s", name, value, values[0],
                        values[1] ? " or " : " or nothing", values[1] ? values[1] : "",
                        values[2] ? " or " : "", values[2] ? values[2] : "");
}

void *mc_cuda_driver_function(const char *name)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
    if (error) cudaGetLastError(); /* clears it: the next launch would report it */
    return error || found != cudaDriverEntryPointSuccess ? NULL : function;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Sets device.memory to the sum over both pools. */
static void add_up(mc_cuda_device *c)
{
    mc_device_memory *all = &c->device.memory;
    all->in_use = c->pool_memory.in_use + c->step_memory.in_use;
    all->reserved = c->pool_memory.reserved + c->step_memory.reserved;
    all->system_calls = c->pool_memory.system_calls + c->step_memory.system_calls;
    if (all->in_use > all->peak) all->peak = all->in_use;
}

static void *direct_alloc(mc_cuda_device *c, size_t bytes)
{
    void *data = NULL;
    if (mc_cuda_check(&c->device, cudaMalloc(&data, bytes ? bytes : 1), "cudaMalloc")) return NULL;
    c->pool_memory.in_use += bytes;
    c->pool_memory.system_calls++;
    add_up(c);
    return data;
}

static void *cuda_alloc(mc_device *d, size_t bytes)
{
    mc_cuda_device *c = mc_cuda_of(d);
    *d->failure = '\0';
    if (c->direct) return direct_alloc(c, bytes);
    void *data = mc_pool_alloc(c->in_step ? c->step_pool : c->pool, bytes);
    add_up(c);
    return data;
}

static void cuda_free(mc_device *d, void *data, size_t bytes)
{
    mc_cuda_device *c = mc_cuda_of(d);
    if (!data || mc_cuda_defer_free(d, data, bytes)) return;
    if (c->direct) {
        cudaFree(data);
        c->pool_memory.in_use -= bytes;
    } else {
        bool of_step = c->step_range && mc_cuda_range_has(c->step_range, data);
        mc_pool_release(of_step ? c->step_pool : c->pool, data, bytes);
    }
    add_up(c);
}

static uint64_t cuda_free_memory(mc_device *d)
{
    size_t free_bytes = 0, total = 0;
    if (mc_cuda_check(d, cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo")) return 0;
    return free_bytes;
}

static void *cuda_host_alloc(mc_device *d, size_t bytes)
{
    void *host = NULL;
    *d->failure = '\0';
    return mc_cuda_check(d, cudaMallocHost(&host, bytes), "cudaMallocHost") ? NULL : host;
}

static void cuda_host_free(mc_device *d, void *host, size_t bytes)
{
    (void)d, (void)bytes;
    if (host) cudaFreeHost(host);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Host data that a recording uploads in each run. */
typedef struct mc_cuda_constant {
    struct mc_cuda_constant *next;
    void *host;
} mc_cuda_constant;

static mc_status upload_recorded(mc_cuda_device *c, void *device, const void *host, size_t bytes)
{
    mc_cuda_constant *kept = mc_malloc(sizeof *kept);
    if (!kept) return mc_cuda_fail(&c->device, MC_ERR_NOMEM, "out of memory for an upload");
    kept->next = c->kept;
    c->kept = kept;
    kept->host = cuda_host_alloc(&c->device, bytes);
    if (!kept->host) return MC_ERR_NOMEM;
    memcpy(kept->host, host, bytes);
    return mc_cuda_check(
        &c->device, cudaMemcpyAsync(device, kept->host, bytes, cudaMemcpyHostToDevice, c->stream),
        "a recorded upload");
}

/* A failure is returned by the next call with a status: CUDA keeps the error of a broken device,
 * and d->failure has the message. */
static void cuda_copy_in(mc_device *d, void *device, const void *host, size_t bytes)
{
    mc_cuda_device *c = mc_cuda_of(d);
    if (!bytes) return;
    mc_cuda_catch_up_later(d);
    if (d->recording)
        c->upload_lost |= upload_recorded(c, device, host, bytes) != MC_OK;
    else
        mc_cuda_check(d, mc_cuda_upload(c->staging, c->stream, device, host, bytes), "an upload");
}

/* Whether results can be relied on, after a wait for the GPU. */
static bool is_reliable(mc_device *d)
{
    const char *why = __atomic_load_n(&d->given_up, __ATOMIC_ACQUIRE);
    if (why) mc_cuda_fail(d, MC_ERR_DEVICE, "%s", why);
    return !why;
}

static bool cuda_copy_out(mc_device *d, void *host, const void *device, size_t bytes)
{
    mc_cuda_device *c = mc_cuda_of(d);
    if (d->recording) {
        mc_cuda_fail(d, MC_ERR_STATE, "a step that is recorded cannot wait for results");
        return false;
    }
    d->waits++;
    if (mc_cuda_catch_up(d)) return false;
    cudaError_t error = cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, c->stream);
    if (!error) error = cudaStreamSynchronize(c->stream);
    return mc_cuda_check(d, error, "a download") == MC_OK && is_reliable(d);
}

static uint64_t cuda_copy_out_later(mc_device *d, void *host, const void *device, size_t bytes)
{
    mc_cuda_device *c = mc_cuda_of(d);
    uint64_t ticket = ++c->tickets;
    mc_cuda_catch_up_later(d);
    cudaError_t error = cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, c->stream);
    if (!error) error = cudaEventRecord(c->done[ticket % MC_CUDA_TICKETS], c->stream);
    mc_cuda_check(d, error, "a download");
    return ticket;
}

/* Whether the ticket's slot has a newer ticket: then it was reached long ago. */
static bool is_overtaken(const mc_cuda_device *c, uint64_t ticket)
{
    return ticket + MC_CUDA_TICKETS <= c->tickets;
}

static bool cuda_is_done(mc_device *d, uint64_t ticket)
{
    mc_cuda_device *c = mc_cuda_of(d);
    if (is_overtaken(c, ticket)) return true;
    /* after a failure, waiting returns the error at once */
    return cudaEventQuery(c->done[ticket % MC_CUDA_TICKETS]) != cudaErrorNotReady;
}

static bool cuda_wait(mc_device *d, uint64_t ticket)
{
    mc_cuda_device *c = mc_cuda_of(d);
    if (is_overtaken(c, ticket)) return true;
    cudaError_t error = cudaEventSynchronize(c->done[ticket % MC_CUDA_TICKETS]);
    return mc_cuda_check(d, error, "waiting for the GPU") == MC_OK && is_reliable(d);
}

static double cuda_elapsed(mc_device *d, uint64_t from, uint64_t to)
{
    mc_cuda_device *c = mc_cuda_of(d);
    float ms;
    if (is_overtaken(c, from) || is_overtaken(c, to)) return NAN;
    cudaError_t error =
        cudaEventElapsedTime(&ms, c->done[from % MC_CUDA_TICKETS], c->done[to % MC_CUDA_TICKETS]);
    return error ? NAN : (double)ms / 1000;
}

/* ---- lanes: streams of copies beside the device's own ---------------------------------------- */

/* A lane is a stream, a fence an event. */
static cudaStream_t stream_of(mc_device *d, mc_lane *lane)
{
    if (lane) return (cudaStream_t)lane;
    mc_cuda_catch_up_later(d);
    return mc_cuda_of(d)->stream;
}

static const char *text_of(cudaError_t error)
{
    if (error) cudaGetLastError(); /* clears it: it is reported here, not by the next launch */
    return error ? cudaGetErrorString(error) : NULL;
}

static const char *cuda_lane_new(mc_device *d, mc_lane **lane)
{
    cudaStream_t stream = NULL;
    (void)d;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    *lane = (mc_lane *)stream;
    return text_of(error);
}

static void cuda_lane_free(mc_device *d, mc_lane *lane)
{
    (void)d;
    if (!lane) return;
    cudaStreamSynchronize((cudaStream_t)lane);
    cudaStreamDestroy((cudaStream_t)lane);
}

static const char *cuda_fence_new(mc_device *d, mc_fence **fence)
{
    cudaEvent_t event = NULL;
    (void)d;
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    *fence = (mc_fence *)event;
    return text_of(error);
}

static void cuda_fence_free(mc_device *d, mc_fence *fence)
{
    (void)d;
    if (fence) cudaEventDestroy((cudaEvent_t)fence);
}

static const char *cuda_fence_set(mc_device *d, mc_fence *fence, mc_lane *lane)
{
    return text_of(cudaEventRecord((cudaEvent_t)fence, stream_of(d, lane)));
}

static const char *cuda_after(mc_device *d, mc_lane *lane, mc_fence *fence)
{
    return text_of(cudaStreamWaitEvent(stream_of(d, lane), (cudaEvent_t)fence, 0));
}

static const char *cuda_fence_wait(mc_device *d, mc_fence *fence)
{
    (void)d;
    return text_of(cudaEventSynchronize((cudaEvent_t)fence));
}

static const char *cuda_pin(mc_device *d, void *host, size_t bytes)
{
    (void)d;
    return text_of(cudaHostRegister(host, bytes, cudaHostRegisterDefault));
}

static void cuda_unpin(mc_device *d, void *host)
{
    (void)d;
    cudaHostUnregister(host);
}

static const char *cuda_lane_copy_in(mc_device *d, mc_lane *lane, void *device, const void *host,
                                     size_t bytes)
{
    return text_of(
        cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_of(d, lane)));
}

static const char *cuda_lane_copy_out(mc_device *d, mc_lane *lane, void *host, const void *device,
                                      size_t bytes)
{
    return text_of(
        cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_of(d, lane)));
}

static const mc_lanes lanes = {.lane_new = cuda_lane_new,
                               .lane_free = cuda_lane_free,
                               .fence_new = cuda_fence_new,
                               .fence_free = cuda_fence_free,
                               .fence_set = cuda_fence_set,
                               .after = cuda_after,
                               .wait = cuda_fence_wait,
                               .pin = cuda_pin,
                               .unpin = cuda_unpin,
                               .copy_in = cuda_lane_copy_in,
                               .copy_out = cuda_lane_copy_out};

/* ---- recording ------------------------------------------------------------------------------- */

static void cuda_step_begin(mc_device *d) { mc_cuda_of(d)->in_step = true; }
static void cuda_step_end(mc_device *d) { mc_cuda_of(d)->in_step = false; }

static bool cuda_record_begin(mc_device *d)
{
    mc_cuda_device *c = mc_cuda_of(d);
    cudaError_t error = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed);
    d->recording = error == cudaSuccess;
    c->upload_lost = false;
    return mc_cuda_check(d, error, "recording a step") == MC_OK;
}

static void *cuda_record_end(mc_device *d)
{
    mc_cuda_device *c = mc_cuda_of(d);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    d->recording = false;
    cudaError_t error = cudaStreamEndCapture(c->stream, &graph);
    if (!error && !c->upload_lost) error = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (!error && c->upload_lost)
        mc_cuda_fail(d, MC_ERR_NOMEM, "no pinned memory for an upload of the step");
    if (error) cudaGetLastError(); /* clears it: it is reported here */
    return mc_cuda_check(d, error, "recording a step") ? NULL : exec;
}

static mc_status cuda_replay(mc_device *d, void *recording)
{
    return mc_cuda_check(d, cudaGraphLaunch(recording, mc_cuda_of(d)->stream),
                         "running a recorded step");
}

static void cuda_recording_free(mc_device *d, void *recording)
{
    (void)d;
    if (recording) cudaGraphExecDestroy(recording);
}

static void cuda_list_open(mc_device *d) { mc_cuda_of(d)->listing = true; }
static mc_status cuda_list_close(mc_device *d)
{
    mc_status status = mc_cuda_catch_up(d);
    mc_cuda_of(d)->listing = false;
    return status;
}

static void cuda_range_begin(mc_device *d, const char *name)
{
    (void)d;
    nvtxRangePushA(name);
}

static void cuda_range_end(mc_device *d)
{
    (void)d;
    nvtxRangePop();
}

/* ---- opening --------------------------------------------------------------------------------- */

static const mc_kernels kernels = {
#define KERNEL(name) .name = mc_cuda_##name,
#include "core/device/kernels.def"
#undef KERNEL
};

static void cuda_close(mc_device *d)
{
    mc_cuda_device *c = mc_cuda_of(d);
    if (c->stream) cudaStreamSynchronize(c->stream);
    mc_preload_free(c->preload);
    mc_cuda_gemm_free(d, c->gemm);
    mc_cuda_defer_end(d);
    if (c->arrivals) cudaFree(c->arrivals);
    mc_cudnn_free(c->cudnn);
    mc_pool_free(c->step_pool);
    mc_pool_free(c->pool);
    mc_cuda_range_free(c->step_range);
    mc_cuda_range_free(c->range);
    mc_cuda_staging_free(c->staging);
    for (mc_cuda_constant *k = c->kept, *next; k; k = next) {
        next = k->next;
        if (k->host) cudaFreeHost(k->host);
        mc_free(k);
    }
    for (int i = 0; i < MC_CUDA_TICKETS; i++)
        if (c->done[i]) cudaEventDestroy(c->done[i]);
    if (c->stream) cudaStreamDestroy(c->stream);
    mc_free(c);
}

/* Selects the GPU with the given number. */
static bool take_gpu(mc_context *ctx, mc_cuda_device *c, int gpu, int count)
{
    c->ordinal = gpu;
    if (gpu < count) return true;
    mc_fail(ctx, MC_ERR_DEVICE, "device \"cuda:%d\": there are %d GPUs, numbered from 0", gpu,
            count);
    return false;
}

/* Selects the GPU: the requested one, the one with this rank's number on its host, or the only
 * visible one. */
static bool choose_gpu(mc_context *ctx, mc_cuda_device *c, int gpu)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error || count < 1) {
        mc_fail(ctx, MC_ERR_DEVICE, "device \"cuda\": no GPU: %s",
                error ? cudaGetErrorString(error) : "the driver shows none");
        return false;
    }
    if (gpu >= 0) return take_gpu(ctx, c, gpu, count);
    c->ordinal = count == 1 ? 0 : ctx->local_rank;
    if (c->ordinal < 0) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "device \"cuda\": the launcher does not give this rank's number on its host: set "
                "LOCAL_RANK, or give the GPU's number as \"cuda:0\"");
        return false;
    }
    if (c->ordinal >= count) {
        mc_fail(ctx, MC_ERR_DEVICE,
                "device \"cuda\": rank %d is number %d on its host, but there are "
                "%d GPUs",
                ctx->mesh.world.rank, ctx->local_rank, count);
        return false;
    }
    return true;
}

static bool read_properties(mc_context *ctx, mc_cuda_device *c)
{
    struct cudaDeviceProp p;
    if (mc_cuda_check(&c->device, cudaGetDeviceProperties(&p, c->ordinal), "the GPU's properties"))
        return false;
    c->multiprocessors = p.multiProcessorCount;
    c->capability = 10 * p.major + p.minor;
    c->device.fp8_tn = c->capability == 90;
    snprintf(c->gpu, sizeof c->gpu, "%s", p.name);
    if (c->capability >= 80) return true;
    mc_fail(ctx, MC_ERR_UNSUPPORTED,
            "device \"cuda\": %s has compute capability %d.%d; 8.0 (Ampere) or later is supported",
            p.name, p.major, p.minor);
    return false;
}

/* NVLink supports what atomic operations need, PCI Express does not. */
static bool is_linked(const mc_cuda_device *c)
{
    int count = 0, atomics = 0;
    bool linked = cudaGetDeviceCount(&count) == cudaSuccess && count > 1;
    for (int i = 0; i < count && linked; i++)
        linked = i == c->ordinal ||
                 (cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                            c->ordinal, i) == cudaSuccess &&
                  atomics);
    cudaGetLastError();
    return linked;
}

static bool read_environment(mc_cuda_device *c)
{
    int deterministic, direct;
    if (mc_cuda_choice(&c->device, "MC_DETERMINISTIC", (const char *const[3]){"1", "0"},
                       &deterministic) ||
        mc_cuda_choice(&c->device, "MC_CUDA_MEMORY", (const char *const[3]){"direct"}, &direct) ||
        mc_routes_read(&c->device, getenv("MC_ROUTE")))
        return false;
    c->deterministic = deterministic == 1;
    c->direct = direct == 1;
    return true;
}

static bool make_memory(mc_cuda_device *c)
{
    mc_device *d = &c->device;
    if (c->direct) { /* freed memory is gone, so a recording of the step could not use it */
        d->record_begin = NULL;
        return true;
    }
    c->range = mc_cuda_range_new(d, c->ordinal, c->several_ranks);
    c->step_range = c->range ? mc_cuda_range_new(d, c->ordinal, c->several_ranks) : NULL;
    if (!c->step_range) return false;
    mc_pool_source source = mc_cuda_range_source(c->range),
                   step_source = mc_cuda_range_source(c->step_range);
    c->pool = mc_pool_new(&c->pool_memory, &source);
    c->step_pool = mc_pool_new(&c->step_memory, &step_source);
    return c->pool && c->step_pool;
}

static bool make_arrivals(mc_cuda_device *c)
{
    size_t bytes = MC_CUDA_ARRIVALS * sizeof *c->arrivals;
    cudaError_t error = cudaMalloc((void **)&c->arrivals, bytes);
    if (!error) error = cudaMemsetAsync(c->arrivals, 0, bytes, c->stream);
    return mc_cuda_check(&c->device, error, "memory for counters") == MC_OK;
}

static bool make_parts(mc_cuda_device *c)
{
    mc_device *d = &c->device;
    if (mc_cuda_check(d, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream"))
        return false;
    for (int i = 0; i < MC_CUDA_TICKETS; i++)
        if (mc_cuda_check(d, cudaEventCreate(&c->done[i]), "an event")) return false;
    return make_arrivals(c) && mc_cuda_defer_begin(d) && make_memory(c) &&
           (c->staging = mc_cuda_staging_new(d)) && (c->gemm = mc_cuda_gemm_new(d));
}

/* Dense FLOP/s by the makers' data sheets. */
static double cuda_peak_rate(mc_device *d, mc_dtype dtype)
{
    static const struct {
        const char *name;
        double half, single;
    } gpus[] = {{"H200", 989.4e12, 66.9e12},     {"H100 PCIe", 756e12, 51.2e12},
                {"H100", 989.4e12, 66.9e12},     {"A100", 312e12, 19.5e12},
                {"RTX 4090", 165.2e12, 82.6e12}, {"L40S", 362e12, 91.6e12},
                {"RTX 3090", 71e12, 35.6e12}};
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (strstr(mc_cuda_of(d)->gpu, gpus[i].name))
            return dtype == MC_F32 ? gpus[i].single : gpus[i].half;
    return 0;
}

static void *cuda_stream(mc_device *d)
{
    mc_cuda_catch_up_later(d);
    return mc_cuda_of(d)->stream;
}

const mc_device mc_cuda_plain = {.name = "cuda",
                                 .kernels = &kernels,
                                 .alloc = cuda_alloc,
                                 .free = cuda_free,
                                 .free_memory = cuda_free_memory,
                                 .planning = &mc_cuda_planning_kernels,
                                 .peak_rate = cuda_peak_rate,
                                 .copy_in = cuda_copy_in,
                                 .copy_out = cuda_copy_out,
                                 .copy_out_later = cuda_copy_out_later,
                                 .is_done = cuda_is_done,
                                 .elapsed = cuda_elapsed,
                                 .wait = cuda_wait,
                                 .host_alloc = cuda_host_alloc,
                                 .host_free = cuda_host_free,
                                 .lanes = &lanes,
                                 .step_begin = cuda_step_begin,
                                 .step_end = cuda_step_end,
                                 .record_begin = cuda_record_begin,
                                 .record_end = cuda_record_end,
                                 .replay = cuda_replay,
                                 .recording_free = cuda_recording_free,
                                 .list_open = cuda_list_open,
                                 .list_close = cuda_list_close,
                                 .range_begin = cuda_range_begin,
                                 .range_end = cuda_range_end,
                                 .stream = cuda_stream,
                                 .enter = mc_cuda_enter,
                                 .leave = mc_cuda_leave,
                                 .close = cuda_close,
                                 .logits_chunk = MC_GPU_LOGITS_CHUNK};

/* Called with the GPU current. */
static bool set_up(mc_context *ctx, mc_cuda_device *c)
{
    bool good = read_properties(ctx, c) && make_parts(c);
    if (good) c->device.linked = c->several_ranks && is_linked(c);
    return good;
}

mc_device *mc_cuda_open(mc_context *ctx, int gpu)
{
    mc_cuda_device *c = mc_calloc(1, sizeof *c);
    if (!c) {
        mc_fail_nomem(ctx, "the cuda device");
        return NULL;
    }
    mc_device *d = &c->device;
    *d = mc_cuda_guarded();
    c->several_ranks = ctx->mesh.world.size > 1;
    bool good = read_environment(c) && choose_gpu(ctx, c, gpu);
    if (good) c->preload = mc_preload_new(); /* while the GPU starts */
    good = good && mc_cuda_current_find(d, c->ordinal, &c->current);
    bool entered = mc_cuda_enter(d);
    good = good && set_up(ctx, c);
    mc_cuda_leave(d, entered);
    if (good) return d;
    if (!mc_failed(ctx))
        mc_fail(ctx, MC_ERR_DEVICE, "device \"cuda\": %s",
                *d->failure ? d->failure : "out of host memory");
    d->close(d);
    return NULL;
}

/* ---- files for later runs -------------------------------------------------------------------- */

bool mc_cuda_cache_path(mc_device *d, const char *name, char *path, size_t size)
{
    char folder[MC_PATH_MAX];
    mc_error ignored = {0};
    (void)d;
    bool made = mc_path_cache(folder) && mc_make_folders(&ignored, folder) == MC_OK;
    mc_error_clear(&ignored);
    if (!made) return false;
    int length = snprintf(path, size, "%s/%s", folder, name);
    return length > 0 && (size_t)length < size;
}
