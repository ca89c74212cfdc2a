/* The parts of the control channel: frames and connections (control_wire.c), the proof of the job's
 * secret (control_proof.c), addresses (control_address.c), the state that callers and the thread
 * share (control_state.c), and the thread's loop on rank 0 (control_server.c) and on other ranks
 * (control_client.c). */
#ifndef MC_DIST_CONTROL_PARTS_INTERNAL_H
#define MC_DIST_CONTROL_PARTS_INTERNAL_H

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include "core/dist/control/control_internal.h"
#include "core/dist/launch_internal.h"

/* ---- frames ---------------------------------------------------------------------------------- */

typedef enum mc_frame_type {
    MC_FRAME_HELLO = 1,
    MC_FRAME_REFUSE,
    MC_FRAME_WAIT,
    MC_FRAME_START,
    MC_FRAME_BEAT,
    MC_FRAME_BLOB,
    MC_FRAME_TAKEN,
    MC_FRAME_ERROR,
    MC_FRAME_BYE,
    MC_FRAME_ASK,
    MC_FRAME_ANSWER
} mc_frame_type;

/* When a refused rank may try again: never; soon, because the obstacle may be an ending job; until
 * its deadline, because it has left the job that rank 0 is still in. */
enum { MC_COME_NEVER, MC_COME_SOON, MC_COME_LATER };

enum {
    MC_FRAME_HEADER = 8,
    MC_FRAME_PAYLOAD_MAX = MC_CONTROL_BLOB_MAX + 8,
    MC_FRAME_MAX = MC_FRAME_HEADER + MC_FRAME_PAYLOAD_MAX,
    MC_CONN_ROOM = 4 * MC_FRAME_MAX, /* bytes waiting to be sent */
    MC_PEER_NAME_MAX = 80,
    MC_MISSING_MAX = 1024 /* of the text of WAIT */
};

/* A frame being written or read; fields are read from the front. */
typedef struct mc_frame {
    mc_frame_type type;
    size_t size, at;
    bool bad; /* a field was missing, or did not fit */
    uint8_t data[MC_FRAME_PAYLOAD_MAX];
} mc_frame;

void mc_frame_put(mc_frame *f, uint64_t value, size_t bytes);
void mc_frame_put_bytes(mc_frame *f, const void *data, size_t size);
uint64_t mc_frame_get(mc_frame *f, size_t bytes);
/* A text that occupies `room` bytes of the frame too; control characters become blanks. */
void mc_frame_get_bytes(mc_frame *f, char *text, size_t room);
/* The rest of the frame as text, cut to fit; control characters become blanks. */
void mc_frame_get_text(mc_frame *f, char *text, size_t room);

/* ---- the proof of the job's secret ----------------------------------------------------------- */

enum { MC_PROOF_RANDOM = 32, MC_PROOF_SIZE = 32 }; /* bytes */

/*     CHALLENGED --challenge came--> EXPECTED --proof came--> DONE
 *         '-----------wrong--------------'--------wrong-----> REFUSED */
typedef enum mc_proof_state {
    MC_PROOF_CHALLENGED, /* our challenge has been sent */
    MC_PROOF_EXPECTED, /* the peer's proof is expected; on rank 0's other end ours has been sent */
    MC_PROOF_DONE,     /* frames may be read and sent */
    MC_PROOF_REFUSED   /* the connection's `why`; nothing is read or sent any more */
} mc_proof_state;

typedef struct mc_proof {
    mc_proof_state state;
    bool server;                                            /* this is rank 0's end */
    uint8_t mine[MC_PROOF_RANDOM], theirs[MC_PROOF_RANDOM]; /* the challenges */
} mc_proof;

/* libcrypto's functions, with their types since 1.1; NULL: not installed. */
typedef struct mc_hmac {
    const void *(*sha256)(void);
    unsigned char *(*hmac)(const void *kind, const void *key, int key_size,
                           const unsigned char *data, size_t size, unsigned char *out,
                           unsigned *out_size);
} mc_hmac;

void mc_hmac_load(mc_hmac *h);

/* ---- connections ----------------------------------------------------------------------------- */

/* A non-blocking connection. */
typedef struct mc_conn {
    int fd;
    int rank;            /* the peer's; -1 until its HELLO */
    mc_proof proof;      /* no frames are read or sent until it is done */
    bool closing;        /* nothing more is sent; closes after flushing */
    bool broken;         /* the peer closed it, it failed, or sent garbage: `why` */
    bool shut;           /* our half is closed */
    double since, heard; /* when it was created or refused; when the last whole frame came */
    char why[96];
    char name[MC_PEER_NAME_MAX]; /* "10.0.0.7:4711" */
    size_t in_used, out_used;
    uint8_t in[MC_FRAME_MAX], out[MC_CONN_ROOM];
} mc_conn;

mc_conn *mc_conn_new(int fd); /* owns the socket, and closes it if memory is out */
void mc_conn_free(mc_conn *conn);
/* Sends, or queues for mc_conn_flush. A connection whose queue exceeds MC_CONN_ROOM breaks. */
void mc_conn_send(mc_conn *conn, const mc_frame *f);
/* The same for bytes outside of frames; and reads as many received bytes, once all of them have
 * come. */
void mc_conn_send_bytes(mc_conn *conn, const void *bytes, size_t size);
bool mc_conn_take_bytes(mc_conn *conn, void *bytes, size_t size);
void mc_conn_flush(mc_conn *conn);
/* Receives; then mc_conn_next returns the frames one by one (false: no whole one is left),
 * including those from before a break. */
void mc_conn_receive(mc_conn *conn);
bool mc_conn_next(mc_conn *conn, mc_frame *f, double now);
short mc_conn_events(const mc_conn *conn); /* for poll() */

/* Sends this end's challenge; `server` is true on rank 0. */
void mc_proof_begin(mc_conn *conn, bool server);
/* Processes the received bytes. */
mc_proof_state mc_proof_go_on(mc_conn *conn, const mc_hmac *h, const mc_job_secret *secret);

/* ---- addresses ------------------------------------------------------------------------------- */

/* pthread_create with signals blocked, so that the program's own threads handle them. */
int mc_control_start_thread(pthread_t *thread, void *(*run)(void *), void *argument);

double mc_control_now(void); /* seconds of a monotonic clock */

/* The addresses of rank 0, from one host or several separated by commas. Addresses in a network of
 * this host come first, this host's own last. */
enum { MC_ADDRESSES_MAX = 16 };
typedef struct mc_addresses {
    int count;
    struct {
        struct sockaddr_storage addr;
        socklen_t length;
    } at[MC_ADDRESSES_MAX];
} mc_addresses;

/* False with the error set if none is found by `deadline`. The system's resolver can't be
 * interrupted, so it runs in a thread of its own, which is abandoned if it takes too long. */
bool mc_control_resolve(mc_error *error, const char *host, int port, double deadline,
                        mc_addresses *addrs);

/* "node7:29501", "[::1]:29501". */
void mc_control_write_addr(char *text, size_t room, const char *host, int port);
void mc_control_name_peer(char name[MC_PEER_NAME_MAX], int fd);

/* Whether no other host can reach any of them. */
bool mc_control_is_loopback(const mc_addresses *addrs);

/* Rank 0's listening sockets. */
typedef struct mc_listeners {
    int count;
    bool everywhere; /* on all addresses of this host */
    int fds[MC_ADDRESSES_MAX];
} mc_listeners;

/* Listens on those addresses that are this host's and that the other ranks can reach (with all
 * ranks on one host also loopback addresses), else on all addresses of this host. Tries until
 * `deadline` while the port is taken. False with the error set. */
bool mc_control_listen(mc_error *error, const mc_addresses *addrs, int port, bool one_host,
                       double deadline, mc_listeners *listeners);
void mc_control_stop_listening(mc_listeners *listeners);

/* ---- what callers and the thread share ------------------------------------------------------- */

enum { MC_CONTROL_GROUPS = 8, MC_CONTROL_KIND_MAX = 24 };

/* A rank's last operation in a group. */
typedef struct mc_control_place_of {
    uint64_t group, operation; /* group 0: no entry */
    char name[MC_CONTROL_KIND_MAX];
} mc_control_place_of;

/* A rank's last operation. */
typedef struct mc_control_state {
    uint64_t operation;                            /* 0: it has no number */
    double since;                                  /* when it began, by this process's clock */
    char name[MC_CONTROL_NAME_MAX];                /* "": no operation yet */
    mc_control_place_of groups[MC_CONTROL_GROUPS]; /* most recently used first */
} mc_control_state;

/* A question of mc_control_explain. */
typedef struct mc_control_question {
    uint64_t group, operation;
    bool all;
    char name[MC_CONTROL_KIND_MAX];
} mc_control_question;

enum { MC_NO_RANK = -1 };

typedef enum mc_control_phase { MC_CONTROL_JOINING, MC_CONTROL_RUNNING } mc_control_phase;

struct mc_control {
    int rank, world_size, port;
    uint64_t job, host;
    bool one_host;
    void (*listens_everywhere)(void *user);
    void *user;
    mc_job_secret secret;       /* only the thread uses it, once it runs */
    bool by_file;               /* the secret is in `secret_file` until all ranks have come */
    mc_secret_file secret_file; /* of one host */
    mc_hmac hmac;
    double timeout, beat, silence; /* seconds; derived from the first */
    double begun;                  /* when the rendezvous began */
    char addr[MC_LAUNCH_ADDR_MAX], where[MC_LAUNCH_ADDR_MAX + 16]; /* host; host:port */
    int wake;                                                      /* eventfd for the thread */
    pthread_t thread;
    bool has_thread, has_lock, has_changed;
    struct mc_control_server *server; /* the thread's, on rank 0; */
    struct mc_control_client *client; /* the thread's, elsewhere */
    atomic_bool failed;

    pthread_mutex_t lock; /* for all that follows */
    pthread_cond_t changed;
    mc_control_phase phase;
    bool leaving; /* mc_control_free is waiting for the thread */
    int local_rank, local_size;
    mc_control_state mine;
    struct {
        mc_status status;
        int rank; /* whose error it is, or MC_NO_RANK: the text is a whole sentence */
        char text[MC_CONTROL_TEXT_MAX];
        mc_control_state at; /* where this rank was */
    } failure;
    struct {
        uint32_t asked, answered;     /* numbers of questions of mc_control_explain */
        mc_control_question question; /* the last one */
        char text[MC_CONTROL_TEXT_MAX];
    } answer;
    struct {
        uint32_t wanted, number; /* last requested here; last received here */
        uint32_t done;           /* rank 0: the last that all received; else: the last received */
        double since;
        char what[MC_CONTROL_NAME_MAX];
        size_t size;
        uint8_t data[MC_CONTROL_BLOB_MAX];
    } blob;
};

/* mc_control_resolve for rank 0's host; without libcrypto it must have loopback addresses. */
bool mc_control_resolve_rank0(mc_error *error, mc_control *c, double deadline, mc_addresses *addrs);
/* Stores the first failure; wakes waiting threads. `rank` as in failure.rank. */
void mc_control_fail(mc_control *c, mc_status status, int rank, const char *format, ...)
    MC_PRINTF(4, 5);
void mc_control_wake(mc_control *c);
mc_control_state mc_control_mine(mc_control *c);
bool mc_control_is_leaving(mc_control *c);

/* "2.1 s after it began all-reduce (operation 42)". */
void mc_control_describe(char *text, size_t room, const mc_control_state *s, double now);

void mc_control_beat_frame(mc_frame *f, const mc_control_state *s, double now);
void mc_control_read_beat(mc_frame *f, mc_control_state *s, double now);
/* The ERROR frame of this process's failure. */
void mc_control_error_frame(mc_control *c, mc_frame *f);

/* The threads; `argument` is the mc_control. */
void *mc_control_serve(void *argument);
void *mc_control_attend(void *argument);
/* Their private state, created before the thread starts and freed after it ends. */
bool mc_control_server_init(mc_error *error, mc_control *c);
void mc_control_server_release(mc_control *c);
bool mc_control_client_init(mc_error *error, mc_control *c);
void mc_control_client_release(mc_control *c);

#endif
