/* The fields of schedules. */
#ifndef MC_OPTIM_LR_SCHEDULER_INTERNAL_H
#define MC_OPTIM_LR_SCHEDULER_INTERNAL_H

#include "core/optim/optimizer_internal.h"

struct mc_lr_scheduler {
    mc_owned owned;
    mc_context *ctx;
    const char *name;
    double (*decay)(const mc_lr_scheduler *scheduler, int64_t n); /* for n >= warmup */
    double lr, gamma;
    int64_t warmup, end;
    mc_lr_fn fn;
    void *user;
    int64_t count;
    mc_optim_manager *manager; /* NULL: none */
};

#endif
