# Downloads from the Hugging Face hub: libcurl, and the checksums of OpenSSL's libcrypto. The headers
# are needed here; the libraries are loaded when something is downloaded. AUTO where both are found, ON
# (an error where not), or OFF.
set(MC_ENABLE_CURL AUTO CACHE STRING "downloads: AUTO (where libcurl and libcrypto are found), ON, OFF")
set_property(CACHE MC_ENABLE_CURL PROPERTY STRINGS AUTO ON OFF)

set(MC_HAVE_CURL OFF)
if(NOT MC_ENABLE_CURL)
    message(STATUS "downloads: switched off")
else()
    pkg_check_modules(libcurl QUIET libcurl>=7.66)
    pkg_check_modules(libcrypto QUIET libcrypto>=1.1)
    if(libcurl_FOUND AND libcrypto_FOUND)
        set(MC_HAVE_CURL ON)
        target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_CURL)
        target_include_directories(mc_dependencies SYSTEM INTERFACE ${libcurl_INCLUDE_DIRS}
                                   ${libcrypto_INCLUDE_DIRS})
        target_link_libraries(mc_dependencies INTERFACE ${CMAKE_DL_LIBS})
        list(APPEND mc_link_names dl)
        message(STATUS "downloads: libcurl ${libcurl_VERSION}, libcrypto ${libcrypto_VERSION}")
    elseif(NOT MC_ENABLE_CURL STREQUAL "AUTO")
        message(FATAL_ERROR "MC_ENABLE_CURL=${MC_ENABLE_CURL}: libcurl 7.66 and OpenSSL 1.1 or later "
                            "are needed (Debian: libcurl4-openssl-dev, libssl-dev)")
    else()
        message(STATUS "downloads: not built (no libcurl 7.66 with OpenSSL's libcrypto was found)")
    endif()
endif()
