# CUDA and MPI: found by themselves, or asked for with ON, or left alone with OFF. This version has
# code for neither, so what is found is said and not used, and asking for it is an error: nobody
# should believe in a GPU build that is none.
set(MC_ENABLE_CUDA AUTO CACHE STRING "the CUDA device: AUTO (where the toolkit is found), ON, OFF")
set(MC_ENABLE_MPI AUTO CACHE STRING "CPU ranks over MPI: AUTO (where MPI is found), ON, OFF")

function(mc_detect name program)
    set(choice ${MC_ENABLE_${name}})
    set_property(CACHE MC_ENABLE_${name} PROPERTY STRINGS AUTO ON OFF)
    if(choice STREQUAL "AUTO")
        find_program(MC_${name}_PROGRAM ${program} HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
                     PATH_SUFFIXES bin)
        mark_as_advanced(MC_${name}_PROGRAM)
        if(MC_${name}_PROGRAM)
            message(STATUS "${name}: found (${MC_${name}_PROGRAM}), not used: this version of "
                           "modelcenter has no ${name} code yet")
        else()
            message(STATUS "${name}: not found")
        endif()
    elseif(choice)
        message(FATAL_ERROR "MC_ENABLE_${name}=${choice}: this version of modelcenter has no ${name} "
                            "code yet; leave it at AUTO or set it to OFF")
    endif()
endfunction()

mc_detect(CUDA nvcc)
mc_detect(MPI mpicc)
