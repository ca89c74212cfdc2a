/* The control channel's functions for callers, and the state shared with its thread. */
#include "core/dist/control/control_parts_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "core/base/hash_internal.h"
#include "core/base/memory_internal.h"

/* ---- the shared state ------------------------------------------------------------------------ */

void mc_control_wake(mc_control *c)
{
    uint64_t one = 1;
    ssize_t ignored = write(c->wake, &one, sizeof one); /* a full counter wakes as well */
    (void)ignored;
}

static void copy_text(char *to, size_t room, const char *from)
{
    size_t length = strnlen(from, room - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

void mc_control_fail(mc_control *c, mc_status status, int rank, const char *format, ...)
{
    char text[MC_CONTROL_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->failed)) {
        c->failure.status = status;
        c->failure.rank = rank;
        c->failure.at = c->mine;
        memcpy(c->failure.text, text, sizeof text);
        atomic_store(&c->failed, true);
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    mc_control_wake(c);
}

mc_control_state mc_control_mine(mc_control *c)
{
    pthread_mutex_lock(&c->lock);
    mc_control_state mine = c->mine;
    pthread_mutex_unlock(&c->lock);
    return mine;
}

bool mc_control_is_leaving(mc_control *c)
{
    pthread_mutex_lock(&c->lock);
    bool leaving = c->leaving;
    pthread_mutex_unlock(&c->lock);
    return leaving;
}

void mc_control_describe(char *text, size_t room, const mc_control_state *s, double now)
{
    double since = now > s->since ? now - s->since : 0;
    if (!*s->name)
        snprintf(text, room, "before its first operation");
    else if (!s->operation)
        snprintf(text, room, "%.1f s after it began %s", since, s->name);
    else
        snprintf(text, room, "%.1f s after it began %s (operation %llu)", since, s->name,
                 (unsigned long long)s->operation);
}

/* u64 operation, u32 ms since, (u64 group, u64 operation, name) of each group, name. */
void mc_control_beat_frame(mc_frame *f, const mc_control_state *s, double now)
{
    double ms = 1e3 * (now - s->since);
    *f = (mc_frame){.type = MC_FRAME_BEAT};
    mc_frame_put(f, s->operation, 8);
    mc_frame_put(f, ms < 0 ? 0 : ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms, 4);
    for (int i = 0; i < MC_CONTROL_GROUPS; i++) {
        mc_frame_put(f, s->groups[i].group, 8);
        mc_frame_put(f, s->groups[i].operation, 8);
        mc_frame_put_bytes(f, s->groups[i].name, sizeof s->groups[i].name);
    }
    mc_frame_put_bytes(f, s->name, strlen(s->name));
}

void mc_control_read_beat(mc_frame *f, mc_control_state *s, double now)
{
    s->operation = mc_frame_get(f, 8);
    s->since = now - 1e-3 * (double)mc_frame_get(f, 4);
    for (int i = 0; i < MC_CONTROL_GROUPS; i++) {
        s->groups[i].group = mc_frame_get(f, 8);
        s->groups[i].operation = mc_frame_get(f, 8);
        mc_frame_get_bytes(f, s->groups[i].name, sizeof s->groups[i].name);
    }
    mc_frame_get_text(f, s->name, sizeof s->name);
}

void mc_control_error_frame(mc_control *c, mc_frame *f)
{
    *f = (mc_frame){.type = MC_FRAME_ERROR};
    pthread_mutex_lock(&c->lock);
    mc_frame_put(f, c->failure.status, 4);
    mc_frame_put(f, (uint32_t)c->failure.rank, 4);
    mc_frame_put_bytes(f, c->failure.text, strlen(c->failure.text));
    pthread_mutex_unlock(&c->lock);
}

/* ---- making and freeing ---------------------------------------------------------------------- */

/* A number that differs between hosts. */
static uint64_t host_id(void)
{
    char text[256] = "";
    gethostname(text, sizeof text - 1);
    size_t used = strlen(text);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        used += fread(text + used, 1, sizeof text - used, file);
        fclose(file);
    }
    return mc_hash(MC_HASH_START, text, used);
}

static double at_most(double value, double limit) { return value < limit ? value : limit; }

static void set_times(mc_control *c, double timeout)
{
    c->timeout = timeout;
    c->beat = at_most(timeout / 16, 1);
    c->silence = timeout / 2;
    c->begun = mc_control_now();
}

static bool check_options(mc_error *error, const mc_control_options *o)
{
    if (o->world_size < 1 || o->world_size > MC_LAUNCH_RANKS_MAX || o->rank < 0 ||
        o->rank >= o->world_size)
        mc_error_set(error, MC_ERR_ARGUMENT, "rank %d of %d: expected a rank below the size",
                     o->rank, o->world_size);
    else if (!(o->timeout > 0))
        mc_error_set(error, MC_ERR_ARGUMENT, "a deadline of %g s: expected more than 0",
                     o->timeout);
    else if (o->world_size > 1 && (!o->addr || !*o->addr))
        mc_error_set(error, MC_ERR_ARGUMENT,
                     "the host of rank 0 is unknown: set MASTER_ADDR to it");
    else if (o->world_size > 1 && strlen(o->addr) >= MC_LAUNCH_ADDR_MAX)
        mc_error_set(error, MC_ERR_ARGUMENT, "rank 0's host has a name of %zu characters",
                     strlen(o->addr));
    else if (o->world_size > 1 && (o->port < 1 || o->port > 65535))
        mc_error_set(error, MC_ERR_ARGUMENT, "control port %d: expected 1 to 65535", o->port);
    return !mc_error_is_set(error);
}

static bool init_shared(mc_error *error, mc_control *c)
{
    pthread_condattr_t monotonic;
    c->has_lock = pthread_mutex_init(&c->lock, NULL) == 0;
    if (pthread_condattr_init(&monotonic) == 0) {
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        c->has_changed = pthread_cond_init(&c->changed, &monotonic) == 0;
        pthread_condattr_destroy(&monotonic);
    }
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->has_lock && c->has_changed && c->wake >= 0) return true;
    mc_error_set(error, MC_ERR_IO, "cannot set up the control channel: %s", strerror(errno));
    return false;
}

/* On ranks other than 0 the file is read before each connection attempt. */
static bool init_secret(mc_error *error, mc_control *c, const mc_job_secret *given)
{
    c->by_file = !given;
    if (given) c->secret = *given;
    if (c->by_file && !mc_secret_file_init(error, &c->secret_file, c->job, c->port)) return false;
    return !c->by_file || c->rank != 0 || mc_job_secret_random(error, &c->secret);
}

bool mc_control_resolve_rank0(mc_error *error, mc_control *c, double deadline, mc_addresses *addrs)
{
    if (!mc_control_resolve(error, c->addr, c->port, deadline, addrs)) return false;
    if (c->hmac.hmac || mc_control_is_loopback(addrs)) return true;
    mc_error_set(error, MC_ERR_NOT_FOUND,
                 "rank 0's address %s can be reached from other hosts, so ranks have to prove that "
                 "they belong to the job, for which they need libcrypto (OpenSSL), which is not "
                 "installed",
                 c->addr);
    return false;
}

static bool start_thread(mc_error *error, mc_control *c)
{
    int failure =
        mc_control_start_thread(&c->thread, c->rank == 0 ? mc_control_serve : mc_control_attend, c);
    c->has_thread = failure == 0;
    if (failure)
        mc_error_set(error, MC_ERR_NOMEM, "cannot start the control channel's thread: %s",
                     strerror(failure));
    return c->has_thread;
}

/* The thread checks the deadline, so this ends. */
static bool wait_for_all(mc_error *error, mc_control *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->phase == MC_CONTROL_JOINING && !atomic_load(&c->failed))
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return !mc_control_failed(c, error);
}

mc_control *mc_control_new(mc_error *error, const mc_control_options *o)
{
    if (!check_options(error, o)) return NULL;
    mc_control *c = mc_calloc(1, sizeof *c);
    if (!c) {
        mc_error_set(error, MC_ERR_NOMEM, "out of memory for the control channel");
        return NULL;
    }
    c->rank = o->rank;
    c->world_size = o->world_size;
    c->port = o->port;
    c->job = o->job;
    c->one_host = o->one_host;
    c->listens_everywhere = o->listens_everywhere;
    c->user = o->user;
    c->local_size = 1;
    c->wake = -1;
    set_times(c, o->timeout);
    if (o->world_size == 1) return c;
    mc_hmac_load(&c->hmac);
    c->host = host_id();
    copy_text(c->addr, sizeof c->addr, o->addr);
    mc_control_write_addr(c->where, sizeof c->where, o->addr, o->port);
    if (init_shared(error, c) && init_secret(error, c, o->secret) &&
        (c->rank == 0 ? mc_control_server_init : mc_control_client_init)(error, c) &&
        start_thread(error, c) && wait_for_all(error, c))
        return c;
    mc_control_free(c);
    return NULL;
}

/* A process that exits closes its MPI connections, and MPI may then end the processes at the other
 * ends. This pause lets them report the error first. */
static void linger(void) { nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); }

void mc_control_free(mc_control *c)
{
    if (!c) return;
    if (c->has_thread) {
        pthread_mutex_lock(&c->lock);
        c->leaving = true;
        pthread_mutex_unlock(&c->lock);
        mc_control_wake(c);
        pthread_join(c->thread, NULL);
        if (atomic_load(&c->failed) && c->phase == MC_CONTROL_RUNNING) linger();
    }
    mc_control_server_release(c);
    mc_control_client_release(c);
    if (c->has_changed) pthread_cond_destroy(&c->changed);
    if (c->has_lock) pthread_mutex_destroy(&c->lock);
    if (c->wake >= 0) close(c->wake);
    mc_job_secret_wipe(&c->secret);
    mc_free(c);
}

/* ---- while running --------------------------------------------------------------------------- */

/* Moves the group to the front; the least recently used one is dropped. */
static void note_group(mc_control_place_of *groups, uint64_t group, uint64_t operation,
                       const char *name)
{
    int at = 0;
    while (at < MC_CONTROL_GROUPS - 1 && groups[at].group && groups[at].group != group) at++;
    if (at) memmove(groups + 1, groups, (size_t)at * sizeof *groups);
    groups[0].group = group;
    groups[0].operation = operation;
    memset(groups[0].name, 0, sizeof groups[0].name); /* all bytes are sent */
    copy_text(groups[0].name, sizeof groups[0].name, name);
}

void mc_control_note(mc_control *c, uint64_t group, uint64_t operation, const char *name)
{
    if (!c || !c->has_thread) return;
    double now = mc_control_now();
    pthread_mutex_lock(&c->lock);
    c->mine.operation = operation;
    c->mine.since = now;
    copy_text(c->mine.name, sizeof c->mine.name, name);
    if (group) note_group(c->mine.groups, group, operation, name);
    pthread_mutex_unlock(&c->lock);
}

bool mc_control_failed(mc_control *c, mc_error *error)
{
    if (!c || !atomic_load(&c->failed)) return false;
    if (!error || mc_error_is_set(error)) return true;
    char text[MC_CONTROL_TEXT_MAX], from[32] = "", here[MC_CONTROL_NAME_MAX + 64] = "";
    pthread_mutex_lock(&c->lock);
    mc_status status = c->failure.status;
    mc_control_state at = c->failure.at;
    int rank = c->failure.rank;
    memcpy(text, c->failure.text, sizeof text);
    pthread_mutex_unlock(&c->lock);
    if (rank != MC_NO_RANK && rank != c->rank) snprintf(from, sizeof from, "rank %d: ", rank);
    if (*at.name && !at.operation)
        snprintf(here, sizeof here, ", last begun: %s", at.name);
    else if (*at.name)
        snprintf(here, sizeof here, ", last begun: %s (operation %llu)", at.name,
                 (unsigned long long)at.operation);
    mc_error_set(error, status, "%s%s [this is rank %d%s]", from, text, c->rank, here);
    return true;
}

void mc_control_report(mc_control *c, mc_status status, const char *message)
{
    if (!c || !c->has_thread) return;
    mc_control_fail(c, status == MC_OK ? MC_ERR_STATE : status, c->rank, "%s", message);
}

void mc_control_explain(mc_control *c, uint64_t group, uint64_t operation, const char *name,
                        bool all, char *text, size_t room)
{
    mc_control_question question = {.group = group, .operation = operation, .all = all};
    *text = '\0';
    if (!c || !c->has_thread) return;
    copy_text(question.name, sizeof question.name, name);
    /* The limit covers a lost packet or a system that hangs. If rank 0 dies or is silent for long,
     * that is a failure, which ends the wait. */
    double until = mc_control_now() + 10;
    struct timespec then = {(time_t)until, (long)(1e9 * (until - (time_t)until))};
    pthread_mutex_lock(&c->lock);
    uint32_t number = ++c->answer.asked;
    c->answer.question = question;
    mc_control_wake(c);
    int late = 0;
    while ((int32_t)(c->answer.answered - number) < 0 && !atomic_load(&c->failed) && late == 0)
        late = pthread_cond_timedwait(&c->changed, &c->lock, &then);
    if ((int32_t)(c->answer.answered - number) >= 0) copy_text(text, room, c->answer.text);
    pthread_mutex_unlock(&c->lock);
}

/* Whether rank 0's blob has reached all ranks; elsewhere, this rank. Under the lock. */
static bool is_shared(const mc_control *c, uint32_t number)
{
    return (c->rank == 0 ? c->blob.done : c->blob.number) == number;
}

/* The thread checks the deadline, so this ends. *found: the size of rank 0's blob. */
static bool exchange(mc_control *c, const char *what, void *blob, size_t size, size_t *found)
{
    pthread_mutex_lock(&c->lock);
    uint32_t number = ++c->blob.wanted;
    c->blob.since = mc_control_now();
    copy_text(c->blob.what, sizeof c->blob.what, what);
    if (c->rank == 0) {
        c->blob.size = size;
        memcpy(c->blob.data, blob, size);
        c->blob.number = number;
    }
    mc_control_wake(c);
    while (!is_shared(c, number) && !atomic_load(&c->failed))
        pthread_cond_wait(&c->changed, &c->lock);
    bool here = is_shared(c, number);
    *found = c->blob.size;
    if (here && c->rank != 0) {
        if (*found == size) memcpy(blob, c->blob.data, size);
        c->blob.done = number; /* the thread acknowledges it, and the next one may come */
    }
    pthread_mutex_unlock(&c->lock);
    mc_control_wake(c);
    return here;
}

bool mc_control_share(mc_control *c, mc_error *error, const char *what, void *blob, size_t size)
{
    if (!c || !c->has_thread) return true;
    if (size > MC_CONTROL_BLOB_MAX) {
        mc_error_set(error, MC_ERR_ARGUMENT, "%s: sharing %zu bytes, at most %d", what, size,
                     MC_CONTROL_BLOB_MAX);
        return false;
    }
    size_t found;
    bool here = exchange(c, what, blob, size, &found);
    if (here && found == size) return true;
    if (here)
        mc_control_fail(c, MC_ERR_ARGUMENT, c->rank,
                        "%s: rank 0 shares %zu bytes, rank %d expected %zu", what, found, c->rank,
                        size);
    mc_control_failed(c, error);
    return false;
}

void mc_control_place(const mc_control *c, int *local_rank, int *local_size)
{
    *local_rank = c ? c->local_rank : 0;
    *local_size = c ? c->local_size : 1;
}
