/* Levels, states and the lifetime of buckets. */
#include "core/zero/zero_internal.h"

#include "core/dist/comm_internal.h"

const mc_level mc_levels[4] = {
    {.values = MC_WHOLE, .gradient = MC_WHOLE, .state = MC_WHOLE},
    {.values = MC_WHOLE, .gradient = MC_WHOLE, .state = MC_SHARE},
    {.values = MC_WHOLE, .gradient = MC_SHARE, .state = MC_SHARE},
    {.values = MC_SHARE, .gradient = MC_SHARE, .state = MC_SHARE},
};

/* ---- transitions ----------------------------------------------------------------------------- */

/* The allowed next states, one bit each. */
typedef struct state_row {
    const char *name;
    unsigned next;
} state_row;

#define TO(state) (1u << (state))

static const state_row VALUES[] = {
    [MC_VALUES_RESTING] = {"RESTING", TO(MC_VALUES_GATHERING)},
    [MC_VALUES_GATHERING] = {"GATHERING",
                             TO(MC_VALUES_READY) | TO(MC_VALUES_RESTING) | TO(MC_VALUES_STALE)},
    [MC_VALUES_READY] = {"READY", TO(MC_VALUES_RESTING) | TO(MC_VALUES_STALE)},
    [MC_VALUES_STALE] = {"STALE", TO(MC_VALUES_GATHERING) | TO(MC_VALUES_RESTING)},
};

static const state_row GRADIENT[] = {
    [MC_GRADIENT_NONE] = {"NONE", TO(MC_GRADIENT_OPEN)},
    [MC_GRADIENT_OPEN] = {"OPEN",
                          TO(MC_GRADIENT_QUEUED) | TO(MC_GRADIENT_REDUCING) | TO(MC_GRADIENT_VOID)},
    [MC_GRADIENT_QUEUED] = {"QUEUED",
                            TO(MC_GRADIENT_OPEN) | TO(MC_GRADIENT_REDUCING) | TO(MC_GRADIENT_VOID)},
    [MC_GRADIENT_REDUCING] = {"REDUCING",
                              TO(MC_GRADIENT_SUMMED) | TO(MC_GRADIENT_NONE) | TO(MC_GRADIENT_VOID)},
    [MC_GRADIENT_SUMMED] = {"SUMMED", TO(MC_GRADIENT_OPEN)},
    [MC_GRADIENT_VOID] = {"VOID", TO(MC_GRADIENT_NONE) | TO(MC_GRADIENT_OPEN)},
};

static const state_row SUM[] = {
    [MC_SUM_EMPTY] = {"EMPTY", TO(MC_SUM_NARROW) | TO(MC_SUM_WIDE)},
    [MC_SUM_NARROW] = {"NARROW", TO(MC_SUM_WIDE) | TO(MC_SUM_EMPTY)},
    [MC_SUM_WIDE] = {"WIDE", TO(MC_SUM_EMPTY)},
};

static mc_status go(mc_zero *z, const mc_bucket *b, const char *what, const state_row *rows,
                    unsigned from, unsigned to)
{
    if (from == to || (rows[from].next & TO(to))) return MC_OK;
    return mc_fail(z->ctx, MC_ERR_STATE, "the %s of %s: %s, which cannot become %s", what,
                   MC_NAMED("module", b->name), rows[from].name, rows[to].name);
}

mc_status mc_values_go(mc_zero *z, mc_bucket *b, struct mc_values *v, mc_values_state to)
{
    mc_status status = go(z, b, "values", VALUES, v->state, to);
    if (!status) v->state = to;
    return status;
}

mc_status mc_gradient_go(mc_zero *z, mc_bucket *b, mc_gradient_state to)
{
    mc_status status = go(z, b, "gradient", GRADIENT, b->gradient.state, to);
    if (!status) b->gradient.state = to;
    return status;
}

mc_status mc_sum_go(mc_zero *z, mc_bucket *b, mc_sum_state to)
{
    mc_status status = go(z, b, "sum of gradients", SUM, b->sum.state, to);
    if (!status) b->sum.state = to;
    return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

mc_status mc_zero_fail(mc_zero *z, mc_status status, const char *what)
{
    const char *why = z->ctx->device->failure;
    if (!status || mc_failed(z->ctx)) return status;
    return mc_fail(z->ctx, status, "%s of %s%s%s", what, MC_NAMED("model", z->name),
                   *why ? ": " : "", why);
}

void *mc_zero_alloc(mc_zero *z, mc_device *device, size_t bytes, const char *what)
{
    void *data = mc_failed(z->ctx) ? NULL : device->alloc(device, bytes);
    if (!data && !mc_failed(z->ctx))
        mc_fail_memory(z->ctx, device, bytes, MC_HELP_MODEL, "the %s of %s", what,
                       MC_NAMED("model", z->name));
    return data;
}

mc_device *mc_bucket_home(const mc_zero *z, const mc_bucket *b)
{
    return b->host ? z->home->device : z->ctx->device;
}

void mc_bucket_end(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device, *home = mc_bucket_home(z, b);
    size_t size = mc_dtype_size(b->dtype);
    mc_comm_wait(b->values.request);
    mc_comm_wait(b->bytes.request);
    mc_comm_wait(b->gradient.request);
    mc_bucket_drop_gradient(z, b);
    device->free(device, b->values.data, (size_t)b->count * size);
    device->free(device, b->bytes.data, (size_t)b->count);
    device->free(device, b->values_share, (size_t)b->share * size);
    device->free(device, b->gradient.sent, (size_t)b->count * size);
    if (b->host) z->home->leave(z, b);
    home->free(home, b->sum.data, mc_sum_bytes(b));
    for (int i = 0; i < MC_STATE_SLOTS; i++)
        home->free(home, b->state[i], mc_bucket_state_bytes(b, i));
    mc_free(b->spans);
}

void mc_zero_free(mc_zero *z, mc_bucket *buckets, int count)
{
    if (z->home) z->home->rest(z);
    for (int i = 0; i < count; i++) mc_bucket_end(z, &buckets[i]);
    mc_free(buckets);
}
