# The CPU kernels, compiled once for each instruction set; the table to use is chosen at run time.
file(GLOB isa_sources CONFIGURE_DEPENDS core/device/cpu/isa/*.c)
# Under sanitizers they take a third of the library's time to compile, and with few optimisations half of it.
if(NOT MC_SANITIZE)
    set(isa_optimisation $<$<CONFIG:Release,RelWithDebInfo>:-O3>)
endif()

function(mc_add_isa name)
    add_library(mc_cpu_${name} OBJECT ${isa_sources})
    set_target_properties(mc_cpu_${name} PROPERTIES C_VISIBILITY_PRESET hidden)
    target_link_libraries(mc_cpu_${name} PUBLIC mc_options mc_dependencies)
    target_compile_definitions(mc_cpu_${name} PRIVATE MC_ISA=${name})
    target_compile_options(mc_cpu_${name} PRIVATE -fno-trapping-math -fno-signed-zeros
                           -ffp-contract=fast ${isa_optimisation}
                           $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed> ${ARGN})
endfunction()

# Random numbers have the same bits in every build: no fused multiply-add, every sign as it falls.
set_source_files_properties(core/device/cpu/isa/random.c PROPERTIES COMPILE_OPTIONS
                            "-ffp-contract=off;-fsigned-zeros")

# In loops over elements the steps after the last whole vector stay a plain loop. By default GCC adds a copy
# of the loop with half vectors and unrolls the rest, which doubles the code and the time to compile it.
# Only sources whose kernels bench_kernels found as fast: embedding.c's backward pass was slower.
include(CheckCCompilerFlag)
check_c_compiler_flag("--param=vect-epilogues-nomask=0 --param=max-completely-peel-times=2" MC_HAS_LOOP_PARAMETERS)
if(MC_HAS_LOOP_PARAMETERS AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    foreach(name elementwise loss norm optimizer row_loss)
        set_property(SOURCE core/device/cpu/isa/${name}.c APPEND PROPERTY COMPILE_OPTIONS
                     --param=vect-epilogues-nomask=0 --param=max-completely-peel-times=2)
    endforeach()
endif()

add_library(mc_cpu_kernels INTERFACE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    mc_add_isa(avx2 -mavx2 -mfma -mf16c)
    mc_add_isa(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
               -mprefer-vector-width=512)
    target_sources(mc_cpu_kernels INTERFACE $<TARGET_OBJECTS:mc_cpu_avx2> $<TARGET_OBJECTS:mc_cpu_avx512>)
    target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_X86_ISA)
    # Then the plain table is for processors from before 2013: -O2 compiles it in two thirds of the time.
    string(REPLACE -O3 -O2 isa_optimisation "${isa_optimisation}")
endif()
mc_add_isa(scalar)
target_sources(mc_cpu_kernels INTERFACE $<TARGET_OBJECTS:mc_cpu_scalar>)
