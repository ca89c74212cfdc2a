/* ELECTRA (Clark et al. 2020): BERT's encoder; narrower embeddings are projected to its width. Its
 * pretraining has two models: a generator, which is a small masked language model, and a
 * discriminator, which finds the tokens that the generator has replaced (mc_model_heads.replaced).
 *
 * Numerics are Hugging Face's ElectraForMaskedLM, ElectraForPreTraining and
 * ElectraForSequenceClassification: the heads of the generator and of the classifier always use the
 * exact GELU; the discriminator's head uses the layers' activation.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_ELECTRA_H
#define MC_MODELS_ELECTRA_H

#include "models/model.h"

/* Comments give the keys of Hugging Face's config.json. A zero is a zero, not a default. */
typedef struct mc_electra_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t words_dim;        /* embedding_size: columns of the embeddings */
    int64_t dim;              /* hidden_size; if it is not words_dim, there is a projection */
    int64_t dim_ff;           /* intermediate_size */
    int64_t layers;           /* num_hidden_layers */
    int64_t heads;            /* num_attention_heads; divides dim */
    int64_t positions;        /* max_position_embeddings */
    int64_t types;            /* type_vocab_size */
    int64_t pad_token_id;     /* pad_token_id */
    mc_activation activation; /* hidden_act: gelu, gelu_new, relu, silu */
    float eps;                /* layer_norm_eps */
    float dropout;            /* hidden_dropout_prob */
    float attention_dropout;  /* attention_probs_dropout_prob */
    float classifier_dropout; /* classifier_dropout; hidden_dropout_prob if null */
    float init_std;           /* initializer_range */
    bool tied;                /* tie_word_embeddings: the generator's head is the word embedding */
} mc_electra_config;

/* electra-small-discriminator's shape. */
MC_API mc_electra_config mc_electra_config_default(void);
/* A shape by name: electra-small-discriminator, electra-base-generator, ... Errors: another name
 * is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_electra_config_named(mc_context *ctx, const char *name,
                                         mc_electra_config *config);
/* Reads a config.json of Hugging Face's form. Errors: for malformed and out-of-range values the
 * message names file and key; other model types are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_electra_config_read(mc_context *ctx, const char *path,
                                        mc_electra_config *config);
MC_API mc_electra_config
mc_electra_get_config(const mc_model *model); /* zeros for another family's */

/* An ELECTRA with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_electra_new(mc_context *ctx, const mc_electra_config *config,
                                const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is an ELECTRA's. */
MC_API mc_model *mc_electra_from_pretrained(mc_context *ctx, const char *identifier,
                                            const mc_load_options *options);

#endif
