/* How long a planned step takes: tables of rates, and the clocks that they move.
 *
 * A planning kernel says what work it stands for (core/device/plan_timer_internal.h); a table of
 * rates gives the seconds of it, which pass on a clock. Collectives pass on it too, or, when they
 * were begun to be waited for later, on a second clock beside it, as on a GPU's second stream:
 * waiting for one moves the first clock to where the second one was then. So overlap is not
 * guessed, but follows from the order in which the step does things. */
#ifndef MC_PREDICT_RATES_INTERNAL_H
#define MC_PREDICT_RATES_INTERNAL_H

#include "core/device/plan_timer_internal.h"

/* A measured rate. The amount of its work is not looked at. */
typedef struct mc_rate {
    mc_work work;
    double rate; /* a second */
} mc_rate;

/* Bus bandwidth (as nccl-tests has it) of a collective whose larger buffer has so many bytes. */
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
    double least; /* seconds of any kernel */
    /* Where the rate of work is measured that the table does not have; NULL: the nearest entries
     * are taken. */
    mc_device *device;
    double best_product; /* FLOP/s of the fastest product asked for */
    /* What is left of the table's rates of FLOP in a run of more than seconds, when a GPU is at
     * its limit of power; 1: all. */
    double sustained;
    /* ---- between ranks ---- */
    mc_bus_rate bus[MC_BUS_RATES];
    int bus_count;
    double bus_most;    /* bytes/s of bus bandwidth, whatever `bus` says; 0: as it says */
    double network;     /* bytes/s from a rank to other hosts */
    int ranks_per_host; /* 1 or more */
    double begin;       /* seconds of any collective */
    /* ---- AdamOffload: bytes/s between host and device, each way, and of the host's memory ---- */
    double host_bus, host_memory;
    double hop, network_hop; /* seconds from a rank to the next, within and between hosts */
    bool beside;             /* collectives run beside kernels */
};

/* The kinds of a step's parts. */
typedef enum mc_work_part {
    MC_PART_PRODUCTS,
    MC_PART_ATTENTION,
    MC_PART_ELEMENTWISE,
    MC_PART_LOSS,
    MC_PART_OPTIMIZER,
    MC_PARTS
} mc_work_part;

/* Seconds. All below `host` are since the last mc_plan_restart, which lets what is under way beside
 * go on. */
typedef struct mc_plan_clock {
    double begin;          /* of `now`, at the last mc_plan_restart */
    double now;            /* of what runs in order */
    double side;           /* when what was begun beside it ends */
    double host;           /* when what the host was given ends */
    double part[MC_PARTS]; /* of `now`, by what passed */
    double exposed;        /* of `now`: waiting for collectives */
    double offload;        /* of `now`: waiting for the host */
    double communication;  /* of all collectives, waited for or not */
} mc_plan_clock;

/* The plan's time passes by a table, which is taken over; any table before is freed. False when
 * memory is out: the table is freed. */
bool mc_plan_set_rates(mc_device *plan, mc_rates *rates);

/* Measures the bus bandwidth of collectives between the ranks of a group, all of which call it. */
struct mc_comm;
mc_status mc_rates_measure_comm(mc_rates *rates, struct mc_comm *comm);

/* ---- tables ---------------------------------------------------------------------------------- */

/* Tables of no entries, of what was measured on an H200, and one that measures on `device` (not a
 * planning one) what it is asked for. NULL when memory is out. */
mc_rates *mc_rates_new(void);
mc_rates *mc_rates_h200(void);
mc_rates *mc_rates_here(mc_device *device);
void mc_rates_free(mc_rates *rates);
/* False when memory is out. */
bool mc_rates_add(mc_rates *rates, mc_work work, double rate);

/* Seconds of the work, NaN where the table has nothing like it. */
mc_status mc_rates_price(mc_rates *rates, const mc_work *work, double *seconds);
/* Seconds of a collective of `ranks` ranks, every `apart`-th of all (0: 1). `bytes` is the larger
 * of its buffers. */
double mc_rates_collective(const mc_rates *rates, mc_bus_kind kind, int ranks, int apart,
                           double bytes);

/* Runs work on the device: its rate. MC_ERR_NOMEM, or the status of the kernel. */
mc_status mc_rates_measure(mc_device *device, const mc_work *work, double *rate);

/* The work that is measured in place of this one: smaller, where that has the same rate. */
mc_work mc_work_clip(const mc_device *device, mc_work work);

#endif
