#include "models/texts/embed_internal.h"

#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "models/files/keys_internal.h"

enum { CONFIG_LIMIT = 1 << 20 };

/* The poolings by the names in both forms of 1_Pooling/config.json. */
static const struct {
    const char *flag, *name;
    mc_pooling pooling; /* 0: not supported */
} poolings[] = {
    {"pooling_mode_cls_token", "cls", MC_POOLING_CLS},
    {"pooling_mode_max_tokens", "max", MC_POOLING_MAX},
    {"pooling_mode_mean_tokens", "mean", MC_POOLING_MEAN},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", 0},
    {"pooling_mode_weightedmean_tokens", "weightedmean", 0},
    {"pooling_mode_lasttoken", "lasttoken", 0},
};
enum { POOLINGS = sizeof poolings / sizeof *poolings };

static mc_status unsupported(mc_error *err, const char *path, const char *key, const char *found,
                             const char *expected)
{
    return mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: key \"%s\": %s is not supported, expected %s",
                        path, key, found, expected);
}

/* A JSON object of a folder that may be missing: *json NULL then. */
static mc_status read_optional(mc_error *err, const char *folder, const char *name,
                               char path[MC_PATH_MAX], cJSON **json)
{
    *json = NULL;
    mc_status status = mc_path_join(err, path, folder, name);
    if (status || !mc_path_is_file(path)) return status;
    *json = mc_json_read_object(err, path, CONFIG_LIMIT);
    return *json ? MC_OK : err->status;
}

/* ---- pooling --------------------------------------------------------------------------------- */

static mc_status take_pooling(mc_error *err, const char *path, const char *key, int number,
                              mc_sentence_config *c)
{
    if (c->pooling)
        return unsupported(err, path, key, "a second pooling, beside another one,", "one");
    c->pooling = poolings[number].pooling;
    if (c->pooling) return MC_OK;
    return unsupported(err, path, key, poolings[number].name, "cls, max or mean");
}

/* "pooling_mode": "mean", or ["mean", ...]. */
static mc_status read_mode(mc_error *err, const char *path, const cJSON *mode,
                           mc_sentence_config *c)
{
    const cJSON *one = cJSON_IsArray(mode) ? mode->child : mode;
    mc_status status = MC_OK;
    for (; one && !status; one = cJSON_IsArray(mode) ? one->next : NULL) {
        int i = 0;
        while (i < POOLINGS &&
               !(cJSON_IsString(one) && strcmp(one->valuestring, poolings[i].name) == 0))
            i++;
        status = i < POOLINGS ? take_pooling(err, path, "pooling_mode", i, c)
                              : unsupported(err, path, "pooling_mode",
                                            cJSON_IsString(one) ? one->valuestring : "no name",
                                            "cls, max or mean");
    }
    return status;
}

static mc_status read_pooling(mc_context *ctx, const char *folder, mc_sentence_config *c)
{
    mc_error *err = &ctx->error;
    char path[MC_PATH_MAX];
    if (mc_path_join(err, path, folder, "config.json")) return err->status;
    cJSON *json = mc_json_read_object(err, path, CONFIG_LIMIT);
    const cJSON *mode = cJSON_GetObjectItemCaseSensitive(json, "pooling_mode");
    c->pooling = MC_POOLING_DEFAULT;
    c->prompt_counts = true;
    if (!json || !mc_keys_check(ctx, err, path, json, &mc_keys_pooling_config) ||
        !mc_json_get_bool(err, json, path, "include_prompt", &c->prompt_counts)) {
        cJSON_Delete(json);
        return err->status;
    }
    mc_status status = mode ? read_mode(err, path, mode, c) : MC_OK;
    for (int i = 0; i < POOLINGS && !mode && !status; i++) {
        bool on = false;
        if (!mc_json_get_bool(err, json, path, poolings[i].flag, &on)) status = err->status;
        if (!status && on) status = take_pooling(err, path, poolings[i].flag, i, c);
    }
    if (!c->pooling) c->pooling = MC_POOLING_MEAN; /* as sentence-transformers has it */
    cJSON_Delete(json);
    return status;
}

/* ---- the model's length ---------------------------------------------------------------------- */

/* The model's own file under the first of its names that is there, as sentence-transformers
 * looks. */
static mc_status read_model_file(mc_error *err, const char *folder, char path[MC_PATH_MAX],
                                 cJSON **json)
{
    static const char *const kinds[] = {"bert",   "roberta",     "distilbert", "camembert",
                                        "albert", "xlm-roberta", "xlnet"};
    char name[64];
    mc_status status = MC_OK;
    *json = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !*json && !status; i++) {
        snprintf(name, sizeof name, "sentence_%s_config.json", kinds[i]);
        status = read_optional(err, folder, name, path, json);
    }
    return status;
}

static mc_status read_length(mc_context *ctx, mc_sentence_config *c)
{
    mc_error *err = &ctx->error;
    char path[MC_PATH_MAX];
    cJSON *json;
    bool lower = false;
    double length = 0;
    mc_status status = read_model_file(err, c->model, path, &json);
    if (json && (!mc_keys_check(ctx, err, path, json, &mc_keys_sentence_bert_config) ||
                 !mc_json_get_number(err, json, path, "max_seq_length", 1, 1e40, &length) ||
                 !mc_json_get_bool(err, json, path, "do_lower_case", &lower)))
        status = err->status;
    cJSON_Delete(json);
    if (lower && !status)
        status = unsupported(err, path, "do_lower_case", "true",
                             "false, and a tokenizer that does what is needed");
    c->max_length = length < INT32_MAX ? (int64_t)length : 0;
    return status;
}

/* ---- modules --------------------------------------------------------------------------------- */

/* The last word of "sentence_transformers.models.Pooling". */
static const char *class_of(const char *type)
{
    const char *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

/* The folder of a module, in the model's. */
static mc_status join_module(mc_error *err, const char *folder, const char *path, int number,
                             const char *where, char below[MC_PATH_MAX])
{
    if (mc_path_leaves(where))
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: module %d: path \"%.200s\", expected a folder in this one", path,
                            number, where);
    if (!*where) return snprintf(below, MC_PATH_MAX, "%s", folder), MC_OK;
    return mc_path_join(err, below, folder, where);
}

static mc_status read_module(mc_context *ctx, const char *folder, const char *path, int number,
                             const cJSON *module, mc_sentence_config *c)
{
    const char *type = "", *where = "";
    char below[MC_PATH_MAX];
    mc_error *err = &ctx->error;
    if (!mc_json_get_string(err, module, path, "type", &type) ||
        !mc_json_get_string(err, module, path, "path", &where) ||
        join_module(err, folder, path, number, where, below))
        return err->status;
    const char *name = class_of(type);
    if (number == 0 && strcmp(name, "Transformer") == 0) {
        if (!mc_path_is_folder(below)) /* nor is it to be looked for as an identifier */
            return mc_error_set(err, MC_ERR_NOT_FOUND,
                                "%s: module 0: no folder \"%.200s\" beside it", path, where);
        memcpy(c->model, below, sizeof below);
        return MC_OK;
    }
    if (number == 1 && strcmp(name, "Pooling") == 0) return read_pooling(ctx, below, c);
    if (number == 2 && strcmp(name, "Normalize") == 0) {
        c->normalize = true;
        return MC_OK;
    }
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: module %d, \"%.200s\", is not supported: expected Transformer, "
                        "Pooling and perhaps Normalize, in this order",
                        path, number, type);
}

static mc_status read_modules(mc_context *ctx, const char *folder, const char *path,
                              const cJSON *list, mc_sentence_config *c)
{
    mc_error *err = &ctx->error;
    int count = cJSON_GetArraySize(list), number = 0;
    const cJSON *module;
    if (!cJSON_IsArray(list) || count < 1)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected a list of modules", path);
    cJSON_ArrayForEach(module, list)
    {
        if (!cJSON_IsObject(module))
            return mc_error_set(err, MC_ERR_FORMAT, "%s: module %d: expected an object", path,
                                number);
        if (read_module(ctx, folder, path, number++, module, c)) return err->status;
    }
    if (c->pooling) return MC_OK;
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: %d module and no Pooling: vectors of tokens are not supported", path,
                        count);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static mc_status no_prompt(mc_error *err, const char *path, const char *name, const cJSON *prompts)
{
    char known[512] = "";
    const cJSON *prompt;
    cJSON_ArrayForEach(prompt, prompts)
    {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", prompt->string);
    }
    return mc_error_set(err, MC_ERR_NOT_FOUND, "%s: no prompt is called \"%.100s\": expected %s%s",
                        path, name, *known ? "one of " : "none", known);
}

/* config_sentence_transformers.json: the prompt and how many numbers of a vector are kept. */
static mc_status read_whole_file(mc_context *ctx, const char *folder, const char *asked,
                                 mc_sentence_config *c)
{
    char path[MC_PATH_MAX];
    cJSON *json;
    const char *name = asked;
    mc_error *err = &ctx->error;
    mc_status status = read_optional(err, folder, "config_sentence_transformers.json", path, &json);
    if (json &&
        (!mc_keys_check(ctx, err, path, json, &mc_keys_sentence_transformers_config) ||
         !mc_json_get_int(err, json, path, "truncate_dim", 1, INT32_MAX, &c->truncate_dim) ||
         (!asked && !mc_json_get_string(err, json, path, "default_prompt_name", &name))))
        status = err->status;
    const cJSON *prompts = cJSON_GetObjectItemCaseSensitive(json, "prompts");
    const cJSON *prompt = name ? cJSON_GetObjectItemCaseSensitive(prompts, name) : NULL;
    if (!status && name && !cJSON_IsString(prompt)) status = no_prompt(err, path, name, prompts);
    if (!status && name && *prompt->valuestring && !(c->prompt = mc_strdup(prompt->valuestring)))
        status = mc_error_set(err, MC_ERR_NOMEM, "out of memory for a prompt");
    cJSON_Delete(json);
    return status;
}

mc_status mc_sentence_config_read(mc_context *ctx, const char *folder, const char *prompt_name,
                                  mc_sentence_config *c)
{
    char path[MC_PATH_MAX];
    size_t size = 0;
    mc_error *err = &ctx->error;
    *c = (mc_sentence_config){.prompt_counts = true};
    snprintf(c->model, sizeof c->model, "%s", folder);
    if (mc_path_join(err, path, folder, "modules.json")) return err->status;
    c->found = mc_path_is_file(path);
    char *text = c->found ? mc_file_read(err, path, CONFIG_LIMIT, &size) : NULL;
    cJSON *list = text ? mc_json_parse(err, text, size, path, 1) : NULL;
    if (list) read_modules(ctx, folder, path, list, c);
    cJSON_Delete(list);
    mc_free(text);
    if (!mc_error_is_set(err)) read_length(ctx, c);
    if (!mc_error_is_set(err)) read_whole_file(ctx, folder, prompt_name, c);
    return err->status;
}

void mc_sentence_config_release(mc_sentence_config *c)
{
    mc_free(c->prompt);
    c->prompt = NULL;
}
