#include "tools/log/step_clock.h"

#include <math.h>

enum { FIRST_STEPS = 3 }; /* of a process, not counted in the mean: kernels are chosen in them */

void step_clock_start(step_clock *c, double now)
{
    c->last = now;
    c->unknown = 0;
    c->paused = true;
}

double step_clock_end(step_clock *c, double ended, double since)
{
    bool later = c->reported++ >= FIRST_STEPS;
    double seconds = c->paused ? ended - c->last : since;
    c->paused = false;
    c->unknown++;
    if (!isnan(ended)) {
        c->seconds += ended - c->last;
        c->steps += c->unknown;
        c->last = ended;
        c->unknown = 0;
    }
    if (!(seconds > 0)) return NAN;
    if (later) {
        c->later_seconds += seconds;
        c->later++;
    }
    return seconds;
}

double step_clock_mean(const step_clock *c)
{
    if (c->later) return c->later_seconds / (double)c->later;
    return c->steps ? c->seconds / (double)c->steps : NAN;
}
