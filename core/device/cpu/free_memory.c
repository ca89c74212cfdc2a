/* How much memory the process could still have: what the machine has, and what its control groups
 * (containers, batch systems) leave it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/device/cpu/cpu_internal.h"

enum { GROUP_PATH = 1024 };

/* The whole number behind `key` in a file of lines "key number", or alone in the file where key is
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

/* What a group leaves: its limit less what it uses, where pages of files that were not used lately
 * don't count. UINT64_MAX without a limit. */
static uint64_t left_in_group(const char *group, const char *limit_name, const char *used_name,
                              const char *cache_key)
{
    char path[GROUP_PATH + 64];
    uint64_t limit, used = 0, cache = 0;
    snprintf(path, sizeof path, "%s/%s", group, limit_name);
    if (!read_number(path, "", &limit)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", group, used_name);
    read_number(path, "", &used);
    snprintf(path, sizeof path, "%s/memory.stat", group);
    read_number(path, cache_key, &cache);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* Names of one version's files, and where its groups are mounted. */
typedef struct group_files {
    const char *mount, *limit, *used, *cache;
} group_files;

static const group_files version1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                     "memory.usage_in_bytes", "total_inactive_file "};
static const group_files version2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                     "inactive_file "};

/* The group `path` below the mount and all those around it. Within a container the path may be that
 * of its host, where nothing is to be found; what surrounds it is then at the mount itself. */
static uint64_t left_from(const group_files *f, const char *path)
{
    char group[GROUP_PATH];
    const size_t root = strlen(f->mount);
    uint64_t least = UINT64_MAX;
    snprintf(group, sizeof group, "%s%s", f->mount, path);
    for (;;) {
        uint64_t left = left_in_group(group, f->limit, f->used, f->cache);
        least = left < least ? left : least;
        char *slash = strrchr(group, '/');
        if ((size_t)(slash - group) < root) return least;
        *slash = '\0';
    }
}

/* /proc/self/cgroup has lines "0::/path" of version 2 and "4:memory:/path" of version 1. */
static uint64_t left_in_groups(void)
{
    char line[GROUP_PATH - 32];
    uint64_t least = left_from(&version1, "/"), left = left_from(&version2, "/");
    FILE *file = fopen("/proc/self/cgroup", "re");
    least = left < least ? left : least;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        bool second = strcmp(kinds, ":") == 0;
        if (!second && strcmp(kinds, ":memory") != 0) continue;
        left = left_from(second ? &version2 : &version1, path);
        least = left < least ? left : least;
    }
    if (file) fclose(file);
    return least;
}

uint64_t mc_cpu_free_memory(mc_device *d)
{
    (void)d;
    uint64_t kib, groups = left_in_groups();
    if (!read_number("/proc/meminfo", "MemAvailable:", &kib))
        return groups < UINT64_MAX ? groups : 0;
    return kib * 1024 < groups ? kib * 1024 : groups;
}
