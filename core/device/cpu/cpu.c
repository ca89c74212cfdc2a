#include "core/device/cpu/cpu_internal.h"

#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "core/device/pool_internal.h"
#ifdef MC_HAVE_X86_ISA
#include <cpuid.h>
#endif

/* ---- selecting kernels and library ----------------------------------------------------------- */

static bool has_scalar(void) { return true; }

#ifdef MC_HAVE_X86_ISA
/* Compilers differ in whether they know F16C by name. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

typedef struct isa_choice {
    const char *name, *needs;
    bool (*available)(void);
    const mc_kernels *kernels;
} isa_choice;

/* Best first. */
static const isa_choice isa_choices[] = {
#ifdef MC_HAVE_X86_ISA
    {"avx512", "AVX-512 F, BW, DQ and VL", has_avx512, &mc_cpu_kernels_avx512},
    {"avx2", "AVX2, FMA and F16C", has_avx2, &mc_cpu_kernels_avx2},
#endif
    {"scalar", "nothing", has_scalar, &mc_cpu_kernels_scalar},
};
enum { ISA_COUNT = sizeof isa_choices / sizeof isa_choices[0] };

typedef struct gemm_choice {
    const char *name;
    mc_sgemm_open_fn open;
} gemm_choice;

/* Preferred first. */
static const gemm_choice gemm_choices[] = {
#ifdef MC_HAVE_ONEDNN
    {"onednn", mc_sgemm_open_onednn},
#endif
    {"cblas", mc_sgemm_open_cblas},
};
enum { GEMM_COUNT = sizeof gemm_choices / sizeof gemm_choices[0] };

/* The variable's value; NULL if it is unset or empty. */
static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static const isa_choice *choose_isa(mc_context *ctx)
{
    const char *asked = setting("MC_CPU_ISA");
    for (int i = 0; i < ISA_COUNT; i++) {
        const isa_choice *c = &isa_choices[i];
        if (asked ? strcmp(asked, c->name) != 0 : !c->available()) continue;
        if (c->available()) return c;
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "MC_CPU_ISA=%s needs %s, which this processor lacks",
                asked, c->needs);
        return NULL;
    }
#ifdef MC_HAVE_X86_ISA
    mc_fail(ctx, MC_ERR_ARGUMENT, "MC_CPU_ISA=%s: expected scalar, avx2 or avx512", asked);
#else
    mc_fail(ctx, MC_ERR_ARGUMENT, "MC_CPU_ISA=%s: this build has only scalar", asked);
#endif
    return NULL;
}

static const gemm_choice *choose_gemm(mc_context *ctx)
{
    const char *asked = setting("MC_GEMM");
    for (int i = 0; i < GEMM_COUNT; i++)
        if (!asked || strcmp(asked, gemm_choices[i].name) == 0) return &gemm_choices[i];
    if (strcmp(asked, "onednn") == 0)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "MC_GEMM=onednn: this build has only cblas");
    else
        mc_fail(ctx, MC_ERR_ARGUMENT, "MC_GEMM=%s: expected cblas or onednn", asked);
    return NULL;
}

/* ---- the device ------------------------------------------------------------------------------ */

/* OpenMP ends the process if it cannot create its threads: so this reports an error before. */
static bool has_space_for_threads(mc_device *d)
{
    enum { OTHER_MIB = 32 }; /* other memory allocated while they start */
    struct rlimit stack;
    uint64_t one = (uint64_t)8 << 20, left = mc_cpu_space_left();
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY)
        one = stack.rlim_cur;
    uint64_t needed = ((uint64_t)OTHER_MIB << 20) + one * (uint64_t)(omp_get_max_threads() - 1);
    if (needed <= left) return true;
    snprintf(d->failure, sizeof d->failure,
             "the process's limit of address space (ulimit -v) leaves %" PRIu64
             " MiB, and %d threads take %" PRIu64 " MiB: raise it, or set OMP_NUM_THREADS lower",
             left >> 20, omp_get_max_threads(), needed >> 20);
    return false;
}

static void *cpu_alloc(mc_device *d, size_t bytes)
{
    mc_cpu_device *cpu = (mc_cpu_device *)d;
    if (!cpu->has_begun && !has_space_for_threads(d)) return NULL;
    cpu->has_begun = true;
    return mc_pool_alloc(cpu->pool, bytes);
}

/* Computes a product as large as training's, so that the library allocates its memory now. */
static mc_status cpu_prepare(mc_device *d)
{
    enum { ROWS = 512, COLUMNS = 2048, INNER = 256 };
    static const size_t size = ((size_t)ROWS * INNER + COLUMNS * INNER + ROWS * COLUMNS) * 4;
    if (((mc_cpu_device *)d)->sgemm) return MC_OK;
    mc_sgemm_fn sgemm = mc_cpu_sgemm(d);
    float *a = sgemm ? mc_calloc(1, size) : NULL;
    if (!a) return sgemm ? MC_ERR_NOMEM : MC_ERR_DEVICE;
    float *b = a + ROWS * INNER, *c = b + COLUMNS * INNER;
    for (int i = 0; i < 2; i++)
        sgemm(false, i == 0, ROWS, COLUMNS, INNER, 1, a, INNER, b, i ? COLUMNS : INNER, 0, c,
              COLUMNS);
    mc_free(a);
    return MC_OK;
}

static void cpu_free(mc_device *d, void *data, size_t bytes)
{
    mc_pool_release(((mc_cpu_device *)d)->pool, data, bytes);
}

static void cpu_copy_in(mc_device *d, void *device, const void *host, size_t bytes)
{
    (void)d;
    if (bytes) memcpy(device, host, bytes);
}

static bool cpu_copy_out(mc_device *d, void *host, const void *device, size_t bytes)
{
    (void)d;
    if (bytes) memcpy(host, device, bytes);
    return true;
}

static uint64_t cpu_copy_out_later(mc_device *d, void *host, const void *device, size_t bytes)
{
    cpu_copy_out(d, host, device, bytes);
    return 1;
}

static bool cpu_is_done(mc_device *d, uint64_t ticket)
{
    (void)d, (void)ticket;
    return true;
}

static void *cpu_host_alloc(mc_device *d, size_t bytes)
{
    (void)d;
    return mc_malloc(bytes);
}

static void cpu_host_free(mc_device *d, void *host, size_t bytes)
{
    (void)d, (void)bytes;
    mc_free(host);
}

/* Copies are done before they return, so there is nothing to wait for. */

static const char *cpu_lane_new(mc_device *d, mc_lane **lane)
{
    (void)d;
    return (*lane = mc_malloc(1)) ? NULL : "out of memory";
}

static void cpu_lane_free(mc_device *d, mc_lane *lane)
{
    (void)d;
    mc_free(lane);
}

static const char *cpu_fence_new(mc_device *d, mc_fence **fence)
{
    (void)d;
    return (*fence = mc_malloc(1)) ? NULL : "out of memory";
}

static void cpu_fence_free(mc_device *d, mc_fence *fence)
{
    (void)d;
    mc_free(fence);
}

static const char *cpu_fence_set(mc_device *d, mc_fence *fence, mc_lane *lane)
{
    (void)d, (void)fence, (void)lane;
    return NULL;
}

static const char *cpu_after(mc_device *d, mc_lane *lane, mc_fence *fence)
{
    (void)d, (void)lane, (void)fence;
    return NULL;
}

static const char *cpu_fence_wait(mc_device *d, mc_fence *fence)
{
    (void)d, (void)fence;
    return NULL;
}

static const char *cpu_pin(mc_device *d, void *host, size_t bytes)
{
    (void)d, (void)host, (void)bytes;
    return NULL;
}

static void cpu_unpin(mc_device *d, void *host) { (void)d, (void)host; }

static const char *cpu_lane_copy_in(mc_device *d, mc_lane *lane, void *device, const void *host,
                                    size_t bytes)
{
    (void)lane;
    cpu_copy_in(d, device, host, bytes);
    return NULL;
}

static const char *cpu_lane_copy_out(mc_device *d, mc_lane *lane, void *host, const void *device,
                                     size_t bytes)
{
    (void)lane;
    cpu_copy_out(d, host, device, bytes);
    return NULL;
}

static const mc_lanes cpu_lanes = {.lane_new = cpu_lane_new,
                                   .lane_free = cpu_lane_free,
                                   .fence_new = cpu_fence_new,
                                   .fence_free = cpu_fence_free,
                                   .fence_set = cpu_fence_set,
                                   .after = cpu_after,
                                   .wait = cpu_fence_wait,
                                   .pin = cpu_pin,
                                   .unpin = cpu_unpin,
                                   .copy_in = cpu_lane_copy_in,
                                   .copy_out = cpu_lane_copy_out};

static void cpu_close(mc_device *d)
{
    mc_threads_free(((mc_cpu_device *)d)->threads);
    mc_pool_free(((mc_cpu_device *)d)->pool);
    mc_free(d);
}

mc_device *mc_cpu_open(mc_context *ctx)
{
    const isa_choice *isa = choose_isa(ctx);
    const gemm_choice *gemm = isa ? choose_gemm(ctx) : NULL;
    if (!gemm) return NULL;
    mc_cpu_device *cpu = mc_calloc(1, sizeof *cpu);
    if (cpu) cpu->threads = mc_threads_new();
    if (cpu && cpu->threads) cpu->pool = mc_pool_new(&cpu->device.memory, &mc_pool_host);
    if (!cpu || !cpu->pool) {
        if (cpu) mc_threads_free(cpu->threads);
        mc_free(cpu);
        mc_fail_nomem(ctx, "the cpu device");
        return NULL;
    }
    cpu->open_sgemm = gemm->open;
    cpu->isa = isa->name;
    cpu->gemm = gemm->name;
    cpu->device.name = "cpu";
    cpu->device.kernels = isa->kernels;
    cpu->device.alloc = cpu_alloc;
    cpu->device.free = cpu_free;
    cpu->device.prepare = cpu_prepare;
    cpu->device.free_memory = mc_cpu_free_memory;
    cpu->device.planning = &mc_cpu_planning;
    cpu->device.copy_in = cpu_copy_in;
    cpu->device.copy_out = cpu_copy_out;
    cpu->device.copy_out_later = cpu_copy_out_later;
    cpu->device.is_done = cpu_is_done;
    cpu->device.wait = cpu_is_done;
    cpu->device.host_alloc = cpu_host_alloc;
    cpu->device.host_free = cpu_host_free;
    cpu->device.lanes = &cpu_lanes;
    cpu->device.is_host = true;
    cpu->device.logits_chunk = 1 << 22; /* 16 MiB in f32 */
    cpu->device.close = cpu_close;
    return &cpu->device;
}
