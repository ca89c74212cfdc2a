/* Downloads with each allocation of the library failing in turn: hub_faults IDENTIFIER FOLDER, from
 * the hub at HF_ENDPOINT into caches in the folder. Every download ends in a clean error or whole.
 * Exit code 77 in a build without MC_FAULT_INJECTION. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include "core/base/memory_internal.h"
#include "core/hub/hub.h"

#ifdef MC_FAULT_INJECTION
/* Whether allocation number `nth` was reached; -1: it was not taken well. */
static int download(const char *identifier, const char *folder, long nth)
{
    char cache[1024], found[4096];
    mc_context *ctx = mc_context_new(NULL);
    snprintf(cache, sizeof cache, "%s/%ld", folder, nth);
    mc_fault_fail_at(nth, false);
    mc_hub_download(ctx, identifier, &(mc_hub_options){.cache_dir = cache}, found, sizeof found);
    long count = mc_fault_count();
    mc_fault_fail_at(0, false);
    mc_status status = mc_error_status(ctx);
    bool good = status == MC_ERR_NOMEM || status == MC_OK; /* a log line may do without memory */
    if (!good) fprintf(stderr, "allocation %ld: %s\n", nth, mc_error_message(ctx));
    mc_context_free(ctx);
    return good ? count >= nth : -1;
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    cJSON_InitHooks(&(cJSON_Hooks){mc_malloc, mc_free});
    int reached = 1;
    long nth = 0;
    while (reached == 1) reached = download(argv[1], argv[2], ++nth);
    printf("%ld allocations\n", nth - 1);
    return reached < 0 || nth < 20;
}
#else
int main(void) { return 77; }
#endif
