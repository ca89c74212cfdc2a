/* OPT (Zhang et al. 2022): GPT-3's decoder with ReLU. In opt-350m the norms come after the
 * sublayers, and the word embedding is narrower than the blocks. Galactica is an OPT, too.
 *
 * Numerics are Hugging Face's OPTForCausalLM: the first two rows of the position table are not used
 * by whole sequences.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_OPT_H
#define MC_MODELS_OPT_H

#include "models/model.h"

/* The shape of an OPT; comments give the keys of Hugging Face's config.json, and ModelCenter's in
 * brackets. A zero is a zero, not a default: start from a default or named shape. */
typedef struct mc_opt_config {
    int64_t vocab_size; /* vocab_size */
    int64_t dim;        /* hidden_size [dim_model] */
    int64_t dim_ff;     /* ffn_dim [dim_ff] */
    int64_t layers;     /* num_hidden_layers [num_layers] */
    int64_t heads;      /* num_attention_heads [num_heads] */
    int64_t head_dim;   /* [dim_head]; 0: dim / heads, and nothing else is supported */
    int64_t word_dim;   /* word_embed_proj_dim, of words and of the last hidden states; -1: dim */
    int64_t positions;  /* max_position_embeddings [position_size] */
    mc_activation activation; /* activation_function [ffn_activate_fn] */
    bool norm_before;         /* do_layer_norm_before; false: blocks end in their norms */
    bool no_last_norm;        /* _remove_final_layer_norm; none either without norm_before */
    bool bias;                /* enable_bias, of the blocks' products */
    float eps;                /* [norm_eps] */
    float dropout;            /* dropout [dropout_p] */
    float embedding_dropout;  /* [dropout_p] */
    float attention_dropout;  /* attention_dropout [dropout_p] */
    float init_std;           /* init_std [att_init_std] */
    float embedding_std;      /* init_std [emb_init_std] */
    float ffn_std;            /* init_std [ffn_init_std] */
    bool tied;                /* tie_word_embeddings */
    int64_t bos_token_id, eos_token_id, pad_token_id; /* of the same names; -1: none */
} mc_opt_config;

/* opt-125m's shape, the defaults of Hugging Face's OPTConfig. */
MC_API mc_opt_config mc_opt_config_default(void);
/* A shape by name: opt-125m to opt-66b, with or without facebook/ before it. Errors: another name
 * is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_opt_config_named(mc_context *ctx, const char *name, mc_opt_config *config);
/* Reads a config.json of Hugging Face's or ModelCenter's form. Errors: for malformed and
 * out-of-range values the message names file and key; other model types are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_opt_config_read(mc_context *ctx, const char *path, mc_opt_config *config);
MC_API mc_opt_config mc_opt_get_config(const mc_model *model); /* zeros for another family's */

/* An OPT with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_opt_new(mc_context *ctx, const mc_opt_config *config,
                            const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is an OPT's. */
MC_API mc_model *mc_opt_from_pretrained(mc_context *ctx, const char *identifier,
                                        const mc_load_options *options);

#endif
