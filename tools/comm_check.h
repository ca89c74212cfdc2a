/* What `modelcenter bench comm` sends, and what has to arrive.
 *
 * Every rank fills its buffer with small whole numbers that depend on the rank and the place, and
 * which every dtype holds exactly, as it holds their sums over a few dozen ranks. */
#ifndef MC_TOOLS_COMM_CHECK_H
#define MC_TOOLS_COMM_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum comm_kind {
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,
    COMM_BROADCAST, /* from rank 0 */
    COMM_REDUCE,    /* to rank 0 */
    COMM_SEND_RECV, /* to the next rank, from the one before */
    COMM_KINDS
} comm_kind;

extern const char *const comm_names[]; /* "all-gather", ...; ends in NULL */

/* Bus bandwidth over algorithm bandwidth (bytes of the larger buffer a second), as nccl-tests
 * defines it: what a link has to carry of each byte. 0 where one rank has nobody to talk to. */
double comm_bus_factor(comm_kind kind, int ranks);

/* Element i of a rank's buffer. */
float comm_sent(int rank, int64_t i);

/* One call on one rank. `count` are the elements of the larger buffer, a multiple of the ranks. */
typedef struct comm_call {
    comm_kind kind;
    int ranks, rank;
    int64_t count;
} comm_call;

/* How many elements arrive on this rank, and what the i-th has to be. */
int64_t comm_arriving(const comm_call *call);
float comm_expected(const comm_call *call, int64_t i);
/* The first that is not what it has to be, by more than `tolerance` of itself; -1: all are right.
 * A tolerance is for sums that a dtype has to round. */
int64_t comm_first_wrong(const comm_call *call, const float *arrived, float tolerance);

#endif
