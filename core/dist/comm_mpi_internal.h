/* What a process has of MPI. MPI is one a process, whatever contexts there are, and cannot be
 * started a second time; so this is the one place where the library keeps something for the process
 * (comm_mpi_process.c). */
#ifndef MC_DIST_COMM_MPI_INTERNAL_H
#define MC_DIST_COMM_MPI_INTERNAL_H

#include <mpi.h>
#include "core/dist/comm_internal.h"

typedef struct mc_mpi_call mc_mpi_call; /* a call under way: comm_mpi.c */

/* All below is guarded by the lock of mc_mpi_lock. */
typedef struct mc_mpi {
    MPI_Comm comm; /* of all ranks, our own; MPI_COMM_NULL before it is there */
    int size, rank;
    int tag_bits;        /* tags are less than 1 << tag_bits */
    int most_message;    /* bytes: MPI counts in int. Tests lower it, on all ranks alike */
    int next_group;      /* number of the next group on this rank */
    uint64_t handshakes; /* communicators that were made with an id */
    mc_mpi_call *active; /* calls that move on, oldest first */
    bool stays;          /* something has failed: MPI_Finalize is not called */
    char given_up[256];  /* why no MPI function is called any more; "": they are */
    double longest;      /* the longest timeout of a communicator */
} mc_mpi;

/* Locks what the process has of MPI; NULL is never returned. */
mc_mpi *mc_mpi_lock(void);
void mc_mpi_unlock(void);

/* Starts MPI where nobody has, and opens mc_mpi.comm; waits for the other ranks as c's timeout and
 * hooks allow. */
mc_status mc_mpi_enter(mc_comm *c);

/* From now on no MPI function is called any more, not at exit either: MPI knows of memory that is
 * the caller's again, and a call of it might never return. Only the first reason is kept. */
void mc_mpi_give_up(mc_mpi *mpi, const char *why);

/* What an MPI function gave back, as text. */
typedef struct mc_mpi_text {
    char text[MPI_MAX_ERROR_STRING + 1];
} mc_mpi_text;
mc_mpi_text mc_mpi_explain(int error);

#endif
