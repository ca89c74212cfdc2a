/* T5 (Raffel et al. 2020), T5 v1.1, mT5 and FLAN-T5: an encoder and a decoder with RMSNorm, without
 * biases, and with relative positions that the layers of a stack share.
 *
 * Numerics are Hugging Face's T5ForConditionalGeneration, dropout included: after the embedding, on
 * attention probabilities, inside the feed-forward, after each sublayer and after the last norm.
 *
 *     mc_model *t5 = mc_t5_from_pretrained(ctx, "google/flan-t5-base", NULL);
 *     mc_tensor *start = mc_model_shift_right(t, t5, labels, NULL);
 *     mc_model_output out = mc_model_forward(
 *         t, t5, &(mc_model_input){.ids = ids, .lengths = lengths, .decoder_ids = start});
 *     mc_tensor *loss = mc_model_loss(t, t5, out.last_hidden, labels);
 *
 * ModelCenter's folders hold the weights of the original T5 and of v1.1 divided by 100 and by 10,
 * so that f16 does not overflow. They are computed as they are stored, and multiplied again when
 * they are saved in Hugging Face's form, with an eps that gives the same results.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_T5_H
#define MC_MODELS_T5_H

#include "models/model.h"

/* The shape of a T5; comments give the keys of Hugging Face's config.json, and ModelCenter's in
 * brackets. A zero is a zero, not a default: start from mc_t5_config_default() or _named(). */
typedef struct mc_t5_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t dim;              /* d_model [dim_model] */
    int64_t dim_ff;           /* d_ff [dim_ff] */
    int64_t layers;           /* num_layers [num_encoder_layers] */
    int64_t decoder_layers;   /* num_decoder_layers; num_layers if null */
    int64_t heads;            /* num_heads */
    int64_t head_dim;         /* d_kv [dim_head]; heads * d_kv need not be d_model */
    int64_t buckets;          /* relative_attention_num_buckets [position_bias_num_buckets] */
    int64_t max_distance;     /* relative_attention_max_distance [position_bias_max_distance] */
    mc_activation activation; /* dense_act_fn, else feed_forward_proj: relu, gated-gelu, ...
                                 [ffn_activate_fn] */
    bool gated;               /* is_gated_act, else by the same key */
    float eps;                /* layer_norm_epsilon [norm_eps] */
    float dropout;            /* dropout_rate [dropout_p] */
    float classifier_dropout; /* classifier_dropout */
    float init_factor; /* initializer_factor: scales the standard deviations of initial weights */
    bool tied;         /* tie_word_embeddings [tied]: the head is the word embedding */
    bool scale_head;   /* scale_decoder_outputs; where absent: tied; of an mT5 never. Logits times
                          dim^-1/2 */
    /* The weights are ModelCenter's, divided by 100 or 10 [if dim_model is there]. Then
     * `scale_head` is [scale], and logits are those of the undivided weights. */
    bool divided;
    int64_t pad_token_id, eos_token_id; /* of the same names */
    int64_t decoder_start_token_id;
} mc_t5_config;

/* t5-small's shape, the defaults of Hugging Face's T5Config. */
MC_API mc_t5_config mc_t5_config_default(void);
/* A shape by name: t5-small, t5-base, t5-large, t5-3b, t5-11b, google/t5-v1_1-base,
 * google/flan-t5-base, google/mt5-base, ... Errors: another name is MC_ERR_NOT_FOUND, and lists the
 * known names; *config is then unchanged. */
MC_API mc_status mc_t5_config_named(mc_context *ctx, const char *name, mc_t5_config *config);
/* Reads a config.json of Hugging Face's or ModelCenter's form. Errors: for malformed and
 * out-of-range values the message names file and key; other model types are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_t5_config_read(mc_context *ctx, const char *path, mc_t5_config *config);
MC_API mc_t5_config mc_t5_get_config(const mc_model *model); /* zeros for another family's */

/* A T5 with initial weights as Hugging Face draws them: embedding normal(0, factor), q
 * factor * (dim * head_dim)^-1/2, k, v and feed-forward factor * dim^-1/2, o and w_out by their own
 * columns. See mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_t5_new(mc_context *ctx, const mc_t5_config *config, const mc_model_heads *heads,
                           const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a T5's. A lm_head.weight that differs from the word
 * embedding becomes the head. Otherwise the word embedding is the head, even if config.json has
 * "tie_word_embeddings": false, and logits are not scaled. */
MC_API mc_model *mc_t5_from_pretrained(mc_context *ctx, const char *identifier,
                                       const mc_load_options *options);

#endif
