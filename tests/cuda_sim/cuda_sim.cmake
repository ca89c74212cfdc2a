# The CUDA device on the simulator of this folder, instead of on nvcc, the runtime and cuBLASLt. Of
# CUDA only the headers are needed. Included by cmake/accelerators.cmake (what is found) and
# cmake/cuda_kernels.cmake (what is built).
set(sim_folder ${PROJECT_SOURCE_DIR}/tests/cuda_sim)

# Sources of kernels are translated to C++, each into the folder of the build that stands for ours.
function(mc_translate_kernels result)
    find_program(PYTHON3 python3 REQUIRED)
    file(GLOB sources CONFIGURE_DEPENDS core/device/cuda/*/*.cu core/device/cuda/*/*.cuh)
    if(MC_HOPPER) # the rest has instructions that nothing here stands for
        file(GLOB persistent CONFIGURE_DEPENDS core/device/hopper/decode/persistent*.cu core/device/hopper/decode/persistent*.cuh)
        list(FILTER persistent EXCLUDE REGEX "persistent_ring")
        list(APPEND sources ${persistent})
    endif()
    set(made "")
    foreach(source ${sources})
        cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
        set(output ${PROJECT_BINARY_DIR}/cuda_sim/${name})
        string(REGEX REPLACE "\\.cu$" "_cu.cpp" output ${output})
        get_filename_component(folder ${output} DIRECTORY)
        file(MAKE_DIRECTORY ${folder})
        add_custom_command(OUTPUT ${output}
            COMMAND ${PYTHON3} ${sim_folder}/translate.py ${source} ${output} ${name}
            DEPENDS ${source} ${sim_folder}/translate.py)
        list(APPEND made ${output})
    endforeach()
    set(${result} ${made} PARENT_SCOPE)
endfunction()

# Fused multiply-adds and vectors where this machine has them: several times as fast.
include(CheckCXXSourceRuns)
check_cxx_source_runs("int main() { return !(__builtin_cpu_supports(\"avx2\") &&
                                             __builtin_cpu_supports(\"fma\")); }" MC_SIM_HAS_AVX2)
if(MC_SIM_HAS_AVX2)
    set(sim_processor -mavx2 -mfma)
endif()

option(MC_CUDA_SIM_RACES "find races in simulated kernels (slow; not with MC_SANITIZE)" OFF)

function(mc_build_cuda_simulator target)
    file(GLOB host_sources CONFIGURE_DEPENDS core/device/cuda/*/*.c)
    if(MC_HOPPER)
        list(APPEND host_sources core/device/hopper/decode/persistent_plan.c core/device/hopper/decode/deferred.c)
    endif()
    file(GLOB own_sources CONFIGURE_DEPENDS ${sim_folder}/*.cpp)
    if(NOT MC_HOPPER)
        list(FILTER own_sources EXCLUDE REGEX "/hopper.cpp$")
    endif()
    mc_translate_kernels(kernels)
    target_sources(${target} PRIVATE ${host_sources} ${own_sources} ${kernels})
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden CXX_STANDARD 17
                          CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS ON)
    target_include_directories(${target} BEFORE PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_BINARY_DIR}/cuda_sim>
        $<$<COMPILE_LANGUAGE:CXX>:${sim_folder}/include>)
    target_compile_options(${target} PRIVATE
        "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-unknown-pragmas;-Wno-sign-compare>"
        "$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;$<IF:$<BOOL:${MC_SANITIZE}>,-O1,-O3>>"
        "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno;-fno-strict-aliasing>"
        "$<$<COMPILE_LANGUAGE:CXX>:${sim_processor}>"
        "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${MC_WERROR}>>:-Werror>"
        "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
    # Of the time that these took to compile, half or more went to the last steps of optimisation.
    set(slow ${kernels})
    list(FILTER slow INCLUDE REGEX "/(norm|persistent|attention_cached)_cu.cpp$")
    set_source_files_properties(${slow} PROPERTIES COMPILE_OPTIONS -O1)
    if(MC_SANITIZE) # accesses and alignment are what matters; the rest costs most of the time
        set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS
                                    -fno-sanitize=null,bounds,object-size,pointer-overflow)
    endif()
    if(MC_CUDA_SIM_RACES) # only the calls at loads and stores: races.cpp has what they call
        set_source_files_properties(${own_sources} PROPERTIES COMPILE_DEFINITIONS MC_SIM_RACES)
        set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS -fsanitize=thread)
    endif()
    # What a build with MC_HOPPER=OFF is made of: the same objects without the wing, and those that know
    # of it compiled again. What still refers to the wing is not linked.
    if(MC_HOPPER)
        set(knows "cuda/(attention/attention|product/gemm|runtime/(routes|cuda|current_cu))\\.c")
        set(again ${host_sources} ${kernels})
        list(FILTER again INCLUDE REGEX "${knows}")
        add_library(mc_floor STATIC core/about/commit.c ${again}
            $<FILTER:$<TARGET_OBJECTS:${target}>,EXCLUDE,${knows}|/hopper[/.]>)
        target_link_libraries(mc_floor PUBLIC mc_options mc_dependencies PRIVATE mc_cpu_kernels)
        target_compile_options(mc_floor PUBLIC -UMC_HAVE_HOPPER)
        target_include_directories(mc_floor BEFORE PRIVATE
            $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_BINARY_DIR}/cuda_sim>
            $<$<COMPILE_LANGUAGE:CXX>:${sim_folder}/include>)
        set_target_properties(mc_floor PROPERTIES CXX_STANDARD 17 EXCLUDE_FROM_ALL ON)
    endif()
    set_source_files_properties(core/device/cuda/runtime/cudnn.c PROPERTIES
                                COMPILE_DEFINITIONS dlopen=mc_sim_dlopen)
    set_source_files_properties(core/dist/comm_nccl.c PROPERTIES COMPILE_DEFINITIONS
                                "dlopen=mc_sim_dlopen_nccl;dlsym=mc_sim_dlsym")
    set_source_files_properties(core/device/cuda/runtime/libraries.c PROPERTIES
                                COMPILE_DEFINITIONS MC_CUBLASLT_LINKED)
endfunction()
