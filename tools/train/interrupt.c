#include "tools/train/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>

/* A handler has no argument of ours: this state can only be the process's. */
static volatile sig_atomic_t received;
static struct sigaction old_interrupt, old_terminate;
static bool installed, shared, agreed;

/* The handler has a stack of its own: oneDNN's products point the stack pointer at their workspace,
 * and what lies below that is the heap's. */
static _Alignas(16) char handler_stack[1 << 16]; /* the state of a core that knows AMX is 11 KB */
static stack_t old_stack;

/* timeout(1) sends its signal twice at once, to the process and to its group, and a terminal's may
 * come with one of a launcher: within this time after the first they are the same request. */
static const double same_request = 0.5; /* seconds */
static struct timespec first;

/* Asks for an end; one that comes later kills, whichever of the two it is. */
static void on_signal(int number)
{
    struct sigaction fatal = {.sa_handler = SIG_DFL};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!received) {
        received = number;
        first = now;
        return;
    }
    double since =
        (double)(now.tv_sec - first.tv_sec) + 1e-9 * (double)(now.tv_nsec - first.tv_nsec);
    if (since < same_request) return;
    sigaction(SIGINT, &fatal, NULL);
    sigaction(SIGTERM, &fatal, NULL);
    raise(number); /* blocked until this returns */
}

void interrupt_init(void)
{
    if (installed) interrupt_release();
    stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
    struct sigaction catch = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigemptyset(&catch.sa_mask);
    sigaddset(&catch.sa_mask, SIGINT);
    sigaddset(&catch.sa_mask, SIGTERM);
    received = 0;
    shared = agreed = false;
    sigaltstack(&stack, &old_stack);
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
    sigaltstack(&old_stack, NULL);
    installed = false;
}
