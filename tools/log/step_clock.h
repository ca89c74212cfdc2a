/* How long training steps take, by the times at which they ended, whenever their reports are read:
 * a burst of late reports gives each step its own time.
 *
 *     step_clock_start(&clock, task_clock());        before the first step, and after each pause
 *     double seconds = step_clock_end(&clock, report.ended, report.seconds);
 * */
#ifndef MC_TOOLS_STEP_CLOCK_H
#define MC_TOOLS_STEP_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct step_clock {
    double last;     /* when the last step whose end is known ended, or the pause before */
    bool paused;     /* no step has ended since step_clock_start */
    int64_t unknown; /* steps since `last` whose end is not known */
    int64_t reported;
    double seconds; /* of all `steps`, by their ends: those without a time of their own too */
    int64_t steps;
    double later_seconds; /* of the steps with a time, without the first steps of the process, in */
    int64_t later;        /* which kernels are chosen */
} step_clock;

/* The next step begins at `now`. */
void step_clock_start(step_clock *c, double now);
/* The next step ended at that time, so long after the step before; NaN: not known. Its seconds,
 * after a pause from the pause's end; NaN: not measured. */
double step_clock_end(step_clock *c, double ended, double since);
/* Mean seconds of a step, without the first ones if there were others; NaN: none was measured. */
double step_clock_mean(const step_clock *c);

#endif
