/* LLaMA (Touvron et al. 2023) and the decoders that share its blocks: Llama 1 to 3.2, TinyLlama,
 * SmolLM2, Mistral, Qwen2, Qwen3 (dense) and MiniCPM. RMSNorm, rotary positions, grouped heads and
 * a gated feed-forward; the config says what else a model type has.
 *
 * Numerics are those of Hugging Face's LlamaForCausalLM and its relatives, with rotary angles in
 * f32.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_LLAMA_H
#define MC_MODELS_LLAMA_H

#include "core/ops/rope.h"
#include "models/model.h"

/* The shape of a model; comments give the keys of Hugging Face's config.json, and ModelCenter's in
 * brackets. A zero is a zero, not a default: start from a default or named shape. */
typedef struct mc_llama_config {
    /* "llama", "mistral", "qwen2", "qwen3" or "minicpm"; NULL: "llama". qwen2 has biases of q, k
     * and v, qwen3 norms for the heads of q and k, mistral a window in all layers, minicpm the
     * three scales. ModelCenter's form is "llama". */
    const char *model_type;
    int64_t vocab_size; /* vocab_size */
    int64_t dim;        /* hidden_size [dim_model] */
    int64_t dim_ff;     /* intermediate_size [dim_ff] */
    int64_t layers;     /* num_hidden_layers [num_layers] */
    int64_t heads;      /* num_attention_heads [num_heads] */
    int64_t key_heads;  /* num_key_value_heads [num_heads_kv]; -1: heads */
    int64_t head_dim;   /* head_dim [dim_head]; -1: dim / heads */
    int64_t positions;  /* max_position_embeddings; 0: no limit, as in ModelCenter's form */
    mc_rope rope;       /* rope_theta, rope_scaling; or rope_parameters, which has both */
    /* mistral, qwen2, qwen3: sliding_window, tokens that one attends to, itself included; -1: all.
     * qwen2 and qwen3 use it if use_sliding_window, in layers from max_window_layers on. */
    int64_t window;
    bool use_window;
    int64_t window_from;
    mc_activation activation; /* hidden_act; the gate's [ffn_activate_fn, gated_silu alone] */
    float eps;                /* rms_norm_eps [norm_eps] */
    float dropout;            /* after each branch [dropout_p] */
    float attention_dropout;  /* attention_dropout [dropout_p] */
    float init_std;           /* initializer_range [att_init_std] */
    float embedding_std;      /* initializer_range [emb_init_std] */
    float ffn_std;            /* initializer_range [ffn_init_std] */
    bool attention_bias;      /* llama, qwen3: attention_bias, of q, k, v and o */
    bool ffn_bias;            /* llama: mlp_bias */
    bool tied;                /* tie_word_embeddings [tied] */
    /* minicpm: scale_emb, of the words' embeddings; scale_depth / sqrt(layers), of each branch;
     * dim_model_base / dim, of the logits. */
    float embedding_scale, depth_scale;
    int64_t base_dim;
    int64_t bos_token_id, eos_token_id, pad_token_id; /* of the same names; -1: none */
} mc_llama_config;

/* Llama-1-7b's shape, the defaults of Hugging Face's LlamaConfig. */
MC_API mc_llama_config mc_llama_config_default(void);
/* A shape by name, for example "llama-3.2-1b" or "Qwen/Qwen3-0.6B": docs/models/llama.md lists
 * them. Errors: another name is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_llama_config_named(mc_context *ctx, const char *name, mc_llama_config *config);
/* Reads a config.json of Hugging Face's or ModelCenter's form. Errors: for malformed and
 * out-of-range values, and rope types other than default, linear, llama3 and yarn, the message
 * names file and key; other model types are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_llama_config_read(mc_context *ctx, const char *path, mc_llama_config *config);
MC_API mc_llama_config mc_llama_get_config(const mc_model *model); /* zeros for another family's */

/* A model with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_llama_new(mc_context *ctx, const mc_llama_config *config,
                              const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is one of this family's. */
MC_API mc_model *mc_llama_from_pretrained(mc_context *ctx, const char *identifier,
                                          const mc_load_options *options);

#endif
