/* Fetches a blob over several connections, each at one part at a time:
 *
 *     IDLE --next part--> BUSY --its bytes are there--> IDLE
 *                          |--the transfer broke------> WAITING --after a pause--> BUSY
 *                          '--a redirect, or a link that has expired--------------> BUSY
 *
 * The checksum follows, over the bytes that have arrived without a gap. */
#include "core/hub/net/blob_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

enum {
    CONNECTIONS = 8,
    HASH_STEP = 1 << 20,
    LEAST_RATE = 1024, /* least bytes a second of all connections together, on average */
    RATE_WINDOW = 6    /* timeouts in the window of that average */
};

typedef enum slot_state { SLOT_IDLE = 0, SLOT_BUSY, SLOT_WAITING } slot_state;

struct fetch;

/* A connection. */
typedef struct slot {
    struct fetch *fetch;
    slot_state state;
    mc_hub_transfer transfer;
    mc_hub_tries tries;
    size_t part;
    uint64_t begun_at; /* bytes of the part before this transfer */
    double wake;       /* of SLOT_WAITING: when to continue */
    double heard;      /* of SLOT_BUSY: when the last bytes came */
    bool at_home;      /* the transfer uses the hub's own URL */
    int hops;          /* consecutive redirects and new links of this part */
} slot;

typedef struct fetch {
    mc_hub_client *client;
    const mc_hub_file *file;
    const char *home; /* the hub's URL of the file */
    char url[MC_HUB_URL_MAX];
    slot slots[CONNECTIONS];
    mc_hub_parts parts;
    size_t next_part;
    bool no_ranges; /* the host sends whole files only */
    mc_hub_digest digest;
    uint64_t hashed;
    uint8_t *buffer; /* (HASH_STEP) */
    int64_t before;  /* progress.done of the files before this one */
    /* for the least rate: seconds of transfer since `arrived` bytes; when `busy` was last
     * updated */
    double busy, noted;
    uint64_t arrived;
} fetch;

static mc_status fail_nomem(fetch *f)
{
    return mc_error_set(f->client->err, MC_ERR_NOMEM, "%s: %s: out of memory for the download",
                        f->client->repository, f->file->name);
}

/* ---- one transfer ---------------------------------------------------------------------------- */

/* Whether the answer has the requested bytes. */
static bool fits(const slot *s)
{
    const fetch *f = s->fetch;
    const mc_hub_reply *r = &s->transfer.reply;
    uint64_t start = mc_hub_parts_start(&f->parts, s->part) + s->begun_at;
    if (f->no_ranges) return r->status == 200;
    return r->status == 206 && r->first == (int64_t)start && r->whole == (int64_t)f->parts.size;
}

static bool take_bytes(void *user, const char *data, size_t size)
{
    slot *s = user;
    fetch *f = s->fetch;
    uint64_t room = f->no_ranges ? f->parts.size - mc_hub_parts_arrived(&f->parts)
                                 : mc_hub_parts_length(&f->parts, s->part) - f->parts.done[s->part];
    s->heard = mc_hub_now();
    if (!fits(s)) return s->transfer.reply.status >= 300; /* skips the text of a refusal */
    if (size > room) return false;
    while (size) { /* a whole file fills one part after the other */
        uint64_t left = mc_hub_parts_length(&f->parts, s->part) - f->parts.done[s->part];
        size_t n = left < size ? (size_t)left : size;
        if (mc_hub_parts_add(f->client->err, &f->parts, s->part, data, n)) return false;
        data += n;
        size -= n;
        if (n == left && s->part + 1 < f->parts.count && f->no_ranges) s->part++;
    }
    return true;
}

/* Starts or restarts the transfer of the rest of the slot's part. */
static mc_status begin(slot *s)
{
    fetch *f = s->fetch;
    char range[64];
    uint64_t start = mc_hub_parts_start(&f->parts, s->part);
    uint64_t end = start + mc_hub_parts_length(&f->parts, s->part);
    CURL *easy = s->transfer.easy;
    s->begun_at = f->parts.done[s->part];
    if (!mc_hub_transfer_prepare(f->client, &s->transfer, f->url)) return fail_nomem(f);
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)(start + s->begun_at),
             (unsigned long long)(end - 1));
    if (!f->no_ranges && f->client->lib.curl_easy_setopt(easy, CURLOPT_RANGE, range))
        return fail_nomem(f);
    f->client->lib.curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, 0L); /* see end_stalled */
    /* separate connections: streams of one would share its window */
    f->client->lib.curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    f->client->lib.curl_easy_setopt(easy, CURLOPT_PRIVATE, s);
    if (f->client->lib.curl_multi_add_handle(f->client->multi, easy) != CURLM_OK)
        return fail_nomem(f);
    s->state = SLOT_BUSY;
    s->at_home = strcmp(f->url, f->home) == 0;
    s->heard = mc_hub_now();
    return MC_OK;
}

static void stop(slot *s)
{
    mc_hub_client *c = s->fetch->client;
    if (s->state == SLOT_BUSY) c->lib.curl_multi_remove_handle(c->multi, s->transfer.easy);
    s->state = SLOT_IDLE;
}

/* ---- how it ends ----------------------------------------------------------------------------- */

/* The host does not support ranges: one connection fetches everything from the start. */
static mc_status take_whole(fetch *f)
{
    mc_log(f->client->watch->ctx, MC_LOG_WARNING,
           "%s: %s: the server sends whole files only: one connection, no resuming",
           f->client->repository, f->file->name);
    for (int i = 0; i < CONNECTIONS; i++) stop(&f->slots[i]);
    f->no_ranges = true;
    f->hashed = 0;
    mc_hub_digest_release(&f->digest);
    if (!mc_hub_digest_init(&f->digest, &f->client->lib, f->file->hash, f->file->size))
        return fail_nomem(f);
    if (mc_hub_parts_restart(f->client->err, &f->parts)) return f->client->err->status;
    f->slots[0].part = 0;
    f->next_part = f->parts.count;
    return begin(&f->slots[0]);
}

/* After a redirect, or when a link to the storage host has expired: all later transfers use the new
 * address. */
static bool change_url(slot *s)
{
    enum { MOST_HOPS = 10 };
    fetch *f = s->fetch;
    long status = s->transfer.reply.status;
    char *next = NULL;
    if (s->hops >= MOST_HOPS) return false;
    if (status >= 300 && status < 400)
        f->client->lib.curl_easy_getinfo(s->transfer.easy, CURLINFO_REDIRECT_URL, &next);
    else if (status >= 400 && status < 500 && status != 408 && status != 429 && !s->at_home)
        next = (char *)f->home;
    if (!next || strlen(next) >= sizeof f->url) return false;
    if (next != f->home && mc_hub_may_follow(f->client, f->file->name, f->url, next)) return false;
    memmove(f->url, next, strlen(next) + 1);
    s->hops++;
    return true;
}

static bool is_part_full(const fetch *f, const slot *s)
{
    return f->parts.done[s->part] == mc_hub_parts_length(&f->parts, s->part);
}

/* Handles a transfer that ended early: schedules another one, or sets the error. */
static mc_status retry(slot *s, CURLcode result)
{
    fetch *f = s->fetch;
    double seconds;
    bool more = !f->no_ranges && f->parts.done[s->part] > s->begun_at;
    if (more) { /* it made progress: continue at once */
        s->tries = (mc_hub_tries){.answered = true};
        s->hops = 0;
    }
    if (result == CURLE_OK && change_url(s)) return begin(s);
    if (result == CURLE_OK && s->transfer.reply.status < 300) result = CURLE_PARTIAL_FILE;
    if (!mc_hub_try_again(&s->tries, result, &s->transfer.reply, &seconds))
        return mc_hub_refused(f->client, f->file->name, f->url, result, &s->transfer,
                              s->tries.count);
    if (f->no_ranges) return take_whole(f);
    s->wake = mc_hub_now() + (more ? 0 : seconds);
    s->state = SLOT_WAITING;
    return MC_OK;
}

static mc_status wrong_range(slot *s)
{
    const fetch *f = s->fetch;
    const mc_hub_reply *r = &s->transfer.reply;
    return mc_error_set(f->client->err, MC_ERR_FORMAT,
                        "%s: %s: the server sent bytes %lld-%lld of %lld, expected %llu-%llu of "
                        "%llu",
                        f->client->repository, f->file->name, (long long)r->first,
                        (long long)r->last, (long long)r->whole,
                        (unsigned long long)(mc_hub_parts_start(&f->parts, s->part) + s->begun_at),
                        (unsigned long long)(mc_hub_parts_start(&f->parts, s->part) +
                                             mc_hub_parts_length(&f->parts, s->part) - 1),
                        (unsigned long long)f->parts.size);
}

static mc_status end_transfer(slot *s, CURLcode result)
{
    fetch *f = s->fetch;
    long status = s->transfer.reply.status;
    f->client->lib.curl_multi_remove_handle(f->client->multi, s->transfer.easy);
    s->state = SLOT_IDLE;
    if (mc_error_is_set(f->client->err)) return f->client->err->status;
    if (!f->no_ranges && status == 200) return take_whole(f);
    if (status == 206 && !fits(s)) return wrong_range(s);
    if (result == CURLE_WRITE_ERROR)
        return mc_error_set(f->client->err, MC_ERR_FORMAT,
                            "%s: %s: the server sent more than the %llu bytes of the file",
                            f->client->repository, f->file->name,
                            (unsigned long long)f->parts.size);
    return is_part_full(f, s) ? MC_OK : retry(s, result);
}

/* ---- all transfers --------------------------------------------------------------------------- */

/* Gives the next parts to idle slots, and resumes those whose pause is over. Returns how many are
 * not idle; -1 on error. */
static int start_slots(fetch *f)
{
    int active = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        slot *s = &f->slots[i];
        bool wakes = s->state == SLOT_WAITING && mc_hub_now() >= s->wake;
        while (s->state == SLOT_IDLE && f->next_part < f->parts.count) {
            s->part = f->next_part++;
            s->tries = (mc_hub_tries){.answered = s->tries.answered};
            s->hops = 0;
            if ((wakes = !is_part_full(f, s))) break;
        }
        if (wakes && begin(s)) return -1;
        active += s->state != SLOT_IDLE;
    }
    return active;
}

/* Continues the checksum by at most one step. */
static mc_status hash_step(fetch *f)
{
    uint64_t there = mc_hub_parts_prefix(&f->parts) - f->hashed;
    size_t n = there < HASH_STEP ? (size_t)there : HASH_STEP;
    if (!n) return MC_OK;
    if (!mc_hub_parts_read(f->client->err, &f->parts, f->hashed, f->buffer, n))
        return f->client->err->status;
    if (!mc_hub_digest_add(&f->digest, f->buffer, n)) return fail_nomem(f);
    f->hashed += n;
    return MC_OK;
}

/* Ends transfers without progress. libcurl's own limit is an average over seconds. */
static mc_status end_stalled(fetch *f)
{
    mc_status status = MC_OK;
    double limit = f->client->settings.timeout;
    for (int i = 0; i < CONNECTIONS && !status; i++) {
        slot *s = &f->slots[i];
        if (s->state != SLOT_BUSY || mc_hub_now() - s->heard < limit) continue;
        snprintf(s->transfer.failure, sizeof s->transfer.failure, "no byte for %g s", limit);
        status = end_transfer(s, CURLE_OPERATION_TIMEDOUT);
    }
    return status;
}

/* Ends a download that is too slow. Pauses requested by the host do not count. */
static mc_status check_rate(fetch *f)
{
    double at = mc_hub_now(), window = RATE_WINDOW * f->client->settings.timeout;
    uint64_t arrived = mc_hub_parts_arrived(&f->parts);
    bool busy = false;
    for (int i = 0; i < CONNECTIONS; i++) busy = busy || f->slots[i].state == SLOT_BUSY;
    if (busy) f->busy += at - f->noted;
    f->noted = at;
    if (f->busy < window) return MC_OK;
    uint64_t came = arrived > f->arrived ? arrived - f->arrived : 0;
    double seconds = f->busy;
    f->busy = 0;
    f->arrived = arrived;
    if ((double)came >= LEAST_RATE * seconds) return MC_OK;
    return mc_error_set(f->client->err, MC_ERR_IO,
                        "%s: %s: %llu bytes came in %.0f s, expected %d bytes a second or more",
                        f->client->repository, f->file->name, (unsigned long long)came, seconds,
                        LEAST_RATE);
}

/* How long to wait for data before anything else is due. */
static int idle_ms(const fetch *f)
{
    int least = 0;
    if (mc_hub_parts_prefix(&f->parts) > f->hashed) return 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        const slot *s = &f->slots[i];
        double left = s->state == SLOT_WAITING ? s->wake - mc_hub_now() : 0.05;
        if (s->state == SLOT_IDLE) continue;
        int ms = left <= 0 ? 1 : left > 0.05 ? 50 : 1 + (int)(1000 * left);
        if (!least || ms < least) least = ms;
    }
    return least;
}

/* Moves data until all parts are full. */
static mc_status transfer(fetch *f)
{
    mc_status status = MC_OK;
    f->noted = mc_hub_now();
    f->arrived = mc_hub_parts_arrived(&f->parts);
    for (;;) {
        int active = start_slots(f), running, left;
        if (active <= 0) return f->client->err->status;
        if (f->client->lib.curl_multi_perform(f->client->multi, &running) != CURLM_OK)
            return fail_nomem(f);
        for (CURLMsg *m;
             !status && (m = f->client->lib.curl_multi_info_read(f->client->multi, &left));) {
            slot *s = NULL;
            f->client->lib.curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&s);
            if (m->msg == CURLMSG_DONE) status = end_transfer(s, m->data.result);
        }
        if (!status) status = end_stalled(f);
        if (!status) status = check_rate(f);
        if (!status) status = hash_step(f);
        f->client->watch->progress.done = f->before + (int64_t)mc_hub_parts_arrived(&f->parts);
        if (!status) status = mc_hub_tick(f->client->watch);
        if (status) return status;
        f->client->lib.curl_multi_poll(f->client->multi, NULL, 0, idle_ms(f), NULL);
    }
}

/* Finishes the checksum. */
static mc_status hash_rest(fetch *f, char hash[MC_HUB_HASH_MAX + 1])
{
    mc_status status = MC_OK;
    while (!status && f->hashed < f->parts.size) {
        status = hash_step(f);
        if (!status) status = mc_hub_tick(f->client->watch);
    }
    if (!status && !mc_hub_digest_end(&f->digest, hash)) status = fail_nomem(f);
    return status;
}

static bool set_up(fetch *f)
{
    f->buffer = mc_malloc(HASH_STEP);
    for (int i = 0; i < CONNECTIONS; i++) {
        CURL *easy = f->client->lib.curl_easy_init();
        f->slots[i] = (slot){.fetch = f, .transfer = {.easy = easy, .take = take_bytes}};
        f->slots[i].transfer.user = &f->slots[i];
        if (!easy) return false;
    }
    return f->buffer &&
           mc_hub_digest_init(&f->digest, &f->client->lib, f->file->hash, f->file->size);
}

static void release(fetch *f)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        if (f->slots[i].fetch) stop(&f->slots[i]);
        mc_hub_transfer_release(&f->slots[i].transfer);
        f->client->lib.curl_easy_cleanup(f->slots[i].transfer.easy);
    }
    mc_hub_digest_release(&f->digest);
    mc_free(f->buffer);
    mc_hub_parts_release(&f->parts);
    mc_free(f);
}

/* One attempt. *wrong: everything arrived, but the checksum differs; the file was removed. */
static mc_status attempt(fetch *f, const char *path, bool *wrong)
{
    char aside[MC_PATH_MAX], hash[MC_HUB_HASH_MAX + 1] = "";
    mc_error *err = f->client->err;
    int written = snprintf(aside, sizeof aside, "%s.modelcenter.incomplete", path);
    if (written < 0 || written >= MC_PATH_MAX)
        return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", path);
    mc_status status = set_up(f) ? MC_OK : fail_nomem(f);
    if (!status) status = mc_hub_parts_open(err, &f->parts, aside, f->file->size);
    if (!status) status = transfer(f);
    if (!status) status = hash_rest(f, hash);
    if (status) return status;
    if (strcmp(hash, f->file->hash) == 0) return mc_hub_parts_finish(err, &f->parts, path);
    *wrong = true;
    unlink(aside);
    if (f->parts.resumed) return MC_OK;
    return mc_error_set(
        err, MC_ERR_FORMAT,
        "%s: %s: wrong checksum: what arrived has %s %s, expected %s; it was removed",
        f->client->repository, f->file->name, strlen(hash) == 40 ? "git's SHA-1" : "SHA-256", hash,
        f->file->hash);
}

mc_status mc_hub_blob_fetch(mc_hub_client *c, const mc_hub_file *file, const char *url,
                            const char *path)
{
    int64_t before = c->watch->progress.done;
    bool wrong = true;
    /* bytes of an earlier call may be wrong: then fetch everything again, once */
    while (wrong && !mc_error_is_set(c->err)) {
        wrong = false;
        fetch *f = mc_calloc(1, sizeof *f);
        if (!f)
            return mc_error_set(c->err, MC_ERR_NOMEM, "%s: %s: out of memory for the download",
                                c->repository, file->name);
        *f = (fetch){.client = c, .file = file, .home = url, .parts.fd = -1, .before = before};
        snprintf(f->url, sizeof f->url, "%s", file->content_url ? file->content_url : url);
        attempt(f, path, &wrong);
        release(f);
        if (wrong) c->watch->progress.done = before;
    }
    return c->err->status;
}
