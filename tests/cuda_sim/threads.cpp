/* Blocks of threads: each thread is a fiber, which runs until it waits for others. Which threads
 * run first is left to chance, so that a missing barrier shows. */
#include <sys/mman.h>
#include <cfloat>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "tests/cuda_sim/simulator.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace mc_sim
{

uint64_t block_number;
bool kernel_runs;

uint32_t random_bits()
{
    static uint64_t state = [] {
        const char *seed = getenv("MC_CUDA_SIM_SEED");
        return (seed ? strtoull(seed, nullptr, 10) : 1) * 0x9e3779b97f4a7c15u + 1;
    }();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* ---- fibers ---------------------------------------------------------------------------------- */

namespace
{

constexpr size_t STACK = (size_t)256 << 10, GUARD = 4096;
constexpr int MOST_THREADS = 1024;

struct fiber {
    void *stack_pointer; /* of a fiber that does not run */
    char *stack;         /* NULL: the one that runs blocks */
    int thread;
    const void *sanitizer_stack;
    size_t sanitizer_size;
    void *sanitizer_fake;
#ifndef __x86_64__
    ucontext_t context;
#endif
};

void fiber_main();

#ifdef __x86_64__
/* Goes on where the fiber `load` was left; comes back with `result` when this one is gone on with.
 * It jumps instead of returning: processors expect the one that comes back to be the one that
 * called, but lanes of a warp go on one exchange behind the lane that waits. */
extern "C" const void *mc_sim_switch(void **save, void *load, const void *result);
asm(R"(
    .text
    .globl mc_sim_switch
    .hidden mc_sim_switch
    .type mc_sim_switch, @function
mc_sim_switch:
    pushq %rdx
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rax
    popq %rcx
    jmpq *%rcx
    .size mc_sim_switch, . - mc_sim_switch
)");
#endif

/* The tops of stacks are not a power of 2 apart: of a processor's cache they would all share one
 * corner. */
char *fiber_top(const fiber *f)
{
    static unsigned count = 0;
    return f->stack + GUARD + STACK - count++ % 64 * 5 * 64;
}

#ifdef __x86_64__
void fiber_prepare(fiber *f)
{
    void **top = (void **)fiber_top(f);
    *--top = nullptr; /* keeps the stack aligned as after a call */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 7; i++) *--top = nullptr;
    f->stack_pointer = top;
}
#else
void fiber_prepare(fiber *f)
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack + GUARD;
    f->context.uc_stack.ss_size = (size_t)(fiber_top(f) - (char *)f->context.uc_stack.ss_sp);
    makecontext(&f->context, fiber_main, 0);
}
#endif

fiber *fiber_new()
{
    fiber *f = new fiber{};
    f->stack = (char *)mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED) fail("no memory for a stack");
    mprotect(f->stack, GUARD, PROT_NONE);
    f->sanitizer_stack = f->stack + GUARD;
    f->sanitizer_size = STACK;
    fiber_prepare(f);
    return f;
}

/* ---- a block --------------------------------------------------------------------------------- */

enum class thread_state : uint8_t { not_begun, runs, at_barrier, at_warp, ended };

struct warp_group { /* of lanes that exchange; found by the lowest lane of its mask */
    unsigned mask, arrived;
    warp_kind kind;
    int parity;
    uint64_t values[2][33];
};

struct pending_copy {
    void *to;
    const void *from;
    size_t bytes, zeros;
    uint64_t group;
};

struct block_threads {
    const char *name;
    const std::function<void()> *body;
    const void *kernel;
    int count, begun, ended;
    int order[MOST_THREADS];
    thread_state state[MOST_THREADS];
    fiber *of_thread[MOST_THREADS], *ready[MOST_THREADS];
    int ready_count;
    int at_barrier, barrier_sum, barrier_result;
    barrier_kind kind;
    warp_group warps[MOST_THREADS / 32][32];
    unsigned lanes_there[MOST_THREADS / 32]; /* of a warp, those that have not ended */
    int groups_at_work[MOST_THREADS / 32];
    uint3 place[MOST_THREADS]; /* threadIdx of each */
    std::vector<pending_copy> copies[MOST_THREADS];
    uint64_t copy_group[MOST_THREADS];
    bool has_copies; /* some thread has asked for them, in this block or the one before */
    char *dynamic;
    size_t dynamic_bytes, static_bytes;
    bool bounds_checked;
};

block_threads block;
fiber main_fiber, *current;
std::vector<fiber *> &idle = *new std::vector<fiber *>; /* never destroyed */

inline void place_thread(int thread) { threadIdx = block.place[thread]; }

void after_switch(fiber *self)
{
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(self->sanitizer_fake, &bottom, &size);
    if (self != &main_fiber && !main_fiber.sanitizer_stack) { /* it is where we come from */
        main_fiber.sanitizer_stack = bottom;
        main_fiber.sanitizer_size = size;
    }
#else
    (void)self;
#endif
}

void switch_to(fiber *to)
{
    fiber *from = current;
    if (to == from) {
        place_thread(to->thread);
        return;
    }
    current = to;
    if (to != &main_fiber) place_thread(to->thread);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->sanitizer_fake, to->sanitizer_stack, to->sanitizer_size);
#endif
#ifdef __x86_64__
    mc_sim_switch(&from->stack_pointer, to->stack_pointer, nullptr);
#else
    swapcontext(&from->context, &to->context);
#endif
    after_switch(from);
}

fiber *fiber_for(int thread)
{
    fiber *f;
    if (idle.empty()) {
        f = fiber_new();
    } else {
        f = idle.back();
        idle.pop_back();
    }
    f->thread = thread;
    block.of_thread[thread] = f;
    return f;
}

[[noreturn]] void fail_stuck()
{
    char text[1024];
    int length = snprintf(text, sizeof text, "its threads wait for each other:");
    for (int i = 0; i < block.count && length < 900; i++)
        if (i == 0 || block.state[i] != block.state[i - 1])
            length += snprintf(text + length, sizeof text - (size_t)length, " from %d on %s,", i,
                               block.state[i] == thread_state::at_barrier ? "at __syncthreads"
                               : block.state[i] == thread_state::at_warp  ? "at a warp's exchange"
                               : block.state[i] == thread_state::ended    ? "ended"
                                                                          : "run");
    fail("%.*s (or no thread was left to end the wait)", length - 1, text);
}

/* The next thread that may go on. */
inline fiber *take_ready() { return block.ready[--block.ready_count]; }

/* The thread that runs waits, or has ended: on with another one. */
void run_others()
{
    if (block.ready_count)
        switch_to(take_ready());
    else if (block.begun < block.count)
        switch_to(fiber_for(block.order[block.begun++]));
    else if (block.ended == block.count)
        switch_to(&main_fiber);
    else
        fail_stuck();
}

inline void make_ready(int thread)
{
    block.state[thread] = thread_state::runs;
    block.ready[block.ready_count++] = block.of_thread[thread];
}

/* run_others() of a thread that waits, and what it waits for. Kernels spend most time here: called
 * last, it leaves nothing but the kernel's own frame on the stack. */
template <class T> inline const T *wait_for(const T *result)
{
#if defined __x86_64__ && !defined __SANITIZE_ADDRESS__
    if (block.ready_count) {
        fiber *from = current, *to = take_ready();
        if (to == from) return result;
        current = to;
        place_thread(to->thread);
        return (const T *)mc_sim_switch(&from->stack_pointer, to->stack_pointer, result);
    }
#endif
    run_others();
    return result;
}

void complete_groups(int thread);

/* Runs threads of blocks, for ever. */
void fiber_main()
{
    after_switch(current);
    for (;;) {
        int thread = current->thread;
        block.state[thread] = thread_state::runs;
        (*block.body)();
        block.state[thread] = thread_state::ended;
        block.ended++;
        block.lanes_there[thread / 32] &= ~(1u << thread % 32);
        if (block.at_barrier)
            fail("this thread ended while %d others wait at __syncthreads", block.at_barrier);
        if (block.groups_at_work[thread / 32]) complete_groups(thread);
        if (!block.ready_count && block.begun < block.count) {
            int next = block.order[block.begun++];
            current->thread = next;
            block.of_thread[next] = current;
            place_thread(next);
            continue;
        }
        idle.push_back(current);
        run_others();
    }
}

inline int thread_number() { return current->thread; }

/* ---- warps ----------------------------------------------------------------------------------- */

/* Whether all who are to take part in an exchange have come. */
inline bool is_complete(unsigned warp, const warp_group *g)
{
    return !(g->mask & block.lanes_there[warp] & ~g->arrived);
}

/* Ends an exchange. The thread that runs is not made ready: it goes on. */
void complete_group(unsigned warp, warp_group *g)
{
    uint64_t *values = g->values[g->parity];
    values[32] = g->arrived;
    for (unsigned left = ~g->arrived; left; left &= left - 1)
        values[__builtin_ctz(left)] = UINT64_MAX;
    for (unsigned left = g->arrived; left; left &= left - 1) {
        int thread = (int)warp * 32 + __builtin_ctz(left);
        if (thread != current->thread) make_ready(thread);
    }
    block.groups_at_work[warp]--;
    races_warp_barrier(warp, g->arrived);
    g->arrived = 0;
    g->parity ^= 1;
}

/* A thread has ended: who waits for the rest of its warp? */
void complete_groups(int thread)
{
    unsigned warp = (unsigned)thread / 32;
    for (warp_group &g : block.warps[warp])
        if (g.arrived && is_complete(warp, &g)) complete_group(warp, &g);
}

} // namespace

int lane_of_thread() { return (int)((unsigned)thread_number() % 32); }

/* Two, in turn: a lane that is one mma ahead of another of its warp leaves what that one reads. */
float *operands_of_thread()
{
    static float operands[MOST_THREADS][2][12];
    static bool second[MOST_THREADS];
    int thread = thread_number();
    second[thread] = !second[thread];
    return operands[thread][second[thread]];
}

const uint64_t *warp_exchange(warp_kind kind, unsigned mask, uint64_t value)
{
    unsigned thread = (unsigned)thread_number(), warp = thread / 32, lane = thread % 32;
    if (!(mask >> lane & 1)) fail("lane %u is not in its own mask 0x%x", lane, mask);
    warp_group *g = &block.warps[warp][__builtin_ctz(mask)];
    uint64_t *values = g->values[g->parity];
    if (!g->arrived) {
        block.groups_at_work[warp]++;
        g->mask = mask;
        g->kind = kind;
    } else if (g->mask != mask || g->kind != kind) {
        fail("lanes of a warp meet at different instructions or with different masks");
    }
    g->arrived |= 1u << lane;
    values[lane] = value;
    if (is_complete(warp, g)) {
        complete_group(warp, g);
        return values;
    }
    block.state[thread] = thread_state::at_warp;
    return wait_for<uint64_t>(values);
}

/* ---- barriers -------------------------------------------------------------------------------- */

int block_barrier(barrier_kind kind, int value)
{
    int thread = thread_number();
    if (block.ended)
        fail("__syncthreads, but %d of the block's %d threads have ended", block.ended,
             block.count);
    if (!block.at_barrier) {
        block.kind = kind;
        block.barrier_sum = 0;
    } else if (block.kind != kind) {
        fail("threads of a block are at different kinds of __syncthreads");
    }
    block.at_barrier++;
    block.barrier_sum += value;
    block.state[thread] = thread_state::at_barrier;
    if (block.at_barrier < block.count) return *wait_for(&block.barrier_result);
    block.at_barrier = 0;
    block.barrier_result = kind == barrier_kind::all   ? block.barrier_sum == block.count
                           : kind == barrier_kind::any ? block.barrier_sum > 0
                                                       : block.barrier_sum;
    races_block_barrier();
    int at = (int)(random_bits() % (unsigned)block.count);
    bool backward = chance(2);
    for (int i = 0; i < block.count; i++) {
        make_ready(block.order[at]);
        if (backward)
            at = at ? at - 1 : block.count - 1;
        else
            at = at + 1 < block.count ? at + 1 : 0;
    }
    return *wait_for(&block.barrier_result);
}

/* ---- shared memory --------------------------------------------------------------------------- */

void declare_shared_slowly(shared_mark *mark, void *data, size_t bytes)
{
    mark->block = block_number;
    block.static_bytes += bytes;
    if (block.static_bytes > USUAL_SHARED)
        fail("%zu bytes of static shared memory, at most %zu", block.static_bytes, USUAL_SHARED);
    if (block.static_bytes + block.dynamic_bytes > LARGEST_SHARED ||
        (block.static_bytes + block.dynamic_bytes > USUAL_SHARED && !allowed_shared(block.kernel)))
        fail("%zu bytes of static and %zu of dynamic shared memory", block.static_bytes,
             block.dynamic_bytes);
    memset(data, 0xff, bytes);
    races_shared(data, bytes);
}

int thread_of_block() { return thread_number(); }

void *dynamic_shared() { return block.dynamic; }

void check_bounds(int threads, int)
{
    if (block.count > threads)
        fail("%d threads a block, but __launch_bounds__(%d)", block.count, threads);
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

static void do_copy(const pending_copy &c)
{
    races_access(c.from, c.bytes - c.zeros, false);
    races_access(c.to, c.bytes, true);
    memcpy(c.to, c.from, c.bytes - c.zeros);
    memset((char *)c.to + c.bytes - c.zeros, 0, c.zeros);
}

void copy_later(void *to, const void *from, size_t bytes, size_t zeros)
{
    int thread = thread_number();
    block.has_copies = true;
    if ((bytes != 4 && bytes != 8 && bytes != 16) || (uintptr_t)to % bytes ||
        (uintptr_t)from % bytes || zeros > bytes)
        fail("__pipeline_memcpy_async of %zu bytes from %p to %p", bytes, from, to);
    pending_copy c = {to, from, bytes, zeros, block.copy_group[thread]};
    if (chance(4))
        do_copy(c);
    else
        block.copies[thread].push_back(c);
}

void copies_commit() { block.copy_group[thread_number()]++; }

void copies_wait(size_t most)
{
    int thread = thread_number();
    std::vector<pending_copy> &all = block.copies[thread];
    size_t done = 0;
    while (done < all.size() && all[done].group + most < block.copy_group[thread])
        do_copy(all[done++]);
    all.erase(all.begin(), all.begin() + (std::ptrdiff_t)done);
}

float ex2_approx_ftz_f32(float x)
{
    auto flushed = [](float v) { return std::fabs(v) < FLT_MIN ? std::copysign(0.0f, v) : v; };
    return flushed(exp2f(flushed(x)));
}

/* ---- a grid ---------------------------------------------------------------------------------- */

static void shuffle(int *order, int count)
{
    int how = (int)(random_bits() % 4);
    for (int i = 0; i < count; i++) order[i] = how == 1 ? count - 1 - i : i;
    if (how < 2) return;
    for (int i = count - 1; i > 0; i--)
        std::swap(order[i], order[random_bits() % (unsigned)(i + 1)]);
}

static void run_block()
{
    block_number++;
    races_begin_block();
    block.begun = block.ended = block.at_barrier = block.ready_count = 0;
    block.static_bytes = 0;
    memset(block.dynamic, 0xff, block.dynamic_bytes);
    races_shared(block.dynamic, block.dynamic_bytes);
    memset(block.state, (int)thread_state::not_begun, (size_t)block.count);
    for (int i = 0; i < MOST_THREADS && block.has_copies; i++) block.copies[i].clear();
    memset(block.copy_group, 0, (size_t)block.count * sizeof *block.copy_group);
    block.has_copies = false;
    for (int i = 0; i < (block.count + 31) / 32; i++) {
        int lanes = std::min(block.count - i * 32, 32);
        block.lanes_there[i] = ~0u >> (32 - lanes);
        block.groups_at_work[i] = 0;
    }
    shuffle(block.order, block.count);
    run_others();
}

/* Blocks in an order of chance: i, i + step, ... with a step that has no factor in common. */
void run_grid(const char *name, const config &c, const void *kernel,
              const std::function<void()> &thread)
{
    uint64_t blocks = (uint64_t)c.grid.x * c.grid.y * c.grid.z, step = 1, at = 0;
    if (blocks > 1 && chance(2)) step = blocks - 1;
    if (blocks > 4 && chance(2)) {
        step = random_bits() % blocks + 1;
        while (std::__gcd(step, blocks) != 1) step = step % blocks + 1;
    }
    current = &main_fiber;
    main_fiber.sanitizer_stack = nullptr; /* whichever thread of the host this is */
    blockDim = c.block;
    gridDim = c.grid;
    block.name = name;
    block.body = &thread;
    block.kernel = kernel;
    block.count = (int)(c.block.x * c.block.y * c.block.z);
    for (int i = 0; i < block.count; i++)
        block.place[i] = {(unsigned)i % c.block.x, (unsigned)i / c.block.x % c.block.y,
                          (unsigned)i / (c.block.x * c.block.y)};
    block.dynamic = (char *)malloc(c.shared);
    block.dynamic_bytes = c.shared;
    if (c.shared && !block.dynamic) fail("no memory for shared memory");
    kernel_runs = true;
    races_begin_grid();
    for (uint64_t i = 0; i < blocks; i++, at = (at + step) % blocks) {
        blockIdx = {(unsigned)(at % c.grid.x), (unsigned)(at / c.grid.x % c.grid.y),
                    (unsigned)(at / c.grid.x / c.grid.y)};
        run_block();
    }
    kernel_runs = false;
    free(block.dynamic);
    block.dynamic = nullptr;
}

void describe_thread(char *text, size_t size)
{
    snprintf(text, size,
             "kernel %s, block (%u, %u, %u) of (%u, %u, %u), thread (%u, %u, %u) of (%u, %u, %u): ",
             block.name, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z,
             threadIdx.x, threadIdx.y, threadIdx.z, blockDim.x, blockDim.y, blockDim.z);
}

void fail(const char *format, ...)
{
    char where[512] = "", what[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (kernel_runs) describe_thread(where, sizeof where);
    fflush(stdout);
    fprintf(stderr, "CUDA simulator: %s%s\n", where, what);
    abort();
}

} // namespace mc_sim
