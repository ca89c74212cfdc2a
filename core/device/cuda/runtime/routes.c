#include "core/device/cuda/runtime/routes_internal.h"

#include <stdio.h>
#include <string.h>
#include "core/device/hopper/decode/deferred_internal.h"

/* Routes of a generation step's launches; current.cu acts on the choice. */
static const mc_route decode_routes[] = {
#ifdef MC_HAVE_HOPPER
    {.name = "persistent",
     .takes = mc_cuda_defer_takes,
     .figure = "docs/inference.md#the-persistent-decode-kernel"},
#endif
    {.name = "separate"},
};

static void describe_step(const void *call, char *text, size_t size)
{
    const mc_decode_call *c = call;
    snprintf(text, size, "a step of generation of %lld rows", (long long)c->rows);
}

static const mc_route_list decode = {"decode", decode_routes,
                                     sizeof decode_routes / sizeof *decode_routes, describe_step};

const mc_route_list *const mc_route_lists[MC_ROUTE_KERNELS] = {
    [MC_ROUTE_ATTENTION] = &mc_attention_routes,
    [MC_ROUTE_PRODUCT] = &mc_product_routes,
    [MC_ROUTE_DECODE] = &decode,
};

/* ---- MC_ROUTE -------------------------------------------------------------------------------- */

/* Parses `text`, kernel:name or kernel:name?, of `length` bytes. False: no such route; `known` then
 * lists all. */
static bool read_one(mc_cuda_device *c, const char *text, size_t length, char known[400])
{
    char name[64];
    size_t used = 0;
    bool prefers = length && text[length - 1] == '?';
    for (int kernel = 0; kernel < MC_ROUTE_KERNELS; kernel++)
        for (int i = 0; i < mc_route_lists[kernel]->count; i++) {
            const mc_route *r = &mc_route_lists[kernel]->routes[i];
            snprintf(name, sizeof name, "%s:%s", mc_route_lists[kernel]->kernel, r->name);
            used += (size_t)snprintf(known + used, 400 - used, "%s%s", used ? ", " : "", name);
            if (strlen(name) != length - prefers || memcmp(name, text, length - prefers)) continue;
            c->asked[kernel] = (mc_route_asked){r, prefers};
            return true;
        }
    return false;
}

mc_status mc_routes_read(mc_device *d, const char *text)
{
    mc_cuda_device *c = mc_cuda_of(d);
    char known[400];
    memset(c->asked, 0, sizeof c->asked);
    for (size_t length; text && *text; text += length + (text[length] == ',')) {
        length = strcspn(text, ",");
        if (!read_one(c, text, length, known))
            return mc_cuda_fail(d, MC_ERR_ARGUMENT, "MC_ROUTE=%.*s, expected some of %s",
                                (int)length, text, known);
    }
    return MC_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

mc_status mc_route_refuse(mc_device *d, mc_route_kernel kernel, const void *call, const char *why)
{
    const mc_route_list *list = mc_route_lists[kernel];
    const mc_route_asked asked = mc_cuda_of(d)->asked[kernel];
    char text[128], what[256];
    if (!asked.route || asked.prefers) return MC_OK;
    list->describe(call, text, sizeof text);
    snprintf(what, sizeof what, "%s", *why ? why : "this call");
    return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "MC_ROUTE=%s:%s: %s: it does not take %s",
                        list->kernel, asked.route->name, text, what);
}

static mc_status takes(mc_device *d, const mc_route *r, const void *call, bool asked)
{
    d->failure[0] = '\0'; /* another route's refusal is no failure */
    return r->takes ? r->takes(d, call, asked) : MC_OK;
}

mc_status mc_route_choose(mc_device *d, mc_route_kernel kernel, const void *call,
                          const mc_route **route)
{
    const mc_route_list *list = mc_route_lists[kernel];
    const mc_route_asked asked = mc_cuda_of(d)->asked[kernel];
    const mc_route *r = asked.route;
    *route = NULL;
    mc_status status = r ? takes(d, r, call, true) : MC_ERR_UNSUPPORTED;
    if (status == MC_ERR_UNSUPPORTED && r && !asked.prefers)
        return mc_route_refuse(d, kernel, call, d->failure);
    for (int i = 0; i < list->count && status == MC_ERR_UNSUPPORTED; i++)
        if (&list->routes[i] != asked.route) status = takes(d, r = &list->routes[i], call, false);
    if (!status) *route = r;
    return status;
}
