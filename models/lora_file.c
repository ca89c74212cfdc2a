/* Folders of adapters, in PEFT's form: adapter_config.json and adapter_model.safetensors. */
#include <stdio.h>
#include <string.h>
#include "models/lora_internal.h"

static const char config_name[] = "adapter_config.json";

/* ---- reading adapter_config.json ------------------------------------------------------------- */

/* Keys that are read below, and those that change nothing in what a trained adapter computes. */
static const char *const known[] = {"peft_type",
                                    "r",
                                    "lora_alpha",
                                    "lora_dropout",
                                    "use_rslora",
                                    "target_modules",
                                    "modules_to_save",
                                    "base_model_name_or_path",
                                    "revision",
                                    "bias",
                                    "init_lora_weights",
                                    "task_type",
                                    "auto_mapping",
                                    "fan_in_fan_out",
                                    "inference_mode",
                                    "megatron_core",
                                    "peft_version",
                                    "qalora_group_size",
                                    "loftq_config",
                                    "eva_config",
                                    "corda_config",
                                    "lora_ga_config",
                                    NULL};

static bool is_known(const char *key)
{
    for (int i = 0; known[i]; i++)
        if (strcmp(known[i], key) == 0) return true;
    return false;
}

static bool refuse(const mc_lora_file *f, const cJSON *item, const char *expected)
{
    char *text = cJSON_PrintUnformatted(item);
    mc_fail(f->ctx, MC_ERR_UNSUPPORTED, "%s: key \"%s\": %.200s is not supported, expected %s",
            f->path, item->string, text ? text : "?", expected);
    cJSON_free(text);
    return false;
}

static bool is_empty(const cJSON *item)
{
    bool nothing = cJSON_IsNull(item) || cJSON_IsFalse(item);
    return nothing || ((cJSON_IsArray(item) || cJSON_IsObject(item)) && !item->child);
}

/* Whatever else PEFT can do has a key that says so: a number or a text may be a mere setting of it,
 * anything else is refused. */
static bool check_other_keys(const mc_lora_file *f)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, f->json)
    {
        if (is_known(item->string) || is_empty(item)) continue;
        if (!cJSON_IsNumber(item) && !cJSON_IsString(item)) return refuse(f, item, "none");
        mc_log(f->ctx, MC_LOG_WARNING, "%s: key \"%s\" is not known", f->path, item->string);
    }
    return true;
}

/* A key that may have one of some words alone. */
static bool check_word(const mc_lora_file *f, const char *key, const char *const *words,
                       const char *expected)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(f->json, key);
    if (!item || is_empty(item) || cJSON_IsTrue(item)) return true;
    for (int i = 0; cJSON_IsString(item) && words[i]; i++)
        if (strcmp(words[i], item->valuestring) == 0) return true;
    return refuse(f, item, expected);
}

/* Initial values of these kinds are gone once trained; of others the base's weights are changed. */
static bool check_words(const mc_lora_file *f)
{
    static const char *const lora[] = {"LORA", NULL}, *const none[] = {"none", NULL};
    static const char *const inits[] = {"gaussian", "orthogonal", "eva", NULL};
    return check_word(f, "peft_type", lora, "\"LORA\"") &&
           check_word(f, "bias", none, "\"none\"") &&
           check_word(f, "init_lora_weights", inits,
                      "true, false, \"gaussian\", \"orthogonal\" or \"eva\"");
}

static bool read_list(const mc_lora_file *f, const char *key, const char **out, bool *found)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(f->json, key), *item;
    int count = 0;
    *found = cJSON_IsArray(list);
    if (!*found) return true;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item) || count == MC_LORA_NAMES)
            return !mc_fail(f->ctx, MC_ERR_FORMAT, "%s: key \"%s\": expected up to %d names",
                            f->path, key, MC_LORA_NAMES);
        out[count++] = item->valuestring;
    }
    return true;
}

static bool read_modules(mc_lora_file *f)
{
    static const char *const nothing[] = {NULL};
    mc_lora_options *o = &f->options;
    bool targets, modules;
    if (!read_list(f, "target_modules", f->targets, &targets) ||
        !read_list(f, "modules_to_save", f->modules, &modules))
        return false;
    o->modules_to_save = modules ? f->modules : nothing;
    if (targets) o->targets = f->targets;
    return targets || mc_json_get_string(&f->ctx->error, f->json, f->path, "target_modules",
                                         &o->target_pattern);
}

static bool read_config(mc_lora_file *f)
{
    mc_error *err = &f->ctx->error;
    mc_lora_options *o = &f->options;
    int64_t rank = 8;
    double alpha = 8, dropout = 0; /* PEFT's defaults */
    bool good = mc_json_get_int(err, f->json, f->path, "r", 1, 1 << 16, &rank) &&
                mc_json_get_number(err, f->json, f->path, "lora_alpha", -1e9, 1e9, &alpha) &&
                mc_json_get_number(err, f->json, f->path, "lora_dropout", 0, 1, &dropout) &&
                mc_json_get_bool(err, f->json, f->path, "use_rslora", &o->rslora) &&
                mc_json_get_string(err, f->json, f->path, "base_model_name_or_path", &o->base) &&
                mc_json_get_string(err, f->json, f->path, "revision", &f->revision) &&
                check_words(f) && check_other_keys(f) && read_modules(f);
    o->rank = (int)rank;
    o->alpha = (float)alpha;
    o->dropout = (float)dropout;
    if (good && alpha == 0)
        return !mc_fail(f->ctx, MC_ERR_UNSUPPORTED, "%s: key \"lora_alpha\": 0 is not supported",
                        f->path);
    return good;
}

static bool open_weights(mc_lora_file *f, const char *folder)
{
    static const char *const names[] = {"adapter_model.safetensors", "adapter_model.bin"};
    char path[MC_PATH_MAX];
    for (int i = 0; i < 2; i++) {
        if (mc_path_join(&f->ctx->error, path, folder, names[i])) return false;
        if (mc_path_is_file(path)) return (f->weights = mc_tensor_file_open(f->ctx, path, NULL));
    }
    return !mc_fail(f->ctx, MC_ERR_NOT_FOUND, "%s: holds %s, but neither %s nor %s", folder,
                    config_name, names[0], names[1]);
}

bool mc_lora_file_open(mc_context *ctx, const char *folder, mc_lora_file *f)
{
    *f = (mc_lora_file){.ctx = ctx};
    if (mc_failed(ctx) || mc_path_join(&ctx->error, f->path, folder, config_name)) return false;
    f->json = mc_json_read_object(&ctx->error, f->path, 1 << 24);
    return f->json && read_config(f) && open_weights(f, folder);
}

void mc_lora_file_release(mc_lora_file *f)
{
    mc_tensor_file_free(f->weights);
    cJSON_Delete(f->json);
    *f = (mc_lora_file){0};
}

/* ---- reading weights ------------------------------------------------------------------------- */

int mc_lora_file_classes(const mc_lora_file *f, const mc_family *family)
{
    mc_weight_map map = *family->map;
    map.adapter_prefix = mc_lora_prefix;
    const mc_tensor_entry *e =
        family->classifier ? mc_weight_find(&map, 0, f->weights, family->classifier) : NULL;
    bool good = e && e->ndim == 2 && e->shape[0] <= MC_MODEL_MAX_LABELS;
    return good ? (int)e->shape[0] : 0;
}

bool mc_lora_file_load(const mc_lora_file *f, mc_model *m, const char *folder)
{
    /* a base without a pooler, of which PEFT keeps none */
    static const char *const may_be_new[] = {"pooler.*", NULL};
    mc_weight_map map = mc_lora_map(m);
    return mc_weights_load(&m->module, &map, (int)m->shape.layers, f->weights, folder,
                           may_be_new) == MC_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool add_names(cJSON *json, const char *key, const char *const *names)
{
    if (!names || !names[0]) return cJSON_AddNullToObject(json, key);
    cJSON *list = cJSON_AddArrayToObject(json, key);
    for (; list && *names; names++) {
        cJSON *name = cJSON_CreateString(*names);
        if (!name || !cJSON_AddItemToArray(list, name)) return false;
    }
    return list;
}

/* What PEFT's class for the model is chosen by; NULL: any model. */
static const char *task_type(const mc_model *m)
{
    if (m->heads.labels) return "SEQ_CLS";
    if (m->shape.kind == MC_MODEL_DECODER) return "CAUSAL_LM";
    return m->shape.kind == MC_MODEL_ENCODER_DECODER ? "SEQ_2_SEQ_LM" : NULL;
}

/* Whether `transformers` stores the matrices of the targets as (in, out). */
static bool is_transposed(const mc_model *m)
{
    bool transposed = false;
    for (size_t i = 0; i < m->module.root->stored_count; i++) {
        const mc_stored *s = m->module.root->stored[i];
        if (s->adapter)
            transposed |= mc_weight_place_of(m->family->map, s->parts[0]->name).transpose;
    }
    return transposed;
}

static bool add_text(cJSON *json, const char *key, const char *text)
{
    return text ? cJSON_AddStringToObject(json, key, text) : cJSON_AddNullToObject(json, key);
}

/* Shortest texts of floats, rather than those of doubles of the same value. */
static bool add_float(cJSON *json, const char *key, float value)
{
    char text[32];
    snprintf(text, sizeof text, "%.9g", (double)value);
    for (int digits = 1; digits < 9; digits++) {
        char shorter[32];
        float again;
        snprintf(shorter, sizeof shorter, "%.*g", digits, (double)value);
        if (sscanf(shorter, "%f", &again) != 1 || again != value) continue;
        memcpy(text, shorter, sizeof text);
        break;
    }
    return cJSON_AddRawToObject(json, key, text);
}

static bool fill_config(cJSON *json, const mc_model *m)
{
    const mc_lora_options *o = &m->lora->options;
    bool targets = o->target_pattern
                       ? cJSON_AddStringToObject(json, "target_modules", o->target_pattern) != NULL
                       : add_names(json, "target_modules", o->targets);
    return targets && cJSON_AddStringToObject(json, "peft_type", "LORA") &&
           add_text(json, "task_type", task_type(m)) &&
           add_text(json, "base_model_name_or_path", o->base) &&
           cJSON_AddNullToObject(json, "revision") && cJSON_AddNumberToObject(json, "r", o->rank) &&
           add_float(json, "lora_alpha", o->alpha) && add_float(json, "lora_dropout", o->dropout) &&
           cJSON_AddBoolToObject(json, "use_rslora", o->rslora) &&
           cJSON_AddBoolToObject(json, "fan_in_fan_out", is_transposed(m)) &&
           cJSON_AddStringToObject(json, "bias", "none") &&
           cJSON_AddBoolToObject(json, "init_lora_weights", true) &&
           cJSON_AddBoolToObject(json, "inference_mode", true) &&
           add_names(json, "modules_to_save", o->modules_to_save);
}

char *mc_lora_config_text(mc_model *m)
{
    mc_context *ctx = m->module.ctx;
    cJSON *json = cJSON_CreateObject();
    char *text = json && fill_config(json, m) ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    if (!text) mc_fail_nomem(ctx, config_name);
    return text;
}
