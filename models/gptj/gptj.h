/* GPT-J (Wang and Komatsuzaki 2021): a decoder with rotary positions, whose attention and
 * feed-forward read the same norm and are computed in parallel.
 *
 * Numerics are Hugging Face's GPTJForCausalLM, with rotary angles in f32. ModelCenter's files have
 * two norms a block; if the two differ, both are kept.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_GPTJ_H
#define MC_MODELS_GPTJ_H

#include "models/model.h"

/* The shape of a GPT-J; comments give the keys of Hugging Face's config.json, and ModelCenter's in
 * brackets. A zero is a zero, not a default: start from mc_gptj_config_default(). */
typedef struct mc_gptj_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t dim;              /* n_embd [dim_model] */
    int64_t dim_ff;           /* n_inner, 4 * n_embd if null [dim_ff] */
    int64_t layers;           /* n_layer [num_layers] */
    int64_t heads;            /* n_head [num_heads] */
    int64_t head_dim;         /* [dim_head]; 0: dim / heads, and nothing else is supported */
    int64_t positions;        /* n_positions; 0: no limit, as in ModelCenter's form */
    int64_t rotary_dim;       /* rotary_dim, the whole head if null [pos_rotary_dim]; even */
    mc_activation activation; /* activation_function [ffn_activate_fn] */
    float eps;                /* layer_norm_epsilon [norm_eps] */
    float dropout;            /* resid_pdrop [dropout_p] */
    float embedding_dropout;  /* embd_pdrop [dropout_p] */
    float attention_dropout;  /* attn_pdrop [dropout_p] */
    float init_std;           /* initializer_range [att_init_std] */
    float embedding_std;      /* initializer_range [emb_init_std] */
    float ffn_std;            /* initializer_range [ffn_init_std] */
    bool tied;                /* tie_word_embeddings [tied] */
    bool two_norms; /* the feed-forward has a norm of its own, as ModelCenter's files may */
    int64_t bos_token_id, eos_token_id, pad_token_id; /* of the same names; -1: none */
} mc_gptj_config;

/* gpt-j-6b's shape, the defaults of Hugging Face's GPTJConfig. */
MC_API mc_gptj_config mc_gptj_config_default(void);
/* A shape by name: EleutherAI/gpt-j-6b or gptj-6b. Errors: another name is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_gptj_config_named(mc_context *ctx, const char *name, mc_gptj_config *config);
/* Reads a config.json of Hugging Face's or ModelCenter's form. Errors: for malformed and
 * out-of-range values the message names file and key; other model types are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_gptj_config_read(mc_context *ctx, const char *path, mc_gptj_config *config);
MC_API mc_gptj_config mc_gptj_get_config(const mc_model *model); /* zeros for another family's */

/* A GPT-J with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_gptj_new(mc_context *ctx, const mc_gptj_config *config,
                             const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a GPT-J's. Saving one with two norms is
 * MC_ERR_UNSUPPORTED: Hugging Face's form has one. */
MC_API mc_model *mc_gptj_from_pretrained(mc_context *ctx, const char *identifier,
                                         const mc_load_options *options);

#endif
