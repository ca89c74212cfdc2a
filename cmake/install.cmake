# What `cmake --install` gives: the library, its public headers, the files by which pkg-config and
# CMake find it (both work wherever the folder is moved to), and the documents. The command adds itself
# and what is made from it in tools/.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# <modelcenter.h> and the folder modelcenter/ are all that comes into the include path.
install(CODE "set(MC_SOURCE \"${PROJECT_SOURCE_DIR}\")
set(MC_BINARY \"${PROJECT_BINARY_DIR}\")
set(MC_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
set(MC_DOCDIR \"${CMAKE_INSTALL_DOCDIR}\")")
install(SCRIPT cmake/public_headers.cmake)
install(SCRIPT cmake/documents.cmake)
target_include_directories(modelcenter INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                           $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/core>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# A static library is linked together with what it stands on; a shared one brings it along.
set(pc_libs "")
foreach(name ${mc_link_names})
    if(IS_ABSOLUTE ${name})
        cmake_path(GET name PARENT_PATH folder)
        cmake_path(GET name STEM base)
        string(REGEX REPLACE "^lib" "" base ${base})
        if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            string(APPEND pc_libs " -L${folder}")
        endif()
        string(APPEND pc_libs " -l${base}")
    else()
        string(APPEND pc_libs " -l${name}")
    endif()
endforeach()
if(BUILD_SHARED_LIBS)
    set(pc_libs "")
    set(pc_requires "")
else()
    set(pc_requires "libcjson")
    target_link_libraries(modelcenter INTERFACE
                          "$<INSTALL_INTERFACE:${cjson_LIBRARIES};${mc_link_names}>")
endif()

# Paths of the .pc file are relative to itself.
set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE ${pc_folder})
    set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
    file(RELATIVE_PATH up "/prefix/${pc_folder}" "/prefix")
    string(REGEX REPLACE "/$" "" up "${up}")
    set(pc_prefix "\${pcfiledir}/${up}")
endif()
foreach(kind LIB INCLUDE)
    string(TOLOWER ${kind} lower)
    if(IS_ABSOLUTE ${CMAKE_INSTALL_${kind}DIR})
        set(pc_${lower}dir ${CMAKE_INSTALL_${kind}DIR})
    else()
        set(pc_${lower}dir "\${prefix}/${CMAKE_INSTALL_${kind}DIR}")
    endif()
endforeach()
configure_file(cmake/modelcenter.pc.in modelcenter.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/modelcenter.pc DESTINATION ${pc_folder})

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/modelcenter)
install(TARGETS modelcenter EXPORT modelcenter_targets)
install(EXPORT modelcenter_targets NAMESPACE modelcenter:: FILE modelcenterTargets.cmake
        DESTINATION ${package_folder})
configure_package_config_file(cmake/modelcenterConfig.cmake.in modelcenterConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(modelcenterConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/modelcenterConfig.cmake
              ${PROJECT_BINARY_DIR}/modelcenterConfigVersion.cmake DESTINATION ${package_folder})
