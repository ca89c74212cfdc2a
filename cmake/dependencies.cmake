# What the library stands on, gathered in one interface target: mc_dependencies.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(PkgConfig REQUIRED)
pkg_check_modules(cjson REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)

# Any BLAS with a CBLAS interface; OpenBLAS by default. The OpenMP flavour is preferred, because our
# own loops are OpenMP loops and the two then share one team of threads.
find_path(CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-openmp openblas openblas-pthread REQUIRED)
find_library(CBLAS_LIBRARY NAMES openblas blis blas cblas PATH_SUFFIXES openblas-openmp REQUIRED)

# oneDNN's sgemm, where it is installed: it picks its kernels by what the processor can do rather
# than by its name, so it uses AVX-512 on processors newer than the BLAS.
option(MC_ONEDNN "use oneDNN's sgemm where found" ON)
find_path(DNNL_INCLUDE_DIR dnnl.h)
find_library(DNNL_LIBRARY dnnl)

add_library(mc_dependencies INTERFACE)
target_include_directories(mc_dependencies SYSTEM INTERFACE ${CBLAS_INCLUDE_DIR})
target_link_libraries(mc_dependencies INTERFACE Threads::Threads OpenMP::OpenMP_C PkgConfig::cjson
                      PkgConfig::utf8proc ${CBLAS_LIBRARY} m)
if(MC_ONEDNN AND DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_ONEDNN)
    target_include_directories(mc_dependencies SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
    target_link_libraries(mc_dependencies INTERFACE ${DNNL_LIBRARY})
    message(STATUS "GEMM: oneDNN (${DNNL_LIBRARY}), else CBLAS (${CBLAS_LIBRARY})")
else()
    message(STATUS "GEMM: CBLAS (${CBLAS_LIBRARY})")
endif()
