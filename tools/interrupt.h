/* Ctrl-C (SIGINT) and SIGTERM ask a run to save and leave; a second one kills as usual.
 *
 *     interrupt_init();
 *     while (... && !interrupt_requested()) train_a_step();
 *     interrupt_release();
 */
#ifndef MC_TOOLS_INTERRUPT_H
#define MC_TOOLS_INTERRUPT_H

#include <stdbool.h>

/* Catches both signals, also where the parent had them ignored: a shell ignores SIGINT for what a
 * script starts in the background, and there a signal is meant for the run as well. */
void interrupt_init(void);
/* The signal that came, 0 while none has. */
int interrupt_signal(void);
static inline bool interrupt_requested(void) { return interrupt_signal() != 0; }
/* Puts the handlers back that were there before interrupt_init. */
void interrupt_release(void);

#endif
