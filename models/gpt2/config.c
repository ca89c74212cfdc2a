#include <stdio.h>
#include <string.h>
#include "core/checkpoint/config_json_internal.h"
#include "models/gpt2/gpt2_internal.h"

mc_gpt2_config mc_gpt2_config_default(void)
{
    return (mc_gpt2_config){.vocab_size = 50257,
                            .dim = 768,
                            .dim_ff = 3072,
                            .layers = 12,
                            .heads = 12,
                            .positions = 1024,
                            .activation = MC_ACTIVATION_GELU_NEW,
                            .eps = 1e-5f,
                            .dropout = 0.1f,
                            .embedding_dropout = 0.1f,
                            .attention_dropout = 0.1f,
                            .init_std = 0.02f,
                            .tied = true,
                            .scale_attention = true,
                            .bos_token_id = 50256,
                            .eos_token_id = 50256};
}

/* ---- by name --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int64_t dim, layers, heads;
} named[] = {{"gpt2-base", 768, 12, 12},
             {"gpt2", 768, 12, 12},
             {"gpt2-medium", 1024, 24, 16},
             {"gpt2-large", 1280, 36, 20},
             {"gpt2-xl", 1600, 48, 25}};

mc_status mc_gpt2_config_named(mc_context *ctx, const char *name, mc_gpt2_config *config)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    for (size_t i = 0; name && i < sizeof named / sizeof *named; i++) {
        if (strcmp(named[i].name, name) != 0) continue;
        *config = mc_gpt2_config_default();
        config->dim = named[i].dim;
        config->dim_ff = 4 * named[i].dim;
        config->layers = named[i].layers;
        config->heads = named[i].heads;
        return MC_OK;
    }
    return mc_fail(ctx, MC_ERR_NOT_FOUND,
                   "no GPT-2 config is called \"%s\", expected gpt2-base (or gpt2), gpt2-medium, "
                   "gpt2-large or gpt2-xl",
                   name ? name : "");
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_sizes(mc_config_reader *r, mc_gpt2_config *c)
{
    bool good = mc_config_size(r, "vocab_size", "vocab_size", 1, &c->vocab_size) &&
                mc_config_size(r, "n_embd", "dim_model", 1, &c->dim) &&
                mc_config_size(r, "n_layer", "num_layers", 0, &c->layers) &&
                mc_config_size(r, "n_head", "num_heads", 1, &c->heads) &&
                mc_config_size(r, "n_ctx", "position_size", 1, &c->positions) &&
                mc_config_size(r, "n_positions", "n_positions", 1, &c->positions);
    c->dim_ff = 4 * c->dim;
    return good && mc_config_size(r, "n_inner", "dim_ff", 1, &c->dim_ff);
}

static bool read_rates(mc_config_reader *r, mc_gpt2_config *c)
{
    return mc_config_float(r, "layer_norm_epsilon", "norm_eps", 1e-30, 1, &c->eps) &&
           mc_config_dropout(r, "resid_pdrop", "dropout_p", &c->dropout) &&
           mc_config_dropout(r, "embd_pdrop", "dropout_p", &c->embedding_dropout) &&
           mc_config_dropout(r, "attn_pdrop", "dropout_p", &c->attention_dropout) &&
           mc_config_float(r, "initializer_range", "att_init_std", 0, 1e6, &c->init_std);
}

/* A token id, -1 where the file says null; a list's first. */
static bool read_token(mc_config_reader *r, const char *key, int64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->json, key);
    if (cJSON_IsNull(item)) *out = -1;
    if (cJSON_IsArray(item)) return true; /* see mc_gpt2_read_eos */
    return mc_json_get_int(r->err, r->json, r->path, key, -1, INT32_MAX, out);
}

static bool read_choices(mc_config_reader *r, mc_gpt2_config *c)
{
    const char *type = "gpt2", *position = "none";
    if (!mc_config_string(r, "model_type", "model_type", &type) ||
        !mc_config_string(r, "pos_bias_type", "pos_bias_type", &position))
        return false;
    if (strcmp(type, "gpt2") != 0) return mc_config_unsupported(r, "model_type", type, "gpt2");
    if (strcmp(position, "none") != 0)
        return mc_config_unsupported(r, "pos_bias_type", position, "none");
    return mc_config_activation(r, "activation_function", "ffn_activate_fn", &c->activation) &&
           mc_config_flag(r, "tie_word_embeddings", "tied", &c->tied) &&
           mc_config_flag(r, "scale_attn_weights", "attn_scale", &c->scale_attention) &&
           mc_config_flag(r, "scale_attn_by_inverse_layer_idx", "scale_attn_by_inverse_layer_idx",
                          &c->scale_by_layer) &&
           read_token(r, "bos_token_id", &c->bos_token_id) &&
           read_token(r, "eos_token_id", &c->eos_token_id);
}

/* What other models of ModelCenter's and Hugging Face's code can be, but this one is not. */
static bool check_fixed(mc_config_reader *r, const mc_gpt2_config *c)
{
    static const struct {
        const char *key;
        bool value;
    } fixed[] = {{"add_cross_attention", false},
                 {"post_layer_norm", true},
                 {"norm_bias", true},
                 {"att_bias", true},
                 {"ffn_bias", true},
                 {"proj_bias", false},
                 {"length_scale", false},
                 {"parallel_ffn", false}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (!mc_config_must_be(r, fixed[i].key, fixed[i].value)) return false;
    int64_t head = c->dim / c->heads;
    if (!mc_config_size(r, "dim_head", "dim_head", 1, &head)) return false;
    if (c->dim % c->heads == 0 && head * c->heads == c->dim) return true;
    mc_error_set(r->err, MC_ERR_FORMAT,
                 "%s: n_embd (dim_model) %lld, n_head (num_heads) %lld, heads of %lld: expected "
                 "n_head heads that make up n_embd",
                 r->path, (long long)c->dim, (long long)c->heads, (long long)head);
    return false;
}

cJSON *mc_gpt2_config_json(mc_error *err, const char *path, mc_gpt2_config *config)
{
    cJSON *json = mc_json_read_object(err, path, 1 << 24);
    if (!json) return NULL;
    *config = mc_gpt2_config_default();
    mc_config_reader r = {err, json, path};
    if (read_choices(&r, config) && read_sizes(&r, config) && read_rates(&r, config) &&
        check_fixed(&r, config))
        return json;
    cJSON_Delete(json);
    return NULL;
}

mc_status mc_gpt2_config_read(mc_context *ctx, const char *path, mc_gpt2_config *config)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    cJSON_Delete(mc_gpt2_config_json(&ctx->error, path, config));
    return mc_error_status(ctx);
}

mc_status mc_gpt2_read_eos(mc_gpt2 *gpt2, const cJSON *json, const char *path)
{
    mc_context *ctx = gpt2->module.ctx;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "eos_token_id"), *item;
    if (!cJSON_IsArray(list)) return MC_OK;
    gpt2->eos_count = 0;
    cJSON_ArrayForEach(item, list)
    {
        bool good = cJSON_IsNumber(item) && item->valuedouble >= 0 &&
                    item->valuedouble <= INT32_MAX && gpt2->eos_count < MC_GPT2_MAX_EOS &&
                    item->valuedouble == (double)(int32_t)item->valuedouble;
        if (!good)
            return mc_fail(ctx, MC_ERR_FORMAT,
                           "%s: key \"eos_token_id\": expected a token or up to %d of them", path,
                           MC_GPT2_MAX_EOS);
        gpt2->eos[gpt2->eos_count++] = (int32_t)item->valuedouble;
    }
    gpt2->config.eos_token_id = gpt2->eos_count ? gpt2->eos[0] : -1;
    return MC_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool add_token(cJSON *json, const char *key, int64_t token)
{
    return token < 0 ? (bool)cJSON_AddNullToObject(json, key)
                     : (bool)cJSON_AddNumberToObject(json, key, (double)token);
}

static bool add_eos(cJSON *json, const mc_gpt2 *gpt2)
{
    if (gpt2->eos_count < 2) return add_token(json, "eos_token_id", gpt2->config.eos_token_id);
    cJSON *list = cJSON_CreateIntArray(gpt2->eos, gpt2->eos_count);
    if (list && cJSON_AddItemToObject(json, "eos_token_id", list)) return true;
    cJSON_Delete(list);
    return false;
}

static bool add_sizes(cJSON *json, const mc_gpt2_config *c)
{
    bool usual = c->dim_ff == 4 * c->dim;
    return cJSON_AddNumberToObject(json, "vocab_size", (double)c->vocab_size) &&
           cJSON_AddNumberToObject(json, "n_positions", (double)c->positions) &&
           cJSON_AddNumberToObject(json, "n_embd", (double)c->dim) &&
           cJSON_AddNumberToObject(json, "n_layer", (double)c->layers) &&
           cJSON_AddNumberToObject(json, "n_head", (double)c->heads) &&
           (usual ? cJSON_AddNullToObject(json, "n_inner")
                  : cJSON_AddNumberToObject(json, "n_inner", (double)c->dim_ff));
}

static bool add_all(cJSON *json, const mc_gpt2 *gpt2)
{
    const mc_gpt2_config *c = &gpt2->config;
    cJSON *list = cJSON_AddArrayToObject(json, "architectures");
    return list && cJSON_AddItemToArray(list, cJSON_CreateString("GPT2LMHeadModel")) &&
           cJSON_AddStringToObject(json, "model_type", "gpt2") &&
           mc_config_add_dtype(json, gpt2->module.root->dtype) && add_sizes(json, c) &&
           mc_config_add_activation(json, "activation_function", c->activation) &&
           mc_config_add_float(json, "layer_norm_epsilon", c->eps) &&
           mc_config_add_float(json, "resid_pdrop", c->dropout) &&
           mc_config_add_float(json, "embd_pdrop", c->embedding_dropout) &&
           mc_config_add_float(json, "attn_pdrop", c->attention_dropout) &&
           mc_config_add_float(json, "initializer_range", c->init_std) &&
           cJSON_AddBoolToObject(json, "tie_word_embeddings", c->tied) &&
           cJSON_AddBoolToObject(json, "scale_attn_weights", c->scale_attention) &&
           cJSON_AddBoolToObject(json, "scale_attn_by_inverse_layer_idx", c->scale_by_layer) &&
           add_token(json, "bos_token_id", c->bos_token_id) && add_eos(json, gpt2);
}

char *mc_gpt2_config_print(const mc_gpt2 *gpt2)
{
    cJSON *json = cJSON_CreateObject();
    char *text = json && add_all(json, gpt2) ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    return text;
}
