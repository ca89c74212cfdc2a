# What the library stands on, gathered in one interface target: mc_dependencies. The same as plain
# library names, for the files that others link a static library with: mc_link_names.
include(CheckSymbolExists)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(PkgConfig REQUIRED)
pkg_check_modules(cjson REQUIRED IMPORTED_TARGET libcjson)

# Any BLAS with a CBLAS interface; OpenBLAS by default. The OpenMP flavour is preferred, because our
# own loops are OpenMP loops and the two then share one team of threads. To choose another one:
# -DCBLAS_LIBRARY=/path/to/libblis.so (and -DCBLAS_INCLUDE_DIR, if its cblas.h differs).
find_path(CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-openmp openblas openblas-pthread REQUIRED)
find_library(CBLAS_LIBRARY NAMES openblas blis cblas blas PATH_SUFFIXES openblas-openmp REQUIRED)
set(CMAKE_REQUIRED_INCLUDES ${CBLAS_INCLUDE_DIR})
set(CMAKE_REQUIRED_LIBRARIES ${CBLAS_LIBRARY} m)
string(MAKE_C_IDENTIFIER "MC_CBLAS_IN_${CBLAS_LIBRARY}" has_cblas) # asked anew for another library
check_symbol_exists(cblas_sgemm cblas.h ${has_cblas})
unset(CMAKE_REQUIRED_INCLUDES)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT ${has_cblas})
    message(FATAL_ERROR "${CBLAS_LIBRARY} has no CBLAS interface (cblas_sgemm): "
                        "set CBLAS_LIBRARY to a BLAS that does, such as OpenBLAS or BLIS")
endif()

# oneDNN's sgemm, where it is installed: it picks its kernels by what the processor can do rather
# than by its name (or an environment variable), so it uses AVX-512 on processors that the BLAS does
# not know yet.
option(MC_ONEDNN "use oneDNN's sgemm where found" ON)
if(MC_ONEDNN AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    find_path(DNNL_INCLUDE_DIR dnnl.h)
    find_library(DNNL_LIBRARY dnnl)
endif()

add_library(mc_dependencies INTERFACE)
set(mc_link_names "")

# A library of products is opened when the first product is computed: OpenBLAS takes hundreds of MB of
# address space when it is loaded. Its names, as a list of C strings, become the definition `name`. One that
# is no shared library, or whose soname is not found out, is linked as usual. MC_OPENED_LIBRARIES has the
# sonames, for packages.
set(MC_OPENED_LIBRARIES "")
function(mc_open_when_needed name library)
    execute_process(COMMAND ${CMAKE_READELF} -d ${library} OUTPUT_VARIABLE text ERROR_QUIET)
    if(NOT text MATCHES "SONAME[^\n]*\\[([^]]+)\\]")
        target_link_libraries(mc_dependencies INTERFACE ${library})
        set(mc_link_names ${mc_link_names} ${library} PARENT_SCOPE)
        return()
    endif()
    set(soname ${CMAKE_MATCH_1})
    set(names "\"${soname}\"")
    cmake_path(GET library PARENT_PATH folder)
    # outside of the system's folders, as a library that is linked would be found by its RPATH
    if(NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES AND EXISTS ${folder}/${soname})
        string(PREPEND names "\"${folder}/${soname}\", ")
    endif()
    # nvcc would break the list at its comma
    target_compile_definitions(mc_dependencies INTERFACE "$<$<COMPILE_LANGUAGE:C>:${name}=${names}>")
    set(MC_OPENED_LIBRARIES ${MC_OPENED_LIBRARIES} ${soname} PARENT_SCOPE)
    # GCC 12's LeakSanitizer crashes over threads' memory of libraries that are opened late.
    if(MC_SANITIZE)
        target_link_libraries(mc_dependencies INTERFACE
                              "-Wl,--push-state,--no-as-needed,${library},--pop-state")
    endif()
endfunction()

target_include_directories(mc_dependencies SYSTEM INTERFACE ${CBLAS_INCLUDE_DIR})
target_link_libraries(mc_dependencies INTERFACE Threads::Threads OpenMP::OpenMP_C PkgConfig::cjson
                      ${CMAKE_DL_LIBS} m)
mc_open_when_needed(MC_OPENED_CBLAS ${CBLAS_LIBRARY})
if(MC_ONEDNN AND DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_ONEDNN)
    target_include_directories(mc_dependencies SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
    mc_open_when_needed(MC_OPENED_ONEDNN ${DNNL_LIBRARY})
    message(STATUS "GEMM: oneDNN (${DNNL_LIBRARY}), else CBLAS (${CBLAS_LIBRARY})")
else()
    message(STATUS "GEMM: CBLAS (${CBLAS_LIBRARY})")
endif()
list(APPEND mc_link_names ${OpenMP_C_LIB_NAMES} ${CMAKE_DL_LIBS} m)

# zlib, to read .gz files: AUTO where it is found, ON (an error where not), or OFF.
set(MC_ENABLE_ZLIB AUTO CACHE STRING "zlib, for .gz files: AUTO (where it is found), ON, OFF")
set_property(CACHE MC_ENABLE_ZLIB PROPERTY STRINGS AUTO ON OFF)
set(MC_HAVE_ZLIB OFF)
if(MC_ENABLE_ZLIB)
    find_package(ZLIB QUIET)
    if(ZLIB_FOUND)
        set(MC_HAVE_ZLIB ON)
        target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_ZLIB)
        target_include_directories(mc_dependencies SYSTEM INTERFACE ${ZLIB_INCLUDE_DIRS})
        target_link_libraries(mc_dependencies INTERFACE ${ZLIB_LIBRARIES})
        list(APPEND mc_link_names ${ZLIB_LIBRARIES})
        message(STATUS "zlib: ${ZLIB_VERSION_STRING} (${ZLIB_LIBRARIES})")
    elseif(NOT MC_ENABLE_ZLIB STREQUAL "AUTO")
        message(FATAL_ERROR "MC_ENABLE_ZLIB=${MC_ENABLE_ZLIB}: no zlib was found (Debian: zlib1g-dev)")
    endif()
endif()
if(NOT MC_HAVE_ZLIB)
    message(STATUS "zlib: not built: .gz files cannot be read")
endif()

# libpng and libjpeg-turbo, to read images: each AUTO where it is found, ON, or OFF.
foreach(part "PNG;libpng;libpng-dev" "JPEG;libjpeg;libjpeg62-turbo-dev")
    list(GET part 0 kind)
    list(GET part 1 module)
    list(GET part 2 package)
    set(MC_ENABLE_${kind} AUTO CACHE STRING "${module}, for ${kind} images: AUTO (where it is found), ON, OFF")
    set_property(CACHE MC_ENABLE_${kind} PROPERTY STRINGS AUTO ON OFF)
    set(MC_HAVE_${kind} OFF)
    if(MC_ENABLE_${kind})
        pkg_check_modules(${module} QUIET IMPORTED_TARGET ${module})
        if(${module}_FOUND)
            set(MC_HAVE_${kind} ON)
            target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_${kind})
            target_link_libraries(mc_dependencies INTERFACE PkgConfig::${module})
            list(APPEND mc_link_names ${${module}_LIBRARIES})
            message(STATUS "${kind} images: ${module} ${${module}_VERSION}")
        elseif(NOT MC_ENABLE_${kind} STREQUAL "AUTO")
            message(FATAL_ERROR "MC_ENABLE_${kind}=${MC_ENABLE_${kind}}: no ${module} was found (Debian: ${package})")
        endif()
    endif()
    if(NOT MC_HAVE_${kind})
        message(STATUS "${kind} images: not built: they cannot be read")
    endif()
endforeach()

# PCRE2, for the patterns of tokenizers that are not cut in C: AUTO where it is found, ON, or OFF.
set(MC_ENABLE_PCRE2 AUTO CACHE STRING "PCRE2, for tokenizers' patterns: AUTO (where it is found), ON, OFF")
set_property(CACHE MC_ENABLE_PCRE2 PROPERTY STRINGS AUTO ON OFF)
set(MC_HAVE_PCRE2 OFF)
if(MC_ENABLE_PCRE2)
    pkg_check_modules(pcre2 QUIET IMPORTED_TARGET libpcre2-8)
    if(pcre2_FOUND)
        set(MC_HAVE_PCRE2 ON)
        target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_PCRE2)
        target_link_libraries(mc_dependencies INTERFACE PkgConfig::pcre2)
        list(APPEND mc_link_names ${pcre2_LIBRARIES})
        message(STATUS "PCRE2: ${pcre2_VERSION}")
    elseif(NOT MC_ENABLE_PCRE2 STREQUAL "AUTO")
        message(FATAL_ERROR "MC_ENABLE_PCRE2=${MC_ENABLE_PCRE2}: no PCRE2 was found (Debian: libpcre2-dev)")
    endif()
endif()
if(NOT MC_HAVE_PCRE2)
    message(STATUS "PCRE2: not built: tokenizers with patterns that are not known cannot be read")
endif()
