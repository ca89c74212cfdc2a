/* libcurl and OpenSSL's libcrypto, loaded at the first download: with the libraries that libcurl
 * needs, loading them at every start of a program would cost some ten milliseconds. */
#ifndef MC_HUB_LIBRARIES_INTERNAL_H
#define MC_HUB_LIBRARIES_INTERNAL_H

/* libcurl's type-checking macros call its functions by name */
#define CURL_DISABLE_TYPECHECK
#define CURL_DISABLE_DEPRECATION
#include <curl/curl.h>
#include <openssl/evp.h>
#include "core/base/error_internal.h"

#define MC_HUB_CURL_FUNCTIONS(X) \
    X(curl_easy_cleanup)         \
    X(curl_easy_getinfo)         \
    X(curl_easy_init)            \
    X(curl_easy_perform)         \
    X(curl_easy_reset)           \
    X(curl_easy_setopt)          \
    X(curl_easy_strerror)        \
    X(curl_free)                 \
    X(curl_getdate)              \
    X(curl_global_cleanup)       \
    X(curl_global_init)          \
    X(curl_multi_add_handle)     \
    X(curl_multi_cleanup)        \
    X(curl_multi_info_read)      \
    X(curl_multi_init)           \
    X(curl_multi_perform)        \
    X(curl_multi_poll)           \
    X(curl_multi_remove_handle)  \
    X(curl_slist_append)         \
    X(curl_slist_free_all)       \
    X(curl_url) X(curl_url_cleanup) X(curl_url_get) X(curl_url_set)

#define MC_HUB_CRYPTO_FUNCTIONS(X) \
    X(EVP_DigestFinal_ex)          \
    X(EVP_DigestInit_ex)           \
    X(EVP_DigestUpdate)            \
    X(EVP_MD_CTX_free)             \
    X(EVP_MD_CTX_new)              \
    X(EVP_sha1)                    \
    X(EVP_sha256)

typedef struct mc_hub_libraries {
#define MC_HUB_MEMBER(name) __typeof__(name) *name;
    MC_HUB_CURL_FUNCTIONS(MC_HUB_MEMBER)
    MC_HUB_CRYPTO_FUNCTIONS(MC_HUB_MEMBER)
#undef MC_HUB_MEMBER
} mc_hub_libraries;

/* MC_ERR_NOT_FOUND if one of them, or a function, is missing. They stay loaded. */
mc_status mc_hub_libraries_load(mc_error *err, mc_hub_libraries *lib);

#endif
