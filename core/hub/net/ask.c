/* Small requests: the hub's list of files, and the headers of files. */
#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/hub/net/client_internal.h"

/* ---- refusals -------------------------------------------------------------------------------- */

/* Explains for an error how to get access. */
static void say_log_in(const mc_hub_client *c, char *out, size_t room)
{
    if (*c->settings.token)
        snprintf(out, room, "the token that was sent does not open it");
    else
        snprintf(
            out, room,
            "log in: make a token at %s/settings/tokens, and set HF_TOKEN to it or write it to "
            "%s",
            c->settings.endpoint, c->settings.token_path);
}

/* The hub reports a private repository as missing. */
static mc_status refused_entry(mc_hub_client *c, const char *file, const mc_hub_reply *r)
{
    char how[MC_PATH_MAX + 700];
    const char *of = file ? file : "the list of its files";
    bool gated = strcmp(r->code, "GatedRepo") == 0 ||
                 (r->status == 403 && strcmp(r->code, "RepoNotFound") != 0);
    say_log_in(c, how, sizeof how);
    if (gated)
        return mc_error_set(c->err, MC_ERR_NOT_FOUND,
                            "%s: %s: the repository is gated (HTTP %ld%s%s): ask for access at "
                            "%s/%s; %s",
                            c->repository, of, r->status, *r->message ? ", " : "", r->message,
                            c->settings.endpoint, c->repository, how);
    return mc_error_set(c->err, MC_ERR_NOT_FOUND,
                        "%s: %s: %s has no such repository, or it is private or gated (HTTP "
                        "%ld%s%s); %s",
                        c->repository, of, c->settings.endpoint, r->status, *r->message ? ", " : "",
                        r->message, how);
}

static mc_status refused_missing(mc_hub_client *c, const char *file, const mc_hub_reply *r)
{
    if (strcmp(r->code, "RevisionNotFound") == 0)
        return mc_error_set(c->err, MC_ERR_NOT_FOUND,
                            "%s: the repository has no such revision (%s)", c->repository,
                            *r->message ? r->message : "HTTP 404");
    if (file)
        return mc_error_set(c->err, MC_ERR_NOT_FOUND,
                            "%s: %s: the repository has no such file (%s)", c->repository, file,
                            *r->message ? r->message : "HTTP 404");
    return mc_error_set(c->err, MC_ERR_NOT_FOUND,
                        "%s: %s has no such repository or revision (HTTP 404%s%s)", c->repository,
                        c->settings.endpoint, *r->message ? ", " : "", r->message);
}

/* The length without the query, which can contain credentials for a storage host. */
static int shown(const char *url) { return (int)strcspn(url, "?"); }

mc_status mc_hub_refused(mc_hub_client *c, const char *file, const char *url, CURLcode result,
                         const mc_hub_transfer *t, int tries)
{
    const mc_hub_reply *r = &t->reply;
    const char *of = file ? file : "the list of its files";
    char times[64] = "";
    if (mc_error_is_set(c->err)) return c->err->status;
    if (tries > 1) snprintf(times, sizeof times, ", after %d tries", tries);
    if (result != CURLE_OK)
        return mc_error_set(c->err, MC_ERR_IO, "%s: %s: %.*s: %s%s", c->repository, of, shown(url),
                            url, *t->failure ? t->failure : c->lib.curl_easy_strerror(result),
                            times);
    if (r->status == 401 || r->status == 403) return refused_entry(c, file, r);
    if (r->status == 404) return refused_missing(c, file, r);
    const char *meaning = r->status == 429   ? " (too many requests)"
                          : r->status == 503 ? " (the hub is not available)"
                                             : "";
    char wait[64] = "";
    if (r->retry_after > 0) snprintf(wait, sizeof wait, "; it asks to wait %.0f s", r->retry_after);
    return mc_error_set(c->err, MC_ERR_IO, "%s: %s: %.*s: HTTP %ld%s%s%s%s%s", c->repository, of,
                        shown(url), url, r->status, meaning, *r->message ? ": " : "", r->message,
                        times, wait);
}

/* ---- a request ------------------------------------------------------------------------------- */

typedef struct buffer {
    char *data;
    size_t size, capacity, limit;
    bool too_long;
} buffer;

static bool take_text(void *user, const char *data, size_t size)
{
    buffer *b = user;
    if (size > b->limit - b->size) {
        b->too_long = true;
        return false;
    }
    if (b->size + size > b->capacity) {
        size_t more = 2 * b->capacity > b->size + size ? 2 * b->capacity : b->size + size;
        char *larger = mc_realloc(b->data, more);
        if (!larger) return false;
        b->data = larger;
        b->capacity = more;
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
    return true;
}

static int watch_transfer(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return mc_hub_tick(user) != MC_OK;
}

/* Seconds for a whole request, with redirects, retries and pauses. libcurl's own limit covers only
 * silence, so a byte now and then would evade it. */
static double most_seconds(const mc_hub_client *c) { return 60 * c->settings.timeout; }

static mc_status too_slow(const mc_hub_client *c, const char *file, const char *url)
{
    return mc_error_set(c->err, MC_ERR_IO, "%s: %s: %.*s: no whole answer within %g s",
                        c->repository, file ? file : "the list of its files", shown(url), url,
                        most_seconds(c));
}

/* One request, repeated until it is answered or the clock reaches `until`. */
static mc_status request(mc_hub_client *c, const char *file, const char *url, bool head, buffer *b,
                         mc_hub_transfer *t, double until)
{
    mc_hub_tries tries = {0};
    double seconds;
    for (;;) {
        double left = until - mc_hub_now();
        if (left <= 0) return too_slow(c, file, url);
        b->size = 0;
        if (!mc_hub_transfer_prepare(c, t, url))
            return mc_error_set(c->err, MC_ERR_NOMEM, "%s: out of memory for a request",
                                c->repository);
        c->lib.curl_easy_setopt(t->easy, CURLOPT_NOBODY, (long)head);
        c->lib.curl_easy_setopt(t->easy, CURLOPT_TIMEOUT_MS, 20 + (long)(1000 * left));
        c->lib.curl_easy_setopt(t->easy, CURLOPT_NOPROGRESS, 0L);
        c->lib.curl_easy_setopt(t->easy, CURLOPT_XFERINFOFUNCTION, watch_transfer);
        c->lib.curl_easy_setopt(t->easy, CURLOPT_XFERINFODATA, c->watch);
        CURLcode result = c->lib.curl_easy_perform(t->easy);
        if (mc_error_is_set(c->err)) return c->err->status;
        if (result == CURLE_OK && t->reply.status >= 200 && t->reply.status < 400) return MC_OK;
        if (b->too_long)
            return mc_error_set(c->err, MC_ERR_FORMAT, "%s: %.*s: more than %zu bytes",
                                c->repository, shown(url), url, b->limit);
        if (result == CURLE_WRITE_ERROR)
            return mc_error_set(c->err, MC_ERR_NOMEM, "%s: out of memory for the hub's answer",
                                c->repository);
        if (mc_hub_now() >= until) return too_slow(c, file, url);
        if (!mc_hub_try_again(&tries, result, &t->reply, &seconds) ||
            seconds > until - mc_hub_now())
            return mc_hub_refused(c, file, url, result, t, tries.count);
        if (mc_hub_pause(c, seconds)) return c->err->status;
    }
}

/* Takes over the next answer, but keeps fields of the hub that only an earlier one had. */
static void merge(mc_hub_reply *all, const mc_hub_reply *next)
{
    mc_hub_reply before = *all;
    *all = *next;
    if (*before.linked_etag)
        memcpy(all->linked_etag, before.linked_etag, sizeof before.linked_etag);
    if (*before.commit) memcpy(all->commit, before.commit, sizeof before.commit);
    if (before.linked_size >= 0) all->linked_size = before.linked_size;
}

/* Follows the redirects of a request. */
static mc_status follow(mc_hub_client *c, const char *file, char *url, bool head, buffer *b,
                        mc_hub_reply *reply)
{
    enum { MOST_HOPS = 10 };
    mc_hub_transfer t = {.easy = c->easy, .take = take_text, .user = b};
    double until = mc_hub_now() + most_seconds(c);
    mc_status status = MC_OK;
    *reply = (mc_hub_reply){.linked_size = -1};
    for (int hop = 0; !status; hop++) {
        char *next = NULL;
        status = request(c, file, url, head, b, &t, until);
        if (status) break;
        merge(reply, &t.reply);
        if (reply->status < 300) break;
        c->lib.curl_easy_getinfo(c->easy, CURLINFO_REDIRECT_URL, &next);
        if (!next || hop == MOST_HOPS || strlen(next) >= MC_HUB_URL_MAX)
            status = mc_error_set(c->err, MC_ERR_IO, "%s: %s: %.*s: HTTP %ld leads nowhere",
                                  c->repository, file ? file : "the list of its files", shown(url),
                                  url, reply->status);
        else if (!(status = mc_hub_may_follow(c, file, url, next)))
            memcpy(url, next, strlen(next) + 1);
        /* the last ETag of the hub itself identifies the file, not that of a storage host */
        if (!status && !*reply->linked_etag && !mc_hub_is_endpoint(c, url))
            memcpy(reply->linked_etag, reply->etag, sizeof reply->etag);
        /* everything is known: no need to ask the storage host */
        if (head && *reply->linked_etag && reply->linked_size >= 0) break;
    }
    mc_hub_transfer_release(&t);
    return status;
}

mc_status mc_hub_ask(mc_hub_client *c, const char *file, char *url, bool head, size_t limit,
                     mc_hub_reply *reply, char **body, size_t *size)
{
    buffer b = {.limit = limit};
    mc_status status = follow(c, file, url, head, &b, reply);
    if (head || status) {
        mc_free(b.data);
        return status;
    }
    if (!b.data)
        return mc_error_set(c->err, MC_ERR_FORMAT, "%s: %s: an empty answer", c->repository, url);
    *body = b.data;
    *size = b.size;
    return MC_OK;
}
