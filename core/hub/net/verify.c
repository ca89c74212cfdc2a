/* Checks that the contents in a cache match their names. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/memory_internal.h"
#include "core/hub/net/blob_internal.h"

enum { STEP = 1 << 20 };

typedef struct check {
    mc_hub_watch *watch;
    mc_error *err; /* the context's */
    mc_hub_libraries lib;
    uint8_t *buffer; /* (STEP) */
    size_t wrong;
} check;

/* Whether a name is a checksum: SHA-256 or git's. */
static bool is_hash(const char *name)
{
    size_t length = strlen(name);
    return (length == 40 || length == 64) && strspn(name, "0123456789abcdef") == length;
}

static mc_status failed(check *c, const char *path, const char *doing)
{
    return mc_error_set(c->err, MC_ERR_IO, "%s: cannot %s: %s", path, doing, strerror(errno));
}

static mc_status add_all(check *c, int fd, const char *path, mc_hub_digest *digest)
{
    for (ssize_t n = 1; n > 0;) {
        n = read(fd, c->buffer, STEP);
        if (n < 0 && errno != EINTR) return failed(c, path, "read");
        if (n < 0)
            n = 1;
        else if (n && !mc_hub_digest_add(digest, c->buffer, (size_t)n))
            return mc_error_set(c->err, MC_ERR_NOMEM, "%s: out of memory for its checksum", path);
        if (mc_hub_tick(c->watch)) return c->err->status;
    }
    return MC_OK;
}

/* Computes the checksum of the same kind as `name`. */
static mc_status hash_file(check *c, int fd, const char *path, const char *name,
                           char hash[MC_HUB_HASH_MAX + 1])
{
    struct stat info;
    mc_hub_digest digest = {0};
    if (fstat(fd, &info) != 0) return failed(c, path, "read");
    bool good = mc_hub_digest_init(&digest, &c->lib, name, (uint64_t)info.st_size);
    mc_status status = good ? add_all(c, fd, path, &digest) : MC_OK;
    if (!status && (!good || !mc_hub_digest_end(&digest, hash)))
        status = mc_error_set(c->err, MC_ERR_NOMEM, "%s: out of memory for its checksum", path);
    mc_hub_digest_release(&digest);
    return status;
}

/* Removes the blob if it does not match its name; also removes a link, which cannot be a blob. */
static mc_status check_blob(check *c, const char *folder, const char *name)
{
    char path[MC_PATH_MAX], hash[MC_HUB_HASH_MAX + 1] = "";
    if (mc_path_join(c->err, path, folder, name)) return c->err->status;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno != ELOOP) return failed(c, path, "open it");
    mc_status status = fd >= 0 ? hash_file(c, fd, path, name, hash) : MC_OK;
    if (fd >= 0) close(fd);
    if (status || strcmp(hash, name) == 0) return status;
    c->wrong++;
    mc_log(c->watch->ctx, MC_LOG_WARNING, "%s: other contents than its name says%s%s: removed",
           path, *hash ? ", their checksum is " : "", hash);
    return unlink(path) == 0 ? MC_OK : failed(c, path, "remove it");
}

static mc_status check_folder(check *c, const char *folder)
{
    DIR *dir = opendir(folder);
    mc_status status = MC_OK;
    if (!dir) return errno == ENOENT ? MC_OK : failed(c, folder, "open it");
    for (struct dirent *entry; !status && (entry = readdir(dir));)
        if (is_hash(entry->d_name)) status = check_blob(c, folder, entry->d_name);
    closedir(dir);
    return status;
}

mc_status mc_hub_verify(mc_hub_watch *watch, const char *repository, size_t *wrong)
{
    char blobs[MC_PATH_MAX];
    check c = {.watch = watch, .err = &watch->ctx->error};
    *wrong = 0;
    if (mc_hub_libraries_load(c.err, &c.lib) || mc_path_join(c.err, blobs, repository, "blobs"))
        return c.err->status;
    mc_log(watch->ctx, MC_LOG_INFO, "%s: checking the contents", repository);
    c.buffer = mc_malloc(STEP);
    mc_status status =
        c.buffer ? check_folder(&c, blobs) : mc_fail_nomem(watch->ctx, "the check of a download");
    mc_free(c.buffer);
    *wrong = c.wrong;
    return status;
}
