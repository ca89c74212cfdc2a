#include "core/checkpoint/config_json_internal.h"
#include "core/checkpoint/hub_internal.h"
#include "core/checkpoint/pretrained_internal.h"
#include "models/gpt2/gpt2_internal.h"

/* Hugging Face's Conv1D keeps (in, out) matrices, and q, k and v in one. */
#define LAYER "encoder.layers.{i}."
static const mc_weight_rule rules[] = {
    {"input_embedding", "wte"},
    {"position_embedding", "wpe"},
    {"encoder.output_layernorm", "ln_f"},
    {LAYER "self_att.layernorm_before_attention", "h.{i}.ln_1"},
    {LAYER "self_att.self_attention.project_q", "h.{i}.attn.c_attn", .transpose = true, .part = 0,
     .parts = 3},
    {LAYER "self_att.self_attention.project_k", "h.{i}.attn.c_attn", .transpose = true, .part = 1,
     .parts = 3},
    {LAYER "self_att.self_attention.project_v", "h.{i}.attn.c_attn", .transpose = true, .part = 2,
     .parts = 3},
    {LAYER "self_att.self_attention.attention_out", "h.{i}.attn.c_proj", .transpose = true},
    {LAYER "ffn.layernorm_before_ffn", "h.{i}.ln_2"},
    {LAYER "ffn.ffn.w_in.w", "h.{i}.mlp.c_fc", .transpose = true},
    {LAYER "ffn.ffn.w_out", "h.{i}.mlp.c_proj", .transpose = true},
    {"output_projection", "lm_head", .head = true},
    {NULL}};

/* Causal masks are buffers; the head of a tied model is the word embedding again (see untie). */
static const char *const ignored[] = {"*attn.bias", "*attn.masked_bias", "lm_head.weight", NULL};

const mc_weight_map mc_gpt2_weight_map = {
    .rules = rules, .base_prefix = "transformer.", .ignored = ignored};

/* Whether a file holds a head that is not the word embedding again. */
static bool has_own_head(mc_safetensors *file)
{
    return mc_weights_differ(
        file, mc_weight_find(&mc_gpt2_weight_map, 0, file, "output_projection.weight"),
        mc_weight_find(&mc_gpt2_weight_map, 0, file, "input_embedding.weight"));
}

/* As transformers does from version 5 on; earlier ones tied all the same. */
static void untie(mc_context *ctx, mc_safetensors *file, const char *folder, mc_gpt2_config *config)
{
    if (!config->tied || !has_own_head(file)) return;
    config->tied = false;
    mc_log(ctx, MC_LOG_WARNING,
           "%s: lm_head.weight is not the word embedding again, though config.json does not say "
           "\"tie_word_embeddings\": false: it is taken as a head of its own",
           folder);
}

static mc_gpt2 *load(mc_context *ctx, const cJSON *json, const char *path, const char *folder,
                     mc_gpt2_config *config, mc_load_options *options)
{
    mc_config_reader r = {&ctx->error, json, path};
    if (options->saved_dtype && !options->dtype && !mc_config_dtype(&r, &options->dtype))
        return NULL;
    mc_safetensors *file =
        mc_safetensors_open(ctx, folder, &(mc_safetensors_options){.variant = options->variant});
    if (file) untie(ctx, file, folder, config);
    mc_gpt2 *gpt2 = mc_gpt2_new(ctx, config, options);
    if (gpt2 && mc_gpt2_read_eos(gpt2, json, path) == MC_OK)
        mc_weights_load(&gpt2->module, &mc_gpt2_weight_map, (int)config->layers, file, folder,
                        NULL);
    mc_safetensors_free(file);
    return gpt2;
}

mc_gpt2 *mc_gpt2_from_pretrained(mc_context *ctx, const char *identifier,
                                 const mc_load_options *given)
{
    mc_load_options options = given ? *given : (mc_load_options){0};
    char folder[MC_PATH_MAX], path[MC_PATH_MAX];
    mc_gpt2_config config;
    if (mc_failed(ctx) || mc_hub_resolve(&ctx->error, identifier, folder) ||
        mc_path_join(&ctx->error, path, folder, "config.json"))
        return NULL;
    cJSON *json = mc_gpt2_config_json(&ctx->error, path, &config);
    mc_gpt2 *gpt2 = json ? load(ctx, json, path, folder, &config, &options) : NULL;
    cJSON_Delete(json);
    mc_error_while(&ctx->error, "loading GPT-2 \"%s\"", identifier);
    if (!mc_failed(ctx)) return gpt2;
    mc_gpt2_free(gpt2);
    return NULL;
}

mc_status mc_gpt2_save(mc_gpt2 *gpt2, const char *folder)
{
    if (!gpt2) return MC_ERR_ARGUMENT;
    mc_context *ctx = gpt2->module.ctx;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    char *text = mc_gpt2_config_print(gpt2);
    mc_pretrained_folder what = {.model = &gpt2->module,
                                 .map = &mc_gpt2_weight_map,
                                 .layers = (int)gpt2->config.layers,
                                 .prefixed = true,
                                 .config = text};
    mc_pretrained_write(&what, folder);
    cJSON_free(text);
    mc_error_while(&ctx->error, "saving GPT-2 to \"%s\"", folder);
    return mc_error_status(ctx);
}
