#include "models/quantize.h"

#include "core/nn/fp8_internal.h"
#include "core/nn/quantized_internal.h"
#include "models/adapters/adapter.h"
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

/* False after an error, too. */
static bool is_format(mc_context *ctx, mc_weight_format format)
{
    if (mc_failed(ctx)) return false;
    if (format == MC_WEIGHTS_INT8 || format == MC_WEIGHTS_FP8) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT,
                    "weights in 8 bits: format %d, expected MC_WEIGHTS_INT8 or MC_WEIGHTS_FP8",
                    (int)format);
}

mc_status mc_model_quantize(mc_model *m, mc_weight_format format)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    if (!is_format(ctx, format)) return mc_error_status(ctx);
    mc_module_quantize(m->module.root, &(mc_quantized_plan){format, choose, m, false});
    mc_error_while(&ctx->error, "putting the weights of %s into 8 bits", m->family->title);
    return mc_error_status(ctx);
}

/* What an adapter's base has in 8 bits: no head, since its loss takes the matrix itself. */
static mc_quantized_choice choose_base(const mc_stored *s, void *user)
{
    const mc_model *m = user;
    bool in_block = s->owner != &m->module;
    return in_block && s->product_scale != 0 && !s->trainable ? MC_QUANTIZED_ALONE
                                                              : MC_QUANTIZED_NOT;
}

/* A recipe is set anew, for weights that are in 8 bits now. */
mc_status mc_model_quantize_base(mc_model *m, mc_weight_format format)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    const mc_fp8_state *fp8 = m->module.root->fp8;
    const mc_recipe recipe = fp8 ? fp8->recipe : (mc_recipe){0};
    if (!is_format(ctx, format)) return mc_error_status(ctx);
    if (!mc_model_lora(m) && !mc_model_soft_prompt(m))
        mc_fail(ctx, MC_ERR_STATE,
                "a base in 8 bits: the model has no adapter, expected LoRA or virtual tokens");
    else if (mc_fp8_allows(ctx, &recipe, format, "a base"))
        mc_module_quantize(m->module.root, &(mc_quantized_plan){format, choose_base, m, true});
    if (recipe.fp8) mc_module_set_recipe(&m->module, &recipe);
    mc_error_while(&ctx->error, "putting the base of %s's adapter into 8 bits", m->family->title);
    return mc_error_status(ctx);
}

mc_weight_format mc_model_weight_format(const mc_model *m)
{
    return m ? mc_module_weight_format(m->module.root) : MC_WEIGHTS_FLOAT;
}
