/* The launcher of this process and its rank: only this file reads them from the environment.
 *
 * The sets of variables are tried in this order, and only the first one present is used:
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
 * An empty variable counts as unset.
 *
 * All ranks are on one host if the launcher's number of ranks on this host equals that of all, if
 * Slurm has one node (SLURM_STEP_NUM_NODES, SLURM_NNODES), if MASTER_ADDR is a loopback address, or
 * if ranks are started by hand with no variable about hosts.
 *
 * The address of rank 0: MASTER_ADDR; else, when all ranks are on this host, localhost; else the
 * first host of Slurm's list (SLURM_STEP_NODELIST, SLURM_JOB_NODELIST, SLURM_NODELIST), else
 * SLURM_LAUNCH_NODE_IPADDR, else from MPI (world.c). Its control port: MC_MASTER_PORT; else
 * MASTER_PORT + 1 (torchrun's agent uses MASTER_PORT itself); else, except for torchrun, a port
 * derived from the job's id, from 16384 to 28671, below the ephemeral ports of systems; else
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
    bool by_mpi;                          /* mpirun, or another launcher of MPI */
    char master_addr[MC_LAUNCH_ADDR_MAX]; /* rank 0's host; "" if unknown: ask MPI */
    const char *addr_from;                /* the variable it came from, or "" (none, or local) */
    int master_port;                      /* of the control channel, 1 to 65535 */
    const char *port_from;                /* e.g. "MASTER_PORT + 1", for messages; static */
    int mpi_size;                         /* the number of ranks by the variables of Open MPI,
                                             Slurm or PMI, whichever set was used; -1: none there */
    /* equal on all ranks of a start; other starts differ if the environment shows it */
    uint64_t job;
} mc_launch;

/* Reads the environment. An invalid value is MC_ERR_ARGUMENT, which names the variable; *launch is
 * then that of a single process. */
mc_status mc_launch_read(mc_error *error, mc_launch *launch);

/* The deadline of everything collective, in seconds: `option` if it isn't 0, else MC_COMM_TIMEOUT,
 * else 300. At least 0.1, at most 10^7; anything else is MC_ERR_ARGUMENT. */
mc_status mc_launch_timeout(mc_error *error, double option, double *seconds);

/* The first host of a Slurm list such as "gpu[007-010,12],login1" ("gpu007"). False if the list is
 * malformed up to there, or the name doesn't fit. */
bool mc_launch_first_host(const char *list, char *host, size_t room);

/* The number of tasks that Slurm's "4(x2),3" gives to host `node` (4, 4, 3 for 0, 1, 2). -1 if the
 * text is malformed or has no such host. */
int mc_launch_tasks_on(const char *tasks, int node);

#endif
