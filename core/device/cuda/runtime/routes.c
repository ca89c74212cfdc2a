#include "core/device/cuda/runtime/routes_internal.h"

#include <stdio.h>
#include <string.h>
#include "core/device/hopper/put_off_internal.h"

/* How a step of generation is launched, call by call: current.cu does what was chosen. */
static const mc_route decode_routes[] = {
#ifdef MC_HAVE_HOPPER
    {.name = "persistent",
     .takes = mc_cuda_put_off_takes,
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
    [MC_ROUTE_DECODE] = &decode,
};

/* ---- MC_ROUTE -------------------------------------------------------------------------------- */

/* `name` is not among the kernels, or (of: the kernel's list) the routes. */
static mc_status unknown(mc_device *d, const mc_route_list *of, int length, const char *name)
{
    char known[256] = "";
    int count = of ? of->count : MC_ROUTE_KERNELS;
    for (int i = 0; i < count; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                 of ? of->routes[i].name : mc_route_lists[i]->kernel);
    }
    return mc_cuda_fail(d, MC_ERR_ARGUMENT, "MC_ROUTE: %s%s\"%.*s\" is no %s, expected one of %s",
                        of ? of->kernel : "", of ? ":" : "", length, name, of ? "route" : "kernel",
                        known);
}

static bool is_name(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && !memcmp(name, text, length);
}

/* One `kernel:name` or `kernel:name?` of `length` bytes. */
static mc_status read_one(mc_device *d, const char *text, size_t length)
{
    const char *colon = memchr(text, ':', length);
    size_t kernel_length = colon ? (size_t)(colon - text) : length;
    int kernel = 0, route = 0;
    while (kernel < MC_ROUTE_KERNELS &&
           !is_name(mc_route_lists[kernel]->kernel, text, kernel_length))
        kernel++;
    if (kernel == MC_ROUTE_KERNELS) return unknown(d, NULL, (int)kernel_length, text);
    const mc_route_list *list = mc_route_lists[kernel];
    const char *name = text + kernel_length + (colon != NULL);
    size_t name_length = length - (size_t)(name - text);
    bool prefers = name_length && name[name_length - 1] == '?';
    while (route < list->count && !is_name(list->routes[route].name, name, name_length - prefers))
        route++;
    if (route == list->count) return unknown(d, list, (int)(name_length - prefers), name);
    mc_cuda_of(d)->asked[kernel] = (mc_route_asked){&list->routes[route], prefers};
    return MC_OK;
}

mc_status mc_routes_read(mc_device *d, const char *text)
{
    mc_status status = MC_OK;
    memset(mc_cuda_of(d)->asked, 0, sizeof mc_cuda_of(d)->asked);
    while (!status && text && *text) {
        size_t length = strcspn(text, ",");
        status = read_one(d, text, length);
        text += length + (text[length] == ',');
    }
    return status;
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
    d->failure[0] = '\0'; /* why another route does not take the call is no failure of it */
    return r->takes ? r->takes(d, call, asked) : MC_OK;
}

mc_status mc_route_choose(mc_device *d, mc_route_kernel kernel, const void *call,
                          const mc_route **route)
{
    const mc_route_list *list = mc_route_lists[kernel];
    const mc_route_asked asked = mc_cuda_of(d)->asked[kernel];
    const mc_route *r = asked.route;
    mc_status status = r ? takes(d, r, call, true) : MC_ERR_UNSUPPORTED;
    if (status == MC_ERR_UNSUPPORTED && r && !asked.prefers)
        return mc_route_refuse(d, kernel, call, d->failure);
    for (int i = 0; i < list->count && status == MC_ERR_UNSUPPORTED; i++)
        if (&list->routes[i] != asked.route) status = takes(d, r = &list->routes[i], call, false);
    *route = status ? NULL : r;
    return status;
}
