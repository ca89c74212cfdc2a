/* Who started this process, and as which rank: read from the environment, in this one place.
 *
 * The sets of variables are looked at in this order, and the first that is there is used alone:
 *
 *   "torchrun"  WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK or NODE_RANK
 *               (torchrun, torch.distributed.launch, or set by hand)
 *   "Open MPI"  OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_RANK, _LOCAL_SIZE, _NODE_RANK
 *   "Slurm"     SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID,
 *               SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE. Without SLURM_PROCID (a shell
 *               of salloc) it is not srun that started us.
 *   "PMI"       PMI_SIZE, PMI_RANK, MPI_LOCALRANKID or PMI_LOCAL_RANK, MPI_LOCALNRANKS or
 *               PMI_LOCAL_SIZE (MPICH, Intel MPI, Cray)
 *   "single"    none of these
 *
 * A variable that is set to nothing counts as not set.
 *
 * All ranks are on one host where the launcher's number of ranks on this host is that of all, where
 * Slurm has one node (SLURM_STEP_NUM_NODES, SLURM_NNODES), where MASTER_ADDR is a loopback address,
 * and where ranks are started by hand without a word about hosts.
 *
 * Where rank 0 is: MASTER_ADDR; else, when all ranks are on this host, localhost; else the first
 * host of Slurm's list (SLURM_STEP_NODELIST, SLURM_JOB_NODELIST, SLURM_NODELIST), else
 * SLURM_LAUNCH_NODE_IPADDR, else what MPI says (world.c). Its control port: MC_MASTER_PORT; else
 * MASTER_PORT + 1 (torchrun's agent sits on MASTER_PORT itself); else, but for torchrun, one made
 * from the job's id, from 16384 to 28671, below the ports that systems hand out by themselves; else
 * 29501. */
#ifndef MC_DIST_LAUNCH_INTERNAL_H
#define MC_DIST_LAUNCH_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"

enum { MC_LAUNCH_ADDR_MAX = 256, MC_LAUNCH_RANKS_MAX = 1 << 16 };

typedef struct mc_launch {
    const char *which;                    /* the set used, as above; static */
    int rank, world_size;                 /* 0 <= rank < world_size */
    int local_rank, local_size;           /* among the ranks of this host; -1: unknown */
    int node;                             /* this host's number; -1: unknown */
    bool one_host;                        /* all ranks are known to be on this host */
    bool by_mpi;                          /* mpirun, or another launcher of MPI's, started this */
    char master_addr[MC_LAUNCH_ADDR_MAX]; /* where rank 0 is; "" when nothing says: ask MPI */
    const char *addr_from;                /* the variable that said it, or "" (nothing, or local) */
    int master_port;                      /* of the control channel, 1 to 65535 */
    const char *port_from;                /* e.g. "MASTER_PORT + 1", for messages; static */
    int mpi_size;                         /* the number of ranks by the variables of Open MPI,
                                             Slurm or PMI, whichever set was used; -1: none there */
    uint64_t job;                         /* the same on all ranks of one start, else different as
                                             far as the environment says */
} mc_launch;

/* Reads the environment. A bad value (MC_ERR_ARGUMENT) is named with its variable; *launch is then
 * that of a single process. */
mc_status mc_launch_read(mc_error *error, mc_launch *launch);

/* The deadline of everything collective, in seconds: `option` if it isn't 0, else MC_COMM_TIMEOUT,
 * else 300. At least 0.1, at most 10^7; anything else is MC_ERR_ARGUMENT. */
mc_status mc_launch_timeout(mc_error *error, double option, double *seconds);

/* The first host of a Slurm list such as "gpu[007-010,12],login1" ("gpu007"). False when it is not
 * well-formed so far, or doesn't fit. */
bool mc_launch_first_host(const char *list, char *host, size_t room);

/* How many tasks Slurm's "4(x2),3" gives to host `node` (4, 4, 3 for 0, 1, 2). -1 when it is not
 * well-formed or has no such host. */
int mc_launch_tasks_on(const char *tasks, int node);

#endif
