/* How much memory the process could still get: the machine's, what its control groups (containers,
 * batch systems) leave, and its own limits (ulimit). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "core/device/cpu/cpu_internal.h"

enum { GROUP_PATH = 1024 };

/* The whole number after `key` in a file of lines "key number", or the file's only number if key is
 * "". False if there is none: "max", or no such file. */
static bool read_number(const char *path, const char *key, uint64_t *value)
{
    char line[256];
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool found = false;
    size_t length = strlen(key);
    while (!found && fgets(line, sizeof line, file))
        found = strncmp(line, key, length) == 0 && sscanf(line + length, "%ju", value) == 1;
    fclose(file);
    return found;
}

/* The i-th number of the process's statm, in bytes. 0: unknown. */
static uint64_t own_size(const char *system, int i)
{
    char path[GROUP_PATH];
    uint64_t value = 0;
    snprintf(path, sizeof path, "%s/proc/self/statm", system);
    FILE *file = fopen(path, "re");
    for (int k = 0; file && k <= i; k++)
        if (fscanf(file, "%ju", &value) != 1) value = 0;
    if (file) fclose(file);
    return value * (uint64_t)sysconf(_SC_PAGESIZE);
}

enum { STATM_SIZE, STATM_RESIDENT, STATM_FILES, STATM_DATA = 5 };

/* ---- control groups -------------------------------------------------------------------------- */

enum { LIMITS = 2 };

/* The file names of one version of control groups, and their mount point. Above memory.high a group
 * is slowed down until it hardly runs. */
typedef struct group_files {
    const char *mount, *limits[LIMITS], *used;
    const char *inactive, *active, *mapped; /* lines of memory.stat: pages of files */
} group_files;

static const group_files versions[] = {
    {"/sys/fs/cgroup/memory",
     {"memory.limit_in_bytes"},
     "memory.usage_in_bytes",
     "total_inactive_file ",
     "total_active_file ",
     "total_mapped_file "},
    {"/sys/fs/cgroup",
     {"memory.max", "memory.high"},
     "memory.current",
     "inactive_file ",
     "active_file ",
     "file_mapped "},
    {"/sys/fs/cgroup/unified",
     {"memory.max", "memory.high"},
     "memory.current",
     "inactive_file ",
     "active_file ",
     "file_mapped "},
};
enum { VERSIONS = sizeof versions / sizeof *versions };

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* The system reclaims pages of files that were not used recently. It would also reclaim pages of
 * the process's own program and libraries, and read them again and again while the process runs,
 * until it kills the process. So these are not counted, up to `own` bytes: other processes may be
 * charged for library pages that they loaded first. */
static uint64_t reclaimable(const char *stat, const group_files *f, uint64_t own)
{
    uint64_t inactive = 0, active = 0, mapped = 0;
    read_number(stat, f->inactive, &inactive);
    read_number(stat, f->active, &active);
    read_number(stat, f->mapped, &mapped);
    uint64_t others = less(inactive + active, mapped < own ? mapped : own);
    return others < inactive ? others : inactive;
}

/* What a group leaves: its limit minus its use, not counting reclaimable pages. UINT64_MAX without
 * a limit. */
static uint64_t left_in_group(const char *group, const group_files *f, uint64_t own)
{
    char path[GROUP_PATH + 64];
    uint64_t limit = UINT64_MAX, used = 0;
    for (int i = 0; i < LIMITS && f->limits[i]; i++) {
        uint64_t one;
        snprintf(path, sizeof path, "%s/%s", group, f->limits[i]);
        if (read_number(path, "", &one) && one < limit) limit = one;
    }
    if (limit == UINT64_MAX) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", group, f->used);
    read_number(path, "", &used);
    snprintf(path, sizeof path, "%s/memory.stat", group);
    return less(limit, less(used, reclaimable(path, f, own)));
}

/* The least that the group `path` and its ancestors leave. In a container the path may be the
 * host's, and then not exist; the container's own group is then at the mount itself. */
static uint64_t left_from(const char *system, const group_files *f, const char *path, uint64_t own)
{
    char group[GROUP_PATH];
    const size_t root = strlen(system) + strlen(f->mount);
    uint64_t least = UINT64_MAX;
    int length = snprintf(group, sizeof group, "%s%s%s", system, f->mount, path);
    if (length < 0 || (size_t)length >= sizeof group) return UINT64_MAX;
    for (;;) {
        uint64_t left = left_in_group(group, f, own);
        least = left < least ? left : least;
        char *slash = strrchr(group, '/');
        if ((size_t)(slash - group) < root) return least;
        *slash = '\0';
    }
}

/* /proc/self/cgroup has lines "0::/path" for version 2 and "4:memory:/path" for version 1, where a
 * line may list several controllers: "4:cpu,memory:/path". */
uint64_t mc_cpu_left_in_groups(const char *system)
{
    char line[GROUP_PATH - 32], groups[GROUP_PATH];
    uint64_t least = UINT64_MAX, left, own = own_size(system, STATM_FILES);
    for (int i = 0; i < VERSIONS; i++) {
        left = left_from(system, &versions[i], "/", own);
        least = left < least ? left : least;
    }
    snprintf(groups, sizeof groups, "%s/proc/self/cgroup", system);
    FILE *file = fopen(groups, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        bool second = strcmp(kinds, ":") == 0;
        const char *memory = strstr(kinds, "memory");
        if (!second && (!memory || !strchr(":,", memory[-1]) || !strchr(",", memory[6]))) continue;
        for (int i = second ? 1 : 0; i < (second ? VERSIONS : 1); i++) {
            left = left_from(system, &versions[i], path, own);
            least = left < least ? left : least;
        }
    }
    if (file) fclose(file);
    return least;
}

/* ---- limits of the process ------------------------------------------------------------------- */

static uint64_t left_of(int resource, int statm)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    uint64_t used = own_size("", statm);
    return less(limit.rlim_cur, used);
}

uint64_t mc_cpu_resident(void) { return own_size("", STATM_RESIDENT); }

uint64_t mc_cpu_space_left(void) { return left_of(RLIMIT_AS, STATM_SIZE); }

uint64_t mc_cpu_free_memory(mc_device *d)
{
    (void)d;
    uint64_t left[] = {mc_cpu_left_in_groups(""), mc_cpu_space_left(),
                       left_of(RLIMIT_DATA, STATM_DATA), UINT64_MAX};
    uint64_t kib, least = UINT64_MAX;
    if (read_number("/proc/meminfo", "MemAvailable:", &kib)) left[3] = kib * 1024;
    for (int i = 0; i < 4; i++) least = left[i] < least ? left[i] : least;
    return least < UINT64_MAX ? least : 0;
}
