/* MPNet (Song et al. 2020): BERT's encoder with RoBERTa's positions and a bias of relative
 * positions that all layers share. sentence-transformers' all-mpnet-base-v2 is an MPNet.
 *
 * Numerics are Hugging Face's MPNetForMaskedLM and MPNetForSequenceClassification: 32 buckets of
 * distances up to 128, no positions for padding, and the exact GELU in the masked language model's
 * head, whatever the layers' activation.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_MPNET_H
#define MC_MODELS_MPNET_H

#include "models/model.h"

/* Comments give the keys of Hugging Face's config.json. A zero is a zero, not a default. */
typedef struct mc_mpnet_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t dim;              /* hidden_size */
    int64_t dim_ff;           /* intermediate_size */
    int64_t layers;           /* num_hidden_layers */
    int64_t heads;            /* num_attention_heads; divides dim */
    int64_t positions;        /* max_position_embeddings: rows, of which the first two are unused */
    int64_t pad_token_id;     /* pad_token_id; 1, and nothing else is supported */
    mc_activation activation; /* hidden_act: gelu, gelu_new, relu, silu */
    float eps;                /* layer_norm_eps */
    float dropout;            /* hidden_dropout_prob, the classifier's too */
    float attention_dropout;  /* attention_probs_dropout_prob */
    float init_std;           /* initializer_range */
    bool tied; /* tie_word_embeddings: the masked language model's head is the word embedding */
} mc_mpnet_config;

/* mpnet-base's shape. */
MC_API mc_mpnet_config mc_mpnet_config_default(void);
/* A shape by name: mpnet-base. Errors: another name is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_mpnet_config_named(mc_context *ctx, const char *name, mc_mpnet_config *config);
/* Reads a config.json of Hugging Face's form. Errors: for malformed and out-of-range values the
 * message names file and key; other model types are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_mpnet_config_read(mc_context *ctx, const char *path, mc_mpnet_config *config);
MC_API mc_mpnet_config mc_mpnet_get_config(const mc_model *model); /* zeros for another family's */

/* An MPNet with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_mpnet_new(mc_context *ctx, const mc_mpnet_config *config,
                              const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is an MPNet's. */
MC_API mc_model *mc_mpnet_from_pretrained(mc_context *ctx, const char *identifier,
                                          const mc_load_options *options);

#endif
