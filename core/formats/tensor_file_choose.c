/* Which of a folder's files holds its weights. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "core/base/memory_internal.h"
#include "core/formats/tensor_file_internal.h"

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0; /* a dangling link counts: opening it reports the error */
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static const char index_suffix[] = ".json";
static const char single_prefix[] = "model.", single_suffix[] = ".safetensors";
static const char index_prefix[] = "model.safetensors.index.";

/* Whether `text` ends as a shard's name does: "-00001-of-00009". */
static bool is_shard_name(const char *text, size_t length)
{
    static const char pattern[] = "-00000-of-00000";
    if (length < sizeof pattern - 1) return false;
    text += length - (sizeof pattern - 1);
    for (size_t i = 0; i < sizeof pattern - 1; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (pattern[i] == '0' ? !digit : text[i] != pattern[i]) return false;
    }
    return true;
}

/* The variant in a file name as a new string: "fp16" of model.fp16.safetensors and of
 * model.safetensors.index.fp16.json. NULL for other names; NULL with *nomem set if memory is
 * out. */
static char *variant_of(const char *name, bool *nomem)
{
    size_t length = strlen(name), prefix, suffix;
    if (strncmp(name, index_prefix, sizeof index_prefix - 1) == 0) {
        prefix = sizeof index_prefix - 1;
        suffix = sizeof index_suffix - 1;
        if (!ends_with(name, index_suffix)) return NULL;
    } else {
        prefix = sizeof single_prefix - 1;
        suffix = sizeof single_suffix - 1;
        if (strncmp(name, single_prefix, prefix) != 0 || !ends_with(name, single_suffix))
            return NULL;
    }
    if (length <= prefix + suffix || is_shard_name(name, length - suffix)) return NULL;
    char *variant = mc_strndup(name + prefix, length - prefix - suffix);
    *nomem = !variant;
    return variant;
}

typedef struct variant_list {
    char **names;
    size_t count, capacity;
} variant_list;

static void variant_list_release(variant_list *list)
{
    for (size_t i = 0; i < list->count; i++) mc_free(list->names[i]);
    mc_free(list->names);
}

/* Adds a variant unless it is listed; takes ownership of the string. False if memory is out. */
static bool add_variant(variant_list *list, char *variant)
{
    size_t at = 0;
    while (at < list->count && strcmp(list->names[at], variant) < 0) at++;
    bool known = at < list->count && strcmp(list->names[at], variant) == 0;
    if (known || !mc_grow(&list->names, &list->capacity, list->count, sizeof *list->names)) {
        mc_free(variant);
        return known;
    }
    memmove(list->names + at + 1, list->names + at, (list->count - at) * sizeof *list->names);
    list->names[at] = variant;
    list->count++;
    return true;
}

/* Lists the variants in a folder, sorted. */
static mc_status list_variants(mc_error *err, const char *folder, variant_list *list)
{
    bool nomem = false;
    DIR *dir = opendir(folder);
    if (!dir)
        return mc_error_set(err, MC_ERR_IO, "%s: cannot list the folder: %s", folder,
                            strerror(errno));
    for (struct dirent *item; !nomem && (item = readdir(dir));) {
        char *variant = variant_of(item->d_name, &nomem);
        if (variant) nomem = !add_variant(list, variant);
    }
    closedir(dir);
    return nomem ? mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its file list", folder)
                 : MC_OK;
}

/* Sets `path` to the first of the names that exists in the folder. If none exists, `path` is the
 * first name, for the error message. */
static bool find_first(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                       const char *const names[], size_t count)
{
    char other[MC_PATH_MAX];
    if (mc_path_join(err, path, folder, names[0]) != MC_OK) return false;
    if (exists(path)) return true;
    for (size_t i = 1; i < count; i++) {
        if (mc_path_join(err, other, folder, names[i]) != MC_OK) return false;
        if (!exists(other)) continue;
        memcpy(path, other, strlen(other) + 1);
        return true;
    }
    return false;
}

/* The file of a variant: safetensors, else PyTorch. */
static bool find_variant(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                         const char *variant)
{
    enum { FORMS = 4 };
    static const char *const forms[FORMS][2] = {{single_prefix, single_suffix},
                                                {index_prefix, index_suffix},
                                                {"pytorch_model.", ".bin"},
                                                {"pytorch_model.bin.index.", index_suffix}};
    char names[FORMS][512];
    const char *list[FORMS];
    path[0] = '\0';
    if (!*variant || strlen(variant) > 255 || strchr(variant, '/')) {
        mc_error_set(err, MC_ERR_ARGUMENT, "%s: \"%.255s\" is no name of a variant", folder,
                     variant);
        return false;
    }
    for (int i = 0; i < FORMS; i++) {
        snprintf(names[i], sizeof names[i], "%s%s%s", forms[i][0], variant, forms[i][1]);
        list[i] = names[i];
    }
    return find_first(err, path, folder, list, FORMS);
}

/* PyTorch's files, ModelCenter's, and an adapter's. */
static bool find_torch(mc_error *err, char path[MC_PATH_MAX], const char *folder)
{
    static const char *const names[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                        "pytorch_model.pt", "adapter_model.safetensors",
                                        "adapter_model.bin"};
    return find_first(err, path, folder, names, sizeof names / sizeof *names);
}

/* Names the variants, as many as fit. */
static mc_status several_variants(mc_error *err, const char *folder, const variant_list *list)
{
    char names[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < list->count && used < sizeof names - 1; i++) {
        int n = snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", list->names[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    return mc_error_set(err, MC_ERR_ARGUMENT,
                        "%s: no model.safetensors, but %zu variants: %s; ask for one", folder,
                        list->count, names);
}

/* Chooses the only variant, or PyTorch's file. */
static mc_status choose_other(mc_error *err, char path[MC_PATH_MAX], const char *folder)
{
    variant_list list = {0};
    mc_status status = list_variants(err, folder, &list);
    if (!status && list.count == 1) {
        if (!find_variant(err, path, folder, list.names[0]))
            status = mc_error_set(err, MC_ERR_NOT_FOUND, "%s: its files changed meanwhile", folder);
    } else if (!status && !find_torch(err, path, folder)) {
        status = list.count ? several_variants(err, folder, &list)
                            : mc_error_set(err, MC_ERR_NOT_FOUND,
                                           "%s: no weights: expected model.safetensors, "
                                           "model.safetensors.index.json, "
                                           "model.<variant>.safetensors, pytorch_model.bin, "
                                           "pytorch_model.bin.index.json or pytorch_model.pt",
                                           folder);
    }
    variant_list_release(&list);
    return status;
}

mc_status mc_tensor_file_choose(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                                const char *variant)
{
    if (variant) {
        if (find_variant(err, path, folder, variant)) return MC_OK;
        return mc_error_set(err, MC_ERR_NOT_FOUND, "%s: not there (nor an index of variant \"%s\")",
                            path, variant);
    }
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    if (find_first(err, path, folder, names, sizeof names / sizeof *names)) return MC_OK;
    return mc_error_is_set(err) ? err->status : choose_other(err, path, folder);
}
