# The CUDA device, where it is enabled: host code in C, kernels in CUDA C, one library with the rest.
if(MC_CUDA_SIMULATOR)
    include(tests/cuda_sim/cuda_sim.cmake)
    mc_build_cuda_simulator(mc_objects)
elseif(MC_HAVE_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS core/device/cuda/*.c core/device/cuda/*.cu)
    if(NOT MC_HAVE_HOPPER)
        list(FILTER cuda_sources EXCLUDE REGEX "_hopper\\.cu$")
    endif()
    target_sources(mc_objects PRIVATE ${cuda_sources})
    set_target_properties(mc_objects PROPERTIES CUDA_VISIBILITY_PRESET hidden CUDA_STANDARD 17
                          CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS ON)
    target_compile_options(mc_objects PRIVATE
        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--expt-relaxed-constexpr;-lineinfo>"
        "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${MC_WERROR}>>:-Werror=all-warnings>")
    # Random numbers have the same bits as the CPU's: no fused multiply-add.
    set_source_files_properties(core/device/cuda/random.cu PROPERTIES COMPILE_OPTIONS "-fmad=false")
endif()
