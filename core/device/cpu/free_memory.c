/* How much memory the process could still have: what the machine has, what its control groups
 * (containers, batch systems) leave it, and its own limits (ulimit). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "core/device/cpu/cpu_internal.h"

enum { GROUP_PATH = 1024 };

/* The whole number after `key` in a file of lines "key number", or alone in the file where key is
 * "". False if there is none: "max", no such file. */
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

enum { LIMITS = 2 };

/* Names of one version's files, and where its groups are mounted. A group above memory.high is
 * slowed down until it hardly runs. */
typedef struct group_files {
    const char *mount, *limits[LIMITS], *used, *cache;
} group_files;

static const group_files versions[] = {
    {"/sys/fs/cgroup/memory",
     {"memory.limit_in_bytes"},
     "memory.usage_in_bytes",
     "total_inactive_file "},
    {"/sys/fs/cgroup", {"memory.max", "memory.high"}, "memory.current", "inactive_file "},
    {"/sys/fs/cgroup/unified", {"memory.max", "memory.high"}, "memory.current", "inactive_file "},
};
enum { VERSIONS = sizeof versions / sizeof *versions };

/* What a group leaves: its limit less what it uses, where pages of files that were not used lately
 * don't count. UINT64_MAX without a limit. */
static uint64_t left_in_group(const char *group, const group_files *f)
{
    char path[GROUP_PATH + 64];
    uint64_t limit = UINT64_MAX, used = 0, cache = 0;
    for (int i = 0; i < LIMITS && f->limits[i]; i++) {
        uint64_t one;
        snprintf(path, sizeof path, "%s/%s", group, f->limits[i]);
        if (read_number(path, "", &one) && one < limit) limit = one;
    }
    if (limit == UINT64_MAX) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", group, f->used);
    read_number(path, "", &used);
    snprintf(path, sizeof path, "%s/memory.stat", group);
    read_number(path, f->cache, &cache);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* The group `path` below the mount and all those around it. Within a container the path may be that
 * of its host, where nothing is to be found; what surrounds it is then at the mount itself. */
static uint64_t left_from(const char *system, const group_files *f, const char *path)
{
    char group[GROUP_PATH];
    const size_t root = strlen(system) + strlen(f->mount);
    uint64_t least = UINT64_MAX;
    int length = snprintf(group, sizeof group, "%s%s%s", system, f->mount, path);
    if (length < 0 || (size_t)length >= sizeof group) return UINT64_MAX;
    for (;;) {
        uint64_t left = left_in_group(group, f);
        least = left < least ? left : least;
        char *slash = strrchr(group, '/');
        if ((size_t)(slash - group) < root) return least;
        *slash = '\0';
    }
}

/* /proc/self/cgroup has lines "0::/path" of version 2 and "4:memory:/path" of version 1, where the
 * kinds that a group is of may be several: "4:cpu,memory:/path". */
uint64_t mc_cpu_left_in_groups(const char *system)
{
    char line[GROUP_PATH - 32], own[GROUP_PATH];
    uint64_t least = UINT64_MAX, left;
    for (int i = 0; i < VERSIONS; i++) {
        left = left_from(system, &versions[i], "/");
        least = left < least ? left : least;
    }
    snprintf(own, sizeof own, "%s/proc/self/cgroup", system);
    FILE *file = fopen(own, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        bool second = strcmp(kinds, ":") == 0;
        const char *memory = strstr(kinds, "memory");
        if (!second && (!memory || !strchr(":,", memory[-1]) || !strchr(",", memory[6]))) continue;
        for (int i = second ? 1 : 0; i < (second ? VERSIONS : 1); i++) {
            left = left_from(system, &versions[i], path);
            least = left < least ? left : least;
        }
    }
    if (file) fclose(file);
    return least;
}

/* ---- limits of the process ------------------------------------------------------------------- */

/* The i-th number of /proc/self/statm, in bytes. 0: not known. */
static uint64_t own_size(int i)
{
    uint64_t value = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    for (int k = 0; file && k <= i; k++)
        if (fscanf(file, "%ju", &value) != 1) value = 0;
    if (file) fclose(file);
    return value * (uint64_t)sysconf(_SC_PAGESIZE);
}

enum { STATM_SIZE, STATM_RESIDENT, STATM_DATA = 5 };

static uint64_t left_of(int resource, int statm)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    uint64_t used = own_size(statm);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

uint64_t mc_cpu_resident(void) { return own_size(STATM_RESIDENT); }

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
