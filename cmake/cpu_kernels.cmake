# The CPU kernels, compiled once for each instruction set; the table to use is chosen at run time.
file(GLOB isa_sources CONFIGURE_DEPENDS core/device/cpu/isa/*.c)

function(mc_add_isa name)
    add_library(mc_cpu_${name} OBJECT ${isa_sources})
    set_target_properties(mc_cpu_${name} PROPERTIES C_VISIBILITY_PRESET hidden)
    target_link_libraries(mc_cpu_${name} PUBLIC mc_options mc_dependencies)
    target_compile_definitions(mc_cpu_${name} PRIVATE MC_ISA=${name})
    target_compile_options(mc_cpu_${name} PRIVATE -fno-trapping-math -fno-signed-zeros ${ARGN})
endfunction()

add_library(mc_cpu_kernels INTERFACE)
mc_add_isa(scalar)
target_link_libraries(mc_cpu_kernels INTERFACE mc_cpu_scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    mc_add_isa(avx2 -mavx2 -mfma -mf16c)
    mc_add_isa(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
               -mprefer-vector-width=512)
    target_link_libraries(mc_cpu_kernels INTERFACE mc_cpu_avx2 mc_cpu_avx512)
    target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_X86_ISA)
endif()
