#include <stdio.h>
#include <string.h>
#include "core/checkpoint/hub_internal.h"
#include "models/bert/bert_internal.h"

static const mc_weight_rule rules[] = {
    {"input_embedding", "embeddings.word_embeddings", false},
    {"position_embedding", "embeddings.position_embeddings", false},
    {"token_type_embedding", "embeddings.token_type_embeddings", false},
    {"embedding_layernorm", "embeddings.LayerNorm", false}, /* of a model without layers */
    {"encoder.layers.0.self_att.layernorm_before_attention", "embeddings.LayerNorm", false},
    {"encoder.layers.{i}.self_att.layernorm_before_attention",
     "encoder.layer.{i-1}.output.LayerNorm", false},
    {"encoder.output_layernorm", "encoder.layer.{last}.output.LayerNorm", false},
    {"encoder.layers.{i}.self_att.self_attention.project_q",
     "encoder.layer.{i}.attention.self.query", false},
    {"encoder.layers.{i}.self_att.self_attention.project_k", "encoder.layer.{i}.attention.self.key",
     false},
    {"encoder.layers.{i}.self_att.self_attention.project_v",
     "encoder.layer.{i}.attention.self.value", false},
    {"encoder.layers.{i}.self_att.self_attention.attention_out",
     "encoder.layer.{i}.attention.output.dense", false},
    {"encoder.layers.{i}.ffn.layernorm_before_ffn", "encoder.layer.{i}.attention.output.LayerNorm",
     false},
    {"encoder.layers.{i}.ffn.ffn.w_in.w", "encoder.layer.{i}.intermediate.dense", false},
    {"encoder.layers.{i}.ffn.ffn.w_out", "encoder.layer.{i}.output.dense", false},
    {"pooler.dense", "pooler.dense", false},
    {"lm_head.dense", "cls.predictions.transform.dense", true},
    {"lm_head.layer_norm", "cls.predictions.transform.LayerNorm", true},
    {"lm_head.decoder", "cls.predictions", true},
    {"nsp_head", "cls.seq_relationship", true},
    {"cls_projection", "classifier", true},
    {NULL, NULL, false}};

/* Position ids are a buffer; the decoder's weight is the word embedding again, and its bias is
 * cls.predictions.bias again. */
static const char *const ignored[] = {"*embeddings.position_ids", "*embeddings.token_type_ids",
                                      "cls.predictions.decoder.*", NULL};

const mc_weight_map mc_bert_weight_map = {
    .rules = rules, .base_prefix = "bert.", .ignored = ignored};

/* The heads a file holds, and those asked for. */
static mc_bert_heads find_heads(const mc_safetensors *file, int layers,
                                const mc_load_options *options)
{
    mc_bert_heads heads = {.pooler = true};
    const mc_weight_map *map = &mc_bert_weight_map;
    heads.mlm = mc_weight_find(map, layers, file, "lm_head.dense.weight");
    heads.nsp = mc_weight_find(map, layers, file, "nsp_head.weight");
    const mc_safetensors_entry *classifier =
        mc_weight_find(map, layers, file, "cls_projection.weight");
    if (options->num_labels)
        heads.labels = options->num_labels;
    else if (classifier && classifier->ndim == 2 && classifier->shape[0] <= MC_BERT_MAX_LABELS)
        heads.labels = (int)classifier->shape[0];
    return heads;
}

/* Heads in a file that a fine-tune has no use for are not kept when a classifier is asked for. */
static mc_bert *build(mc_context *ctx, const mc_bert_config *config, mc_safetensors *file,
                      const char *folder, const mc_load_options *options)
{
    mc_bert_heads heads = find_heads(file, (int)config->layers, options);
    if (options->num_labels) heads.mlm = heads.nsp = false;
    static const char *const may_be_new[] = {"pooler.*", "cls_projection.*", NULL};
    mc_bert *bert = mc_bert_new(ctx, config, heads, options);
    if (bert)
        mc_weights_load(&bert->module, &mc_bert_weight_map, (int)config->layers, file, folder,
                        may_be_new);
    return bert;
}

/* The dtype that config.json says the model was saved in. */
static bool read_saved_dtype(mc_error *err, const cJSON *json, const char *path, mc_dtype *dtype)
{
    static const struct {
        const char *name;
        mc_dtype dtype;
    } known[] = {{"float32", MC_F32}, {"float16", MC_F16}, {"bfloat16", MC_BF16}};
    const char *name = "float32";
    if (!mc_json_get_string(err, json, path, "torch_dtype", &name) ||
        !mc_json_get_string(err, json, path, "dtype", &name))
        return false;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, known[i].name) == 0) *dtype = known[i].dtype;
    if (!*dtype)
        mc_error_set(err, MC_ERR_UNSUPPORTED,
                     "%s: dtype \"%s\" is not supported, expected float32, float16 or bfloat16",
                     path, name);
    return *dtype;
}

mc_bert *mc_bert_from_pretrained(mc_context *ctx, const char *identifier,
                                 const mc_load_options *given)
{
    mc_load_options options = given ? *given : (mc_load_options){0};
    char folder[MC_PATH_MAX], path[MC_PATH_MAX];
    mc_bert_config config;
    if (mc_failed(ctx) || mc_hub_resolve(&ctx->error, identifier, folder) ||
        mc_path_join(&ctx->error, path, folder, "config.json"))
        return NULL;
    cJSON *json = mc_bert_config_json(&ctx->error, path, &config);
    mc_safetensors *file = NULL;
    bool good = json && (!options.saved_dtype || options.dtype ||
                         read_saved_dtype(&ctx->error, json, path, &options.dtype));
    if (good)
        file =
            mc_safetensors_open(ctx, folder, &(mc_safetensors_options){.variant = options.variant});
    mc_bert *bert = file ? build(ctx, &config, file, folder, &options) : NULL;
    if (bert) mc_bert_read_task(bert, json, path);
    mc_safetensors_free(file);
    cJSON_Delete(json);
    mc_error_while(&ctx->error, "loading BERT \"%s\"", identifier);
    if (!mc_failed(ctx)) return bert;
    mc_bert_free(bert);
    return NULL;
}

static void write_folder(mc_bert *bert, const char *text, const char *config_path,
                         const char *weights_path)
{
    mc_context *ctx = bert->module.ctx;
    mc_safetensors_writer *weights =
        mc_weights_write(&bert->module, &mc_bert_weight_map, (int)bert->config.layers,
                         bert->heads.mlm || bert->heads.nsp || bert->heads.labels, weights_path);
    mc_file_writer config;
    if (mc_file_writer_init(&ctx->error, &config, config_path) == MC_OK) {
        mc_file_write(&config, text, strlen(text));
        mc_file_write(&config, "\n", 1);
        mc_file_sync(&config);
        mc_safetensors_writer_sync(weights);
        mc_file_rename(&config);
        mc_safetensors_writer_rename(weights);
    }
    mc_file_writer_release(&config);
    mc_safetensors_writer_free(weights);
}

mc_status mc_bert_save(mc_bert *bert, const char *folder)
{
    if (!bert) return MC_ERR_ARGUMENT;
    mc_context *ctx = bert->module.ctx;
    char config_path[MC_PATH_MAX], weights_path[MC_PATH_MAX];
    if (mc_failed(ctx) || mc_make_folders(&ctx->error, folder) ||
        mc_path_join(&ctx->error, config_path, folder, "config.json") ||
        mc_path_join(&ctx->error, weights_path, folder, "model.safetensors"))
        return mc_error_status(ctx);
    char *text = mc_bert_config_print(bert);
    if (!text) return mc_fail_nomem(ctx, "config.json");
    write_folder(bert, text, config_path, weights_path);
    cJSON_free(text);
    mc_error_while(&ctx->error, "saving BERT to \"%s\"", folder);
    return mc_error_status(ctx);
}
