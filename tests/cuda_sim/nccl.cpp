/* NCCL for processes of one host, as far as core/dist/comm_nccl.c uses it. Ranks exchange through
 * shared memory, chunk by chunk; an operation is a piece of work on a simulated stream.
 *
 * It is as hard to please as a non-blocking communicator of NCCL 2.28: calls come back before they
 * have launched anything (ncclInProgress), which happens while ncclCommGetAsyncError is asked; a call
 * before that is an error. Work on several streams runs in the order of the calls. Aborting ends
 * work that waits for other ranks, and comes back only when no recorded step has work of it. */
#ifdef MC_HAVE_NCCL
#include <dlfcn.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
#include "tests/cuda_sim/simulator.h"

using namespace mc_sim;

namespace
{

constexpr int MOST_RANKS = 8;
constexpr size_t CHUNK = 1 << 20;

/* What the ranks of a communicator share; for a pair of ranks, a mailbox. */
struct mailbox {
    std::atomic<uint64_t> posted, taken;
    size_t bytes;
    char data[CHUNK];
};
struct shared {
    std::atomic<uint64_t> joined, arrived[MOST_RANKS], finished[MOST_RANKS];
    uint64_t what[MOST_RANKS]; /* kind and size of the operation: equal on all ranks */
    int colour[MOST_RANKS], key[MOST_RANKS];
    char data[MOST_RANKS][CHUNK];
    mailbox box[MOST_RANKS][MOST_RANKS];
};

struct call {
    ncclComm *comm;
    int kind;
    const char *src;
    char *dst;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer;
    cudaStream_t stream;
};

enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

void nap() { usleep(50); }

} // namespace

struct ncclComm {
    std::shared_ptr<ncclComm> self{this}; /* until it is destroyed; work on streams holds it too */
    shared *all = nullptr;
    int rank = 0, size = 0;
    uint64_t turn = 0, splits = 0; /* exchanges so far; parts so far */
    char name[160];
    std::atomic<bool> aborted{false}, ready{false};
    std::atomic<uint64_t> launched{0}, done{0};
    std::shared_ptr<int> recorded{new int}; /* held by recorded work */
    std::thread::id owner = std::this_thread::get_id();
    std::vector<call> launches; /* not launched yet */
    int answers = 0;            /* ncclInProgress, so many times more */
    cudaStream_t last = nullptr;
    bool finalized = false;
    std::thread background;

    ~ncclComm()
    {
        if (all) munmap(all, sizeof *all);
    }
};

namespace
{

thread_local int group_depth;
thread_local std::vector<call> group;

size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 4;
    }
}

/* False: the communicator was aborted. */
template <class Condition> bool wait_until(const ncclComm *c, Condition condition)
{
    while (!condition())
        if (c->aborted)
            return false;
        else
            nap();
    return !c->aborted;
}

shared *map_shared(const char *name)
{
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(shared))) fail("NCCL: no shared memory %s", name);
    void *at = mmap(nullptr, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) fail("NCCL: no shared memory %s", name);
    return static_cast<shared *>(at);
}

/* Waits for all ranks. */
void join(ncclComm *c)
{
    c->all = map_shared(c->name);
    c->all->joined++;
    if (wait_until(c, [&] { return c->all->joined >= (uint64_t)c->size; }) && c->rank == 0)
        shm_unlink(c->name);
    c->ready = true;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Everyone's `bytes` (CHUNK at most) into the shared memory; then `read` may look at it. */
template <class Read>
bool exchange(ncclComm *c, uint64_t what, const void *mine, size_t bytes, Read read)
{
    shared *s = c->all;
    uint64_t turn = ++c->turn;
    auto all_are = [&](std::atomic<uint64_t> *marks, uint64_t at) {
        for (int r = 0; r < c->size; r++)
            if (marks[r] < at) return false;
        return true;
    };
    if (!wait_until(c, [&] { return all_are(s->finished, turn - 1); })) return false;
    s->what[c->rank] = what;
    if (bytes) memcpy(s->data[c->rank], mine, bytes);
    s->arrived[c->rank] = turn;
    if (!wait_until(c, [&] { return all_are(s->arrived, turn); })) return false;
    for (int r = 0; r < c->size; r++)
        if (s->what[r] != what) fail("NCCL: ranks %d and %d call different things", c->rank, r);
    read(s->data);
    s->finished[c->rank] = turn;
    return true;
}

float to_float(const char *at, ncclDataType_t type)
{
    uint16_t half;
    if (type == ncclFloat32) {
        float value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void from_float(char *at, ncclDataType_t type, float value)
{
    if (type == ncclFloat32) {
        memcpy(at, &value, sizeof value);
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7fff + (bits >> 16 & 1);
    uint16_t half = (uint16_t)(bits >> 16);
    memcpy(at, &half, sizeof half);
}

template <class T> T combine(T a, T b, ncclRedOp_t op)
{
    switch (op) {
    case ncclProd: return (T)(a * b);
    case ncclMax: return a > b ? a : b;
    case ncclMin: return a < b ? a : b;
    default: return (T)(a + b);
    }
}

template <class T> void reduce_as(const ncclComm *c, const call &k, size_t at, size_t n, char *to)
{
    for (size_t i = 0; i < n; i++) {
        T sum, one;
        for (int r = 0; r < c->size; r++) {
            memcpy(&one, c->all->data[r] + (at + i) * sizeof one, sizeof one);
            sum = r ? combine(sum, one, k.op) : one;
        }
        if (k.op == ncclAvg) sum = (T)(sum / (T)c->size);
        memcpy(to + i * sizeof sum, &sum, sizeof sum);
    }
}

void reduce(const ncclComm *c, const call &k, size_t at, size_t n, char *to)
{
    size_t size = size_of(k.type);
    switch (k.type) {
    case ncclInt64: reduce_as<int64_t>(c, k, at, n, to); return;
    case ncclInt32: reduce_as<int32_t>(c, k, at, n, to); return;
    case ncclUint8: reduce_as<uint8_t>(c, k, at, n, to); return;
    case ncclFloat16: fail("NCCL: f16 is not simulated");
    default: break;
    }
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < c->size; r++) {
            float one = to_float(c->all->data[r] + (at + i) * size, k.type);
            sum = r ? combine(sum, one, k.op) : one;
        }
        from_float(to + i * size, k.type, k.op == ncclAvg ? sum / (float)c->size : sum);
    }
}

/* One chunk of a collective: elements `at` to `at + n` of each part. */
bool run_chunk(ncclComm *c, const call &k, uint64_t what, size_t at, size_t n)
{
    size_t size = size_of(k.type), bytes = n * size, skip = at * size;
    bool root = c->rank == k.peer;
    switch (k.kind) {
    case ALL_REDUCE:
    case REDUCE:
        return exchange(c, what, k.src + skip, bytes, [&](auto &) {
            if (k.kind == ALL_REDUCE || root) reduce(c, k, 0, n, k.dst + skip);
        });
    case BROADCAST:
        return exchange(c, what, root ? k.src + skip : "", root ? bytes : 0,
                        [&](auto &data) { memcpy(k.dst + skip, data[k.peer], bytes); });
    case ALL_GATHER:
        return exchange(c, what, k.src + skip, bytes, [&](auto &data) {
            for (int r = 0; r < c->size; r++)
                memcpy(k.dst + (size_t)r * k.count * size + skip, data[r], bytes);
        });
    default: break;
    }
    for (int r = 0; r < c->size; r++) /* one rank's part after the other */
        if (!exchange(c, what, k.src + (size_t)r * k.count * size + skip, bytes, [&](auto &) {
                if (r == c->rank) reduce(c, k, 0, n, k.dst + skip);
            }))
            return false;
    return true;
}

void run_between_two(ncclComm *c, const call &k)
{
    size_t bytes = k.count * size_of(k.type);
    if (bytes > CHUNK) fail("NCCL: a message of %zu bytes is not simulated", bytes);
    mailbox &box = k.kind == SEND ? c->all->box[c->rank][k.peer] : c->all->box[k.peer][c->rank];
    if (k.kind == SEND) {
        if (!wait_until(c, [&] { return box.posted == box.taken; })) return;
        memcpy(box.data, k.src, box.bytes = bytes);
        box.posted++;
    } else {
        if (!wait_until(c, [&] { return box.posted > box.taken; })) return;
        if (box.bytes != bytes) fail("NCCL: %zu bytes come, %zu are expected", box.bytes, bytes);
        memcpy(k.dst, box.data, bytes);
        box.taken++;
    }
}

void run_call(ncclComm *c, const call &k)
{
    uint64_t what =
        (uint64_t)k.kind << 56 ^ (uint64_t)k.op << 48 ^ (uint64_t)k.type << 40 ^ k.count;
    size_t most = CHUNK / size_of(k.type);
    if (c->aborted) return;
    if (k.kind == SEND || k.kind == RECV) {
        run_between_two(c, k);
        return;
    }
    for (size_t at = 0; at < k.count; at += most)
        if (!run_chunk(c, k, what, at, std::min(most, k.count - at))) return;
}

/* ---- launching ------------------------------------------------------------------------------- */

void check_memory(const ncclComm *c, const call &k)
{
    size_t bytes = k.count * size_of(k.type), all = bytes * (size_t)c->size;
    bool root = k.peer == c->rank;
    if (k.kind != RECV && (k.kind != BROADCAST || root))
        check_device_memory(k.src, k.kind == REDUCE_SCATTER ? all : bytes, "NCCL");
    if (k.kind != SEND && (k.kind != REDUCE || root))
        check_device_memory(k.dst, k.kind == ALL_GATHER ? all : bytes, "NCCL");
}

void launch(ncclComm *c, const call &k)
{
    std::shared_ptr<ncclComm> self = c->self;
    check_memory(c, k);
    if (is_recording(k.stream)) { /* in the order of the calls, whatever the streams */
        std::shared_ptr<int> held = c->recorded;
        enqueue_quietly(k.stream, "NCCL, recorded", [self, held, k] { run_call(self.get(), k); });
        return;
    }
    uint64_t before = c->launched++;
    cudaStream_t there = c->last;
    enqueue_quietly(k.stream, "NCCL", [self, before, there, k] {
        while (self->done < before) run_next(there); /* on the other stream */
        run_call(self.get(), k);
        self->done++;
    });
    c->last = k.stream;
}

ncclResult_t begin(std::vector<call> &calls)
{
    if (calls.empty()) return ncclSuccess;
    ncclComm *c = calls[0].comm;
    if (!c->ready || c->answers || c->aborted) return ncclInvalidArgument;
    for (int sends = 1; sends >= 0; sends--) /* what is sent waits for nobody */
        for (const call &k : calls)
            if ((k.kind == SEND) == (sends != 0)) c->launches.push_back(k);
    c->answers = 1 + (int)(random_bits() % 3);
    return ncclInProgress;
}

ncclResult_t add(const call &k)
{
    if (!k.comm || !k.comm->ready || k.comm->answers) return ncclInvalidArgument;
    if (group_depth) {
        group.push_back(k);
        return ncclSuccess;
    }
    std::vector<call> one{k};
    return begin(one);
}

} // namespace

/* ---- NCCL's functions ------------------------------------------------------------------------ */

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/mc-sim-nccl-%d-%llx", (int)getpid(),
             (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidArgument ? "invalid argument" : "a simulated error";
}

const char *ncclGetLastError(ncclComm_t) { return "(simulated)"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (size > MOST_RANKS || config->blocking) return ncclInvalidUsage;
    ncclComm *c = *comm = new ncclComm;
    c->rank = rank;
    c->size = size;
    snprintf(c->name, sizeof c->name, "%.40s", id.internal);
    c->background = std::thread(join, c);
    return ncclInProgress;
}

/* The part is there when the parent is ready again. */
static void split(ncclComm *c, int colour, int key, ncclComm **made)
{
    int mine[2] = {colour, key}, all[MOST_RANKS][2];
    bool good = exchange(c, ~(uint64_t)0, mine, sizeof mine, [&](auto &data) {
        for (int r = 0; r < c->size; r++) memcpy(all[r], data[r], sizeof mine);
    });
    c->splits++;
    ncclComm *part = good && colour >= 0 ? new ncclComm : nullptr;
    if (part) {
        for (int r = 0; r < c->size; r++) {
            if (all[r][0] != colour) continue;
            part->size++;
            part->rank += all[r][1] < key || (all[r][1] == key && r < c->rank);
        }
        snprintf(part->name, sizeof part->name, "%.36s-%llu-%d", c->name,
                 (unsigned long long)c->splits, colour);
        part->owner = c->owner;
        join(part);
    }
    *made = part;
    c->ready = true;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int colour, int key, ncclComm_t *made, ncclConfig_t *)
{
    if (!c->ready || c->answers || c->aborted) return ncclInvalidArgument;
    while (c->done < c->launched) run_next(c->last); /* exchanges keep their order */
    *made = nullptr;
    c->ready = false;
    if (c->background.joinable()) c->background.join();
    c->background = std::thread(split, c, colour, key, made);
    return ncclSuccess; /* NCCL says so too, although it has only begun */
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    *state = ncclInProgress;
    if (!c->ready) return ncclSuccess;
    bool busy = c->done < c->launched;
    if (c->finalized && busy) cudaStreamQuery(c->last);
    if (c->finalized && (busy || c->recorded.use_count() > 1)) return ncclSuccess;
    if (c->answers) {
        if (std::this_thread::get_id() != c->owner || --c->answers) return ncclSuccess;
        std::vector<call> launches = std::move(c->launches);
        c->launches.clear();
        for (const call &k : launches) launch(c, k);
    }
    *state = ncclSuccess;
    return ncclSuccess;
}

static ncclResult_t release(ncclComm *c)
{
    while (c->recorded.use_count() > 1) nap();
    if (c->background.joinable()) c->background.join();
    c->self = nullptr;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    c->aborted = true;
    return release(c);
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    if (!c->ready || c->answers || c->finalized) return ncclInvalidArgument;
    c->finalized = true;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) { return release(c); }

ncclResult_t ncclCommCount(const ncclComm_t c, int *count)
{
    *count = c->size;
    return c->ready ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank)
{
    *rank = c->rank;
    return c->ready ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    return add({c, ALL_REDUCE, (const char *)src, (char *)dst, n, type, op, -1, s});
}

ncclResult_t ncclReduce(const void *src, void *dst, size_t n, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t s)
{
    return add({c, REDUCE, (const char *)src, (char *)dst, n, type, op, root, s});
}

ncclResult_t ncclBroadcast(const void *src, void *dst, size_t n, ncclDataType_t type, int root,
                           ncclComm_t c, cudaStream_t s)
{
    return add({c, BROADCAST, (const char *)src, (char *)dst, n, type, ncclSum, root, s});
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t n, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t s)
{
    return add({c, ALL_GATHER, (const char *)src, (char *)dst, n, type, ncclSum, -1, s});
}

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    return add({c, REDUCE_SCATTER, (const char *)src, (char *)dst, n, type, op, -1, s});
}

ncclResult_t ncclSend(const void *src, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return add({c, SEND, (const char *)src, nullptr, n, type, ncclSum, peer, s});
}

ncclResult_t ncclRecv(void *dst, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return add({c, RECV, nullptr, (char *)dst, n, type, ncclSum, peer, s});
}

ncclResult_t ncclGroupStart()
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (!group_depth) return ncclInvalidUsage;
    if (--group_depth) return ncclSuccess;
    std::vector<call> calls = std::move(group);
    group.clear();
    return begin(calls);
}

/* In place of dlopen and dlsym for who looks for NCCL. */
static char mc_sim_dlsym_handle;

void *mc_sim_dlopen_nccl(const char *, int) { return &mc_sim_dlsym_handle; }

void *mc_sim_dlsym(void *library, const char *name)
{
    if (library != &mc_sim_dlsym_handle) return dlsym(library, name);
#define FUNCTION(f) \
    if (!strcmp(name, #f)) return (void *)f
    FUNCTION(ncclGetVersion);
    FUNCTION(ncclGetUniqueId);
    FUNCTION(ncclCommInitRankConfig);
    FUNCTION(ncclCommFinalize);
    FUNCTION(ncclCommDestroy);
    FUNCTION(ncclCommAbort);
    FUNCTION(ncclCommSplit);
    FUNCTION(ncclCommCount);
    FUNCTION(ncclCommUserRank);
    FUNCTION(ncclCommGetAsyncError);
    FUNCTION(ncclGetErrorString);
    FUNCTION(ncclGetLastError);
    FUNCTION(ncclAllReduce);
    FUNCTION(ncclReduce);
    FUNCTION(ncclBroadcast);
    FUNCTION(ncclAllGather);
    FUNCTION(ncclReduceScatter);
    FUNCTION(ncclSend);
    FUNCTION(ncclRecv);
    FUNCTION(ncclGroupStart);
    FUNCTION(ncclGroupEnd);
#undef FUNCTION
    return nullptr;
}

} // extern "C"
#endif
