/* The control channel's thread on rank 0. */
#include "core/dist/control/control_parts_internal.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

enum { STRANGERS = 128, LIST_MAX = 256, NAMED_MAX = 4 };

/* Seconds: how long a new connection has for its proof before a newer one may replace it; after how
 * long a refused one is closed. */
static const double grace = 0.25, refusal_delay = 1;

typedef struct peer {
    mc_conn *conn; /* NULL: not connected */
    bool came, left;
    uint64_t host;
    uint32_t taken; /* the last blob that it received */
    mc_control_state state;
} peer;

typedef struct mc_control_server {
    mc_control *c;
    mc_listeners listeners;
    peer *peers;        /* (world size); the first, rank 0, is only a state */
    mc_conn **conns;    /* (capacity), `count` in use: ranks, and peers before their HELLO */
    struct pollfd *fds; /* (1 + listeners + capacity) */
    size_t count, capacity;
    int came;
    uint32_t shared;            /* the last blob that was sent */
    double next_beat, rest;     /* when the next heartbeat is due; until when to accept nobody */
    double leaving;             /* deadline for the other ranks' BYE; 0: not leaving */
    bool failure_sent;          /* the failure has been sent */
    char refused[2 * LIST_MAX]; /* the last refused peer, and why; "" */
} mc_control_server;

/* ---- words ----------------------------------------------------------------------------------- */

static void append(char *text, size_t room, const char *format, ...) MC_PRINTF(3, 4);
static void append(char *text, size_t room, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, room - used, format, args);
    va_end(args);
}

static bool has_not_come(const mc_control_server *s, int rank) { return !s->peers[rank].came; }
static bool has_not_taken(const mc_control_server *s, int rank)
{
    return s->peers[rank].taken != s->shared;
}

/* Writes "1, 3-5, 9": the ranks, without 0, for which `holds` is true; returns how many. */
static int list_ranks(const mc_control_server *s, char text[LIST_MAX],
                      bool (*holds)(const mc_control_server *, int))
{
    int count = 0, world = s->c->world_size;
    *text = '\0';
    for (int r = 1; r < world; r++) {
        if (!holds(s, r)) continue;
        int last = r;
        while (last + 1 < world && holds(s, last + 1)) last++;
        if (strlen(text) > LIST_MAX - 40)
            append(text, LIST_MAX, count && text[strlen(text) - 1] != '.' ? ", ..." : "");
        else
            append(text, LIST_MAX, last > r ? "%s%d-%d" : "%s%d", count ? ", " : "", r, last);
        count += last - r + 1;
        r = last;
    }
    return count;
}

/* "rank 1 has not come", "ranks 1, 3-5 have not come (10.0.0.9:4711 was turned away: ...)" */
static void list_missing(const mc_control_server *s, char text[MC_MISSING_MAX])
{
    char list[LIST_MAX];
    int count = list_ranks(s, list, has_not_come);
    snprintf(text, MC_MISSING_MAX, count == 1 ? "rank %s has not come" : "ranks %s have not come",
             list);
    if (*s->refused) append(text, MC_MISSING_MAX, " (%s)", s->refused);
}

static void refuses(mc_control_server *s, const mc_conn *conn, const char *why)
{
    snprintf(s->refused, sizeof s->refused, "%s was turned away: %s", conn->name, why);
}

static bool is_refused(const mc_conn *conn) { return conn->proof.state == MC_PROOF_REFUSED; }

/* The peer has failed to prove that it belongs to the job. */
static void on_refusal(mc_control_server *s, mc_conn *conn)
{
    refuses(s, conn, conn->why);
    conn->since = mc_control_now();
}

/* ---- failing --------------------------------------------------------------------------------- */

static void send_all(mc_control_server *s, const mc_frame *f)
{
    for (int r = 1; r < s->c->world_size; r++)
        if (s->peers[r].conn) mc_conn_send(s->peers[r].conn, f);
}

static void send_failure(mc_control_server *s)
{
    if (s->failure_sent || !atomic_load(&s->c->failed)) return;
    mc_frame f;
    mc_control_error_frame(s->c, &f);
    send_all(s, &f);
    s->failure_sent = true;
}

static bool has_failed(const mc_control_server *s) { return atomic_load(&s->c->failed); }

/* Fails the job because of a rank. */
static void fail_rank(mc_control_server *s, int rank, const char *what)
{
    double now = mc_control_now();
    char state[MC_CONTROL_NAME_MAX + 80];
    mc_control_describe(state, sizeof state, &s->peers[rank].state, now);
    mc_control_fail(s->c, MC_ERR_IO, MC_NO_RANK, "rank %d %s; when last heard of, it was %s", rank,
                    what, state);
}

/* Whether a rank delays the operation in question: *how says in which way. */
static bool keeps(const peer *p, const mc_control_question *q, char *how, size_t room)
{
    const mc_control_place_of *at = NULL;
    for (int i = 0; i < MC_CONTROL_GROUPS && !at; i++)
        if (p->state.groups[i].group == q->group) at = &p->state.groups[i];
    if (!at && !q->all) return false; /* not known to be in that group */
    bool came = at && at->operation >= q->operation;
    if (came && (at->operation > q->operation || strcmp(at->name, q->name) == 0)) return false;
    if (came)
        snprintf(how, room, "is in another operation: %s (operation %llu)", at->name,
                 (unsigned long long)at->operation);
    else
        snprintf(how, room, p->left ? "has left the job" : "has not come to it");
    return true;
}

/* Answers mc_control_explain. */
static void explain(mc_control_server *s, const mc_control_question *q,
                    char text[MC_CONTROL_TEXT_MAX])
{
    char how[96], where[MC_CONTROL_NAME_MAX + 80];
    int count = 0;
    *text = '\0';
    s->peers[0].state = mc_control_mine(s->c);
    for (int r = 0; r < s->c->world_size; r++) {
        if (!keeps(&s->peers[r], q, how, sizeof how) || count++ >= NAMED_MAX) continue;
        mc_control_describe(where, sizeof where, &s->peers[r].state, mc_control_now());
        append(text, MC_CONTROL_TEXT_MAX, "%srank %d %s, %s", *text ? "; " : "", r, how, where);
    }
    if (count > NAMED_MAX)
        append(text, MC_CONTROL_TEXT_MAX, "; and %d more ranks", count - NAMED_MAX);
}

/* ---- what ranks say -------------------------------------------------------------------------- */

static void refuse(mc_control_server *s, mc_conn *conn, int when, const char *why)
{
    mc_frame f = {.type = MC_FRAME_REFUSE};
    refuses(s, conn, why);
    mc_frame_put(&f, (uint64_t)when, 4);
    mc_frame_put_bytes(&f, why, strlen(why));
    mc_conn_send(conn, &f);
    conn->closing = true;
    mc_conn_flush(conn);
}

static void send_missing(mc_control_server *s, mc_conn *conn)
{
    char text[MC_MISSING_MAX];
    list_missing(s, text);
    mc_frame f = {.type = MC_FRAME_WAIT};
    mc_frame_put_bytes(&f, text, strlen(text));
    mc_conn_send(conn, &f);
}

/* Why a rank is refused, "" if it is accepted; returns when it may try again. */
static int find_objection(const mc_control_server *s, uint64_t job, uint32_t world, uint32_t rank,
                          char *why, size_t room)
{
    const mc_control *c = s->c;
    *why = '\0';
    if (job != c->job) {
        snprintf(why, room, "it belongs to another job (two jobs on one port?)");
        return MC_COME_SOON;
    }
    if (world != (uint32_t)c->world_size)
        snprintf(why, room, "it expects a world of %u ranks, rank 0 one of %d", world,
                 c->world_size);
    else if (rank == 0 || rank >= world)
        snprintf(why, room, "it says that it is rank %u of %u", rank, world);
    if (*why) return MC_COME_NEVER;
    const peer *p = &s->peers[rank];
    if (p->left)
        snprintf(why, room, "rank 0 is still in the job that rank %u has left", rank);
    else if (p->came)
        snprintf(why, room, "there is a rank %u already (%s)", rank,
                 p->conn ? p->conn->name : "gone by now");
    else if (has_failed(s))
        snprintf(why, room, "the job has failed already");
    return p->left ? MC_COME_LATER : MC_COME_SOON;
}

static void on_hello(mc_control_server *s, mc_conn *conn, mc_frame *f)
{
    char why[160];
    uint64_t job = mc_frame_get(f, 8);
    uint32_t world = (uint32_t)mc_frame_get(f, 4), rank = (uint32_t)mc_frame_get(f, 4);
    uint64_t host = mc_frame_get(f, 8);
    int when = find_objection(s, job, world, rank, why, sizeof why);
    if (*why) {
        refuse(s, conn, when, why);
        return;
    }
    conn->rank = (int)rank;
    s->peers[rank].conn = conn;
    s->peers[rank].came = true;
    s->peers[rank].host = host;
    s->came++;
    send_missing(s, conn);
}

static void on_beat(mc_control_server *s, int rank, mc_frame *f)
{
    double now = mc_control_now();
    mc_control_state state;
    mc_control_read_beat(f, &state, now);
    if (f->bad) return;
    s->peers[rank].state = state;
}

static void on_error(mc_control_server *s, int rank, mc_frame *f)
{
    char text[MC_CONTROL_TEXT_MAX];
    uint32_t status = (uint32_t)mc_frame_get(f, 4), whose = (uint32_t)mc_frame_get(f, 4);
    mc_frame_get_text(f, text, sizeof text);
    if (f->bad) return;
    mc_control_fail(s->c, (mc_status)status, whose > INT_MAX ? MC_NO_RANK : rank, "%s", text);
}

static void on_ask(mc_control_server *s, mc_conn *conn, mc_frame *f)
{
    char text[MC_CONTROL_TEXT_MAX];
    mc_control_question q;
    mc_frame answer = {.type = MC_FRAME_ANSWER};
    mc_frame_put(&answer, mc_frame_get(f, 4), 4);
    q.group = mc_frame_get(f, 8);
    q.operation = mc_frame_get(f, 8);
    q.all = mc_frame_get(f, 4);
    mc_frame_get_text(f, q.name, sizeof q.name);
    if (f->bad) return;
    explain(s, &q, text);
    mc_frame_put_bytes(&answer, text, strlen(text));
    mc_conn_send(conn, &answer);
}

static void on_bye(mc_control_server *s, mc_conn *conn)
{
    s->peers[conn->rank].left = true;
    conn->closing = true;
    if (!s->leaving && s->c->phase == MC_CONTROL_JOINING)
        fail_rank(s, conn->rank, "has left during the rendezvous");
}

static void on_frame(mc_control_server *s, mc_conn *conn, mc_frame *f)
{
    bool known = true;
    if (conn->closing) return;
    if (conn->rank == MC_NO_RANK) {
        known = f->type == MC_FRAME_HELLO && f->size == 24;
        if (known) on_hello(s, conn, f);
    } else if (f->type == MC_FRAME_BEAT) {
        on_beat(s, conn->rank, f);
    } else if (f->type == MC_FRAME_ERROR) {
        on_error(s, conn->rank, f);
    } else if (f->type == MC_FRAME_TAKEN) {
        s->peers[conn->rank].taken = (uint32_t)mc_frame_get(f, 4);
    } else if (f->type == MC_FRAME_ASK) {
        on_ask(s, conn, f);
    } else if (f->type == MC_FRAME_BYE) {
        on_bye(s, conn);
    } else {
        known = false;
    }
    if (known && !f->bad) return;
    conn->broken = true;
    snprintf(conn->why, sizeof conn->why, "it does not speak our protocol");
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Handles the end of a connection. A refused one was reported at its refusal. */
static void on_end(mc_control_server *s, mc_conn *conn)
{
    if (conn->rank == MC_NO_RANK) {
        if (!conn->closing && !is_refused(conn)) refuses(s, conn, conn->why);
    } else {
        peer *p = &s->peers[conn->rank];
        p->conn = NULL;
        char what[MC_PEER_NAME_MAX + sizeof conn->why + 64];
        snprintf(what, sizeof what, "(%s) is gone without a goodbye, dead or cut off: %s",
                 conn->name, conn->why);
        if (!p->left && !s->leaving) fail_rank(s, conn->rank, what);
    }
    mc_conn_free(conn);
}

static void drop_ended(mc_control_server *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (s->conns[i]->broken)
            on_end(s, s->conns[i]);
        else
            s->conns[kept++] = s->conns[i];
    }
    s->count = kept;
}

/* Closes a connection for a newer one if the rules at the top of control_internal.h allow it.
 * Connections are in the order of their age, oldest first. */
static void drop_stranger(mc_control_server *s, double now)
{
    size_t victim = s->count;
    for (size_t i = s->count; i-- > 0;) {
        const mc_conn *conn = s->conns[i];
        if (conn->rank != MC_NO_RANK || conn->proof.state == MC_PROOF_DONE) continue;
        if (is_refused(conn) ||
            (now - conn->since >= grace && (victim == s->count || !is_refused(s->conns[victim]))))
            victim = i;
    }
    if (victim == s->count) return;
    mc_conn_free(s->conns[victim]);
    memmove(s->conns + victim, s->conns + victim + 1, (--s->count - victim) * sizeof *s->conns);
}

static void accept_one(mc_control_server *s, int listener)
{
    double now = mc_control_now();
    if (s->count == s->capacity) drop_stranger(s, now);
    if (s->count == s->capacity) {
        s->rest = now + grace / 8;
        return;
    }
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), on = 1;
    if (fd < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
        snprintf(s->refused, sizeof s->refused, "a connection could not be accepted: %s",
                 strerror(errno));
        s->rest = now + 0.2; /* out of file descriptors, perhaps briefly */
        drop_stranger(s, now);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    mc_conn *conn = mc_conn_new(fd);
    if (!conn) {
        snprintf(s->refused, sizeof s->refused, "out of memory for a connection");
        return;
    }
    s->conns[s->count++] = conn;
    mc_proof_begin(conn, true);
    if (is_refused(conn)) on_refusal(s, conn);
}

static void serve(mc_control_server *s, mc_conn *conn, short events)
{
    mc_frame f;
    if (events & POLLOUT) mc_conn_flush(conn);
    if (events & ~POLLOUT) mc_conn_receive(conn);
    if (conn->proof.state != MC_PROOF_DONE &&
        mc_proof_go_on(conn, &s->c->hmac, &s->c->secret) == MC_PROOF_REFUSED)
        on_refusal(s, conn);
    while (mc_conn_next(conn, &f, mc_control_now())) on_frame(s, conn, &f);
}

/* Fills in s->fds: the wake-up descriptor, the listeners, the connections. */
static size_t list_fds(mc_control_server *s, double now)
{
    size_t count = 0;
    s->fds[count++] = (struct pollfd){.fd = s->c->wake, .events = POLLIN};
    for (int i = 0; i < s->listeners.count; i++)
        s->fds[count++] =
            (struct pollfd){.fd = now >= s->rest ? s->listeners.fds[i] : -1, .events = POLLIN};
    for (size_t i = 0; i < s->count; i++)
        s->fds[count++] = (struct pollfd){.fd = is_refused(s->conns[i]) ? -1 : s->conns[i]->fd,
                                          .events = mc_conn_events(s->conns[i])};
    return count;
}

/* Waits for events and handles them. */
static void poll_all(mc_control_server *s, double now)
{
    double until = s->next_beat;
    if (s->rest > now && s->rest < until) until = s->rest;
    size_t polled = s->count, listeners = (size_t)s->listeners.count, count = list_fds(s, now);
    if (poll(s->fds, count, until > now ? (int)(1e3 * (until - now)) + 1 : 0) <= 0) return;
    uint64_t wakes;
    if (s->fds[0].revents && read(s->c->wake, &wakes, sizeof wakes) < 0) return;
    for (size_t i = 0; i < polled; i++)
        if (s->fds[1 + listeners + i].revents)
            serve(s, s->conns[i], s->fds[1 + listeners + i].revents);
    for (size_t i = 0; i < listeners; i++)
        if (s->fds[1 + i].revents) accept_one(s, s->listeners.fds[i]);
}

/* ---- what time brings ------------------------------------------------------------------------ */

static int count_on_host(const mc_control_server *s, uint64_t host, int below)
{
    int count = 0;
    for (int r = 0; r < below; r++) count += s->peers[r].host == host;
    return count;
}

/* Removes the file of one host, which is no longer needed. Must happen while rank 0 still listens:
 * afterwards the file of this name may be the next job's. */
static void remove_secret(mc_control *c)
{
    if (c->by_file) mc_secret_file_remove(&c->secret_file);
    c->by_file = false;
}

/* All ranks have come. */
static void start_job(mc_control_server *s)
{
    mc_control *c = s->c;
    remove_secret(c);
    for (int r = 1; r < c->world_size; r++) {
        if (!s->peers[r].conn) continue; /* it has just disconnected, which is reported elsewhere */
        mc_frame f = {.type = MC_FRAME_START};
        mc_frame_put(&f, (uint64_t)count_on_host(s, s->peers[r].host, r), 4);
        mc_frame_put(&f, (uint64_t)count_on_host(s, s->peers[r].host, c->world_size), 4);
        mc_conn_send(s->peers[r].conn, &f);
    }
    pthread_mutex_lock(&c->lock);
    c->local_rank = 0;
    c->local_size = count_on_host(s, c->host, c->world_size);
    c->phase = MC_CONTROL_RUNNING;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void check_rendezvous(mc_control_server *s, double now)
{
    const mc_control *c = s->c;
    if (s->came == c->world_size - 1) {
        start_job(s);
    } else if (now - c->begun >= c->timeout) {
        char missing[MC_MISSING_MAX];
        list_missing(s, missing);
        mc_control_fail(s->c, MC_ERR_IO, MC_NO_RANK,
                        "rendezvous of %d ranks at %s: within %.1f s %s", c->world_size, c->where,
                        c->timeout, missing);
    }
}

static void check_strangers(mc_control_server *s, double now)
{
    double limit = s->c->timeout < 10 ? s->c->timeout / 2 : 5;
    for (size_t i = 0; i < s->count; i++) {
        mc_conn *conn = s->conns[i];
        bool refused = is_refused(conn);
        if (conn->rank != MC_NO_RANK || conn->broken ||
            now - conn->since < (refused ? refusal_delay : limit))
            continue;
        conn->broken = true;
        if (!refused) snprintf(conn->why, sizeof conn->why, "it said nothing");
    }
}

static void check_silence(mc_control_server *s, double now)
{
    char what[80];
    for (int r = 1; r < s->c->world_size; r++) {
        const peer *p = &s->peers[r];
        if (!p->conn || p->left || now - p->conn->heard < s->c->silence) continue;
        snprintf(what, sizeof what, "stands still: no heartbeat for %.1f s", now - p->conn->heard);
        fail_rank(s, r, what);
    }
}

/* Whether all ranks have received rank 0's blob; fails if one can't, or after the deadline. */
static bool check_takers(mc_control_server *s, const char *what, double waited)
{
    char list[LIST_MAX];
    int missing = list_ranks(s, list, has_not_taken);
    for (int r = 1; r < s->c->world_size && missing; r++) {
        if (!s->peers[r].left || !has_not_taken(s, r)) continue;
        mc_control_fail(s->c, MC_ERR_IO, MC_NO_RANK, "%s: rank %d has left the job without it",
                        what, r);
        return false;
    }
    if (missing && waited >= s->c->timeout)
        mc_control_fail(s->c, MC_ERR_IO, MC_NO_RANK, "%s: not asked for by rank%s %s within %.1f s",
                        what, missing > 1 ? "s" : "", list, s->c->timeout);
    return missing == 0;
}

/* Sends rank 0's blob and checks which ranks have received it. */
static void check_share(mc_control_server *s, double now)
{
    mc_control *c = s->c;
    char what[MC_CONTROL_NAME_MAX];
    mc_frame f = {.type = MC_FRAME_BLOB};
    pthread_mutex_lock(&c->lock);
    uint32_t number = c->blob.number;
    bool busy = c->blob.done != number;
    double since = c->blob.since;
    memcpy(what, c->blob.what, sizeof what);
    mc_frame_put(&f, number, 4);
    if (busy) mc_frame_put_bytes(&f, c->blob.data, c->blob.size);
    pthread_mutex_unlock(&c->lock);
    if (!busy) return;
    if (s->shared != number) send_all(s, &f);
    s->shared = number;
    if (!check_takers(s, what, now - since)) return;
    pthread_mutex_lock(&c->lock);
    c->blob.done = number;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void answer_own_question(mc_control_server *s)
{
    mc_control *c = s->c;
    char text[MC_CONTROL_TEXT_MAX];
    pthread_mutex_lock(&c->lock);
    uint32_t asked = c->answer.asked;
    bool open = asked != c->answer.answered;
    mc_control_question question = c->answer.question;
    pthread_mutex_unlock(&c->lock);
    if (!open) return;
    explain(s, &question, text);
    pthread_mutex_lock(&c->lock);
    memcpy(c->answer.text, text, sizeof text);
    c->answer.answered = asked;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void send_beats(mc_control_server *s, double now)
{
    mc_frame f;
    mc_control_state mine = mc_control_mine(s->c);
    mc_control_beat_frame(&f, &mine, now);
    for (int r = 1; r < s->c->world_size; r++) {
        mc_conn *conn = s->peers[r].conn;
        if (!conn || conn->out_used) continue; /* one that doesn't read gets no more */
        if (s->c->phase == MC_CONTROL_JOINING)
            send_missing(s, conn);
        else
            mc_conn_send(conn, &f);
    }
}

static void check_all(mc_control_server *s, double now)
{
    check_strangers(s, now);
    if (!has_failed(s)) {
        check_silence(s, now);
        if (s->c->phase == MC_CONTROL_JOINING) check_rendezvous(s, now);
        check_share(s, now);
    }
    send_failure(s);
    answer_own_question(s);
    if (now < s->next_beat) return;
    send_beats(s, now);
    s->next_beat = now + s->c->beat;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Sends the last frames. A connection ends when its peer closes it. */
static void start_leaving(mc_control_server *s, double now)
{
    mc_frame beat, bye = {.type = MC_FRAME_BYE};
    mc_control_state mine = mc_control_mine(s->c);
    send_failure(s); /* a failure of a moment ago: after BYE nobody would receive it */
    mc_control_beat_frame(&beat, &mine, now);
    remove_secret(s->c);
    mc_control_stop_listening(&s->listeners);
    for (size_t i = 0; i < s->count; i++) {
        mc_conn *conn = s->conns[i];
        if (conn->rank == MC_NO_RANK) conn->broken = true;
        mc_conn_send(conn, &beat);
        mc_conn_send(conn, &bye);
        conn->closing = true;
        mc_conn_flush(conn);
    }
    s->leaving = now + 0.5;
    s->next_beat = s->leaving; /* when to stop polling */
}

void *mc_control_serve(void *argument)
{
    mc_control *c = argument;
    mc_control_server *s = c->server;
    for (;;) {
        double now = mc_control_now();
        if (!s->leaving) {
            check_all(s, now);
            if (mc_control_is_leaving(c)) start_leaving(s, now);
        }
        drop_ended(s);
        if (s->leaving && (s->count == 0 || now >= s->leaving)) return NULL;
        if (!s->leaving && !s->failure_sent) send_failure(s);
        poll_all(s, now);
    }
}

bool mc_control_server_init(mc_error *error, mc_control *c)
{
    double deadline = c->begun + c->timeout;
    mc_control_server *s = c->server = mc_calloc(1, sizeof *s);
    if (s) {
        s->c = c;
        s->capacity = (size_t)c->world_size + STRANGERS;
        s->peers = mc_calloc((size_t)c->world_size, sizeof *s->peers);
        s->conns = mc_calloc(s->capacity, sizeof(mc_conn *));
        s->fds = mc_calloc(1 + MC_ADDRESSES_MAX + s->capacity, sizeof *s->fds);
    }
    if (!s || !s->peers || !s->conns || !s->fds) {
        mc_error_set(error, MC_ERR_NOMEM, "out of memory for the control channel");
        return false;
    }
    s->peers[0] = (peer){.came = true, .host = c->host};
    /* Shorter than the deadline: waiting does not repair a wrong name or a taken port. */
    double soon = c->timeout < 20 ? c->begun + c->timeout / 2 : c->begun + 10;
    mc_addresses addrs;
    if (!mc_control_resolve_rank0(error, c, soon, &addrs)) return false;
    double patience = mc_control_now() + 3;
    if (!mc_control_listen(error, &addrs, c->port, c->one_host || !c->hmac.hmac,
                           patience < deadline ? patience : soon, &s->listeners))
        return false;
    if (s->listeners.everywhere && c->listens_everywhere) c->listens_everywhere(c->user);
    return !c->by_file || mc_secret_file_write(error, &c->secret_file, &c->secret);
}

void mc_control_server_release(mc_control *c)
{
    mc_control_server *s = c->server;
    if (!s) return;
    for (size_t i = 0; i < s->count; i++) mc_conn_free(s->conns[i]);
    if (s->listeners.count) remove_secret(c);
    mc_control_stop_listening(&s->listeners);
    mc_free(s->peers);
    mc_free(s->conns);
    mc_free(s->fds);
    mc_free(s);
}
