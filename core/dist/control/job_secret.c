#include "core/dist/control/job_secret_internal.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_VARIABLE "MC_JOB_SECRET_FILE"
#define TEXT_VARIABLE "MC_JOB_SECRET"

static const char command[] = "(umask 077; head -c 32 /dev/urandom | base64 >~/job-secret); "
                              "export " FILE_VARIABLE "=~/job-secret";

static const char *value_of(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

void mc_job_secret_wipe(mc_job_secret *secret) { explicit_bzero(secret, sizeof *secret); }

bool mc_job_secret_random(mc_error *error, mc_job_secret *secret)
{
    secret->size = MC_SECRET_MIN;
    if (getrandom(secret->bytes, MC_SECRET_MIN, 0) == MC_SECRET_MIN) return true;
    mc_error_set(error, MC_ERR_IO, "the system gives no random numbers for the job's secret");
    return false;
}

void mc_job_secret_missing(mc_error *error)
{
    mc_error_set(error, MC_ERR_STATE,
                 "ranks on several hosts need a secret, by which they know each other. This makes "
                 "one, in a file that every host has to have: %s",
                 command);
}

/* ---- the variables --------------------------------------------------------------------------- */

/* The text without the spaces and line ends after it. */
static bool take_text(mc_error *error, const char *from, const char *text, size_t size,
                      mc_job_secret *secret)
{
    while (size && isspace((unsigned char)text[size - 1])) size--;
    if (size < MC_SECRET_MIN || size > MC_SECRET_MAX) {
        mc_error_set(error, MC_ERR_ARGUMENT,
                     "%s: a secret of %s %d bytes, expected %d to %d. This makes one: %s", from,
                     size < MC_SECRET_MIN ? "less than" : "more than",
                     size < MC_SECRET_MIN ? MC_SECRET_MIN : MC_SECRET_MAX, MC_SECRET_MIN,
                     MC_SECRET_MAX, command);
        return false;
    }
    memcpy(secret->bytes, text, size);
    secret->size = size;
    return true;
}

/* Writes why other users than this one (or, with `root`, than root) may have access to it; or
 * "". */
static void find_fault(const struct stat *info, bool root, char *why, size_t room)
{
    *why = '\0';
    if (info->st_uid != geteuid() && !(root && info->st_uid == 0))
        snprintf(why, room, "it belongs to user %u, expected user %u", (unsigned)info->st_uid,
                 (unsigned)geteuid());
    else if (info->st_mode & 077)
        snprintf(why, room, "others have rights in it: mode %04o, expected %04o",
                 (unsigned)info->st_mode & 07777, (unsigned)info->st_mode & 0700);
}

/* Reads up to `room` bytes; returns how many, or -1 with `why`. */
static ssize_t read_checked(int fd, bool root, void *data, size_t room, char *why, size_t why_room)
{
    struct stat info;
    ssize_t got = -1;
    if (fd < 0 || fstat(fd, &info) != 0) {
        snprintf(why, why_room, "%s", strerror(errno));
        return -1;
    }
    find_fault(&info, root, why, why_room);
    if (!S_ISREG(info.st_mode)) snprintf(why, why_room, "it is not a file");
    if (!*why && (got = read(fd, data, room)) < 0) snprintf(why, why_room, "%s", strerror(errno));
    return got;
}

static bool read_given_file(mc_error *error, const char *path, mc_job_secret *secret)
{
    char text[MC_SECRET_MAX + 16], why[160];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* links are the user's own choice */
    ssize_t got = read_checked(fd, true, text, sizeof text, why, sizeof why);
    if (got < 0)
        mc_error_set(error, MC_ERR_IO, FILE_VARIABLE "=\"%s\": %s", path, why);
    else
        take_text(error, FILE_VARIABLE, text, (size_t)got, secret);
    explicit_bzero(text, sizeof text);
    if (fd >= 0) close(fd);
    return !mc_error_is_set(error);
}

bool mc_job_secret_given(mc_error *error, mc_job_secret *secret)
{
    const char *path = value_of(FILE_VARIABLE), *text = value_of(TEXT_VARIABLE);
    secret->size = 0;
    if (path && text)
        mc_error_set(error, MC_ERR_ARGUMENT,
                     "environment variables " FILE_VARIABLE " and " TEXT_VARIABLE
                     " are both set, expected one of them");
    else if (path)
        return read_given_file(error, path, secret);
    else if (text)
        return take_text(error, TEXT_VARIABLE, text, strlen(text), secret);
    return !mc_error_is_set(error);
}

/* ---- the file of one host -------------------------------------------------------------------- */

/* Opens the folder, or returns -1 with `why`. */
static int open_private(const char *path, char *why, size_t room)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0)
        snprintf(why, room, "%s", strerror(errno));
    else
        find_fault(&info, false, why, room);
    if (fd < 0 || !*why) return fd;
    close(fd);
    return -1;
}

/* Sets the file's folder. False: it is not private, or its name is too long. */
static bool take_folder(mc_secret_file *file, const char *path, char *why, size_t room)
{
    snprintf(why, room, "its name is too long");
    if ((size_t)snprintf(file->folder, sizeof file->folder, "%s", path) >= sizeof file->folder)
        return false;
    int fd = open_private(path, why, room);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

bool mc_secret_file_init(mc_error *error, mc_secret_file *file, uint64_t job, int port)
{
    const char *runtime = value_of("XDG_RUNTIME_DIR"), *parent = value_of("TMPDIR");
    char path[MC_PATH_MAX], why[160];
    snprintf(file->name, sizeof file->name, "modelcenter-%016llx-%d", (unsigned long long)job,
             port);
    if (runtime && take_folder(file, runtime, why, sizeof why)) return true;
    snprintf(path, sizeof path, "%s/modelcenter-%u", parent ? parent : "/tmp", (unsigned)geteuid());
    int failed = mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : errno;
    if (take_folder(file, path, why, sizeof why)) return true;
    mc_error_set(error, MC_ERR_IO,
                 "the folder \"%s\" for the job's secret can't be used: %s (XDG_RUNTIME_DIR may "
                 "name another of mode 0700)",
                 path, failed ? strerror(failed) : why);
    return false;
}

bool mc_secret_file_write(mc_error *error, const mc_secret_file *file, const mc_job_secret *secret)
{
    char why[160] = "";
    int folder = open_private(file->folder, why, sizeof why), fd = -1;
    if (folder >= 0) {
        unlinkat(folder, file->name, 0); /* if this fails, creation fails too */
        fd = openat(folder, file->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 || fchmod(fd, 0600) != 0 || /* whatever the umask */
            write(fd, secret->bytes, secret->size) != (ssize_t)secret->size)
            snprintf(why, sizeof why, "%s", strerror(errno));
    }
    if (*why)
        mc_error_set(error, MC_ERR_IO, "the file \"%s/%s\" for the job's secret: %s", file->folder,
                     file->name, why);
    if (fd >= 0) close(fd);
    if (folder >= 0) close(folder);
    return !*why;
}

bool mc_secret_file_read(const mc_secret_file *file, mc_job_secret *secret, char *why, size_t room)
{
    char fault[160] = "";
    int folder = open_private(file->folder, fault, sizeof fault), fd = -1;
    ssize_t got = -1;
    if (folder >= 0) {
        fd = openat(folder, file->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        got = read_checked(fd, false, secret->bytes, MC_SECRET_MIN, fault, sizeof fault);
        if (got >= 0 && got != MC_SECRET_MIN) snprintf(fault, sizeof fault, "it is cut short");
    }
    if (fd >= 0) close(fd);
    if (folder >= 0) close(folder);
    secret->size = MC_SECRET_MIN;
    if (got == MC_SECRET_MIN) return true;
    snprintf(why, room, "its file \"%s/%s\" for the job's secret: %s", file->folder, file->name,
             fault);
    return false;
}

void mc_secret_file_remove(const mc_secret_file *file)
{
    char why[160];
    int folder = open_private(file->folder, why, sizeof why);
    if (folder < 0) return;
    unlinkat(folder, file->name, 0);
    close(folder);
}
