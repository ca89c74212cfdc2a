/* Downloads a revision of a repository into the cache. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/aside_internal.h"
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"
#include "core/hub/folders_internal.h"
#include "core/hub/net/blob_internal.h"

enum { COMMIT_MAX = 64 };

/* Limit of the hub's answer: the list of a repository's files. */
enum { LIST_LIMIT = 64 << 20 };

typedef struct snapshot {
    mc_hub_client client;
    mc_hub_list list;
    const mc_hub_answer *answer;
    char commit[COMMIT_MAX + 1];
    char folder[MC_PATH_MAX]; /* of the repository in the cache */
} snapshot;

/* ---- paths and addresses --------------------------------------------------------------------- */

/* <repository>/<kind>/<name> */
static bool join(const snapshot *s, char out[MC_PATH_MAX], const char *kind, const char *name)
{
    int written = snprintf(out, MC_PATH_MAX, "%s/%s/%s", s->folder, kind, name);
    if (written >= 0 && written < MC_PATH_MAX) return true;
    mc_error_set(s->client.err, MC_ERR_ARGUMENT, "path too long: %.100s...", s->folder);
    return false;
}

/* The path of a file's link. */
static bool join_link(const snapshot *s, char out[MC_PATH_MAX], const mc_hub_file *file)
{
    char folder[MC_PATH_MAX];
    return join(s, folder, "snapshots", s->commit) &&
           mc_path_join(s->client.err, out, folder, file->name) == MC_OK;
}

static bool make_parent(const snapshot *s, const char *path)
{
    return mc_hub_make_parent(s->client.err, s->answer->root, path) == MC_OK;
}

/* Syncs a folder's entries to disk. */
static void sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd); /* some file systems cannot: then a crash of the machine may cost a download */
    close(fd);
}

/* <endpoint>/api/models/ID/revision/REV, or, for a file, <endpoint>/ID/resolve/COMMIT/FILE */
static bool write_url(const snapshot *s, char url[MC_HUB_URL_MAX], const mc_hub_file *file)
{
    int written =
        snprintf(url, MC_HUB_URL_MAX, "%s/%s%s/%s", s->client.settings.endpoint,
                 file ? "" : "api/models/", s->client.repository, file ? "resolve/" : "revision/");
    bool good = written > 0 && written < MC_HUB_URL_MAX &&
                mc_hub_url_add(url, file ? s->commit : s->answer->id.revision, false);
    if (good && file && strlen(url) + 1 < MC_HUB_URL_MAX) {
        memcpy(url + strlen(url), "/", 2);
        good = mc_hub_url_add(url, file->name, true);
    }
    if (!good)
        mc_error_set(s->client.err, MC_ERR_ARGUMENT, "%s: address too long", s->client.repository);
    return good;
}

/* ---- the list of files ----------------------------------------------------------------------- */

/* Git's commit ids, of SHA-1 (40 digits) or SHA-256. */
static bool is_commit(const char *text)
{
    size_t length = strlen(text);
    return length >= 4 && length <= COMMIT_MAX && strspn(text, "0123456789abcdef") == length;
}

static bool read_list(snapshot *s, const cJSON *json, const char *name)
{
    mc_error *err = s->client.err;
    const char *sha = "";
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "siblings"), *file;
    if (!mc_json_get_string(err, json, name, "sha", &sha)) return false;
    if (!is_commit(sha) || !cJSON_IsArray(files)) {
        mc_error_set(err, MC_ERR_FORMAT,
                     "%s: expected an object with a commit in \"sha\" and a list in \"siblings\"",
                     name);
        return false;
    }
    memcpy(s->commit, sha, strlen(sha) + 1);
    cJSON_ArrayForEach(file, files)
    {
        const char *path = "";
        if (!mc_json_get_string(err, file, name, "rfilename", &path) ||
            mc_hub_list_add(err, &s->list, path) || mc_hub_tick(s->client.watch))
            return false;
    }
    return true;
}

static bool ask_list(snapshot *s)
{
    char url[MC_HUB_URL_MAX], name[MC_HUB_URL_MAX + 300], *text = NULL;
    size_t size = 0;
    mc_hub_reply reply;
    if (!write_url(s, url, NULL) ||
        mc_hub_ask(&s->client, NULL, url, false, LIST_LIMIT, &reply, &text, &size))
        return false;
    snprintf(name, sizeof name, "%s: %s", s->client.repository, url);
    cJSON *json = mc_json_parse(s->client.err, text, size, name, 1);
    bool good = json && read_list(s, json, name);
    cJSON_Delete(json);
    mc_free(text);
    return good;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Takes the hash out of an ETag: "hash", W/"hash", with or without quotes. */
static bool read_hash(char out[MC_HUB_HASH_MAX + 1], const char *etag)
{
    if (strncmp(etag, "W/", 2) == 0) etag += 2;
    if (*etag == '"') etag++;
    size_t length = strcspn(etag, "\"");
    if ((length != 40 && length != 64) || strspn(etag, "0123456789abcdef") < length) return false;
    memcpy(out, etag, length);
    out[length] = '\0';
    return true;
}

static bool take_reply(snapshot *s, mc_hub_file *file, const mc_hub_reply *r, const char *url)
{
    const char *etag = *r->linked_etag ? r->linked_etag : r->etag;
    int64_t size = r->linked_size >= 0 ? r->linked_size : r->length;
    mc_hub_client *c = &s->client;
    if (*r->commit && strcmp(r->commit, s->commit) != 0)
        mc_error_set(c->err, MC_ERR_FORMAT, "%s: %s: the hub has it of commit %s, expected %s",
                     c->repository, file->name, r->commit, s->commit);
    else if (!read_hash(file->hash, etag))
        mc_error_set(c->err, MC_ERR_FORMAT,
                     "%s: %s: the hub's ETag is \"%s\", expected a SHA-256 or git's hash: there is "
                     "nothing to check the contents by",
                     c->repository, file->name, etag);
    else if (size < 0)
        mc_error_set(c->err, MC_ERR_FORMAT, "%s: %s: the hub does not say how long it is",
                     c->repository, file->name);
    if (mc_error_is_set(c->err)) return false;
    file->known = true;
    file->size = (uint64_t)size;
    file->content_url = mc_strdup(url);
    if (!file->content_url)
        mc_error_set(c->err, MC_ERR_NOMEM, "%s: out of memory for an address", c->repository);
    return file->content_url;
}

/* Requests a file's hash and size, unless its link exists. */
static bool ask_file(snapshot *s, mc_hub_file *file)
{
    char path[MC_PATH_MAX], url[MC_HUB_URL_MAX];
    mc_hub_reply reply;
    if (file->known) return true;
    if (!join_link(s, path, file)) return false;
    if (mc_path_is_file(path) && !mc_hub_leads_out(s->folder, path)) return true;
    return write_url(s, url, file) &&
           mc_hub_ask(&s->client, file->name, url, true, 0, &reply, NULL, NULL) == MC_OK &&
           take_reply(s, file, &reply, url);
}

/* Whether the cache has the contents already, from this or another revision. */
static bool has_blob(const snapshot *s, const mc_hub_file *file)
{
    char path[MC_PATH_MAX];
    struct stat info;
    return join(s, path, "blobs", file->hash) && lstat(path, &info) == 0 && S_ISREG(info.st_mode) &&
           (uint64_t)info.st_size == file->size;
}

static bool fetch_file(snapshot *s, mc_hub_file *file)
{
    char path[MC_PATH_MAX], url[MC_HUB_URL_MAX];
    mc_download *progress = &s->client.watch->progress;
    if (!file->known || has_blob(s, file)) return true;
    if (!join(s, path, "blobs", file->hash) || !make_parent(s, path) || !write_url(s, url, file))
        return false;
    progress->file = file->name;
    int64_t before = progress->done;
    if (mc_hub_blob_fetch(&s->client, file, url, path)) return false;
    progress->done = before + (int64_t)file->size;
    return true;
}

/* Fetches the contents of all needed files that are missing. */
static bool fetch_wanted(snapshot *s)
{
    mc_download *progress = &s->client.watch->progress;
    int64_t total = progress->done;
    for (size_t i = 0; i < s->list.count; i++) {
        mc_hub_file *file = &s->list.files[i];
        if (!file->wanted) continue;
        bool was_known = file->known;
        if (!ask_file(s, file)) return false;
        if (file->known && !was_known && !has_blob(s, file)) total += (int64_t)file->size;
        progress->total = total;
    }
    for (size_t i = 0; i < s->list.count; i++)
        if (s->list.files[i].wanted && !fetch_file(s, &s->list.files[i])) return false;
    return true;
}

/* ---- links and the ref ----------------------------------------------------------------------- */

/* "../../blobs/<hash>" from the folder of the link, which may be deeper. */
static bool link_file(snapshot *s, const mc_hub_file *file)
{
    char path[MC_PATH_MAX], target[MC_PATH_MAX] = "../../";
    size_t used = strlen(target);
    if (!file->wanted || !file->known) return true;
    for (const char *c = file->name; *c && used + 128 < sizeof target; c++)
        if (*c == '/') used += (size_t)snprintf(target + used, sizeof target - used, "../");
    snprintf(target + used, sizeof target - used, "blobs/%s", file->hash);
    if (!join_link(s, path, file) || !make_parent(s, path)) return false;
    int failed = mc_aside_link(target, path);
    if (failed)
        mc_error_set(s->client.err, MC_ERR_IO, "%s: cannot make the link: %s", path,
                     strerror(failed));
    return !failed;
}

/* Fetches the shards that the index names. */
static bool fetch_shards(snapshot *s)
{
    char path[MC_PATH_MAX];
    if (!s->list.index) return true;
    bool joined = s->list.index->known ? join(s, path, "blobs", s->list.index->hash)
                                       : join_link(s, path, s->list.index);
    return joined && mc_hub_choose_shards(s->client.err, &s->list, path) == MC_OK &&
           fetch_wanted(s);
}

/* Records which files the repository lacks. */
static bool mark_absent(snapshot *s)
{
    char folder[MC_PATH_MAX], path[MC_PATH_MAX];
    const char *name;
    if (!join(s, folder, ".no_exist", s->commit) ||
        mc_hub_make_folders(s->client.err, s->answer->root, folder))
        return false;
    for (size_t next = 0; (name = mc_hub_next_absent(&s->list, &next));) {
        if (mc_path_join(s->client.err, path, folder, name)) return false;
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) {
            mc_error_set(s->client.err, MC_ERR_IO, "%s: cannot make it: %s", path, strerror(errno));
            return false;
        }
        close(fd);
    }
    return true;
}

/* mc_file_writer would follow an existing link of that name. */
static bool write_ref(snapshot *s, const char *path)
{
    mc_aside ref;
    ssize_t length = (ssize_t)strlen(s->commit);
    errno = mc_aside_open_here(&ref, path);
    if (!errno && write(ref.fd, s->commit, (size_t)length) == length)
        errno = mc_aside_sync(&ref);
    else if (!errno)
        errno = ENOSPC;
    if (!errno) errno = mc_aside_rename(&ref, true);
    if (errno)
        mc_error_set(s->client.err, MC_ERR_IO, "%s: cannot write it: %s", path, strerror(errno));
    mc_aside_close(&ref);
    return !mc_error_is_set(s->client.err);
}

/* Creates all links in quick succession, then the ref. A commit has no ref. */
static bool make_visible(snapshot *s)
{
    char path[MC_PATH_MAX];
    const char *revision = s->answer->id.revision;
    if (!join(s, path, "blobs", "")) return false;
    sync_folder(path);
    for (size_t i = 0; i < s->list.count; i++)
        if (!link_file(s, &s->list.files[i])) return false;
    if (!mark_absent(s) || !join(s, path, "snapshots", s->commit)) return false;
    sync_folder(path);
    if (strcmp(revision, s->commit) == 0) return true;
    return join(s, path, "refs", revision) && make_parent(s, path) && write_ref(s, path);
}

/* Removes links that lead out of the repository: a snapshot with one is not used. */
static void remove_strays(const snapshot *s)
{
    char folder[MC_PATH_MAX], stray[MC_PATH_MAX];
    if (!join(s, folder, "snapshots", s->commit)) return;
    while (mc_hub_find_stray(s->folder, folder, stray))
        if (unlink(stray) != 0) break;
}

static bool download(snapshot *s, const mc_hub_needs *needs)
{
    if (!ask_list(s) || mc_hub_choose(s->client.err, needs, &s->list)) return false;
    remove_strays(s);
    mc_log(s->client.watch->ctx, MC_LOG_INFO, "downloading %s from %s to %s", s->client.repository,
           s->client.settings.endpoint, s->folder);
    return fetch_wanted(s) && fetch_shards(s) && make_visible(s);
}

mc_status mc_hub_fetch(mc_hub_watch *watch, const mc_hub_answer *answer, const mc_hub_needs *needs,
                       char folder[MC_PATH_MAX])
{
    mc_error *err = &watch->ctx->error;
    snapshot *s = mc_calloc(1, sizeof *s);
    if (!s) return mc_fail_nomem(watch->ctx, "a download");
    s->answer = answer;
    s->list.repository = watch->progress.repository;
    bool good = mc_hub_client_init(&s->client, watch, watch->progress.repository) == MC_OK &&
                mc_hub_repository(s->folder, answer->root, answer->id.org, answer->id.name) &&
                download(s, needs) && join(s, folder, "snapshots", s->commit);
    mc_hub_list_release(&s->list);
    mc_hub_client_release(&s->client);
    mc_free(s);
    return good || mc_error_is_set(err)
               ? err->status
               : mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", answer->root);
}
