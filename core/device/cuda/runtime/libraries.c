#include "core/device/cuda/runtime/libraries_internal.h"

#include <cuda_runtime_api.h> /* CUDART_VERSION */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include "core/base/memory_internal.h"
#include "core/base/signals_internal.h"

#ifdef MC_CUBLASLT_LINKED /* the simulator has its own */

bool mc_cublaslt_load(mc_cublaslt *lt, char *why, size_t size)
{
    (void)why, (void)size;
#define TAKE(name) lt->name = cublasLt##name;
    MC_CUBLASLT_FUNCTIONS(TAKE)
#undef TAKE
    return true;
}

mc_preload *mc_preload_new(void) { return NULL; }
void mc_preload_free(mc_preload *preload) { (void)preload; }

#else

enum { CUDART_MAJOR = CUDART_VERSION / 1000, NAME_SIZE = 48 };
static const int flags = RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE;

static void name_of(char name[NAME_SIZE], const char *library, int major)
{
    snprintf(name, NAME_SIZE, "%s.so.%d", library, major);
}

bool mc_cublaslt_load(mc_cublaslt *lt, char *why, size_t size)
{
    char name[NAME_SIZE];
    name_of(name, "libcublasLt", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, flags);
    if (!library) {
        const char *text = dlerror();
        snprintf(why, size, "%s", text ? text : name);
        return false;
    }
#define FIND(function)                                                         \
    *(void **)&lt->function = dlsym(library, "cublasLt" #function);            \
    if (!lt->function) {                                                       \
        snprintf(why, size, "%s has no function cublasLt%s", name, #function); \
        return false;                                                          \
    }
    MC_CUBLASLT_FUNCTIONS(FIND)
#undef FIND
    return true;
}

struct mc_preload {
    pthread_t thread;
};

/* Loads them; errors are left to the users of the libraries. */
static void *preload(void *user)
{
    static const struct {
        const char *library;
        int major;
    } wanted[] = {{"libcublasLt", CUBLAS_VER_MAJOR},
                  {"libnvrtc", CUDART_MAJOR},
                  {"libcudnn", 9},
                  {"libcudnn_graph", 9},
                  {"libcudnn_engines_runtime_compiled", 9}};
    char name[NAME_SIZE];
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        name_of(name, wanted[i].library, wanted[i].major);
        dlopen(name, flags);
    }
    return user;
}

mc_preload *mc_preload_new(void)
{
    sigset_t before;
    mc_preload *p = mc_malloc(sizeof *p);
    if (!p) return NULL;
    mc_signals_block(&before); /* the program's own threads handle signals */
    int failure = pthread_create(&p->thread, NULL, preload, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failure) return p;
    mc_free(p);
    return NULL;
}

void mc_preload_free(mc_preload *p)
{
    if (!p) return;
    pthread_join(p->thread, NULL);
    mc_free(p);
}

#endif
