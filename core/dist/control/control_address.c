#include "core/dist/control/control_parts_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "core/base/memory_internal.h"
#include "core/base/signals_internal.h"

double mc_control_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_for(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (time_t)seconds))}, NULL);
}

void mc_control_write_addr(char *text, size_t room, const char *host, int port)
{
    bool bare_ipv6 = strchr(host, ':') && *host != '[';
    snprintf(text, room, bare_ipv6 ? "[%s]:%d" : "%s:%d", host, port);
}

void mc_control_name_peer(char name[MC_PEER_NAME_MAX], int fd)
{
    struct sockaddr_storage addr;
    socklen_t length = sizeof addr;
    char host[64], port[8];
    if (getpeername(fd, (struct sockaddr *)&addr, &length) != 0 ||
        getnameinfo((struct sockaddr *)&addr, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(name, MC_PEER_NAME_MAX, "an unknown address");
    else if (strncmp(host, "::ffff:", 7) == 0 && strchr(host, '.')) /* IPv4 mapped into IPv6 */
        snprintf(name, MC_PEER_NAME_MAX, "%s:%s", host + 7, port);
    else
        snprintf(name, MC_PEER_NAME_MAX, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

/* ---- names ---- */

/* Shared by the caller and the resolver's thread; the last to finish frees it. */
typedef struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, left; /* the thread has finished; the caller has stopped waiting */
    int result, why; /* of getaddrinfo; errno where that is EAI_SYSTEM */
    struct addrinfo *addrs;
    char host[MC_LAUNCH_ADDR_MAX], port[8];
} lookup;

static void free_lookup(lookup *l)
{
    if (l->addrs) freeaddrinfo(l->addrs);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    mc_free(l);
}

static void *look_up(void *argument)
{
    lookup *l = argument;
    struct addrinfo *addrs = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int result = getaddrinfo(l->host, l->port, &hints, &addrs);
    int why = errno;
    pthread_mutex_lock(&l->lock);
    l->why = why;
    l->addrs = result == 0 ? addrs : NULL;
    l->result = result;
    l->done = true;
    bool left = l->left;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (left) free_lookup(l);
    return NULL;
}

int mc_control_start_thread(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t before;
    mc_signals_block(&before);
    int failure = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

static lookup *start_lookup(const char *host, int port)
{
    lookup *l = mc_calloc(1, sizeof *l);
    if (!l) return NULL;
    size_t length = strlen(host);
    bool brackets = length > 2 && *host == '[' && host[length - 1] == ']';
    snprintf(l->host, sizeof l->host, "%.*s", (int)(length - 2 * brackets), host + brackets);
    snprintf(l->port, sizeof l->port, "%d", port);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_t thread;
    if (mc_control_start_thread(&thread, look_up, l) == 0) {
        pthread_detach(thread);
        return l;
    }
    free_lookup(l);
    return NULL;
}

/* One try: getaddrinfo's result, and errno in *why if that is EAI_SYSTEM. */
static int resolve_once(const char *host, int port, double deadline, struct addrinfo **addrs,
                        int *why)
{
    lookup *l = start_lookup(host, port);
    *why = ENOMEM;
    if (!l) return EAI_SYSTEM;
    struct timespec until = {(time_t)deadline, (long)(1e9 * (deadline - (time_t)deadline))};
    pthread_mutex_lock(&l->lock);
    int late = 0;
    while (!l->done && late == 0) late = pthread_cond_timedwait(&l->changed, &l->lock, &until);
    bool done = l->done;
    int result = l->result;
    *why = done ? l->why : ETIMEDOUT;
    *addrs = l->addrs;
    l->addrs = NULL;
    l->left = true;
    pthread_mutex_unlock(&l->lock);
    if (done) free_lookup(l);
    return done ? result : EAI_SYSTEM;
}

static bool has_address(const mc_addresses *addrs, const struct addrinfo *a)
{
    for (int i = 0; i < addrs->count; i++)
        if (addrs->at[i].length == a->ai_addrlen &&
            memcmp(&addrs->at[i].addr, a->ai_addr, a->ai_addrlen) == 0)
            return true;
    return false;
}

static void add_addresses(mc_addresses *addrs, struct addrinfo *found)
{
    for (const struct addrinfo *a = found; a && addrs->count < MC_ADDRESSES_MAX; a = a->ai_next) {
        if (a->ai_addrlen > sizeof addrs->at->addr || has_address(addrs, a)) continue;
        memcpy(&addrs->at[addrs->count].addr, a->ai_addr, a->ai_addrlen);
        addrs->at[addrs->count++].length = a->ai_addrlen;
    }
    freeaddrinfo(found);
}

static bool resolve_one(mc_error *error, const char *host, int port, double deadline,
                        mc_addresses *addrs)
{
    double begun = mc_control_now();
    for (;;) {
        struct addrinfo *found = NULL;
        int system, result = resolve_once(host, port, deadline, &found, &system);
        if (result == 0) {
            add_addresses(addrs, found);
            return true;
        }
        const char *why = result == EAI_SYSTEM ? strerror(system) : gai_strerror(result);
        bool out_of_memory = result == EAI_MEMORY || (result == EAI_SYSTEM && system == ENOMEM);
        /* A name may become known while a cluster starts its hosts. */
        if (mc_control_now() + 0.5 < deadline && !out_of_memory) {
            pause_for(0.5);
            continue;
        }
        mc_error_set(
            error, out_of_memory ? MC_ERR_NOMEM : MC_ERR_NOT_FOUND,
            "cannot find the address of rank 0's host \"%s\" (MASTER_ADDR): %s, for %.1f s", host,
            why, mc_control_now() - begun);
        return false;
    }
}

/* ---- this host's networks ---- */

/* The address's bytes, without the port; NULL for other families. */
static const uint8_t *bytes_of(const struct sockaddr *addr, size_t *size)
{
    *size = addr->sa_family == AF_INET ? sizeof(struct in_addr) : sizeof(struct in6_addr);
    if (addr->sa_family == AF_INET)
        return (const uint8_t *)addr + offsetof(struct sockaddr_in, sin_addr);
    return addr->sa_family == AF_INET6
               ? (const uint8_t *)addr + offsetof(struct sockaddr_in6, sin6_addr)
               : NULL;
}

/* 0: in a network of this host; 1: elsewhere; 2: an address of this host. */
static int distance(const struct sockaddr *addr, const struct ifaddrs *interfaces)
{
    size_t size, other;
    const uint8_t *to = bytes_of(addr, &size);
    int best = 1;
    for (const struct ifaddrs *i = interfaces; i && to; i = i->ifa_next) {
        if (!i->ifa_addr || !i->ifa_netmask || i->ifa_addr->sa_family != addr->sa_family) continue;
        const uint8_t *own = bytes_of(i->ifa_addr, &other),
                      *mask = bytes_of(i->ifa_netmask, &other);
        if (!own || !mask) continue;
        if (memcmp(own, to, size) == 0) return 2;
        size_t same = 0;
        while (same < size && ((own[same] ^ to[same]) & mask[same]) == 0) same++;
        if (same == size) best = 0;
    }
    return best;
}

/* Sorts addresses into the order of tries; equal ones keep their order. */
static void sort_addresses(mc_addresses *addrs)
{
    struct ifaddrs *interfaces = NULL;
    mc_addresses from = *addrs;
    if (addrs->count < 2 || getifaddrs(&interfaces) != 0) return;
    addrs->count = 0;
    for (int d = 0; d <= 2; d++)
        for (int i = 0; i < from.count; i++)
            if (distance((const struct sockaddr *)&from.at[i].addr, interfaces) == d)
                addrs->at[addrs->count++] = from.at[i];
    freeifaddrs(interfaces);
}

bool mc_control_resolve(mc_error *error, const char *host, int port, double deadline,
                        mc_addresses *addrs)
{
    char one[MC_LAUNCH_ADDR_MAX];
    addrs->count = 0;
    for (const char *at = host;; at++) {
        size_t length = strcspn(at, ",");
        snprintf(one, sizeof one, "%.*s", (int)length, at);
        if (!resolve_one(error, one, port, deadline, addrs)) return false;
        at += length;
        if (!*at) break;
    }
    sort_addresses(addrs);
    return true;
}

static bool is_loopback(const struct sockaddr *addr);

/* Whether other hosts can reach the address: neither a loopback nor a link-local one. */
static bool is_reachable(const struct ifaddrs *i)
{
    struct sockaddr_in6 v6;
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || is_loopback(i->ifa_addr)) return false;
    if (i->ifa_addr->sa_family == AF_INET) return true;
    if (i->ifa_addr->sa_family != AF_INET6) return false;
    memcpy(&v6, i->ifa_addr, sizeof v6);
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

void mc_control_own_addresses(char *text, size_t room)
{
    struct ifaddrs *interfaces = NULL;
    char one[INET6_ADDRSTRLEN];
    size_t used = 0, size;
    *text = '\0';
    if (getifaddrs(&interfaces) != 0) interfaces = NULL;
    for (const struct ifaddrs *i = interfaces; i; i = i->ifa_next) {
        if (!is_reachable(i)) continue;
        inet_ntop(i->ifa_addr->sa_family, bytes_of(i->ifa_addr, &size), one, sizeof one);
        if (strlen(one) + 2 > room - used) continue;
        used += (size_t)snprintf(text + used, room - used, "%s%s", used ? "," : "", one);
    }
    if (interfaces) freeifaddrs(interfaces);
    if (!used && gethostname(text, room) != 0) *text = '\0';
    text[room - 1] = '\0';
}

/* ---- listening ---- */

static bool is_loopback(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, addr, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    struct sockaddr_in6 v6;
    if (addr->sa_family != AF_INET6) return false;
    memcpy(&v6, addr, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool mc_control_is_loopback(const mc_addresses *addrs)
{
    for (int i = 0; i < addrs->count; i++)
        if (!is_loopback((const struct sockaddr *)&addrs->at[i].addr)) return false;
    return true;
}

/* A listening socket, or -1 with errno. */
static int listen_on(const struct sockaddr *addr, socklen_t length)
{
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (addr->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, addr, length) == 0 && listen(fd, 1024) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* Listens on every address of this host, of both families if it has both. */
static int listen_everywhere(int port)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    v6.sin6_addr = in6addr_any;
    v4.sin_addr.s_addr = htonl(INADDR_ANY);
    int fd = listen_on((struct sockaddr *)&v6, sizeof v6);
    if (fd >= 0 || errno == EADDRINUSE || errno == EACCES) return fd;
    return listen_on((struct sockaddr *)&v4, sizeof v4);
}

/* Whether the address is this host's and the ranks can reach it: loopback addresses count only if
 * all ranks are on one host. */
static bool may_listen(const struct sockaddr *addr, bool one_host, const struct ifaddrs *interfaces)
{
    return is_loopback(addr) ? one_host : distance(addr, interfaces) == 2;
}

/* False with errno. One loopback address suffices: ranks try all of them. */
static bool listen_on_own(const mc_addresses *addrs, bool one_host, mc_listeners *listeners)
{
    struct ifaddrs *interfaces = NULL;
    int why = 0;
    bool needed = false;
    if (getifaddrs(&interfaces) != 0) interfaces = NULL;
    for (int i = 0; i < addrs->count && !needed; i++) {
        const struct sockaddr *addr = (const struct sockaddr *)&addrs->at[i].addr;
        if (!may_listen(addr, one_host, interfaces)) continue;
        int fd = listen_on(addr, addrs->at[i].length);
        if (fd >= 0)
            listeners->fds[listeners->count++] = fd;
        else
            why = errno, needed = errno == EADDRINUSE && !is_loopback(addr);
    }
    if (interfaces) freeifaddrs(interfaces);
    if (needed) mc_control_stop_listening(listeners);
    errno = why;
    return listeners->count > 0 || why == 0;
}

static bool listen_once(const mc_addresses *addrs, int port, bool one_host, mc_listeners *listeners)
{
    *listeners = (mc_listeners){0};
    if (!listen_on_own(addrs, one_host, listeners)) return false;
    if (listeners->count) return true;
    int fd = listen_everywhere(port);
    listeners->everywhere = true;
    listeners->count = fd >= 0;
    listeners->fds[0] = fd;
    return fd >= 0;
}

bool mc_control_listen(mc_error *error, const mc_addresses *addrs, int port, bool one_host,
                       double deadline, mc_listeners *listeners)
{
    while (!listen_once(addrs, port, one_host, listeners)) {
        int why = errno;
        /* An earlier job that is just ending may still use the port. */
        if (why == EADDRINUSE && mc_control_now() < deadline) {
            pause_for(0.05);
            continue;
        }
        mc_error_set(error, MC_ERR_IO,
                     "rank 0 cannot listen on port %d, the job's control port: %s (set "
                     "MC_MASTER_PORT to a free port, the same on every rank)",
                     port, strerror(why));
        return false;
    }
    return true;
}

void mc_control_stop_listening(mc_listeners *listeners)
{
    for (int i = 0; i < listeners->count; i++) close(listeners->fds[i]);
    listeners->count = 0;
}
