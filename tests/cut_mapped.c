/* Preloaded into a command, it cuts a file to half its size when the command has just mapped it, so
 * that a test needs no luck to meet that moment. MC_TEST_CUT is the end of the file's path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void cut(int fd)
{
    const char *end = getenv("MC_TEST_CUT");
    char link[40], path[4096];
    struct stat info;
    if (!end || fd < 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < (ssize_t)strlen(end)) return;
    path[length] = '\0';
    if (strcmp(path + length - strlen(end), end) != 0 || fstat(fd, &info) != 0) return;
    if (truncate(path, info.st_size / 2) != 0) perror(path);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    void *(*real)(void *, size_t, int, int, int, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "mmap");
    void *data = real(at, size, protection, flags, fd, offset);
    cut(fd);
    return data;
}
