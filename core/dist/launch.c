#include "core/dist/launch_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/hash_internal.h"
#include "core/base/number_internal.h"

enum { NAMES = 3, DERIVED_FIRST = 16384, DERIVED_PORTS = 12288, DEFAULT_PORT = 29501 };

/* The variables of one launcher; of several names, the first one set is used. */
typedef struct variables {
    const char *which;
    bool by_rank; /* the rank's variable alone identifies this launcher */
    const char *size[NAMES], *rank[NAMES], *local_rank[NAMES], *local_size[NAMES], *node[NAMES];
    const char *tasks[NAMES]; /* local size as a list by node */
    const char *nodes[NAMES]; /* number of hosts */
    const char *job[NAMES];   /* all that are set form the job's id */
    bool port_by_job, by_mpi;
} variables;

static const variables sets[] = {
    {.which = "torchrun",
     .size = {"WORLD_SIZE"},
     .rank = {"RANK"},
     .local_rank = {"LOCAL_RANK"},
     .local_size = {"LOCAL_WORLD_SIZE"},
     .node = {"GROUP_RANK", "NODE_RANK"},
     .job = {"TORCHELASTIC_RUN_ID"}},
    {.which = "Open MPI",
     .size = {"OMPI_COMM_WORLD_SIZE"},
     .rank = {"OMPI_COMM_WORLD_RANK"},
     .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
     .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
     .port_by_job = true,
     .by_mpi = true},
    {.which = "Slurm",
     .by_rank = true,
     .size = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
     .rank = {"SLURM_PROCID"},
     .local_rank = {"SLURM_LOCALID"},
     .node = {"SLURM_NODEID"},
     .tasks = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"},
     .nodes = {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"},
     .job = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
     .port_by_job = true},
    {.which = "PMI",
     .size = {"PMI_SIZE"},
     .rank = {"PMI_RANK"},
     .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
     .local_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
     .job = {"PMI_JOBID"},
     .port_by_job = true,
     .by_mpi = true},
};

static const char *value_of(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

/* The first name that is set, or NULL. */
static const char *first_set(const char *const names[NAMES])
{
    for (int i = 0; i < NAMES; i++)
        if (value_of(names[i])) return names[i];
    return NULL;
}

/* A whole number from `low` to `high`. */
static bool parse_int(mc_error *error, const char *name, int low, int high, int *out)
{
    const char *text = value_of(name);
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (isdigit((unsigned char)*text) && !*end && !errno && value >= low && value <= high) {
        *out = (int)value;
        return true;
    }
    mc_error_set(error, MC_ERR_ARGUMENT,
                 "environment variable %s=\"%s\": expected a whole number from %d to %d", name,
                 text, low, high);
    return false;
}

/* *out is unchanged if none of the names is set. */
static bool read_int(mc_error *error, const char *const names[NAMES], int low, int high, int *out)
{
    const char *name = first_set(names);
    return !name || parse_int(error, name, low, high, out);
}

static bool is_present(const variables *v)
{
    return first_set(v->rank) || (!v->by_rank && first_set(v->size));
}

static bool read_rank(mc_error *error, const variables *v, mc_launch *l)
{
    const char *size = first_set(v->size), *rank = first_set(v->rank);
    if (!size)
        mc_error_set(error, MC_ERR_ARGUMENT,
                     "environment variable %s=\"%s\" is set but %s, the number of ranks, is not",
                     rank, value_of(rank), v->size[0]);
    else if (!parse_int(error, size, 1, MC_LAUNCH_RANKS_MAX, &l->world_size))
        return false;
    else if (!rank && l->world_size > 1)
        mc_error_set(error, MC_ERR_ARGUMENT,
                     "environment variable %s=%d is set but %s, this process's rank, is not", size,
                     l->world_size, v->rank[0]);
    else if (rank && !parse_int(error, rank, 0, MC_LAUNCH_RANKS_MAX, &l->rank))
        return false;
    else if (l->rank >= l->world_size)
        mc_error_set(error, MC_ERR_ARGUMENT, "%s=%d and %s=%d: expected a rank below the size",
                     size, l->world_size, rank, l->rank);
    return !mc_error_is_set(error);
}

static bool read_tasks(mc_error *error, const variables *v, mc_launch *l)
{
    const char *name = first_set(v->tasks);
    if (!name || l->node < 0) return true;
    l->local_size = mc_launch_tasks_on(value_of(name), l->node);
    if (l->local_size > 0) return true;
    mc_error_set(error, MC_ERR_ARGUMENT,
                 "environment variable %s=\"%s\": expected the number of tasks of each node, such "
                 "as \"4(x2),3\", that of node %d among them",
                 name, value_of(name), l->node);
    return false;
}

static bool read_place(mc_error *error, const variables *v, mc_launch *l)
{
    const int max = MC_LAUNCH_RANKS_MAX;
    if (!read_int(error, v->node, 0, max, &l->node) ||
        !read_int(error, v->local_rank, 0, max, &l->local_rank) ||
        !read_int(error, v->local_size, 1, max, &l->local_size) || !read_tasks(error, v, l))
        return false;
    const char *rank = first_set(v->local_rank), *size = first_set(v->local_size);
    if (!size) size = first_set(v->tasks);
    /* A step may have fewer tasks than the job's list. */
    if (l->local_size > l->world_size && first_set(v->tasks)) l->local_size = -1;
    if (l->local_size > l->world_size)
        mc_error_set(error, MC_ERR_ARGUMENT, "%s=%d: more ranks on this host than in all, %d", size,
                     l->local_size, l->world_size);
    else if (l->local_size > 0 && l->local_rank >= l->local_size)
        mc_error_set(error, MC_ERR_ARGUMENT, "%s=%d and %s=%d: expected a rank below the size",
                     size, l->local_size, rank, l->local_rank);
    return !mc_error_is_set(error);
}

static bool copy_addr(mc_error *error, mc_launch *l, const char *name, const char *host)
{
    l->addr_from = name;
    if ((size_t)snprintf(l->master_addr, sizeof l->master_addr, "%s", host) < sizeof l->master_addr)
        return true;
    mc_error_set(error, MC_ERR_ARGUMENT, "environment variable %s: a host name of %zu characters",
                 name, strlen(host));
    return false;
}

/* From Slurm's variables, which other launchers see too if they run under Slurm. */
static bool read_slurm_addr(mc_error *error, mc_launch *l)
{
    static const char *const lists[NAMES] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                             "SLURM_NODELIST"};
    const char *list = first_set(lists), *node = value_of("SLURM_LAUNCH_NODE_IPADDR");
    if (!list) return !node || copy_addr(error, l, "SLURM_LAUNCH_NODE_IPADDR", node);
    l->addr_from = list;
    if (mc_launch_first_host(value_of(list), l->master_addr, sizeof l->master_addr)) return true;
    mc_error_set(error, MC_ERR_ARGUMENT,
                 "environment variable %s=\"%s\": expected a list of hosts such as "
                 "\"gpu[001-004,7],login1\"",
                 list, value_of(list));
    return false;
}

/* "localhost", "127.0.0.1", "[::1]" and the like. */
static bool is_loopback_name(const char *host)
{
    bool number = strspn(host, "0123456789.") == strlen(host);
    return strcmp(host, "localhost") == 0 || (number && strncmp(host, "127.", 4) == 0) ||
           strcmp(host, "::1") == 0 || strcmp(host, "[::1]") == 0;
}

static bool read_addr(mc_error *error, const variables *v, mc_launch *l)
{
    const char *master = value_of("MASTER_ADDR");
    int nodes = -1;
    /* Ranks started by hand, with no variable about hosts, are on one host. */
    bool by_hand = v == &sets[0] && l->local_size < 0 && !master;
    if (!read_int(error, v->nodes, 1, MC_LAUNCH_RANKS_MAX, &nodes)) return false;
    l->one_host = l->local_size == l->world_size || nodes == 1 || by_hand ||
                  (master && is_loopback_name(master));
    if (master) return copy_addr(error, l, "MASTER_ADDR", master);
    if (l->one_host) return copy_addr(error, l, "", "localhost");
    return read_slurm_addr(error, l);
}

/* Includes the NUL, so that adjacent texts stay distinct. */
static uint64_t hash_whole(uint64_t hash, const char *text)
{
    return mc_hash(hash, text, strlen(text) + 1);
}

/* Returns whether the environment distinguishes one job from another. */
static bool read_job(const variables *v, mc_launch *l)
{
    bool found = false;
    l->job = hash_whole(MC_HASH_START, v->which);
    for (int i = 0; i < NAMES; i++) {
        const char *value = value_of(v->job[i]);
        l->job = hash_whole(l->job, value ? value : "");
        found = found || value;
    }
    return found;
}

static bool read_port(mc_error *error, const variables *v, mc_launch *l)
{
    bool job = read_job(v, l);
    l->port_from = "MC_MASTER_PORT";
    if (value_of("MC_MASTER_PORT"))
        return parse_int(error, "MC_MASTER_PORT", 1, 65535, &l->master_port);
    if (value_of("MASTER_PORT")) {
        l->port_from = "MASTER_PORT + 1";
        if (!parse_int(error, "MASTER_PORT", 1, 65534, &l->master_port)) return false;
        l->master_port++;
    } else if (job && v->port_by_job) {
        l->port_from = "made from the job's id";
        l->master_port = DERIVED_FIRST + (int)((l->job ^ l->job >> 32) % DERIVED_PORTS);
    } else {
        l->port_from = "the default";
        l->master_port = DEFAULT_PORT;
    }
    return true;
}

static const mc_launch single = {.which = "single",
                                 .world_size = 1,
                                 .local_size = 1,
                                 .node = 0,
                                 .one_host = true,
                                 .master_addr = "localhost",
                                 .addr_from = "",
                                 .mpi_size = -1,
                                 .master_port = DEFAULT_PORT,
                                 .port_from = "the default"};

/* The number of ranks from the first launcher other than torchrun that started this process. */
static int read_mpi_size(void)
{
    for (size_t i = 1; i < sizeof sets / sizeof *sets; i++) {
        const char *value = is_present(&sets[i]) ? value_of(sets[i].size[0]) : NULL;
        if (value) return (int)strtol(value, NULL, 10);
    }
    return -1;
}

mc_status mc_launch_read(mc_error *error, mc_launch *launch)
{
    *launch = single;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const variables *v = &sets[i];
        if (!is_present(v)) continue;
        mc_launch l = {.which = v->which, .local_rank = -1, .local_size = -1, .node = -1};
        l.addr_from = "";
        l.by_mpi = v->by_mpi;
        l.mpi_size = read_mpi_size();
        if (!read_rank(error, v, &l) || !read_place(error, v, &l) || !read_addr(error, v, &l) ||
            !read_port(error, v, &l))
            return error->status;
        *launch = l;
        break;
    }
    return MC_OK;
}

mc_status mc_launch_timeout(mc_error *error, double option, double *seconds)
{
    const char *text = value_of("MC_COMM_TIMEOUT");
    const double low = 0.1, high = 1e7;
    *seconds = 300;
    if (option != 0) {
        if (!(option >= low && option <= high))
            return mc_error_set(error, MC_ERR_ARGUMENT,
                                "a deadline of %g s for communication: expected 0.1 to 1e7",
                                option);
        *seconds = option;
    } else if (text) {
        double value;
        if (!mc_number_parse(text, &value) || value < low || value > high)
            return mc_error_set(error, MC_ERR_ARGUMENT,
                                "environment variable MC_COMM_TIMEOUT=\"%s\": expected a number of "
                                "seconds, 0.1 to 1e7",
                                text);
        *seconds = value;
    }
    return MC_OK;
}
