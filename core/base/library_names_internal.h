/* Names of shared libraries that are loaded at run time: elements of NULL-terminated arrays,
 * preferred names first. */
#ifndef MC_BASE_LIBRARY_NAMES_INTERNAL_H
#define MC_BASE_LIBRARY_NAMES_INTERNAL_H

#define MC_LIBRARY_CURL "libcurl.so.4", "libcurl-gnutls.so.4"
#define MC_LIBRARY_CRYPTO "libcrypto.so.3", "libcrypto.so.1.1"
#define MC_LIBRARY_CUDA_DRIVER "libcuda.so.1"
#define MC_LIBRARY_NCCL "libnccl.so.2"
#define MC_LIBRARY_CUDNN "libcudnn.so.9"
/* As the build found them (cmake/dependencies.cmake); if undefined, the library is linked. */
#ifdef MC_OPENED_CBLAS
#define MC_LIBRARY_CBLAS MC_OPENED_CBLAS
#endif
#ifdef MC_OPENED_ONEDNN
#define MC_LIBRARY_ONEDNN MC_OPENED_ONEDNN
#endif

#endif
