/* DistilBERT (Sanh et al. 2019): BERT's encoder with half the layers, no token types and no pooler.
 *
 * Numerics are Hugging Face's DistilBertForMaskedLM and DistilBertForSequenceClassification: layer
 * norms use an eps of 1e-12, and attention's output has no dropout.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_DISTILBERT_H
#define MC_MODELS_DISTILBERT_H

#include "models/model.h"

/* Comments give the keys of Hugging Face's config.json. A zero is a zero, not a default. */
typedef struct mc_distilbert_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t dim;              /* dim */
    int64_t dim_ff;           /* hidden_dim */
    int64_t layers;           /* n_layers */
    int64_t heads;            /* n_heads; divides dim */
    int64_t positions;        /* max_position_embeddings */
    int64_t pad_token_id;     /* pad_token_id */
    mc_activation activation; /* activation: gelu, gelu_new, relu, silu */
    float dropout;            /* dropout */
    float attention_dropout;  /* attention_dropout, of the probabilities */
    float classifier_dropout; /* seq_classif_dropout */
    float init_std;           /* initializer_range */
    bool tied; /* tie_word_embeddings: the masked language model's head is the word embedding */
} mc_distilbert_config;

/* distilbert-base-uncased's shape. */
MC_API mc_distilbert_config mc_distilbert_config_default(void);
/* A shape by name: distilbert-base-uncased, distilbert-base-cased, .... Errors: another name is
 * MC_ERR_NOT_FOUND. */
MC_API mc_status mc_distilbert_config_named(mc_context *ctx, const char *name,
                                            mc_distilbert_config *config);
/* Reads a config.json of Hugging Face's form. Errors: for malformed and out-of-range values the
 * message names file and key; other model types are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_distilbert_config_read(mc_context *ctx, const char *path,
                                           mc_distilbert_config *config);
MC_API mc_distilbert_config
mc_distilbert_get_config(const mc_model *model); /* zeros for another family's */

/* A DistilBERT with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_distilbert_new(mc_context *ctx, const mc_distilbert_config *config,
                                   const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a DistilBERT's. */
MC_API mc_model *mc_distilbert_from_pretrained(mc_context *ctx, const char *identifier,
                                               const mc_load_options *options);

#endif
