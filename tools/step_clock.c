#include "tools/step_clock.h"

#include <math.h>
#include <stdbool.h>

enum { FIRST_STEPS = 3 }; /* of a process, not counted in the mean: kernels are chosen in them */

void step_clock_start(step_clock *c, double now)
{
    c->last = now;
    c->unknown = 0;
}

double step_clock_end(step_clock *c, double ended)
{
    bool later = c->ended++ - c->unknown >= FIRST_STEPS;
    if (isnan(ended)) {
        c->unknown++;
        return NAN;
    }
    double seconds = ended - c->last;
    int64_t steps = 1 + c->unknown;
    step_clock_start(c, ended);
    c->seconds += seconds;
    c->steps += steps;
    if (later) {
        c->later_seconds += seconds;
        c->later += steps;
    }
    return steps == 1 && seconds > 0 ? seconds : NAN;
}

double step_clock_mean(const step_clock *c)
{
    if (c->later) return c->later_seconds / (double)c->later;
    return c->steps ? c->seconds / (double)c->steps : NAN;
}
