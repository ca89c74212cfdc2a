/* A progress bar: one line of a terminal, rewritten in place.
 *
 *      45% [=====>      ] 120/266 3.70 step/s ETA 00:39 | loss 0.6931 | lr 5.00e-05
 *
 * The line fits the terminal's width and never wraps: fields that don't fit are left out, the least
 * important first, and the bar before the two most important. Nothing is allocated. */
#ifndef MC_TOOLS_PROGRESS_BAR_H
#define MC_TOOLS_PROGRESS_BAR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Zero-initialised it is a bar that is off: clearing it does nothing. */
typedef struct progress_bar {
    FILE *stream;
    bool on;         /* there is a terminal, and bars are wanted */
    bool colour;     /* ... in colours */
    int drawn;       /* columns on the screen now */
    double drawn_at; /* when (seconds of progress_bar_now) */
} progress_bar;

enum { PROGRESS_FIELDS = 6, PROGRESS_FIELD_ROOM = 48 };

/* What the line says. */
typedef struct progress_line {
    const char *label;   /* before the percentage; "" for none */
    const char *unit;    /* of the rate: "step" */
    int64_t done, total; /* total 0: unknown, so no bar, percentage or time left */
    double seconds;      /* for one more; 0: not known yet */
    char fields[PROGRESS_FIELDS][PROGRESS_FIELD_ROOM]; /* in the order shown; "" for none */
    int importance[PROGRESS_FIELDS]; /* indices of fields, the one that gets room first at first */
    int field_count;
} progress_line;

/* On where `stream` is a terminal, TERM isn't "dumb" and HF_HUB_DISABLE_PROGRESS_BARS isn't one of
 * 1, ON, YES, TRUE; without colours where NO_COLOR is set and not empty. */
void progress_bar_init(progress_bar *bar, FILE *stream);
/* Whether it is time to draw again: not more than ten times a second. */
bool progress_bar_is_due(const progress_bar *bar);
void progress_bar_draw(progress_bar *bar, const progress_line *line);
/* Takes the line off the screen, to print something else. */
void progress_bar_clear(progress_bar *bar);

/* Seconds of a clock that never goes back. */
double progress_bar_now(void);

#endif
