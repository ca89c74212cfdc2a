/* Ctrl-C (SIGINT) and SIGTERM ask a run to save and leave; another one kills as usual, but for what
 * comes within half a second of the first: timeout(1), for one, sends its signal twice.
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
/* The signal that came to this process, 0 while none has. */
int interrupt_signal(void);
/* Whether to stop. */
bool interrupt_requested(void);
/* Several processes stop together: from interrupt_share on, interrupt_requested is true once
 * interrupt_agree was called, whatever came to this process. */
void interrupt_share(void);
void interrupt_agree(void);
/* Puts the handlers back that were there before interrupt_init, on the thread that called it. */
void interrupt_release(void);

#endif
