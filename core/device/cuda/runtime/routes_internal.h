/* Routes: the implementations that a kernel has. A kernel's list is ordered, the fastest first; its
 * last route takes every call. A call goes to the first route that takes it. The environment
 * variable MC_ROUTE=kernel:name,... forces a route: a call that it does not take is an error;
 * `kernel:name?` prefers it: such a call goes to the others. */
#ifndef MC_DEVICE_CUDA_RUNTIME_ROUTES_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_ROUTES_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

/* `call` is the kernel's own struct. */
typedef struct mc_route {
    const char *name;
    /* MC_OK: the route takes the call. MC_ERR_UNSUPPORTED: it doesn't, d->failure says what it does
     * not take; any other status is an error. `asked`: MC_ROUTE names the route; otherwise it also
     * leaves calls that another one does faster. NULL: it takes every call. */
    mc_status (*takes)(mc_device *d, const void *call, bool asked);
    mc_status (*run)(mc_device *d, const void *call); /* NULL: who chooses does what follows */
    const char *figure; /* where its figure stands: a heading of a page; NULL: it is the floor */
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

/* Reads what MC_ROUTE says: NULL or "" forces nothing. MC_ERR_ARGUMENT for an unknown kernel or
 * route: the error lists those that there are. */
mc_status mc_routes_read(mc_device *d, const char *text);

/* The route for a call, which is NULL after an error. */
mc_status mc_route_choose(mc_device *d, mc_route_kernel kernel, const void *call,
                          const mc_route **route);

/* For a call that turns out not to be one for the chosen route, which doesn't take `why`: an error
 * where MC_ROUTE forces the route, else MC_OK. */
mc_status mc_route_refuse(mc_device *d, mc_route_kernel kernel, const void *call, const char *why);

#ifdef __cplusplus
}
#endif
#endif
