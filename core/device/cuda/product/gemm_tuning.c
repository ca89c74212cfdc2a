/* Finds the fastest algorithm of cuBLASLt for a product.
 *
 * The library proposes some for every kind of product. Each is timed on the present operands, and
 * the fastest is kept: up to 45 % faster than the first proposal on an H200. In deterministic mode,
 * and while a step is recorded, the first proposal is taken.
 *
 * In training a GPU is at its power limit, which determines its clock: an algorithm that moves
 * fewer bytes can then be faster than one that wins in a few isolated runs (by 1 to 10 % in one
 * product of three on an H200 of 700 W; for a whole step this is 0.5 % with GPT-2 1558M and nothing
 * with 124M: bench/notebook/2026-11-20-one-h200.md#products-at-the-limit-of-power). The clock
 * follows the load within a tenth of a second, so measuring this takes some tenths of a second per
 * candidate: only with MC_TUNING=sustained. */
#include <math.h>
#include "core/device/cuda/product/gemm_internal.h"

enum { PROPOSALS = 16, CANDIDATES = 32, TIMED_RUNS = 2 };

typedef struct candidate {
    cublasLtMatmulAlgo_t algorithm;
    float ms; /* per run, the least of some; infinite: it fails */
} candidate;

typedef struct tuning {
    mc_cuda_device *cuda;
    const mc_gemm_descriptors *s;
    const mc_gemm_call *c;
    candidate candidates[CANDIDATES];
    int count;
    void *to; /* receives results: C may hold values to be added to */
    cudaEvent_t events[2];
} tuning;

/* ---- candidates ------------------------------------------------------------------------------ */

/* Sets a preference that is a 32-bit number. */
static cublasStatus_t wish(const mc_cublaslt *lt, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t name, int32_t number)
{
    uint32_t value = (uint32_t)number;
    return lt->MatmulPreferenceSetAttribute(preference, name, &value, sizeof value);
}

/* Describes the operands; partial sums must not be rounded to 16 bits. */
static cublasStatus_t describe_wishes(const mc_cublaslt *lt, cublasLtMatmulPreference_t p,
                                      const mc_gemm_key *k)
{
    const int32_t *alignment = k->alignment;
    const size_t workspace = MC_GEMM_WORKSPACE;
    cublasStatus_t s = lt->MatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        &workspace, sizeof workspace);
    if (!s) s = wish(lt, p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment[0]);
    if (!s) s = wish(lt, p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment[1]);
    if (!s) s = wish(lt, p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment[2]);
    if (!s) s = wish(lt, p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment[2]);
    if (!s && k->out != CUDA_R_32F)
        s = wish(lt, p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    return s;
}

/* Requests proposals; none if cuBLASLt proposes nothing for these operands. */
static mc_status propose(tuning *t)
{
    const mc_gemm_descriptors *s = t->s;
    cublasLtMatmulHeuristicResult_t results[PROPOSALS];
    cublasLtMatmulPreference_t preference = NULL;
    int given = 0;
    cublasStatus_t status = s->lt->MatmulPreferenceCreate(&preference);
    if (!status) status = describe_wishes(s->lt, preference, &t->c->key);
    if (!status)
        status = s->lt->MatmulAlgoGetHeuristic(t->cuda->gemm->handle, s->operation, s->a, s->b,
                                               s->c, s->d, preference, PROPOSALS, results, &given);
    if (preference) s->lt->MatmulPreferenceDestroy(preference);
    for (int i = 0; !status && i < given; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS)
            t->candidates[t->count++] = (candidate){results[i].algo, INFINITY};
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
        return MC_OK;
    return mc_gemm_check(&t->cuda->device, status, t->c, "finding an algorithm");
}

/* A kernel with Hopper's matrix instructions in cuBLASLt's numbers: the tile of C that it computes,
 * how it does so, and how many adjacent tiles share their loads. */
typedef struct variant {
    int32_t tile, option;
    uint16_t cluster;
} variant;

enum { HOPPER = 66 }; /* the algorithm that has these kernels */

/* Proposed for some products, and often faster for others than their proposals: 128 x 160 beats all
 * proposals for GPT-2's products with a bias by 4 to 8 %, 320 x 128 by 5 %. */
static const variant variants[] = {
    {CUBLASLT_MATMUL_TILE_128x160, 1, CUBLASLT_CLUSTER_SHAPE_2x1x1},
    {CUBLASLT_MATMUL_TILE_128x160, 3, CUBLASLT_CLUSTER_SHAPE_1x2x1},
    {CUBLASLT_MATMUL_TILE_128x128, 1, CUBLASLT_CLUSTER_SHAPE_2x1x1},
    {CUBLASLT_MATMUL_TILE_128x128, 3, CUBLASLT_CLUSTER_SHAPE_1x2x1},
    {CUBLASLT_MATMUL_TILE_256x128, 7, CUBLASLT_CLUSTER_SHAPE_1x2x1},
    {CUBLASLT_MATMUL_TILE_128x256, 4, CUBLASLT_CLUSTER_SHAPE_2x1x1},
    {CUBLASLT_MATMUL_TILE_192x192, 6, CUBLASLT_CLUSTER_SHAPE_1x2x1},
    {CUBLASLT_MATMUL_TILE_320x128, 7, CUBLASLT_CLUSTER_SHAPE_1x2x1},
};

/* A number of an algorithm's configuration; -1 if it has none. */
static int32_t number_of(const mc_cublaslt *lt, const cublasLtMatmulAlgo_t *a,
                         cublasLtMatmulAlgoConfigAttributes_t name)
{
    int32_t value = 0;
    uint16_t small = 0;
    bool is_small = name == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    size_t written;
    cublasStatus_t status =
        lt->MatmulAlgoConfigGetAttribute(a, name, is_small ? (void *)&small : &value,
                                         is_small ? sizeof small : sizeof value, &written);
    return status ? -1 : is_small ? small : value;
}

static bool is_variant(const mc_cublaslt *lt, const cublasLtMatmulAlgo_t *a, const variant *v)
{
    return number_of(lt, a, CUBLASLT_ALGO_CONFIG_TILE_ID) == v->tile &&
           number_of(lt, a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) == v->option &&
           number_of(lt, a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) == v->cluster;
}

/* `base` with another kernel, if the library accepts it for the product. */
static bool vary(const tuning *t, const cublasLtMatmulAlgo_t *base, const variant *v,
                 cublasLtMatmulAlgo_t *out)
{
    const mc_cublaslt *lt = t->s->lt;
    cublasLtMatmulHeuristicResult_t result;
    *out = *base;
    cublasStatus_t s = lt->MatmulAlgoConfigSetAttribute(out, CUBLASLT_ALGO_CONFIG_TILE_ID, &v->tile,
                                                        sizeof v->tile);
    if (!s)
        s = lt->MatmulAlgoConfigSetAttribute(out, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &v->option,
                                             sizeof v->option);
    if (!s)
        s = lt->MatmulAlgoConfigSetAttribute(out, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                             &v->cluster, sizeof v->cluster);
    if (!s)
        s = lt->MatmulAlgoCheck(t->cuda->gemm->handle, t->s->operation, t->s->a, t->s->b, t->s->c,
                                t->s->d, out, &result);
    return !s && !result.state && result.workspaceSize <= MC_GEMM_WORKSPACE;
}

/* Adds variants of the first proposal that is such a kernel, if the operands have the alignment
 * that all of these need. */
static void add_variants(tuning *t)
{
    const mc_cublaslt *lt = t->s->lt;
    int proposals = t->count, base = 0;
    if (t->cuda->capability != 90 || t->c->a_scale) return;
    for (int i = 0; i < 3; i++)
        if (t->c->key.alignment[i] < 16) return;
    while (base < proposals &&
           number_of(lt, &t->candidates[base].algorithm, CUBLASLT_ALGO_CONFIG_ID) != HOPPER)
        base++;
    if (base == proposals) return;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        bool there = false;
        for (int j = 0; j < proposals; j++)
            there = there || is_variant(lt, &t->candidates[j].algorithm, &variants[i]);
        candidate *next = &t->candidates[t->count];
        next->ms = INFINITY;
        if (!there && vary(t, &t->candidates[base].algorithm, &variants[i], &next->algorithm))
            t->count++;
    }
}

/* ---- timing ---------------------------------------------------------------------------------- */

/* Milliseconds per run, of `runs` runs in a row; infinite if one fails. */
static float time_runs(const tuning *t, const candidate *way, int runs)
{
    cudaStream_t stream = t->cuda->stream;
    float ms;
    cudaEventRecord(t->events[0], stream);
    for (int i = 0; i < runs; i++)
        if (mc_gemm_run(t->cuda, t->s, t->c, t->to, &way->algorithm)) return INFINITY;
    cudaEventRecord(t->events[1], stream);
    bool good = !cudaEventSynchronize(t->events[1]) &&
                !cudaEventElapsedTime(&ms, t->events[0], t->events[1]);
    return good ? ms : INFINITY;
}

static int best_of(const tuning *t)
{
    int best = 0;
    for (int i = 1; i < t->count; i++)
        if (t->candidates[i].ms < t->candidates[best].ms) best = i;
    return best;
}

static void time_quickly(tuning *t)
{
    for (int i = 0; i < t->count; i++) {
        candidate *c = &t->candidates[i];
        for (int run = 0; run <= TIMED_RUNS; run++) {
            float ms = time_runs(t, c, 1);
            if (run && ms < c->ms) c->ms = ms;
        }
    }
}

/* For candidates at most `slack` times slower than the best, measures the time of a run after a
 * tenth of a second of load, in which the clock settles; infinite for the others. */
static void time_under_load(tuning *t, float slack)
{
    const float settled = 100, measured = 100; /* milliseconds */
    const float most = t->candidates[best_of(t)].ms * slack;
    for (int i = 0; i < t->count; i++) {
        candidate *c = &t->candidates[i];
        int runs = (int)(measured / c->ms) + 1;
        bool near = c->ms <= most && !isinf(time_runs(t, c, (int)(settled / c->ms) + 1));
        c->ms = near ? time_runs(t, c, runs) / (float)runs : INFINITY;
    }
}

/* The fastest candidate, -1 if none could be timed. */
static int fastest(tuning *t, bool sustained)
{
    /* Shorter products wait for memory or the host more than for the clock, and are not worth
     * loading more kernels. */
    const float long_ones = 0.05f; /* milliseconds */
    time_quickly(t);
    int best = best_of(t);
    bool is_long = t->candidates[best].ms >= long_ones && !isinf(t->candidates[best].ms);
    if (is_long) add_variants(t);
    time_quickly(t); /* again: early in a program the GPU's clock is still rising */
    best = best_of(t);
    if (sustained && is_long) {
        time_under_load(t, 1.12f);
        time_under_load(t, 1.02f); /* close ones are measured twice */
        best = best_of(t);
    }
    return isinf(t->candidates[best].ms) ? -1 : best;
}

/* Allocates what timing needs, and times; -1 if that is impossible. */
static int choose(tuning *t, bool sustained)
{
    const mc_gemm_key *k = &t->c->key;
    int64_t elements = k->n * k->ldc + (k->batch - 1) * k->step[2];
    size_t bytes = (size_t)elements * (k->out == CUDA_R_32F ? 4 : k->out == CUDA_R_8F_E4M3 ? 1 : 2);
    /* the pool would count it in its peak */
    bool good = cudaMalloc(&t->to, bytes) == cudaSuccess &&
                cudaEventCreate(&t->events[0]) == cudaSuccess &&
                cudaEventCreate(&t->events[1]) == cudaSuccess;
    int best = good ? fastest(t, sustained) : -1;
    for (int i = 0; i < 2; i++)
        if (t->events[i]) cudaEventDestroy(t->events[i]);
    if (t->to) cudaFree(t->to);
    cudaGetLastError(); /* without memory for timing the first proposal is used */
    t->cuda->device.waits++;
    return best;
}

mc_gemm_care mc_gemm_care_now(const mc_cuda_device *cuda)
{
    if (cuda->deterministic || cuda->device.recording) return MC_GEMM_FIRST;
    return cuda->gemm->sustained ? MC_GEMM_SUSTAINED : MC_GEMM_QUICK;
}

mc_status mc_gemm_tune(mc_cuda_device *cuda, const mc_gemm_descriptors *s, const mc_gemm_call *c,
                       mc_gemm_plan *plan)
{
    tuning t = {.cuda = cuda, .s = s, .c = c};
    mc_gemm_care care = mc_gemm_care_now(cuda);
    mc_status status = propose(&t);
    if (status) return status;
    int best = -1;
    if (t.count && care != MC_GEMM_FIRST) best = choose(&t, care == MC_GEMM_SUSTAINED);
    plan->usable = t.count > 0;
    plan->care = best < 0 ? MC_GEMM_FIRST : care;
    if (t.count) plan->algorithm = t.candidates[best < 0 ? 0 : best].algorithm;
    return MC_OK;
}
