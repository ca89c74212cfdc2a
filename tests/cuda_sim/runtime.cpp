/* The runtime's functions. What is put on a stream waits there until the host waits for it, or
 * until chance runs a part of it, so that a host that does not wait finds its results missing;
 * MC_CUDA_SIM_STREAMS takes chance away. */
#include <sys/mman.h>
#include <unistd.h>
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>
#include "tests/cuda_sim/simulator.h"

namespace mc_sim
{

std::recursive_mutex big_lock;

namespace
{

struct operation {
    const char *name;
    std::function<void()> run;
    void *host_written; /* pinned memory that it will write */
    size_t host_bytes;
};

} // namespace
} // namespace mc_sim

using namespace mc_sim;

struct CUgraph_st {
    std::vector<operation> operations; /* in the order of the calls, whatever the streams */
    CUstream_st *origin;
    bool broken;
};

struct CUgraphExec_st {
    std::vector<operation> operations;
};

struct CUstream_st {
    int gpu;
    std::deque<operation> queue;
    size_t most; /* operations that may wait */
    CUgraph_st *capture;
    uint64_t recorded, joined; /* operations of a capture; those that its origin waits for */
    bool computes;             /* it has had kernels */
};

struct CUevent_st {
    int gpu;
    bool timed, recorded;
    CUgraph_st *captured;     /* that the last record is part of */
    uint64_t captured_behind; /* so many operations of its stream */
    uint64_t wanted, done;    /* records put on a stream, and run */
    CUstream_st *stream;      /* of the last record */
    double time;              /* milliseconds */
};

namespace mc_sim
{
namespace
{

/* When streams run, beside when they have to: see README.md. */
enum stream_order { BY_CHANCE, LATE, AHEAD };

stream_order order_of_streams()
{
    const char *setting = getenv("MC_CUDA_SIM_STREAMS");
    if (!setting || !*setting) return BY_CHANCE;
    if (strcmp(setting, "late") == 0) return LATE;
    if (strcmp(setting, "ahead") == 0) return AHEAD;
    fail("MC_CUDA_SIM_STREAMS is \"%s\", expected \"late\" or \"ahead\"", setting);
}

enum memory_kind { DEVICE, PINNED };
struct memory_block {
    size_t bytes;
    memory_kind kind;
};
struct address_range {
    size_t bytes;
    std::map<uintptr_t, size_t> mapped; /* begin, bytes */
    std::map<uintptr_t, size_t> open;
};

/* What exists. At the end of the program all of it has to be gone. */
struct world {
    cudaError_t last_error = cudaSuccess;
    std::map<uintptr_t, memory_block> memory;
    std::map<uintptr_t, address_range> ranges;
    std::map<uintptr_t, size_t> handles; /* of physical memory; bytes */
    std::vector<CUstream_st *> streams;
    std::map<const void *, size_t> allowed;
    size_t used = 0;
    long until_failure = 0, tries = 0; /* of calls that take memory, streams or events */
    std::vector<CUevent_st *> retired; /* events destroyed, which work on a stream may wait for */
    const stream_order order = order_of_streams();
    unsigned asked = 0; /* queries since anything was put on a stream */
    int events = 0, graphs = 0, execs = 0;
    double clock = 0;
    std::thread::id host = std::this_thread::get_id(); /* asks for the work to go on, by asking */
    CUstream_st null_stream{0, {}, 8, nullptr, 0, 0, false};
};

world &w()
{
    static world *all = new world;
    return *all;
}

cudaError_t failed(cudaError_t error)
{
    if (error != cudaSuccess) w().last_error = error;
    return error;
}

/* Whether this is the call that a test wants to fail. */
bool has_to_fail()
{
    w().tries++;
    return w().until_failure && --w().until_failure == 0;
}

/* ---- current GPUs ---------------------------------------------------------------------------- */

enum { MOST_GPUS = 8 };

int count_gpus()
{
    const char *setting = getenv("MC_CUDA_SIM_GPUS");
    int count = setting ? atoi(setting) : 1;
    if (count < 1 || count > MOST_GPUS)
        fail("MC_CUDA_SIM_GPUS is \"%s\", expected 1 to %d", setting, (int)MOST_GPUS);
    return count;
}

/* A context is its GPU's number, from 1. A thread has a stack of them, empty at first; the last one
 * is current. */
thread_local std::vector<CUcontext> current;

CUcontext context_of(int gpu) { return (CUcontext)(uintptr_t)(gpu + 1); }

/* The runtime takes the first GPU where none is current, which stays so. */
int current_gpu()
{
    if (current.empty()) current.push_back(context_of(0));
    return (int)(uintptr_t)current.back() - 1;
}

CUstream_st *stream_of(cudaStream_t stream)
{
    current_gpu(); /* as any call of the runtime */
    if (!stream) return &w().null_stream;
    for (CUstream_st *s : w().streams)
        if (s == stream) return s;
    fail("a stream that does not exist (any more)");
}

/* ---- queues ---------------------------------------------------------------------------------- */

void run_one(CUstream_st *s)
{
    if (s->queue.empty()) fail("a wait for what is on no stream");
    operation o = std::move(s->queue.front());
    s->queue.pop_front();
    o.run();
}

void run_all(CUstream_st *s)
{
    while (!s->queue.empty()) run_one(s);
}

void run_some(CUstream_st *s, size_t most)
{
    for (size_t n = random_bits() % (most + 1); n > 0 && !s->queue.empty(); n--) run_one(s);
}

/* The host asks whether a stream is done: without chance it is so when it has asked often. */
void be_asked(CUstream_st *s, size_t most)
{
    enum { PATIENCE = 20 };
    if (w().order == BY_CHANCE)
        run_some(s, most);
    else if (++w().asked >= PATIENCE)
        run_all(s);
}

void run_everything()
{
    run_all(&w().null_stream);
    for (CUstream_st *s : w().streams) run_all(s);
}

void put(CUstream_st *s, operation o)
{
    if (s->capture) {
        s->capture->operations.push_back(std::move(o));
        s->recorded++;
        return;
    }
    if (o.host_written) memset(o.host_written, 0xff, o.host_bytes); /* until the copy is done */
    s->queue.push_back(std::move(o));
    w().asked = 0;
    if (w().order == AHEAD && !s->computes) run_all(s);
    if (w().order != BY_CHANCE) return;
    if (w().streams.size() > 1 && chance(8)) /* others go on meanwhile, or do not */
        run_some(w().streams[random_bits() % w().streams.size()], 4);
    if (s->queue.size() <= s->most) return;
    run_some(s, s->queue.size());
    s->most = 1 + random_bits() % 64;
}

/* Waiting, and all that waits, is forbidden while steps are recorded. */
bool is_capturing(bool breaks)
{
    bool any = false;
    for (CUstream_st *s : w().streams)
        if (s->capture) {
            any = true;
            if (breaks) s->capture->broken = true;
        }
    return any;
}

/* ---- memory ---------------------------------------------------------------------------------- */

const memory_block *find_memory(const void *data, uintptr_t *begin)
{
    auto next = w().memory.upper_bound((uintptr_t)data);
    if (next == w().memory.begin()) return nullptr;
    --next;
    *begin = next->first;
    return (uintptr_t)data < next->first + next->second.bytes ? &next->second : nullptr;
}

bool in_range(const void *data, size_t bytes, bool *mapped)
{
    uintptr_t at = (uintptr_t)data, end = at + bytes;
    auto next = w().ranges.upper_bound(at);
    if (next == w().ranges.begin()) return false;
    --next;
    const address_range &r = next->second;
    if (at >= next->first + r.bytes) return false;
    while (at < end) { /* pieces lie side by side */
        auto piece = r.open.upper_bound(at);
        if (piece == r.open.begin()) break;
        --piece;
        if (at >= piece->first + piece->second) break;
        at = piece->first + piece->second;
    }
    *mapped = at >= end;
    return true;
}

bool is_pinned(const void *data, size_t bytes, const char *what)
{
    uintptr_t begin;
    const memory_block *m = find_memory(data, &begin);
    if (!m) return false;
    if (m->kind != PINNED) fail("%s: memory of the GPU where the host's is expected", what);
    if ((uintptr_t)data + bytes > begin + m->bytes) fail("%s: past the end of pinned memory", what);
    return true;
}

#ifdef MC_SIM_RACES
/* Addresses of the GPU's memory, which the race detector knows by their range. */
void *arena_take(size_t bytes, int access)
{
    static uintptr_t next = ARENA;
    void *at = mmap((void *)next, bytes, access,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    next += (bytes / 4096 + 2) * 4096;
    return at == MAP_FAILED ? nullptr : at;
}
#endif

void *find_place(size_t bytes, memory_kind kind)
{
#ifdef MC_SIM_RACES
    if (kind == DEVICE) return arena_take(bytes, PROT_READ | PROT_WRITE);
#endif
    void *at = nullptr;
    (void)kind;
    return posix_memalign(&at, 512, bytes) ? nullptr : at;
}

void give_place(void *data, size_t bytes, memory_kind kind)
{
#ifdef MC_SIM_RACES
    if (kind == DEVICE) {
        munmap(data, bytes);
        return;
    }
#endif
    (void)bytes, (void)kind;
    free(data);
}

cudaError_t allocate(void **data, size_t bytes, memory_kind kind)
{
    lock hold(big_lock);
    current_gpu();
    if (has_to_fail()) return failed(cudaErrorMemoryAllocation);
    if (kind == DEVICE && bytes > GPU_MEMORY - w().used) return failed(cudaErrorMemoryAllocation);
    size_t whole = bytes ? bytes : 1;
    void *at = find_place(whole, kind);
    if (!at) return failed(cudaErrorMemoryAllocation);
    memset(at, 0xff, whole);
    w().memory[(uintptr_t)at] = {bytes, kind};
    if (kind == DEVICE) w().used += bytes;
    *data = at;
    return cudaSuccess;
}

cudaError_t release(void *data, memory_kind kind)
{
    lock hold(big_lock);
    if (!data) return cudaSuccess;
    auto it = w().memory.find((uintptr_t)data);
    if (it == w().memory.end() || it->second.kind != kind) return failed(cudaErrorInvalidValue);
    run_everything();
    if (kind == DEVICE) w().used -= it->second.bytes;
    give_place(data, std::max(it->second.bytes, (size_t)1), kind);
    w().memory.erase(it);
    return cudaSuccess;
}

/* ---- at the end ------------------------------------------------------------------------------ */

struct at_end {
    ~at_end()
    {
        size_t device = 0, pinned = 0;
        for (auto &m : w().memory) (m.second.kind == DEVICE ? device : pinned) += m.second.bytes;
        size_t left = w().streams.size() + w().ranges.size() + w().handles.size();
        if (!device && !pinned && !left && !w().events && !w().graphs && !w().execs) return;
        fprintf(stderr,
                "CUDA simulator: left at the end: %zu bytes of the GPU, %zu pinned, %zu streams, "
                "%zu ranges, %zu physical pieces, %d events, %d graphs, %d executable graphs\n",
                device, pinned, w().streams.size(), w().ranges.size(), w().handles.size(),
                w().events, w().graphs, w().execs);
        _Exit(98);
    }
} at_end_of_program;

} // namespace

void check_device_memory(const void *data, size_t bytes, const char *what)
{
    uintptr_t begin;
    bool mapped;
    if (!bytes) return;
    const memory_block *m = find_memory(data, &begin);
    if (m) {
        if (m->kind != DEVICE) fail("%s: the host's memory where the GPU's is expected", what);
        if ((uintptr_t)data + bytes <= begin + m->bytes) return;
        fail("%s: %zu bytes at %zu of an allocation of %zu", what, bytes, (uintptr_t)data - begin,
             m->bytes);
    }
    if (!in_range(data, bytes, &mapped)) fail("%s: %p is not memory of the GPU", what, data);
    if (!mapped) fail("%s: %p + %zu is reserved, but not all mapped", what, data, bytes);
}

void enqueue(cudaStream_t stream, const char *name, std::function<void()> work)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (s != &w().null_stream && s->gpu != current_gpu())
        fail("%s: on a stream of GPU %d, while GPU %d is current", name, s->gpu, current_gpu());
    s->computes = true;
    put(s, {name, std::move(work), nullptr, 0});
}

void run_next(cudaStream_t stream)
{
    lock hold(big_lock);
    run_one(stream_of(stream));
}

void enqueue_quietly(cudaStream_t stream, const char *name, std::function<void()> work)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (s->capture)
        put(s, {name, std::move(work), nullptr, 0});
    else
        s->queue.push_back({name, std::move(work), nullptr, 0});
}

bool is_recording(cudaStream_t stream)
{
    lock hold(big_lock);
    return stream_of(stream)->capture;
}

bool is_in_use()
{
    lock hold(big_lock);
    return !w().streams.empty();
}

size_t allowed_shared(const void *kernel)
{
    auto it = w().allowed.find(kernel);
    return it == w().allowed.end() ? 0 : it->second;
}

bool check_launch(const void *kernel, const config &c)
{
    lock hold(big_lock);
    uint64_t threads = (uint64_t)c.block.x * c.block.y * c.block.z;
    size_t shared = std::max(allowed_shared(kernel), USUAL_SHARED);
    bool good = c.grid.x && c.grid.y && c.grid.z && c.grid.x <= 0x7fffffff && c.grid.y <= 65535 &&
                c.grid.z <= 65535 && threads && threads <= 1024 && c.block.z <= 64;
    if (!good)
        failed(cudaErrorInvalidConfiguration);
    else if (c.shared > shared)
        failed(cudaErrorInvalidValue);
    return good && c.shared <= shared;
}

} // namespace mc_sim

extern "C" {

/* For tests: the nth call from now that takes memory, a stream, an event or a recording fails (0:
 * none); and how many there were since. */
void mc_sim_fail_at(long n)
{
    lock hold(big_lock);
    w().until_failure = n;
    w().tries = 0;
}

long mc_sim_tries(void)
{
    lock hold(big_lock);
    return w().tries;
}

/* ---- errors ---------------------------------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
    lock hold(big_lock);
    cudaError_t error = w().last_error;
    w().last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return w().last_error; }

const char *cudaGetErrorName(cudaError_t error)
{
    switch ((int)error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureMerge: return "cudaErrorStreamCaptureMerge";
    case cudaErrorIllegalState: return "cudaErrorIllegalState";
    default: return "cudaErrorOther";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch ((int)error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNotReady: return "device not ready";
    default: return "an error of the simulator";
    }
}

/* ---- the device ------------------------------------------------------------------------------ */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = count_gpus();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= count_gpus()) return failed(cudaErrorInvalidDevice);
    if (current.empty()) current.push_back(nullptr);
    current.back() = context_of(device);
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current.empty() ? 0 : current_gpu();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (device < 0 || device >= count_gpus()) return failed(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "CUDA simulator");
    p->major = 9;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->totalGlobalMem = GPU_MEMORY;
    p->sharedMemPerBlock = USUAL_SHARED;
    p->sharedMemPerBlockOptin = LARGEST_SHARED;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr name, int device)
{
    if (device < 0 || device >= count_gpus()) return failed(cudaErrorInvalidDevice);
    switch (name) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)LARGEST_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)USUAL_SHARED; break;
    case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
    case cudaDevAttrMemoryPoolSupportedHandleTypes: *value = 0; break;
    case cudaDevAttrCooperativeLaunch: *value = 0; break; /* blocks run one after another */
    default: fail("cudaDeviceGetAttribute: attribute %d is not simulated", (int)name);
    }
    return cudaSuccess;
}

/* GPUs have no link. */
cudaError_t cudaDeviceGetP2PAttribute(int *, enum cudaDeviceP2PAttr, int, int)
{
    return failed(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize(void)
{
    lock hold(big_lock);
    if (is_capturing(true)) return failed(cudaErrorStreamCaptureUnsupported);
    run_everything();
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute name, int value)
{
    lock hold(big_lock);
    if (name != cudaFuncAttributeMaxDynamicSharedMemorySize)
        fail("cudaFuncSetAttribute: attribute %d is not simulated", (int)name);
    if (value < 0 || (size_t)value > LARGEST_SHARED) return failed(cudaErrorInvalidValue);
    w().allowed[kernel] = (size_t)value;
    return cudaSuccess;
}

/* One or two, by chance: what is launched may depend on it, results may not. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int threads, size_t shared)
{
    lock hold(big_lock);
    *blocks = 0;
    if (threads < 1 || threads > 1024) return failed(cudaErrorInvalidValue);
    if (shared > std::max(allowed_shared(kernel), USUAL_SHARED)) return cudaSuccess;
    *blocks = threads <= 512 && 2 * shared <= LARGEST_SHARED ? 2 : 1;
    return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **data, size_t bytes) { return allocate(data, bytes, DEVICE); }
cudaError_t cudaMallocHost(void **data, size_t bytes) { return allocate(data, bytes, PINNED); }
cudaError_t cudaFree(void *data) { return release(data, DEVICE); }
cudaError_t cudaFreeHost(void *data) { return release(data, PINNED); }

/* Fails now and then: a program has to do without. */
cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned)
{
    lock hold(big_lock);
    uintptr_t begin;
    const char *last = (const char *)data + bytes - 1;
    if (!data || !bytes) return failed(cudaErrorInvalidValue);
    if (find_memory(data, &begin) || find_memory(last, &begin))
        return failed(cudaErrorHostMemoryAlreadyRegistered);
    if (random_bits() % 4 == 0) return failed(cudaErrorMemoryAllocation);
    w().memory[(uintptr_t)data] = {bytes, PINNED};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *data)
{
    lock hold(big_lock);
    auto m = w().memory.find((uintptr_t)data);
    if (m == w().memory.end() || m->second.kind != PINNED)
        return failed(cudaErrorHostMemoryNotRegistered);
    run_everything(); /* it waits */
    w().memory.erase(m);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    lock hold(big_lock);
    *left = GPU_MEMORY - w().used;
    *total = GPU_MEMORY;
    return cudaSuccess;
}

/* Pageable memory is read at once, and written before the call comes back. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (!bytes) return cudaSuccess;
    if (kind == cudaMemcpyHostToDevice) {
        check_device_memory(to, bytes, "cudaMemcpyAsync to the GPU");
        if (is_pinned(from, bytes, "cudaMemcpyAsync to the GPU")) {
            put(s, {"copy in", [=] { memcpy(to, from, bytes); }, nullptr, 0});
            return cudaSuccess;
        }
        auto kept =
            std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
        put(s, {"copy in", [=] { memcpy(to, kept->data(), bytes); }, nullptr, 0});
        return cudaSuccess;
    }
    if (kind == cudaMemcpyDeviceToDevice) {
        check_device_memory(to, bytes, "cudaMemcpyAsync on the GPU");
        check_device_memory(from, bytes, "cudaMemcpyAsync on the GPU");
        put(s, {"copy", [=] { memmove(to, from, bytes); }, nullptr, 0});
        return cudaSuccess;
    }
    if (kind != cudaMemcpyDeviceToHost) return failed(cudaErrorInvalidValue);
    check_device_memory(from, bytes, "cudaMemcpyAsync from the GPU");
    if (is_pinned(to, bytes, "cudaMemcpyAsync from the GPU")) {
        put(s, {"copy out", [=] { memcpy(to, from, bytes); }, to, bytes});
        return cudaSuccess;
    }
    if (s->capture) {
        s->capture->broken = true;
        return failed(cudaErrorStreamCaptureUnsupported);
    }
    run_all(s);
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream)
{
    lock hold(big_lock);
    check_device_memory(data, bytes, "cudaMemsetAsync");
    put(stream_of(stream), {"memset", [=] { memset(data, value, bytes); }, nullptr, 0});
    return cudaSuccess;
}

cudaError_t cudaMemset2DAsync(void *data, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream)
{
    lock hold(big_lock);
    if (!width || !height) return cudaSuccess;
    if (pitch < width) return failed(cudaErrorInvalidPitchValue);
    check_device_memory(data, (height - 1) * pitch + width, "cudaMemset2DAsync");
    put(stream_of(stream), {"memset",
                            [=] {
                                for (size_t i = 0; i < height; i++)
                                    memset((char *)data + i * pitch, value, width);
                            },
                            nullptr, 0});
    return cudaSuccess;
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    lock hold(big_lock);
    if (has_to_fail()) return failed(cudaErrorMemoryAllocation);
    *stream = new CUstream_st{current_gpu(), {}, 1 + random_bits() % 64, nullptr, 0, 0, false};
    w().streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    run_all(s);
    w().streams.erase(std::find(w().streams.begin(), w().streams.end(), s));
    if (s->capture) fail("a stream that records is destroyed");
    delete s;
    if (!w().streams.empty()) return cudaSuccess;
    for (CUevent_st *event : w().retired) delete event;
    w().retired.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (s->capture) {
        s->capture->broken = true;
        return failed(cudaErrorStreamCaptureUnsupported);
    }
    run_all(s);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (s->queue.empty()) return cudaSuccess;
    be_asked(s, 4);
    return cudaErrorNotReady;
}

/* ---- events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    lock hold(big_lock);
    if (has_to_fail()) return failed(cudaErrorMemoryAllocation);
    *event = new CUevent_st{
        current_gpu(), !(flags & cudaEventDisableTiming), false, nullptr, 0, 0, 0, nullptr, 0};
    w().events++;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    lock hold(big_lock);
    w().retired.push_back(event); /* who waits for it has to find it */
    w().events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (event->gpu != s->gpu)
        fail("an event of GPU %d is recorded on a stream of GPU %d", event->gpu, s->gpu);
    event->recorded = true;
    event->captured = s->capture;
    event->captured_behind = s->recorded;
    event->stream = stream;
    if (event->captured) return cudaSuccess; /* orders what is recorded, no more */
    uint64_t number = ++event->wanted;
    put(s, {"event",
            [=] {
                event->done = number;
                event->time = w().clock += 0.01 + random_bits() % 1000 * 1e-3;
            },
            nullptr, 0});
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::unique_lock<std::recursive_mutex> hold(big_lock, std::try_to_lock);
    if (!hold) { /* another thread is at work, maybe for long */
        uint64_t done = __atomic_load_n(&event->done, __ATOMIC_ACQUIRE);
        return done == event->wanted ? cudaSuccess : cudaErrorNotReady;
    }
    if (event->captured) return failed(cudaErrorCapturedEvent);
    if (event->done == event->wanted) return cudaSuccess;
    if (std::this_thread::get_id() == w().host) be_asked(stream_of(event->stream), 3);
    return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (w().order == LATE && std::this_thread::get_id() != w().host) usleep(1000); /* it too */
    lock hold(big_lock);
    if (event->captured) return failed(cudaErrorCapturedEvent);
    while (event->done != event->wanted) run_one(stream_of(event->stream));
    return cudaSuccess;
}

/* The stream waits for the event's last record: for nothing where there is none. In a capture the
 * stream becomes part of it. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (!event->recorded) return cudaSuccess;
    if (event->captured) {
        CUstream_st *from = event->stream;
        if (!from->capture || from->capture != event->captured)
            return failed(cudaErrorCapturedEvent);
        if (s->capture && s->capture != event->captured) return failed(cudaErrorStreamCaptureMerge);
        if (!s->capture) {
            s->capture = event->captured;
            s->recorded = s->joined = 0;
        }
        if (s == s->capture->origin) from->joined = std::max(from->joined, event->captured_behind);
        return cudaSuccess;
    }
    if (s->capture) {
        s->capture->broken = true;
        return failed(cudaErrorStreamCaptureIsolation);
    }
    uint64_t number = event->wanted;
    cudaStream_t from = event->stream;
    put(s, {"wait",
            [=] {
                while (event->done < number) run_one(stream_of(from));
            },
            nullptr, 0});
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    lock hold(big_lock);
    if (!begin->timed || !end->timed || !begin->recorded || !end->recorded)
        return failed(cudaErrorInvalidResourceHandle);
    if (begin->done != begin->wanted || end->done != end->wanted) return cudaErrorNotReady;
    *ms = (float)(end->time - begin->time);
    return cudaSuccess;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    if (!stream) return failed(cudaErrorStreamCaptureUnsupported);
    if (s->capture) return failed(cudaErrorIllegalState);
    s->capture = new CUgraph_st{{}, s, false};
    s->recorded = s->joined = 0;
    w().graphs++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    *graph = nullptr;
    if (!s->capture) return failed(cudaErrorIllegalState);
    CUgraph_st *got = s->capture;
    if (got->origin != s) return failed(cudaErrorStreamCaptureUnmatched);
    bool unjoined = false;
    for (CUstream_st *other : w().streams) {
        if (other->capture != got) continue;
        unjoined |= other != s && other->joined < other->recorded;
        other->capture = nullptr;
    }
    if (got->broken || unjoined) {
        cudaError_t error =
            unjoined ? cudaErrorStreamCaptureUnjoined : cudaErrorStreamCaptureInvalidated;
        delete got;
        w().graphs--;
        return failed(error);
    }
    *graph = got;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    *status = !s->capture          ? cudaStreamCaptureStatusNone
              : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    lock hold(big_lock);
    if (has_to_fail()) return failed(cudaErrorMemoryAllocation);
    *exec = new CUgraphExec_st{graph->operations};
    w().execs++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    lock hold(big_lock);
    delete graph;
    w().graphs--;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    lock hold(big_lock);
    CUstream_st *s = stream_of(stream);
    for (const operation &o : exec->operations) put(s, o);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    lock hold(big_lock);
    delete exec; /* what was launched is on the stream */
    w().execs--;
    return cudaSuccess;
}

} // extern "C"

/* ---- the driver: memory in ranges of addresses ----------------------------------------------- */

static CUresult address_reserve(CUdeviceptr *at, size_t bytes, size_t, CUdeviceptr,
                                unsigned long long)
{
    lock hold(big_lock);
    if (!bytes || bytes % ((size_t)2 << 20)) return CUDA_ERROR_INVALID_VALUE;
#ifdef MC_SIM_RACES
    void *data = arena_take(bytes, PROT_NONE);
    if (!data) return CUDA_ERROR_OUT_OF_MEMORY;
#else
    void *data =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
#endif
    w().ranges[(uintptr_t)data] = {bytes, {}, {}};
    *at = (CUdeviceptr)data;
    return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr at, size_t bytes)
{
    lock hold(big_lock);
    auto r = w().ranges.find((uintptr_t)at);
    if (r == w().ranges.end() || r->second.bytes != bytes || !r->second.mapped.empty())
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)at, bytes);
    w().ranges.erase(r);
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *property, unsigned long long)
{
    static uintptr_t last;
    lock hold(big_lock);
    if (!bytes || bytes % ((size_t)2 << 20) || property->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        property->location.type != CU_MEM_LOCATION_TYPE_DEVICE || property->location.id < 0 ||
        property->location.id >= count_gpus())
        return CUDA_ERROR_INVALID_VALUE;
    if (has_to_fail() || bytes > GPU_MEMORY - w().used) return CUDA_ERROR_OUT_OF_MEMORY;
    w().used += bytes;
    w().handles[++last] = bytes;
    *handle = (CUmemGenericAllocationHandle)last;
    return CUDA_SUCCESS;
}

static CUresult release_handle(CUmemGenericAllocationHandle handle)
{
    lock hold(big_lock);
    auto h = w().handles.find((uintptr_t)handle);
    if (h == w().handles.end()) return CUDA_ERROR_INVALID_VALUE;
    w().used -= h->second;
    w().handles.erase(h);
    return CUDA_SUCCESS;
}

static address_range *range_around(uintptr_t at, size_t bytes)
{
    for (auto &r : w().ranges)
        if (at >= r.first && at + bytes <= r.first + r.second.bytes) return &r.second;
    return nullptr;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle h,
                    unsigned long long)
{
    lock hold(big_lock);
    address_range *r = range_around((uintptr_t)at, bytes);
    auto handle = w().handles.find((uintptr_t)h);
    if (!r || offset || handle == w().handles.end() || handle->second != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (auto &m : r->mapped)
        if (at < m.first + m.second && m.first < at + bytes) return CUDA_ERROR_INVALID_VALUE;
    r->mapped[(uintptr_t)at] = bytes;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr at, size_t bytes)
{
    lock hold(big_lock);
    address_range *r = range_around((uintptr_t)at, bytes);
    if (!r) return CUDA_ERROR_INVALID_VALUE;
    for (CUstream_st *s : w().streams)
        if (!s->queue.empty()) fail("memory is unmapped while a stream has work to do");
    for (auto m = r->mapped.begin(); m != r->mapped.end();)
        m = m->first >= at && m->first + m->second <= at + bytes ? r->mapped.erase(m)
                                                                 : std::next(m);
    for (auto m = r->open.begin(); m != r->open.end();)
        m = m->first >= at && m->first + m->second <= at + bytes ? r->open.erase(m) : std::next(m);
    madvise((void *)at, bytes, MADV_DONTNEED);
    mprotect((void *)at, bytes, PROT_NONE);
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *, size_t count)
{
    lock hold(big_lock);
    address_range *r = range_around((uintptr_t)at, bytes);
    if (!r || count != 1 || !r->mapped.count((uintptr_t)at) || r->mapped[(uintptr_t)at] != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (mprotect((void *)at, bytes, PROT_READ | PROT_WRITE)) return CUDA_ERROR_OUT_OF_MEMORY;
    memset((void *)at, 0xff, bytes);
    r->open[(uintptr_t)at] = bytes;
    return CUDA_SUCCESS;
}

/* ---- the driver: contexts -------------------------------------------------------------------- */

static CUresult device_get(CUdevice *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= count_gpus()) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult primary_retain(CUcontext *context, CUdevice device)
{
    *context = context_of(device);
    return CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *context)
{
    *context = current.empty() ? nullptr : current.back();
    return CUDA_SUCCESS;
}

static CUresult push_current(CUcontext context)
{
    current.push_back(context);
    return CUDA_SUCCESS;
}

static CUresult pop_current(CUcontext *context)
{
    if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = current.back();
    current.pop_back();
    return CUDA_SUCCESS;
}

extern "C" cudaError_t
cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                 enum cudaDriverEntryPointQueryResult *status)
{
    static const struct {
        const char *name;
        void *function;
    } all[] = {{"cuMemAddressReserve", (void *)address_reserve},
               {"cuMemAddressFree", (void *)address_free},
               {"cuMemCreate", (void *)create},
               {"cuMemRelease", (void *)release_handle},
               {"cuMemMap", (void *)map},
               {"cuMemUnmap", (void *)unmap},
               {"cuMemSetAccess", (void *)set_access},
               {"cuDeviceGet", (void *)device_get},
               {"cuDevicePrimaryCtxRetain", (void *)primary_retain},
               {"cuCtxGetCurrent", (void *)get_current},
               {"cuCtxPushCurrent", (void *)push_current},
               {"cuCtxPopCurrent", (void *)pop_current}};
    for (const auto &f : all)
        if (strcmp(f.name, name) == 0) {
            *function = f.function;
            *status = cudaDriverEntryPointSuccess;
            return cudaSuccess;
        }
    *function = nullptr;
    *status = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
