#include "core/predict/step_time.h"

#include <stddef.h>
#include "core/base/memory_internal.h"
#include "core/device/plan_internal.h"
#include "core/dist/comm_internal.h"
#include "core/predict/rates_internal.h"

/* ---- the clock ------------------------------------------------------------------------------- */

typedef struct step_clock {
    mc_plan_timer timer;
    mc_rates *rates;
    mc_plan_clock at;
} step_clock;

static step_clock *clock_of(mc_plan_timer *timer) { return (step_clock *)timer; }

static mc_work_part part_of(mc_work_kind kind)
{
    switch (kind) {
    case MC_WORK_PRODUCT_NT:
    case MC_WORK_PRODUCT_NN:
    case MC_WORK_PRODUCT_TN:
    case MC_WORK_PRODUCT8_FAST:
    case MC_WORK_PRODUCT8: return MC_PART_PRODUCTS;
    case MC_WORK_ATTENTION:
    case MC_WORK_ATTENTION_BACKWARD: return MC_PART_ATTENTION;
    case MC_WORK_CROSS_ENTROPY: return MC_PART_LOSS;
    case MC_WORK_ADAM:
    case MC_WORK_STATS: return MC_PART_OPTIMIZER;
    default: return MC_PART_ELEMENTWISE;
    }
}

static mc_status pass_work(mc_plan_timer *timer, const mc_work *work)
{
    step_clock *c = clock_of(timer);
    double seconds;
    mc_status status = mc_rates_price(c->rates, work, &seconds);
    if (status) return status;
    c->at.now += seconds;
    c->at.part[part_of(work->kind)] += seconds;
    return MC_OK;
}

/* Earlier work on the second clock ends first. */
static double pass_collective(mc_plan_timer *timer, mc_bus_kind kind, int ranks, int apart,
                              double bytes, bool later)
{
    step_clock *c = clock_of(timer);
    double seconds = mc_rates_collective(c->rates, kind, ranks, apart, bytes);
    double begin = c->at.now;
    if (c->at.side > begin) begin = c->at.side;
    c->at.communication += seconds;
    c->at.side = begin + seconds;
    if (later && c->rates->beside) return c->at.side;
    c->at.exposed += c->at.side - c->at.now;
    return c->at.now = c->at.side;
}

static void wait_ranks(mc_plan_timer *timer, double end)
{
    mc_plan_clock *at = &clock_of(timer)->at;
    if (end <= at->now) return;
    at->exposed += end - at->now;
    at->now = end;
}

static double pass_host_work(mc_plan_timer *timer, double copied, double touched, bool behind)
{
    step_clock *c = clock_of(timer);
    double copying = copied / c->rates->host_bus, computing = touched / c->rates->host_memory;
    if (behind && c->at.host < c->at.now) c->at.host = c->at.now;
    return c->at.host += copying > computing ? copying : computing;
}

static void wait_host(mc_plan_timer *timer, double end)
{
    mc_plan_clock *at = &clock_of(timer)->at;
    if (end <= at->now) return;
    at->offload += end - at->now;
    at->now = end;
}

static void restart(mc_plan_timer *timer)
{
    mc_plan_clock *at = &clock_of(timer)->at;
    *at = (mc_plan_clock){.begin = at->now, .now = at->now, .side = at->side, .host = at->host};
}

static void free_clock(mc_plan_timer *timer)
{
    mc_rates_free(clock_of(timer)->rates);
    mc_free(timer);
}

/* The clock of a plan; NULL if it has none. */
static step_clock *find_clock(mc_device *plan)
{
    mc_plan_timer *timer = mc_plan_timer_of(plan);
    return timer && timer->free == free_clock ? clock_of(timer) : NULL;
}

bool mc_plan_set_rates(mc_device *plan, mc_rates *rates)
{
    step_clock *c = find_clock(plan);
    if (c) {
        mc_rates_free(c->rates);
        c->rates = rates;
        return true;
    }
    c = mc_calloc(1, sizeof *c);
    if (!c) {
        mc_rates_free(rates);
        return false;
    }
    c->rates = rates;
    c->timer = (mc_plan_timer){.work = pass_work,
                               .collective = pass_collective,
                               .wait_ranks = wait_ranks,
                               .host_work = pass_host_work,
                               .wait_host = wait_host,
                               .restart = restart,
                               .free = free_clock};
    mc_plan_set_timer(plan, &c->timer);
    return true;
}

/* ---- for programs ---------------------------------------------------------------------------- */

static mc_status check_time(mc_context *dry, const mc_time_options *o)
{
    if (mc_failed(dry)) return mc_error_status(dry);
    if (!mc_device_is_plan(dry->device))
        return mc_fail(dry, MC_ERR_ARGUMENT, "a plan needs a context of mc_plan_context_new");
    if (o->rates != MC_RATES_HERE && o->rates != MC_RATES_H200)
        return mc_fail(dry, MC_ERR_ARGUMENT, "a plan's rates are %d, expected a mc_rates_source",
                       (int)o->rates);
    if (!(o->host_bus >= 0) || !(o->host_memory >= 0))
        return mc_fail(dry, MC_ERR_ARGUMENT,
                       "a plan's host_bus is %g, host_memory %g, expected 0 or more", o->host_bus,
                       o->host_memory);
    if (!(o->bus >= 0) || !(o->network >= 0) || o->ranks_per_host < 0)
        return mc_fail(dry, MC_ERR_ARGUMENT,
                       "a plan's bus is %g, network %g, ranks of a host %d, expected 0 or more",
                       o->bus, o->network, o->ranks_per_host);
    return MC_OK;
}

mc_status mc_plan_time(mc_context *dry, const mc_time_options *options)
{
    mc_time_options none = {0};
    const mc_time_options *o = options ? options : &none;
    if (check_time(dry, o)) return mc_error_status(dry);
    mc_rates *rates =
        o->rates == MC_RATES_H200 ? mc_rates_h200() : mc_rates_here(mc_plan_like(dry->device));
    if (!rates) return mc_fail_nomem(dry, "a table of rates");
    if (!mc_plan_set_rates(dry->device, rates)) return mc_fail_nomem(dry, "a clock");
    if (o->rates == MC_RATES_H200) mc_plan_pretend_gpu(dry->device);
    rates->ranks_per_host = o->ranks_per_host ? o->ranks_per_host : 8;
    rates->network = o->network > 0 ? o->network : 50e9;
    rates->bus_most = o->bus;
    rates->host_bus = o->host_bus > 0 ? o->host_bus : 50e9;
    rates->host_memory = o->host_memory > 0 ? o->host_memory : 1e9 * MC_PLAN_HOST_GBS;
    if (o->comm) {
        rates->bus_count = 0;
        rates->begin = 0; /* already included in the measurements */
    }
    if (o->comm && mc_rates_measure_comm(rates, o->comm))
        return mc_fail(dry, mc_error_status(o->comm->ctx), "measuring collectives: %s",
                       mc_error_message(o->comm->ctx));
    if (!rates->bus_count && !o->bus) rates->bus_most = 5e9;
    return MC_OK;
}

mc_time_plan mc_plan_seconds(mc_context *dry)
{
    const step_clock *c = dry && mc_device_is_plan(dry->device) ? find_clock(dry->device) : NULL;
    if (!c) return (mc_time_plan){0};
    const mc_plan_clock *clock = &c->at;
    return (mc_time_plan){.products = clock->part[MC_PART_PRODUCTS],
                          .attention = clock->part[MC_PART_ATTENTION],
                          .elementwise = clock->part[MC_PART_ELEMENTWISE],
                          .loss = clock->part[MC_PART_LOSS],
                          .optimizer = clock->part[MC_PART_OPTIMIZER],
                          .exposed = clock->exposed,
                          .offload = clock->offload,
                          .total = clock->now - clock->begin,
                          .communication = clock->communication,
                          .product_rate = c->rates->best_product};
}
