#include <math.h>
#include "models/gpt2/gpt2_internal.h"

/* ---- construction ---------------------------------------------------------------------------- */

/* What the scores of a layer's attention are multiplied by. */
static float attention_scale(const mc_gpt2_config *c, int layer)
{
    double scale = c->scale_attention ? 1 / sqrt((double)c->dim / (double)c->heads) : 1;
    return (float)(c->scale_by_layer ? scale / (layer + 1) : scale);
}

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    mc_gpt2 *gpt2 = config;
    const mc_gpt2_config *c = &gpt2->config;
    mc_gpt2_block *block = mc_module_add(list, name, sizeof *block);
    if (!block) return NULL;
    mc_module *m = &block->module;
    /* the residual stream is the sum of 2 * layers branches (Radford et al. 2019) */
    float out_std = c->init_std / sqrtf(2.0f * (float)c->layers);
    mc_attention_options attention = {.causal = true,
                                      .dropout = c->attention_dropout,
                                      .init_std = c->init_std,
                                      .out_std = out_std,
                                      .scale = attention_scale(c, index)};
    mc_feed_forward_options ffn = {
        .activation = c->activation, .init_std = c->init_std, .out_std = out_std};
    block->gpt2 = gpt2;
    block->number = index;
    block->attention_norm =
        mc_layernorm_add(m, "self_att.layernorm_before_attention", c->dim, c->eps);
    block->attention =
        mc_attention_add(m, "self_att.self_attention", c->dim, (int)c->heads, &attention);
    block->ffn_norm = mc_layernorm_add(m, "ffn.layernorm_before_ffn", c->dim, c->eps);
    block->ffn = mc_feed_forward_add(m, "ffn.ffn", c->dim, c->dim_ff, &ffn);
    return block->ffn ? block : NULL;
}

static bool check(mc_context *ctx, const mc_gpt2_config *c)
{
    enum { MOST_LAYERS = 4096 };
    if (c->dim >= 1 && c->heads >= 1 && c->dim % c->heads == 0 && c->vocab_size >= 1 &&
        c->dim_ff >= 1 && c->layers >= 0 && c->layers <= MOST_LAYERS && c->positions >= 1 &&
        c->eps > 0 && c->vocab_size <= INT32_MAX - MC_GPT2_VOCAB_ALIGN)
        return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT,
                    "GPT-2 config: dim %lld, heads %lld, dim_ff %lld, layers %lld, vocabulary "
                    "%lld, positions %lld, eps %g: expected positive sizes, heads dividing dim, "
                    "up to %d layers",
                    (long long)c->dim, (long long)c->heads, (long long)c->dim_ff,
                    (long long)c->layers, (long long)c->vocab_size, (long long)c->positions,
                    (double)c->eps, MOST_LAYERS);
}

static void add_parts(mc_gpt2 *gpt2, const mc_load_options *options)
{
    mc_module *m = &gpt2->module;
    const mc_gpt2_config *c = &gpt2->config;
    gpt2->words = mc_embedding_add_padded(m, "input_embedding", c->vocab_size, c->dim, c->init_std,
                                          MC_GPT2_VOCAB_ALIGN);
    gpt2->positions = mc_embedding_add(m, "position_embedding", c->positions, c->dim, c->init_std);
    gpt2->blocks =
        mc_block_list_new(m, "encoder.layers", (int)c->layers, new_block, mc_gpt2_block_forward,
                          &(mc_block_options){.recompute = options->recompute, .config = gpt2});
    gpt2->norm = mc_layernorm_add(m, "encoder.output_layernorm", c->dim, c->eps);
    if (c->tied) return;
    int64_t rows = (c->vocab_size + MC_GPT2_VOCAB_ALIGN - 1) / MC_GPT2_VOCAB_ALIGN;
    gpt2->head =
        mc_parameter_new_padded(m, "output_projection.weight", MC_SHAPE(c->vocab_size, c->dim),
                                rows * MC_GPT2_VOCAB_ALIGN, mc_init_normal(0, c->init_std));
}

mc_gpt2 *mc_gpt2_new(mc_context *ctx, const mc_gpt2_config *config, const mc_load_options *options)
{
    mc_load_options none = {0};
    if (!options) options = &none;
    if (mc_failed(ctx)) return NULL;
    if (options->num_labels) {
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "GPT-2: a head of %d labels is not supported",
                options->num_labels);
        return NULL;
    }
    if (!check(ctx, config)) return NULL;
    mc_gpt2 *gpt2 =
        mc_module_new(ctx, "", sizeof *gpt2, &(mc_module_options){.dtype = options->dtype});
    if (!gpt2) return NULL;
    gpt2->config = *config;
    if (config->eos_token_id >= 0 && config->eos_token_id <= INT32_MAX)
        gpt2->eos[gpt2->eos_count++] = (int32_t)config->eos_token_id;
    add_parts(gpt2, options);
    if (!mc_failed(ctx)) return gpt2;
    mc_module_free(&gpt2->module);
    return NULL;
}

void mc_gpt2_free(mc_gpt2 *gpt2)
{
    if (gpt2) mc_module_free(&gpt2->module);
}

mc_module *mc_gpt2_module(mc_gpt2 *gpt2) { return gpt2 ? &gpt2->module : NULL; }
int64_t mc_gpt2_dim(const mc_gpt2 *gpt2) { return gpt2 ? gpt2->config.dim : 0; }
mc_gpt2_config mc_gpt2_get_config(const mc_gpt2 *gpt2)
{
    return gpt2 ? gpt2->config : (mc_gpt2_config){0};
}

void mc_gpt2_set_dropout(mc_gpt2 *gpt2, float p)
{
    if (!gpt2) return;
    gpt2->config.dropout = gpt2->config.embedding_dropout = gpt2->config.attention_dropout = p;
    for (int i = 0; i < mc_block_list_count(gpt2->blocks); i++) {
        mc_gpt2_block *block = mc_block_list_at(gpt2->blocks, i);
        mc_attention_set_dropout(block->attention, p);
    }
}

void mc_gpt2_set_recompute(mc_gpt2 *gpt2, mc_recompute recompute)
{
    if (gpt2) mc_block_list_set_recompute(gpt2->blocks, recompute);
}
