# The CPU kernels, compiled once for each instruction set; the table to use is chosen at run time.
file(GLOB isa_sources CONFIGURE_DEPENDS core/device/cpu/isa/*.c)

function(mc_add_isa name)
    add_library(mc_cpu_${name} OBJECT ${isa_sources})
    set_target_properties(mc_cpu_${name} PROPERTIES C_VISIBILITY_PRESET hidden)
    target_link_libraries(mc_cpu_${name} PUBLIC mc_options mc_dependencies)
    target_compile_definitions(mc_cpu_${name} PRIVATE MC_ISA=${name})
    target_compile_options(mc_cpu_${name} PRIVATE -fno-trapping-math -fno-signed-zeros
                           -ffp-contract=fast $<$<CONFIG:Release,RelWithDebInfo>:-O3>
                           $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed> ${ARGN})
endfunction()

# Random numbers have the same bits in every build: no fused multiply-add, every sign as it falls.
set_source_files_properties(core/device/cpu/isa/random.c PROPERTIES COMPILE_OPTIONS
                            "-ffp-contract=off;-fsigned-zeros")

# Under sanitizers these take a third of the library's time to compile, and a quarter of that with
# few optimisations.
if(MC_SANITIZE)
    set_source_files_properties(core/device/cpu/isa/attention.c core/device/cpu/isa/gemv.c
                                core/device/cpu/isa/skinny_gemm.c PROPERTIES COMPILE_OPTIONS -O1)
endif()

add_library(mc_cpu_kernels INTERFACE)
mc_add_isa(scalar)
target_sources(mc_cpu_kernels INTERFACE $<TARGET_OBJECTS:mc_cpu_scalar>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    mc_add_isa(avx2 -mavx2 -mfma -mf16c)
    mc_add_isa(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
               -mprefer-vector-width=512)
    target_sources(mc_cpu_kernels INTERFACE $<TARGET_OBJECTS:mc_cpu_avx2> $<TARGET_OBJECTS:mc_cpu_avx512>)
    target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_X86_ISA)
endif()
