# Tests of communicators between CPU ranks: programs that mpirun starts. Included by
# tests/CMakeLists.txt.
set(comm_environment ${mpi_environment}
    ASAN_OPTIONS=fast_unwind_on_malloc=0 # or MPI's stacks are cut off
    "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/mpi_leaks.txt:print_suppressions=0")
set_tests_properties(test_comm PROPERTIES ENVIRONMENT "${comm_environment}")

if(MC_HAVE_MPI)
    find_program(MC_MPIRUN NAMES ${MPIEXEC_EXECUTABLE} mpirun mpiexec)
    mark_as_advanced(MC_MPIRUN)
endif()
if(MC_HAVE_MPI AND MC_MPIRUN)
    set(comm_counts 1 2 3 4)
    if(MC_SANITIZE) # slow: of three ranks one is neither the first nor the last
        set(comm_counts 3)
    endif()
    foreach(ranks ${comm_counts})
        add_test(NAME test_comm_${ranks}_ranks COMMAND ${PYTHON3} ${CMAKE_CURRENT_LIST_DIR}/kept_port.py
                                                       ${MC_MPIRUN} -np ${ranks} $<TARGET_FILE:test_comm>)
        set_tests_properties(test_comm_${ranks}_ranks PROPERTIES ENVIRONMENT "${comm_environment}"
                             TIMEOUT 300 PROCESSORS 2)
    endforeach()
    execute_process(COMMAND ${MC_MPIRUN} --version OUTPUT_VARIABLE mpirun_version ERROR_QUIET)
else()
    add_test(NAME test_comm_ranks
             COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: no mpirun, or a build without MPI")
    set_tests_properties(test_comm_ranks PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: no mpirun")
endif()

set_tests_properties(test_control PROPERTIES COST 45) # it sleeps most of the time
set_tests_properties(test_control_strangers PROPERTIES COST 20)
target_link_options(test_control PRIVATE LINKER:--wrap=mc_frame_get_text) # to see what rank 0 has said
target_link_options(test_control_strangers PRIVATE LINKER:--wrap=mc_hmac_load) # to have no libcrypto
foreach(name test_comm_failures test_mpi_hosts)
    if(mpirun_version MATCHES "Open MPI|OpenRTE|PRRTE") # whose mpirun lets ranks outlive others
        target_compile_definitions(${name} PRIVATE MC_MPIEXEC="${MC_MPIRUN}"
                                                   MC_TEST_SELF="$<TARGET_FILE:${name}>")
    endif()
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${comm_environment}" TIMEOUT 300
                         COST 40 SKIP_REGULAR_EXPRESSION "SKIPPED: no Open MPI")
endforeach()
