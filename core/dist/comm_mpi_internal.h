/* The process's use of MPI. A process has one MPI, whatever its contexts, and cannot start it a
 * second time. So this is the library's only per-process state (comm_mpi_process.c). */
#ifndef MC_DIST_COMM_MPI_INTERNAL_H
#define MC_DIST_COMM_MPI_INTERNAL_H

#include <mpi.h>
#include "core/dist/comm_internal.h"

typedef struct mc_mpi_call mc_mpi_call; /* an active call: comm_mpi.c */

/* mc_mpi_lock guards all of this. */
typedef struct mc_mpi {
    MPI_Comm comm; /* our own, of all ranks; MPI_COMM_NULL until it exists */
    int size, rank;
    int tag_bits;        /* tags are less than 1 << tag_bits */
    int most_message;    /* in bytes: MPI counts in int. Tests lower it on all ranks */
    int next_group;      /* number of the next group on this rank */
    uint64_t handshakes; /* communicators created with an id */
    mc_mpi_call *active; /* active calls, oldest first */
    bool stays;          /* after a failure: MPI_Finalize is not called */
    char given_up[256];  /* why MPI functions are no longer called; "": they are */
    double longest;      /* the longest timeout of a communicator */
} mc_mpi;

/* Locks the process's MPI state; never returns NULL. */
mc_mpi *mc_mpi_lock(void);
void mc_mpi_unlock(void);

/* Starts MPI unless it runs, and sets mc_mpi.comm; waits for the other ranks as c's timeout and
 * hooks allow. */
mc_status mc_mpi_enter(mc_comm *c);

/* Stops all calls of MPI functions, at exit too: MPI still has addresses of memory that is the
 * caller's again, and a call might never return. Only the first reason is kept. */
void mc_mpi_give_up(mc_mpi *mpi, const char *why);

/* An MPI function's result as text. */
typedef struct mc_mpi_text {
    char text[MPI_MAX_ERROR_STRING + 1];
} mc_mpi_text;
mc_mpi_text mc_mpi_explain(int error);

#endif
