#include "core/hub/net/libraries_internal.h"

#include <dlfcn.h>
#include <stddef.h>
#include "core/base/library_internal.h"
#include "core/base/library_names_internal.h"

static void *open_first(mc_error *err, const char *const *names)
{
    void *library = mc_library_open(names);
    if (!library)
        mc_error_set(err, MC_ERR_NOT_FOUND, "downloads need %s, which is not found", *names);
    return library;
}

mc_status mc_hub_libraries_load(mc_error *err, mc_hub_libraries *lib)
{
    static const char *const curls[] = {MC_LIBRARY_CURL, NULL};
    static const char *const cryptos[] = {MC_LIBRARY_CRYPTO, NULL};
    void *curl = open_first(err, curls);
    void *crypto = curl ? open_first(err, cryptos) : NULL;
    if (!crypto) return err->status;
#define FIND(library, name)                                                   \
    *(void **)&lib->name = dlsym(library, #name);                             \
    if (!lib->name)                                                           \
        return mc_error_set(err, MC_ERR_NOT_FOUND,                            \
                            "downloads need " #name ", which is not in this " \
                            "libcurl or libcrypto: expected 7.66 and 1.1 or later");
#define FIND_CURL(name) FIND(curl, name)
#define FIND_CRYPTO(name) FIND(crypto, name)
    MC_HUB_CURL_FUNCTIONS(FIND_CURL)
    MC_HUB_CRYPTO_FUNCTIONS(FIND_CRYPTO)
#undef FIND_CRYPTO
#undef FIND_CURL
#undef FIND
    return MC_OK;
}
