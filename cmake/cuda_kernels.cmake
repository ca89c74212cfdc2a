# The CUDA device, where it is enabled: host code in C, kernels in CUDA C, one library with the rest.
function(mc_compile_as_cuda target)
    set_target_properties(${target} PROPERTIES CUDA_VISIBILITY_PRESET hidden CUDA_STANDARD 17
                          CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS ON)
    target_compile_options(${target} PRIVATE
        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--expt-relaxed-constexpr;-lineinfo>"
        "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${MC_WERROR}>>:-Werror=all-warnings>")
endfunction()

if(MC_CUDA_SIMULATOR)
    include(tests/cuda_sim/cuda_sim.cmake)
    mc_build_cuda_simulator(mc_objects)
elseif(MC_HAVE_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS core/device/cuda/*/*.c core/device/cuda/*/*.cu)
    target_sources(mc_objects PRIVATE ${cuda_sources})
    mc_compile_as_cuda(mc_objects)
    # Random numbers have the same bits as the CPU's: no fused multiply-add.
    set_source_files_properties(core/device/cuda/elementwise/random.cu PROPERTIES COMPILE_OPTIONS "-fmad=false")
endif()

# What only compute capability 9.0 runs: MC_HOPPER=OFF leaves it out.
add_library(mc_hopper INTERFACE)
if(MC_HAVE_HOPPER)
    file(GLOB_RECURSE hopper_sources CONFIGURE_DEPENDS core/device/hopper/*.c core/device/hopper/*.cu)
    add_library(mc_hopper_objects OBJECT ${hopper_sources})
    target_link_libraries(mc_hopper_objects PRIVATE mc_options mc_dependencies)
    set_target_properties(mc_hopper_objects PROPERTIES C_VISIBILITY_PRESET hidden)
    mc_compile_as_cuda(mc_hopper_objects)
    target_sources(mc_hopper INTERFACE $<TARGET_OBJECTS:mc_hopper_objects>)
endif()
