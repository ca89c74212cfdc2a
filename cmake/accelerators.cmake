# CUDA and MPI: AUTO where they are found, ON (an error where not), or OFF. This version has no MPI
# code: what is found is said and not used, and asking for it is an error.
set(MC_ENABLE_CUDA AUTO CACHE STRING "the CUDA device: AUTO (where the toolkit is found), ON, OFF")
set(MC_ENABLE_MPI AUTO CACHE STRING "CPU ranks over MPI: AUTO (where MPI is found), ON, OFF")
set_property(CACHE MC_ENABLE_CUDA MC_ENABLE_MPI PROPERTY STRINGS AUTO ON OFF)

# ---- CUDA: the toolkit with nvcc and cuBLAS; cuDNN is looked for when a program runs

function(mc_without_cuda why)
    if(NOT MC_ENABLE_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "MC_ENABLE_CUDA=${MC_ENABLE_CUDA}: ${why}")
    endif()
    message(STATUS "CUDA: not built (${why})")
endfunction()

set(MC_HAVE_CUDA OFF)
if(NOT MC_ENABLE_CUDA)
    message(STATUS "CUDA: switched off")
else()
    find_program(MC_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(MC_NVCC)
    if(NOT MC_NVCC)
        mc_without_cuda("no nvcc was found; set CUDA_HOME to the toolkit")
    else()
        # sm_90a's code uses all that Hopper has; PTX of 9.0 serves whatever comes later.
        if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 90-virtual)
        endif()
        set(CMAKE_CUDA_COMPILER ${MC_NVCC} CACHE FILEPATH "the CUDA compiler")
        enable_language(CUDA)
        find_package(CUDAToolkit QUIET)
        if(NOT TARGET CUDA::cublasLt)
            mc_without_cuda("the toolkit at ${MC_NVCC} has no cuBLAS")
        elseif(CUDAToolkit_VERSION VERSION_LESS 12.5)
            mc_without_cuda("CUDA ${CUDAToolkit_VERSION} is too old: 12.5 or later is needed")
        else()
            set(MC_HAVE_CUDA ON)
            target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_CUDA)
            target_link_libraries(mc_dependencies INTERFACE CUDA::cudart_static CUDA::cublasLt
                                                            ${CMAKE_DL_LIBS})
            list(APPEND mc_link_names ${CUDA_cublasLt_LIBRARY} ${CUDA_cudart_static_LIBRARY} rt dl)
            message(STATUS "CUDA: ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
        endif()
    endif()
endif()

# ---- MPI

if(MC_ENABLE_MPI STREQUAL "AUTO")
    find_program(MC_MPI_PROGRAM mpicc)
    mark_as_advanced(MC_MPI_PROGRAM)
    if(MC_MPI_PROGRAM)
        message(STATUS "MPI: found (${MC_MPI_PROGRAM}), not used: this version of modelcenter has no "
                       "MPI code yet")
    else()
        message(STATUS "MPI: not found")
    endif()
elseif(MC_ENABLE_MPI)
    message(FATAL_ERROR "MC_ENABLE_MPI=${MC_ENABLE_MPI}: this version of modelcenter has no MPI code "
                        "yet; leave it at AUTO or set it to OFF")
endif()
