/* Requests to the hub over HTTP with libcurl: one transfer, its answer, retries, and error
 * messages. */
#ifndef MC_HUB_CLIENT_INTERNAL_H
#define MC_HUB_CLIENT_INTERNAL_H

#include <signal.h>
#include "core/hub/fetch_internal.h"
#include "core/hub/net/libraries_internal.h"
#include "core/hub/settings_internal.h"

/* Fields of an answer's header; missing numbers are -1 and missing texts "". */
typedef struct mc_hub_reply {
    long status; /* HTTP status; 0: no answer */
    char etag[200], linked_etag[200], commit[80];
    char code[64], message[300]; /* why the hub refused: X-Error-Code, X-Error-Message */
    int64_t length, linked_size;
    int64_t first, last, whole; /* Content-Range: bytes first-last/whole */
    double retry_after;         /* seconds */
} mc_hub_reply;

typedef struct mc_hub_client {
    mc_hub_watch *watch;
    mc_error *err; /* the context's */
    const char *repository;
    mc_hub_settings settings;
    mc_hub_libraries lib;
    char origin[600]; /* scheme, host and port of the endpoint: the token is sent only there */
    CURL *easy;       /* for single requests */
    CURLM *multi;     /* for blobs; keeps their connections */
    sigset_t signals; /* the thread's mask before */
    bool set_up;
} mc_hub_client;

/* Reads the settings. SIGPIPE is blocked on this thread while the client exists, because libcurl
 * must not change the program's signal handling. */
mc_status mc_hub_client_init(mc_hub_client *c, mc_hub_watch *watch, const char *repository);
void mc_hub_client_release(mc_hub_client *c);

/* One transfer. */
typedef struct mc_hub_transfer {
    const mc_hub_libraries *lib;
    CURL *easy;
    struct curl_slist *headers;
    mc_hub_reply reply;
    char failure[CURL_ERROR_SIZE]; /* libcurl's message */
    /* Receives `size` bytes of the body; false ends the transfer. */
    bool (*take)(void *user, const char *data, size_t size);
    void *user;
} mc_hub_transfer;

/* Prepares `t`, whose easy, take and user are set, for a GET of `url`. Redirects are not followed.
 * The token is sent only to the endpoint. False if memory is out. */
bool mc_hub_transfer_prepare(mc_hub_client *c, mc_hub_transfer *t, const char *url);
void mc_hub_transfer_release(mc_hub_transfer *t); /* frees its headers; `easy` is the caller's */

/* The failed tries of a request. */
typedef struct mc_hub_tries {
    int count;
    bool answered; /* the host has answered before */
} mc_hub_tries;

/* Counts a failure. Returns whether to try again, which makes sense after network failures and for
 * busy servers (429, 5xx), and in *seconds the pause before: the server's Retry-After, or a quarter
 * of a second, a half, ... */
bool mc_hub_try_again(mc_hub_tries *tries, CURLcode result, const mc_hub_reply *reply,
                      double *seconds);
/* Waits, and calls mc_hub_tick meanwhile. */
mc_status mc_hub_pause(mc_hub_client *c, double seconds);

/* A small request, with redirects and retries, within 60 timeouts in all. `head` requests only the
 * header and stops at the redirect to the contents, whose address *url (MC_HUB_URL_MAX) becomes. A
 * body of up to `limit` bytes goes to *body (mc_free it; NULL for a head). Anything but 200 is an
 * error that names `file` (NULL: the repository). */
mc_status mc_hub_ask(mc_hub_client *c, const char *file, char *url, bool head, size_t limit,
                     mc_hub_reply *reply, char **body, size_t *size);

/* Sets the error for a failed request for `file`. */
mc_status mc_hub_refused(mc_hub_client *c, const char *file, const char *url, CURLcode result,
                         const mc_hub_transfer *t, int tries);

/* Whether a URL has the scheme, host and port of the endpoint. */
bool mc_hub_is_endpoint(const mc_hub_client *c, const char *url);

/* Whether a redirect may be followed. From https to http is an error, because others could read and
 * change the traffic. */
mc_status mc_hub_may_follow(const mc_hub_client *c, const char *file, const char *from,
                            const char *to);

/* Appends `text` to a URL, with all but letters, digits and "-._~" escaped, and '/' not escaped if
 * `slashes`. False if it does not fit. */
bool mc_hub_url_add(char url[MC_HUB_URL_MAX], const char *text, bool slashes);

#endif
