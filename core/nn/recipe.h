/* The precision of a model's products (mc_load_options.recipe).
 *
 *     mc_load_options options = {.dtype = MC_BF16, .recipe = {.fp8 = MC_FP8_ALL}};
 *
 * With fp8 the linear layers of blocks (attention's projections, feed-forward) multiply 8-bit
 * numbers on training tapes: x and weights in E4M3, gradients of outputs in E5M2 (Micikevicius et
 * al. 2022), summed in f32. A layer takes part if both of its sizes are multiples of 16.
 * Embeddings, norms, attention, heads and adapters compute in the model's dtype. So does everything
 * on an evaluation tape: its loss is that of the saved model. Parameters, gradients and model files
 * do not change; checkpoints also contain the scales.
 *
 * Each tensor has a scale, a power of two: the largest one that keeps the tensor within the
 * format's range. It follows the largest magnitude of the last 16 updates (delayed), or that of
 * the tensor itself (current). The first update has current scales in any case, and so has the
 * first one after mc_module_set_trainable has frozen or thawed a parameter, which changes which
 * gradients are computed. Updates in which a tensor is all zero or not used do not count.
 * Magnitudes are those of all ranks.
 *
 * Saved optimizer state (mc_optim_manager_save, checkpoints) contains the scales and their history.
 * Set the recipe before loading it: without one the scales are not read, with a warning, and the
 * first update after it has current scales.
 *
 * Weights that are stored in 8 bits, as an adapter's base (mc_model_quantize_base with
 * MC_WEIGHTS_FP8, before or after the recipe), have a scale for each of their rows. Their layers
 * take part if their sizes allow it, with MC_FP8_AUTO too. Each row of x and of the output's
 * gradient has a scale of its own, a power of two, and both are E4M3; the gradient is multiplied by
 * the scales of the weight's rows before its cast. These scales follow from the rows themselves,
 * with any `scaling`; they are not state. Without the recipe such weights are dequantized for each
 * product.
 *
 * For inference, MC_FP8_STATIC multiplies on evaluation tapes in place of those that train, with
 * scales that are fixed once: run some passes on typical input, then mc_module_calibrate_fp8. With
 * fixed scales the first product of a plain feed-forward writes its activation in 8 bits; GELU is
 * then computed by tanh's approximation on every device, which differs by at most 4.8e-4.
 *
 * With MC_FP8_AUTO only shapes take part whose 8-bit products, with their casts, are measured to be
 * faster (mc_module_choose_fp8). A model without a layer of suitable sizes then has no recipe.
 *
 * GPUs of compute capability 9.0 multiply 8-bit numbers. Other GPUs and CPUs compute the same
 * results by casting to 8 bits and back, which is slower than training without fp8: use it for
 * tests.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_NN_RECIPE_H
#define MC_NN_RECIPE_H

#include <stdint.h>
#include "core/nn/module.h"

typedef enum mc_fp8_choice {
    MC_FP8_NONE = 0,
    MC_FP8_AUTO, /* the layers that become faster; all, until mc_module_choose_fp8 measures */
    MC_FP8_ALL   /* all linear layers of blocks whose sizes allow it */
} mc_fp8_choice;

typedef enum mc_fp8_scaling {
    MC_FP8_DELAYED = 0, /* needs no pass over a tensor before it is cast */
    MC_FP8_CURRENT,
    MC_FP8_STATIC /* for inference: mc_module_calibrate_fp8 */
} mc_fp8_scaling;

typedef struct mc_recipe {
    mc_fp8_choice fp8;
    mc_fp8_scaling scaling;
    /* Divides scales by 2 to this power, which leaves room for growing tensors; -32 to 32. 0: the
     * largest scales that fit. */
    int fp8_margin;
    /* With MC_FP8_AUTO: bit i for the layers of kind i (mc_fp8_kind), as an earlier choice found
     * them. 0: all layers. */
    uint64_t fp8_kinds;
} mc_recipe;

/* Sets the recipe of a tree whose parameters are all declared, for tapes that begin later; `recipe`
 * NULL or without fp8 ends it. Forgets the recorded steps of the context. Ranks call it together.
 * Errors: MC_ERR_DTYPE for f16; MC_ERR_UNSUPPORTED if no layer can take part (with MC_FP8_AUTO: if
 * there are some, and `fp8_kinds` selects none of them), for weights that are stored in int8, and
 * for MC_FP8_STATIC with weights that are stored in 8 bits; MC_ERR_ARGUMENT for a field out of
 * range; MC_ERR_STATE while a tape is open that uses the tree; MC_ERR_NOMEM. */
MC_API mc_status mc_module_set_recipe(mc_module *root, const mc_recipe *recipe);
/* The linear layers that compute in 8 bits; 0 without fp8 and for NULL. */
MC_API int mc_module_fp8_linears(const mc_module *module);

/* Fixes the scales of a tree with MC_FP8_STATIC: those of the largest magnitudes that evaluation
 * tapes have had since the recipe was set, which scaled each tensor by itself. Later passes
 * multiply with these scales; larger elements saturate. Forgets the recorded steps of the context.
 * Weights are cast once: where they change, set the recipe and calibrate again. Ranks call it
 * together. Errors, which fix nothing: MC_ERR_STATE without MC_FP8_STATIC, after an earlier call,
 * while a tape is open that uses the tree, and for a layer that no pass of any rank has used;
 * MC_ERR_NOMEM. */
MC_API mc_status mc_module_calibrate_fp8(mc_module *root);

/* Layers of one shape, in the order of their first ones, and the time of one layer per pass. */
typedef struct mc_fp8_kind {
    char name[64]; /* weight of the first layer, without its block: "ffn.ffn.w_out.weight" */
    int64_t out, in;
    int layers;
    /* Milliseconds of its three products in the model's dtype and in 8 bits, and of the casts: two
     * of the input, one of the output's gradient, and a share of the weight's. */
    double plain, fp8, casts;
    bool chosen; /* fp8 + casts < plain */
} mc_fp8_kind;
enum { MC_FP8_KINDS = 64 /* layers of further shapes are never chosen */ };

/* Measures each kind of layer of a tree with MC_FP8_AUTO, for passes of `rows` rows (tokens of a
 * rank) and `passes` passes per update, and writes kinds (MC_FP8_KINDS). Takes some milliseconds
 * per kind, and scratch memory for one layer's operands. Ranks call it together and use rank 0's
 * figures. Sets the recipe of the tree anew, or ends it if no kind is chosen. On a planning context
 * (memory_plan.h) it measures the device of the plan. Returns the number of kinds; 0 without
 * MC_FP8_AUTO, if the device does not multiply 8-bit numbers or weights are stored in 8 bits (all
 * layers stay in), and after an error: MC_ERR_ARGUMENT for rows or passes below 1, MC_ERR_NOMEM,
 * those of mc_module_set_recipe. */
MC_API int mc_module_choose_fp8(mc_module *root, int64_t rows, int passes, mc_fp8_kind *kinds);

#endif
