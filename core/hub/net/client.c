#include "core/hub/net/client_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "core/base/version.h"

/* ---- libcurl as a whole ---------------------------------------------------------------------- */

/* libcurl before 7.84 counts its users without a lock. */
static pthread_mutex_t global_lock = PTHREAD_MUTEX_INITIALIZER;

static bool begin_curl(const mc_hub_libraries *lib)
{
    pthread_mutex_lock(&global_lock);
    bool good = lib->curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    pthread_mutex_unlock(&global_lock);
    return good;
}

static void end_curl(const mc_hub_libraries *lib)
{
    pthread_mutex_lock(&global_lock);
    lib->curl_global_cleanup();
    pthread_mutex_unlock(&global_lock);
}

static void block_signals(mc_hub_client *c)
{
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &c->signals);
}

/* Unblocks SIGPIPE; one that is pending is ours, and is dropped. */
static void unblock_signals(mc_hub_client *c)
{
    sigset_t pipe;
    const struct timespec none = {0};
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (!sigismember(&c->signals, SIGPIPE))
        while (sigtimedwait(&pipe, NULL, &none) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &c->signals, NULL);
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* Writes "https://host:443" of a URL. */
static bool read_origin(const mc_hub_libraries *lib, const char *url, char out[600])
{
    char *scheme = NULL, *host = NULL, *port = NULL;
    CURLU *parts = lib->curl_url();
    bool good = parts && !lib->curl_url_set(parts, CURLUPART_URL, url, 0) &&
                !lib->curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) &&
                !lib->curl_url_get(parts, CURLUPART_HOST, &host, 0) &&
                !lib->curl_url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT);
    int written = good ? snprintf(out, 600, "%s://%s:%s", scheme, host, port) : -1;
    lib->curl_free(scheme);
    lib->curl_free(host);
    lib->curl_free(port);
    lib->curl_url_cleanup(parts);
    return written >= 0 && written < 600;
}

bool mc_hub_is_endpoint(const mc_hub_client *c, const char *url)
{
    char origin[600];
    return read_origin(&c->lib, url, origin) && strcasecmp(origin, c->origin) == 0;
}

mc_status mc_hub_may_follow(const mc_hub_client *c, const char *file, const char *from,
                            const char *to)
{
    static const char https[] = "https://";
    bool was = strncasecmp(from, https, strlen(https)) == 0;
    if (!was || strncasecmp(to, https, strlen(https)) == 0) return MC_OK;
    return mc_error_set(c->err, MC_ERR_IO,
                        "%s: %s: %.*s leads on to %.*s: expected https again, which nobody on the "
                        "way can change",
                        c->repository, file ? file : "the list of its files",
                        (int)strcspn(from, "?"), from, (int)strcspn(to, "?"), to);
}

bool mc_hub_url_add(char url[MC_HUB_URL_MAX], const char *text, bool slashes)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t used = strlen(url);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     strchr("-._~", c) || (slashes && c == '/');
        if (used + 4 > MC_HUB_URL_MAX) return false;
        if (!plain) {
            url[used++] = '%';
            url[used++] = digits[c >> 4];
        }
        url[used++] = plain ? (char)c : digits[c & 15];
    }
    url[used] = '\0';
    return true;
}

/* ---- the client ------------------------------------------------------------------------------ */

mc_status mc_hub_client_init(mc_hub_client *c, mc_hub_watch *watch, const char *repository)
{
    *c = (mc_hub_client){.watch = watch, .err = &watch->ctx->error, .repository = repository};
    mc_status status = mc_hub_settings_read(c->err, &c->settings);
    if (status || mc_hub_libraries_load(c->err, &c->lib)) return c->err->status;
    if (!begin_curl(&c->lib))
        return mc_error_set(c->err, MC_ERR_NOMEM, "%s: libcurl cannot be started", repository);
    c->set_up = true;
    block_signals(c);
    if (!read_origin(&c->lib, c->settings.endpoint, c->origin))
        return mc_error_set(c->err, MC_ERR_ARGUMENT,
                            "HF_ENDPOINT is \"%.200s\": expected an address such as "
                            "https://huggingface.co",
                            c->settings.endpoint);
    c->easy = c->lib.curl_easy_init();
    c->multi = c->lib.curl_multi_init();
    if (c->easy && c->multi) return MC_OK;
    return mc_error_set(c->err, MC_ERR_NOMEM, "%s: out of memory for a request", repository);
}

void mc_hub_client_release(mc_hub_client *c)
{
    if (!c->set_up) return;
    c->lib.curl_easy_cleanup(c->easy);
    c->lib.curl_multi_cleanup(c->multi);
    unblock_signals(c);
    end_curl(&c->lib);
    c->set_up = false;
}

/* ---- a transfer ------------------------------------------------------------------------------ */

static int64_t read_size(const char *value)
{
    char *end;
    errno = 0;
    long long size = strtoll(value, &end, 10);
    return *end || end == value || errno || size < 0 ? -1 : (int64_t)size;
}

/* Reads a number of seconds, or a date. */
static double read_retry_after(const mc_hub_libraries *lib, const char *value)
{
    int64_t seconds = read_size(value);
    if (seconds >= 0) return (double)seconds;
    time_t date = lib->curl_getdate(value, NULL);
    if (date < 0) return -1;
    double left = difftime(date, time(NULL));
    return left > 0 ? left : 0;
}

static void take_field(mc_hub_transfer *t, const char *name, const char *value)
{
    mc_hub_reply *r = &t->reply;
    const struct {
        const char *name;
        char *text;
        size_t room;
    } texts[] = {{"etag", r->etag, sizeof r->etag},
                 {"x-linked-etag", r->linked_etag, sizeof r->linked_etag},
                 {"x-repo-commit", r->commit, sizeof r->commit},
                 {"x-error-code", r->code, sizeof r->code},
                 {"x-error-message", r->message, sizeof r->message}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcasecmp(name, texts[i].name) == 0)
            snprintf(texts[i].text, texts[i].room, "%s", value);
    if (strcasecmp(name, "content-length") == 0) r->length = read_size(value);
    if (strcasecmp(name, "x-linked-size") == 0) r->linked_size = read_size(value);
    if (strcasecmp(name, "retry-after") == 0) r->retry_after = read_retry_after(t->lib, value);
    if (strcasecmp(name, "content-range") == 0 &&
        sscanf(value, "bytes %" SCNd64 "-%" SCNd64 "/%" SCNd64, &r->first, &r->last, &r->whole) !=
            3)
        r->first = r->last = r->whole = -1;
}

static const mc_hub_reply no_reply = {
    .length = -1, .linked_size = -1, .first = -1, .last = -1, .whole = -1, .retry_after = -1};

/* Receives a line of the header. */
static size_t take_header(char *data, size_t size, size_t count, void *user)
{
    mc_hub_transfer *t = user;
    char line[1024];
    size_t length = size * count < sizeof line ? size * count : sizeof line - 1;
    memcpy(line, data, length);
    while (length && strchr(" \t\r\n", line[length - 1])) length--;
    line[length] = '\0';
    for (size_t i = 0; i < length; i++) /* errors show it on terminals */
        if ((unsigned char)line[i] < ' ' || line[i] == 127) line[i] = ' ';
    if (strncmp(line, "HTTP/", 5) == 0) { /* start of an answer; there may be several (100, 103) */
        const char *status = strchr(line, ' ');
        t->reply = no_reply;
        t->reply.status = status ? strtol(status, NULL, 10) : 0;
    }
    char *value = strchr(line, ':');
    if (value) {
        *value++ = '\0';
        take_field(t, line, value + strspn(value, " \t"));
    }
    return size * count;
}

static size_t take_body(char *data, size_t size, size_t count, void *user)
{
    mc_hub_transfer *t = user;
    return t->take(t->user, data, size * count) ? size * count : 0;
}

static bool add_header(mc_hub_transfer *t, const char *line)
{
    struct curl_slist *longer = t->lib->curl_slist_append(t->headers, line);
    if (longer) t->headers = longer;
    return longer;
}

static bool add_headers(const mc_hub_client *c, mc_hub_transfer *t, const char *url)
{
    char line[MC_HUB_TOKEN_MAX + 64];
    snprintf(line, sizeof line, "Authorization: Bearer %s", c->settings.token);
    return (!*c->settings.token || !mc_hub_is_endpoint(c, url) || add_header(t, line)) &&
           add_header(t, "Accept-Encoding: identity");
}

void mc_hub_transfer_release(mc_hub_transfer *t)
{
    if (t->headers) t->lib->curl_slist_free_all(t->headers);
    t->headers = NULL;
}

/* Forbids file: and other URLs, wherever a redirect leads. The loaded libcurl may be older than the
 * headers, and know only the older option. */
static bool only_http(const mc_hub_client *c, CURL *easy)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    if (c->lib.curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK) return true;
#endif
    return c->lib.curl_easy_setopt(easy, CURLOPT_PROTOCOLS,
                                   (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS)) == CURLE_OK;
}

bool mc_hub_transfer_prepare(mc_hub_client *c, mc_hub_transfer *t, const char *url)
{
    CURL *easy = t->easy;
    mc_hub_transfer_release(t);
    t->lib = &c->lib;
    t->reply = no_reply;
    t->failure[0] = '\0';
    c->lib.curl_easy_reset(easy);
    if (!add_headers(c, t, url) || c->lib.curl_easy_setopt(easy, CURLOPT_URL, url)) return false;
    if (!only_http(c, easy)) return false;
    c->lib.curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
    c->lib.curl_easy_setopt(easy, CURLOPT_USERAGENT, "modelcenter.c/" MC_VERSION);
    c->lib.curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    c->lib.curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t->failure);
    c->lib.curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    c->lib.curl_easy_setopt(easy, CURLOPT_HEADERDATA, t);
    c->lib.curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    c->lib.curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    c->lib.curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 512L << 10);
    c->lib.curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)(1000 * c->settings.timeout));
    const char *authorities = c->settings.authorities;
    if (*authorities && c->lib.curl_easy_setopt(easy, CURLOPT_CAINFO, authorities)) return false;
    double stall = c->settings.timeout < 1 ? 1 : c->settings.timeout;
    c->lib.curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    c->lib.curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)stall);
    return true;
}

/* ---- trying again ---------------------------------------------------------------------------- */

static bool is_passing(CURLcode result, long status)
{
    switch (result) {
    case CURLE_OK: return status == 408 || status == 429 || (status >= 500 && status != 501);
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR: return true;
    default: return false;
    }
}

bool mc_hub_try_again(mc_hub_tries *tries, CURLcode result, const mc_hub_reply *reply,
                      double *seconds)
{
    enum { MOST = 7, MOST_UNHEARD = 3, LONGEST = 300 };
    if (reply->status) tries->answered = true;
    int failed = tries->count++;
    if (!is_passing(result, reply->status)) return false;
    if (failed + 1 >= (tries->answered ? MOST : MOST_UNHEARD)) return false;
    *seconds = 0.25 * (double)(1 << failed);
    if (result == CURLE_OK && reply->retry_after >= 0) *seconds = reply->retry_after;
    return *seconds <= LONGEST;
}

mc_status mc_hub_pause(mc_hub_client *c, double seconds)
{
    const double slice = 0.05;
    mc_status status = mc_hub_tick(c->watch);
    for (; seconds > 0 && !status; seconds -= slice) {
        double part = seconds < slice ? seconds : slice;
        nanosleep(&(struct timespec){.tv_nsec = (long)(part * 1e9)}, NULL);
        status = mc_hub_tick(c->watch);
    }
    return status;
}
