/* Allocations that fail: of the device, and in builds with MC_FAULT_INJECTION of the host. Include
 * after cmocka.h. */
#ifndef MC_TESTS_FAULTS_H
#define MC_TESTS_FAULTS_H

#include <cjson/cJSON.h>
#include "core/base/memory_internal.h"
#include "core/device/device_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/fault_paths.h"
#include "tests/optim/optim_test.h"

/* Device allocations: the nth from now fails, and with `all_after` every later one. */
static struct {
    long count, fail_at;
    bool all_after, by_path;
    void *(*alloc)(mc_device *d, size_t bytes);
} device_faults;

static inline void *failing_alloc(mc_device *d, size_t bytes)
{
    long n = ++device_faults.count, at = device_faults.fail_at;
    if (n == at && device_faults.by_path && !path_has_turn()) {
        device_faults.fail_at++;
        return device_faults.alloc(d, bytes);
    }
    if (at && (n == at || (n > at && device_faults.all_after))) return NULL;
    return device_faults.alloc(d, bytes);
}

static inline void hook_device(mc_context *ctx)
{
    if (ctx->device->alloc != failing_alloc) device_faults.alloc = ctx->device->alloc;
    ctx->device->alloc = failing_alloc;
}

typedef enum source { DEVICE, HOST, SOURCES } source;

static inline void fail_at(source s, long nth, bool all_after)
{
    device_faults.count = 0;
    device_faults.fail_at = s == DEVICE ? nth : 0;
    device_faults.all_after = all_after;
#ifdef MC_FAULT_INJECTION
    mc_fault_fail_at(s == HOST ? nth : 0, all_after);
#endif
}

/* The first from the nth on fails that has its turn among those of its path: `failing_place`
 * afterwards gives its number. From 1 on they are counted anew. */
static inline void fail_from(source s, long nth, bool all_after)
{
    if (nth == 1) forget_paths();
    fail_at(s, nth, all_after);
    device_faults.by_path = true;
#ifdef MC_FAULT_INJECTION
    mc_fault_choose(path_has_turn);
#endif
}

static inline long failing_place(source s)
{
#ifdef MC_FAULT_INJECTION
    if (s == HOST) return mc_fault_place();
#endif
    (void)s;
    return device_faults.fail_at;
}

/* Ends the faults; how many allocations there were. */
static inline long stop_failing(source s)
{
    device_faults.by_path = false;
    long count = device_faults.count;
#ifdef MC_FAULT_INJECTION
    if (s == HOST) count = mc_fault_count();
    mc_fault_choose(NULL);
#endif
    fail_at(s, 0, false);
    return count;
}

static inline bool is_available(source s)
{
#ifdef MC_FAULT_INJECTION
    (void)s;
    cJSON_InitHooks(&(cJSON_Hooks){mc_malloc, mc_free});
    return true;
#else
    if (s == HOST) printf("SKIPPED: failing allocations of the host (needs MC_FAULT_INJECTION)\n");
    return s == DEVICE;
#endif
}

static inline void ignore_line(void *user, mc_log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

/* Checks an error of a failed allocation and ends it. Whether there was one. */
static inline bool was_clean(mc_context *ctx, const char *what, long nth)
{
    if (!mc_failed(ctx)) return false;
    if (mc_error_status(ctx) != MC_ERR_NOMEM || !*mc_error_message(ctx))
        fail_msg("%s, allocation %ld: \"%s\" (%s)", what, nth, mc_error_message(ctx),
                 mc_status_text(mc_error_status(ctx)));
    mc_clear_error(ctx);
    return true;
}

#endif
