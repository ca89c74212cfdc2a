/* The signals of our own threads. */
#ifndef MC_BASE_SIGNALS_INTERNAL_H
#define MC_BASE_SIGNALS_INTERNAL_H

#include <pthread.h>
#include <signal.h>

/* Blocks the signals that others send, until `before` is set again: a thread that is made meanwhile
 * handles none, so they stay with the program's own threads. Faults of the thread itself are not
 * blocked, for a blocked one ends the process whatever handler there is (core/base/fault.h). */
static inline void mc_signals_block(sigset_t *before)
{
    sigset_t sent;
    sigfillset(&sent);
    sigdelset(&sent, SIGBUS);
    sigdelset(&sent, SIGSEGV);
    sigdelset(&sent, SIGFPE);
    sigdelset(&sent, SIGILL);
    pthread_sigmask(SIG_SETMASK, &sent, before);
}

#endif
