/* Routes: the implementations of a kernel, in a list with the fastest first; the last route accepts
 * every call. A call uses the first route that accepts it. The environment variable
 * MC_ROUTE=kernel:name,... forces a route, and a call that it refuses is an error; `kernel:name?`
 * prefers it, and other routes get the calls that it refuses. */
#ifndef MC_DEVICE_CUDA_RUNTIME_ROUTES_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_ROUTES_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

/* `call` is the kernel's own struct. */
typedef struct mc_route {
    const char *name;
    /* MC_OK: the route accepts the call. MC_ERR_UNSUPPORTED: it refuses, and d->failure names the
     * reason; any other status is an error. `asked`: MC_ROUTE names the route; otherwise it also
     * refuses calls for which another route is faster. NULL: it accepts every call. */
    mc_status (*takes)(mc_device *d, const void *call, bool asked);
    mc_status (*run)(mc_device *d, const void *call); /* NULL: the caller acts on the choice */
    const char *figure; /* its measurement: a heading of a page; NULL: it is the baseline */
    mc_status (*backward)(mc_device *d, const void *call); /* NULL: the kernel has no such pass */
} mc_route;

typedef struct mc_route_list {
    const char *kernel;
    const mc_route *routes;
    int count;
    void (*describe)(const void *call, char *text, size_t size); /* for the error of a refusal */
} mc_route_list;

extern const mc_route_list mc_attention_routes, mc_product_routes;
extern const mc_route_list *const mc_route_lists[MC_ROUTE_KERNELS];

/* Parses MC_ROUTE: NULL or "" forces nothing. MC_ERR_ARGUMENT for an unknown kernel or route: the
 * error lists the known ones. */
mc_status mc_routes_read(mc_device *d, const char *text);

/* The route for a call; NULL after an error. */
mc_status mc_route_choose(mc_device *d, mc_route_kernel kernel, const void *call,
                          const mc_route **route);

/* Called if the chosen route turns out not to support `why` of a call: an error if MC_ROUTE forces
 * the route, else MC_OK. */
mc_status mc_route_refuse(mc_device *d, mc_route_kernel kernel, const void *call, const char *why);

#ifdef __cplusplus
}
#endif
#endif
