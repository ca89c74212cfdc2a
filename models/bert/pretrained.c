#include "core/checkpoint/config_json_internal.h"
#include "core/checkpoint/hub_internal.h"
#include "core/checkpoint/pretrained_internal.h"
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

static bool differ(mc_safetensors *file, const char *left, const char *right)
{
    return mc_weights_differ(file, mc_safetensors_find(file, left),
                             mc_safetensors_find(file, right));
}

/* Whether the file's masked language model has a matrix or a bias of its own, which ours cannot:
 * one of "tie_word_embeddings": false. */
static bool is_untied(mc_safetensors *file)
{
    return differ(file, "cls.predictions.decoder.weight",
                  "bert.embeddings.word_embeddings.weight") ||
           differ(file, "cls.predictions.decoder.weight", "embeddings.word_embeddings.weight") ||
           differ(file, "cls.predictions.decoder.bias", "cls.predictions.bias");
}

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

/* Leaves out a head whose logits would be wrong: who asks for them later is told that there is
 * none. */
static void drop_untied(mc_context *ctx, mc_safetensors *file, const char *folder,
                        mc_bert_heads *heads)
{
    if (!heads->mlm || !is_untied(file)) return;
    heads->mlm = false;
    mc_log(ctx, MC_LOG_WARNING,
           "%s: cls.predictions.decoder is not the word embedding with cls.predictions.bias again: "
           "a masked language model of this kind is not supported, and is left out",
           folder);
}

/* Heads in a file that a fine-tune has no use for are not kept when a classifier is asked for. */
static mc_bert *build(mc_context *ctx, const mc_bert_config *config, mc_safetensors *file,
                      const char *folder, const mc_load_options *options)
{
    mc_bert_heads heads = find_heads(file, (int)config->layers, options);
    if (options->num_labels) heads.mlm = heads.nsp = false;
    drop_untied(ctx, file, folder, &heads);
    static const char *const may_be_new[] = {"pooler.*", "cls_projection.*", NULL};
    mc_bert *bert = mc_bert_new(ctx, config, heads, options);
    if (bert)
        mc_weights_load(&bert->module, &mc_bert_weight_map, (int)config->layers, file, folder,
                        may_be_new);
    return bert;
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
    mc_config_reader r = {&ctx->error, json, path};
    bool good =
        json && (!options.saved_dtype || options.dtype || mc_config_dtype(&r, &options.dtype));
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

mc_status mc_bert_save(mc_bert *bert, const char *folder)
{
    if (!bert) return MC_ERR_ARGUMENT;
    mc_context *ctx = bert->module.ctx;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    const mc_bert_heads *heads = &bert->heads;
    char *text = mc_bert_config_print(bert);
    mc_pretrained_folder what = {.model = &bert->module,
                                 .map = &mc_bert_weight_map,
                                 .layers = (int)bert->config.layers,
                                 .prefixed = heads->mlm || heads->nsp || heads->labels,
                                 .config = text};
    mc_pretrained_write(&what, folder);
    cJSON_free(text);
    mc_error_while(&ctx->error, "saving BERT to \"%s\"", folder);
    return mc_error_status(ctx);
}
