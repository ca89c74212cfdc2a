/* GPT-2 (Radford et al. 2019): a pre-LN decoder with learned positions and a tied head.
 *
 * Numerics are Hugging Face's GPT2LMHeadModel, dropout included: after the embedding, on attention
 * probabilities, and after each sublayer's output.
 *
 *     mc_model *gpt2 = mc_gpt2_from_pretrained(ctx, "gpt2", NULL);
 *     mc_tape *t = mc_tape_begin(ctx);
 *     mc_tensor *hidden = mc_model_forward(t, gpt2, &(mc_model_input){.ids = ids}).last_hidden;
 *     mc_tensor *loss = mc_model_loss(t, gpt2, hidden, next);      next[i] follows ids[i]
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_GPT2_H
#define MC_MODELS_GPT2_H

#include "models/model.h"

/* The shape of a GPT-2; comments give the keys of Hugging Face's config.json, and ModelCenter's in
 * brackets. A zero is a zero, not a default: start from mc_gpt2_config_default() or _named(). */
typedef struct mc_gpt2_config {
    int64_t vocab_size; /* vocab_size */
    int64_t dim;        /* n_embd [dim_model] */
    int64_t dim_ff;     /* n_inner, 4 * n_embd if null [dim_ff] */
    int64_t layers;     /* n_layer [num_layers] */
    int64_t heads;      /* n_head [num_heads]; divides dim */
    int64_t head_dim;   /* [dim_head]; 0: dim / heads, and nothing else is supported */
    int64_t positions;  /* n_positions, or n_ctx of old files [position_size] */
    mc_activation
        activation;          /* activation_function [ffn_activate_fn]: gelu_new, gelu, relu, silu */
    float eps;               /* layer_norm_epsilon [norm_eps] */
    float dropout;           /* resid_pdrop [dropout_p]: of each sublayer's output */
    float embedding_dropout; /* embd_pdrop [dropout_p] */
    float attention_dropout; /* attn_pdrop [dropout_p] */
    float init_std;          /* initializer_range [att_init_std] */
    float embedding_std;     /* initializer_range [emb_init_std] */
    float ffn_std;           /* initializer_range [ffn_init_std] */
    bool tied;               /* tie_word_embeddings [tied]: the head is the word embedding */
    bool scale_attention;    /* scale_attn_weights [attn_scale]: scores / sqrt(head size) */
    bool scale_by_layer;     /* scale_attn_by_inverse_layer_idx: also / (layer + 1), from 0 on */
    int64_t bos_token_id;    /* bos_token_id; -1: none */
    /* eos_token_id, which ends a generated text; -1: none. If the file lists several, all end one,
     * and this is the first. */
    int64_t eos_token_id;
    int64_t pad_token_id; /* pad_token_id; -1: none */
} mc_gpt2_config;

/* gpt2's shape (124M), the defaults of Hugging Face's GPT2Config. */
MC_API mc_gpt2_config mc_gpt2_config_default(void);
/* A shape by name: gpt2-base (or gpt2), gpt2-medium, gpt2-large, gpt2-xl. Errors: another name is
 * MC_ERR_NOT_FOUND, and lists the known names; *config is then unchanged. */
MC_API mc_status mc_gpt2_config_named(mc_context *ctx, const char *name, mc_gpt2_config *config);
/* Reads a config.json of Hugging Face's or ModelCenter's form. Errors: for malformed and
 * out-of-range values the message names file and key; other model types, cross-attention and other
 * activations are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_gpt2_config_read(mc_context *ctx, const char *path, mc_gpt2_config *config);
MC_API mc_gpt2_config mc_gpt2_get_config(const mc_model *model); /* zeros for another family's */

/* A GPT-2 with initial weights: normal(0, init_std), for the products that end a sublayer
 * normal(0, std / sqrt(2 * layers)); biases 0. See mc_model_new for heads and options, which may be
 * NULL. */
MC_API mc_model *mc_gpt2_new(mc_context *ctx, const mc_gpt2_config *config,
                             const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a GPT-2's, such as gpt2 (or gpt2-base),
 * gpt2-medium, gpt2-large, gpt2-xl. */
MC_API mc_model *mc_gpt2_from_pretrained(mc_context *ctx, const char *identifier,
                                         const mc_load_options *options);

#endif
