/* Requests to the hub over HTTP, with libcurl: one transfer, its answer, whether to try again, and
 * what to say when it does not help. */
#ifndef MC_HUB_CLIENT_INTERNAL_H
#define MC_HUB_CLIENT_INTERNAL_H

#include <signal.h>
#include "core/hub/fetch_internal.h"
#include "core/hub/net/libraries_internal.h"
#include "core/hub/settings_internal.h"

/* What the header of an answer says; numbers are -1 and texts "" where it does not. */
typedef struct mc_hub_reply {
    long status; /* of HTTP; 0: there was no answer */
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
    char origin[600]; /* scheme, host and port of the endpoint: what the token may be sent to */
    CURL *easy;       /* of single requests */
    CURLM *multi;     /* of blobs; keeps their connections */
    sigset_t signals; /* the thread's mask as it was before */
    bool set_up;
} mc_hub_client;

/* Reads the settings. While the client lives SIGPIPE is blocked on this thread, for libcurl must
 * not change what the program does with signals. */
mc_status mc_hub_client_init(mc_hub_client *c, mc_hub_watch *watch, const char *repository);
void mc_hub_client_release(mc_hub_client *c);

/* One transfer. */
typedef struct mc_hub_transfer {
    const mc_hub_libraries *lib;
    CURL *easy;
    struct curl_slist *headers;
    mc_hub_reply reply;
    char failure[CURL_ERROR_SIZE]; /* libcurl's words */
    /* Takes `size` bytes of the body; false ends the transfer. */
    bool (*take)(void *user, const char *data, size_t size);
    void *user;
} mc_hub_transfer;

/* Prepares `t`, whose easy, take and user are set, for a GET of `url`. Redirects are not followed.
 * The token is sent where the URL is the endpoint's. False when memory is out. */
bool mc_hub_transfer_prepare(mc_hub_client *c, mc_hub_transfer *t, const char *url);
void mc_hub_transfer_release(mc_hub_transfer *t); /* its headers; `easy` is the caller's */

/* What has been tried in vain so far. */
typedef struct mc_hub_tries {
    int count;
    bool answered; /* the host has answered before */
} mc_hub_tries;

/* Notes a failure and says whether it is worth another try, in *seconds: what comes from a network
 * that breaks or a server that is busy (429, 5xx). As the server says (Retry-After), or after a
 * quarter of a second, a half, ... */
bool mc_hub_try_again(mc_hub_tries *tries, CURLcode result, const mc_hub_reply *reply,
                      double *seconds);
/* Waits, watching. */
mc_status mc_hub_pause(mc_hub_client *c, double seconds);

/* A request for something small, with redirects, retried, within 60 timeouts as a whole. `head`
 * asks for the header alone, and ends at the redirect that leads to the contents, which *url
 * (MC_HUB_URL_MAX) then is. A body of up to `limit` bytes goes to *body (mc_free it; NULL for a
 * head). Anything but 200 is an error, which names `file` (NULL: the repository). */
mc_status mc_hub_ask(mc_hub_client *c, const char *file, char *url, bool head, size_t limit,
                     mc_hub_reply *reply, char **body, size_t *size);

/* Sets the error that a failed request for `file` is. */
mc_status mc_hub_refused(mc_hub_client *c, const char *file, const char *url, CURLcode result,
                         const mc_hub_transfer *t, int tries);

/* Whether a URL has the scheme, host and port of the endpoint. */
bool mc_hub_is_endpoint(const mc_hub_client *c, const char *url);

/* Whether a redirect may be followed: from https to http is an error, for on that way anybody may
 * read along and answer. */
mc_status mc_hub_may_follow(const mc_hub_client *c, const char *file, const char *from,
                            const char *to);

/* Appends `text` to a URL with all but letters, digits and "-._~" escaped, and '/' where `slashes`
 * says so. False if it does not fit. */
bool mc_hub_url_add(char url[MC_HUB_URL_MAX], const char *text, bool slashes);

#endif
