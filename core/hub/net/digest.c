#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "core/hub/net/blob_internal.h"

bool mc_hub_digest_init(mc_hub_digest *d, const mc_hub_libraries *lib, const char *hash,
                        uint64_t size)
{
    bool git = strlen(hash) == 40;
    char start[64];
    int length = snprintf(start, sizeof start, "blob %" PRIu64, size) + 1; /* including the NUL */
    d->lib = lib;
    d->state = lib->EVP_MD_CTX_new();
    return d->state &&
           lib->EVP_DigestInit_ex(d->state, git ? lib->EVP_sha1() : lib->EVP_sha256(), NULL) == 1 &&
           (!git || mc_hub_digest_add(d, start, (size_t)length));
}

bool mc_hub_digest_add(mc_hub_digest *d, const void *data, size_t size)
{
    return d->lib->EVP_DigestUpdate(d->state, data, size) == 1;
}

bool mc_hub_digest_end(mc_hub_digest *d, char hash[MC_HUB_HASH_MAX + 1])
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    if (d->lib->EVP_DigestFinal_ex(d->state, bytes, &length) != 1 || 2 * length > MC_HUB_HASH_MAX)
        return false;
    for (unsigned int i = 0; i < length; i++) snprintf(hash + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

void mc_hub_digest_release(mc_hub_digest *d)
{
    if (d->state) d->lib->EVP_MD_CTX_free(d->state);
    d->state = NULL;
}
