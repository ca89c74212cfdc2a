/* ModernBERT (Warner et al. 2024): a pre-norm encoder with rotary positions, gated feed-forwards
 * and no biases. Every few layers one attends to the whole text, the others to a window.
 *
 * Numerics are Hugging Face's ModernBertForMaskedLM and ModernBertForSequenceClassification: the
 * first layer has no norm before its attention, layer norms have no bias, and the two kinds of
 * layers have different rotary bases.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_MODERNBERT_H
#define MC_MODELS_MODERNBERT_H

#include "models/model.h"

/* Comments give the keys of Hugging Face's config.json. A zero is a zero, not a default. */
typedef struct mc_modernbert_config {
    int64_t vocab_size;   /* vocab_size */
    int64_t dim;          /* hidden_size */
    int64_t dim_ff;       /* intermediate_size */
    int64_t layers;       /* num_hidden_layers */
    int64_t heads;        /* num_attention_heads; divides dim into an even number of columns */
    int64_t positions;    /* max_position_embeddings */
    int64_t pad_token_id; /* pad_token_id */
    /* Layer i attends to the whole text if this divides i: global_attn_every_n_layers, or the
     * interval in the list layer_types, if there is one. */
    int64_t global_every;
    int64_t window; /* local_attention: half of it to either side of a token */
    /* Rotary bases: global_rope_theta and local_rope_theta, or those in rope_parameters. */
    float global_theta, local_theta;
    mc_activation activation;      /* hidden_activation: gelu, gelu_new, relu, silu */
    mc_activation head_activation; /* classifier_activation, of both heads */
    int64_t pooling; /* classifier_pooling, of classifiers: 0: cls, the first token; 1: mean */
    float eps;       /* norm_eps */
    float embedding_dropout;  /* embedding_dropout */
    float attention_dropout;  /* attention_dropout, of probabilities and the output */
    float ffn_dropout;        /* mlp_dropout, inside the feed-forwards */
    float classifier_dropout; /* classifier_dropout */
    float init_std;           /* initializer_range */
    bool tied; /* tie_word_embeddings: the masked language model's head is the word embedding */
} mc_modernbert_config;

/* modernbert-base's shape. */
MC_API mc_modernbert_config mc_modernbert_config_default(void);
/* A shape by name: modernbert-base, modernbert-large. Errors: another name is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_modernbert_config_named(mc_context *ctx, const char *name,
                                            mc_modernbert_config *config);
/* Reads a config.json of Hugging Face's form. Errors: for malformed and out-of-range values the
 * message names file and key; biases, other rope types and layer orders are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_modernbert_config_read(mc_context *ctx, const char *path,
                                           mc_modernbert_config *config);
/* Zeros for another family's model. */
MC_API mc_modernbert_config mc_modernbert_get_config(const mc_model *model);

/* A ModernBERT with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_modernbert_new(mc_context *ctx, const mc_modernbert_config *config,
                                   const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a ModernBERT's. */
MC_API mc_model *mc_modernbert_from_pretrained(mc_context *ctx, const char *identifier,
                                               const mc_load_options *options);

#endif
