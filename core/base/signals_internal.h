/* Signals and the library's own threads. */
#ifndef MC_BASE_SIGNALS_INTERNAL_H
#define MC_BASE_SIGNALS_INTERNAL_H

#include <pthread.h>
#include <signal.h>

/* Blocks signals from outside until the caller restores `before`: a thread created meanwhile
 * inherits the mask, so the program's own threads handle them. A thread's own faults stay
 * unblocked, because a blocked fault ends the process whatever handler is installed
 * (core/base/fault.h). */
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
