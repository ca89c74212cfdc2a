/* Weights in 8 bits, for generation and other evaluation: half the memory of bf16 and a quarter of
 * f32, and as much less to read for each token.
 *
 *     mc_model *gptj = mc_model_from_pretrained(ctx, "EleutherAI/gpt-j-6b", &load);
 *     mc_model_quantize(gptj, MC_WEIGHTS_INT8);
 *     mc_generation *out = mc_model_generate(gptj, prompts, lengths, count, NULL);
 *
 * Each row of a matrix (one output of its layer) has a scale of its own in f32: the row's largest
 * magnitude / 127 (INT8) or / 448 (FP8). A weight is the scale times the nearest number of the
 * format, ties to even. Activations keep the model's dtype, and products sum in f32.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_QUANTIZE_H
#define MC_MODELS_QUANTIZE_H

#include "core/device/weights.h"
#include "models/model.h"

/* Quantizes all linear layers of a model's blocks to 8 bits, and the language model's head: its own
 * matrix, or, if it is tied to the embedding, a copy for the products, while lookups use the
 * unchanged embedding. Biases, norms, embeddings and classifiers stay unchanged. The memory of
 * replaced weights returns to the context's pool block by block, so the peak is the loaded model
 * plus one block. With several ranks each rank keeps all 8-bit weights, at any ZeRO level. Runs on
 * the device, after the weights are loaded; all ranks call it together. LoRA factors keep their
 * dtype.
 *
 * From then on the model is frozen. Thawing or writing a weight in 8 bits, adding the model to an
 * optimizer, training its head, saving it and merging LoRA fail with MC_ERR_UNSUPPORTED.
 * mc_parameter_read returns the dequantized values.
 *
 * Errors: a format out of range, MC_WEIGHTS_FLOAT among them; a model that is in 8 bits already,
 * has gradients or an optimizer's state, or is used by an open tape; a weight that is not finite
 * (named with its row). If memory runs out, a second call quantizes the rest. */
MC_API mc_status mc_model_quantize(mc_model *model, mc_weight_format format);
/* The same for the base of an adapter that is being trained (as in QLoRA; Dettmers et al. 2023):
 * the frozen linear layers of the blocks are in 8 bits, while trainable parameters, embeddings,
 * norms and heads keep the model's dtype. Gradients flow through the dequantized weights; backward
 * takes scratch memory for one such matrix in the model's dtype. With a recipe
 * (mc_load_options.recipe, or mc_module_set_recipe after this call) and MC_WEIGHTS_FP8, products
 * multiply bytes instead (core/nn/recipe.h). Call it after loading the weights
 * and before adding an optimizer; all ranks call it together, and each keeps all 8-bit weights. The
 * adapter is saved as always; an optimizer skips 8-bit weights.
 *
 *     mc_model *gptj = mc_model_from_pretrained(ctx, "EleutherAI/gpt-j-6b", &load);
 *     mc_lora_add(gptj, NULL);
 *     mc_model_quantize_base(gptj, MC_WEIGHTS_FP8);
 *     mc_optimizer_add(adam, mc_model_module(gptj));
 *
 * Errors: those of mc_model_quantize; MC_ERR_STATE for a model without LoRA or virtual tokens;
 * MC_ERR_UNSUPPORTED for one with a recipe of 8 bits if the format is MC_WEIGHTS_INT8 or the recipe
 * MC_FP8_STATIC. */
MC_API mc_status mc_model_quantize_base(mc_model *model, mc_weight_format format);
/* The format of the weights of a model's linear layers. MC_WEIGHTS_FLOAT for NULL. */
MC_API mc_weight_format mc_model_weight_format(const mc_model *model);

#endif
