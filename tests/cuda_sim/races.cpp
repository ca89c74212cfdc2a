/* The race detector of builds with MC_CUDA_SIM_RACES. Kernels are compiled with the calls that
 * ThreadSanitizer puts at each load and store, and the functions that they call are here: two
 * threads of a grid that reach the same memory, one of them to write, with no barrier between. Memory is
 * looked at in pieces of 2 bytes; of reads since the last write the last two threads' are known. */
#ifdef MC_SIM_RACES
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#endif
#include "tests/cuda_sim/simulator.h"

namespace mc_sim
{

#ifndef MC_SIM_RACES
void races_begin_grid() {}
void races_begin_block() {}
void races_block_barrier() {}
void races_warp_barrier(unsigned, unsigned) {}
void races_shared(const void *, size_t) {}
void races_access(const void *, size_t, bool) {}
#else

namespace
{

struct access { /* by which thread, and when */
    uint32_t block, phase, warp_phase;
    int32_t thread; /* -1: none */
};
struct piece {
    uintptr_t address; /* in pieces */
    uint64_t grid;
    access write, reads[2];
};

constexpr size_t PIECES = (size_t)1 << 22;
piece *table;
uint64_t grid;
size_t used;
uint32_t block, phase, warp_phase[32];
struct extent {
    uintptr_t begin, end;
};
std::vector<extent> shared;

bool is_shared(uintptr_t at)
{
    for (const extent &e : shared)
        if (at >= e.begin && at < e.end) return true;
    return false;
}

/* The entry of a piece, fresh where the grid has not touched it; NULL when the table is full. */
piece *find(uintptr_t address)
{
    size_t at = address * 0x9e3779b97f4a7c15u >> 42;
    for (;; at = (at + 1) % PIECES) {
        piece *p = &table[at];
        if (p->grid != grid) {
            if (++used > PIECES / 4 * 3) return nullptr;
            *p = {address, grid, {0, 0, 0, -1}, {{0, 0, 0, -1}, {0, 0, 0, -1}}};
            return p;
        }
        if (p->address == address) return p;
    }
}

/* Whether something orders the two. */
bool ordered(const access &before, const access &now, bool within_block)
{
    if (before.thread < 0) return true;
    if (before.block != now.block) return within_block; /* shared memory of another block */
    if (before.thread == now.thread || before.phase != now.phase) return true;
    return before.thread / 32 == now.thread / 32 && before.warp_phase != now.warp_phase;
}

[[noreturn]] void fail_race(const access &before, bool wrote, bool writes, const void *at,
                            const char *kind)
{
    fail("a race: %s %s memory at %p that thread %d of block %u %s with no barrier between",
         writes ? "writes" : "reads", kind, at, before.thread, before.block - 1,
         wrote ? "wrote" : "read");
}

} // namespace

void races_begin_grid()
{
    if (!table) table = (piece *)calloc(PIECES, sizeof *table);
    if (!table) fail("no memory for the race detector");
    grid++;
    used = 0;
}

/* Blocks are told apart by their own number: they do not run in that order. */
void races_begin_block()
{
    block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z) + 1;
    phase = 0;
    memset(warp_phase, 0, sizeof warp_phase);
    shared.clear();
}

void races_block_barrier() { phase++; }
void races_warp_barrier(unsigned warp, unsigned lanes)
{
    if (lanes == 0xffffffffu) warp_phase[warp]++;
}

void races_shared(const void *data, size_t bytes)
{
    if (bytes) shared.push_back({(uintptr_t)data, (uintptr_t)data + bytes});
}

void races_access(const void *data, size_t bytes, bool writes)
{
    uintptr_t at = (uintptr_t)data;
    bool within_block = is_shared(at);
    if (!kernel_runs || (!within_block && at - ARENA >= ARENA_BYTES)) return;
    int thread = thread_of_block();
    access now = {block, phase, warp_phase[thread / 32], thread};
    for (uintptr_t i = at / 2; i <= (at + bytes - 1) / 2; i++) {
        piece *p = find(i);
        if (!p) return;
        const char *kind = within_block ? "shared" : "global";
        if (!ordered(p->write, now, within_block)) fail_race(p->write, true, writes, data, kind);
        for (access &read : p->reads)
            if (writes && !ordered(read, now, within_block))
                fail_race(read, false, writes, data, kind);
        if (writes) {
            p->write = now;
            p->reads[0].thread = p->reads[1].thread = -1;
        } else if (p->reads[0].thread != thread || p->reads[0].block != block) {
            p->reads[1] = p->reads[0];
            p->reads[0] = now;
        } else {
            p->reads[0] = now;
        }
    }
}

#endif
} // namespace mc_sim

#ifdef MC_SIM_RACES
#define EXPORT extern "C" __attribute__((visibility("hidden")))
#define SIZES(X) X(1) X(2) X(4) X(8) X(16)
#define HOOKS(bytes)                                                                               \
    EXPORT void __tsan_read##bytes(void *at) { mc_sim::races_access(at, bytes, false); }           \
    EXPORT void __tsan_write##bytes(void *at) { mc_sim::races_access(at, bytes, true); }           \
    EXPORT void __tsan_unaligned_read##bytes(void *at) { mc_sim::races_access(at, bytes, false); } \
    EXPORT void __tsan_unaligned_write##bytes(void *at) { mc_sim::races_access(at, bytes, true); } \
    EXPORT void __tsan_volatile_read##bytes(void *at) { mc_sim::races_access(at, bytes, false); }  \
    EXPORT void __tsan_volatile_write##bytes(void *at) { mc_sim::races_access(at, bytes, true); }
SIZES(HOOKS)
EXPORT void __tsan_read_range(void *at, size_t bytes) { mc_sim::races_access(at, bytes, false); }
EXPORT void __tsan_write_range(void *at, size_t bytes) { mc_sim::races_access(at, bytes, true); }
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void *) {}
EXPORT void __tsan_func_exit() {}
EXPORT void __tsan_vptr_update(void **, void *) {}
EXPORT void __tsan_vptr_read(void **) {}
#endif
