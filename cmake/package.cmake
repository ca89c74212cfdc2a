# A package for Debian and Ubuntu, of what the target installed_files has built:
#
#     apt-get install dpkg-dev file
#     cpack --config build/release/CPackConfig.cmake -B build
#
# It depends on the libraries that this build was linked with, so it is for the release that it was built
# on. Its maintainer is who builds it: DEBFULLNAME and DEBEMAIL, else git's user.name and user.email.
function(mc_first_of result)
    set(${result} "" PARENT_SCOPE)
    foreach(value ${ARGN})
        if(value)
            set(${result} "${value}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
endfunction()

function(mc_ask result)
    execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE text ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(${result} "${text}" PARENT_SCOPE)
endfunction()

# The packages that hold these libraries, which are loaded when they are needed: nothing is linked with them.
function(mc_packages_of result)
    set(packages "")
    foreach(library ${ARGN})
        mc_ask(owner dpkg-query --search "*/${library}")
        if(owner MATCHES "^([a-z0-9.+-]+):")
            list(APPEND packages ${CMAKE_MATCH_1})
        endif()
    endforeach()
    list(JOIN packages ", " packages)
    set(${result} "${packages}" PARENT_SCOPE)
endfunction()

mc_ask(git_name git config user.name)
mc_ask(git_mail git config user.email)
mc_ask(user_name id -un)
mc_ask(host_name hostname -f)
mc_first_of(name "$ENV{DEBFULLNAME}" "${git_name}" "${user_name}")
mc_first_of(mail "$ENV{DEBEMAIL}" "${git_mail}" "${user_name}@${host_name}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME modelcenter)
set(CPACK_PACKAGE_CONTACT "${name} <${mail}>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains big language models, and uses them, in C")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "A command and a library that pretrain and fine-tune BERT, RoBERTa, GPT-2,
GPT-J, T5 and CPM, answer with them, and compute vectors of texts. Models are
folders as Hugging Face's transformers write and read them. It runs on CPUs,
several over MPI, and where it was built with CUDA on NVIDIA's GPUs.
.
The headers for programs in C and C++ come with it.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
# ldconfig as Debian's packages have it run; cpack's own scripts call it too
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/triggers)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/${library_folder})
# dpkg-shlibdeps does not see them. Any flavour of OpenBLAS will do.
set(depends "")
foreach(library ${MC_OPENED_LIBRARIES})
    if(library MATCHES "^libopenblas")
        list(APPEND depends "libopenblas0-openmp | libopenblas0-pthread | libopenblas0-serial | libopenblas0")
    else()
        mc_packages_of(package ${library})
        list(APPEND depends ${package})
    endif()
endforeach()
list(JOIN depends ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
if(MC_HAVE_CURL)
    mc_packages_of(loaded libcurl.so.4 libcrypto.so.3)
    set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "${loaded}, ca-certificates")
    string(REGEX REPLACE "^, " "" CPACK_DEBIAN_PACKAGE_RECOMMENDS "${CPACK_DEBIAN_PACKAGE_RECOMMENDS}")
endif()
if(MC_HAVE_MPI)
    set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin")
endif()
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_tree.cmake)
include(CPack)
