/* NVIDIA's large libraries, which take a tenth of a second and more to load. They are not linked,
 * so that programs start without them, but loaded while the GPU starts. */
#ifndef MC_DEVICE_CUDA_RUNTIME_LIBRARIES_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_LIBRARIES_INTERNAL_H

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>

/* The functions used of cuBLASLt. */
#define MC_CUBLASLT_FUNCTIONS(X)    \
    X(GetVersion)                   \
    X(GetStatusString)              \
    X(Create)                       \
    X(Destroy)                      \
    X(Matmul)                       \
    X(MatmulAlgoGetHeuristic)       \
    X(MatmulAlgoCheck)              \
    X(MatmulAlgoConfigGetAttribute) \
    X(MatmulAlgoConfigSetAttribute) \
    X(MatmulDescCreate)             \
    X(MatmulDescDestroy)            \
    X(MatmulDescSetAttribute)       \
    X(MatrixLayoutCreate)           \
    X(MatrixLayoutDestroy)          \
    X(MatrixLayoutSetAttribute)     \
    X(MatmulPreferenceCreate)       \
    X(MatmulPreferenceDestroy)      \
    X(MatmulPreferenceSetAttribute)

typedef struct mc_cublaslt {
#define MC_CUBLASLT_MEMBER(name) __typeof__(cublasLt##name) *name;
    MC_CUBLASLT_FUNCTIONS(MC_CUBLASLT_MEMBER)
#undef MC_CUBLASLT_MEMBER
} mc_cublaslt;

/* Loads the library of the toolkit's major version, which stays loaded. False, with the reason in
 * `why` (size bytes), if it is missing. */
bool mc_cublaslt_load(mc_cublaslt *lt, char *why, size_t size);

/* Loads cuBLASLt, and then the libraries of cuDNN's attention, on a separate thread; a thread that
 * needs one meanwhile waits for it. NULL if no thread can be created: then nothing is loaded
 * ahead. */
typedef struct mc_preload mc_preload;
mc_preload *mc_preload_new(void);
void mc_preload_free(mc_preload *preload); /* NULL allowed */

#endif
