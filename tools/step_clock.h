/* How long training steps take, by the times at which they ended (mc_step_report.ended), whenever
 * their reports are read: a burst of late reports gives each step its own time. A step whose end is
 * not known has no time, and neither has the next; what both took together counts in the sums.
 *
 *     step_clock_start(&clock, task_clock());        before the first step, and after each pause
 *     double seconds = step_clock_end(&clock, report.ended);
 */
#ifndef MC_TOOLS_STEP_CLOCK_H
#define MC_TOOLS_STEP_CLOCK_H

#include <stdint.h>

typedef struct step_clock {
    double last;          /* when the last step whose end is known ended, or the pause before */
    int64_t unknown;      /* steps since then whose end is not known */
    int64_t ended;        /* steps of which one was reported */
    double seconds;       /* of all `steps` */
    int64_t steps;        /* measured, alone or together */
    double later_seconds; /* the same without the first steps of the process, in which kernels */
    int64_t later;        /* are chosen */
} step_clock;

/* The next step begins at `now`. */
void step_clock_start(step_clock *c, double now);
/* The next step ended at that time; NaN: not known. Its seconds; NaN: not measured. */
double step_clock_end(step_clock *c, double ended);
/* Mean seconds of a step, without the first ones if there were others; NaN: none was measured. */
double step_clock_mean(const step_clock *c);

#endif
