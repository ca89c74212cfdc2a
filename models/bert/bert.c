#include <stdio.h>
#include <string.h>
#include "models/bert/bert_internal.h"

/* ---- construction ---------------------------------------------------------------------------- */

/* A block ends with a layer norm (post-LN), so that one fused kernel does sum and norm. ModelCenter
 * names that norm after the place where it is used next: the following layer's first norm, or the
 * encoder's output norm. */
typedef struct bert_block {
    mc_module module;
    mc_bert *bert;
    mc_attention *attention;
    mc_layernorm *attention_norm, *output_norm;
    mc_feed_forward *ffn;
} bert_block;

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    mc_bert *bert = config;
    const mc_bert_config *c = &bert->config;
    bert_block *block = mc_module_add(list, name, sizeof *block);
    if (!block) return NULL;
    char output_name[96] = "/encoder.output_layernorm";
    if (index + 1 < c->layers)
        snprintf(output_name, sizeof output_name,
                 "/encoder.layers.%d.self_att.layernorm_before_attention", index + 1);
    mc_module *m = &block->module;
    mc_attention_options attention = {.dropout = c->attention_dropout, .init_std = c->init_std};
    block->bert = bert;
    block->attention =
        mc_attention_add(m, "self_att.self_attention", c->dim, (int)c->heads, &attention);
    block->attention_norm = mc_layernorm_add(m, "ffn.layernorm_before_ffn", c->dim, c->eps);
    mc_feed_forward_options ffn = {.activation = c->activation, .init_std = c->init_std};
    block->ffn = mc_feed_forward_add(m, "ffn.ffn", c->dim, c->dim_ff, &ffn);
    block->output_norm = mc_layernorm_add(m, output_name, c->dim, c->eps);
    return block->output_norm ? block : NULL;
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, mc_tensor *const *extra)
{
    bert_block *block = object;
    float dropout = block->bert->config.dropout;
    mc_tensor *f = mc_attention_forward(t, block->attention, x, extra[0]);
    mc_tensor *h = mc_layernorm_forward_residual(t, block->attention_norm, x, f, dropout);
    mc_tape_release(t, f);
    f = mc_feed_forward_forward(t, block->ffn, h);
    return f ? mc_layernorm_forward_residual(t, block->output_norm, h, f, dropout) : NULL;
}

static void add_heads(mc_bert *bert)
{
    mc_module *m = &bert->module;
    const mc_bert_config *c = &bert->config;
    mc_linear_options options = {.init_std = c->init_std};
    if (bert->heads.pooler)
        bert->pooler = mc_linear_add(m, "pooler.dense", c->dim, c->dim, &options);
    if (bert->heads.mlm) {
        bert->mlm_dense = mc_linear_add(m, "lm_head.dense", c->dim, c->dim, &options);
        bert->mlm_norm = mc_layernorm_add(m, "lm_head.layer_norm", c->dim, c->eps);
        bert->mlm_bias =
            mc_parameter_new(m, "lm_head.decoder.bias", MC_SHAPE(c->vocab_size), mc_init_zeros());
    }
    if (bert->heads.nsp) bert->nsp = mc_linear_add(m, "nsp_head", c->dim, 2, &options);
    if (bert->heads.labels)
        bert->classifier = mc_linear_add(m, "cls_projection", c->dim, bert->heads.labels, &options);
}

static bool check(mc_context *ctx, const mc_bert_config *c, const mc_bert_heads *heads)
{
    enum { MOST_LAYERS = 4096 };
    if (c->dim < 1 || c->heads < 1 || c->dim % c->heads || c->vocab_size < 1 || c->dim_ff < 1 ||
        c->layers < 0 || c->layers > MOST_LAYERS || c->positions < 1 || c->types < 1 ||
        !(c->eps > 0))
        return !mc_fail(
            ctx, MC_ERR_ARGUMENT,
            "BERT config: dim %lld, heads %lld, dim_ff %lld, layers %lld, vocabulary %lld, "
            "positions %lld, types %lld, eps %g: expected positive sizes, heads dividing dim, up "
            "to %d "
            "layers",
            (long long)c->dim, (long long)c->heads, (long long)c->dim_ff, (long long)c->layers,
            (long long)c->vocab_size, (long long)c->positions, (long long)c->types, (double)c->eps,
            MOST_LAYERS);
    if (heads->labels < 0 || heads->labels > MC_BERT_MAX_LABELS)
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "BERT: %d labels, expected 0 to %d", heads->labels,
                        MC_BERT_MAX_LABELS);
    if ((heads->labels || heads->nsp) && !heads->pooler)
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "BERT: a classifier or NSP head needs the pooler");
    return true;
}

mc_bert *mc_bert_new(mc_context *ctx, const mc_bert_config *config, mc_bert_heads heads,
                     const mc_load_options *options)
{
    mc_load_options none = {0};
    if (!options) options = &none;
    if (mc_failed(ctx) || !check(ctx, config, &heads)) return NULL;
    mc_bert *bert =
        mc_module_new(ctx, "", sizeof *bert, &(mc_module_options){.dtype = options->dtype});
    if (!bert) return NULL;
    bert->config = *config;
    bert->heads = heads;
    mc_module *m = &bert->module;
    float std = config->init_std;
    bert->words = mc_embedding_add(m, "input_embedding", config->vocab_size, config->dim, std);
    bert->positions =
        mc_embedding_add(m, "position_embedding", config->positions, config->dim, std);
    bert->types = mc_embedding_add(m, "token_type_embedding", config->types, config->dim, std);
    const char *norm = config->layers ? "encoder.layers.0.self_att.layernorm_before_attention"
                                      : "embedding_layernorm";
    bert->embedding_norm = mc_layernorm_add(m, norm, config->dim, config->eps);
    bert->blocks =
        mc_block_list_new(m, "encoder.layers", (int)config->layers, new_block, block_forward,
                          &(mc_block_options){.recompute = options->recompute, .config = bert});
    add_heads(bert);
    if (!mc_failed(ctx)) return bert;
    mc_module_free(m);
    return NULL;
}

void mc_bert_free(mc_bert *bert)
{
    if (bert) mc_module_free(&bert->module);
}

mc_module *mc_bert_module(mc_bert *bert) { return bert ? &bert->module : NULL; }
int64_t mc_bert_dim(const mc_bert *bert) { return bert ? bert->config.dim : 0; }
mc_bert_config mc_bert_get_config(const mc_bert *bert)
{
    return bert ? bert->config : (mc_bert_config){0};
}
mc_bert_heads mc_bert_get_heads(const mc_bert *bert)
{
    return bert ? bert->heads : (mc_bert_heads){0};
}

void mc_bert_set_dropout(mc_bert *bert, float p)
{
    if (!bert) return;
    bert->config.dropout = bert->config.attention_dropout = bert->config.classifier_dropout = p;
    for (int i = 0; i < mc_block_list_count(bert->blocks); i++) {
        bert_block *block = mc_block_list_at(bert->blocks, i);
        mc_attention_set_dropout(block->attention, p);
    }
}

mc_status mc_bert_set_task(mc_bert *bert, const char *task, const char *const *label_names)
{
    if (!bert) return MC_ERR_ARGUMENT;
    mc_context *ctx = bert->module.ctx;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (task) bert->task = mc_module_strdup(bert->module.root, task);
    if (!label_names) return mc_error_status(ctx);
    char **names =
        mc_module_alloc(bert->module.root, ((size_t)bert->heads.labels + 1) * sizeof *names);
    for (int i = 0; names && i < bert->heads.labels; i++)
        if (!(names[i] = mc_module_strdup(bert->module.root, label_names[i])))
            return mc_error_status(ctx);
    bert->label_names = names;
    return mc_error_status(ctx);
}

const char *mc_bert_task(const mc_bert *bert) { return bert ? bert->task : NULL; }

const char *mc_bert_label_name(const mc_bert *bert, int label)
{
    if (!bert || !bert->label_names || label < 0 || label >= bert->heads.labels) return NULL;
    return bert->label_names[label];
}
