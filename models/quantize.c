#include "models/quantize.h"

#include "core/nn/quantized_internal.h"
#include "models/model_internal.h"

static mc_quantized_choice choose(const mc_stored *s, void *user)
{
    const mc_model *m = user;
    const mc_parameter *p = s->parts[0];
    if (m->head_weight == p) return MC_QUANTIZED_ALONE;
    if (m->heads.lm && !m->head_weight && mc_embedding_weight(m->words) == p)
        return MC_QUANTIZED_BESIDE;
    bool in_block = s->owner != &m->module;
    return in_block && s->product_scale != 0 ? MC_QUANTIZED_ALONE : MC_QUANTIZED_NOT;
}

mc_status mc_model_quantize(mc_model *m, mc_weight_format format)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (format != MC_WEIGHTS_INT8 && format != MC_WEIGHTS_FP8)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "weights in 8 bits: format %d, expected MC_WEIGHTS_INT8 or MC_WEIGHTS_FP8",
                       (int)format);
    mc_module_quantize(m->module.root, &(mc_quantized_plan){format, choose, m});
    mc_error_while(&ctx->error, "putting the weights of %s into 8 bits", m->family->title);
    return mc_error_status(ctx);
}

mc_weight_format mc_model_weight_format(const mc_model *m)
{
    const mc_module_root *root = m ? m->module.root : NULL;
    for (size_t i = 0; root && i < root->stored_count; i++)
        if (mc_stored_has_quantized(root->stored[i])) return root->stored[i]->quantized.format;
    return MC_WEIGHTS_FLOAT;
}
