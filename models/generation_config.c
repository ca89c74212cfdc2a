/* generation_config.json of a model's folder: read with the model, followed when it generates, and
 * written with it. The keys and what they mean are those of transformers' GenerationConfig. */
#include <float.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"
#include "models/model_internal.h"

static const char file_name[] = "generation_config.json";

/* What changes answers in a way that is not here, and the value with which it does nothing; null
 * and an empty list do nothing either. */
static const struct {
    const char *key;
    double off;
} refused[] = {{"begin_suppress_tokens", 0},
               {"bad_words_ids", 0},
               {"constraints", 0},
               {"diversity_penalty", 0},
               {"dola_layers", 0},
               {"encoder_no_repeat_ngram_size", 0},
               {"encoder_repetition_penalty", 1},
               {"epsilon_cutoff", 0},
               {"eta_cutoff", 0},
               {"exponential_decay_length_penalty", 0},
               {"force_words_ids", 0},
               {"forced_bos_token_id", -1},
               {"forced_decoder_ids", 0},
               {"forced_eos_token_id", -1},
               {"guidance_scale", 1},
               {"max_time", -1},
               {"min_length", 0},
               {"min_new_tokens", 0},
               {"min_p", 0},
               {"no_repeat_ngram_size", 0},
               {"num_beam_groups", 1},
               {"penalty_alpha", 0},
               {"renormalize_logits", 0},
               {"sequence_bias", 0},
               {"suppress_tokens", 0},
               {"token_healing", 0},
               {"top_h", 0},
               {"typical_p", 1},
               {"watermarking_config", 0}};

/* What is read, and what changes no token. */
static const char *const known[] = {"_commit_hash",
                                    "_from_model_config",
                                    "assistant_confidence_threshold",
                                    "assistant_early_exit",
                                    "assistant_lookbehind",
                                    "bos_token_id",
                                    "cache_config",
                                    "cache_implementation",
                                    "compile_config",
                                    "decoder_start_token_id",
                                    "disable_compile",
                                    "do_sample",
                                    "early_stopping",
                                    "eos_token_id",
                                    "is_assistant",
                                    "length_penalty",
                                    "low_memory",
                                    "max_length",
                                    "max_matching_ngram_size",
                                    "max_new_tokens",
                                    "num_assistant_tokens",
                                    "num_assistant_tokens_schedule",
                                    "num_beams",
                                    "num_return_sequences",
                                    "output_attentions",
                                    "output_hidden_states",
                                    "output_logits",
                                    "output_scores",
                                    "pad_token_id",
                                    "prefill_chunk_size",
                                    "prompt_lookup_num_tokens",
                                    "remove_invalid_values",
                                    "repetition_penalty",
                                    "return_dict_in_generate",
                                    "return_legacy_cache",
                                    "target_lookbehind",
                                    "temperature",
                                    "top_k",
                                    "top_p",
                                    "transformers_version",
                                    "use_cache",
                                    NULL};

/* ---- reading, with the model ----------------------------------------------------------------- */

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

/* ---- following it ---------------------------------------------------------------------------- */

static bool is_off(const cJSON *item, double off)
{
    if (cJSON_IsNumber(item)) return item->valuedouble == off;
    if (cJSON_IsArray(item)) return cJSON_GetArraySize(item) == 0;
    return cJSON_IsNull(item) || (cJSON_IsFalse(item) && off == 0);
}

static bool is_known(const char *key)
{
    for (const char *const *k = known; *k; k++)
        if (strcmp(*k, key) == 0) return true;
    return false;
}

static bool check_key(mc_model *m, const cJSON *item)
{
    mc_context *ctx = m->module.ctx;
    const char *path = m->generation.path;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (strcmp(item->string, refused[i].key) != 0) continue;
        if (is_off(item, refused[i].off)) return true;
        char *found = cJSON_PrintUnformatted(item);
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "%s: key \"%s\": %.100s is not supported (--ignore-generation-config, or options "
                "of your own, do without the file)",
                path, item->string, found ? found : "");
        cJSON_free(found);
        return false;
    }
    if (!is_known(item->string) && !cJSON_IsNull(item))
        mc_log(ctx, MC_LOG_WARNING, "%s: key \"%s\" is not known and has no effect", path,
               item->string);
    return true;
}

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
    o->length_penalty = penalty == 0 ? MC_LENGTH_PENALTY_NONE : penalty;
    return true;
}

static bool follow(mc_model *m, const cJSON *json, mc_generate_options *o)
{
    mc_error *err = &m->module.ctx->error;
    const char *path = m->generation.path;
    const cJSON *item;
    cJSON_ArrayForEach(item, json) if (!check_key(m, item)) return false;
    return mc_json_get_bool(err, json, path, "do_sample", &o->sample) &&
           mc_json_get_bool(err, json, path, "early_stopping", &o->early_stopping) &&
           read_reals(m, json, o) && read_whole(m, json, "top_k", 0, &o->top_k) &&
           read_whole(m, json, "num_beams", 1, &o->num_beams) &&
           read_whole(m, json, "num_return_sequences", 1, &o->num_return_sequences) &&
           read_whole(m, json, "max_length", 1, &o->max_length) &&
           read_whole(m, json, "max_new_tokens", 1, &o->max_new_tokens);
}

mc_status mc_model_generate_options(mc_model *m, mc_generate_options *options)
{
    *options = (mc_generate_options){0};
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    if (mc_failed(ctx) || !m->generation.text) return mc_error_status(ctx);
    cJSON *json = cJSON_Parse(m->generation.text);
    if (!json)
        mc_fail_nomem(ctx, m->generation.path);
    else if (!follow(m, json, options))
        *options = (mc_generate_options){0};
    cJSON_Delete(json);
    return mc_error_status(ctx);
}
