# Chinese word segmentation for CPM's tokenizers: the dictionary and the model of Python's jieba 0.42.1
# (Debian's python3-jieba; Copyright 2012-2017 Sun Junyi, MIT licence) are turned into one file, which
# is installed with the library and mapped at run time. No Python is run. AUTO where it is found, ON (an
# error where not), or OFF.
set(MC_ENABLE_JIEBA AUTO CACHE STRING "CPM's dictionary: AUTO (where python3-jieba is found), ON, OFF")
set_property(CACHE MC_ENABLE_JIEBA PROPERTY STRINGS AUTO ON OFF)

include(GNUInstallDirs)
target_link_libraries(mc_dependencies INTERFACE ${CMAKE_DL_LIBS}) # dladdr, to find the file by
list(APPEND mc_link_names ${CMAKE_DL_LIBS})
file(RELATIVE_PATH data_from_library "${CMAKE_INSTALL_FULL_LIBDIR}"
     "${CMAKE_INSTALL_FULL_DATADIR}/modelcenter")
set_source_files_properties(tokenizers/cpm/jieba.c PROPERTIES COMPILE_DEFINITIONS
    "MC_DATA_DIR=\"${CMAKE_INSTALL_FULL_DATADIR}/modelcenter\";MC_DATA_FROM_LIBRARY=\"${data_from_library}\"")

if(NOT MC_ENABLE_JIEBA)
    message(STATUS "jieba: switched off")
    return()
endif()
find_path(MC_JIEBA_SOURCE_DIR finalseg/prob_emit.py PATHS /usr/lib/python3/dist-packages/jieba
          NO_CMAKE_FIND_ROOT_PATH)
mark_as_advanced(MC_JIEBA_SOURCE_DIR)
if(NOT MC_JIEBA_SOURCE_DIR)
    if(NOT MC_ENABLE_JIEBA STREQUAL "AUTO")
        message(FATAL_ERROR "MC_ENABLE_JIEBA=${MC_ENABLE_JIEBA}: no jieba was found; install "
                            "python3-jieba, or set MC_JIEBA_SOURCE_DIR to the folder of its dict.txt")
    endif()
    message(STATUS "jieba: not found: CPM's tokenizers need MC_JIEBA_DIR at run time")
    return()
endif()
message(STATUS "jieba: ${MC_JIEBA_SOURCE_DIR}")

set(table ${PROJECT_BINARY_DIR}/share/modelcenter/jieba.bin)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/modelcenter)
add_executable(jieba_table cmake/jieba_table.c)
target_link_libraries(jieba_table PRIVATE mc_internal)
set_target_properties(jieba_table PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cmake)
add_custom_command(OUTPUT ${table} COMMAND jieba_table ${MC_JIEBA_SOURCE_DIR} ${table}
                   DEPENDS jieba_table ${MC_JIEBA_SOURCE_DIR}/dict.txt
                           ${MC_JIEBA_SOURCE_DIR}/finalseg/prob_emit.py VERBATIM)
add_custom_target(jieba_dictionary ALL DEPENDS ${table})
set_property(GLOBAL APPEND PROPERTY MC_INSTALLED jieba_dictionary)
install(FILES ${table} cmake/jieba.copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/modelcenter)
