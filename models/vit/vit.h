/* ViT (Dosovitskiy et al. 2021): an encoder of images, which are cut into patches. Each patch is a
 * token; a classifier reads an extra token before them.
 *
 * Numerics are Hugging Face's ViTModel and ViTForImageClassification.
 *
 *     mc_model *vit = mc_vit_from_pretrained(ctx, "google/vit-base-patch16-224", NULL);
 *     mc_model_output out = mc_model_forward(t, vit, &(mc_model_input){.pixels = pixels});
 *     mc_tensor *logits = mc_model_classify(t, vit, &out);
 *
 * pixels are f32 (batch, channels, size, size), as mc_image_read (datasets/image/image.h) returns
 * them for the model's mc_model_image_form.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_VIT_H
#define MC_MODELS_VIT_H

#include "models/model.h"

/* Comments give the keys of Hugging Face's config.json. A zero is a zero, not a default. */
typedef struct mc_vit_config {
    int64_t dim;              /* hidden_size */
    int64_t dim_ff;           /* intermediate_size */
    int64_t layers;           /* num_hidden_layers */
    int64_t heads;            /* num_attention_heads; divides dim */
    int64_t image_size;       /* image_size: rows and columns; a multiple of patch_size */
    int64_t patch_size;       /* patch_size */
    int64_t channels;         /* num_channels */
    mc_activation activation; /* hidden_act */
    float eps;                /* layer_norm_eps */
    float dropout;            /* hidden_dropout_prob */
    float attention_dropout;  /* attention_probs_dropout_prob, of the probabilities */
    float init_std;           /* initializer_range */
    int64_t pooler_dim;       /* pooler_output_size; -1: dim */
} mc_vit_config;

/* google/vit-base-patch16-224's shape. */
MC_API mc_vit_config mc_vit_config_default(void);
/* A shape by name: vit-base-patch16-224, vit-large-patch16-384, .... Errors: another name is
 * MC_ERR_NOT_FOUND. */
MC_API mc_status mc_vit_config_named(mc_context *ctx, const char *name, mc_vit_config *config);
/* Reads a config.json of Hugging Face's form. Errors: for malformed and out-of-range values the
 * message names file and key; other model types are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_vit_config_read(mc_context *ctx, const char *path, mc_vit_config *config);
MC_API mc_vit_config mc_vit_get_config(const mc_model *model); /* zeros for another family's */

/* A ViT with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_vit_new(mc_context *ctx, const mc_vit_config *config,
                            const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a ViT's. */
MC_API mc_model *mc_vit_from_pretrained(mc_context *ctx, const char *identifier,
                                        const mc_load_options *options);

#endif
