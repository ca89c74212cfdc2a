#include "tools/files/output.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "tools/ranks.h"
#include "tools/options/run_file.h"
#include "tools/files/new_folders.h"
#include "tools/files/text.h"

static bool is_first(const output *out) { return mc_rank(out->ctx) == 0; }

/* Ends a check: what rank 0 found is every rank's error. */
static bool agree(output *out)
{
    if (out->inputs.failed)
        mc_set_error(out->ctx, MC_ERR_NOMEM, "out of memory for a list of paths");
    if (mc_world_size(out->ctx) > 1) mc_synchronize(out->ctx);
    return !mc_failed(out->ctx);
}

static bool refuse_input(output *out, const char *option, const char *path, const input *hit,
                         const char *how)
{
    mc_set_error(out->ctx, MC_ERR_ARGUMENT,
                 "%s %s %s %s %s: choose another one; an input is never replaced, with --overwrite "
                 "or without",
                 option, path, how, hit->option, hit->path);
    return false;
}

static bool refuse_errno(output *out, const char *option, const char *path, int failed)
{
    mc_set_error(out->ctx, MC_ERR_IO, "%s %s: cannot write there: %s", option, path,
                 strerror(failed));
    return false;
}

void output_outlive_readers(void) { signal(SIGPIPE, SIG_IGN); }

void output_init(output *out, mc_context *ctx, bool overwrite)
{
    struct stat info;
    *out = (output){.ctx = ctx, .overwrite = overwrite};
    inputs_add(&out->inputs, "--run-file", args_run_file());
    /* "< rows.csv": whether the command will read it or not */
    if (fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode))
        inputs_add(&out->inputs, "standard input", "/dev/stdin");
}

void output_release(output *out)
{
    folder_lock_release(&out->lock);
    new_folders_remove(out->folder, out->made);
    inputs_release(&out->inputs);
    out->made = 0;
}

int output_leave(output *out, mc_context *ctx, int code)
{
    if (mc_failed(ctx) && mc_world_size(ctx) > 1) { /* from where ranks_leave does not return */
        mc_checkpoint_wait(ctx);
        output_release(out);
    }
    code = ranks_leave(ctx, code);
    output_release(out);
    return code;
}

/* ---- folders that are not there yet ---------------------------------------------------------- */

/* The part of a path that is there, as a real path: "/" at least. Returns the rest of `path`. */
static const char *split_existing(const char *path, char there[MC_ASIDE_PATH])
{
    char part[MC_ASIDE_PATH];
    for (size_t length = strlen(path); length; length--) {
        if (path[length] && path[length] != '/' && path[length - 1] != '/') continue;
        if (length >= sizeof part) continue;
        memcpy(part, path, length);
        part[length] = '\0';
        if (realpath(part, there)) return path + length;
    }
    if (!realpath(*path == '/' ? "/" : ".", there)) memcpy(there, "/", sizeof "/");
    return path;
}

/* Adds the parts of `rest` to a real path. None of them is there, so that none is a link. */
static int add_parts(char path[MC_ASIDE_PATH], const char *rest)
{
    size_t used = strcmp(path, "/") == 0 ? 0 : strlen(path);
    for (; *rest; rest += strcspn(rest, "/")) {
        rest += strspn(rest, "/");
        size_t length = strcspn(rest, "/");
        bool up = length == 2 && strncmp(rest, "..", 2) == 0;
        if (!length || (length == 1 && *rest == '.')) continue;
        if (!up && used + length + 1 >= MC_ASIDE_PATH) return ENAMETOOLONG;
        while (up && used && path[--used] != '/') continue;
        if (up) continue;
        path[used++] = '/';
        memcpy(path + used, rest, length);
        used += length;
    }
    path[used] = '\0';
    return used ? 0 : EISDIR;
}

/* mc_aside_resolve of a path whose folders may be missing. */
static int resolve_new(const char *path, char target[MC_ASIDE_PATH], bool *direct)
{
    struct stat info;
    int failed = mc_aside_resolve(path, target, direct);
    if (failed != ENOENT || !*path || lstat(path, &info) == 0) return failed;
    if (path[strlen(path) - 1] == '/') return EISDIR;
    const char *rest = split_existing(path, target);
    if (stat(target, &info) != 0) return errno;
    return S_ISDIR(info.st_mode) ? add_parts(target, rest) : ENOTDIR;
}

/* Whether files can be made in the folder `there`, found by making one, but for a look. 0, or an
 * errno. */
static int try_folder(const output *out, const char *there)
{
    char name[MC_ASIDE_PATH + 16];
    struct stat info;
    if (stat(there, &info) != 0) return errno;
    if (!S_ISDIR(info.st_mode)) return ENOTDIR;
    if (out->look) return access(there, W_OK | X_OK) == 0 ? 0 : errno;
    snprintf(name, sizeof name, "%s/.mc-XXXXXX", strcmp(there, "/") == 0 ? "" : there);
    int fd = mkstemp(name);
    if (fd < 0) return errno;
    close(fd);
    unlink(name);
    return 0;
}

/* The same of the nearest folder of a path that is there. */
static int try_nearest(const output *out, const char *path)
{
    char there[MC_ASIDE_PATH];
    split_existing(path, there);
    return try_folder(out, there);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Whether the file can be made, a real path: in its folder, or in the nearest that is there. */
static bool can_make(output *out, const char *option, const char *path, const char *target)
{
    char folder[MC_ASIDE_PATH];
    const char *slash = strrchr(target, '/');
    int length = slash && slash > target ? (int)(slash - target) : 1;
    snprintf(folder, sizeof folder, "%.*s", length, target);
    int failed = try_nearest(out, folder);
    return !failed || refuse_errno(out, option, path, failed);
}

/* What is no model's must not lie where a model's file is looked for, now or later. */
static bool check_name(output *out, const char *option, const char *path, const char *target)
{
    const char *name = strrchr(target, '/') + 1;
    if (!mc_model_folder_has_name(name) && strcmp(name, RUN_FILE_NAME) != 0) return true;
    mc_set_error(out->ctx, MC_ERR_ARGUMENT, "%s %s: %s is a file of a model: choose another name",
                 option, path, name);
    return false;
}

/* How a file is checked: a log may exist that a run goes on with, and its folders may be missing.
 */
typedef enum file_kind { FILE_ANSWERS, FILE_LOG } file_kind;

static bool check_file(output *out, const char *option, const char *path, file_kind kind)
{
    char target[MC_ASIDE_PATH];
    bool direct = false, own = kind == FILE_LOG && out->resume;
    if (strcmp(path, "-") == 0) return true;
    int failed = kind == FILE_LOG ? resolve_new(path, target, &direct)
                                  : mc_aside_resolve(path, target, &direct);
    if (failed) return refuse_errno(out, option, path, failed);
    const input *hit = inputs_at_file(&out->inputs, path);
    struct stat info;
    /* a terminal may be read and written */
    if (hit && !(direct && stat(path, &info) == 0 && S_ISCHR(info.st_mode)))
        return refuse_input(out, option, path, hit, "is, or belongs to,");
    if (direct) return true;
    if (!check_name(out, option, path, target)) return false;
    if (!own && !out->overwrite && lstat(target, &info) == 0) {
        mc_set_error(out->ctx, MC_ERR_ARGUMENT,
                     "%s %s exists: choose another name, or replace it with --overwrite", option,
                     path);
        return false;
    }
    return can_make(out, option, path, target);
}

bool output_check_file(output *out, const char *option, const char *path)
{
    if (path && !output_is_stdout(path)) output_outlive_readers();
    if (path && is_first(out) && !mc_failed(out->ctx)) check_file(out, option, path, FILE_ANSWERS);
    return agree(out);
}

/* ---- folders --------------------------------------------------------------------------------- */

static bool holds_checkpoint(const char *folder) { return mc_checkpoint_exists(folder); }

/* Whether there is nothing that a model would replace. */
static bool check_holds(output *out, const char *option, const char *path)
{
    char name[256];
    const char *what = NULL;
    mc_model_folder_find(path, name);
    if (holds_checkpoint(path))
        what =
            "holds a checkpoint of a run: go on with --resume, choose another folder, or replace "
            "it with --overwrite";
    else if (*name)
        what = "choose another folder, or replace it with --overwrite";
    if (!what) return true;
    if (holds_checkpoint(path))
        mc_set_error(out->ctx, MC_ERR_ARGUMENT, "%s %s %s", option, path, what);
    else
        mc_set_error(out->ctx, MC_ERR_ARGUMENT, "%s %s holds a model, or part of one (%s): %s",
                     option, path, name, what);
    return false;
}

static bool take_lock(output *out, run_log *log, const char *option, const char *path)
{
    switch (out->look ? folder_lock_look(&out->lock, path) : folder_lock_take(&out->lock, path)) {
    case FOLDER_LOCK_TAKEN: return true;
    case FOLDER_LOCK_NONE:
        if (log) run_log_line(log, "warning: %s", out->lock.message);
        return true;
    case FOLDER_LOCK_BUSY:
        mc_set_error(out->ctx, MC_ERR_STATE, "%s %s", option, out->lock.message);
        return false;
    default: mc_set_error(out->ctx, MC_ERR_IO, "%s %s", option, out->lock.message); return false;
    }
}

static bool open_folder(output *out, run_log *log, const char *option, const char *path, bool own)
{
    const input *hit = own ? NULL : inputs_in_folder(&out->inputs, path);
    if (hit) return refuse_input(out, option, path, hit, "is or contains");
    if (!own && !out->overwrite && !check_holds(out, option, path)) return false;
    size_t made = 0;
    int failed = out->look ? try_nearest(out, path) : new_folders_make(path, &made);
    if (failed) return refuse_errno(out, option, path, failed);
    if (made) { /* a run's own folder was made before */
        snprintf(out->folder, sizeof out->folder, "%s", path);
        out->made = made;
    }
    return take_lock(out, log, option, path);
}

bool output_open_folder(output *out, run_log *log, const char *option, const char *path, bool own)
{
    if (path && !out->look) output_outlive_readers();
    if (path && is_first(out) && !mc_failed(out->ctx)) open_folder(out, log, option, path, own);
    return agree(out);
}

/* ---- logs ------------------------------------------------------------------------------------ */

static bool is_events(const char *name)
{
    return strncmp(name, "events.out.tfevents.", strlen("events.out.tfevents.")) == 0;
}

/* Removes the events in a folder, or finds whether there are any. */
static bool has_events(const char *folder, bool remove)
{
    DIR *dir = opendir(folder);
    bool any = false;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!is_events(entry->d_name)) continue;
        any = true;
        if (remove) unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir) closedir(dir);
    return any;
}

/* TensorBoard would show the runs of one folder as one, and reads the folders in it, too. */
static bool check_board(output *out, const char *folder)
{
    char there[MC_ASIDE_PATH];
    split_existing(folder, there);
    const input *hit = inputs_around_folder(&out->inputs, there);
    if (hit) return refuse_input(out, "--tensorboard", folder, hit, "is, or lies in,");
    int failed = try_folder(out, there);
    if (failed) return refuse_errno(out, "--tensorboard", folder, failed);
    if (out->resume || !has_events(folder, false)) return true;
    if (!out->overwrite)
        mc_set_error(out->ctx, MC_ERR_ARGUMENT,
                     "--tensorboard %s holds the events of another run: choose another folder, or "
                     "replace them with --overwrite",
                     folder);
    else if (!out->look)
        has_events(folder, true); /* what stays is seen in the page */
    return out->overwrite;
}

static bool check_apart(output *out, const char *jsonl, const char *csv)
{
    char a[MC_ASIDE_PATH], b[MC_ASIDE_PATH];
    bool direct;
    if (!jsonl || !csv || resolve_new(jsonl, a, &direct) || resolve_new(csv, b, &direct) ||
        strcmp(a, b) != 0)
        return true;
    mc_set_error(out->ctx, MC_ERR_ARGUMENT, "--log-jsonl %s and --log-csv %s are the same file",
                 jsonl, csv);
    return false;
}

bool output_check_logs(output *out, const char *jsonl, const char *csv, const char *board)
{
    /* a log that is resumed has to be one: a line that is not ours is found when it is opened */
    if (is_first(out) && !mc_failed(out->ctx) &&
        (!jsonl || check_file(out, "--log-jsonl", jsonl, FILE_LOG)) &&
        (!csv || check_file(out, "--log-csv", csv, FILE_LOG)) && check_apart(out, jsonl, csv) &&
        board)
        check_board(out, board);
    return agree(out);
}

/* ---- a run's own folder ---------------------------------------------------------------------- */

/* Of a path or an identifier what a folder's name may have. */
static void name_run(char path[OUTPUT_PATH], const char *name, int number)
{
    char plain[64], when[32];
    size_t length = strlen(name), used = 0;
    while (length && name[length - 1] == '/') length--;
    size_t start = length;
    while (start && name[start - 1] != '/') start--;
    for (size_t i = start; i < length && used + 1 < sizeof plain; i++) {
        char c = name[i];
        bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    strchr("-_.", c);
        plain[used] = good && !(c == '.' && !used) ? c : '_';
        used++;
    }
    plain[used] = '\0';
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", &local);
    text t = text_into(path, OUTPUT_PATH);
    text_add(&t, "runs/%s-%s", used ? plain : "model", when);
    if (number) text_add(&t, "-%d", number);
}

static void make_run_folder(output *out, const char *name, char path[OUTPUT_PATH])
{
    enum { TRIES = 1000 };
    snprintf(out->folder, sizeof out->folder, "runs");
    int failed = out->look ? try_nearest(out, "runs") : new_folders_make("runs", &out->made);
    if (out->look) name_run(path, name, 0);
    if (out->look && !failed) return;
    for (int i = 0; i < TRIES && !failed; i++) {
        name_run(path, name, i);
        if (mkdir(path, 0777) == 0) {
            snprintf(out->folder, sizeof out->folder, "%s", path);
            if (!out->made) out->made = strlen(path);
            return;
        }
        if (errno != EEXIST) failed = errno;
    }
    mc_set_error(out->ctx, MC_ERR_IO,
                 "runs: cannot make a folder for the model there: %s; say where it goes with "
                 "--output, or --no-save",
                 strerror(failed ? failed : EEXIST));
}

bool output_make_run_folder(output *out, const char *name, char path[OUTPUT_PATH])
{
    memset(path, 0, OUTPUT_PATH);
    if (is_first(out) && !mc_failed(out->ctx)) make_run_folder(out, name ? name : "model", path);
    mc_share_bytes(out->ctx, path, OUTPUT_PATH);
    return agree(out);
}

/* ---- room ------------------------------------------------------------------------------------ */

bool output_check_room(output *out, const char *folder, double bytes)
{
    struct statvfs disk;
    char there[MC_ASIDE_PATH];
    split_existing(folder, there);
    if (!is_first(out) || mc_failed(out->ctx) || statvfs(there, &disk) != 0) return agree(out);
    double free_bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    if (free_bytes < bytes)
        mc_set_error(out->ctx, MC_ERR_IO,
                     "%s: saving needs %.0f bytes, and its file system has %.0f free: the run is "
                     "not begun",
                     folder, bytes, free_bytes);
    return agree(out);
}

/* ---- forms ----------------------------------------------------------------------------------- */

static const struct {
    output_form form;
    const char *ending;
} endings[] = {{OUTPUT_JSONL, ".jsonl"},
               {OUTPUT_JSONL, ".ndjson"},
               {OUTPUT_CSV, ".csv"},
               {OUTPUT_NPY, ".npy"}};
enum { ENDINGS = sizeof endings / sizeof *endings };

/* Without an ending: what is written as it comes, and a name that has none. */
static bool has_no_ending(const char *path)
{
    char target[MC_ASIDE_PATH];
    bool direct = false;
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash + 1 : path, '.');
    if (strcmp(path, "-") == 0 || !dot) return true;
    return mc_aside_resolve(path, target, &direct) == 0 && direct;
}

bool output_choose_form(const args_spec *spec, const char *path, unsigned forms, output_form *form,
                        int *code)
{
    char known[64];
    text t = text_into(known, sizeof known);
    for (int i = 0; i < ENDINGS; i++) {
        size_t length = strlen(path), n = strlen(endings[i].ending);
        if (!(forms & endings[i].form)) continue;
        *form = endings[i].form;
        if (length > n && strcmp(path + length - n, endings[i].ending) == 0) return true;
        if (strcmp(endings[i].ending, ".ndjson") != 0)
            text_add(&t, "%s%s", t.used ? " or " : "", endings[i].ending);
    }
    *form = OUTPUT_JSONL; /* which every command writes */
    if (has_no_ending(path)) return true;
    *code = args_error(spec, "--output %s: expected a name that ends in %s", path, known);
    return false;
}

bool output_is_stdout(const char *path)
{
    char target[MC_ASIDE_PATH];
    bool direct = false;
    struct stat at, own;
    if (!path) return false;
    if (strcmp(path, "-") == 0) return true;
    return mc_aside_resolve(path, target, &direct) == 0 && direct && stat(path, &at) == 0 &&
           fstat(STDOUT_FILENO, &own) == 0 && at.st_dev == own.st_dev && at.st_ino == own.st_ino &&
           at.st_rdev == own.st_rdev;
}
