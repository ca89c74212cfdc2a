# The command on several CPU ranks.
if(MC_HAVE_MPI AND MC_BUILD_TOOLS)
    add_test(NAME tools_ranks
             COMMAND ${PYTHON3} ${CMAKE_CURRENT_LIST_DIR}/tools_ranks.py ${MPIEXEC_EXECUTABLE}
                     $<TARGET_FILE:modelcenter_tool> ${PROJECT_SOURCE_DIR}/datasets/quickstart
                     $<TARGET_FILE:ranks_results>)
    set_tests_properties(tools_ranks PROPERTIES TIMEOUT 600 COST 100
                         ENVIRONMENT "${ranks_environment};MC_CUT_MAPPED=$<TARGET_FILE:cut_mapped>")
else()
    add_test(NAME tools_ranks COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: a build without MPI")
    set_tests_properties(tools_ranks PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: a build")
endif()
