/* Weights in 8 bits, for generation and other evaluation: half the memory of bf16, a quarter of
 * f32's, and as much less to read for each token.
 *
 *     mc_model *gptj = mc_model_from_pretrained(ctx, "EleutherAI/gpt-j-6b", &load);
 *     mc_model_quantize(gptj, MC_WEIGHTS_INT8);
 *     mc_generation *out = mc_model_generate(gptj, prompts, lengths, count, NULL);
 *
 * Each row of a matrix (one output of its layer) has a scale of its own in f32: the row's largest
 * magnitude / 127 (INT8) or / 448 (FP8). A weight is the scale times the nearest number of the
 * format, ties to even. Activations keep the model's dtype, and products sum in f32. */
#ifndef MC_MODELS_QUANTIZE_H
#define MC_MODELS_QUANTIZE_H

#include "core/device/weights.h"
#include "models/model.h"

/* Puts all linear layers of a model's blocks into 8 bits, and the language model's head: its own
 * matrix, or where that is the embedding's a copy, which products take, while rows of tokens are
 * looked up as they were. Biases, norms, embeddings and classifiers stay as they are. Memory of
 * what was replaced goes back to the context's pool, block by block, so that the peak is the
 * model's before and one block; over several ranks each keeps all 8-bit weights as a whole, at any
 * ZeRO level. Runs on the device, after the weights are loaded; all ranks do it together. LoRA
 * factors stay beside the weights in their dtype.
 *
 * From then on the model is frozen, and what needs the weights themselves is MC_ERR_UNSUPPORTED
 * and says so: training, thawing, an optimizer, saving, writing parameters, merging LoRA.
 * mc_parameter_read gives what the bytes stand for.
 *
 * Errors: a format out of range, MC_WEIGHTS_FLOAT among them; a model that is in 8 bits already,
 * has gradients or an optimizer's state, or is used by an open tape; a weight that is not finite
 * (named with its row). Where memory runs out, a further call does the rest. */
MC_API mc_status mc_model_quantize(mc_model *model, mc_weight_format format);
/* What the weights of a model's linear layers are in. MC_WEIGHTS_FLOAT for NULL. */
MC_API mc_weight_format mc_model_weight_format(const mc_model *model);

#endif
