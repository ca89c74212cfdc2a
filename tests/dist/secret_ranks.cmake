# The job's secret under several launchers' variables.
if(MC_HAVE_MPI AND MC_BUILD_TOOLS)
    add_test(NAME secret_ranks
             COMMAND ${PYTHON3} ${CMAKE_CURRENT_LIST_DIR}/secret_ranks.py ${MPIEXEC_EXECUTABLE}
                     $<TARGET_FILE:modelcenter_tool>)
    set_tests_properties(secret_ranks PROPERTIES TIMEOUT 300 PROCESSORS 2
                         ENVIRONMENT "${ranks_environment}")
else()
    add_test(NAME secret_ranks COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: a build without MPI")
    set_tests_properties(secret_ranks PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: a build")
endif()
