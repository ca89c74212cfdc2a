/* The libraries for sgemm. They are opened at the first product, so programs without products run
 * without them: OpenBLAS reserves hundreds of MB of address space when it is loaded, and retries
 * for ever if it gets none. So the address space is checked first. */
#include <cblas.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include "core/base/library_names_internal.h"
#include "core/device/cpu/cpu_internal.h"
#ifdef MC_HAVE_ONEDNN
#include <dnnl.h>
#endif

/* A library's needs in MiB. Address space: when it is loaded, and for each computing thread
 * (measured: OpenBLAS 0.3.21 165 and 135, oneDNN 2.6 42 and 9). Memory: the growth of each thread's
 * buffers with large products after mc_device_prepare (measured with products of a vocabulary of
 * 50,257: 6.4 and 2 to 5). */
typedef struct space_use {
    int loaded, thread, buffers;
} space_use;

static space_use space_of(const char *name)
{
    if (strstr(name, "openblas")) return (space_use){176, 144, 7};
    return (space_use){48, 12, 3};
}

bool mc_cpu_library_has_space(const char *name, char *why, size_t room)
{
    space_use use = space_of(name);
    uint64_t needed = ((uint64_t)use.loaded + (uint64_t)use.thread * omp_get_max_threads()) << 20;
    uint64_t left = mc_cpu_space_left();
    if (needed <= left) return true;
    snprintf(why, room,
             "%s takes %" PRIu64 " MiB of address space with %d threads, and the process's limit "
             "(ulimit -v) leaves %" PRIu64 " MiB: raise it, or set OMP_NUM_THREADS lower",
             name, needed >> 20, omp_get_max_threads(), left >> 20);
    return false;
}

uint64_t mc_cpu_library_buffers(const mc_cpu_device *cpu)
{
    int each = space_of(strcmp(cpu->gemm, "onednn") == 0 ? "" : "openblas").buffers;
    return ((uint64_t)each << 20) * (uint64_t)omp_get_max_threads();
}

/* The function from the first library that can be opened. NULL with the reason in d->failure. */
static void *find(mc_device *d, const char *const *names, const char *symbol)
{
    const char *why = NULL;
    for (; *names; names++) {
        if (!mc_cpu_library_has_space(*names, d->failure, sizeof d->failure)) return NULL;
        void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        void *function = library ? dlsym(library, symbol) : NULL;
        if (function) return function;
        if (!why || library) why = dlerror();
    }
    snprintf(d->failure, sizeof d->failure, "matrix products need a library: %s", why ? why : "");
    return NULL;
}

/* ---- CBLAS ----------------------------------------------------------------------------------- */

static __typeof__(&cblas_sgemm) cblas_function;

static void sgemm_cblas(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                        float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                        float beta, float *c, int64_t ldc)
{
    __typeof__(&cblas_sgemm) function = __atomic_load_n(&cblas_function, __ATOMIC_ACQUIRE);
    function(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
             transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
             (int)ldb, beta, c, (int)ldc);
}

mc_sgemm_fn mc_sgemm_open_cblas(mc_device *d)
{
#ifdef MC_LIBRARY_CBLAS
    static const char *const names[] = {MC_LIBRARY_CBLAS, NULL};
    void *function = find(d, names, "cblas_sgemm");
#else
    (void)d;
    void *function = (void *)cblas_sgemm;
#endif
    /* all threads store the same value */
    if (function)
        __atomic_store(&cblas_function, (__typeof__(&cblas_sgemm) *)&function, __ATOMIC_RELEASE);
    return function ? sgemm_cblas : NULL;
}

/* ---- oneDNN ---------------------------------------------------------------------------------- */

#ifdef MC_HAVE_ONEDNN
static __typeof__(&dnnl_sgemm) onednn_function;

/* Row-major, like ours. It fails only for sizes and strides that the caller has excluded. */
static void sgemm_onednn(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                         float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                         float beta, float *c, int64_t ldc)
{
    __typeof__(&dnnl_sgemm) function = __atomic_load_n(&onednn_function, __ATOMIC_ACQUIRE);
    function(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta,
             c, ldc);
}

mc_sgemm_fn mc_sgemm_open_onednn(mc_device *d)
{
#ifdef MC_LIBRARY_ONEDNN
    static const char *const names[] = {MC_LIBRARY_ONEDNN, NULL};
    void *function = find(d, names, "dnnl_sgemm");
#else
    (void)d;
    void *function = (void *)dnnl_sgemm;
#endif
    if (function)
        __atomic_store(&onednn_function, (__typeof__(&dnnl_sgemm) *)&function, __ATOMIC_RELEASE);
    return function ? sgemm_onednn : NULL;
}
#endif

mc_sgemm_fn mc_cpu_sgemm(mc_device *d)
{
    mc_cpu_device *cpu = (mc_cpu_device *)d;
    mc_sgemm_fn sgemm = __atomic_load_n(&cpu->sgemm, __ATOMIC_ACQUIRE);
    if (!sgemm && (sgemm = cpu->open_sgemm(d)))
        __atomic_store_n(&cpu->sgemm, sgemm, __ATOMIC_RELEASE);
    return sgemm;
}
