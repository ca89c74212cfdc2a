#include "tools/interrupt.h"

#include <signal.h>
#include <stddef.h>

/* A handler has no argument of ours: this state can only be the process's. */
static volatile sig_atomic_t received;
static struct sigaction old_interrupt, old_terminate;
static bool installed, shared, agreed;

/* Both signals go back to their default at the first one: the second kills, whichever it is. */
static void on_signal(int number)
{
    struct sigaction fatal = {.sa_handler = SIG_DFL};
    received = number;
    sigaction(SIGINT, &fatal, NULL);
    sigaction(SIGTERM, &fatal, NULL);
}

void interrupt_init(void)
{
    if (installed) interrupt_release();
    struct sigaction catch = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&catch.sa_mask);
    sigaddset(&catch.sa_mask, SIGINT);
    sigaddset(&catch.sa_mask, SIGTERM);
    received = 0;
    shared = agreed = false;
    sigaction(SIGINT, &catch, &old_interrupt);
    sigaction(SIGTERM, &catch, &old_terminate);
    installed = true;
}

int interrupt_signal(void) { return received; }
bool interrupt_requested(void) { return shared ? agreed : received != 0; }
void interrupt_share(void) { shared = true; }
void interrupt_agree(void) { agreed = true; }

void interrupt_release(void)
{
    if (!installed) return;
    sigaction(SIGINT, &old_interrupt, NULL);
    sigaction(SIGTERM, &old_terminate, NULL);
    installed = false;
}
