#include "core/checkpoint/hub_internal.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

/* The state of one identifier's look-up. */
typedef struct search {
    mc_error *err;
    const mc_hub_where *where;
    mc_hub_answer *answer;
} search;

/* Organisations that took over models which once had none. A prefix that ends in '-' matches the
 * start of a name, any other the whole name or its start up to a '-'. */
static const struct {
    const char *prefix, *org;
} canonical_orgs[] = {
    {"bert-", "google-bert"},      {"gpt2", "openai-community"}, {"openai-gpt", "openai-community"},
    {"t5-", "google-t5"},          {"roberta-", "FacebookAI"},   {"xlm-roberta-", "FacebookAI"},
    {"distilbert-", "distilbert"}, {"distilgpt2", "distilbert"}, {"albert-", "albert"},
    {"camembert-", "almanach"},
};

static const char *canonical_org(const char *name)
{
    for (size_t i = 0; i < sizeof canonical_orgs / sizeof *canonical_orgs; i++) {
        const char *prefix = canonical_orgs[i].prefix;
        size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) != 0) continue;
        char next = name[length];
        if (prefix[length - 1] == '-' ? next != '\0' : next == '\0' || next == '-')
            return canonical_orgs[i].org;
    }
    return NULL;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Copies one part of an identifier, `length` characters, if the hub allows them: words joined by
 * '.' and '-' (in a revision '/' too), so that no path leaves its folder. */
static bool take_part(char *out, size_t limit, const char *part, size_t length, bool revision)
{
    if (length == 0 || length > limit || !is_word(part[0]) || !is_word(part[length - 1]))
        return false;
    for (size_t i = 0; i < length; i++) {
        char c = part[i];
        if (!is_word(c) && c != '.' && c != '-' && !(revision && c == '/')) return false;
        if (i && (c == '.' || c == '/') && (part[i - 1] == '.' || part[i - 1] == '/')) return false;
        /* "--" separates organisation and name in the cache's folder names */
        if (i && !revision && c == '-' && part[i - 1] == '-') return false;
    }
    memcpy(out, part, length);
    out[length] = '\0';
    return true;
}

/* Whether `identifier` has the form [org/]name[@revision]; splits it into *id. */
static bool parse_identifier(mc_hub_id *id, const char *identifier)
{
    *id = (mc_hub_id){.revision = "main"};
    const char *at = strchr(identifier, '@');
    size_t length = at ? (size_t)(at - identifier) : strlen(identifier);
    if (at && !take_part(id->revision, MC_HUB_REVISION_MAX, at + 1, strlen(at + 1), true))
        return false;
    const char *slash = memchr(identifier, '/', length);
    const char *name = slash ? slash + 1 : identifier;
    if (slash &&
        !take_part(id->org, MC_HUB_NAME_MAX, identifier, (size_t)(slash - identifier), false))
        return false;
    return take_part(id->name, MC_HUB_NAME_MAX, name, length - (size_t)(name - identifier), false);
}

bool mc_hub_is_identifier(const char *text)
{
    mc_hub_id id;
    return parse_identifier(&id, text);
}

/* The user's home folder, or NULL. */
static const char *home_folder(char buffer[MC_PATH_MAX])
{
    const char *home = getenv("HOME");
    if (home && *home) return home;
    struct passwd entry, *found = NULL;
    char scratch[4096];
    if (getpwuid_r(getuid(), &entry, scratch, sizeof scratch, &found) != 0 || !found) return NULL;
    if (!entry.pw_dir || strlen(entry.pw_dir) >= MC_PATH_MAX) return NULL;
    return memcpy(buffer, entry.pw_dir, strlen(entry.pw_dir) + 1);
}

/* Writes `base` with a leading "~" replaced, then '/' and `rest` unless that is empty. */
static mc_status expand_root(mc_error *err, char root[MC_PATH_MAX], const char *base,
                             const char *rest)
{
    char buffer[MC_PATH_MAX];
    const char *home = "";
    if (base[0] == '~' && (base[1] == '/' || base[1] == '\0')) {
        home = home_folder(buffer);
        if (!home)
            return mc_error_set(err, MC_ERR_NOT_FOUND,
                                "no home folder (HOME is not set), so no Hugging Face cache: set "
                                "HF_HOME or HF_HUB_CACHE, or give a folder");
        base++;
    }
    int written = snprintf(root, MC_PATH_MAX, "%s%s%s%s", home, base, *rest ? "/" : "", rest);
    if (written < 0 || written >= MC_PATH_MAX)
        return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", base);
    return MC_OK;
}

mc_status mc_hub_expand(mc_error *err, char out[MC_PATH_MAX], const char *path)
{
    return expand_root(err, out, path, "");
}

mc_status mc_hub_home(mc_error *err, char path[MC_PATH_MAX], const char *name)
{
    const char *home = getenv("HF_HOME"), *caches = getenv("XDG_CACHE_HOME");
    char below[256];
    if (home && *home) return expand_root(err, path, home, name);
    snprintf(below, sizeof below, "huggingface/%.200s", name);
    return expand_root(err, path, caches && *caches ? caches : "~/.cache", below);
}

mc_status mc_hub_cache_root(mc_error *err, char root[MC_PATH_MAX])
{
    static const char *const variables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value && *value) return expand_root(err, root, value, "");
    }
    return mc_hub_home(err, root, "hub");
}

bool mc_hub_repository(char path[MC_PATH_MAX], const char *root, const char *org, const char *name)
{
    int written =
        snprintf(path, MC_PATH_MAX, "%s/models--%s%s%s", root, org, *org ? "--" : "", name);
    return written >= 0 && written < MC_PATH_MAX;
}

/* Reads the commit id in refs/<revision>. False if the file is missing or invalid, which `reason`
 * then says. Only lack of memory is an error. */
static bool read_commit(mc_error *err, const char *path, char commit[MC_HUB_REVISION_MAX + 1],
                        char *reason, size_t reason_size)
{
    mc_error failure = {0};
    size_t size = 0;
    char *text = mc_path_is_file(path) ? mc_file_read(&failure, path, 4096, &size) : NULL;
    if (mc_error_is_set(&failure)) snprintf(reason, reason_size, "its ref cannot be read");
    if (failure.status == MC_ERR_NOMEM) mc_error_move(err, &failure);
    mc_error_clear(&failure);
    if (!text) return false;
    while (size && strchr(" \t\r\n", text[size - 1])) size--;
    bool good = take_part(commit, MC_HUB_REVISION_MAX, text, size, false);
    if (!good) snprintf(reason, reason_size, "its ref holds no commit id");
    mc_free(text);
    return good;
}

bool mc_hub_leads_out(const char *repository, const char *path)
{
    char inside[PATH_MAX], real[PATH_MAX];
    if (!realpath(path, real)) return false; /* a dangling link */
    size_t length = realpath(repository, inside) ? strlen(inside) : 0;
    return !length || strncmp(real, inside, length) != 0 || (real[length] && real[length] != '/');
}

static bool find_stray(const char *repository, const char *folder, int depth,
                       char stray[MC_PATH_MAX])
{
    DIR *dir = opendir(folder);
    bool found = false;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        char path[MC_PATH_MAX];
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int written = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (written < 0 || written >= MC_PATH_MAX || lstat(path, &info) != 0) continue;
        found = S_ISLNK(info.st_mode) && mc_hub_leads_out(repository, path);
        if (found) memcpy(stray, path, (size_t)written + 1);
        if (S_ISDIR(info.st_mode) && depth) found = find_stray(repository, path, depth - 1, stray);
    }
    if (dir) closedir(dir);
    return found;
}

bool mc_hub_find_stray(const char *repository, const char *folder, char stray[MC_PATH_MAX])
{
    enum { MOST_DEPTH = 8 };
    return find_stray(repository, folder, MOST_DEPTH, stray);
}

/* Looks for the snapshot of a revision in one repository folder of the cache. */
static bool find_snapshot(mc_error *err, const char *repository, const char *revision,
                          char folder[MC_PATH_MAX], char *reason, size_t reason_size)
{
    char path[MC_PATH_MAX], stray[MC_PATH_MAX], commit[MC_HUB_REVISION_MAX + 1];
    if (!mc_path_is_folder(repository)) {
        snprintf(reason, reason_size, "not there");
        return false;
    }
    snprintf(reason, reason_size, "has no refs/%s and no snapshots/%s", revision, revision);
    int written = snprintf(path, sizeof path, "%s/refs/%s", repository, revision);
    if (written < 0 || written >= MC_PATH_MAX) return false;
    const char *wanted = revision;
    if (read_commit(err, path, commit, reason, reason_size)) {
        wanted = commit;
        snprintf(reason, reason_size, "its ref names a commit that has no snapshot");
    } else if (mc_error_is_set(err)) {
        return false;
    }
    written = snprintf(path, sizeof path, "%s/snapshots/%s", repository, wanted);
    if (written < 0 || written >= MC_PATH_MAX || !mc_path_is_folder(path)) return false;
    if (mc_hub_leads_out(repository, path) || mc_hub_find_stray(repository, path, stray)) {
        snprintf(reason, reason_size, "its snapshot has a link that leads out of the repository");
        return false;
    }
    memcpy(folder, path, (size_t)written + 1);
    return true;
}

/* Adds a place to the list of searched places. */
static void note_place(mc_hub_answer *answer, const char *path, const char *reason)
{
    size_t used = strlen(answer->looked_at);
    snprintf(answer->looked_at + used, sizeof answer->looked_at - used, "%s%s (%s)",
             used ? " and at " : "", path, reason);
}

/* Tries one organisation and name. True if a complete snapshot is there; keeps the first incomplete
 * one. */
static bool try_place(search *s, const char *org)
{
    mc_hub_answer *answer = s->answer;
    char path[MC_PATH_MAX], folder[MC_PATH_MAX], reason[MC_HUB_REVISION_MAX * 2 + 64];
    if (!mc_hub_repository(path, answer->root, org, answer->id.name)) {
        note_place(answer, path, "path too long");
        return false;
    }
    if (!find_snapshot(s->err, path, answer->id.revision, folder, reason, sizeof reason)) {
        note_place(answer, path, reason);
        return false;
    }
    bool whole = !s->where->is_whole || s->where->is_whole(s->where->user, folder);
    if (whole || !*answer->folder) memcpy(answer->folder, folder, strlen(folder) + 1);
    if (!whole) note_place(answer, path, "does not have all files");
    return answer->whole = whole;
}

mc_status mc_hub_not_found(mc_error *err, mc_status status, const char *identifier,
                           const mc_hub_answer *answer, const char *why)
{
    return mc_error_set(
        err, status,
        "\"%.300s\": no such folder, and not in the Hugging Face cache: looked at %s. %s",
        identifier, answer->looked_at, why);
}

/* Searches the cache for an identifier, under the given name and then under the other name of the
 * same model. */
static mc_status resolve_in_cache(search *s)
{
    const mc_hub_id *id = &s->answer->id;
    mc_status status = s->where->cache_dir
                           ? mc_hub_expand(s->err, s->answer->root, s->where->cache_dir)
                           : mc_hub_cache_root(s->err, s->answer->root);
    if (status || try_place(s, id->org)) return status;
    const char *canonical = canonical_org(id->name), *other = NULL;
    if (canonical && !*id->org) other = canonical;
    if (canonical && strcmp(id->org, canonical) == 0) other = "";
    if (other && !mc_error_is_set(s->err)) try_place(s, other);
    return s->err->status;
}

/* Takes the revision from where->revision. */
static mc_status take_revision(mc_error *err, mc_hub_id *id, const char *identifier,
                               const char *revision)
{
    char taken[MC_HUB_REVISION_MAX + 1];
    if (!revision) return MC_OK;
    if (!take_part(taken, MC_HUB_REVISION_MAX, revision, strlen(revision), true))
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "\"%.300s\": revision \"%.300s\": expected a branch, a tag or a commit",
                            identifier, revision);
    if (strchr(identifier, '@') && strcmp(id->revision, taken) != 0)
        return mc_error_set(
            err, MC_ERR_ARGUMENT,
            "\"%.300s\": revision \"%s\" is asked for as well, expected one of them", identifier,
            taken);
    memcpy(id->revision, taken, sizeof taken);
    return MC_OK;
}

/* The result for an identifier that is an existing path. */
static mc_status take_path(mc_error *err, const char *identifier, bool is_folder,
                           mc_hub_answer *answer)
{
    if (!is_folder || strlen(identifier) >= MC_PATH_MAX)
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "%.300s: is a file, expected the folder that holds the model",
                            identifier);
    memcpy(answer->folder, identifier, strlen(identifier) + 1);
    answer->is_path = answer->whole = true;
    return MC_OK;
}

mc_status mc_hub_resolve(mc_error *err, const char *identifier, const mc_hub_where *where,
                         mc_hub_answer *answer)
{
    static const mc_hub_where nothing = {0};
    struct stat info;
    search s = {.err = err, .where = where ? where : &nothing, .answer = answer};
    *answer = (mc_hub_answer){0};
    if (mc_error_is_set(err)) return err->status;
    if (!identifier || !*identifier)
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "no model given: expected a folder or an "
                            "identifier such as bert-base-uncased");
    if (stat(identifier, &info) == 0)
        return take_path(err, identifier, S_ISDIR(info.st_mode), answer);
    int reason = errno;
    if (!parse_identifier(&answer->id, identifier))
        return mc_error_set(err, MC_ERR_NOT_FOUND,
                            "%.300s: cannot open this folder: %s; nor is it an identifier of the "
                            "form name, org/name or org/name@revision",
                            identifier, strerror(reason));
    mc_status status = take_revision(err, &answer->id, identifier, s.where->revision);
    return status ? status : resolve_in_cache(&s);
}
