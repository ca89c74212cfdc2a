/* Longformer (Beltagy et al. 2020): RoBERTa's encoder for long texts. A token attends to a window
 * around it and to global tokens; these attend to all tokens, with projections of their own.
 * Lawformer (Xiao et al. 2021) is a Longformer.
 *
 * Numerics are Hugging Face's LongformerForMaskedLM and LongformerForSequenceClassification: the
 * classifier's first token is global unless mc_model_input.global_mask says otherwise, and
 * positions begin at pad_token_id + 1. A text's length need not be a multiple of the window.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_LONGFORMER_H
#define MC_MODELS_LONGFORMER_H

#include "models/model.h"

/* Comments give the keys of Hugging Face's config.json. A zero is a zero, not a default. */
typedef struct mc_longformer_config {
    int64_t vocab_size;   /* vocab_size */
    int64_t dim;          /* hidden_size */
    int64_t dim_ff;       /* intermediate_size */
    int64_t layers;       /* num_hidden_layers */
    int64_t heads;        /* num_attention_heads; divides dim */
    int64_t positions;    /* max_position_embeddings: rows, the first pad_token_id + 1 unused */
    int64_t types;        /* type_vocab_size */
    int64_t pad_token_id; /* pad_token_id */
    /* attention_window, of every layer: an even number, half of it to either side of a token */
    int64_t window;
    mc_activation activation; /* hidden_act: gelu, gelu_new, relu, silu */
    float eps;                /* layer_norm_eps */
    float dropout;            /* hidden_dropout_prob, the classifier's too */
    float attention_dropout;  /* attention_probs_dropout_prob */
    float init_std;           /* initializer_range */
    bool tied; /* tie_word_embeddings: the masked language model's head is the word embedding */
} mc_longformer_config;

/* The shape of transformers' class. */
MC_API mc_longformer_config mc_longformer_config_default(void);
/* A shape by name: longformer-base-4096, longformer-large-4096. Errors: another name is
 * MC_ERR_NOT_FOUND. */
MC_API mc_status mc_longformer_config_named(mc_context *ctx, const char *name,
                                            mc_longformer_config *config);
/* Reads a config.json of Hugging Face's form. Errors: for malformed and out-of-range values the
 * message names file and key; windows that differ between layers are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_longformer_config_read(mc_context *ctx, const char *path,
                                           mc_longformer_config *config);
/* Zeros for another family's model. */
MC_API mc_longformer_config mc_longformer_get_config(const mc_model *model);

/* A Longformer with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_longformer_new(mc_context *ctx, const mc_longformer_config *config,
                                   const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a Longformer's, such as
 * allenai/longformer-base-4096. */
MC_API mc_model *mc_longformer_from_pretrained(mc_context *ctx, const char *identifier,
                                               const mc_load_options *options);

#endif
