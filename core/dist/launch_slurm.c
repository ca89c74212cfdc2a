/* Slurm's two compact forms: lists of hosts, and numbers of tasks by host. */
#include "core/dist/launch_internal.h"

#include <ctype.h>
#include <string.h>

/* Appends `length` bytes; false when they don't fit with a NUL after. */
static bool append(char *host, size_t room, size_t *used, const char *text, size_t length)
{
    if (length >= room - *used) return false;
    memcpy(host + *used, text, length);
    *used += length;
    host[*used] = '\0';
    return true;
}

/* The digits at the start of a bracket's list: "007" of "007-010,12". */
static size_t first_number(const char *inside)
{
    size_t digits = strspn(inside, "0123456789");
    return inside[digits] && strchr("-,]", inside[digits]) ? digits : 0;
}

bool mc_launch_first_host(const char *list, char *host, size_t room)
{
    size_t used = 0;
    if (!room) return false;
    *host = '\0';
    for (const char *p = list; *p && *p != ',';) {
        size_t plain = strcspn(p, ",[]");
        if (p[plain] == ']' || !append(host, room, &used, p, plain)) return false;
        p += plain;
        if (*p != '[') continue;
        size_t digits = first_number(++p), inside = strspn(p, "0123456789-,");
        if (!digits || p[inside] != ']' || !append(host, room, &used, p, digits)) return false;
        p += inside + 1;
    }
    for (size_t i = 0; i < used; i++)
        if (!isgraph((unsigned char)host[i])) return false;
    return used > 0;
}

/* A number of at most six digits; -1 if there is none. */
static int number(const char **p)
{
    int value = 0, digits = 0;
    for (; isdigit((unsigned char)**p) && digits < 7; (*p)++, digits++)
        value = value * 10 + (**p - '0');
    return digits && digits < 7 ? value : -1;
}

int mc_launch_tasks_on(const char *tasks, int node)
{
    for (const char *p = tasks;; p++) {
        int count = number(&p), times = 1;
        if (count >= 0 && strncmp(p, "(x", 2) == 0) {
            p += 2;
            times = number(&p);
            if (*p++ != ')') return -1;
        }
        if (count < 0 || times < 0 || (*p && *p != ',')) return -1;
        if (node < times) return count;
        node -= times;
        if (!*p) return -1;
    }
}
