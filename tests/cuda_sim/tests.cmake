# Included by tests/CMakeLists.txt where the CUDA device is simulated. The tests of the GPU run as
# they are; those of streams run in other orders too, those of memory a second time with every
# allocation one of the system's, where AddressSanitizer sees each access.
set(sim_environment MC_CUDA_SIMULATED=1 MC_CACHE_DIR=${PROJECT_BINARY_DIR}/cuda_sim_cache
    OMP_WAIT_POLICY=passive)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda_sim_cache)
foreach(name ${gpu_tests})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ${sim_environment})
    set_tests_properties(${name} PROPERTIES RUN_SERIAL OFF TIMEOUT 1500)
endforeach()
# The longest go first, or one of them is the last and alone.
foreach(name test_cuda_ops test_cuda_packed test_cuda_kernels test_generator_cuda test_cuda_attention
             test_cuda_training)
    if(TEST ${name})
        set_tests_properties(${name} PROPERTIES COST 50)
    endif()
endforeach()
foreach(run test_cuda_training_late test_cuda_training_ahead test_cuda_ranks_late)
    string(REGEX MATCH "^(.*)_([a-z]+)$" whole ${run})
    if(TARGET ${CMAKE_MATCH_1})
        add_test(NAME ${run} COMMAND ${CMAKE_MATCH_1})
        set_tests_properties(${run} PROPERTIES LABELS gpu TIMEOUT 1500
                             ENVIRONMENT "${sim_environment};MC_CUDA_SIM_STREAMS=${CMAKE_MATCH_2}")
    endif()
endforeach()
foreach(name test_cuda_ranks test_cuda_ranks_late) # three ranks, which have deadlines
    if(TEST ${name})
        set_tests_properties(${name} PROPERTIES PROCESSORS 3)
    endif()
endforeach()
foreach(name test_cuda_kernels test_cuda_attention test_cuda_ops)
    if(TARGET ${name})
        add_test(NAME ${name}_direct COMMAND ${name})
        set_tests_properties(${name}_direct PROPERTIES LABELS gpu TIMEOUT 1500
                             ENVIRONMENT "${sim_environment};MC_CUDA_MEMORY=direct")
    endif()
endforeach()
# Without the wing, as MC_HOPPER=OFF builds the library: which routes there are, a model's generation.
if(TARGET mc_floor)
    foreach(test device/test_cuda_routes models/test_cuda_generate)
        cmake_path(GET test FILENAME name)
        string(APPEND name _floor)
        add_executable(${name} ${test}.c)
        target_link_libraries(${name} PRIVATE mc_floor PkgConfig::cmocka)
        target_compile_definitions(${name} PRIVATE MC_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
        set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
        add_dependencies(gpu_tests ${name})
        add_test(NAME ${name} COMMAND ${name})
        set_tests_properties(${name} PROPERTIES LABELS gpu TIMEOUT 1500 ENVIRONMENT "${sim_environment}")
    endforeach()
endif()
