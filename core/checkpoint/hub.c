#include "core/checkpoint/hub_internal.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

enum {
    NAME_MAX_LENGTH = 128,     /* of an organisation or a name */
    REVISION_MAX_LENGTH = 200, /* of a branch, a tag or a commit id */
    PLACES_MAX = 2
};

/* An identifier in its parts; `org` is "" for a bare name. */
typedef struct hub_id {
    char org[NAME_MAX_LENGTH + 1];
    char name[NAME_MAX_LENGTH + 1];
    char revision[REVISION_MAX_LENGTH + 1];
} hub_id;

/* The places looked at, and why each didn't do: they make the message when none does. */
typedef struct hub_places {
    mc_error *err;
    int count;
    char path[PLACES_MAX][MC_PATH_MAX];
    char reason[PLACES_MAX][REVISION_MAX_LENGTH + 64];
} hub_places;

/* Organisations that took over models which once had none. A prefix that ends in '-' matches the
 * start of a name, any other the whole name or the start of it up to a '-'. */
static const struct {
    const char *prefix, *org;
} canonical_orgs[] = {
    {"bert-", "google-bert"},      {"gpt2", "openai-community"}, {"openai-gpt", "openai-community"},
    {"t5-", "google-t5"},          {"roberta-", "FacebookAI"},   {"xlm-roberta-", "FacebookAI"},
    {"distilbert-", "distilbert"}, {"distilgpt2", "distilbert"}, {"albert-", "albert"},
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

/* Copies the `length` characters of one part of an identifier, if they are ones that the hub
 * allows: words joined by '.' and '-' (in a revision '/' too), so nothing in it can climb out of a
 * folder. */
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

/* Whether `identifier` has the form [org/]name[@revision]; its parts go to *id. */
static bool parse_identifier(hub_id *id, const char *identifier)
{
    *id = (hub_id){.revision = "main"};
    const char *at = strchr(identifier, '@');
    size_t length = at ? (size_t)(at - identifier) : strlen(identifier);
    if (at && !take_part(id->revision, REVISION_MAX_LENGTH, at + 1, strlen(at + 1), true))
        return false;
    const char *slash = memchr(identifier, '/', length);
    const char *name = slash ? slash + 1 : identifier;
    if (slash &&
        !take_part(id->org, NAME_MAX_LENGTH, identifier, (size_t)(slash - identifier), false))
        return false;
    return take_part(id->name, NAME_MAX_LENGTH, name, length - (size_t)(name - identifier), false);
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

mc_status mc_hub_cache_root(mc_error *err, char root[MC_PATH_MAX])
{
    static const struct {
        const char *variable, *below;
    } roots[] = {{"HF_HUB_CACHE", ""},
                 {"HUGGINGFACE_HUB_CACHE", ""},
                 {"HF_HOME", "hub"},
                 {"XDG_CACHE_HOME", "huggingface/hub"}};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        const char *value = getenv(roots[i].variable);
        if (value && *value) return expand_root(err, root, value, roots[i].below);
    }
    return expand_root(err, root, "~/.cache/huggingface/hub", "");
}

/* Reads the commit id in refs/<revision>. False when the file isn't there, or holds none or cannot
 * be read, which `reason` then says. Only running out of memory is an error. */
static bool read_commit(mc_error *err, const char *path, char commit[REVISION_MAX_LENGTH + 1],
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
    bool good = take_part(commit, REVISION_MAX_LENGTH, text, size, false);
    if (!good) snprintf(reason, reason_size, "its ref holds no commit id");
    mc_free(text);
    return good;
}

/* Looks for the snapshot of a revision in one repository folder of the cache. */
static bool find_snapshot(mc_error *err, const char *repository, const char *revision,
                          char folder[MC_PATH_MAX], char *reason, size_t reason_size)
{
    char path[MC_PATH_MAX], commit[REVISION_MAX_LENGTH + 1];
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
    memcpy(folder, path, (size_t)written + 1);
    return true;
}

/* Tries one organisation and name; notes the place if it has no such revision. */
static bool try_place(hub_places *places, const char *root, const char *org, const hub_id *id,
                      char folder[MC_PATH_MAX])
{
    int i = places->count++;
    int written = snprintf(places->path[i], MC_PATH_MAX, "%s/models--%s%s%s", root, org,
                           *org ? "--" : "", id->name);
    if (written < 0 || written >= MC_PATH_MAX) {
        snprintf(places->reason[i], sizeof places->reason[i], "path too long");
        return false;
    }
    return find_snapshot(places->err, places->path[i], id->revision, folder, places->reason[i],
                         sizeof places->reason[i]);
}

static mc_status not_found(mc_error *err, const char *identifier, const hub_places *places)
{
    bool two = places->count > 1;
    return mc_error_set(
        err, MC_ERR_NOT_FOUND,
        "\"%.300s\": no such folder, and not in the Hugging Face cache: looked at %s "
        "(%s)%s%s%s%s%s. "
        "Downloading is not built in: give the folder that holds the model, or set HF_HOME or "
        "HF_HUB_CACHE to a cache that has it",
        identifier, places->path[0], places->reason[0], two ? " and at " : "",
        two ? places->path[1] : "", two ? " (" : "", two ? places->reason[1] : "", two ? ")" : "");
}

/* Looks an identifier up in the cache, under the name as given and then under the other one that
 * the same model goes by. */
static mc_status resolve_in_cache(mc_error *err, const char *identifier, const hub_id *id,
                                  char folder[MC_PATH_MAX])
{
    char root[MC_PATH_MAX];
    hub_places places = {.err = err};
    mc_status status = mc_hub_cache_root(err, root);
    if (status) return status;
    if (try_place(&places, root, id->org, id, folder)) return MC_OK;
    const char *canonical = canonical_org(id->name), *other = NULL;
    if (canonical && !*id->org) other = canonical;
    if (canonical && strcmp(id->org, canonical) == 0) other = "";
    if (other && !mc_error_is_set(err) && try_place(&places, root, other, id, folder)) return MC_OK;
    return mc_error_is_set(err) ? err->status : not_found(err, identifier, &places);
}

mc_status mc_hub_resolve(mc_error *err, const char *identifier, char folder[MC_PATH_MAX])
{
    struct stat info;
    hub_id id;
    folder[0] = '\0';
    if (mc_error_is_set(err)) return err->status;
    if (!identifier || !*identifier)
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "no model given: expected a folder or an "
                            "identifier such as bert-base-uncased");
    bool there = stat(identifier, &info) == 0;
    int reason = errno;
    if (there && S_ISDIR(info.st_mode) && strlen(identifier) < MC_PATH_MAX) {
        memcpy(folder, identifier, strlen(identifier) + 1);
        return MC_OK;
    }
    if (there)
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "%.300s: is a file, expected the folder that holds the model",
                            identifier);
    if (parse_identifier(&id, identifier)) return resolve_in_cache(err, identifier, &id, folder);
    return mc_error_set(err, MC_ERR_NOT_FOUND,
                        "%.300s: cannot open this folder: %s; nor is it an identifier of the form "
                        "name, org/name or org/name@revision",
                        identifier, strerror(reason));
}
