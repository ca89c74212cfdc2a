/* The control channel's thread on every rank but 0. */
#include "core/dist/control/control_parts_internal.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

typedef struct mc_control_client {
    mc_control *c;
    mc_addresses addrs;      /* rank 0's */
    int turn, next_turn;     /* the address to try first; and the next, if a stranger answers */
    mc_conn *conn;           /* NULL: not connected */
    bool answered;           /* a frame came from rank 0 */
    bool server_left;        /* rank 0 has said BYE */
    bool failure_known;      /* to rank 0: it was sent there, or came from there */
    uint32_t taken, asked;   /* last blob acknowledged with TAKEN; last question sent */
    double next_beat, retry; /* when to send the next heartbeat; when to connect again */
    double leaving;          /* deadline for rank 0's BYE; 0: not leaving */
    mc_control_state server; /* rank 0's last operation */
    int refusals;            /* consecutive connections that rank 0's end closed after our proof; */
    double refused_since;    /* when the first of them began */
    char why[512];           /* why the last connection failed */
    char missing[MC_MISSING_MAX]; /* the missing ranks, from WAIT */
} mc_control_client;

static bool has_failed(const mc_control_client *k) { return atomic_load(&k->c->failed); }
static bool is_joining(const mc_control_client *k) { return k->c->phase == MC_CONTROL_JOINING; }

/* ---- connecting ------------------------------------------------------------------------------ */

/* Whether the socket connected to itself: the system chose this unused port for our end. */
static bool is_own_end(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t a = sizeof here, b = sizeof there;
    return getsockname(fd, (struct sockaddr *)&here, &a) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &b) == 0 && a == b &&
           memcmp(&here, &there, a) == 0;
}

/* Waits until a non-blocking connect completes. Returns 0 or an errno. */
static int finish_connecting(int fd, double until)
{
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    double left = until - mc_control_now();
    int ready = poll(&one, 1, left > 0 ? (int)(1e3 * left) + 1 : 0), why = 0;
    socklen_t size = sizeof why;
    if (ready <= 0) return ready == 0 ? ETIMEDOUT : errno;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) != 0) return errno;
    return why ? why : is_own_end(fd) ? ECONNREFUSED : 0;
}

/* A connected socket, or -1 with errno. */
static int connect_to(const struct sockaddr *addr, socklen_t length, double until)
{
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int why = connect(fd, addr, length) == 0 ? 0 : errno;
    if (why == EINPROGRESS || why == 0) why = finish_connecting(fd, until);
    if (why == 0) return fd;
    close(fd);
    errno = why;
    return -1;
}

static void say_hello(mc_control_client *k)
{
    const mc_control *c = k->c;
    mc_frame f = {.type = MC_FRAME_HELLO};
    mc_frame_put(&f, c->job, 8);
    mc_frame_put(&f, (uint64_t)c->world_size, 4);
    mc_frame_put(&f, (uint64_t)c->rank, 4);
    mc_frame_put(&f, c->host, 8);
    mc_conn_send(k->conn, &f);
}

/* Tries all addresses once. Before the rendezvous nothing else is going on, so this may block. */
static void connect_any(mc_control_client *k)
{
    double deadline = k->c->begun + k->c->timeout;
    const mc_addresses *addrs = &k->addrs;
    for (int tries = 0; tries < addrs->count && !k->conn; tries++) {
        int i = (k->turn + tries) % addrs->count;
        double until = mc_control_now() + (addrs->count > 2 ? 2 : 5);
        int fd = connect_to((const struct sockaddr *)&addrs->at[i].addr, addrs->at[i].length,
                            until < deadline ? until : deadline);
        if (fd < 0) {
            snprintf(k->why, sizeof k->why, "%s", strerror(errno));
            k->refusals = 0; /* rank 0 may not listen at this address yet */
        } else if (!(k->conn = mc_conn_new(fd))) {
            snprintf(k->why, sizeof k->why, "out of memory for the connection");
        } else {
            k->next_turn = i + 1;
        }
    }
}

/* Re-reads the secret's file before each try: it may be left over from a job that was killed. */
static void connect_once(mc_control_client *k)
{
    mc_control *c = k->c;
    if (!c->by_file || mc_secret_file_read(&c->secret_file, &c->secret, k->why, sizeof k->why))
        connect_any(k);
    double now = mc_control_now(), pause = (now - c->begun) / 4; /* ranks start almost together */
    k->retry = now + (pause < 0.002 ? 0.002 : pause < 0.1 ? pause : 0.1);
    if (k->conn) mc_proof_begin(k->conn, false);
}

static void disconnect(mc_control_client *k)
{
    mc_conn_free(k->conn);
    k->conn = NULL;
}

/* ---- what rank 0 says ------------------------------------------------------------------------ */

/* Seconds for which a refused rank tries again: an earlier job may be ending. */
static double refusal_patience(const mc_control *c) { return c->timeout < 6 ? c->timeout / 2 : 3; }

static void on_refuse(mc_control_client *k, mc_frame *f)
{
    mc_control *c = k->c;
    char text[160];
    uint64_t when = mc_frame_get(f, 4);
    double patience = when == MC_COME_LATER ? c->timeout : refusal_patience(c);
    mc_frame_get_text(f, text, sizeof text);
    snprintf(k->why, sizeof k->why, "turned away: %s", text);
    k->conn->broken = true;
    if (when != MC_COME_NEVER && mc_control_now() - c->begun < patience) return;
    mc_control_fail(c, MC_ERR_STATE, MC_NO_RANK, "rank 0 at %s turns this process away: %s",
                    c->where, text);
    k->failure_known = true;
}

static void on_start(mc_control_client *k, mc_frame *f)
{
    mc_control *c = k->c;
    int rank = (int)mc_frame_get(f, 4), size = (int)mc_frame_get(f, 4);
    if (f->bad) return;
    mc_job_secret_wipe(&c->secret); /* this rank does not connect again */
    pthread_mutex_lock(&c->lock);
    c->local_rank = rank;
    c->local_size = size;
    c->phase = MC_CONTROL_RUNNING;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void on_blob(mc_control_client *k, mc_frame *f)
{
    mc_control *c = k->c;
    uint32_t number = (uint32_t)mc_frame_get(f, 4);
    size_t size = f->size - f->at;
    if (f->bad || size > MC_CONTROL_BLOB_MAX) return;
    pthread_mutex_lock(&c->lock);
    memcpy(c->blob.data, f->data + f->at, size);
    c->blob.size = size;
    c->blob.number = number;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void on_error(mc_control_client *k, mc_frame *f)
{
    char text[MC_CONTROL_TEXT_MAX];
    uint32_t status = (uint32_t)mc_frame_get(f, 4), whose = (uint32_t)mc_frame_get(f, 4);
    mc_frame_get_text(f, text, sizeof text);
    if (f->bad) return;
    k->failure_known = true;
    mc_control_fail(k->c, (mc_status)status, whose > INT_MAX ? MC_NO_RANK : (int)whose, "%s", text);
}

static void on_answer(mc_control_client *k, mc_frame *f)
{
    mc_control *c = k->c;
    uint32_t number = (uint32_t)mc_frame_get(f, 4);
    pthread_mutex_lock(&c->lock);
    mc_frame_get_text(f, c->answer.text, sizeof c->answer.text);
    c->answer.answered = number;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void on_frame(mc_control_client *k, mc_frame *f)
{
    bool first = f->type == MC_FRAME_WAIT || f->type == MC_FRAME_REFUSE;
    bool known = first || k->answered;
    if (!known) {
    } else if (f->type == MC_FRAME_WAIT) {
        k->answered = true;
        mc_frame_get_text(f, k->missing, sizeof k->missing);
    } else if (f->type == MC_FRAME_REFUSE) {
        on_refuse(k, f);
    } else if (f->type == MC_FRAME_START) {
        on_start(k, f);
    } else if (f->type == MC_FRAME_BEAT) {
        mc_control_read_beat(f, &k->server, mc_control_now());
    } else if (f->type == MC_FRAME_BLOB) {
        on_blob(k, f);
    } else if (f->type == MC_FRAME_ERROR) {
        on_error(k, f);
    } else if (f->type == MC_FRAME_ANSWER) {
        on_answer(k, f);
    } else if (f->type == MC_FRAME_BYE) {
        k->server_left = true;
    } else {
        known = false;
    }
    if (known && !f->bad) return;
    k->conn->broken = true;
    snprintf(k->conn->why, sizeof k->conn->why, "it does not speak our protocol");
}

/* ---- what time brings ------------------------------------------------------------------------ */

static void fail_server(mc_control_client *k, const char *what)
{
    char state[MC_CONTROL_NAME_MAX + 80];
    mc_control_describe(state, sizeof state, &k->server, mc_control_now());
    mc_control_fail(k->c, MC_ERR_IO, MC_NO_RANK, "rank 0 (%s) %s; when last heard of, it was %s",
                    k->c->where, what, state);
}

/* Explains a connection whose other end did not prove that it is rank 0. */
static void explain_stranger(mc_control_client *k)
{
    const mc_conn *conn = k->conn;
    const char *how = *conn->why ? conn->why : "it takes the connection but does not answer";
    if (conn->proof.state == MC_PROOF_REFUSED)
        snprintf(k->why, sizeof k->why, "what answers is another program: %s", how);
    else if (conn->proof.state == MC_PROOF_EXPECTED)
        snprintf(k->why, sizeof k->why,
                 "what answers does not take this rank's proof that it knows the job's secret; it "
                 "has another secret (MC_JOB_SECRET), or the port is another job's: %s",
                 how);
    else
        snprintf(k->why, sizeof k->why, "%s", how);
}

/* A rank with a wrong secret will not get the right one by waiting. So it fails before its deadline
 * if every connection ends this way, unless the secret is in a file, which rank 0 may be about to
 * write. */
static void count_refusal(mc_control_client *k)
{
    enum { ENOUGH = 3 }; /* under a flood of connections rank 0 may close a few too early */
    mc_control *c = k->c;
    bool refused = k->conn->proof.state == MC_PROOF_EXPECTED && *k->conn->why;
    if (refused && !k->refusals) k->refused_since = k->conn->since;
    k->refusals = refused ? k->refusals + 1 : 0;
    if (c->by_file || k->refusals < ENOUGH ||
        mc_control_now() - k->refused_since < refusal_patience(c))
        return;
    mc_control_fail(c, MC_ERR_STATE, MC_NO_RANK, "rank %d cannot reach rank 0 at %s: %s", c->rank,
                    c->where, k->why);
}

/* The connection has ended. */
static void on_end(mc_control_client *k)
{
    char what[sizeof k->conn->why + 64];
    bool foreign = strstr(k->conn->why, "protocol");
    snprintf(what, sizeof what, "is gone without a goodbye, dead or cut off: %s", k->conn->why);
    if (k->server_left || k->leaving || has_failed(k)) {
        /* as expected */
    } else if (k->conn->proof.state != MC_PROOF_DONE) {
        explain_stranger(k);
        count_refusal(k);
        k->turn = k->next_turn; /* try another address; the stranger may also go away */
    } else if (k->answered) {
        fail_server(k, what);
    } else if (foreign) {
        mc_control_fail(k->c, MC_ERR_IO, MC_NO_RANK,
                        "what answers at %s, where rank 0 should be, is another program: %s",
                        k->c->where, k->conn->why);
    } else if (*k->conn->why) {
        snprintf(k->why, sizeof k->why, "%s", k->conn->why);
    }
    disconnect(k);
}

static void check_rendezvous(mc_control_client *k, double now)
{
    mc_control *c = k->c;
    double patience = c->timeout < 20 ? c->timeout / 4 : 5;
    if (now - c->begun < c->timeout) {
        if (!k->conn && now >= k->retry) connect_once(k);
        if (k->conn && k->conn->proof.state != MC_PROOF_DONE && now - k->conn->since >= patience)
            k->conn->broken = true;
    } else if (k->answered) {
        mc_control_fail(c, MC_ERR_IO, MC_NO_RANK, "rendezvous of %d ranks at %s: within %.1f s %s",
                        c->world_size, c->where, c->timeout, k->missing);
    } else {
        if (k->conn) explain_stranger(k);
        mc_control_fail(c, MC_ERR_IO, MC_NO_RANK,
                        "rank %d cannot reach rank 0 at %s within %.1f s: %s", c->rank, c->where,
                        c->timeout, k->why);
    }
}

/* Acknowledges the last blob to rank 0. */
static void send_taken(mc_control_client *k)
{
    pthread_mutex_lock(&k->c->lock);
    uint32_t done = k->c->blob.done;
    pthread_mutex_unlock(&k->c->lock);
    if (done == k->taken || !k->conn) return;
    mc_frame f = {.type = MC_FRAME_TAKEN};
    mc_frame_put(&f, done, 4);
    mc_conn_send(k->conn, &f);
    k->taken = done;
}

static void check_share(mc_control_client *k, double now)
{
    mc_control *c = k->c;
    char what[MC_CONTROL_NAME_MAX];
    pthread_mutex_lock(&c->lock);
    bool waits = c->blob.wanted != c->blob.number && c->blob.wanted != c->blob.done;
    double since = now - c->blob.since;
    memcpy(what, c->blob.what, sizeof what);
    pthread_mutex_unlock(&c->lock);
    send_taken(k);
    if (waits && (k->server_left || since >= c->timeout))
        mc_control_fail(c, MC_ERR_IO, MC_NO_RANK,
                        "%s: rank 0 has not given it to rank %d in %.1f s%s", what, c->rank, since,
                        k->server_left ? ", and has left the job" : "");
}

static void send_beat(mc_control_client *k, double now)
{
    mc_frame f;
    mc_control_state mine = mc_control_mine(k->c);
    mc_control_beat_frame(&f, &mine, now);
    mc_conn_send(k->conn, &f);
}

/* Sends the question of mc_control_explain to rank 0, after a heartbeat with this rank's state. */
static void pass_question(mc_control_client *k, double now)
{
    pthread_mutex_lock(&k->c->lock);
    uint32_t asked = k->c->answer.asked;
    mc_control_question question = k->c->answer.question;
    if (!k->conn && k->c->answer.answered != asked) { /* rank 0 has left: nobody can answer */
        k->c->answer.text[0] = '\0';
        k->c->answer.answered = asked;
        pthread_cond_broadcast(&k->c->changed);
    }
    pthread_mutex_unlock(&k->c->lock);
    if (asked == k->asked || !k->conn) return;
    k->asked = asked;
    send_beat(k, now);
    mc_frame f = {.type = MC_FRAME_ASK};
    mc_frame_put(&f, asked, 4);
    mc_frame_put(&f, question.group, 8);
    mc_frame_put(&f, question.operation, 8);
    mc_frame_put(&f, question.all, 4);
    mc_frame_put_bytes(&f, question.name, strlen(question.name));
    mc_conn_send(k->conn, &f);
}

static void send_failure(mc_control_client *k)
{
    if (!has_failed(k) || k->failure_known || !k->conn || !k->answered) return;
    mc_frame f;
    mc_control_error_frame(k->c, &f);
    mc_conn_send(k->conn, &f);
    k->failure_known = true;
}

static void check_all(mc_control_client *k, double now)
{
    const mc_control *c = k->c;
    if (!has_failed(k)) {
        if (is_joining(k)) check_rendezvous(k, now);
        check_share(k, now);
    }
    if (!has_failed(k) && k->conn && k->answered && now - k->conn->heard >= c->silence) {
        char what[80];
        snprintf(what, sizeof what, "stands still: no heartbeat for %.1f s", now - k->conn->heard);
        fail_server(k, what);
    }
    send_failure(k);
    pass_question(k, now);
    if (now < k->next_beat) return;
    k->next_beat = now + c->beat;
    if (k->conn && k->answered && !k->conn->out_used) send_beat(k, now);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void prove(mc_control_client *k)
{
    mc_proof_state state = mc_proof_go_on(k->conn, &k->c->hmac, &k->c->secret);
    if (state == MC_PROOF_DONE) say_hello(k);
    if (state == MC_PROOF_REFUSED) k->conn->broken = true;
}

static void poll_all(mc_control_client *k, double now)
{
    double until = k->leaving ? k->leaving : k->next_beat;
    if (!k->leaving && is_joining(k) && !k->conn && k->retry < until) until = k->retry;
    struct pollfd fds[2] = {{.fd = k->c->wake, .events = POLLIN}, {.fd = -1}};
    if (k->conn) fds[1] = (struct pollfd){.fd = k->conn->fd, .events = mc_conn_events(k->conn)};
    if (poll(fds, 2, until > now ? (int)(1e3 * (until - now)) + 1 : 0) <= 0) return;
    uint64_t wakes;
    if (fds[0].revents && read(k->c->wake, &wakes, sizeof wakes) < 0) return;
    if (!fds[1].revents) return;
    mc_frame f;
    if (fds[1].revents & POLLOUT) mc_conn_flush(k->conn);
    if (fds[1].revents & ~POLLOUT) mc_conn_receive(k->conn);
    if (k->conn->proof.state != MC_PROOF_DONE) prove(k);
    while (mc_conn_next(k->conn, &f, mc_control_now())) on_frame(k, &f);
}

/* Sends the last frames. */
static void start_leaving(mc_control_client *k, double now)
{
    mc_frame beat, bye = {.type = MC_FRAME_BYE};
    mc_control_state mine = mc_control_mine(k->c);
    mc_control_beat_frame(&beat, &mine, now);
    k->leaving = now + 0.5;
    if (!k->conn) return;
    if (!k->answered) {
        disconnect(k);
        return;
    }
    send_failure(k); /* a failure of a moment ago: after BYE nobody would receive it */
    send_taken(k);
    mc_conn_send(k->conn, &beat);
    mc_conn_send(k->conn, &bye);
    k->conn->closing = true;
    mc_conn_flush(k->conn);
}

void *mc_control_attend(void *argument)
{
    mc_control *c = argument;
    mc_control_client *k = c->client;
    for (;;) {
        double now = mc_control_now();
        if (!k->leaving) {
            check_all(k, now);
            if (mc_control_is_leaving(c)) start_leaving(k, now);
        }
        if (k->conn && (k->conn->broken || k->server_left)) on_end(k);
        if (k->leaving && (!k->conn || now >= k->leaving)) return NULL;
        poll_all(k, now);
    }
}

bool mc_control_client_init(mc_error *error, mc_control *c)
{
    mc_control_client *k = c->client = mc_calloc(1, sizeof *k);
    if (!k) {
        mc_error_set(error, MC_ERR_NOMEM, "out of memory for the control channel");
        return false;
    }
    k->c = c;
    /* Shorter than the deadline: waiting does not repair a wrong name. */
    double patience = c->timeout < 60 ? c->timeout / 2 : 30;
    return mc_control_resolve_rank0(error, c, c->begun + patience, &k->addrs);
}

void mc_control_client_release(mc_control *c)
{
    mc_control_client *k = c->client;
    if (!k) return;
    if (k->conn) disconnect(k);
    mc_free(k);
}
