#include "core/hub/needs_internal.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"

enum { INDEX_LIMIT = 64 << 20 };

static const char config_file[] = "config.json", adapter_file[] = "adapter_config.json";
static const char *const adapter_weights[] = {"adapter_model.safetensors", "adapter_model.bin"};
static const char *const tokenizer_files[] = {"tokenizer.json",
                                              "tokenizer_config.json",
                                              "special_tokens_map.json",
                                              "added_tokens.json",
                                              "vocab.txt",
                                              "vocab.json",
                                              "merges.txt",
                                              "spiece.model",
                                              "sentencepiece.bpe.model",
                                              "tokenizer.model",
                                              "vocab.model",
                                              "cog-pretrain.model",
                                              "chat_template.jinja"};
/* The files, one or two, that suffice for a tokenizer. */
static const char *const tokenizers[][2] = {{"tokenizer.json"},
                                            {"vocab.txt"},
                                            {"vocab.json", "merges.txt"},
                                            {"spiece.model"},
                                            {"sentencepiece.bpe.model"},
                                            {"tokenizer.model"},
                                            {"vocab.model"},
                                            {"cog-pretrain.model"}};

/* The files that sentence-transformers adds to a model. The first lists the others. */
static const char modules_file[] = "modules.json";
static const char *const sentence_files[] = {modules_file, "sentence_bert_config.json",
                                             "config_sentence_transformers.json", "[0-9]_*/*.json"};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- the names of weights -------------------------------------------------------------------- */

/* Files that may hold the weights, in order of preference; %s is ".<variant>". */
static const struct {
    const char *name;
    bool is_index;
} weight_files[] = {
    {"model%s.safetensors", false}, {"model.safetensors.index%s.json", true},
    {"pytorch_model%s.bin", false}, {"pytorch_model.bin.index%s.json", true},
    {"pytorch_model%s.pt", false},
};

enum { WEIGHT_NAME_MAX = 256 };

static void name_weights(char out[WEIGHT_NAME_MAX], size_t row, const char *variant)
{
    char part[128] = "";
    if (variant) snprintf(part, sizeof part, ".%s", variant);
    const char *name = weight_files[row].name, *mark = strstr(name, "%s");
    snprintf(out, WEIGHT_NAME_MAX, "%.*s%s%s", (int)(mark - name), name, part, mark + 2);
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Whether a name stays inside the folder that it is joined to. */
static bool is_safe(const char *name)
{
    if (!*name || strlen(name) >= MC_PATH_MAX / 2) return false;
    for (const char *part = name; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL) {
        size_t length = strcspn(part, "/");
        if (!length || (length == 1 && *part == '.') || strncmp(part, "..", length) == 0)
            return false;
    }
    for (; *name; name++)
        if ((unsigned char)*name < ' ' || *name == '\\' || *name == 127) return false;
    return true;
}

mc_status mc_hub_list_add(mc_error *err, mc_hub_list *list, const char *name)
{
    if (!is_safe(name))
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: the hub's list of files has \"%.200s\": expected a path below the "
                            "repository's folder",
                            list->repository, name);
    if (mc_name_index_find(&list->by_name, name) != SIZE_MAX)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: the hub's list of files has \"%.200s\" twice",
                            list->repository, name);
    char *copy = mc_strdup(name);
    if (!copy || !mc_grow(&list->files, &list->capacity, list->count, sizeof *list->files) ||
        !mc_name_index_add(&list->by_name, copy, list->count)) {
        mc_free(copy);
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the list of its files",
                            list->repository);
    }
    list->files[list->count++] = (mc_hub_file){.name = copy};
    return MC_OK;
}

void mc_hub_list_release(mc_hub_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        mc_free(list->files[i].name);
        mc_free(list->files[i].content_url);
    }
    mc_free(list->files);
    mc_name_index_release(&list->by_name);
    *list = (mc_hub_list){0};
}

static mc_hub_file *find_file(const mc_hub_list *list, const char *name)
{
    size_t found = mc_name_index_find(&list->by_name, name);
    return found != SIZE_MAX ? &list->files[found] : NULL;
}

/* Marks a file if it exists. */
static bool want(const mc_hub_list *list, const char *name)
{
    mc_hub_file *file = find_file(list, name);
    if (file) file->wanted = true;
    return file;
}

/* ---- choosing from the list ------------------------------------------------------------------ */

/* Marks the weights of a variant. */
static bool want_weights(mc_hub_list *list, const char *variant)
{
    char name[WEIGHT_NAME_MAX];
    for (size_t i = 0; i < COUNT_OF(weight_files); i++) {
        name_weights(name, i, variant);
        if (!want(list, name)) continue;
        if (weight_files[i].is_index) list->index = find_file(list, name);
        return true;
    }
    return false;
}

/* Marks the only variant of weights in one file, as mc_safetensors_open would choose it. */
static bool want_only_variant(mc_hub_list *list)
{
    mc_hub_file *only = NULL;
    for (size_t i = 0; i < list->count; i++) {
        bool fits = fnmatch("model.*.safetensors", list->files[i].name, FNM_PATHNAME) == 0;
        if (fits && only) return false;
        if (fits) only = &list->files[i];
    }
    if (only) only->wanted = true;
    return only;
}

static bool want_tokenizer(mc_hub_list *list)
{
    bool any = false;
    for (size_t i = 0; i < COUNT_OF(tokenizer_files); i++)
        any = want(list, tokenizer_files[i]) || any;
    return any;
}

/* Marks the files of an adapter, whose base is in another repository. */
static mc_status choose_adapter(mc_error *err, mc_hub_list *list)
{
    want(list, config_file);
    want_tokenizer(list);
    for (size_t i = 0; i < COUNT_OF(adapter_weights); i++)
        if (want(list, adapter_weights[i])) return MC_OK;
    return mc_error_set(err, MC_ERR_NOT_FOUND, "%s: the repository has %s, but neither %s nor %s",
                        list->repository, adapter_file, adapter_weights[0], adapter_weights[1]);
}

static mc_status choose_model(mc_error *err, const mc_hub_needs *needs, mc_hub_list *list)
{
    char first[WEIGHT_NAME_MAX];
    if (want(list, adapter_file)) return choose_adapter(err, list);
    if (!want(list, config_file))
        return mc_error_set(err, MC_ERR_NOT_FOUND, "%s: the repository has no config.json",
                            list->repository);
    want(list, "generation_config.json");
    want(list, "preprocessor_config.json");
    want_tokenizer(list);
    if (want_weights(list, needs->variant)) return MC_OK;
    if (!needs->variant && want_only_variant(list)) return MC_OK;
    name_weights(first, 0, needs->variant);
    return mc_error_set(err, MC_ERR_NOT_FOUND,
                        "%s: the repository has no weights that can be read: expected %s, its "
                        "index, or a pytorch_model.bin, its index or a pytorch_model.pt",
                        list->repository, first);
}

/* Marks the files of sentence-transformers, if any. */
static void want_sentence(mc_hub_list *list)
{
    for (size_t i = 0; find_file(list, modules_file) && i < list->count; i++)
        for (size_t k = 0; k < COUNT_OF(sentence_files); k++)
            if (fnmatch(sentence_files[k], list->files[i].name, FNM_PATHNAME) == 0)
                list->files[i].wanted = true;
}

static mc_status choose_tokenizer(mc_error *err, mc_hub_list *list)
{
    if (want_tokenizer(list)) return MC_OK;
    return mc_error_set(err, MC_ERR_NOT_FOUND,
                        "%s: the repository has no tokenizer: expected tokenizer.json, vocab.txt, "
                        "vocab.json with merges.txt, or a SentencePiece model",
                        list->repository);
}

static bool matches(const char *pattern, const char *name)
{
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '/') return strncmp(pattern, name, length) == 0;
    return fnmatch(pattern, name, 0) == 0;
}

static mc_status choose_matching(mc_error *err, const char *const *patterns, mc_hub_list *list)
{
    for (; *patterns; patterns++) {
        bool any = false;
        for (size_t i = 0; i < list->count; i++) {
            if (!matches(*patterns, list->files[i].name)) continue;
            any = list->files[i].wanted = true;
        }
        if (!any)
            return mc_error_set(err, MC_ERR_NOT_FOUND,
                                "%s: none of the repository's %zu files matches \"%.200s\"",
                                list->repository, list->count, *patterns);
    }
    return MC_OK;
}

mc_status mc_hub_choose(mc_error *err, const mc_hub_needs *needs, mc_hub_list *list)
{
    bool model = needs->kind == MC_HUB_ANY &&
                 (find_file(list, config_file) || find_file(list, adapter_file));
    if (needs->kind == MC_HUB_SENTENCE) want_sentence(list);
    if (needs->kind == MC_HUB_MATCHING) return choose_matching(err, needs->patterns, list);
    if (model || needs->kind == MC_HUB_MODEL || needs->kind == MC_HUB_SENTENCE)
        return choose_model(err, needs, list);
    return choose_tokenizer(err, list);
}

const char *mc_hub_next_absent(const mc_hub_list *list, size_t *next)
{
    while (*next < COUNT_OF(tokenizer_files) + 2) {
        size_t i = (*next)++;
        const char *name = i == 0 ? config_file : i == 1 ? modules_file : tokenizer_files[i - 2];
        if (!find_file(list, name)) return name;
    }
    return NULL;
}

/* ---- sharded weights ------------------------------------------------------------------------- */

/* Calls `take` with the name of each tensor's shard, until it returns false. */
static mc_status read_index(mc_error *err, const char *path, bool (*take)(void *, const char *),
                            void *user)
{
    cJSON *json = mc_json_read_object(err, path, INDEX_LIMIT);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map"), *item;
    mc_status status = json ? MC_OK : err->status;
    if (json && !cJSON_IsObject(map))
        status =
            mc_error_set(err, MC_ERR_FORMAT, "%s: key \"weight_map\": expected an object", path);
    if (status) map = NULL;
    cJSON_ArrayForEach(item, map)
    {
        if (cJSON_IsString(item) && take(user, item->valuestring)) continue;
        status = mc_error_set(err, MC_ERR_FORMAT,
                              "%s: weight_map: \"%.200s\": expected one of the repository's files",
                              path, item->string);
        break;
    }
    cJSON_Delete(json);
    return status;
}

static bool want_shard(void *list, const char *name) { return want(list, name); }

mc_status mc_hub_choose_shards(mc_error *err, mc_hub_list *list, const char *path)
{
    return read_index(err, path, want_shard, list);
}

/* ---- what a folder has ----------------------------------------------------------------------- */

static bool has(const char *folder, const char *name)
{
    char path[MC_PATH_MAX];
    int written = snprintf(path, sizeof path, "%s/%s", folder, name);
    return written >= 0 && written < MC_PATH_MAX && mc_path_is_file(path);
}

static bool has_shard(void *folder, const char *name) { return has(folder, name); }

static bool has_all_shards(const char *folder, const char *index)
{
    char path[MC_PATH_MAX], copy[MC_PATH_MAX];
    mc_error err = {0};
    snprintf(copy, sizeof copy, "%s", folder);
    bool whole = mc_path_join(&err, path, folder, index) == MC_OK &&
                 read_index(&err, path, has_shard, copy) == MC_OK;
    mc_error_clear(&err);
    return whole;
}

/* Whether there are weights of any variant: mc_safetensors_open takes the only one. */
static bool has_any_variant(const char *folder)
{
    bool found = false;
    DIR *open = opendir(folder);
    for (struct dirent *item; open && !found && (item = readdir(open));)
        found = fnmatch("model.*.safetensors", item->d_name, 0) == 0 && has(folder, item->d_name);
    if (open) closedir(open);
    return found;
}

static bool has_weights(const char *folder, const char *variant)
{
    char name[WEIGHT_NAME_MAX];
    for (size_t i = 0; i < COUNT_OF(weight_files); i++) {
        name_weights(name, i, variant);
        if (has(folder, name)) return !weight_files[i].is_index || has_all_shards(folder, name);
    }
    return !variant && has_any_variant(folder);
}

/* Whether the cache has recorded that the snapshot's commit lacks the file. */
static bool is_absent(const char *folder, const char *name)
{
    char marks[MC_PATH_MAX];
    const char *commit = strrchr(folder, '/');
    int written =
        commit ? snprintf(marks, sizeof marks, "%s/../../.no_exist%s", folder, commit) : -1;
    return written >= 0 && written < MC_PATH_MAX && has(marks, name);
}

static bool has_tokenizer(const char *folder)
{
    for (size_t i = 0; i < COUNT_OF(tokenizers); i++)
        if (has(folder, tokenizers[i][0]) && (!tokenizers[i][1] || has(folder, tokenizers[i][1])))
            return true;
    return false;
}

/* Which files a pattern with wildcards matches in the repository is not known here. */
static bool has_matching(const char *folder, const char *const *patterns)
{
    for (; *patterns; patterns++)
        if (strpbrk(*patterns, "*?[\\") || !has(folder, *patterns)) return false;
    return true;
}

static bool has_adapter(const char *folder)
{
    return has(folder, adapter_file) &&
           (has(folder, adapter_weights[0]) || has(folder, adapter_weights[1]));
}

static bool has_model(const char *folder, const char *variant)
{
    return has_adapter(folder) || (has(folder, config_file) && has_weights(folder, variant));
}

/* Whether the folder has all files for loading, except those that the repository lacks. */
static bool has_any(const char *folder)
{
    bool no_tokenizer = true;
    for (size_t i = 0; i < COUNT_OF(tokenizers); i++)
        no_tokenizer = no_tokenizer && is_absent(folder, tokenizers[i][0]);
    return (has_model(folder, NULL) || is_absent(folder, config_file)) &&
           (has_tokenizer(folder) || no_tokenizer);
}

bool mc_hub_is_whole(const void *user, const char *folder)
{
    const mc_hub_needs *needs = user;
    switch (needs->kind) {
    case MC_HUB_ANY: return has_any(folder);
    case MC_HUB_MODEL: return has_model(folder, needs->variant);
    case MC_HUB_SENTENCE:
        return has_model(folder, needs->variant) && has_tokenizer(folder) &&
               (has(folder, modules_file) || is_absent(folder, modules_file));
    case MC_HUB_TOKENIZER: return has_tokenizer(folder);
    case MC_HUB_MATCHING: return has_matching(folder, needs->patterns);
    }
    return false;
}
