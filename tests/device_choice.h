/* Tests that run on a device of choice. Include after cmocka.h. */
#ifndef MC_TESTS_DEVICE_CHOICE_H
#define MC_TESTS_DEVICE_CHOICE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* A context on the device; NULL, having said so, where this machine or this build has no such
 * device. Any other failure stays on the context. */
static inline mc_context *context_on(const char *name, uint64_t seed)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = seed, .device = name});
    bool absent = mc_error_status(ctx) == MC_ERR_UNSUPPORTED ||
                  (mc_failed(ctx) && strstr(mc_error_message(ctx), "no GPU"));
    if (!absent) return ctx;
    bool cuda = strcmp(name, "cuda") == 0;
    printf("SKIPPED: no %s device (%s)\n", cuda ? "CUDA" : name, mc_error_message(ctx));
    fflush(stdout);
    mc_context_free(ctx);
    return NULL;
}

/* A context on the device that MC_TEST_DEVICE names, else on the CPU; skips the test where there is
 * no such device. */
static inline mc_context *test_context(uint64_t seed)
{
    const char *name = getenv("MC_TEST_DEVICE");
    mc_context *ctx = context_on(name && *name ? name : "cpu", seed);
    if (!ctx) skip();
    return ctx;
}

#endif
