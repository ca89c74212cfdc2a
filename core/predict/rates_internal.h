/* How long a planned step takes: tables of rates, and the clocks that they advance.
 *
 * A planning kernel reports the work that it represents (core/device/plan_timer_internal.h). A
 * table of rates gives its seconds, which advance a clock. Collectives advance the same clock;
 * asynchronous ones advance a second clock, which models a GPU's second stream. Waiting for one
 * moves the first clock to the end of that collective on the second. So overlap is not guessed, but
 * follows from the order of the step's calls. */
#ifndef MC_PREDICT_RATES_INTERNAL_H
#define MC_PREDICT_RATES_INTERNAL_H

#include "core/device/plan_timer_internal.h"

/* A measured rate; its work's amount is ignored. */
typedef struct mc_rate {
    mc_work work;
    double rate; /* per second */
} mc_rate;

/* Bus bandwidth, as nccl-tests defines it, for a larger buffer of `bytes` bytes. */
typedef struct mc_bus_rate {
    mc_bus_kind kind;
    double bytes, rate;
} mc_bus_rate;

enum { MC_BUS_RATES = 16 };

typedef struct mc_rates mc_rates;

/* A table of rates. */
struct mc_rates {
    mc_rate *rate;
    size_t count, capacity;
    double least; /* seconds of the shortest kernel */
    /* Device on which to measure work that the table lacks; NULL: the nearest entries are used. */
    mc_device *device;
    double best_product; /* FLOP/s of the fastest product priced */
    /* Fraction of the table's FLOP rates that a run of more than seconds sustains at a GPU's power
     * limit; 1: all. */
    double sustained;
    /* ---- between ranks ---- */
    mc_bus_rate bus[MC_BUS_RATES];
    int bus_count;
    double bus_most;    /* bytes/s of bus bandwidth that replaces `bus`; 0: use `bus` */
    double network;     /* bytes/s from a rank to other hosts */
    int ranks_per_host; /* 1 or more */
    double begin;       /* latency of any collective in seconds */
    /* ---- AdamOffload: bytes/s between host and device, each way, and of the host's memory ---- */
    double host_bus, host_memory;
    double hop, network_hop; /* seconds from a rank to the next, within and between hosts */
    bool beside;             /* collectives overlap kernels */
};

/* The parts that a step's time is split into. */
typedef enum mc_work_part {
    MC_PART_PRODUCTS,
    MC_PART_ATTENTION,
    MC_PART_ELEMENTWISE,
    MC_PART_LOSS,
    MC_PART_OPTIMIZER,
    MC_PARTS
} mc_work_part;

/* Seconds. The fields after `host` count from the last mc_plan_restart, which leaves asynchronous
 * work running. */
typedef struct mc_plan_clock {
    double begin;          /* the value of `now` at the last mc_plan_restart */
    double now;            /* end of the work in order */
    double side;           /* end of the asynchronous collectives */
    double host;           /* end of the host's work */
    double part[MC_PARTS]; /* of `now`, by part */
    double exposed;        /* of `now`: waiting for collectives */
    double offload;        /* of `now`: waiting for the host */
    double communication;  /* of all collectives, overlapped or not */
} mc_plan_clock;

/* Makes the plan's time advance by a table, which it owns from now on; frees an earlier table.
 * False if memory is out, and then frees the table. */
bool mc_plan_set_rates(mc_device *plan, mc_rates *rates);

/* Measures the bus bandwidth of collectives between the ranks of a group, all of which call it. */
struct mc_comm;
mc_status mc_rates_measure_comm(mc_rates *rates, struct mc_comm *comm);

/* ---- tables ---------------------------------------------------------------------------------- */

/* An empty table, the one measured on an H200, and one that measures the requested work on `device`
 * (not a planning one). NULL if memory is out. */
mc_rates *mc_rates_new(void);
mc_rates *mc_rates_h200(void);
mc_rates *mc_rates_here(mc_device *device);
void mc_rates_free(mc_rates *rates);
/* False when memory is out. */
bool mc_rates_add(mc_rates *rates, mc_work work, double rate);

/* Seconds of the work; NaN if the table has no similar work. */
mc_status mc_rates_price(mc_rates *rates, const mc_work *work, double *seconds);
/* Seconds of a collective of `ranks` ranks that are `apart` ranks apart (0: 1). `bytes` is the size
 * of the larger buffer. */
double mc_rates_collective(const mc_rates *rates, mc_bus_kind kind, int ranks, int apart,
                           double bytes);

/* Runs work on the device and measures its rate. MC_ERR_NOMEM, or the status of the kernel. */
mc_status mc_rates_measure(mc_device *device, const mc_work *work, double *rate);

/* The work to measure in place of `work`: smaller if the rate stays the same. */
mc_work mc_work_clip(const mc_device *device, mc_work work);

#endif
