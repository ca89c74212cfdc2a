/* Folders of adapters, in PEFT's form: adapter_config.json and adapter_model.safetensors. */
#include <stdio.h>
#include <string.h>
#include "core/base/number_internal.h"
#include "models/adapters/adapter_internal.h"
#include "models/files/keys_internal.h"

static const char config_name[] = "adapter_config.json";

/* Values of task_type. */
#define SEQ_CLS "SEQ_CLS"
#define CAUSAL_LM "CAUSAL_LM"
#define SEQ_2_SEQ_LM "SEQ_2_SEQ_LM"
#define FEATURE_EXTRACTION "FEATURE_EXTRACTION"

/* ---- reading adapter_config.json ------------------------------------------------------------- */

static bool refuse(const mc_adapter_file *f, const cJSON *item, const char *expected)
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

/* The table's keys. Whatever else PEFT can do has a key that says so: a number or a text may be a
 * mere setting of it, anything else is refused. */
static bool check_keys(const mc_adapter_file *f)
{
    const mc_key_table *table =
        f->virtual_tokens ? &mc_keys_prompt_tuning_config : &mc_keys_lora_config;
    const cJSON *item;
    cJSON_ArrayForEach(item, f->json)
    {
        bool setting = cJSON_IsNumber(item) || cJSON_IsString(item);
        if (!setting && !is_empty(item) && !mc_keys_find(table, item->string))
            return refuse(f, item, "none");
    }
    return mc_keys_check(f->ctx, &f->ctx->error, f->path, f->json, table);
}

static bool read_kind(mc_adapter_file *f)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(f->json, "peft_type");
    const char *kind = "LORA";
    if (!mc_json_get_string(&f->ctx->error, f->json, f->path, "peft_type", &kind)) return false;
    f->virtual_tokens = strcmp(kind, "PROMPT_TUNING") == 0;
    return f->virtual_tokens || strcmp(kind, "LORA") == 0 ||
           refuse(f, item, "\"LORA\" or \"PROMPT_TUNING\"");
}

/* PEFT's classes of models, of which those of tokens and of spans have no counterpart here. */
static bool read_task(mc_adapter_file *f)
{
    static const char *const tasks[] = {SEQ_CLS, CAUSAL_LM, SEQ_2_SEQ_LM, FEATURE_EXTRACTION};
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(f->json, "task_type");
    if (!mc_json_get_string(&f->ctx->error, f->json, f->path, "task_type", &f->task)) return false;
    for (int i = 0; f->task && i < 4; i++)
        if (strcmp(f->task, tasks[i]) == 0) return true;
    return !f->task || refuse(f, item,
                              "null, \"" SEQ_CLS "\", \"" CAUSAL_LM "\", \"" SEQ_2_SEQ_LM
                              "\" or \"" FEATURE_EXTRACTION "\"");
}

static bool read_list(const mc_adapter_file *f, const char *key, const char **out, bool *found)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(f->json, key), *item;
    int count = 0;
    *found = cJSON_IsArray(list);
    if (!*found) return true;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item) || count == MC_ADAPTER_NAMES)
            return !mc_fail(f->ctx, MC_ERR_FORMAT, "%s: key \"%s\": expected up to %d names",
                            f->path, key, MC_ADAPTER_NAMES);
        out[count++] = item->valuestring;
    }
    return true;
}

/* What is saved whole; nothing, where the file says so. */
static bool read_modules(mc_adapter_file *f)
{
    static const char *const nothing[] = {NULL};
    bool found;
    if (!read_list(f, "modules_to_save", f->modules, &found)) return false;
    f->lora.modules_to_save = f->prompt.modules_to_save = found ? f->modules : nothing;
    return true;
}

static bool read_targets(mc_adapter_file *f)
{
    bool found;
    if (!read_list(f, "target_modules", f->targets, &found)) return false;
    if (found) f->lora.targets = f->targets;
    return found || mc_json_get_string(&f->ctx->error, f->json, f->path, "target_modules",
                                       &f->lora.target_pattern);
}

static bool read_factors(mc_adapter_file *f)
{
    mc_error *err = &f->ctx->error;
    mc_lora_options *o = &f->lora;
    int64_t rank = 8;
    double alpha = 8, dropout = 0; /* PEFT's defaults */
    bool good = mc_json_get_int(err, f->json, f->path, "r", 1, 1 << 16, &rank) &&
                mc_json_get_number(err, f->json, f->path, "lora_alpha", -1e9, 1e9, &alpha) &&
                mc_json_get_number(err, f->json, f->path, "lora_dropout", 0, 1, &dropout) &&
                mc_json_get_bool(err, f->json, f->path, "use_rslora", &o->rslora) &&
                check_keys(f) && read_targets(f);
    o->rank = (int)rank;
    o->alpha = (float)alpha;
    o->dropout = (float)dropout;
    if (good && alpha == 0)
        return !mc_fail(f->ctx, MC_ERR_UNSUPPORTED, "%s: key \"lora_alpha\": 0 is not supported",
                        f->path);
    return good;
}

static bool read_prompt(mc_adapter_file *f)
{
    mc_error *err = &f->ctx->error;
    int64_t tokens = 0, stacks = 1;
    bool good =
        mc_json_get_int(err, f->json, f->path, "num_virtual_tokens", 1, 1 << 16, &tokens) &&
        mc_json_get_int(err, f->json, f->path, "num_transformer_submodules", 1, 2, &stacks) &&
        mc_json_get_int(err, f->json, f->path, "token_dim", 1, 1 << 24, &f->token_dim) &&
        check_keys(f);
    f->prompt.tokens = (int)tokens;
    f->prompt.stacks = (int)stacks;
    if (good && !tokens)
        return !mc_fail(f->ctx, MC_ERR_FORMAT, "%s: key \"num_virtual_tokens\" is missing",
                        f->path);
    return good;
}

static bool read_config(mc_adapter_file *f)
{
    mc_error *err = &f->ctx->error;
    bool good = read_kind(f) && read_task(f) &&
                mc_json_get_string(err, f->json, f->path, "base_model_name_or_path", &f->base) &&
                mc_json_get_string(err, f->json, f->path, "revision", &f->revision) &&
                read_modules(f) && (f->virtual_tokens ? read_prompt(f) : read_factors(f));
    f->lora.base = f->prompt.base = f->base;
    return good;
}

static bool open_weights(mc_adapter_file *f, const char *folder)
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

bool mc_adapter_file_open(mc_context *ctx, const char *folder, mc_adapter_file *f)
{
    *f = (mc_adapter_file){.ctx = ctx};
    if (mc_failed(ctx) || mc_path_join(&ctx->error, f->path, folder, config_name)) return false;
    f->json = mc_json_read_object(&ctx->error, f->path, 1 << 24);
    return f->json && read_config(f) && open_weights(f, folder);
}

void mc_adapter_file_release(mc_adapter_file *f)
{
    mc_tensor_file_free(f->weights);
    cJSON_Delete(f->json);
    *f = (mc_adapter_file){0};
}

/* ---- reading weights ------------------------------------------------------------------------- */

/* ---- the task -------------------------------------------------------------------------------- */

static bool task_is(const mc_adapter_file *f, const char *task)
{
    return f->task && strcmp(f->task, task) == 0;
}

static bool refuse_task(const mc_adapter_file *f, const char *why)
{
    return !mc_fail(f->ctx, MC_ERR_UNSUPPORTED, "%s: key \"task_type\": \"%s\": %s", f->path,
                    f->task, why);
}

bool mc_adapter_file_fits(const mc_adapter_file *f, const mc_family *family)
{
    char why[160];
    const char *expected = NULL;
    if (task_is(f, SEQ_CLS) && !family->has.labels) expected = "one with a classifier";
    if (task_is(f, CAUSAL_LM) && family->kind != MC_MODEL_DECODER) expected = "a decoder";
    if (task_is(f, SEQ_2_SEQ_LM) && family->kind != MC_MODEL_ENCODER_DECODER)
        expected = "an encoder-decoder";
    if (!expected) return true;
    snprintf(why, sizeof why, "the base is a %s, expected %s", family->title, expected);
    return refuse_task(f, why);
}

bool mc_adapter_file_classifies(const mc_adapter_file *f)
{
    return !f->task || task_is(f, SEQ_CLS);
}

bool mc_adapter_file_accepts(const mc_adapter_file *f, const mc_model_heads *heads)
{
    return !task_is(f, SEQ_CLS) || heads->labels ||
           refuse_task(f, "neither the adapter nor its base has a classifier");
}

int mc_adapter_file_classes(const mc_adapter_file *f, const mc_family *family)
{
    mc_weight_map map = mc_adapter_map(family, f->virtual_tokens);
    if (!mc_adapter_file_classifies(f)) return 0;
    return mc_classes_in_file(&map, f->weights, family->classifier);
}

const mc_tensor_entry *mc_adapter_file_find(const mc_adapter_file *f, const mc_family *family,
                                            const char *ours)
{
    mc_weight_map map = mc_adapter_map(family, f->virtual_tokens);
    return mc_weight_find(&map, 0, f->weights, ours);
}

mc_model_heads mc_adapter_file_heads(const mc_adapter_file *f, const mc_family *family)
{
    const char *lm = family->kind == MC_MODEL_ENCODER ? mc_family_lm_has(family) : NULL;
    const char *pooler = family->has.pooler ? "pooler.dense.weight" : NULL;
    const char *nsp = family->has.nsp ? "nsp_head.weight" : NULL;
    const char *replaced = family->has.replaced ? "replaced_head.dense.weight" : NULL;
    return (mc_model_heads){.lm = lm && mc_adapter_file_find(f, family, lm),
                            .pooler = pooler && mc_adapter_file_find(f, family, pooler),
                            .nsp = nsp && mc_adapter_file_find(f, family, nsp),
                            .replaced = replaced && mc_adapter_file_find(f, family, replaced)};
}

bool mc_adapter_file_load(const mc_adapter_file *f, mc_model *m, const char *folder, bool new_head)
{
    /* a base without a pooler, of which PEFT keeps none */
    static const char *const may_be_new[] = {"pooler.*", NULL};
    mc_weight_map map = mc_adapter_map(m->family, f->virtual_tokens);
    const bool *tied = mc_config_member(m->family, m->config, "tie_word_embeddings");
    map.left_new[0] = new_head ? m->family->classifier : NULL;
    map.tied = tied && *tied;
    map.all_used = true;
    if (f->token_dim && f->token_dim != m->shape.dim)
        return !mc_fail(f->ctx, MC_ERR_SHAPE, "%s: key \"token_dim\": %lld, the base has %lld",
                        f->path, (long long)f->token_dim, (long long)m->shape.dim);
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

/* What PEFT's class for the model is chosen by; NULL: any model, which has no virtual tokens
 * there. */
static const char *task_type(const mc_model *m)
{
    if (m->heads.labels) return SEQ_CLS;
    if (m->shape.kind == MC_MODEL_DECODER) return CAUSAL_LM;
    if (m->shape.kind == MC_MODEL_ENCODER_DECODER) return SEQ_2_SEQ_LM;
    return mc_virtual_tokens(m) ? FEATURE_EXTRACTION : NULL;
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
    char text[MC_NUMBER_ROOM];
    return cJSON_AddRawToObject(json, key, mc_number_print_float(text, 1, value));
}

static bool fill_factors(cJSON *json, const mc_model *m)
{
    const mc_lora_options *o = &m->adapter->lora;
    bool targets = o->target_pattern
                       ? cJSON_AddStringToObject(json, "target_modules", o->target_pattern) != NULL
                       : add_names(json, "target_modules", o->targets);
    return targets && cJSON_AddNumberToObject(json, "r", o->rank) &&
           add_float(json, "lora_alpha", o->alpha) && add_float(json, "lora_dropout", o->dropout) &&
           cJSON_AddBoolToObject(json, "use_rslora", o->rslora) &&
           cJSON_AddBoolToObject(json, "fan_in_fan_out", is_transposed(m)) &&
           cJSON_AddStringToObject(json, "bias", "none") &&
           cJSON_AddBoolToObject(json, "init_lora_weights", true);
}

static bool fill_prompt(cJSON *json, const mc_model *m)
{
    const mc_soft_prompt_options *o = &m->adapter->prompt;
    const mc_model_shape *s = &m->shape;
    return cJSON_AddNumberToObject(json, "num_virtual_tokens", o->tokens) &&
           cJSON_AddNumberToObject(json, "num_transformer_submodules", o->stacks) &&
           cJSON_AddNumberToObject(json, "token_dim", (double)s->dim) &&
           cJSON_AddNumberToObject(json, "num_attention_heads", (double)s->heads) &&
           cJSON_AddNumberToObject(json, "num_layers", (double)s->layers) &&
           cJSON_AddStringToObject(json, "prompt_tuning_init", "RANDOM");
}

static bool fill_config(cJSON *json, const mc_model *m)
{
    bool prompt = mc_virtual_tokens(m) > 0;
    return cJSON_AddStringToObject(json, "peft_type", prompt ? "PROMPT_TUNING" : "LORA") &&
           add_text(json, "task_type", task_type(m)) &&
           add_text(json, "base_model_name_or_path", m->adapter->base) &&
           cJSON_AddNullToObject(json, "revision") &&
           (prompt ? fill_prompt(json, m) : fill_factors(json, m)) &&
           cJSON_AddBoolToObject(json, "inference_mode", true) &&
           add_names(json, "modules_to_save", m->adapter->modules);
}

char *mc_adapter_config_text(mc_model *m)
{
    mc_context *ctx = m->module.ctx;
    cJSON *json = cJSON_CreateObject();
    char *text = json && fill_config(json, m) ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    if (!text) mc_fail_nomem(ctx, config_name);
    return text;
}
