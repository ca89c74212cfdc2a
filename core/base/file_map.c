/* Mapped files, and the handling of reads that fail because a file became shorter or unreadable.
 *
 * All mappings of the library are in one registry of slots, which is never freed and which a signal
 * handler may read at any time:
 *
 *     a slot       free -> taken -> mapped (start is set) -> closing (start is 0) -> free
 *     the handler  holds the slot (users) while it acts on it; closing waits for that
 *
 * So the handler never acts on addresses that have been unmapped meanwhile. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/fault.h"
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"

enum { SLOTS = 64 };

typedef struct slot {
    atomic_bool taken;
    _Atomic uintptr_t start; /* 0: nothing is mapped */
    size_t size;
    atomic_int users;       /* handlers that are using it */
    _Atomic size_t missing; /* 1 + the offset of the first byte that could not be read; 0: none */
    char *path;
    dev_t device; /* of the file, which may have been replaced at that path */
    ino_t inode;
} slot;

typedef struct slots {
    slot of[SLOTS];
    _Atomic(struct slots *) next;
} slots;

static slots registry;
static atomic_int broken_slots; /* slots with missing bytes */

/* ---- the registry ---------------------------------------------------------------------------- */

/* The next group of slots; with `grow` it is allocated if missing. */
static slots *next_of(slots *s, bool grow)
{
    slots *next = atomic_load(&s->next), *made;
    if (next || !grow || !(made = mc_calloc(1, sizeof *made))) return next;
    if (atomic_compare_exchange_strong(&s->next, &next, made)) return made;
    mc_free(made); /* another thread was faster */
    return next;
}

static slot *take_slot(void)
{
    for (slots *s = &registry; s; s = next_of(s, true))
        for (int i = 0; i < SLOTS; i++)
            if (!atomic_exchange(&s->of[i].taken, true)) return &s->of[i];
    return NULL;
}

/* The slot of the mapping that contains an address, held by the caller. Signal-safe. */
static slot *hold_slot(uintptr_t at)
{
    for (slots *s = &registry; s; s = atomic_load(&s->next))
        for (int i = 0; i < SLOTS; i++) {
            slot *one = &s->of[i];
            if (!atomic_load(&one->start)) continue;
            atomic_fetch_add(&one->users, 1);
            uintptr_t start = atomic_load(&one->start); /* the slot cannot close while it is held */
            if (start && at >= start && at - start < one->size) return one;
            atomic_fetch_sub(&one->users, 1);
        }
    return NULL;
}

/* ---- mapping --------------------------------------------------------------------------------- */

const uint8_t *mc_file_map_add(int fd, size_t size, const char *path)
{
    slot *s = take_slot();
    if (!s) {
        errno = ENOMEM;
        return NULL;
    }
    void *data = MAP_FAILED;
    if ((s->path = mc_strdup(path)))
        data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    else
        errno = ENOMEM;
    if (data == MAP_FAILED) {
        int reason = errno;
        mc_free(s->path);
        s->path = NULL;
        atomic_store(&s->taken, false);
        errno = reason;
        return NULL;
    }
    struct stat info = {0};
    fstat(fd, &info);
    s->device = info.st_dev;
    s->inode = info.st_ino;
    s->size = size;
    atomic_store(&s->missing, 0);
    atomic_store(&s->start, (uintptr_t)data);
    return data;
}

void mc_file_map_release(mc_file_map *map)
{
    slot *s = map->data ? hold_slot((uintptr_t)map->data) : NULL;
    if (s) {
        atomic_store(&s->start, 0);
        atomic_fetch_sub(&s->users, 1);
        while (atomic_load(&s->users)) sched_yield();
        munmap((void *)map->data, map->size);
        if (atomic_load(&s->missing)) atomic_fetch_sub(&broken_slots, 1);
        mc_free(s->path);
        s->path = NULL;
        atomic_store(&s->taken, false);
    }
    *map = (mc_file_map){0};
}

/* ---- looking at the mark --------------------------------------------------------------------- */

mc_status mc_file_check_bytes(mc_error *err, const void *data)
{
    if (!data || !atomic_load(&broken_slots)) return err->status;
    slot *s = hold_slot((uintptr_t)data);
    size_t missing = s ? atomic_load(&s->missing) : 0;
    if (missing) {
        struct stat info;
        mc_error_clear(err); /* any other error came from the zeros */
        if (stat(s->path, &info) == 0 && (uint64_t)info.st_size < s->size)
            mc_error_set(err, MC_ERR_IO,
                         "%s: cannot read byte %zu: the file is %lld bytes, expected %zu: it has "
                         "become shorter while it was in use",
                         s->path, missing - 1, (long long)info.st_size, s->size);
        else
            mc_error_set(err, MC_ERR_IO,
                         "%s: cannot read byte %zu of %zu: a read error of the file system, or the "
                         "file became shorter while it was in use",
                         s->path, missing - 1, s->size);
    }
    if (s) atomic_fetch_sub(&s->users, 1);
    return err->status;
}

mc_status mc_file_check_whole(mc_error *err, const void *data)
{
    struct stat info;
    slot *s = data ? hold_slot((uintptr_t)data) : NULL;
    size_t before = 0;
    if (!s) return err->status;
    bool cut = stat(s->path, &info) == 0 && info.st_dev == s->device && info.st_ino == s->inode &&
               (uint64_t)info.st_size < s->size;
    if (cut && atomic_compare_exchange_strong(&s->missing, &before, (size_t)info.st_size + 1))
        atomic_fetch_add(&broken_slots, 1);
    atomic_fetch_sub(&s->users, 1);
    return mc_file_check_bytes(err, data);
}

/* ---- the handler ----------------------------------------------------------------------------- */

static struct sigaction previous;
static uintptr_t page_size;

/* Maps zeros over the unreadable part, from the page of `at` to the mapping's end, and notes its
 * start. Returns false if the address is in no mapping of the library. */
static bool replace(uintptr_t at)
{
    slot *s = hold_slot(at);
    if (!s) return false;
    uintptr_t start = atomic_load(&s->start), page = at / page_size * page_size;
    size_t offset = at - start + 1, before = 0, left = start + s->size - page;
    void *zeros = mmap((void *)page, left, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    bool good = zeros != MAP_FAILED;
    if (good && atomic_compare_exchange_strong(&s->missing, &before, offset))
        atomic_fetch_add(&broken_slots, 1);
    atomic_fetch_sub(&s->users, 1);
    return good;
}

/* Lets the previous handler or the default act. */
static void pass_on(int number, siginfo_t *info, void *machine)
{
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, machine);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    } else if (info->si_code > 0 || previous.sa_handler == SIG_DFL) {
        /* A fault repeats on the retry and ends the process; a sent signal must be raised. */
        signal(number, SIG_DFL);
        if (info->si_code <= 0) raise(number);
    }
}

static void handle(int number, siginfo_t *info, void *machine)
{
    int reason = errno;
    if (info->si_code <= 0 || !replace((uintptr_t)info->si_addr)) pass_on(number, info, machine);
    errno = reason;
}

mc_status mc_install_fault_handler(void)
{
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK}, now;
    sigemptyset(&action.sa_mask);
    while (atomic_flag_test_and_set(&busy)) sched_yield();
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    bool good = sigaction(SIGBUS, NULL, &now) == 0;
    bool ours = good && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == handle;
    if (good && !ours) {
        previous = now;
        good = sigaction(SIGBUS, &action, NULL) == 0;
    }
    atomic_flag_clear(&busy);
    return good ? MC_OK : MC_ERR_STATE;
}
