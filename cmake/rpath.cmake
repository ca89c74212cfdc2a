# Where the command looks for the library, and the library for its own. Both are built with the RPATH that
# they are installed with. CMake would otherwise write one for the build tree that it replaces in an
# install, and reserve room for that with a ':' at the end: an empty element, which is the working folder.
# So the build tree is laid out as the installed one: bin/modelcenter, lib/libmodelcenter.so.
include(GNUInstallDirs)

# Folders outside of the system's own in which libraries were found while linking are kept.
function(mc_set_rpath target rpath)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${rpath}"
                          INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

file(RELATIVE_PATH from_command "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
string(REGEX REPLACE "/$" "" from_command "${from_command}")
set(command_rpath "$ORIGIN/${from_command}")
if(from_command MATCHES "^\\.\\./([^.].*)$")
    set(library_folder ${CMAKE_MATCH_1})
else() # each in a prefix of its own
    set(library_folder lib)
    list(APPEND command_rpath "$ORIGIN/../lib")
endif()
set_target_properties(modelcenter PROPERTIES
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${library_folder}
                      ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${library_folder})
mc_set_rpath(modelcenter "")
