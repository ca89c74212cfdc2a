/* generation_config.json of a model's folder: read with the model, followed when it generates, and
 * written with it. The keys and what they mean are those of transformers' GenerationConfig. */
#include <float.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"
#include "models/details.h"
#include "models/files/keys_internal.h"
#include "models/generate/generate.h"
#include "models/model_internal.h"

static const char file_name[] = "generation_config.json";

/* ---- reading, with the model ----------------------------------------------------------------- */

/* The file's end tokens are all there are, as for transformers: none where it has null or no
 * key. */
static bool read_eos(mc_model *m, const cJSON *json, const char *path)
{
    mc_generation_config *g = &m->generation;
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(json, "eos_token_id");
    int count = cJSON_IsArray(eos) ? cJSON_GetArraySize(eos) : eos && !cJSON_IsNull(eos) ? 1 : 0;
    bool good = count <= MC_MODEL_MAX_EOS;
    for (int i = 0; good && i < count; i++) {
        const cJSON *item = cJSON_IsArray(eos) ? cJSON_GetArrayItem(eos, i) : eos;
        double id = cJSON_IsNumber(item) ? item->valuedouble : -1;
        good = id >= 0 && id <= INT32_MAX && id == (double)(int32_t)id;
        if (good) g->eos[g->eos_count++] = (int32_t)id;
        if (good && id >= (double)m->shape.vocab_size)
            mc_log(m->module.ctx, MC_LOG_WARNING,
                   "%s: key \"eos_token_id\": %.0f is no token of the vocabulary of %lld", path, id,
                   (long long)m->shape.vocab_size);
    }
    return good || !mc_fail(m->module.ctx, MC_ERR_FORMAT,
                            "%s: key \"eos_token_id\": expected a token or up to %d of them", path,
                            MC_MODEL_MAX_EOS);
}

bool mc_generation_config_read(mc_model *m, const char *folder)
{
    enum { LIMIT = 1 << 20 };
    mc_context *ctx = m->module.ctx;
    mc_generation_config *g = &m->generation;
    char path[MC_PATH_MAX];
    if (m->shape.kind == MC_MODEL_ENCODER) return true;
    if (mc_path_join(&ctx->error, path, folder, file_name)) return false;
    if (!mc_path_is_file(path)) return true;
    size_t size;
    char *text = mc_file_read(&ctx->error, path, LIMIT, &size);
    cJSON *json = mc_json_read_object(&ctx->error, path, LIMIT);
    bool good = text && json && read_eos(m, json, path) &&
                mc_json_get_int(&ctx->error, json, path, "decoder_start_token_id", 0,
                                m->shape.vocab_size - 1, &g->start);
    if (good) {
        for (; size && strchr(" \t\r\n", text[size - 1]); size--) text[size - 1] = '\0';
        g->text = mc_module_strdup(m->module.root, text);
        g->path = mc_module_strdup(m->module.root, path);
    }
    cJSON_Delete(json);
    mc_free(text);
    return !mc_failed(ctx);
}

int64_t mc_start_token(const mc_model *m)
{
    return m->generation.start >= 0 ? m->generation.start : m->shape.start_token;
}

const int32_t *mc_model_end_tokens(const mc_model *m, int *count)
{
    if (count) *count = 0;
    if (!m || !mc_given(m->module.ctx, count)) return NULL;
    const mc_generation_config *file = &m->generation; /* overrides config.json */
    *count = file->text ? file->eos_count : m->eos_count;
    return file->text ? file->eos : m->eos;
}

/* ---- following it ---------------------------------------------------------------------------- */

/* One that is a number, into a float that stays 0 where the key is not there. */
static bool read_real(mc_model *m, const cJSON *json, const char *key, double low, double high,
                      float *out)
{
    double value = (double)*out;
    bool good =
        mc_json_get_number(&m->module.ctx->error, json, m->generation.path, key, low, high, &value);
    *out = (float)value;
    return good;
}

static bool read_whole(mc_model *m, const cJSON *json, const char *key, int64_t low, int *out)
{
    int64_t value = *out;
    bool good = mc_json_get_int(&m->module.ctx->error, json, m->generation.path, key, low,
                                INT32_MAX / 2, &value);
    *out = (int)value;
    return good;
}

/* Zeros that the file says mean what it says, not the default. */
static bool read_reals(mc_model *m, const cJSON *json, mc_generate_options *o)
{
    enum { LARGEST = 1000000 };
    float temperature = 1, top_p = 1, penalty = 1;
    if (!read_real(m, json, "temperature", 0, LARGEST, &temperature) ||
        !read_real(m, json, "top_p", 0, 1, &top_p) ||
        !read_real(m, json, "length_penalty", -LARGEST, LARGEST, &penalty) ||
        !read_real(m, json, "repetition_penalty", 1.0 / LARGEST, LARGEST, &o->repetition_penalty))
        return false;
    if (temperature == 0) o->sample = false; /* all of the most probable token */
    o->temperature = temperature == 0 ? 1 : temperature;
    o->top_p = top_p == 0 ? FLT_MIN : top_p;
    o->length_penalty = penalty == 0 ? MC_TRUE_ZERO : penalty;
    return true;
}

/* false, true or "never". */
static bool read_early_stopping(mc_model *m, const cJSON *json, mc_generate_options *o)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, "early_stopping");
    bool never = cJSON_IsString(item) && strcmp(item->valuestring, "never") == 0;
    if (!item || cJSON_IsNull(item)) return true;
    if (!never && !cJSON_IsBool(item))
        return !mc_fail(m->module.ctx, MC_ERR_FORMAT,
                        "%s: key \"early_stopping\": expected false, true or \"never\"",
                        m->generation.path);
    o->early_stopping = never                ? MC_EARLY_STOPPING_NEVER
                        : cJSON_IsTrue(item) ? MC_EARLY_STOPPING_AT_ONCE
                                             : MC_EARLY_STOPPING_LIKELY;
    return true;
}

/* A text or a list of them, read once and kept with the model. */
static bool read_stop_texts(mc_model *m, const cJSON *json, mc_generate_options *o)
{
    mc_generation_config *g = &m->generation;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, "stop_strings"), *one;
    bool list = cJSON_IsArray(item), good = list || cJSON_IsString(item);
    int count = list ? cJSON_GetArraySize(item) : 1;
    if (!item || cJSON_IsNull(item)) return true;
    for (int i = 0; good && i < count; i++) {
        one = list ? cJSON_GetArrayItem(item, i) : item;
        good = cJSON_IsString(one) && *one->valuestring;
    }
    if (!good)
        return !mc_fail(m->module.ctx, MC_ERR_FORMAT,
                        "%s: key \"stop_strings\": expected a text or a list of texts, none empty",
                        g->path);
    if (!g->stop_texts && count) {
        g->stop_texts = mc_module_alloc(m->module.root, (size_t)count * sizeof *g->stop_texts);
        for (int i = 0; g->stop_texts && i < count; i++)
            g->stop_texts[i] = mc_module_strdup(
                m->module.root, (list ? cJSON_GetArrayItem(item, i) : item)->valuestring);
    }
    o->stop_texts = (const char *const *)g->stop_texts;
    o->stop_text_count = count;
    return !mc_failed(m->module.ctx);
}

/* transformers draws from the 50 most probable tokens where the file does not say from how many. */
static bool read_top_k(mc_model *m, const cJSON *json, mc_generate_options *o)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, "top_k");
    if (!item || cJSON_IsNull(item)) o->top_k = o->sample ? MC_TOP_K_USUAL : 0;
    return read_whole(m, json, "top_k", 0, &o->top_k);
}

static bool follow(mc_model *m, const cJSON *json, mc_generate_options *o)
{
    mc_context *ctx = m->module.ctx;
    mc_error *err = &ctx->error;
    const char *path = m->generation.path;
    return mc_keys_check(ctx, err, path, json, &mc_keys_generation_config) &&
           mc_json_get_bool(err, json, path, "do_sample", &o->sample) &&
           read_early_stopping(m, json, o) && read_stop_texts(m, json, o) &&
           read_reals(m, json, o) && read_top_k(m, json, o) &&
           read_whole(m, json, "num_beams", 1, &o->num_beams) &&
           read_whole(m, json, "num_return_sequences", 1, &o->num_return_sequences) &&
           read_whole(m, json, "max_length", 1, &o->max_length) &&
           read_whole(m, json, "max_new_tokens", 1, &o->max_new_tokens);
}

mc_status mc_model_generate_options(mc_model *m, mc_generate_options *options)
{
    if (options) *options = (mc_generate_options){0};
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    if (!mc_given(ctx, options)) return MC_ERR_ARGUMENT;
    if (mc_failed(ctx) || !m->generation.text) return mc_error_status(ctx);
    cJSON *json = mc_json_parse_own(m->generation.text);
    if (!json)
        mc_fail_nomem(ctx, m->generation.path);
    else if (!follow(m, json, options))
        *options = (mc_generate_options){0};
    cJSON_Delete(json);
    return mc_error_status(ctx);
}
