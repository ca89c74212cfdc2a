# Downloads from the Hugging Face hub: libcurl, and the checksums of OpenSSL's libcrypto, which
# libcurl brings along. AUTO where both are found, ON (an error where not), or OFF.
set(MC_ENABLE_CURL AUTO CACHE STRING "downloads: AUTO (where libcurl and libcrypto are found), ON, OFF")
set_property(CACHE MC_ENABLE_CURL PROPERTY STRINGS AUTO ON OFF)

set(MC_HAVE_CURL OFF)
if(NOT MC_ENABLE_CURL)
    message(STATUS "downloads: switched off")
else()
    find_package(CURL 7.66 QUIET)
    find_package(OpenSSL 1.1 QUIET COMPONENTS Crypto)
    if(TARGET CURL::libcurl AND TARGET OpenSSL::Crypto)
        set(MC_HAVE_CURL ON)
        target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_CURL)
        target_link_libraries(mc_dependencies INTERFACE CURL::libcurl OpenSSL::Crypto)
        list(APPEND mc_link_names ${CURL_LIBRARIES} ${OPENSSL_CRYPTO_LIBRARY})
        message(STATUS "downloads: libcurl ${CURL_VERSION_STRING}, OpenSSL ${OPENSSL_VERSION}")
    elseif(NOT MC_ENABLE_CURL STREQUAL "AUTO")
        message(FATAL_ERROR "MC_ENABLE_CURL=${MC_ENABLE_CURL}: libcurl 7.66 and OpenSSL 1.1 or later "
                            "are needed (Debian: libcurl4-openssl-dev, libssl-dev)")
    else()
        message(STATUS "downloads: not built (no libcurl with OpenSSL's libcrypto was found)")
    endif()
endif()
